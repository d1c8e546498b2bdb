//! Offsets and constants of the headers that the data plane reads.
//!
//! Structures come from `network-types`; here are only the offsets taken from them and the few
//! constants it does not have. Loads and stores themselves are in the packet program, which is the
//! only place that holds a pointer into a packet.

use core::mem::offset_of;

use network_types::{
    eth::{EthHdr, EtherType},
    ip::{Ipv4Hdr, Ipv6Hdr},
    tcp::TcpHdr,
    udp::UdpHdr,
};

/// Length of an Ethernet header, without tags.
pub const ETH_LEN: usize = EthHdr::LEN;
/// Offset of the EtherType.
pub const ETH_TYPE: usize = offset_of!(EthHdr, ether_type);
/// EtherType of IPv4, as the word lies in the packet.
pub const ETH_P_IP: u16 = EtherType::Ipv4 as u16;
/// EtherType of IPv6, as the word lies in the packet.
pub const ETH_P_IPV6: u16 = EtherType::Ipv6 as u16;

/// Length of an IPv4 header without options.
pub const IPV4_LEN: usize = Ipv4Hdr::LEN;
/// Version 4 with a header of five 32-bit words: the first byte of an IPv4 header without options.
pub const IPV4_VERSION_IHL: u8 = 0x45;
/// Offset of the type of service: DSCP and ECN.
pub const IPV4_TOS: usize = offset_of!(Ipv4Hdr, tos);
/// Offset of the identification.
pub const IPV4_ID: usize = offset_of!(Ipv4Hdr, id);
/// Offset of the word with the flags and the fragment offset.
pub const IPV4_FRAGMENT: usize = offset_of!(Ipv4Hdr, frags);
/// "More fragments" and the fragment offset, as the word lies in the packet: non-zero in every fragment.
pub const IPV4_FRAGMENT_MASK: u16 = 0x3fff_u16.to_be();
/// The fragment offset alone: zero where the packet's first bytes are.
pub const IPV4_OFFSET_MASK: u16 = 0x1fff_u16.to_be();
/// "Don't fragment", as the word lies in the packet.
pub const IPV4_DONT_FRAGMENT: u16 = 0x4000_u16.to_be();
/// Offset of the TTL.
pub const IPV4_TTL: usize = offset_of!(Ipv4Hdr, ttl);
/// Offset of the protocol.
pub const IPV4_PROTO: usize = offset_of!(Ipv4Hdr, proto);
/// Offset of the header checksum.
pub const IPV4_CHECK: usize = offset_of!(Ipv4Hdr, check);
/// Offset of the total length.
pub const IPV4_TOTAL_LEN: usize = offset_of!(Ipv4Hdr, tot_len);
/// Offset of the source address.
pub const IPV4_SRC: usize = offset_of!(Ipv4Hdr, src_addr);
/// Offset of the destination address.
pub const IPV4_DST: usize = offset_of!(Ipv4Hdr, dst_addr);

/// Length of an IPv6 header without extension headers.
pub const IPV6_LEN: usize = Ipv6Hdr::LEN;
/// Offset of the payload length.
pub const IPV6_PAYLOAD_LEN: usize = offset_of!(Ipv6Hdr, payload_len);
/// Offset of the next-header field.
pub const IPV6_NEXT: usize = offset_of!(Ipv6Hdr, next_hdr);
/// Offset of the hop limit.
pub const IPV6_HOP_LIMIT: usize = offset_of!(Ipv6Hdr, hop_limit);
/// Offset of the source address.
pub const IPV6_SRC: usize = offset_of!(Ipv6Hdr, src_addr);
/// Offset of the destination address.
pub const IPV6_DST: usize = offset_of!(Ipv6Hdr, dst_addr);

/// Protocol number of IPv4 in IP (RFC 2003).
pub const IPV4_IN_IP: u8 = 4;
/// Protocol number of IPv6 in IP (RFC 2473).
pub const IPV6_IN_IP: u8 = 41;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// Length of a TCP header without options.
pub const TCP_LEN: usize = TcpHdr::LEN;
/// Offset of the byte with the data offset, in its high half.
pub const TCP_DATA_OFFSET: usize = 12;
/// Offset of the byte with the flags.
pub const TCP_FLAGS: usize = 13;
/// Offset of the checksum.
pub const TCP_CHECK: usize = offset_of!(TcpHdr, check);
/// FIN, in [`TCP_FLAGS`].
pub const TCP_FIN: u8 = 0x01;
/// SYN, in [`TCP_FLAGS`].
pub const TCP_SYN: u8 = 0x02;
/// RST, in [`TCP_FLAGS`].
pub const TCP_RST: u8 = 0x04;
/// ACK, in [`TCP_FLAGS`].
pub const TCP_ACK: u8 = 0x10;

/// Offset of the length of header and data.
pub const UDP_LENGTH: usize = offset_of!(UdpHdr, len);
/// Length of a UDP header.
pub const UDP_LEN: usize = UdpHdr::LEN;
/// Offset of the checksum.
pub const UDP_CHECK: usize = offset_of!(UdpHdr, check);
/// Offset of the source port in TCP and UDP alike; the destination port follows.
pub const L4_SRC_PORT: usize = 0;
/// Offset of the destination port in TCP and UDP alike.
pub const L4_DST_PORT: usize = 2;

/// Length of the header that echo messages and errors have, in ICMP and ICMPv6 alike. Behind it an error
/// quotes the packet that it is about, from its IP header on.
pub const ICMP_LEN: usize = 8;
/// Offset of type and code, taken as one word.
pub const ICMP_TYPE_CODE: usize = 0;
/// Offset of the checksum. In ICMPv6 it covers the addresses too (RFC 4443 section 2.3).
pub const ICMP_CHECK: usize = 2;
/// How much of the quoted packet's TCP or UDP header there is at least (RFC 792).
pub const ICMP_QUOTED_LEN: usize = 8;
/// Echo request of ICMP.
pub const ICMP_ECHO: u8 = 8;
/// Echo reply of ICMP.
pub const ICMP_ECHO_REPLY: u8 = 0;
/// "Destination unreachable", with "fragmentation needed" among its codes.
pub const ICMP_UNREACHABLE: u8 = 3;
/// "Time exceeded".
pub const ICMP_TIME_EXCEEDED: u8 = 11;
/// "Parameter problem".
pub const ICMP_PARAMETER: u8 = 12;
/// Echo request of ICMPv6.
pub const ICMPV6_ECHO: u8 = 128;
/// Echo reply of ICMPv6.
pub const ICMPV6_ECHO_REPLY: u8 = 129;
/// First of ICMPv6's errors: destination unreachable, packet too big, time exceeded, parameter problem.
pub const ICMPV6_FIRST_ERROR: u8 = 1;
/// Last of them.
pub const ICMPV6_LAST_ERROR: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 791, RFC 8200, RFC 9293 and RFC 768, by hand.
    #[test]
    fn offsets_are_those_of_the_standards() {
        assert_eq!((ETH_LEN, ETH_TYPE), (14, 12));
        assert_eq!(
            (
                IPV4_LEN,
                IPV4_TOTAL_LEN,
                IPV4_FRAGMENT,
                IPV4_TTL,
                IPV4_PROTO,
                IPV4_CHECK
            ),
            (20, 2, 6, 8, 9, 10)
        );
        assert_eq!((IPV4_SRC, IPV4_DST), (12, 16));
        assert_eq!(
            (IPV6_LEN, IPV6_PAYLOAD_LEN, IPV6_NEXT, IPV6_HOP_LIMIT),
            (40, 4, 6, 7)
        );
        assert_eq!((IPV6_SRC, IPV6_DST), (8, 24));
        assert_eq!((TCP_LEN, TCP_CHECK, UDP_LEN, UDP_CHECK), (20, 16, 8, 6));
        assert_eq!(ETH_P_IP.to_ne_bytes(), [0x08, 0x00]);
        assert_eq!(ETH_P_IPV6.to_ne_bytes(), [0x86, 0xdd]);
    }
}
