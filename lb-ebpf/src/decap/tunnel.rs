//! What is between the outer and the inner IP header: nothing, or UDP and GUE (draft-ietf-intarea-gue-09).

use lb_common::{decap::Counter, wire};

use crate::{outer::Outer, packet::Packet};

/// What is in a tunnel packet.
pub struct Tunnel {
    /// Where the inner packet begins, from the outer header on.
    pub at: usize,
    /// Where the payload ends that the inner packet is in.
    pub end: u32,
    /// The inner packet's family, as announced.
    pub is_v4: bool,
    /// What counts it.
    pub kind: Counter,
}

/// What is behind the outer header `outer` of the packet `ip`.
#[inline(always)]
pub fn tunnel(ip: &Packet, outer: &Outer) -> Result<Tunnel, Counter> {
    let (is_v4, kind) = match (outer.is_v4, outer.proto) {
        (true, wire::IPV4_IN_IP) => (true, Counter::Ip4In4),
        (true, wire::IPV6_IN_IP) => (false, Counter::Ip6In4),
        (false, wire::IPV4_IN_IP) => (true, Counter::Ip4In6),
        (false, wire::IPV6_IN_IP) => (false, Counter::Ip6In6),
        _ => return gue(ip, outer),
    };
    Ok(Tunnel {
        at: outer.at,
        end: outer.end,
        is_v4,
        kind,
    })
}

/// The GUE header behind a UDP header (draft-ietf-intarea-gue-09, sections 3 and 4).
#[inline(always)]
fn gue(ip: &Packet, outer: &Outer) -> Result<Tunnel, Counter> {
    const CONTROL: u8 = 0x20;
    const HLEN: u8 = 0x1f;
    const LEN: usize = 4;
    let at = outer.at + wire::UDP_LEN;
    // A header without fields; in variant 1 there is an IP header, which is longer.
    if !ip.has(at + LEN) {
        return Err(Counter::Malformed);
    }
    let udp_len = u16::from_be(ip.get(outer.at + wire::UDP_LENGTH));
    let end = outer.at as u32 + u32::from(udp_len);
    if end > outer.end {
        return Err(Counter::Malformed);
    }
    let first = ip.get::<u8>(at);
    match first >> 6 {
        // Flags say that there is a checksum, that the payload is a fragment, that it is transformed:
        // to take the header off is wrong then.
        0 if first & CONTROL == 0 && ip.get::<u16>(at + 2) == 0 => {
            let is_v4 = match ip.get::<u8>(at + 1) {
                wire::IPV4_IN_IP => true,
                wire::IPV6_IN_IP => false,
                _ => return Err(Counter::GueUnknown),
            };
            Ok(Tunnel {
                at: at + LEN + 4 * usize::from(first & HLEN),
                end,
                is_v4,
                kind: Counter::Gue0,
            })
        }
        // The version of GUE is the first half of the version of IP, 4 or 6.
        1 => Ok(Tunnel {
            at,
            end,
            is_v4: match first >> 4 {
                4 => true,
                6 => false,
                _ => return Err(Counter::Malformed),
            },
            kind: Counter::Gue1,
        }),
        _ => Err(Counter::GueUnknown),
    }
}
