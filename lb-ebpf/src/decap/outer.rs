//! The outer IP header, and whether a tunnel packet between its ends is one to take off.

use aya_ebpf::maps::lpm_trie::Key;
use lb_common::{
    decap::{AddressKey, Counter},
    wire,
};

use crate::{
    maps::{LOCAL, SOURCES, setting},
    packet::Packet,
};

/// Fragment header (RFC 8200).
const FRAGMENT: u8 = 44;
/// Destination options header: senders that limit nesting put one before the inner packet (RFC 2473).
const DESTINATION_OPTIONS: u8 = 60;

/// The outer IP header of a tunnel packet for this host, from an allowed source.
pub struct Outer {
    /// Its family.
    pub is_v4: bool,
    /// [`wire::IPV4_IN_IP`], [`wire::IPV6_IN_IP`], or UDP to GUE's port.
    pub proto: u8,
    /// Where its payload begins, from its own first byte on.
    pub at: usize,
    /// Where its payload ends, by its own account.
    pub end: u32,
    /// Its ECN bits.
    pub ecn: u8,
}

/// Who and what an outer header is between.
struct Ends {
    source: AddressKey,
    destination: AddressKey,
    /// It has options or extension headers.
    options: bool,
    fragment: bool,
}

impl Ends {
    /// Whether a tunnel packet between them is one to take off.
    #[inline(always)]
    fn check(&self) -> Result<(), Counter> {
        // SAFETY: only asked whether it is there.
        if unsafe { LOCAL.get(&self.destination) }.is_none() {
            return Err(Counter::ForeignAddress);
        }
        if self.options {
            return Err(Counter::OuterOptions);
        }
        if self.fragment {
            return Err(Counter::OuterFragment);
        }
        if setting().any_source == 0
            && SOURCES
                .get(Key::new(AddressKey::BITS, self.source))
                .is_none()
        {
            return Err(Counter::SourceRefused);
        }
        Ok(())
    }
}

/// The IPv4 header at the beginning of `ip`; an error if it is none of a tunnel packet to take off.
#[inline(always)]
pub fn outer4(ip: &Packet) -> Result<Outer, Counter> {
    if !ip.has(wire::IPV4_LEN) {
        return Err(Counter::NoTunnel);
    }
    let first = ip.get::<u8>(0);
    if first >> 4 != 4 {
        return Err(Counter::NoTunnel);
    }
    let options = first != wire::IPV4_VERSION_IHL;
    let fragment = ip.get::<u16>(wire::IPV4_FRAGMENT);
    let proto = ip.get::<u8>(wire::IPV4_PROTO);
    match proto {
        wire::IPV4_IN_IP | wire::IPV6_IN_IP => {}
        // With options the ports are elsewhere, and a later fragment has none.
        wire::UDP if !options && fragment & wire::IPV4_OFFSET_MASK == 0 => {
            is_gue(ip, wire::IPV4_LEN)?;
        }
        _ => return Err(Counter::NoTunnel),
    }
    Ends {
        source: AddressKey::v4(ip.get(wire::IPV4_SRC)),
        destination: AddressKey::v4(ip.get(wire::IPV4_DST)),
        options,
        fragment: fragment & wire::IPV4_FRAGMENT_MASK != 0,
    }
    .check()?;
    Ok(Outer {
        is_v4: true,
        proto,
        at: wire::IPV4_LEN,
        end: u32::from(u16::from_be(ip.get(wire::IPV4_TOTAL_LEN))),
        ecn: ip.get::<u8>(1) & 3,
    })
}

/// Likewise, the IPv6 header.
#[inline(always)]
pub fn outer6(ip: &Packet) -> Result<Outer, Counter> {
    if !ip.has(wire::IPV6_LEN) || ip.get::<u8>(0) >> 4 != 6 {
        return Err(Counter::NoTunnel);
    }
    let proto = ip.get::<u8>(wire::IPV6_NEXT);
    match proto {
        wire::IPV4_IN_IP | wire::IPV6_IN_IP => {}
        wire::UDP => is_gue(ip, wire::IPV6_LEN)?,
        FRAGMENT | DESTINATION_OPTIONS
            if ip.has(wire::IPV6_LEN + 8)
                && matches!(ip.get(wire::IPV6_LEN), wire::IPV4_IN_IP | wire::IPV6_IN_IP) => {}
        _ => return Err(Counter::NoTunnel),
    }
    Ends {
        source: AddressKey::v6(ip.address(wire::IPV6_SRC)),
        destination: AddressKey::v6(ip.address(wire::IPV6_DST)),
        options: proto == DESTINATION_OPTIONS,
        fragment: proto == FRAGMENT,
    }
    .check()?;
    Ok(Outer {
        is_v4: false,
        proto,
        at: wire::IPV6_LEN,
        end: wire::IPV6_LEN as u32 + u32::from(u16::from_be(ip.get(wire::IPV6_PAYLOAD_LEN))),
        ecn: (ip.get::<u8>(1) >> 4) & 3,
    })
}

/// Whether the UDP header at byte `at` is to GUE's port.
#[inline(always)]
fn is_gue(ip: &Packet, at: usize) -> Result<(), Counter> {
    let port = setting().gue_port;
    if port != 0 && ip.has(at + wire::UDP_LEN) && ip.get::<u16>(at + wire::L4_DST_PORT) == port {
        return Ok(());
    }
    Err(Counter::NoTunnel)
}
