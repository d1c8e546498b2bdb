//! Which neighbours the kernel is to ask for, and when.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::way::Key;

/// How often a neighbour that is known is confirmed: packets that bypass the kernel's stack leave its
/// entries unused, and the kernel does not look after unused ones.
pub const CONFIRM: Duration = Duration::from_secs(20);
/// How long to wait for a neighbour that is being resolved before asking again: as long as the kernel waits
/// between two requests (`retrans_time_ms`).
pub const RETRY: Duration = Duration::from_secs(1);
/// Neighbours that are asked for in a second, at most. More are asked for less often.
pub const PER_SECOND: usize = 256;

/// When the rate is exhausted, how long to wait for more of it.
const REFILL: Duration = Duration::from_millis(50);

/// When each neighbour was last asked for.
#[derive(Debug)]
pub struct Probes {
    asked: HashMap<Key, Instant>,
    /// What may still be asked at the time of `filled`.
    left: usize,
    filled: Instant,
}

impl Probes {
    /// Nobody has been asked for.
    pub fn new(now: Instant) -> Self {
        Self {
            asked: HashMap::new(),
            left: PER_SECOND,
            filled: now,
        }
    }

    /// Of the neighbours that are wanted, each with whether it is known, those to ask for now: new ones
    /// first, then whoever has waited longest. They count as asked for; those not wanted are forgotten.
    pub fn due(&mut self, wanted: &HashMap<Key, bool>, now: Instant) -> Vec<Key> {
        let since = now.saturating_duration_since(self.filled);
        let more = (since.as_secs_f64() * PER_SECOND as f64) as usize;
        // A fraction of one is not lost to frequent calls.
        self.left = self.left.saturating_add(more).min(PER_SECOND);
        self.filled = match self.left {
            PER_SECOND => now,
            _ => self.filled + Duration::from_secs_f64(more as f64 / PER_SECOND as f64),
        };
        self.asked.retain(|key, _| wanted.contains_key(key));
        let mut due: Vec<_> = wanted
            .iter()
            .map(|(key, &known)| (self.asked.get(key).copied(), *key, known))
            .filter(|&(asked, _, known)| asked.is_none_or(|asked| now >= asked + period(known)))
            .collect();
        due.sort_unstable();
        due.truncate(self.left);
        self.left -= due.len();
        let due: Vec<_> = due.into_iter().map(|(_, key, _)| key).collect();
        self.asked.extend(due.iter().map(|&key| (key, now)));
        due
    }

    /// How long until [`due`](Self::due) has something to say.
    pub fn next(&self, wanted: &HashMap<Key, bool>, now: Instant) -> Duration {
        let each = wanted.iter().map(|(key, &known)| {
            let asked = self.asked.get(key);
            asked.map_or(Duration::ZERO, |&asked| {
                (asked + period(known)).saturating_duration_since(now)
            })
        });
        let refill = match self.left {
            0 => REFILL,
            _ => Duration::ZERO,
        };
        each.min().unwrap_or(CONFIRM).max(refill)
    }
}

const fn period(known: bool) -> Duration {
    if known { CONFIRM } else { RETRY }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbours(count: u32, known: bool) -> HashMap<Key, bool> {
        (0..count)
            .map(|i| ((1, std::net::Ipv4Addr::from(0x0a00_0000 + i).into()), known))
            .collect()
    }

    #[test]
    fn each_in_its_time() {
        let start = Instant::now();
        let mut probes = Probes::new(start);
        for (known, period) in [(true, CONFIRM), (false, RETRY)] {
            let wanted = neighbours(1, known);
            probes.due(&HashMap::new(), start);
            assert_eq!(probes.next(&wanted, start), Duration::ZERO);
            assert_eq!(probes.due(&wanted, start).len(), 1);
            assert_eq!(probes.next(&wanted, start), period);
            let early = start + period - Duration::from_millis(1);
            assert!(probes.due(&wanted, early).is_empty());
            assert_eq!(probes.due(&wanted, start + period).len(), 1);
        }
        assert_eq!(probes.next(&HashMap::new(), start), CONFIRM);
    }

    #[test]
    fn one_that_is_lost_is_asked_for_at_once() {
        let start = Instant::now();
        let mut probes = Probes::new(start);
        probes.due(&neighbours(1, true), start);
        assert_eq!(probes.due(&neighbours(1, false), start + RETRY).len(), 1);
    }

    #[test]
    fn many_are_asked_for_at_the_rate_and_all_have_their_turn() {
        let start = Instant::now();
        let mut probes = Probes::new(start);
        let wanted = neighbours(1000, false);
        let mut times: HashMap<Key, usize> = HashMap::new();
        let mut asked = 0;
        let step = Duration::from_millis(20);
        let mut now = start;
        for _ in 0..500 {
            for key in probes.due(&wanted, now) {
                *times.entry(key).or_default() += 1;
                asked += 1;
            }
            now += step;
        }
        // 10 s, and the first burst.
        assert!(
            (10 * PER_SECOND..=11 * PER_SECOND).contains(&asked),
            "{asked}"
        );
        assert_eq!(times.len(), 1000);
        let (least, most) = (times.values().min(), times.values().max());
        assert!(
            most.zip(least)
                .is_some_and(|(most, least)| most - least <= 1)
        );
    }

    #[test]
    fn a_new_one_goes_before_those_that_fail() {
        let start = Instant::now();
        let mut probes = Probes::new(start);
        let mut wanted = neighbours(2 * PER_SECOND as u32, false);
        for second in 0..4 {
            probes.due(&wanted, start + second * RETRY);
        }
        let new = (2, std::net::Ipv6Addr::LOCALHOST.into());
        wanted.insert(new, false);
        assert!(probes.due(&wanted, start + 4 * RETRY).contains(&new));
    }
}
