//! Publishes to every CPU what all CPUs have in flight, for services that compare published loads.
//!
//! A published load is as good as an exact one while the interval is short against the life of a
//! connection, under about a tenth of it; at one life it is worse than a random choice, because
//! everybody avoids and seeks out the same backends. So the interval follows the life, which Little's
//! law gives: flows in flight divided by flows opened a second.

use std::time::{Duration, Instant};

use lb_common::abi::Published;

use super::Slot;
use crate::dataplane::{Error, LoadMaps, sum};

/// Intervals to a connection's life.
const PER_LIFE: u32 = 20;
/// The longest interval: what the counts of an idle service may lag behind.
const LONGEST: Duration = Duration::from_millis(500);
/// The shortest interval: one pass a millisecond is what a core can afford.
const SHORTEST: Duration = Duration::from_millis(1);

/// How fast to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time from one publication to the next.
    pub interval: Duration,
    /// The interval that connections' lives ask for is shorter than the agent can manage.
    pub behind: bool,
}

/// The interval for connections that live `in_flight / opened * elapsed` on average, when one pass
/// takes `pass`.
fn pace(in_flight: u64, opened: u64, elapsed: Duration, pass: Duration) -> Pace {
    // Half of the time at most goes into publishing.
    let possible = (2 * pass).max(SHORTEST);
    let life = if opened == 0 {
        None
    } else {
        Some(elapsed.mul_f64(in_flight.max(1) as f64 / opened as f64))
    };
    let wanted = life.map_or(LONGEST, |life| (life / PER_LIFE).min(LONGEST));
    Pace {
        interval: wanted.max(possible).min(LONGEST.max(possible)),
        // Up to twice the interval wanted is still within a tenth of a life.
        behind: wanted.saturating_mul(2) < possible,
    }
}

/// Reads all CPUs' counts and tells each CPU their sum.
pub struct Publisher {
    loads: LoadMaps,
    last: Option<(Instant, u64)>,
}

impl Publisher {
    /// A publisher over these maps.
    pub fn new(loads: LoadMaps) -> Self {
        Self { loads, last: None }
    }

    /// Publishes for the slots whose services want it, and returns how soon to do so again.
    pub fn publish(&mut self, slots: &[Slot]) -> Result<Pace, Error> {
        let start = Instant::now();
        let (mut in_flight, mut opened) = (0, 0_u64);
        for slot in slots.iter().filter(|slot| slot.published) {
            let cells = self.loads.cells(slot.id)?;
            let correction = self.loads.correction(slot.id)?;
            let load = sum(slot.id, slot.generation, &cells, &correction);
            in_flight += load.in_flight;
            opened = opened.wrapping_add(load.opened);
            let total = i32::try_from(load.in_flight).unwrap_or(i32::MAX);
            let views = cells
                .iter()
                .map(|cell| Published {
                    total,
                    own: clamp(cell.in_flight(slot.generation)),
                })
                .collect();
            self.loads.publish(slot.id, views)?;
        }
        let pace = match self.last {
            Some((then, before)) => pace(
                in_flight,
                opened.saturating_sub(before),
                start.duration_since(then),
                start.elapsed(),
            ),
            None => Pace {
                interval: SHORTEST,
                behind: false,
            },
        };
        self.last = Some((start, opened));
        Ok(pace)
    }
}

fn clamp(count: i64) -> i32 {
    count.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(100);

    #[test]
    fn a_twentieth_of_a_life() {
        // 1,000 in flight, 1,000 opened a second: each lives a second.
        let pace = pace(1000, 1000, Duration::from_secs(1), QUICK);
        assert_eq!(pace.interval, Duration::from_millis(50));
        assert!(!pace.behind);
    }

    #[test]
    fn idle_services_are_published_at_leisure() {
        assert_eq!(pace(50, 0, LONGEST, QUICK).interval, LONGEST);
        assert_eq!(pace(50, 1, Duration::from_secs(1), QUICK).interval, LONGEST);
    }

    #[test]
    fn says_when_it_cannot_keep_up() {
        // Lives of 2 ms ask for 0.1 ms; the shortest interval is 1 ms.
        let pace = pace(20, 10_000, Duration::from_secs(1), QUICK);
        assert_eq!(pace.interval, SHORTEST);
        assert!(pace.behind);
    }

    #[test]
    fn slow_passes_take_at_most_half_of_the_time() {
        let slow = Duration::from_millis(30);
        let pace = pace(1000, 1000, Duration::from_secs(1), slow);
        assert_eq!(pace.interval, 2 * slow);
        assert!(!pace.behind);
        let slow = Duration::from_millis(80);
        assert!(super::pace(1000, 1000, Duration::from_secs(1), slow).behind);
    }
}
