//! Echo requests to a VIP: answered here, so that a ping of the VIP tells whether the balancer works.

use lb_common::{csum::Delta, wire};

use crate::{forward::hop_back, icmp::Icmp, maps::VIPS, packet::Packet};

/// TTL or hop limit of a reply.
const TTL: u8 = 64;

/// Turns an echo request to a VIP into its reply. Returns false, with nothing changed, if it is not one:
/// to another address, from an address that cannot be answered, or with a code that is not known.
///
/// The frame holds the ICMP header. All of the message behind type, code and checksum goes back as it
/// came.
#[inline(always)]
pub fn answer<F: Icmp<N>, const N: usize>(packet: &Packet) -> bool {
    let (src, dst) = (packet.address(F::SRC), packet.address(F::DST));
    if packet.get::<u8>(F::L4 + 1) != 0 || is_group(packet) || !F::is_host(&src) {
        return false;
    }
    let Some(vip) = F::widen(&dst) else {
        return false;
    };
    // SAFETY: only asked whether it is there.
    if unsafe { VIPS.get(&vip) }.is_none() {
        return false;
    }
    let hop = hop_back(packet);
    packet.set_words(0, &hop);
    packet.set_words(F::SRC, &dst);
    packet.set_words(F::DST, &src);
    F::set_ttl(packet, TTL);

    // The addresses have changed places, which no sum notices; the type is all that has changed.
    let before = packet.get::<u16>(F::L4 + wire::ICMP_TYPE_CODE);
    packet.set(F::L4 + wire::ICMP_TYPE_CODE, F::ECHO_REPLY);
    let after = packet.get::<u16>(F::L4 + wire::ICMP_TYPE_CODE);
    let check = packet.get(F::L4 + wire::ICMP_CHECK);
    let check = match Delta::NONE.word(before, after).apply(check) {
        // A reply of zeros only has the sum +0, where RFC 1624 arrives at -0. With 0xffff the sum is
        // right for both.
        0 => 0xffff,
        check => check,
    };
    packet.set(F::L4 + wire::ICMP_CHECK, check);
    true
}

/// Whether a frame came to a group of stations: a reply cannot come from one.
#[inline(always)]
fn is_group(packet: &Packet) -> bool {
    packet.get::<u8>(0) & 1 != 0
}
