//! Backends whose replies go straight to the client (direct server return): their packets are not rewritten,
//! but sent on as they are, behind another Ethernet header (`dsr`) or in a tunnel (`ipip`, `gue`).

use aya_ebpf::{bindings::xdp_action, programs::XdpContext};
use lb_common::{
    abi::{Backend, FlowEntry, backend_flags},
    csum::Delta,
    verdict::{Counter, Verdict},
    wire::ETH_LEN,
};

use crate::{
    family::Family,
    forward,
    packet::Packet,
    parse::{Segment, Transport},
    program::{act, charge},
    rewrite::Side,
    stats::count,
    track, tunnel,
};

/// What a client's packet tells about its known flow. Returns false if the flow is over: it is forgotten, and
/// the packet is to be placed afresh.
#[inline(never)]
pub fn follow<F: Family<N>, T: Transport, const N: usize>(
    ctx: &XdpContext,
    segment: &Segment<N>,
    entry: &mut FlowEntry<N>,
) -> bool {
    if !track::routine(entry, segment.flags)
        && !track::from_client_alone::<T, N>(entry, segment.flags)
    {
        track::forget::<F, N>(&segment.key, entry, false);
        return false;
    }
    track::touch(entry);
    let packet = Packet::new(ctx);
    charge(entry.backend, entry.generation, Side::Destination, &packet);
    true
}

/// Sends a packet of a TTL above 1 to the backend. Outer headers vary by `hash`, the flow's.
///
/// The host's stack is not asked to forward what has no known next hop: it would go by the packet's
/// destination, the VIP, and not to the backend.
#[inline(never)]
pub fn send<F: Family<N>, const N: usize>(ctx: &XdpContext, backend: &Backend, hash: u32) -> u32 {
    let packet = Packet::new(ctx);
    if !packet.has(F::L4) {
        return xdp_action::XDP_PASS;
    }
    if backend.flags & backend_flags::LOCAL != 0 {
        count(Counter::Local);
        return xdp_action::XDP_PASS;
    }
    if backend.flags & backend_flags::RESOLVED == 0 {
        return act(Verdict::Drop(Counter::Unresolved));
    }
    let len = F::payload_len(&packet) + (F::L4 - ETH_LEN) as u32;
    if ETH_LEN as u64 + u64::from(len) > packet.len() {
        return act(Verdict::Drop(Counter::Malformed));
    }
    let outer = tunnel::outer_len(backend);
    let longest = match backend.mtu {
        0 => u32::from(u16::MAX),
        mtu => mtu,
    };
    if len + outer > longest {
        return act(Verdict::Drop(Counter::TooBig));
    }
    let ttl = F::ttl(&packet);
    let class = F::traffic_class(&packet);
    F::decrement_ttl(&packet, ttl, Delta::NONE.ttl_decremented().0);
    let packet = if backend.flags & backend_flags::TUNNEL == 0 {
        packet
    } else {
        let inner = tunnel::Inner {
            len,
            class,
            proto: F::TUNNELLED,
        };
        match tunnel::encapsulate(ctx, backend, &inner, hash) {
            Ok(packet) => packet,
            Err(reason) => return act(Verdict::Drop(reason)),
        }
    };
    act(forward::send(
        ctx,
        &packet,
        backend.hop,
        backend.hop_ifindex,
    ))
}
