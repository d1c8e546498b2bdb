//! The power of two choices: candidates, and the lesser cost of them.
//!
//! Of n balls thrown into n bins at random, the fullest bin gets about ln n / ln ln n; if each ball
//! looks at two bins and takes the emptier, it gets about ln ln n / ln 2 (Azar, Broder, Karlin, Upfal,
//! "Balanced allocations", 1994; Mitzenmacher, "The power of two choices in randomized load
//! balancing", 2001). For a balancer the second look also means that a load that is a little out of
//! date does not draw everyone to the same backend, as least-loaded does.
//!
//! A service's candidates stand in a table of [`Row`]s. A flow picks one row, by a keyed hash or at
//! random; the row holds up to four distinct backends in order of preference, drawn in proportion to
//! their weights. The first `choices` of them are compared. The same function, [`choose`], runs at
//! the NIC and in tests.

use crate::{
    abi::{NO_BACKEND, ROW, Row},
    flow::mix64,
};

/// What is compared of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Flows in flight, at most [`MAX_IN_FLIGHT`](crate::load::MAX_IN_FLIGHT).
    pub load: u64,
    /// Weight, 1 to 65,535.
    pub weight: u32,
}

impl Candidate {
    /// Whether this candidate is cheaper than `other`: (load + 1) / weight is less, and not both are
    /// idle.
    ///
    /// The 1 is the flow to be placed. A lone flow has either of two idle backends to itself, so
    /// neither is cheaper and the draw, which is in proportion to the weights, decides; by cost a
    /// lighter backend would get nothing at all until there is load. Compared by
    /// cross-multiplication: both products stay below 2^48.
    #[inline(always)]
    pub const fn cheaper_than(&self, other: &Self) -> bool {
        // Not `&&`: a branch less for the verifier to follow.
        ((self.load | other.load) != 0)
            & ((self.load + 1) * (other.weight as u64) < (other.load + 1) * (self.weight as u64))
    }
}

/// The cheapest of the first `choices` backends in `row`; on a tie the one that stands first.
///
/// `look` returns what there is to compare of a backend, or `None` if it takes no new flows. Returns
/// the backend's place in the row, or `None` if none of them takes any; the rest of the row then
/// stands in for those that do not, so a backend that has just gone costs no flow.
#[inline(always)]
pub fn choose<F>(row: &Row, choices: u8, mut look: F) -> Option<usize>
where
    F: FnMut(u32) -> Option<Candidate>,
{
    let mut best: Option<(usize, Candidate)> = None;
    let mut left = choices;
    let mut i = 0;
    while i < ROW {
        if left == 0 || row[i] == NO_BACKEND {
            break;
        }
        if let Some(candidate) = look(row[i]) {
            left -= 1;
            let cheaper = match &best {
                None => true,
                Some((_, best)) => candidate.cheaper_than(best),
            };
            if cheaper {
                best = Some((i, candidate));
            }
        }
        i += 1;
    }
    best.map(|(i, _)| i)
}

/// Scales 32 random bits to `0..n`: the high word of the product (Lemire, "Fast random integer
/// generation in an interval", 2019). The bias is below n / 2^32.
#[inline(always)]
pub const fn scale(random: u32, n: u32) -> u32 {
    ((random as u64 * n as u64) >> 32) as u32
}

/// Two distinct numbers below `n` from two random words, with no retry. `n` must be at least 2.
///
/// The second is drawn from the n - 1 others: two draws that coincide would waste the second choice.
#[inline(always)]
pub const fn distinct_pair(random: [u32; 2], n: u32) -> [u32; 2] {
    let a = scale(random[0], n);
    let b = scale(random[1], n - 1);
    [a, if b >= a { b + 1 } else { b }]
}

/// A backend as the candidate table sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Slot, written to the rows.
    pub id: u32,
    /// What the backend is hashed by: the same at every balancer ([`member_key`]).
    pub key: u64,
    /// Weight, 1 to 65,535.
    pub weight: u32,
}

/// The key of a backend in the candidate table, from its address (IPv4 mapped) and port, both in
/// network byte order. Slots are no part of it: each balancer hands them out in its own order.
pub const fn member_key(addr: &[u32; 4], port: u16) -> u64 {
    // Read as big-endian, so that balancers of both byte orders agree.
    let high = (u32::from_be(addr[0]) as u64) << 32 | u32::from_be(addr[1]) as u64;
    let low = (u32::from_be(addr[2]) as u64) << 32 | u32::from_be(addr[3]) as u64;
    mix64(mix64(mix64(high).wrapping_add(low)).wrapping_add(u16::from_be(port) as u64 + 1))
}

/// The row with number `index` of a service's candidate table.
///
/// Weighted rendezvous hashing (Schindelhauer, Schomaker, "Weighted distributed hash tables", 2005):
/// each backend draws -ln(u) / weight from a hash u of row and backend, and the four least are the row,
/// in order. The first is then backend i with probability w_i / sum(w), the second likewise among the
/// rest. A backend that comes or goes changes only rows that it is in, a weight only what it must.
pub fn row(seed: u64, index: u32, members: &[Member]) -> Row {
    let mut ids = [NO_BACKEND; ROW];
    let mut scores = [u64::MAX; ROW];
    let row_key = mix64(seed ^ mix64(index as u64));
    for member in members {
        let mut score =
            negative_log2(mix64(row_key ^ member.key)) / u64::from(member.weight.max(1));
        let mut id = member.id;
        // Insertion into the short sorted list; an equal score stays behind.
        for place in 0..ROW {
            if score < scores[place] {
                core::mem::swap(&mut score, &mut scores[place]);
                core::mem::swap(&mut id, &mut ids[place]);
            }
        }
    }
    ids
}

/// How many rows a service of `backends` backends should have.
///
/// Each row is 16 bytes. What too few rows cost is evenness: with r rows a backend comes first in 1/n
/// of them give or take sqrt(n / r) of that. Two choices level that out, one does not, so few
/// backends still get [`MIN_ROWS`]: 16 backends then differ by 9 % as first candidates. For many,
/// with 64 rows a backend the fullest backend's surplus is within noise of two free draws. Powers of
/// two keep the table's size from changing with every backend.
pub const fn rows_for(backends: u32) -> u32 {
    match backends {
        0 => 0,
        1 => 1,
        n => {
            let rows = if n > MAX_ROWS / 64 { MAX_ROWS } else { n * 64 };
            let rows = if rows < MIN_ROWS { MIN_ROWS } else { rows };
            rows.next_power_of_two()
        }
    }
}

/// Fewest rows of a candidate table of more than one backend: 32 KiB.
pub const MIN_ROWS: u32 = 1 << 11;

/// Most rows of one service's candidate table: 1 MiB.
pub const MAX_ROWS: u32 = 1 << 16;

const STEPS: usize = 64;
const UNIT_BITS: u32 = 40;
const UNIT: u64 = 1 << UNIT_BITS;

/// -log2(h / 2^64), in units of 2^-40, from a table with linear interpolation; integers only, so that
/// all balancers compute the same rows. Strictly, of (h + 1) / 2^64, so that 0 has a logarithm.
const fn negative_log2(h: u64) -> u64 {
    let h = if h == u64::MAX { h } else { h + 1 };
    let zeros = h.leading_zeros();
    // The mantissa in [1, 2), without its leading one: 63 bits.
    let mantissa = (h << zeros) & (u64::MAX >> 1);
    let step = (mantissa >> (63 - 6)) as usize;
    let within = (mantissa << 7) >> 24; // 40 bits
    let low = LOG2[step];
    let high = LOG2[step + 1];
    let log = low + (((high - low) as u128 * within as u128) >> UNIT_BITS) as u64;
    (zeros as u64 + 1) * UNIT - log
}

/// log2(1 + i / 64) in units of 2^-40.
const LOG2: [u64; STEPS + 1] = {
    let mut table = [0; STEPS + 1];
    let mut i = 0;
    while i < STEPS {
        // Bit by bit: squaring x doubles its logarithm; whenever x reaches 2, that bit is one.
        let mut x: u128 = (1 << 63) + ((i as u128) << (63 - 6));
        let mut bit = 0;
        let mut log = 0;
        while bit < UNIT_BITS {
            x = (x * x) >> 63;
            log <<= 1;
            if x >= 1 << 64 {
                x >>= 1;
                log |= 1;
            }
            bit += 1;
        }
        table[i] = log;
        i += 1;
    }
    table[STEPS] = UNIT;
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(weights: &[u32]) -> Vec<Member> {
        weights
            .iter()
            .enumerate()
            .map(|(i, &weight)| Member {
                id: i as u32,
                key: member_key(&[0, 0, 0, (0x0a00_0000 + i as u32).to_be()], 80_u16.to_be()),
                weight,
            })
            .collect()
    }

    /// A generator for tests only; the code under test takes its randomness as an argument.
    struct Rng(u64);
    impl Rng {
        fn next(&mut self) -> u32 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            (mix64(self.0) >> 32) as u32
        }
    }

    /// Places `flows` flows that never end and returns each backend's count.
    fn place(weights: &[u32], flows: u32, choices: u8, seed: u64) -> Vec<u64> {
        let members = members(weights);
        let rows = rows_for(weights.len() as u32);
        let table: Vec<Row> = (0..rows).map(|i| row(seed, i, &members)).collect();
        let mut counts = vec![0_u64; weights.len()];
        let mut rng = Rng(seed);
        for _ in 0..flows {
            let row = &table[scale(rng.next(), rows) as usize];
            let at = choose(row, choices, |id| {
                Some(Candidate {
                    load: counts[id as usize],
                    weight: weights[id as usize],
                })
            })
            .expect("a backend");
            counts[row[at] as usize] += 1;
        }
        counts
    }

    fn max_over_mean(counts: &[u64]) -> f64 {
        let max = *counts.iter().max().unwrap() as f64;
        max * counts.len() as f64 / counts.iter().sum::<u64>() as f64
    }

    #[test]
    fn log_is_close_to_the_real_one() {
        for h in [
            0,
            1,
            2,
            3,
            1 << 20,
            1 << 63,
            (1 << 63) + 1,
            u64::MAX / 3,
            u64::MAX - 1,
            u64::MAX,
        ] {
            let real = 64.0 - (h as f64 + 1.0).log2();
            let ours = negative_log2(h) as f64 / UNIT as f64;
            assert!((real - ours).abs() < 5e-5, "{h}: {real} {ours}");
        }
    }

    #[test]
    fn cost_goes_by_load_and_weight() {
        let cheaper = |a: (u64, u32), b: (u64, u32)| {
            let [a, b] = [a, b].map(|(load, weight)| Candidate { load, weight });
            assert!(!(a.cheaper_than(&b) && b.cheaper_than(&a)));
            a.cheaper_than(&b)
        };
        // The heavier with room for one more, over the idle light one.
        assert!(cheaper((8, 10), (0, 1)));
        assert!(!cheaper((9, 10), (0, 1)) && !cheaper((0, 1), (9, 10)));
        assert!(cheaper((0, 1), (10, 10)));
        // Two idle ones are equal, whatever they weigh.
        assert!(!cheaper((0, 1), (0, 10)) && !cheaper((0, 10), (0, 1)));
    }

    /// Flows that come one after the other, with never two at a time.
    #[test]
    fn weights_hold_without_load() {
        let weights = [1, 10];
        let members = members(&weights);
        let rows = rows_for(2);
        let mut rng = Rng(5);
        let mut counts = [0_u32; 2];
        for _ in 0..20_000 {
            let row = row(3, scale(rng.next(), rows), &members);
            let at = choose(&row, 2, |id| {
                Some(Candidate {
                    load: 0,
                    weight: weights[id as usize],
                })
            });
            counts[row[at.expect("a backend")] as usize] += 1;
        }
        // 1 in 11; 2,048 rows and 20,000 draws leave a standard deviation of 7.3 % of it.
        let share = f64::from(counts[0]) / 20_000.0 * 11.0;
        assert!((0.75..1.25).contains(&share), "{counts:?}");
    }

    #[test]
    fn cost_at_the_ends_of_its_range() {
        let full = Candidate {
            load: crate::load::MAX_IN_FLIGHT,
            weight: 1,
        };
        let wide = Candidate {
            load: crate::load::MAX_IN_FLIGHT,
            weight: 65_535,
        };
        assert!(wide.cheaper_than(&full));
        assert!(!full.cheaper_than(&wide));
    }

    #[test]
    fn a_tie_goes_to_the_first() {
        let row = [7, 8, 9, 10];
        for choices in 1..=4 {
            assert_eq!(
                choose(&row, choices, |_| Some(Candidate { load: 3, weight: 1 })),
                Some(0)
            );
        }
    }

    #[test]
    fn looks_at_as_many_as_it_may() {
        let row = [0, 1, 2, 3];
        let loads = [4, 3, 2, 1];
        for choices in 1..=4 {
            let mut looked = Vec::new();
            let best = choose(&row, choices, |id| {
                looked.push(id);
                Some(Candidate {
                    load: loads[id as usize],
                    weight: 1,
                })
            });
            assert_eq!(best, Some(usize::from(choices) - 1));
            assert_eq!(looked, (0..u32::from(choices)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_that_takes_no_flows_is_stood_in_for() {
        let row = [0, 1, 2, NO_BACKEND];
        let only = |ok: u32| move |id: u32| (id == ok).then_some(Candidate { load: 0, weight: 1 });
        assert_eq!(choose(&row, 2, only(2)), Some(2));
        assert_eq!(choose(&row, 2, only(3)), None);
        assert_eq!(choose(&[NO_BACKEND; ROW], 2, only(0)), None);
    }

    #[test]
    fn two_backends_are_least_loaded() {
        let counts = place(&[1, 1], 1001, 2, 1);
        assert!(counts[0].abs_diff(counts[1]) <= 1, "{counts:?}");
    }

    #[test]
    fn a_service_of_one() {
        assert_eq!(place(&[3], 10, 2, 1), [10]);
    }

    /// 10,000 flows over 100 backends: two choices stay within 1.05 of the mean, one does not.
    #[test]
    fn the_second_choice_buys_balance() {
        for seed in 0..20 {
            let two = max_over_mean(&place(&[1; 100], 10_000, 2, seed));
            let one = max_over_mean(&place(&[1; 100], 10_000, 1, seed));
            assert!(two <= 1.05, "seed {seed}: {two}");
            assert!((1.12..1.6).contains(&one), "seed {seed}: {one}");
        }
    }

    /// Dispatch of 512 jobs on 256 servers, no draining: ranges seen in 2,000 simulated seeds.
    #[test]
    fn dispatch_ranges() {
        for seed in 0..50 {
            let max = |choices| *place(&[1; 256], 512, choices, seed).iter().max().unwrap();
            assert!((5..=11).contains(&max(1)), "seed {seed}");
            assert!((3..=5).contains(&max(2)), "seed {seed}");
            assert!((3..=4).contains(&max(3)), "seed {seed}");
        }
    }

    #[test]
    fn weights_come_out_as_shares() {
        let weights = [1, 10, 5, 4];
        let counts = place(&weights, 20_000, 2, 9);
        for (count, weight) in counts.iter().zip(weights) {
            let share = *count as f64 / 20_000.0 / (f64::from(weight) / 20.0);
            assert!((0.95..1.05).contains(&share), "{counts:?}");
        }
    }

    /// The first candidate alone is drawn in proportion to the weights.
    #[test]
    fn first_candidates_are_proportional() {
        let members = members(&[1, 10]);
        let first = (0..60_000).filter(|&i| row(4, i, &members)[0] == 1).count();
        let share = first as f64 / 60_000.0;
        assert!((share - 10.0 / 11.0).abs() < 0.006, "{share}");
    }

    #[test]
    fn all_pairs_occur() {
        let n = 16;
        let members = members(&vec![1; n]);
        let mut seen = vec![0; n * n];
        for i in 0..rows_for(n as u32) {
            let row = row(1, i, &members);
            seen[row[0] as usize * n + row[1] as usize] += 1;
        }
        let pairs = seen.iter().filter(|&&c| c > 0).count();
        // 2048 rows on 240 ordered pairs: about 240 (1 - e^-8.5) = 240.
        assert!(pairs >= 238, "{pairs}");
    }

    #[test]
    fn sizes_of_tables() {
        assert_eq!(rows_for(0), 0);
        assert_eq!(rows_for(1), 1);
        assert_eq!(rows_for(2), MIN_ROWS);
        assert_eq!(rows_for(33), 4096);
        assert_eq!(rows_for(100), 8192);
        assert_eq!(rows_for(1024), MAX_ROWS);
        assert_eq!(rows_for(u32::MAX), MAX_ROWS);
    }

    #[test]
    fn keys_ignore_the_slot_and_know_the_port() {
        let addr = [0, 0, 0xffff_u32.to_be(), 0x0a00_0001_u32.to_be()];
        assert_ne!(
            member_key(&addr, 80_u16.to_be()),
            member_key(&addr, 81_u16.to_be())
        );
        assert_ne!(
            member_key(&addr, 80_u16.to_be()),
            member_key(&[0; 4], 80_u16.to_be())
        );
    }

    proptest! {
        #[test]
        fn a_pair_is_distinct_and_in_range(random in any::<[u32; 2]>(), n in 2_u32..) {
            let [a, b] = distinct_pair(random, n);
            prop_assert!(a != b && a < n && b < n);
        }

        #[test]
        fn a_row_is_distinct(weights in prop::collection::vec(1_u32..=65_535, 0..40), index in any::<u32>(), seed in any::<u64>()) {
            let row = row(seed, index, &members(&weights));
            let filled = row.iter().take_while(|&&id| id != NO_BACKEND).count();
            prop_assert_eq!(filled, weights.len().min(ROW));
            for i in 0..ROW {
                for j in 0..i {
                    prop_assert!(row[i] != row[j] || row[i] == NO_BACKEND);
                }
            }
        }

        /// Taking one backend out leaves the order of the others as it was.
        #[test]
        fn removal_moves_only_what_it_must(n in 5_usize..30, gone in 0_usize..30, index in any::<u32>()) {
            let gone = gone % n;
            let all = members(&vec![1; n]);
            let rest: Vec<_> = all.iter().copied().filter(|m| m.id != gone as u32).collect();
            let before: Vec<_> = row(5, index, &all).into_iter().filter(|&id| id != gone as u32).collect();
            let after = row(5, index, &rest);
            prop_assert_eq!(&after[..before.len()], &before[..]);
        }

        #[test]
        fn logs_fall(a in any::<u64>(), b in any::<u64>()) {
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(negative_log2(low) >= negative_log2(high));
        }
    }

    /// Both members of a pair are uniform: chi-squared over 8 backends with 7 degrees of freedom
    /// stays under 40 (p = 1e-6).
    #[test]
    fn pairs_are_uniform() {
        let mut rng = Rng(2);
        let mut first = [0_f64; 8];
        let mut second = [0_f64; 8];
        for _ in 0..80_000 {
            let [a, b] = distinct_pair([rng.next(), rng.next()], 8);
            first[a as usize] += 1.0;
            second[b as usize] += 1.0;
        }
        for cells in [first, second] {
            let chi: f64 = cells.iter().map(|c| (c - 1e4).powi(2) / 1e4).sum();
            assert!(chi < 40.0, "{chi}");
        }
    }
}
