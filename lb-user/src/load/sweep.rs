//! Collects expired flows, and holds the counts against the flow table.
//!
//! Both need a walk through all entries, so it is one walk. A walk is not an instant: flows open and
//! close while it goes on. What is found missing or too much is believed only as far as it exceeds
//! all that changed meanwhile.

use std::collections::HashMap;

use lb_common::{
    abi::{Correction, FlowEntry},
    flow::{FlowKey, state},
};

use super::{Slot, Timeouts, timeouts::TickTimeouts};
use crate::dataplane::{Error, FlowTable, FlowTables, LoadMaps};

/// What a sweep has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Flows in the tables, those collected not among them.
    pub flows: u64,
    /// Entries in the IPv4 table.
    pub entries4: u64,
    /// Entries in the IPv6 table.
    pub entries6: u64,
    /// Flows collected because they were idle for too long or their backend is gone.
    pub collected: u64,
    /// By how much in-flight counts were off, summed over backends, and have been mended.
    pub drift: u64,
}

/// Walks the flow tables.
pub struct Sweeper {
    tables: FlowTables,
    loads: LoadMaps,
}

/// Counts of one slot's owner, summed over CPUs.
#[derive(Clone, Copy, Default)]
struct Counts {
    opened: u64,
    closed: u64,
}

impl Counts {
    fn in_flight(&self) -> i64 {
        self.opened.wrapping_sub(self.closed) as i64
    }

    /// How many flows were opened and closed since `before`.
    fn churn(&self, before: &Self) -> u64 {
        self.opened
            .wrapping_sub(before.opened)
            .wrapping_add(self.closed.wrapping_sub(before.closed))
    }
}

/// What one walk notes of a table.
struct Walk<const N: usize> {
    entries: u64,
    flows: u64,
    /// Forward entries that may have expired, and those of owners that are gone.
    idle: Vec<FlowKey<N>>,
    /// Reply entries that no flow has used for longer than any flow may be idle.
    orphans: Vec<FlowKey<N>>,
}

impl Sweeper {
    /// A sweeper over these maps. It must be the only one to write corrections.
    pub fn new(tables: FlowTables, loads: LoadMaps) -> Self {
        Self { tables, loads }
    }

    /// One walk. `slots` are all slots in use.
    pub fn sweep(&mut self, slots: &[Slot], timeouts: &Timeouts) -> Result<Swept, Error> {
        let owners: HashMap<u32, u32> = slots.iter().map(|s| (s.id, s.generation)).collect();
        let timeouts = TickTimeouts::new(timeouts, &self.tables.clock);
        let before = self.counts(&owners)?;
        let mut open = HashMap::new();
        let walk4 = walk(&self.tables, &self.tables.v4, &owners, &timeouts, &mut open)?;
        let walk6 = walk(&self.tables, &self.tables.v6, &owners, &timeouts, &mut open)?;
        let after = self.counts(&owners)?;
        let drift = self.mend(&owners, &before, &after, &open)?;

        let mut expired = HashMap::new();
        let collected = collect(
            &self.tables,
            &self.tables.v4,
            &walk4,
            &owners,
            &timeouts,
            &mut expired,
        )? + collect(
            &self.tables,
            &self.tables.v6,
            &walk6,
            &owners,
            &timeouts,
            &mut expired,
        )?;
        for (id, count) in expired {
            self.correct(id, owners[&id], -count)?;
        }
        Ok(Swept {
            flows: (walk4.flows + walk6.flows).saturating_sub(collected),
            entries4: walk4.entries,
            entries6: walk6.entries,
            collected,
            drift,
        })
    }

    fn counts(&self, owners: &HashMap<u32, u32>) -> Result<HashMap<u32, Counts>, Error> {
        owners
            .iter()
            .map(|(&id, &generation)| {
                let mut counts = Counts::default();
                for cell in self.loads.cells(id)?.iter() {
                    if cell.generation == generation {
                        counts.opened = counts.opened.wrapping_add(cell.opened);
                        counts.closed = counts.closed.wrapping_add(cell.closed);
                    }
                }
                Ok((id, counts))
            })
            .collect()
    }

    /// Sets each backend's correction so that its count is what the walk found, where the two differ
    /// by more than what changed during the walk. Returns by how much counts were off.
    fn mend(
        &mut self,
        owners: &HashMap<u32, u32>,
        before: &HashMap<u32, Counts>,
        after: &HashMap<u32, Counts>,
        open: &HashMap<u32, u64>,
    ) -> Result<u64, Error> {
        let mut total = 0;
        for (&id, &generation) in owners {
            let (before, after) = (before[&id], after[&id]);
            let count = after.in_flight() + self.loads.correction(id)?.of(generation);
            let found = open.get(&id).copied().unwrap_or(0) as i64;
            let drift = believed(found - count, after.churn(&before));
            if drift != 0 {
                self.correct(id, generation, drift)?;
                total += drift.unsigned_abs();
            }
        }
        Ok(total)
    }

    fn correct(&mut self, id: u32, generation: u32, by: i64) -> Result<(), Error> {
        let delta = self.loads.correction(id)?.of(generation) + by;
        let delta = delta.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
        self.loads
            .set_correction(id, Correction { generation, delta })
    }
}

/// The part of a difference that what changed meanwhile cannot explain.
fn believed(difference: i64, churn: u64) -> i64 {
    let rest = difference.unsigned_abs().saturating_sub(churn);
    i64::try_from(rest).unwrap_or(i64::MAX) * difference.signum()
}

fn walk<const N: usize>(
    tables: &FlowTables,
    table: &FlowTable<N>,
    owners: &HashMap<u32, u32>,
    timeouts: &TickTimeouts,
    open: &mut HashMap<u32, u64>,
) -> Result<Walk<N>, Error>
where
    FlowKey<N>: aya::Pod,
    FlowEntry<N>: aya::Pod,
{
    let now = tables.clock.now()?;
    let longest = timeouts.longest();
    let mut walk = Walk {
        entries: 0,
        flows: 0,
        idle: Vec::new(),
        orphans: Vec::new(),
    };
    table.for_each(|key, entry| {
        walk.entries += 1;
        let idle = FlowTables::idle(entry, now);
        if entry.state & state::REPLY_ENTRY != 0 {
            if idle > longest {
                walk.orphans.push(*key);
            }
            return;
        }
        walk.flows += 1;
        let owned = owners.get(&entry.backend) == Some(&entry.generation);
        if owned && entry.state & state::CLOSED == 0 {
            *open.entry(entry.backend).or_default() += 1;
        }
        if !owned || idle > timeouts.of(key.proto, entry.state) {
            walk.idle.push(*key);
        }
    })?;
    Ok(walk)
}

/// Deletes what the walk found expired, if it still is. Notes in `expired`, for each backend, how many
/// flows have not been counted as closed. Returns how many were deleted.
fn collect<const N: usize>(
    tables: &FlowTables,
    table: &FlowTable<N>,
    walk: &Walk<N>,
    owners: &HashMap<u32, u32>,
    timeouts: &TickTimeouts,
    expired: &mut HashMap<u32, i64>,
) -> Result<u64, Error>
where
    FlowKey<N>: aya::Pod,
    FlowEntry<N>: aya::Pod,
{
    let now = tables.clock.now()?;
    let owned = |entry: &FlowEntry<N>| owners.get(&entry.backend) == Some(&entry.generation);
    let mut collected = 0;
    for key in &walk.idle {
        let Some(entry) = table.get(key)? else {
            continue;
        };
        let reply_key = key.reply_from(entry.change.addr, entry.change.port);
        let reply = table.get(&reply_key)?.filter(|reply| {
            reply.state & state::REPLY_ENTRY != 0
                && reply.change.addr == key.dst
                && reply.change.port == key.dst_port()
        });
        let over = |entry: &FlowEntry<N>| {
            let allowed = timeouts.of(key.proto, entry.state);
            // A flow in which only the backend talks is alive too.
            let last = reply
                .as_ref()
                .map_or(u32::MAX, |reply| FlowTables::idle(reply, now));
            !owned(entry) || FlowTables::idle(entry, now).min(last) > allowed
        };
        if entry.state & state::REPLY_ENTRY != 0 || !over(&entry) {
            continue;
        }
        let Some(entry) = table.take(key)? else {
            continue;
        };
        if !over(&entry) {
            // A packet came in just this moment.
            table.put_back(key, &entry)?;
            continue;
        }
        if reply.is_some() {
            table.take(&reply_key)?;
        }
        collected += 1;
        if owned(&entry) && entry.state & state::CLOSED == 0 {
            *expired.entry(entry.backend).or_default() += 1;
        }
    }
    for key in &walk.orphans {
        let Some(reply) = table.get(key)? else {
            continue;
        };
        let forward = key.forward_to(reply.change.addr, reply.change.port);
        let in_use = table
            .get(&forward)?
            .is_some_and(|entry| entry.backend == reply.backend);
        if reply.state & state::REPLY_ENTRY != 0 && !in_use {
            table.take(key)?;
        }
    }
    Ok(collected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_churn_cannot_explain_is_believed() {
        assert_eq!(believed(0, 0), 0);
        assert_eq!(believed(7, 0), 7);
        assert_eq!(believed(-7, 0), -7);
        assert_eq!(believed(7, 3), 4);
        assert_eq!(believed(-7, 3), -4);
        assert_eq!(believed(3, 7), 0);
        assert_eq!(believed(-3, u64::MAX), 0);
    }

    #[test]
    fn churn_counts_both_ways_and_across_a_wrap() {
        let before = Counts {
            opened: u64::MAX,
            closed: 5,
        };
        let after = Counts {
            opened: 2,
            closed: 9,
        };
        assert_eq!(after.churn(&before), 7);
        assert_eq!(
            Counts {
                opened: 3,
                closed: u64::MAX
            }
            .in_flight(),
            4
        );
    }
}
