//! The data plane in the kernel, in the terms of the control socket.

use std::{collections::HashMap, net::SocketAddr};

use nix::net::if_::if_indextoname;

use super::datapath::{Datapath, DatapathError, FlowCounter, FlowLister};
use crate::{
    control::api::{
        Attachment, CounterValue, Flow, FlowTable, Flows, Load, Map, NextHop, Program, Way,
    },
    dataplane::{self, Dataplane, FlowState, Missing},
    model::{addr::Protocol, change::MapWrite},
};

impl Datapath for Dataplane {
    fn write(&mut self, writes: &[MapWrite]) -> Result<(), DatapathError> {
        Ok(self.write(writes)?)
    }

    fn loads(&self, slots: &[(u32, u32)]) -> Result<Vec<Load>, DatapathError> {
        let loads = self.loads(slots)?;
        Ok(loads
            .into_iter()
            .map(|load| Load {
                in_flight: load.in_flight,
                opened: load.opened,
                closed: load.closed,
                packets_in: load.packets_in,
                bytes_in: load.bytes_in,
                packets_out: load.packets_out,
                bytes_out: load.bytes_out,
            })
            .collect())
    }

    fn counters(&self) -> Result<Vec<CounterValue>, DatapathError> {
        let counters = self.counters()?;
        Ok(counters
            .into_iter()
            .map(|(counter, value)| CounterValue {
                name: counter.name().to_owned(),
                text: counter.text().to_owned(),
                drop: counter.is_drop(),
                value,
            })
            .collect())
    }

    fn ways(&self) -> HashMap<u32, Way> {
        let ways = self.ways().into_iter();
        ways.map(|(id, known)| (id, way(&known))).collect()
    }

    fn attachments(&self) -> Vec<Attachment> {
        self.attachments()
            .iter()
            .map(|attachment| Attachment {
                interface: attachment.interface.clone(),
                ifindex: attachment.ifindex,
                mode: attachment.mode.name().to_owned(),
                note: attachment.note.clone(),
            })
            .collect()
    }

    fn program(&self) -> Result<Program, DatapathError> {
        let program = self.program()?;
        Ok(Program {
            id: program.id,
            name: program.name,
            jited_bytes: program.jited_bytes.into(),
            verified_instructions: program.verified_instructions,
        })
    }

    fn maps(&self) -> Result<Vec<Map>, DatapathError> {
        let maps = self.memory()?;
        Ok(maps
            .into_iter()
            .map(|map| Map {
                name: map.name.to_owned(),
                max_entries: map.max_entries,
                key_bytes: map.key_size,
                value_bytes: map.value_size,
                bytes: map.bytes,
            })
            .collect())
    }

    fn flow_lister(&self) -> Result<FlowLister, DatapathError> {
        let tables = self.flow_tables()?;
        let backends = self.backend_addresses();
        Ok(Box::new(move |limit| {
            // One more than asked for tells whether there are more.
            let mut flows = tables.list(limit.saturating_add(1))?;
            let more = flows.len() > limit;
            flows.truncate(limit);
            Ok(Flows {
                flows: flows
                    .into_iter()
                    .filter_map(|f| flow(f, &backends))
                    .collect(),
                more,
            })
        }))
    }

    fn flow_counter(&self) -> Result<FlowCounter, DatapathError> {
        let tables = self.flow_tables()?;
        let limit = u64::from(self.options().flow_table_size);
        Ok(Box::new(move || {
            let count = tables.count()?;
            let table = |family: &str, entries| FlowTable {
                family: family.to_owned(),
                entries,
                limit,
            };
            Ok(vec![
                table("ipv4", count.entries4),
                table("ipv6", count.entries6),
            ])
        }))
    }
}

fn way(way: &dataplane::Way) -> Way {
    Way {
        next_hop: way.hop.ok().map(next_hop),
        unresolved: way.hop.err().and_then(why_missing),
        mtu: Some(way.mtu).filter(|&mtu| mtu > 0),
        route_source: way.source,
    }
}

fn next_hop(hop: dataplane::NextHop) -> NextHop {
    let [a, b, c, d, e, f] = hop.destination;
    let tags = [hop.tags.outer(), hop.tags.inner()];
    NextHop {
        interface: interface(hop.ifindex),
        mac: format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
        vlans: tags.into_iter().flatten().map(|(_, id)| id).collect(),
    }
}

fn why_missing(missing: Missing) -> Option<String> {
    Some(match missing {
        Missing::Unknown => return None,
        Missing::ThisHost => "this host".to_owned(),
        Missing::NoRoute => "no route".to_owned(),
        Missing::Gateway(addr) => format!("behind the gateway {addr}"),
        Missing::Device(ifindex) => format!("{} takes no XDP frames", interface(ifindex)),
        Missing::Neighbour {
            ifindex,
            addr,
            failed: false,
        } => format!("{addr} on {} is being resolved", interface(ifindex)),
        Missing::Neighbour {
            ifindex,
            addr,
            failed: true,
        } => format!("{addr} on {} does not answer", interface(ifindex)),
    })
}

/// Name of an interface. One that has gone since has only its index left.
fn interface(ifindex: u32) -> String {
    if_indextoname(ifindex).map_or_else(
        |_| ifindex.to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// A flow, if it is of a protocol that there can be flows of.
fn flow(flow: dataplane::Flow, backends: &HashMap<(u32, u32), SocketAddr>) -> Option<Flow> {
    let of_slot = || backends.get(&(flow.backend_id, flow.generation)).copied();
    let protocol = Protocol::from_number(flow.protocol)?;
    let state = match (protocol, flow.state) {
        (Protocol::Udp, FlowState::Embryonic) => "unanswered",
        (_, FlowState::Embryonic) => "embryonic",
        (_, FlowState::Established) => "established",
        (_, FlowState::HalfClosed) => "half-closed",
        (_, FlowState::Closed) => "closed",
    };
    Some(Flow {
        protocol,
        client: flow.client,
        vip: flow.vip,
        backend: flow.backend.or_else(of_slot),
        state: state.to_owned(),
        idle_ms: u64::try_from(flow.idle.as_millis()).unwrap_or(u64::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_common::vlan::{TagType, Tags};

    #[test]
    fn a_way_as_it_is_shown() {
        let hop = dataplane::NextHop {
            ifindex: 1,
            destination: [2, 0, 0, 0, 0, 0xab],
            source: [0; 6],
            tags: Tags::NONE
                .with(TagType::Dot1Ad, 100)
                .with(TagType::Dot1Q, 200),
        };
        let known = dataplane::Way {
            hop: Ok(hop),
            mtu: 1500,
            source: Some([10, 0, 0, 1].into()),
        };
        let shown = Way {
            next_hop: Some(NextHop {
                interface: "lo".to_owned(),
                mac: "02:00:00:00:00:ab".to_owned(),
                vlans: vec![100, 200],
            }),
            unresolved: None,
            mtu: Some(1500),
            route_source: Some([10, 0, 0, 1].into()),
        };
        assert_eq!(way(&known), shown);
        assert_eq!(way(&dataplane::Way::UNKNOWN), Way::default());
        let silent = Missing::Neighbour {
            ifindex: 1,
            addr: [10, 0, 0, 9].into(),
            failed: true,
        };
        let unknown = dataplane::Way {
            hop: Err(silent),
            ..dataplane::Way::UNKNOWN
        };
        let why = way(&unknown).unresolved;
        assert_eq!(why.as_deref(), Some("10.0.0.9 on lo does not answer"));
    }
}
