//! ICMP and ICMPv6: puts their stages in order. Echo requests to a VIP are answered; errors about packets of
//! a flow go to the end of the flow that sent the packet, as if there were no balancer between.

use aya_ebpf::{bindings::xdp_action, programs::XdpContext};
use lb_common::{
    abi::FlowEntry,
    csum::Delta,
    flow::state,
    verdict::{Counter, Verdict},
    wire::{self, ETH_LEN},
};

use crate::{
    echo,
    family::{Family, V4, V6},
    forward::{self, Way},
    one_way,
    packet::Packet,
    program::act,
    quote::{self, Quote},
    rewrite::{Side, Ttl},
    stats::count,
    track,
};

/// What differs between ICMP and ICMPv6.
pub trait Icmp<const N: usize>: Family<N> {
    /// Protocol number.
    const ICMP: u8;
    /// Type of an echo request.
    const ECHO: u8;
    /// Type of an echo reply.
    const ECHO_REPLY: u8;
    /// The checksum covers the packet's addresses too.
    const COVERS_ADDRESSES: bool;

    /// Whether a type is an error's, about a packet that it quotes. (Redirects quote one too, but are
    /// for the router next to their sender.)
    fn is_error(kind: u8) -> bool;

    /// The IP header's checksum; 0 where there is none.
    fn header_check(packet: &Packet) -> u16;

    /// Whether TCP or UDP begin right behind the header: no options, and no later fragment.
    fn is_bare(packet: &Packet) -> bool;

    /// Writes a TTL, and brings the header checksum up to date.
    fn set_ttl(packet: &Packet, ttl: u8);

    /// Whether an address can be that of one host: not a multicast group, a broadcast, a loopback or
    /// no address.
    fn is_host(addr: &[u32; N]) -> bool;
}

impl Icmp<1> for V4 {
    const ICMP: u8 = wire::ICMP;
    const ECHO: u8 = wire::ICMP_ECHO;
    const ECHO_REPLY: u8 = wire::ICMP_ECHO_REPLY;
    const COVERS_ADDRESSES: bool = false;

    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(
            kind,
            wire::ICMP_UNREACHABLE | wire::ICMP_TIME_EXCEEDED | wire::ICMP_PARAMETER
        )
    }

    #[inline(always)]
    fn header_check(packet: &Packet) -> u16 {
        packet.get(ETH_LEN + wire::IPV4_CHECK)
    }

    #[inline(always)]
    fn is_bare(packet: &Packet) -> bool {
        packet.get::<u8>(ETH_LEN) == wire::IPV4_VERSION_IHL
            && packet.get::<u16>(ETH_LEN + wire::IPV4_FRAGMENT) & wire::IPV4_OFFSET_MASK == 0
    }

    #[inline(always)]
    fn set_ttl(packet: &Packet, ttl: u8) {
        const AT: usize = ETH_LEN + wire::IPV4_TTL;
        // The TTL shares a 16-bit word with the protocol.
        let before = packet.get::<u16>(AT);
        packet.set(AT, ttl);
        let delta = Delta::NONE.word(before, packet.get(AT));
        let check = packet.get(ETH_LEN + wire::IPV4_CHECK);
        packet.set(ETH_LEN + wire::IPV4_CHECK, delta.apply(check));
    }

    #[inline(always)]
    fn is_host(addr: &[u32; 1]) -> bool {
        let first = u32::from_be(addr[0]) >> 24;
        first != 0 && first != 127 && first < 224
    }
}

impl Icmp<4> for V6 {
    const ICMP: u8 = wire::ICMPV6;
    const ECHO: u8 = wire::ICMPV6_ECHO;
    const ECHO_REPLY: u8 = wire::ICMPV6_ECHO_REPLY;
    const COVERS_ADDRESSES: bool = true;

    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        (wire::ICMPV6_FIRST_ERROR..=wire::ICMPV6_LAST_ERROR).contains(&kind)
    }

    #[inline(always)]
    fn header_check(_packet: &Packet) -> u16 {
        0
    }

    #[inline(always)]
    fn is_bare(packet: &Packet) -> bool {
        // Options and fragments have headers of their own, before that of TCP or UDP.
        Self::plain(packet)
    }

    #[inline(always)]
    fn set_ttl(packet: &Packet, ttl: u8) {
        packet.set(ETH_LEN + wire::IPV6_HOP_LIMIT, ttl);
    }

    #[inline(always)]
    fn is_host(addr: &[u32; 4]) -> bool {
        let first = u32::from_be(addr[0]) >> 24;
        let reserved = addr[0] == 0 && addr[1] == 0 && addr[2] == 0;
        first != 0xff && !reserved
    }
}

/// An ICMP message in a packet that is [`plain`](Family::plain).
///
/// One function for all of it: its frame and those of the functions behind it add up.
#[inline(never)]
pub fn message<F: Icmp<N>, const N: usize>(ctx: &XdpContext) -> u32 {
    let packet = Packet::new(ctx);
    if !packet.has(F::L4 + wire::ICMP_LEN) {
        return xdp_action::XDP_PASS;
    }
    // A message that its IP header says to be shorter or longer than it is: not ours to judge.
    let len = F::payload_len(&packet);
    if len < wire::ICMP_LEN as u32 || F::L4 as u64 + u64::from(len) > packet.len() {
        return xdp_action::XDP_PASS;
    }
    let kind = packet.get::<u8>(F::L4 + wire::ICMP_TYPE_CODE);
    if kind == F::ECHO {
        if echo::answer::<F, N>(&packet) {
            count(Counter::EchoReply);
            return xdp_action::XDP_TX;
        }
    } else if F::is_error(kind) {
        return error::<F, N>(ctx, &packet, len);
    }
    xdp_action::XDP_PASS
}

/// An error. One that quotes no packet of a known flow passes.
#[inline(always)]
fn error<F: Icmp<N>, const N: usize>(ctx: &XdpContext, packet: &Packet, len: u32) -> u32 {
    let Some(quote) = quote::read::<F, N>(packet, len) else {
        return xdp_action::XDP_PASS;
    };
    let Some(entry) = track::find::<F, N>(&quote.key) else {
        return xdp_action::XDP_PASS;
    };
    if entry.state & state::ONE_WAY != 0 {
        return deliver_as_is::<F, N>(ctx, packet, entry);
    }
    act(deliver::<F, N>(ctx, packet, &quote, entry).unwrap_or(Verdict::Pass))
}

/// Sends an error to a backend that gets its packets as the client has sent them.
#[inline(always)]
fn deliver_as_is<F: Icmp<N>, const N: usize>(
    ctx: &XdpContext,
    packet: &Packet,
    entry: &FlowEntry<N>,
) -> u32 {
    let Some(backend) = track::backend(entry) else {
        return xdp_action::XDP_PASS;
    };
    if F::ttl(packet) <= 1 {
        return act(Verdict::Drop(Counter::TtlExpired));
    }
    count(Counter::IcmpError);
    one_way::send::<F, N>(ctx, backend, entry.change.addr[0])
}

/// Rewrites an error and sends it the way of the flow's packets from where it comes.
#[inline(always)]
fn deliver<F: Icmp<N>, const N: usize>(
    ctx: &XdpContext,
    packet: &Packet,
    quote: &Quote<N>,
    entry: &FlowEntry<N>,
) -> Option<Verdict> {
    let ttl = F::ttl(packet);
    if ttl <= 1 {
        return Some(Verdict::Drop(Counter::TtlExpired));
    }
    let (side, way) = if entry.state & state::REPLY_ENTRY == 0 {
        let backend = track::backend(entry)?;
        let src = packet.address(F::SRC);
        let way = forward::to_backend::<F, N>(ctx, backend, &src, &entry.change.addr);
        (Side::Destination, way)
    } else {
        let way = Way::Out {
            hop: entry.hop,
            ifindex: entry.hop_ifindex,
        };
        (Side::Source, way)
    };
    let verdict = match way {
        Way::Out { hop, ifindex } => {
            quote::rewrite::<F, N>(packet, quote, side, &entry.change, ttl, Ttl::Decrement);
            forward::send(ctx, packet, hop, ifindex)
        }
        Way::Forward | Way::Stack => {
            quote::rewrite::<F, N>(packet, quote, side, &entry.change, ttl, Ttl::Keep);
            Verdict::PassForward
        }
        Way::Nowhere => return Some(Verdict::Drop(Counter::NoRoute)),
    };
    count(Counter::IcmpError);
    Some(verdict)
}
