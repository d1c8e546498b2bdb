//! The Ethernet header and its VLAN tags, which stay.

use lb_common::{decap::Counter, wire};

use crate::packet::Packet;

/// Tags of IEEE 802.1Q and 802.1ad, as they lie in the packet.
const TAGS: [u16; 2] = [0x8100_u16.to_be(), 0x88a8_u16.to_be()];
/// Length of a tag.
const TAG: usize = 4;

/// Where the Ethernet header ends, tags included.
pub struct Ethernet {
    /// Its length.
    pub len: usize,
    /// The type behind the last tag, as it lies in the packet.
    pub ether_type: u16,
}

impl Ethernet {
    /// Finds its end, behind up to two tags.
    #[inline(always)]
    pub fn parse(frame: &Packet) -> Result<Self, Counter> {
        let mut len = wire::ETH_LEN;
        if !frame.has(len) {
            return Err(Counter::NoTunnel);
        }
        let mut ether_type = frame.get::<u16>(wire::ETH_TYPE);
        for _ in 0..2 {
            if TAGS.contains(&ether_type) {
                len += TAG;
                if !frame.has(len) {
                    return Err(Counter::NoTunnel);
                }
                ether_type = frame.get(len - 2);
            }
        }
        Ok(Self { len, ether_type })
    }

    /// The addresses and the tags.
    #[inline(always)]
    pub fn save(&self, frame: &Packet) -> ([u32; 3], [u32; 2]) {
        let mut tags = [0; 2];
        for (i, tag) in tags.iter_mut().enumerate() {
            if self.len >= wire::ETH_LEN + TAG * (i + 1) {
                *tag = frame.get(wire::ETH_TYPE + TAG * i);
            }
        }
        (core::array::from_fn(|i| frame.get(4 * i)), tags)
    }

    /// Writes what [`save`](Self::save) read, with the type of the inner packet.
    #[inline(always)]
    pub fn restore(&self, frame: &Packet, (macs, tags): &([u32; 3], [u32; 2]), is_v4: bool) {
        for (i, &word) in macs.iter().enumerate() {
            frame.set(4 * i, word);
        }
        for (i, &tag) in tags.iter().enumerate() {
            if self.len >= wire::ETH_LEN + TAG * (i + 1) {
                frame.set(wire::ETH_TYPE + TAG * i, tag);
            }
        }
        let ether_type = match is_v4 {
            true => wire::ETH_P_IP,
            false => wire::ETH_P_IPV6,
        };
        frame.set(self.len - 2, ether_type);
    }
}
