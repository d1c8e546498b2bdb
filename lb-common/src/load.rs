//! A backend's load, from what CPUs counted.
//!
//! Each CPU counts for itself ([`LoadCell`]), so no CPU waits for another. A count in flight is
//! signed while it is in parts: a flow opened on one CPU may close on another, whose part then goes
//! below zero. Only a sum over all CPUs is clamped.

use crate::abi::{Correction, LoadCell, Published};

/// The largest in-flight count that takes part in a comparison; larger ones count as this.
///
/// With weights below 2^16 a cost then stays below 2^47, far from overflow.
pub const MAX_IN_FLIGHT: u64 = 1 << 31;

impl LoadCell {
    /// This CPU's part of the in-flight count of the slot's owner `generation`.
    ///
    /// Differences of wrapping counters are right across a wrap.
    #[inline(always)]
    pub const fn in_flight(&self, generation: u32) -> i64 {
        if self.generation == generation {
            self.opened.wrapping_sub(self.closed) as i64
        } else {
            0
        }
    }
}

impl Correction {
    /// The correction for the slot's owner `generation`.
    #[inline(always)]
    pub const fn of(&self, generation: u32) -> i64 {
        if self.generation == generation {
            self.delta as i64
        } else {
            0
        }
    }
}

/// A sum over all CPUs as a load: never below zero, never above [`MAX_IN_FLIGHT`].
#[inline(always)]
pub const fn clamp(sum: i64) -> u64 {
    if sum < 0 {
        0
    } else if sum as u64 > MAX_IN_FLIGHT {
        MAX_IN_FLIGHT
    } else {
        sum as u64
    }
}

impl Published {
    /// The load as one CPU sees it between two publications: the published total, and what has
    /// changed on this CPU since, taken to have changed on the others as well.
    ///
    /// Without that scaling a CPU underestimates the change by the number of CPUs, and backends that
    /// looked idle at the publication are herded upon.
    #[inline(always)]
    pub const fn estimate(&self, own_now: i64, cpus: u32) -> u64 {
        let since = own_now.wrapping_sub(self.own as i64);
        clamp((self.total as i64).wrapping_add(since.wrapping_mul(cpus as i64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cell(opened: u64, closed: u64) -> LoadCell {
        LoadCell {
            generation: 1,
            opened,
            closed,
            ..LoadCell::default()
        }
    }

    #[test]
    fn counts_of_another_owner_are_none() {
        assert_eq!(cell(5, 2).in_flight(1), 3);
        assert_eq!(cell(5, 2).in_flight(2), 0);
        let correction = Correction {
            generation: 1,
            delta: -4,
        };
        assert_eq!((correction.of(1), correction.of(2)), (-4, 0));
    }

    #[test]
    fn right_across_a_wrap() {
        assert_eq!(cell(3, u64::MAX - 1).in_flight(1), 5);
        assert_eq!(cell(u64::MAX, 1).in_flight(1), -2);
    }

    #[test]
    fn a_close_on_another_cpu_is_not_lost() {
        let parts = [cell(10, 0), cell(0, 7)];
        assert_eq!(clamp(parts.iter().map(|c| c.in_flight(1)).sum()), 3);
    }

    #[test]
    fn clamped_only_as_a_sum() {
        assert_eq!(clamp(-1), 0);
        assert_eq!(clamp(i64::MAX), MAX_IN_FLIGHT);
        assert_eq!(clamp(17), 17);
    }

    #[test]
    fn estimate_scales_the_own_change() {
        let published = Published {
            total: 100,
            own: 20,
        };
        assert_eq!(published.estimate(20, 8), 100);
        assert_eq!(published.estimate(21, 8), 108);
        assert_eq!(published.estimate(19, 8), 92);
        assert_eq!(published.estimate(0, 8), 0);
    }

    proptest! {
        /// The counters may wrap at any point: what counts is only how many flows are open.
        #[test]
        fn in_flight_is_the_difference(closed in any::<u64>(), open in 0_u64..1 << 40) {
            prop_assert_eq!(cell(closed.wrapping_add(open), closed).in_flight(1), open as i64);
        }

        #[test]
        fn estimate_never_leaves_its_range(total in any::<i32>(), own in any::<i32>(),
                                           now in any::<i32>(), cpus in 1_u32..=256) {
            let estimate = Published { total, own }.estimate(i64::from(now), cpus);
            prop_assert!(estimate <= MAX_IN_FLIGHT);
            prop_assert_eq!(Published { total, own }.estimate(i64::from(own), cpus), total.max(0) as u64);
        }
    }
}
