//! The packet that an ICMP error quotes: which flow it is of, and the same error as the other end of that
//! flow must see it.
//!
//! An error is sent to the source of the packet that it quotes. So it goes the way of the flow's packets
//! in the other direction, and belongs to the flow entry that those have: of an error to the VIP, about a
//! reply, the forward entry; of an error to the client, about a packet to a backend, the reply entry. The
//! entry says what to write at the end that it changes, in the error's own header and, at the opposite
//! end, in the quoted one.

use lb_common::{
    abi::Change,
    csum::Delta,
    flow::FlowKey,
    wire::{self, ETH_LEN, ICMP_CHECK, ICMP_LEN, ICMP_QUOTED_LEN, L4_DST_PORT, L4_SRC_PORT},
};

use crate::{
    icmp::Icmp,
    packet::Packet,
    rewrite::{Side, Ttl},
};

/// What an error says of the packet that it is about.
pub struct Quote<const N: usize> {
    /// Key of the flow's packets that go the way of the error.
    pub key: FlowKey<N>,
    /// Bytes of the quoted TCP or UDP header and what follows it.
    len: u32,
}

/// The quoted packet, seen as a frame of which only the IP header and what follows is there.
#[inline(always)]
fn quoted<F: Icmp<N>, const N: usize>(packet: &Packet) -> Packet {
    packet.behind(F::L4 + ICMP_LEN - ETH_LEN)
}

/// Reads the quoted packet in an ICMP message of `len` bytes that the frame holds. `None`: too little of
/// it, or not one that the program would have rewritten, or not sent by the one who gets the error.
#[inline(always)]
pub fn read<F: Icmp<N>, const N: usize>(packet: &Packet, len: u32) -> Option<Quote<N>> {
    let headers = (ICMP_LEN + F::L4 - ETH_LEN) as u32;
    if len < headers + ICMP_QUOTED_LEN as u32 {
        return None;
    }
    let quoted = quoted::<F, N>(packet);
    if !quoted.has(F::L4 + ICMP_QUOTED_LEN) || !F::is_bare(&quoted) {
        return None;
    }
    let proto = F::proto(&quoted);
    if proto != wire::TCP && proto != wire::UDP {
        return None;
    }
    let sent = FlowKey {
        src: quoted.address(F::SRC),
        dst: quoted.address(F::DST),
        ports: quoted.get(F::L4),
        proto: u32::from(proto),
    };
    if packet.address(F::DST) != sent.src {
        return None;
    }
    Some(Quote {
        key: sent.reply_from(sent.dst, sent.dst_port()),
        len: len - headers,
    })
}

/// Writes `change` into an error and what it quotes. `ttl` is at least 2 unless `step` is [`Ttl::Keep`].
///
/// The error's source is changed only if the packet was for it: routers on the way keep their names.
#[inline(always)]
pub fn rewrite<F: Icmp<N>, const N: usize>(
    packet: &Packet,
    quote: &Quote<N>,
    side: Side,
    change: &Change<N>,
    ttl: u8,
    step: Ttl,
) {
    let quoted = quoted::<F, N>(packet);
    if !quoted.has(F::L4 + ICMP_QUOTED_LEN) {
        return;
    }
    let (outer_at, quoted_at, port_at) = match side {
        Side::Destination => (F::DST, F::SRC, F::L4 + L4_SRC_PORT),
        Side::Source => (F::SRC, F::DST, F::L4 + L4_DST_PORT),
    };
    let delta = rewrite_quoted::<F, N>(&quoted, quote, quoted_at, port_at, change);

    // The IPv4 header's own change: of the TTL, and of the address if that changes.
    let before: [u32; N] = packet.address(outer_at);
    let (delta, ip_delta) = if side == Side::Destination || before == quote.key.src {
        packet.set_words(outer_at, &change.addr);
        let delta = if F::COVERS_ADDRESSES {
            delta.address(&before, &change.addr)
        } else {
            delta
        };
        (delta, change.ip_delta)
    } else {
        (delta, Delta::NONE.ttl_decremented().0)
    };
    let check = packet.get(F::L4 + ICMP_CHECK);
    packet.set(F::L4 + ICMP_CHECK, delta.apply(check));
    match step {
        Ttl::Decrement => F::decrement_ttl(packet, ttl, ip_delta),
        Ttl::Keep => F::keep_ttl(packet, ip_delta),
    }
}

/// Writes `change` into the quoted headers; returns what that does to the error's checksum, which covers
/// them.
#[inline(always)]
fn rewrite_quoted<F: Icmp<N>, const N: usize>(
    quoted: &Packet,
    quote: &Quote<N>,
    addr_at: usize,
    port_at: usize,
    change: &Change<N>,
) -> Delta {
    let header_check = F::header_check(quoted);
    quoted.set_words(addr_at, &change.addr);
    quoted.set(port_at, change.port);
    F::keep_ttl(quoted, change.ip_delta);
    // Address and port have changed in the message as they have in the segment.
    let delta = Delta(change.l4_delta).word(header_check, F::header_check(quoted));

    let udp = quote.key.proto == u32::from(wire::UDP);
    let at = if udp {
        wire::UDP_CHECK
    } else {
        wire::TCP_CHECK
    };
    // A UDP checksum is always there; a TCP one is not within the first 8 bytes.
    if quote.len < at as u32 + 2 || !quoted.has(F::L4 + at + 2) {
        return delta;
    }
    let before = quoted.get(F::L4 + at);
    let segment = Delta(change.l4_delta);
    let after = if udp {
        segment.apply_udp(before)
    } else {
        segment.apply(before)
    };
    quoted.set(F::L4 + at, after);
    delta.word(before, after)
}
