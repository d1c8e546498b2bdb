//! Regions of the array that holds all services' candidate rows.
//!
//! A service that was just pointed to another region may still be read at its old one by a packet in
//! flight, so a released region rests before it is written again.

/// How long a released region rests: far longer than the program works on one packet.
pub const REST_MS: u64 = 1000;

/// Some rows in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Region {
    /// First row.
    pub offset: u32,
    /// Number of rows.
    pub rows: u32,
}

impl Region {
    /// The row after the last.
    pub const fn end(&self) -> u32 {
        self.offset + self.rows
    }
}

/// There is no free region of that many rows in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// After how long there will be one, if resting regions are all that is in the way.
    pub retry_in_ms: Option<u64>,
}

/// Which rows are free.
#[derive(Clone, Debug)]
pub struct Regions {
    /// In order, never adjacent.
    free: Vec<Region>,
    /// Released, and until when they rest; in order of that time.
    resting: Vec<(u64, Region)>,
}

impl Regions {
    /// `rows` rows, all free.
    pub fn new(rows: u32) -> Self {
        let mut regions = Self {
            free: Vec::new(),
            resting: Vec::new(),
        };
        regions.give_back(Region { offset: 0, rows });
        regions
    }

    /// Takes the first region of `rows` rows that is free.
    pub fn take(&mut self, rows: u32, now_ms: u64) -> Result<Region, NoRoom> {
        self.wake(now_ms);
        if let Some(region) = self.first_fit(rows) {
            return Ok(region);
        }
        let mut later = self.clone();
        let retry_in_ms = self.resting.iter().find_map(|&(until_ms, region)| {
            later.give_back(region);
            later.first_fit(rows)?;
            Some(until_ms.saturating_sub(now_ms))
        });
        Err(NoRoom { retry_in_ms })
    }

    /// Gives a region back, to be used again after its rest.
    pub fn release(&mut self, region: Region, now_ms: u64) {
        self.resting.push((now_ms.saturating_add(REST_MS), region));
        self.resting.sort_unstable();
    }

    /// Puts all that is free to rest: it may have been written to and pointed to a moment ago.
    pub fn rest_all(&mut self, now_ms: u64) {
        for region in std::mem::take(&mut self.free) {
            self.release(region, now_ms);
        }
    }

    fn wake(&mut self, now_ms: u64) {
        let woken = self.resting.partition_point(|&(until, _)| until <= now_ms);
        for (_, region) in self.resting.drain(..woken).collect::<Vec<_>>() {
            self.give_back(region);
        }
    }

    fn first_fit(&mut self, rows: u32) -> Option<Region> {
        let at = self.free.iter().position(|free| free.rows >= rows)?;
        let free = &mut self.free[at];
        let region = Region {
            offset: free.offset,
            rows,
        };
        free.offset += rows;
        free.rows -= rows;
        if free.rows == 0 {
            self.free.remove(at);
        }
        Some(region)
    }

    /// Adds a region to the free list, joined with its neighbours.
    fn give_back(&mut self, mut region: Region) {
        if region.rows == 0 {
            return;
        }
        let mut at = self.free.partition_point(|free| free < &region);
        if self
            .free
            .get(at)
            .is_some_and(|next| region.end() == next.offset)
        {
            region.rows += self.free.remove(at).rows;
        }
        if at > 0 && self.free[at - 1].end() == region.offset {
            at -= 1;
            let before = self.free.remove(at);
            region = Region {
                offset: before.offset,
                rows: before.rows + region.rows,
            };
        }
        self.free.insert(at, region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_released_region_rests() {
        let mut regions = Regions::new(10);
        let a = regions.take(6, 0).unwrap();
        assert_eq!(regions.take(6, 0), Err(NoRoom { retry_in_ms: None }));
        regions.release(a, 100);
        let busy = NoRoom {
            retry_in_ms: Some(REST_MS),
        };
        assert_eq!(regions.take(6, 100), Err(busy));
        assert_eq!(regions.take(4, 100).unwrap().offset, 6);
        assert_eq!(regions.take(6, 100 + REST_MS).unwrap(), a);
        assert_eq!(regions.take(11, 9999), Err(NoRoom { retry_in_ms: None }));
    }

    #[test]
    fn neighbours_join() {
        let mut regions = Regions::new(9);
        let all: Vec<_> = (0..3).map(|_| regions.take(3, 0).unwrap()).collect();
        for at in [0, 2, 1] {
            regions.release(all[at], 0);
        }
        assert_eq!(
            regions.take(9, REST_MS).unwrap(),
            Region { offset: 0, rows: 9 }
        );
    }

    proptest! {
        #[test]
        fn regions_never_overlap(ops in prop::collection::vec((1_u32..40, any::<bool>(), 0_u64..600), 0..100)) {
            let mut regions = Regions::new(128);
            let mut held: Vec<Region> = Vec::new();
            let mut resting: Vec<(u64, Region)> = Vec::new();
            let mut now = 0;
            for (rows, release, step) in ops {
                now += step;
                if release && !held.is_empty() {
                    let region = held.swap_remove(rows as usize % held.len());
                    resting.push((now + REST_MS, region));
                    regions.release(region, now);
                } else if let Ok(region) = regions.take(rows, now) {
                    prop_assert!(region.rows == rows && region.end() <= 128);
                    resting.retain(|&(until, _)| until > now);
                    for other in held.iter().chain(resting.iter().map(|(_, r)| r)) {
                        prop_assert!(region.end() <= other.offset || other.end() <= region.offset);
                    }
                    held.push(region);
                }
            }
            for region in held.drain(..) {
                regions.release(region, now);
            }
            prop_assert!(regions.take(128, now + REST_MS).is_ok());
        }
    }
}
