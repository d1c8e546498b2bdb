//! The inner IP header: whether it fits, and its ECN bits.

use lb_common::{
    csum::Delta,
    decap::{AddressKey, Counter},
    wire,
};

use crate::packet::Packet;

/// An inner packet whose header fits.
pub struct Inner {
    /// Its destination.
    pub destination: AddressKey,
    /// Its ECN bits.
    pub ecn: u8,
}

/// The IPv4 packet that has `room` bytes of the outer packet.
#[inline(always)]
pub fn inner4(ip: &Packet, room: u32) -> Result<Inner, Counter> {
    if !ip.has(wire::IPV4_LEN) {
        return Err(Counter::Malformed);
    }
    let first = ip.get::<u8>(0);
    let header_len = 4 * u32::from(first & 0xf);
    let len = u32::from(u16::from_be(ip.get(wire::IPV4_TOTAL_LEN)));
    if first >> 4 != 4 || header_len < wire::IPV4_LEN as u32 || len < header_len || len > room {
        return Err(Counter::Malformed);
    }
    Ok(Inner {
        destination: AddressKey::v4(ip.get(wire::IPV4_DST)),
        ecn: ip.get::<u8>(1) & 3,
    })
}

/// The IPv6 packet that has `room` bytes of the outer packet.
#[inline(always)]
pub fn inner6(ip: &Packet, room: u32) -> Result<Inner, Counter> {
    if !ip.has(wire::IPV6_LEN) {
        return Err(Counter::Malformed);
    }
    let len = u32::from(u16::from_be(ip.get(wire::IPV6_PAYLOAD_LEN)));
    if ip.get::<u8>(0) >> 4 != 6 || wire::IPV6_LEN as u32 + len > room {
        return Err(Counter::Malformed);
    }
    Ok(Inner {
        destination: AddressKey::v6(ip.address(wire::IPV6_DST)),
        ecn: (ip.get::<u8>(1) >> 4) & 3,
    })
}

/// Writes the ECN bits of an IPv4 header, and brings its checksum up to date.
#[inline(always)]
pub fn mark4(ip: &Packet, ecn: u8) {
    let before = ip.get::<u16>(0);
    ip.set(1, ip.get::<u8>(1) & !3 | ecn);
    let delta = Delta::NONE.word(before, ip.get(0));
    ip.set(wire::IPV4_CHECK, delta.apply(ip.get(wire::IPV4_CHECK)));
}

/// Writes the ECN bits of an IPv6 header.
#[inline(always)]
pub fn mark6(ip: &Packet, ecn: u8) {
    ip.set(1, ip.get::<u8>(1) & !0x30 | ecn << 4);
}
