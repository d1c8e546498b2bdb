//! Puts the stages in order.

use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};
use aya_log_ebpf::debug;
use lb_common::{
    abi::{Change, FlowEntry, ROW, backend_flags},
    flow::state,
    verdict::{Counter, Verdict},
    wire::{self, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN},
};

use crate::{
    family::{Family, V4, V6},
    forward::{self, Way},
    icmp::{self, Icmp},
    maps::{BACKENDS, DEVICES},
    one_way,
    packet::Packet,
    parse::{self, Segment, Tcp, Transport, Udp},
    pick,
    rewrite::{Side, Ttl, change_between, rewrite},
    service,
    stats::{count, count_index, load_cell},
    track::{self, Remembered},
};

/// The entry point, attached to an interface.
#[xdp]
pub fn lb(ctx: XdpContext) -> u32 {
    let packet = Packet::new(&ctx);
    if !packet.has(wire::ETH_LEN) {
        return xdp_action::XDP_PASS;
    }
    match packet.get::<u16>(wire::ETH_TYPE) {
        wire::ETH_P_IP => family::<V4, 1>(&ctx, &packet),
        wire::ETH_P_IPV6 => family::<V6, 4>(&ctx, &packet),
        _ => xdp_action::XDP_PASS,
    }
}

/// Returns the time in ticks, for the agent: run by `BPF_PROG_TEST_RUN`, never attached.
#[xdp]
pub fn clock(_ctx: XdpContext) -> u32 {
    track::now()
}

/// Carries out a verdict.
#[inline(always)]
pub fn act(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Pass | Verdict::PassForward => xdp_action::XDP_PASS,
        Verdict::Tx => xdp_action::XDP_TX,
        Verdict::Redirect(ifindex) => {
            match DEVICES.redirect(ifindex, xdp_action::XDP_DROP.into()) {
                Ok(action) => action,
                // The kernel takes an interface that goes away out of the map.
                Err(action) => {
                    count(Counter::NoRoute);
                    action
                }
            }
        }
        Verdict::Drop(reason) => {
            count(reason);
            xdp_action::XDP_DROP
        }
    }
}

#[inline(always)]
fn family<F: Icmp<N>, const N: usize>(ctx: &XdpContext, packet: &Packet) -> u32 {
    // The ports, which both protocols have in the same place, are in the first 8 bytes; an ICMP header
    // has as many.
    if !packet.has(F::L4 + wire::UDP_LEN) || !F::plain(packet) {
        return xdp_action::XDP_PASS;
    }
    match F::proto(packet) {
        wire::TCP => balance::<F, Tcp, N>(ctx, packet),
        wire::UDP => balance::<F, Udp, N>(ctx, packet),
        proto if proto == F::ICMP => icmp::message::<F, N>(ctx),
        _ => xdp_action::XDP_PASS,
    }
}

/// Packets of known flows here; all others in functions of their own, one after the other and never
/// one inside the other: what they need on the stack and in registers is not set up for every packet,
/// and their frames do not add up.
#[inline(always)]
fn balance<F: Family<N>, T: Transport, const N: usize>(ctx: &XdpContext, packet: &Packet) -> u32 {
    let Some(segment) = parse::segment::<F, T, N>(packet) else {
        let key = parse::key::<F, T, N>(packet);
        return act(match service::find::<F, N>(&key) {
            Some(_) => Verdict::Drop(Counter::Malformed),
            None => Verdict::Pass,
        });
    };
    let mut asked = false;
    loop {
        if let Some(entry) = track::find::<F, N>(&segment.key) {
            if entry.state & state::REPLY_ENTRY != 0 {
                return act(reply::<F, T, N>(ctx, packet, &segment, entry));
            }
            if let Some(action) = request::<F, T, N>(ctx, packet, &segment, entry) {
                return action;
            }
        }
        if asked {
            // The entry made a moment ago is gone again: the agent has just removed the backend.
            return act(Verdict::Drop(Counter::NoBackend));
        }
        match unknown::<F, T, N>(ctx, &segment) {
            Next::KNOWN => asked = true,
            Next::PASS => return xdp_action::XDP_PASS,
            Next::STRAY => return stray::<F, T, N>(ctx, &segment),
            Next::LAST_WORDS => return without_entry::<F, T, N>(ctx, &segment, None),
            Next::TABLE_FULL => {
                return without_entry::<F, T, N>(ctx, &segment, Some(Counter::PlacedTableFull));
            }
            Next::INSERT_CAP => {
                return without_entry::<F, T, N>(ctx, &segment, Some(Counter::PlacedInsertCap));
            }
            Next(reason) => {
                count_index(reason);
                return xdp_action::XDP_DROP;
            }
        }
    }
}

/// What to do with a packet of no known flow. One register, as a function that is not inlined returns
/// it: the index of a drop's [`Counter`], or one of the constants.
#[derive(PartialEq, Eq)]
struct Next(u32);

impl Next {
    /// The flow is known now.
    const KNOWN: Self = Self(Counter::COUNT);
    /// Not for a VIP.
    const PASS: Self = Self(Counter::COUNT + 1);
    /// Not for a VIP, but maybe the reply of a flow without an entry.
    const STRAY: Self = Self(Counter::COUNT + 2);
    /// The end of a flow that is gone: goes on, but makes no flow.
    const LAST_WORDS: Self = Self(Counter::COUNT + 3);
    /// There is no room for an entry.
    const TABLE_FULL: Self = Self(Counter::COUNT + 4);
    /// No more entries are to be made in this tick.
    const INSERT_CAP: Self = Self(Counter::COUNT + 5);

    #[inline(always)]
    const fn drop(reason: Counter) -> Self {
        Self(reason as u32)
    }
}

/// A packet of no known flow: places and remembers it, if it is for a VIP and opens a flow.
#[inline(never)]
fn unknown<F: Family<N>, T: Transport, const N: usize>(
    ctx: &XdpContext,
    segment: &Segment<N>,
) -> Next {
    let Some(packet) = parse::again::<F, T, N>(ctx) else {
        return Next::PASS;
    };
    let Some(service) = service::find::<F, N>(&segment.key) else {
        return if track::lately_stateless() {
            Next::STRAY
        } else {
            Next::PASS
        };
    };
    if parse::contradicts::<F, T, N>(&packet) {
        return Next::drop(Counter::Malformed);
    }
    if segment.ttl <= 1 {
        return Next::drop(Counter::TtlExpired);
    }
    if service.rows == 0 {
        return Next::drop(Counter::NoBackend);
    }
    if segment.flags & (TCP_RST | TCP_FIN) != 0 {
        return Next::LAST_WORDS;
    }
    if !track::take_budget() {
        return Next::INSERT_CAP;
    }
    // A flow that is new is placed by load. One that has been somewhere before, of which nothing is
    // known any more, was most likely on its first candidate.
    let new = !T::CONNECTIONS || segment.flags & (TCP_SYN | TCP_ACK) == TCP_SYN;
    let cheapest = if new {
        pick::new_flow(service, &segment.key)
    } else {
        pick::first(service, &segment.key)
    };
    let Some(cheapest) = cheapest else {
        return Next::drop(Counter::NoBackend);
    };
    // Where the cheapest cannot be had, the others in the row's order.
    let mut reason = Counter::NoBackend;
    let mut turn = 0;
    while turn <= ROW as u32 {
        let mut choice = cheapest;
        if turn > 0 {
            choice.place = turn - 1;
        }
        turn += 1;
        if turn > 1 && choice.place == cheapest.place {
            continue;
        }
        let Some((id, backend)) = pick::backend(choice) else {
            continue;
        };
        match track::remember::<F, N>(ctx, &segment.key, id, backend) {
            Remembered::Yes => {
                log_new_flow(ctx, id, choice.place);
                return Next::KNOWN;
            }
            Remembered::Raced => return Next::KNOWN,
            Remembered::Full => return Next::TABLE_FULL,
            Remembered::Taken => reason = Counter::TupleTaken,
        }
    }
    Next::drop(reason)
}

/// A client's packet on a known flow. `None`: the flow is over, the packet is to be placed afresh.
#[inline(always)]
fn request<F: Family<N>, T: Transport, const N: usize>(
    ctx: &XdpContext,
    packet: &Packet,
    segment: &Segment<N>,
    entry: &mut FlowEntry<N>,
) -> Option<u32> {
    let backend = BACKENDS.get(entry.backend)?;
    if backend.generation != entry.generation {
        count(Counter::Stale);
        track::forget::<F, N>(&segment.key, entry, true);
        return None;
    }
    if segment.ttl <= 1 {
        return Some(act(Verdict::Drop(Counter::TtlExpired)));
    }
    if backend.flags & backend_flags::ONE_WAY != 0 {
        return one_way::follow::<F, T, N>(ctx, segment, entry)
            .then(|| one_way::send::<F, N>(ctx, backend, entry.change.addr[0]));
    }
    if !track::routine(entry, segment.flags) && !track::from_client(entry, segment.flags) {
        track::forget::<F, N>(&segment.key, entry, false);
        return None;
    }
    if track::touch(entry) {
        track::follow_hop::<F, N>(ctx, &segment.key, entry);
    }
    charge(entry.backend, entry.generation, Side::Destination, packet);
    let way = forward::to_backend::<F, N>(ctx, backend, &segment.key.src, &entry.change.addr);
    Some(act(deliver::<F, T, N>(
        ctx,
        packet,
        segment,
        Side::Destination,
        &entry.change,
        way,
    )))
}

/// A backend's packet on a known flow.
#[inline(always)]
fn reply<F: Family<N>, T: Transport, const N: usize>(
    ctx: &XdpContext,
    packet: &Packet,
    segment: &Segment<N>,
    entry: &mut FlowEntry<N>,
) -> Verdict {
    if segment.ttl <= 1 {
        return Verdict::Drop(Counter::TtlExpired);
    }
    if !track::routine(entry, segment.flags) {
        track::from_backend::<F, T, N>(entry, segment);
    }
    track::touch(entry);
    charge(entry.backend, entry.generation, Side::Source, packet);
    let way = Way::Out {
        hop: entry.hop,
        ifindex: entry.hop_ifindex,
    };
    deliver::<F, T, N>(ctx, packet, segment, Side::Source, &entry.change, way)
}

/// Counts a packet for a backend: from a client if its destination is what NAT changes, else to one.
#[inline(always)]
pub fn charge(backend: u32, generation: u32, side: Side, packet: &Packet) {
    let Some(cell) = load_cell(backend, generation) else {
        return;
    };
    match side {
        Side::Destination => {
            cell.packets_in += 1;
            cell.bytes_in += packet.len();
        }
        Side::Source => {
            cell.packets_out += 1;
            cell.bytes_out += packet.len();
        }
    }
}

/// Rewrites the packet and sends it on its way.
#[inline(always)]
fn deliver<F: Family<N>, T: Transport, const N: usize>(
    ctx: &XdpContext,
    packet: &Packet,
    segment: &Segment<N>,
    side: Side,
    change: &Change<N>,
    way: Way,
) -> Verdict {
    match way {
        Way::Out { hop, ifindex } => {
            rewrite::<F, T, N>(packet, segment.ttl, side, change, Ttl::Decrement);
            forward::send(ctx, packet, hop, ifindex)
        }
        Way::Forward | Way::Stack => {
            rewrite::<F, T, N>(packet, segment.ttl, side, change, Ttl::Keep);
            Verdict::PassForward
        }
        Way::Nowhere => Verdict::Drop(Counter::NoRoute),
    }
}

/// Logs a choice, where `lb run --log-level debug` asks for it: elsewhere the verifier removes it.
#[inline(never)]
fn log_new_flow(ctx: &XdpContext, backend: u32, place: u32) {
    debug!(
        ctx,
        "new flow: backend {}, place {} of its row", backend, place
    );
}

/// Places a packet on its flow's first candidate, for each packet anew and always the same.
#[inline(never)]
fn without_entry<F: Family<N>, T: Transport, const N: usize>(
    ctx: &XdpContext,
    segment: &Segment<N>,
    reason: Option<Counter>,
) -> u32 {
    let Some(packet) = parse::again::<F, T, N>(ctx) else {
        return xdp_action::XDP_PASS;
    };
    let Some(service) = service::find::<F, N>(&segment.key) else {
        return xdp_action::XDP_PASS;
    };
    let chosen = pick::first(service, &segment.key).and_then(pick::backend);
    let Some((id, backend)) = chosen else {
        return act(Verdict::Drop(Counter::NoBackend));
    };
    if backend.flags & backend_flags::ONE_WAY != 0 {
        // No reply will have to be told.
        if let Some(reason) = reason {
            count(reason);
        }
        charge(id, backend.generation, Side::Destination, &packet);
        return one_way::send::<F, N>(ctx, backend, pick::hash(&segment.key));
    }
    if let Some(reason) = reason {
        if backend.flags & backend_flags::STATELESS == 0 {
            return act(Verdict::Drop(Counter::NoEntry));
        }
        count(reason);
        track::note_stateless();
    }
    let Some(addr) = F::narrow(&backend.addr) else {
        return act(Verdict::Drop(Counter::NoBackend));
    };
    let mut change = Change::EMPTY;
    change_between(
        &mut change,
        &segment.key.dst,
        segment.key.dst_port(),
        addr,
        backend.port,
    );
    charge(id, backend.generation, Side::Destination, &packet);
    let way = forward::to_backend::<F, N>(ctx, backend, &segment.key.src, addr);
    act(deliver::<F, T, N>(
        ctx,
        &packet,
        segment,
        Side::Destination,
        &change,
        way,
    ))
}

/// A packet that is of no known flow and for no VIP, while flows are placed without an entry: it may
/// be the reply of one of them.
///
/// It is taken for one only if it comes from a backend of one service alone, if the flow that it
/// would belong to has this backend as its first candidate, and if it is not for this host.
#[inline(never)]
fn stray<F: Family<N>, T: Transport, const N: usize>(
    ctx: &XdpContext,
    segment: &Segment<N>,
) -> u32 {
    match parse::again::<F, T, N>(ctx) {
        Some(packet) => {
            act(stateless_reply::<F, T, N>(ctx, &packet, segment).unwrap_or(Verdict::Pass))
        }
        None => xdp_action::XDP_PASS,
    }
}

#[inline(always)]
fn stateless_reply<F: Family<N>, T: Transport, const N: usize>(
    ctx: &XdpContext,
    packet: &Packet,
    segment: &Segment<N>,
) -> Option<Verdict> {
    let (vip, port, backend) = service::of_reply::<F, N>(&segment.key)?;
    let forward = segment.key.forward_to(*vip, port);
    let service = service::find::<F, N>(&forward)?;
    let (id, found) = pick::first(service, &forward).and_then(pick::backend)?;
    if id != backend || segment.ttl <= 1 {
        return None;
    }
    let way = forward::by_fib::<F, N>(ctx, &segment.key.src, &segment.key.dst);
    if matches!(way, Way::Stack | Way::Nowhere) {
        return None;
    }
    count(Counter::StatelessReply);
    charge(id, found.generation, Side::Source, packet);
    let mut change = Change::EMPTY;
    change_between(
        &mut change,
        &segment.key.src,
        segment.key.src_port(),
        vip,
        port,
    );
    Some(deliver::<F, T, N>(
        ctx,
        packet,
        segment,
        Side::Source,
        &change,
        way,
    ))
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Unreachable: the verifier refuses a program that could loop here.
    loop {}
}
