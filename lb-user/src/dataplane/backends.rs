//! The backend array: what the model says of a backend and what the network says of its next hop, as
//! one value.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
};

use aya::maps::{Array, MapData};
use lb_common::{
    abi::{Backend, backend_flags},
    flow::unmapped,
    vlan::Tags,
};

use super::Error;
use crate::model::{addr::address_words, change::BackendSlot};

/// Where packets to a backend are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Interface to send on.
    pub ifindex: u32,
    /// MAC address to send to.
    pub destination: [u8; 6],
    /// MAC address to send from.
    pub source: [u8; 6],
    /// VLAN tags to put on.
    pub tags: Tags,
}

/// What the network says of the way to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The next hop, or why there is none.
    pub hop: Result<NextHop, Missing>,
    /// Longest IP packet that the way takes, in bytes; 0: not known.
    pub mtu: u32,
    /// The address that this host would send from.
    pub source: Option<IpAddr>,
}

/// Why there is no next hop to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It was not looked for yet.
    Unknown,
    /// The backend is this host.
    ThisHost,
    /// There is no route to the backend, or it leads nowhere.
    NoRoute,
    /// A gateway is in between, which cannot forward what is sent in the backend's mode.
    Gateway(IpAddr),
    /// XDP cannot send on the interface of this index.
    Device(u32),
    /// A neighbour's MAC address is not known.
    Neighbour {
        /// Interface that the neighbour is behind.
        ifindex: u32,
        /// Its address: the backend's, or that of the gateway before it.
        addr: IpAddr,
        /// It has been asked, and does not answer.
        failed: bool,
    },
}

impl Missing {
    /// The same, as it is to be understood after what was there before: a neighbour that did not answer is
    /// asked again and again, and has not answered until it does.
    #[must_use]
    pub fn after(self, before: Result<NextHop, Self>) -> Self {
        match (self, before) {
            (
                Self::Neighbour { ifindex, addr, .. },
                Err(Self::Neighbour {
                    ifindex: i,
                    addr: a,
                    failed: true,
                }),
            ) if (ifindex, addr) == (i, a) => Self::Neighbour {
                ifindex,
                addr,
                failed: true,
            },
            _ => self,
        }
    }
}

impl Way {
    /// Nothing is known yet.
    pub const UNKNOWN: Self = Self {
        hop: Err(Missing::Unknown),
        mtu: 0,
        source: None,
    };
}

impl NextHop {
    fn words(&self) -> [u32; 3] {
        let (d, s) = (self.destination, self.source);
        [
            u32::from_ne_bytes([d[0], d[1], d[2], d[3]]),
            u32::from_ne_bytes([d[4], d[5], s[0], s[1]]),
            u32::from_ne_bytes([s[2], s[3], s[4], s[5]]),
        ]
    }
}

/// The backend array and what is in it.
pub struct Backends {
    map: Array<MapData, Backend>,
    slots: HashMap<u32, (BackendSlot, Way)>,
}

impl Backends {
    pub(super) fn new(map: Array<MapData, Backend>) -> Self {
        Self {
            map,
            slots: HashMap::new(),
        }
    }

    /// Whether the slot belongs to the owner of this generation.
    pub fn is_owner(&self, id: u32, generation: u32) -> bool {
        self.slots
            .get(&id)
            .is_some_and(|(slot, _)| slot.generation == generation)
    }

    /// Fills or changes a slot. What is known of the way is kept if the address is.
    pub fn set(&mut self, slot: BackendSlot) -> Result<(), Error> {
        let way = self
            .slots
            .get(&slot.id)
            .filter(|(before, _)| before.addr == slot.addr)
            .map_or(Way::UNKNOWN, |(_, way)| *way);
        self.write(slot, way)
    }

    /// Empties a slot.
    pub fn clear(&mut self, id: u32) -> Result<(), Error> {
        self.map
            .set(id, Backend::EMPTY, 0)
            .map_err(|e| Error::map("BACKENDS", e))?;
        self.slots.remove(&id);
        Ok(())
    }

    /// Sets the way to the backend in a slot, if the slot's owner is still that of `generation`. Returns the
    /// way before, if that was another.
    pub fn set_way(&mut self, id: u32, generation: u32, way: Way) -> Result<Option<Way>, Error> {
        match self.slots.get(&id) {
            Some(&(slot, before)) if slot.generation == generation && before != way => {
                self.write(slot, way)?;
                Ok(Some(before))
            }
            _ => Ok(None),
        }
    }

    fn write(&mut self, slot: BackendSlot, way: Way) -> Result<(), Error> {
        self.map
            .set(slot.id, value(&slot, &way), 0)
            .map_err(|e| Error::map("BACKENDS", e))?;
        self.slots.insert(slot.id, (slot, way));
        Ok(())
    }

    /// The slots in use, each with the way to its backend.
    pub fn iter(&self) -> impl Iterator<Item = &(BackendSlot, Way)> {
        self.slots.values()
    }
}

/// What is wanted of a backend and what the network says of the way to it, as the packet program reads it.
fn value(slot: &BackendSlot, way: &Way) -> Backend {
    let mut flags = slot.manner;
    if slot.stateless {
        flags |= backend_flags::STATELESS;
    }
    let mut value = Backend {
        generation: slot.generation,
        mtu: way.mtu,
        addr: slot.addr,
        weight: slot.weight,
        port: slot.port,
        vip_port: slot.vip_port,
        source: source(slot, way),
        source_bits: slot.source_bits,
        vip: slot.vip,
        ..Backend::EMPTY
    };
    match way.hop {
        Ok(hop) => {
            flags |= backend_flags::RESOLVED;
            if hop.tags != Tags::NONE {
                flags |= backend_flags::TAGGED;
            }
            value.hop = hop.words();
            value.hop_ifindex = hop.ifindex;
            value.tags = hop.tags;
        }
        // In the other modes replies have to come back through the program, which they cannot from here.
        Err(Missing::ThisHost) if flags & backend_flags::ONE_WAY != 0 => {
            flags |= backend_flags::LOCAL;
        }
        Err(_) => {}
    }
    value.flags = flags;
    value
}

/// The balancer's address towards a backend: as wanted, else as the route has it.
fn source(slot: &BackendSlot, way: &Way) -> [u32; 4] {
    slot.source
        .or_else(|| way.source.map(address_words))
        .unwrap_or_default()
}

/// An address in network-order words as the standard library's type; IPv4-mapped ones as IPv4.
pub fn ip(addr: &[u32; 4]) -> IpAddr {
    match unmapped(addr) {
        Some(v4) => IpAddr::from(v4.to_ne_bytes()),
        None => {
            let mut bytes = [0; 16];
            for (to, word) in bytes.chunks_exact_mut(4).zip(addr) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOP: NextHop = NextHop {
        ifindex: 7,
        destination: [1, 2, 3, 4, 5, 6],
        source: [7, 8, 9, 10, 11, 12],
        tags: Tags::NONE,
    };

    fn slot(manner: u32) -> BackendSlot {
        BackendSlot {
            manner,
            ..BackendSlot::new(0, 1, address_words(IpAddr::from([10, 0, 0, 1])), 80)
        }
    }

    fn way(hop: Result<NextHop, Missing>) -> Way {
        Way {
            hop,
            ..Way::UNKNOWN
        }
    }

    #[test]
    fn a_next_hop_is_the_start_of_a_frame() {
        let value = value(&slot(0), &way(Ok(HOP)));
        let bytes: Vec<u8> = value.hop.iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert_eq!(bytes, (1..=12).collect::<Vec<u8>>());
        assert_eq!(value.hop_ifindex, 7);
        assert_eq!(value.flags, backend_flags::RESOLVED);
    }

    #[test]
    fn tags_are_flagged() {
        let tags = Tags::NONE.with(lb_common::vlan::TagType::Dot1Q, 0);
        let hop = NextHop { tags, ..HOP };
        let value = value(&slot(0), &way(Ok(hop)));
        assert_eq!(value.flags, backend_flags::RESOLVED | backend_flags::TAGGED);
        assert_eq!(value.tags, tags);
    }

    #[test]
    fn this_host_serves_in_one_way_modes_only() {
        let flags = |manner| value(&slot(manner), &way(Err(Missing::ThisHost))).flags;
        for one_way in [
            backend_flags::DSR,
            backend_flags::TUNNEL,
            backend_flags::TUNNEL | backend_flags::GUE,
        ] {
            assert_eq!(flags(one_way), one_way | backend_flags::LOCAL);
        }
        for other in [0, backend_flags::FULLNAT] {
            assert_eq!(flags(other), other);
        }
    }

    #[test]
    fn a_neighbour_that_failed_has_failed_until_it_answers() {
        let neighbour = |ifindex, failed| Missing::Neighbour {
            ifindex,
            addr: IpAddr::from([10, 0, 0, 1]),
            failed,
        };
        let (pending, failed) = (neighbour(1, false), neighbour(1, true));
        assert_eq!(pending.after(Err(failed)), failed);
        assert_eq!(failed.after(Err(pending)), failed);
        assert_eq!(pending.after(Err(pending)), pending);
        assert_eq!(pending.after(Ok(HOP)), pending);
        assert_eq!(pending.after(Err(neighbour(2, true))), pending);
        assert_eq!(Missing::NoRoute.after(Err(failed)), Missing::NoRoute);
    }

    #[test]
    fn the_source_is_as_wanted_or_as_the_route_has_it() {
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let way = Way {
            source: Some(address(9)),
            mtu: 1400,
            ..Way::UNKNOWN
        };
        assert_eq!(value(&slot(0), &way).source, address_words(address(9)));
        assert_eq!(value(&slot(0), &way).mtu, 1400);
        let wanted = BackendSlot {
            source: Some(address_words(address(8))),
            source_bits: 3,
            ..slot(0)
        };
        let value_of = value(&wanted, &way);
        assert_eq!(value_of.source, address_words(address(8)));
        assert_eq!(value_of.source_bits, 3);
        assert_eq!(value(&slot(0), &Way::UNKNOWN).source, [0; 4]);
    }
}
