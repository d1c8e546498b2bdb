//! What is remembered of flows: entries, their states, and the counts that go up and down with them.

use core::intrinsics::{AtomicOrdering, atomic_or};

use aya_ebpf::{helpers::generated::bpf_jiffies64, programs::XdpContext};
use lb_common::{
    abi::{Backend, Budget, Change, FlowEntry, TICK_SHIFT, backend_flags},
    flow::{FlowKey, state},
    vlan::Tags,
    wire::{ETH_LEN, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN},
};

use crate::{
    family::Family,
    forward::hop_back,
    maps::{BACKENDS, BUDGET, STATELESS_TICK, setting},
    packet::Packet,
    parse::{Segment, Transport},
    pick,
    rewrite::change_between,
    stats::load_cell,
};

/// `BPF_NOEXIST`: insert only what is not there.
const NO_EXIST: u64 = 1;
/// `-EEXIST`.
const EXISTS: i32 = -17;

/// The time, in ticks.
#[inline(always)]
pub fn now() -> u32 {
    // SAFETY: a helper without arguments; the JIT makes it one load.
    (unsafe { bpf_jiffies64() } >> TICK_SHIFT) as u32
}

/// The entry of a flow or of its replies.
#[inline(always)]
pub fn find<F: Family<N>, const N: usize>(key: &FlowKey<N>) -> Option<&'static mut FlowEntry<N>> {
    // SAFETY: entries are preallocated and never unmapped. An entry that the agent deletes in this
    // very moment may be handed to another flow; the packet then goes where a packet without an
    // entry might have gone. State is only changed atomically.
    F::flows()
        .get_ptr_mut(key)
        .map(|entry| unsafe { &mut *entry })
}

/// The backend of a flow, if it is still there: if the slot has not gone to another since.
#[inline(always)]
pub fn backend<const N: usize>(entry: &FlowEntry<N>) -> Option<&'static Backend> {
    BACKENDS
        .get(entry.backend)
        .filter(|backend| backend.generation == entry.generation)
}

/// Sets bits of a flow's state and returns the state before.
#[inline(always)]
fn set<const N: usize>(entry: &mut FlowEntry<N>, bits: u32) -> u32 {
    // core::sync::atomic has no `fetch_or` for this target: it wants compare-and-swap, which is more
    // than the instruction set needed here. Only SeqCst: LLVM 22 miscompiles a relaxed fetch whose
    // result is used.
    // SAFETY: an aligned, live word of a map value, written nowhere else but by whole-value inserts.
    unsafe { atomic_or::<u32, u32, { AtomicOrdering::SeqCst }>(&raw mut entry.state, bits) }
}

/// Ends a flow and gives its in-flight count back, once.
#[inline(always)]
fn end<const N: usize>(entry: &mut FlowEntry<N>) {
    // Of all CPUs that come here for this flow, one sees the bit unset.
    let before = set(entry, state::CLOSED);
    if before & state::CLOSED == 0 {
        if let Some(cell) = load_cell(entry.backend, entry.generation) {
            cell.closed += 1;
        }
    }
}

/// Whether a packet can tell the flow nothing new: no SYN, FIN or RST, and the flow is established.
#[inline(always)]
pub fn routine<const N: usize>(entry: &FlowEntry<N>, flags: u8) -> bool {
    flags & (TCP_SYN | TCP_FIN | TCP_RST) == 0 && entry.state & state::ESTABLISHED != 0
}

/// What a packet from the client tells about its flow. Returns false when the client opens a new
/// connection on a flow that has ended, or that it has closed itself and so given up: it is to be
/// placed afresh.
#[inline(always)]
pub fn from_client<const N: usize>(entry: &mut FlowEntry<N>, flags: u8) -> bool {
    if flags & TCP_SYN != 0 {
        return flags & TCP_ACK != 0 || entry.state & (state::CLOSED | state::FIN_CLIENT) == 0;
    }
    if flags & TCP_RST != 0 {
        end(entry);
        return true;
    }
    if flags & TCP_FIN != 0 {
        let before = set(entry, state::FIN_CLIENT);
        if before & state::FIN_BACKEND != 0 {
            end(entry);
        }
    }
    if flags & TCP_ACK != 0 && entry.state & (state::REPLIED | state::ESTABLISHED) == state::REPLIED
    {
        set(entry, state::ESTABLISHED);
    }
    true
}

/// What a packet from the client tells about a flow whose replies are not seen: by an acknowledgement that
/// the backend has answered, and by a FIN that the connection is about to end. Returns as
/// [`from_client`] does.
#[inline(always)]
pub fn from_client_alone<T: Transport, const N: usize>(
    entry: &mut FlowEntry<N>,
    flags: u8,
) -> bool {
    const ANSWERED: u32 = state::REPLIED | state::ESTABLISHED;
    if T::CONNECTIONS && !from_client(entry, flags) {
        return false;
    }
    let answered = !T::CONNECTIONS || flags & (TCP_SYN | TCP_RST | TCP_ACK) == TCP_ACK;
    if answered && entry.state & ANSWERED != ANSWERED {
        set(entry, ANSWERED);
    }
    if flags & TCP_FIN != 0 {
        end(entry);
    }
    true
}

/// What a packet from the backend tells about its flow, whose reply entry is `reply`.
#[inline(never)]
pub fn from_backend<F: Family<N>, T: Transport, const N: usize>(
    reply: &mut FlowEntry<N>,
    segment: &Segment<N>,
) {
    let key = segment.key.forward_to(reply.change.addr, reply.change.port);
    let Some(entry) = find::<F, N>(&key) else {
        return;
    };
    if entry.backend != reply.backend || entry.generation != reply.generation {
        return;
    }
    let mut news = state::REPLIED;
    if !T::CONNECTIONS {
        news |= state::ESTABLISHED;
    }
    if segment.flags & TCP_FIN != 0 {
        news |= state::FIN_BACKEND;
    }
    if entry.state & news != news {
        set(entry, news);
    }
    if segment.flags & TCP_RST != 0
        || (segment.flags & TCP_FIN != 0 && entry.state & state::FIN_CLIENT != 0)
    {
        end(entry);
    }
    if entry.state & state::ESTABLISHED != 0 && reply.state & state::ESTABLISHED == 0 {
        set(reply, state::ESTABLISHED);
    }
}

/// Notes that a packet came. Returns false if one has been noted in this tick already.
#[inline(always)]
pub fn touch<const N: usize>(entry: &mut FlowEntry<N>) -> bool {
    let now = now();
    if entry.last_seen == now {
        return false;
    }
    entry.last_seen = now;
    true
}

/// Follows the client's last hop: replies go back where the client's packets last came from.
#[inline(never)]
pub fn follow_hop<F: Family<N>, const N: usize>(
    ctx: &XdpContext,
    key: &FlowKey<N>,
    entry: &mut FlowEntry<N>,
) {
    let packet = Packet::new(ctx);
    if !packet.has(ETH_LEN) {
        return;
    }
    let hop = hop_back(&packet);
    let ifindex = ctx.ingress_ifindex() as u32;
    if entry.hop == hop && entry.hop_ifindex == ifindex {
        return;
    }
    entry.hop = hop;
    entry.hop_ifindex = ifindex;
    let reply_key = key.reply_from(entry.change.addr, entry.change.port);
    if let Some(reply) = find::<F, N>(&reply_key)
        && reply.backend == entry.backend
        && reply.generation == entry.generation
    {
        reply.hop = hop;
        reply.hop_ifindex = ifindex;
    }
}

/// Forgets a flow, both entries of it, as far as they are still its own. Its count is given back if
/// that has not happened yet.
#[inline(never)]
pub fn forget<F: Family<N>, const N: usize>(
    key: &FlowKey<N>,
    entry: &mut FlowEntry<N>,
    stale: bool,
) {
    if !stale {
        end(entry);
    }
    if entry.state & state::ONE_WAY == 0 {
        let reply_key = key.reply_from(entry.change.addr, entry.change.port);
        if let Some(reply) = find::<F, N>(&reply_key)
            && reply.change.addr == key.dst
            && reply.change.port == key.dst_port()
        {
            let _ = F::flows().remove(&reply_key);
        }
    }
    let _ = F::flows().remove(key);
}

/// Takes one new flow out of this CPU's allowance for the tick.
#[inline(always)]
pub fn take_budget() -> bool {
    let Some(budget) = BUDGET.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: a per-CPU value; XDP programs do not preempt one another on a CPU.
    let budget = unsafe { &mut *budget };
    let now = now();
    if budget.tick != now {
        *budget = Budget {
            tick: now,
            inserts: 0,
            answers: 0,
        };
    }
    budget.inserts += 1;
    budget.inserts <= setting!(inserts_per_tick)
}

/// How remembering a new flow went.
pub enum Remembered {
    /// Both entries are there, and the backend's in-flight count has gone up.
    Yes,
    /// The table is full.
    Full,
    /// The backend already talks to this client address and port through another VIP.
    Taken,
    /// Another packet of the flow was faster, on another CPU: its entry counts.
    Raced,
}

/// Remembers a new flow to `backend`, which stands in slot `id`: both entries, or neither. A flow whose
/// replies do not come back has one.
#[inline(never)]
pub fn remember<F: Family<N>, const N: usize>(
    ctx: &XdpContext,
    key: &FlowKey<N>,
    id: u32,
    backend: &Backend,
) -> Remembered {
    let packet = Packet::new(ctx);
    if !packet.has(ETH_LEN) {
        return Remembered::Full;
    }
    let mut entry = FlowEntry {
        state: 0,
        last_seen: now(),
        backend: id,
        generation: backend.generation,
        change: Change::EMPTY,
        hop: hop_back(&packet),
        hop_ifindex: ctx.ingress_ifindex() as u32,
        tags: Tags::NONE,
    };
    if backend.flags & backend_flags::ONE_WAY != 0 {
        entry.state = state::ONE_WAY;
        entry.change.addr[0] = pick::hash(key);
        return match F::flows().insert(key, &entry, NO_EXIST) {
            Ok(()) => opened(id, backend.generation),
            Err(EXISTS) => Remembered::Raced,
            Err(_) => Remembered::Full,
        };
    }
    let Some(addr) = F::narrow(&backend.addr) else {
        return Remembered::Taken;
    };
    let reply_key = key.reply_from(*addr, backend.port);
    if taken::<F, N>(&reply_key, key) {
        return Remembered::Taken;
    }
    change_between(
        &mut entry.change,
        &key.dst,
        key.dst_port(),
        addr,
        backend.port,
    );
    match F::flows().insert(key, &entry, NO_EXIST) {
        Ok(()) => {}
        Err(EXISTS) => return Remembered::Raced,
        Err(_) => return Remembered::Full,
    }
    entry.state = state::REPLY_ENTRY;
    change_between(
        &mut entry.change,
        addr,
        backend.port,
        &key.dst,
        key.dst_port(),
    );
    // Over an entry that is no longer in use.
    if F::flows().insert(&reply_key, &entry, 0).is_err() {
        let _ = F::flows().remove(key);
        return Remembered::Full;
    }
    opened(id, backend.generation)
}

/// Counts a flow that has been entered.
#[inline(always)]
fn opened(backend: u32, generation: u32) -> Remembered {
    if let Some(cell) = load_cell(backend, generation) {
        cell.opened += 1;
    }
    Remembered::Yes
}

/// Whether the replies that `reply_key` names belong to a flow, other than that of `key`, that has not
/// ended and whose backend is still there.
#[inline(never)]
fn taken<F: Family<N>, const N: usize>(reply_key: &FlowKey<N>, key: &FlowKey<N>) -> bool {
    let Some(other) = find::<F, N>(reply_key) else {
        return false;
    };
    if other.state & state::REPLY_ENTRY == 0 {
        // A flow of a client that is itself a backend's address and port: never overwrite it.
        return true;
    }
    let forward = reply_key.forward_to(other.change.addr, other.change.port);
    if forward == *key {
        return false;
    }
    match find::<F, N>(&forward) {
        Some(entry) => {
            entry.state & state::CLOSED == 0
                && entry.backend == other.backend
                && entry.generation == other.generation
                && backend(entry).is_some()
        }
        None => false,
    }
}

/// Notes that a packet was placed without an entry.
#[inline(always)]
pub fn note_stateless() {
    if let Some(tick) = STATELESS_TICK.get_ptr_mut(0) {
        let now = now();
        // SAFETY: a whole, aligned word; CPUs that race write the same value.
        unsafe {
            if *tick != now {
                *tick = now;
            }
        }
    }
}

/// Whether packets have lately been placed without an entry.
#[inline(always)]
pub fn lately_stateless() -> bool {
    // 0 says "never": the agent starts with it.
    STATELESS_TICK
        .get(0)
        .is_some_and(|&tick| tick != 0 && now().wrapping_sub(tick) < setting!(stateless_ticks))
}
