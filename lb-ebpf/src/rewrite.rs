//! Changing addresses, ports and checksums (RFC 1624: incrementally).

use lb_common::{
    abi::Change,
    csum::Delta,
    wire::{L4_DST_PORT, L4_SRC_PORT},
};

use crate::{family::Family, packet::Packet, parse::Transport};

/// The end of the packet that changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Client to backend: the destination.
    Destination,
    /// Backend to client: the source.
    Source,
}

/// Computes the change from one address and port to another.
///
/// Not inlined, and written in place: this runs once or twice in a flow's life.
#[inline(never)]
pub fn change_between<const N: usize>(
    change: &mut Change<N>,
    old: &[u32; N],
    old_port: u16,
    new: &[u32; N],
    new_port: u16,
) {
    // The address stands in the IP header and in the pseudo-header of TCP and UDP alike.
    let address = Delta::NONE.address(old, new);
    change.addr = *new;
    change.port = new_port;
    change.l4_delta = address.word(old_port, new_port).0;
    change.ip_delta = address.ttl_decremented().0;
}

/// What happens to the TTL.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ttl {
    /// This program forwards the packet: one less.
    Decrement,
    /// The stack will forward it, and take one then.
    Keep,
}

/// Writes `change` into the packet. `ttl` is at least 2 unless `step` is [`Ttl::Keep`].
#[inline(always)]
pub fn rewrite<F: Family<N>, T: Transport, const N: usize>(
    packet: &Packet,
    ttl: u8,
    side: Side,
    change: &Change<N>,
    step: Ttl,
) {
    let (addr_at, port_at) = match side {
        Side::Destination => (F::DST, F::L4 + L4_DST_PORT),
        Side::Source => (F::SRC, F::L4 + L4_SRC_PORT),
    };
    packet.set_words(addr_at, &change.addr);
    packet.set(port_at, change.port);
    let delta = Delta(change.l4_delta);
    let check = packet.get(F::L4 + T::CHECK);
    let check = if T::CONNECTIONS {
        delta.apply(check)
    } else {
        delta.apply_udp(check)
    };
    packet.set(F::L4 + T::CHECK, check);
    match step {
        Ttl::Decrement => F::decrement_ttl(packet, ttl, change.ip_delta),
        Ttl::Keep => F::keep_ttl(packet, change.ip_delta),
    }
}
