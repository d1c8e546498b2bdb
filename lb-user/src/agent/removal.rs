//! When a backend that is being removed may go.
//!
//! A flow counts as in flight until both sides have said that they are done. Its last packets are
//! still under way then, and maybe lost and sent again; without its entry they would be taken for a
//! stray and reset. So a slot stays for the closing timeout after the last flow has ended.

use std::collections::HashMap;

use tracing::{error, info};

use super::{Agent, datapath::Datapath, refusal::Refusal};
use crate::control::api::Load;

/// Watches backends that are being removed.
#[derive(Debug)]
pub struct Removals {
    closing_ms: u64,
    /// By slot and generation: what it had closed, and since when nothing was in flight.
    quiet: HashMap<(u32, u32), (u64, u64)>,
}

impl Removals {
    /// Flows that have ended stay for `closing_ms`.
    pub fn new(closing_ms: u64) -> Self {
        Self {
            closing_ms,
            quiet: HashMap::new(),
        }
    }

    /// Whether a backend may go now.
    fn due(&mut self, slot: (u32, u32), deadline_ms: u64, load: &Load, now_ms: u64) -> bool {
        if now_ms >= deadline_ms || load.opened == 0 {
            return true;
        }
        if load.in_flight > 0 {
            self.quiet.remove(&slot);
            return false;
        }
        let (closed, since_ms) = self.quiet.entry(slot).or_insert((load.closed, now_ms));
        if *closed != load.closed {
            (*closed, *since_ms) = (load.closed, now_ms);
        }
        now_ms.saturating_sub(*since_ms) >= self.closing_ms
    }

    /// Looks at all removals and ends those that are due.
    pub async fn run_once<D: Datapath>(&mut self, agent: &Agent<D>) -> Result<(), Refusal> {
        let now_ms = agent.now_ms();
        let mut due = HashMap::new();
        {
            let inner = agent.lock().await;
            let removals: Vec<_> = inner.state.removals().collect();
            if removals.is_empty() {
                self.quiet.clear();
                return Ok(());
            }
            let slots: Vec<_> = removals
                .iter()
                .map(|(_, _, b, _)| (b.slot.id, b.slot.generation))
                .collect();
            let loads = inner
                .dataplane
                .loads(&slots)
                .map_err(|e| Refusal::failed(format!("cannot read loads: {e}")))?;
            self.quiet.retain(|slot, _| slots.contains(slot));
            for (((service, address, _, removal), slot), load) in
                removals.into_iter().zip(slots).zip(loads)
            {
                if self.due(slot, removal.deadline_ms, &load, now_ms) {
                    due.insert((service, address, slot.1), load.in_flight);
                }
            }
        }
        if due.is_empty() {
            return Ok(());
        }
        agent
            .finish_removals(|service, address, backend| {
                // Wanted again and removed again meanwhile: another removal, looked at next time.
                backend
                    .removal
                    .is_some_and(|_| due.contains_key(&(service, address, backend.slot.generation)))
            })
            .await?;
        for ((service, address, _), in_flight) in due {
            info!(%service, backend = %address, cut_flows = in_flight, "backend removed");
        }
        Ok(())
    }
}

/// How often removals are looked at.
const INTERVAL: std::time::Duration = std::time::Duration::from_millis(250);

/// Ends removals, for ever.
pub async fn task<D: Datapath>(agent: std::sync::Arc<Agent<D>>, closing: std::time::Duration) {
    let closing_ms = u64::try_from(closing.as_millis()).unwrap_or(u64::MAX);
    let mut removals = Removals::new(closing_ms);
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(e) = removals.run_once(&agent).await {
            error!("removal not finished, tried again: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: (u32, u32) = (3, 1);

    fn load(in_flight: u64, opened: u64) -> Load {
        Load {
            in_flight,
            opened,
            closed: opened - in_flight,
            ..Load::default()
        }
    }

    #[test]
    fn one_without_flows_goes_at_once() {
        assert!(Removals::new(100).due(SLOT, 1000, &load(0, 0), 0));
    }

    #[test]
    fn the_deadline_cuts() {
        let mut removals = Removals::new(100);
        assert!(!removals.due(SLOT, 1000, &load(5, 9), 999));
        assert!(removals.due(SLOT, 1000, &load(5, 9), 1000));
    }

    #[test]
    fn last_packets_have_time() {
        let mut removals = Removals::new(100);
        assert!(!removals.due(SLOT, 1000, &load(1, 9), 0));
        assert!(!removals.due(SLOT, 1000, &load(0, 9), 10));
        assert!(!removals.due(SLOT, 1000, &load(0, 9), 109));
        // A flow that came and went between two looks.
        assert!(!removals.due(SLOT, 1000, &load(0, 10), 110));
        assert!(!removals.due(SLOT, 1000, &load(0, 10), 209));
        assert!(removals.due(SLOT, 1000, &load(0, 10), 210));
    }

    #[test]
    fn a_new_flow_starts_it_over() {
        let mut removals = Removals::new(100);
        assert!(!removals.due(SLOT, 1000, &load(0, 9), 0));
        assert!(!removals.due(SLOT, 1000, &load(1, 10), 50));
        assert!(!removals.due(SLOT, 1000, &load(0, 10), 120));
        assert!(removals.due(SLOT, 1000, &load(0, 10), 220));
    }
}
