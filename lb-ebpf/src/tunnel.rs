//! Outer headers: IP in IP (RFC 2003, RFC 2473, RFC 4213) and GUE of version 1, which is UDP with an IP packet
//! right behind it (draft-ietf-intarea-gue-09, section 4).

use aya_ebpf::{EbpfContext, helpers::bpf_xdp_adjust_head, programs::XdpContext};
use lb_common::{
    abi::{Backend, backend_flags},
    csum::fold,
    flow::{join_ports, unmapped},
    verdict::Counter,
    wire::{self, ETH_LEN},
};

use crate::{maps::setting, packet::Packet};

/// TTL or hop limit of outer headers.
const TTL: u8 = 64;
/// First of the ports that the source port of GUE is taken from: the dynamic ones (RFC 6335), a power of two
/// of them.
const FIRST_PORT: u16 = 0xc000;
/// How many of those there are.
const PORTS: u16 = 0x4000;

/// What an outer header says of what is behind it.
pub struct Inner {
    /// Length in bytes.
    pub len: u32,
    /// DSCP and ECN, which the outer header has too (RFC 2983 section 3.1 and RFC 6040, normal mode).
    pub class: u8,
    /// Protocol number.
    pub proto: u8,
}

/// Bytes that the way to a backend adds to a packet.
#[inline(always)]
pub fn outer_len(backend: &Backend) -> u32 {
    if backend.flags & backend_flags::TUNNEL == 0 {
        return 0;
    }
    let ip = match unmapped(&backend.addr) {
        Some(_) => wire::IPV4_LEN,
        None => wire::IPV6_LEN,
    };
    let udp = if backend.flags & backend_flags::GUE != 0 {
        wire::UDP_LEN
    } else {
        0
    };
    (ip + udp) as u32
}

/// Puts an outer header before the packet, whose length with it is below 2^16. Of the Ethernet header only
/// the EtherType is written.
#[inline(always)]
pub fn encapsulate(
    ctx: &XdpContext,
    backend: &Backend,
    inner: &Inner,
    hash: u32,
) -> Result<Packet, Counter> {
    if backend.source == [0; 4] {
        return Err(Counter::Unresolved);
    }
    let gue = backend.flags & backend_flags::GUE != 0;
    match (unmapped(&backend.addr).is_some(), gue) {
        (true, false) => put_on::<{ wire::IPV4_LEN }, 0>(ctx, backend, inner, hash),
        (true, true) => put_on::<{ wire::IPV4_LEN }, { wire::UDP_LEN }>(ctx, backend, inner, hash),
        (false, false) => put_on::<{ wire::IPV6_LEN }, 0>(ctx, backend, inner, hash),
        (false, true) => put_on::<{ wire::IPV6_LEN }, { wire::UDP_LEN }>(ctx, backend, inner, hash),
    }
}

/// Puts on an IP header of `IP` bytes and a UDP header of `UDP`, which is 0 if there is none. The verifier must
/// know both.
#[inline(always)]
fn put_on<const IP: usize, const UDP: usize>(
    ctx: &XdpContext,
    backend: &Backend,
    inner: &Inner,
    hash: u32,
) -> Result<Packet, Counter> {
    let packet = make_room(ctx, IP + UDP)?;
    let payload = Inner {
        len: inner.len + UDP as u32,
        proto: if UDP == 0 { inner.proto } else { wire::UDP },
        ..*inner
    };
    if IP == wire::IPV4_LEN {
        ipv4(&packet, backend, &payload, hash);
    } else {
        ipv6(&packet, backend, &payload, hash);
    }
    if UDP != 0 {
        udp(&packet, ETH_LEN + IP, payload.len, hash);
    }
    Ok(packet)
}

/// Makes room for `len` bytes of outer header behind an Ethernet header.
#[inline(always)]
fn make_room(ctx: &XdpContext, len: usize) -> Result<Packet, Counter> {
    // SAFETY: the context of this run. No pointer into the packet from before is used again.
    if unsafe { bpf_xdp_adjust_head(ctx.as_ptr().cast(), -(len as i32)) } != 0 {
        return Err(Counter::NoHeadroom);
    }
    let packet = Packet::new(ctx);
    if packet.has(ETH_LEN + len) {
        Ok(packet)
    } else {
        Err(Counter::NoHeadroom)
    }
}

/// The last word of the outer source: its last bits are the flow's, so that the backend's NIC spreads flows
/// over its queues although all come from one balancer.
#[inline(always)]
fn source_word(backend: &Backend, hash: u32) -> u32 {
    let bits = backend.source_bits.min(u32::BITS);
    let of_flow = ((1_u64 << bits) - 1) as u32;
    let source = u32::from_be(backend.source[3]);
    (source & !of_flow | hash & of_flow).to_be()
}

/// Writes an IPv4 header before a payload.
#[inline(always)]
fn ipv4(packet: &Packet, backend: &Backend, payload: &Inner, hash: u32) {
    let first = u16::from_ne_bytes([wire::IPV4_VERSION_IHL, payload.class]);
    let len = ((payload.len + wire::IPV4_LEN as u32) as u16).to_be();
    let hops = u16::from_ne_bytes([TTL, payload.proto]);
    let (src, dst) = (source_word(backend, hash), backend.addr[3]);
    // Never fragmented, so it needs no identification (RFC 6864).
    let sum = u32::from(first)
        + u32::from(len)
        + u32::from(wire::IPV4_DONT_FRAGMENT)
        + u32::from(hops)
        + (src >> 16)
        + (src & 0xffff)
        + (dst >> 16)
        + (dst & 0xffff);
    packet.set(wire::ETH_TYPE, wire::ETH_P_IP);
    packet.set(ETH_LEN, first);
    packet.set(ETH_LEN + wire::IPV4_TOTAL_LEN, len);
    packet.set(ETH_LEN + wire::IPV4_ID, 0_u16);
    packet.set(ETH_LEN + wire::IPV4_FRAGMENT, wire::IPV4_DONT_FRAGMENT);
    packet.set(ETH_LEN + wire::IPV4_TTL, hops);
    packet.set(ETH_LEN + wire::IPV4_CHECK, !fold(sum));
    packet.set(ETH_LEN + wire::IPV4_SRC, src);
    packet.set(ETH_LEN + wire::IPV4_DST, dst);
}

/// Writes an IPv6 header before a payload.
#[inline(always)]
fn ipv6(packet: &Packet, backend: &Backend, payload: &Inner, hash: u32) {
    // The flow label tells the flow to routers that do not look further (RFC 6438).
    let first = 6 << 28 | u32::from(payload.class) << 20 | hash & 0xf_ffff;
    let len = (payload.len as u16).to_be();
    let next = u16::from_ne_bytes([payload.proto, TTL]);
    packet.set(wire::ETH_TYPE, wire::ETH_P_IPV6);
    packet.set(ETH_LEN, first.to_be());
    packet.set(ETH_LEN + wire::IPV6_PAYLOAD_LEN, len);
    packet.set(ETH_LEN + wire::IPV6_NEXT, next);
    packet.set(ETH_LEN + wire::IPV6_SRC, backend.source[0]);
    packet.set(ETH_LEN + wire::IPV6_SRC + 4, backend.source[1]);
    packet.set(ETH_LEN + wire::IPV6_SRC + 8, backend.source[2]);
    packet.set(ETH_LEN + wire::IPV6_SRC + 12, source_word(backend, hash));
    packet.set_words(ETH_LEN + wire::IPV6_DST, &backend.addr);
}

/// Writes the UDP header of GUE at byte `at`, with `len` the length of itself and what is behind it. Without a
/// checksum, in IPv6 too: the inner packet has its own (RFC 6935).
#[inline(always)]
fn udp(packet: &Packet, at: usize, len: u32, hash: u32) {
    let source = FIRST_PORT | (hash >> 16) as u16 & (PORTS - 1);
    packet.set(at, join_ports(source.to_be(), setting!(gue_port) as u16));
    packet.set(at + wire::UDP_LENGTH, (len as u16).to_be());
    packet.set(at + wire::UDP_CHECK, 0_u16);
}
