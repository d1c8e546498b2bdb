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
};

use super::Error;
use crate::model::change::BackendSlot;

/// The way to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Interface to send on.
    pub ifindex: u32,
    /// MAC address to send to.
    pub destination: [u8; 6],
    /// MAC address of the interface.
    pub source: [u8; 6],
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
    slots: HashMap<u32, (BackendSlot, Option<NextHop>)>,
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

    /// Fills or changes a slot. The next hop is kept if the address is.
    pub fn set(&mut self, slot: BackendSlot) -> Result<(), Error> {
        let hop = self
            .slots
            .get(&slot.id)
            .filter(|(before, _)| before.addr == slot.addr)
            .and_then(|(_, hop)| *hop);
        self.write(slot, hop)
    }

    /// Empties a slot.
    pub fn clear(&mut self, id: u32) -> Result<(), Error> {
        self.map
            .set(id, Backend::EMPTY, 0)
            .map_err(|e| Error::map("BACKENDS", e))?;
        self.slots.remove(&id);
        Ok(())
    }

    /// Sets the next hop of a slot, if its owner is still that of `generation`. Returns whether that
    /// changed anything.
    pub fn set_hop(
        &mut self,
        id: u32,
        generation: u32,
        hop: Option<NextHop>,
    ) -> Result<bool, Error> {
        match self.slots.get(&id) {
            Some(&(slot, before)) if slot.generation == generation && before != hop => {
                self.write(slot, hop)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn write(&mut self, slot: BackendSlot, hop: Option<NextHop>) -> Result<(), Error> {
        let mut flags = slot.manner;
        if slot.stateless {
            flags |= backend_flags::STATELESS;
        }
        if hop.is_some() {
            flags |= backend_flags::RESOLVED;
        }
        let value = Backend {
            generation: slot.generation,
            flags,
            hop: hop.map_or([0; 3], |hop| hop.words()),
            hop_ifindex: hop.map_or(0, |hop| hop.ifindex),
            addr: slot.addr,
            weight: slot.weight,
            port: slot.port,
            vip_port: slot.vip_port,
            source: slot.source.unwrap_or_default(),
            source_bits: slot.source_bits,
            vip: slot.vip,
            ..Backend::EMPTY
        };
        self.map
            .set(slot.id, value, 0)
            .map_err(|e| Error::map("BACKENDS", e))?;
        self.slots.insert(slot.id, (slot, hop));
        Ok(())
    }

    /// The slots in use, with their next hops.
    pub fn iter(&self) -> impl Iterator<Item = &(BackendSlot, Option<NextHop>)> {
        self.slots.values()
    }
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
