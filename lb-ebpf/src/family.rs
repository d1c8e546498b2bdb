//! What differs between IPv4 and IPv6. Everything else is written once, over this trait.

use aya_ebpf::{bindings::bpf_fib_lookup, maps::HashMap};
use lb_common::{
    abi::FlowEntry,
    csum::Delta,
    flow::{FlowKey, mapped, unmapped},
    wire::{self, ETH_LEN},
};

use crate::{
    maps::{FLOWS4, FLOWS6},
    packet::Packet,
};

/// An address family whose addresses have `N` 32-bit words.
pub trait Family<const N: usize> {
    /// Offset of the source address in the frame.
    const SRC: usize;
    /// Offset of the destination address in the frame.
    const DST: usize;
    /// Offset of the TCP or UDP header in the frame.
    const L4: usize;
    /// The family's number, for the FIB.
    const AF: u8;
    /// Protocol number in the header of a tunnel that has packets of this family in it.
    const TUNNELLED: u8;

    /// Whether the header is one that the fast path takes: no options or extension headers, no
    /// fragment. The frame holds at least `L4` bytes.
    fn plain(packet: &Packet) -> bool;

    /// Protocol of what follows the header.
    fn proto(packet: &Packet) -> u8;

    /// TTL or hop limit.
    fn ttl(packet: &Packet) -> u8;

    /// DSCP and ECN: the type of service, or traffic class.
    fn traffic_class(packet: &Packet) -> u8;

    /// Length of what follows the header, as the header says.
    fn payload_len(packet: &Packet) -> u32;

    /// Takes one from the TTL and brings the header checksum, if there is one, up to date with it and
    /// with the changed address.
    fn decrement_ttl(packet: &Packet, ttl: u8, ip_delta: u16);

    /// Brings the header checksum up to date with the changed address alone; `ip_delta` is of the
    /// address and a TTL step, like in [`decrement_ttl`](Self::decrement_ttl).
    fn keep_ttl(packet: &Packet, ip_delta: u16);

    /// The address in its 16-byte form, as services and endpoints have it. `None`: none of them can
    /// have it, because it is an IPv4-mapped address in an IPv6 packet.
    fn widen(addr: &[u32; N]) -> Option<[u32; 4]>;

    /// The address in its 16-byte form, as one of this family; `None` if it is of the other.
    fn narrow(addr: &[u32; 4]) -> Option<&[u32; N]>;

    /// The family's flow table.
    fn flows() -> &'static HashMap<FlowKey<N>, FlowEntry<N>>;

    /// Fills in the addresses of a FIB question.
    fn fib_addresses(fib: &mut bpf_fib_lookup, src: &[u32; N], dst: &[u32; N]);
}

pub struct V4;
pub struct V6;

impl Family<1> for V4 {
    const SRC: usize = ETH_LEN + wire::IPV4_SRC;
    const DST: usize = ETH_LEN + wire::IPV4_DST;
    const L4: usize = ETH_LEN + wire::IPV4_LEN;
    const AF: u8 = 2;
    const TUNNELLED: u8 = wire::IPV4_IN_IP;

    #[inline(always)]
    fn plain(packet: &Packet) -> bool {
        packet.get::<u8>(ETH_LEN) == wire::IPV4_VERSION_IHL
            && packet.get::<u16>(ETH_LEN + wire::IPV4_FRAGMENT) & wire::IPV4_FRAGMENT_MASK == 0
    }

    #[inline(always)]
    fn proto(packet: &Packet) -> u8 {
        packet.get(ETH_LEN + wire::IPV4_PROTO)
    }

    #[inline(always)]
    fn ttl(packet: &Packet) -> u8 {
        packet.get(ETH_LEN + wire::IPV4_TTL)
    }

    #[inline(always)]
    fn traffic_class(packet: &Packet) -> u8 {
        packet.get(ETH_LEN + wire::IPV4_TOS)
    }

    #[inline(always)]
    fn payload_len(packet: &Packet) -> u32 {
        let total = u32::from(u16::from_be(packet.get(ETH_LEN + wire::IPV4_TOTAL_LEN)));
        total.saturating_sub(wire::IPV4_LEN as u32)
    }

    #[inline(always)]
    fn decrement_ttl(packet: &Packet, ttl: u8, ip_delta: u16) {
        packet.set(ETH_LEN + wire::IPV4_TTL, ttl - 1);
        let check = packet.get(ETH_LEN + wire::IPV4_CHECK);
        packet.set(ETH_LEN + wire::IPV4_CHECK, Delta(ip_delta).apply(check));
    }

    #[inline(always)]
    fn keep_ttl(packet: &Packet, ip_delta: u16) {
        let check = packet.get(ETH_LEN + wire::IPV4_CHECK);
        let delta = Delta(ip_delta).ttl_incremented();
        packet.set(ETH_LEN + wire::IPV4_CHECK, delta.apply(check));
    }

    #[inline(always)]
    fn widen(addr: &[u32; 1]) -> Option<[u32; 4]> {
        Some(mapped(addr[0]))
    }

    #[inline(always)]
    fn narrow(addr: &[u32; 4]) -> Option<&[u32; 1]> {
        unmapped(addr).map(|_| core::array::from_ref(&addr[3]))
    }

    #[inline(always)]
    fn flows() -> &'static HashMap<FlowKey<1>, FlowEntry<1>> {
        &FLOWS4
    }

    #[inline(always)]
    fn fib_addresses(fib: &mut bpf_fib_lookup, src: &[u32; 1], dst: &[u32; 1]) {
        fib.__bindgen_anon_3.ipv4_src = src[0];
        fib.__bindgen_anon_4.ipv4_dst = dst[0];
    }
}

impl Family<4> for V6 {
    const SRC: usize = ETH_LEN + wire::IPV6_SRC;
    const DST: usize = ETH_LEN + wire::IPV6_DST;
    const L4: usize = ETH_LEN + wire::IPV6_LEN;
    const AF: u8 = 10;
    const TUNNELLED: u8 = wire::IPV6_IN_IP;

    #[inline(always)]
    fn plain(packet: &Packet) -> bool {
        packet.get::<u8>(ETH_LEN) >> 4 == 6
    }

    #[inline(always)]
    fn proto(packet: &Packet) -> u8 {
        packet.get(ETH_LEN + wire::IPV6_NEXT)
    }

    #[inline(always)]
    fn ttl(packet: &Packet) -> u8 {
        packet.get(ETH_LEN + wire::IPV6_HOP_LIMIT)
    }

    #[inline(always)]
    fn traffic_class(packet: &Packet) -> u8 {
        (u16::from_be(packet.get(ETH_LEN)) >> 4) as u8
    }

    #[inline(always)]
    fn payload_len(packet: &Packet) -> u32 {
        u32::from(u16::from_be(packet.get(ETH_LEN + wire::IPV6_PAYLOAD_LEN)))
    }

    #[inline(always)]
    fn decrement_ttl(packet: &Packet, ttl: u8, _ip_delta: u16) {
        packet.set(ETH_LEN + wire::IPV6_HOP_LIMIT, ttl - 1);
    }

    #[inline(always)]
    fn keep_ttl(_packet: &Packet, _ip_delta: u16) {}

    #[inline(always)]
    fn widen(addr: &[u32; 4]) -> Option<[u32; 4]> {
        unmapped(addr).is_none().then_some(*addr)
    }

    #[inline(always)]
    fn narrow(addr: &[u32; 4]) -> Option<&[u32; 4]> {
        Some(addr)
    }

    #[inline(always)]
    fn flows() -> &'static HashMap<FlowKey<4>, FlowEntry<4>> {
        &FLOWS6
    }

    #[inline(always)]
    fn fib_addresses(fib: &mut bpf_fib_lookup, src: &[u32; 4], dst: &[u32; 4]) {
        fib.__bindgen_anon_3.ipv6_src = *src;
        fib.__bindgen_anon_4.ipv6_dst = *dst;
    }
}
