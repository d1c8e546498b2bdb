//! A data plane of memory, for tests.

use std::collections::HashMap;

use super::datapath::{Datapath, DatapathError, FlowCounter, FlowLister};
use crate::{
    control::api::{Attachment, CounterValue, Flow, FlowTable, Flows, Load, Map, Program, Way},
    model::{addr::Protocol, change::MapWrite},
};

/// Remembers what was written, and says of loads what it was told.
#[derive(Debug, Default)]
pub struct Fake {
    /// Every write that succeeded.
    pub writes: Vec<MapWrite>,
    /// How many more writes succeed before one fails; none: all.
    pub fail_after: Option<usize>,
    /// Loads by slot and generation.
    pub loads: HashMap<(u32, u32), Load>,
}

impl Datapath for Fake {
    fn write(&mut self, writes: &[MapWrite]) -> Result<(), DatapathError> {
        for write in writes {
            match &mut self.fail_after {
                Some(0) => {
                    self.fail_after = None;
                    return Err("out of memory".into());
                }
                Some(left) => *left -= 1,
                None => {}
            }
            self.writes.push(write.clone());
        }
        Ok(())
    }

    fn loads(&self, slots: &[(u32, u32)]) -> Result<Vec<Load>, DatapathError> {
        let load = |slot| self.loads.get(slot).copied().unwrap_or_default();
        Ok(slots.iter().map(load).collect())
    }

    fn counters(&self) -> Result<Vec<CounterValue>, DatapathError> {
        Ok(Vec::new())
    }

    fn ways(&self) -> HashMap<u32, Way> {
        HashMap::new()
    }

    fn attachments(&self) -> Vec<Attachment> {
        Vec::new()
    }

    fn program(&self) -> Result<Program, DatapathError> {
        Ok(Program::default())
    }

    fn maps(&self) -> Result<Vec<Map>, DatapathError> {
        Ok(Vec::new())
    }

    fn flow_lister(&self) -> Result<FlowLister, DatapathError> {
        Ok(Box::new(|limit| {
            let flow = Flow {
                protocol: Protocol::Tcp,
                client: ([198, 51, 100, 1], 40000).into(),
                vip: ([192, 0, 2, 10], 80).into(),
                backend: Some(([10, 0, 0, 1], 8080).into()),
                state: "established".to_owned(),
                idle_ms: 10,
            };
            Ok(Flows {
                flows: vec![flow; limit.min(3)],
                more: limit < 3,
            })
        }))
    }

    fn flow_counter(&self) -> Result<FlowCounter, DatapathError> {
        Ok(Box::new(|| {
            Ok(vec![FlowTable {
                family: "ipv4".to_owned(),
                entries: 95,
                limit: 100,
            }])
        }))
    }
}
