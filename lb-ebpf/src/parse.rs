//! First stage: the 5-tuple of a packet, if it is one that could be for a VIP.

use aya_ebpf::programs::XdpContext;
use lb_common::{flow::FlowKey, wire};

use crate::{family::Family, packet::Packet};

/// What differs between TCP and UDP. The stages are compiled for each, so that no packet pays for the
/// question, and the verifier knows each one's header length everywhere.
pub trait Transport {
    /// Protocol number.
    const PROTO: u8;
    /// Length of the header without options.
    const HEADER: usize;
    /// Offset of the checksum in the header.
    const CHECK: usize;
    /// There are connections, with flags that open and close them.
    const CONNECTIONS: bool;

    /// Whether the header contradicts the `payload` bytes that the IP header announces. The frame
    /// holds the header.
    fn contradicts(packet: &Packet, l4: usize, payload: u32) -> bool;
}

pub struct Tcp;
pub struct Udp;

impl Transport for Tcp {
    const PROTO: u8 = wire::TCP;
    const HEADER: usize = wire::TCP_LEN;
    const CHECK: usize = wire::TCP_CHECK;
    const CONNECTIONS: bool = true;

    #[inline(always)]
    fn contradicts(packet: &Packet, l4: usize, payload: u32) -> bool {
        // The data offset, in 32-bit words: the high half of its byte.
        let words = packet.get::<u8>(l4 + wire::TCP_DATA_OFFSET) >> 4;
        words < 5 || u32::from(words) * 4 > payload
    }
}

impl Transport for Udp {
    const PROTO: u8 = wire::UDP;
    const HEADER: usize = wire::UDP_LEN;
    const CHECK: usize = wire::UDP_CHECK;
    const CONNECTIONS: bool = false;

    #[inline(always)]
    fn contradicts(packet: &Packet, l4: usize, payload: u32) -> bool {
        let length = u32::from(u16::from_be(packet.get(l4 + wire::UDP_LENGTH)));
        length < wire::UDP_LEN as u32 || length > payload
    }
}

/// A TCP segment or UDP datagram, whole as far as its header is concerned.
pub struct Segment<const N: usize> {
    pub key: FlowKey<N>,
    /// TCP flags; 0 for UDP.
    pub flags: u8,
    /// TTL or hop limit.
    pub ttl: u8,
}

/// The 5-tuple of a packet that is [`plain`](Family::plain) and of which the ports are there.
#[inline(always)]
pub fn key<F: Family<N>, T: Transport, const N: usize>(packet: &Packet) -> FlowKey<N> {
    FlowKey {
        src: packet.address(F::SRC),
        dst: packet.address(F::DST),
        ports: packet.get(F::L4),
        proto: u32::from(T::PROTO),
    }
}

/// The segment in a packet, or `None` if its header is cut short.
#[inline(always)]
pub fn segment<F: Family<N>, T: Transport, const N: usize>(packet: &Packet) -> Option<Segment<N>> {
    if !packet.has(F::L4 + T::HEADER) {
        return None;
    }
    Some(Segment {
        key: key::<F, T, N>(packet),
        flags: if T::CONNECTIONS {
            packet.get(F::L4 + wire::TCP_FLAGS)
        } else {
            0
        },
        ttl: F::ttl(packet),
    })
}

/// The packet of a segment again, in another function: the verifier tracks bounds by function, so
/// they are shown to it once more.
#[inline(always)]
pub fn again<F: Family<N>, T: Transport, const N: usize>(ctx: &XdpContext) -> Option<Packet> {
    let packet = Packet::new(ctx);
    packet.has(F::L4 + T::HEADER).then_some(packet)
}

/// Whether the lengths that the headers give contradict the frame or one another.
#[inline(always)]
pub fn contradicts<F: Family<N>, T: Transport, const N: usize>(packet: &Packet) -> bool {
    let payload = F::payload_len(packet);
    payload < T::HEADER as u32
        || F::L4 as u64 + u64::from(payload) > packet.len()
        || T::contradicts(packet, F::L4, payload)
}
