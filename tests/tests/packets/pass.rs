//! What is not for a VIP, or not yet balanced, passes up the stack untouched.

use std::net::{IpAddr, SocketAddr};

use etherparse::Ipv4Header;
use lb_tests::fixture::{
    ALL, Fixture, Kind, V4, V6,
    frame::{ACK, ETHERNET, FIN, RST, SYN, patched},
    no_flow, one_open,
    scene::ONE,
};

pub const FIXTURES: &[Fixture] = &[
    Fixture {
        name: "other_address",
        says: "a packet to an address that is no VIP",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            [SYN, ACK, FIN, RST]
                .map(|flags| s.send(s.request(flags).to(s.stranger())).passes())
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "other_port",
        says: "a packet to another port of a VIP",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut to = s.vip();
            to.set_port(81);
            vec![s.send(s.request(SYN).to(to)).passes()]
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "other_protocol",
        says: "the other protocol on a VIP's port, also within a flow's tuple",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut other = s.request(SYN);
            other.kind = other_protocol(s.kind);
            let mut steps = s.establish(0);
            steps.push(s.send(other).passes());
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "any_ttl",
        says: "TTL 0 and 1 of what is for no VIP are the host's to judge",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            [0, 1]
                .map(|ttl| s.send(s.request(SYN).to(s.stranger()).ttl(ttl)).passes())
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "malformed_for_others",
        says: "malformed headers of what is for no VIP are the host's to judge",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let l4 = s.kind.l4();
            let at = if s.kind.is_tcp() { l4 + 12 } else { l4 + 4 };
            let sent = s.send(s.request(SYN).to(s.stranger()));
            vec![sent.as_bytes(|b| patched(&b, at, &[0, 0])).passes()]
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "not_ip",
        says: "ARP, LLDP and what has no known EtherType",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            [[0x08, 0x06], [0x88, 0xcc], [0x00, 0x2e], [0xff, 0xff]]
                .map(|ether_type: [u8; 2]| {
                    s.send(s.request(SYN))
                        .as_bytes(|b| patched(&b, 12, &ether_type))
                        .passes()
                })
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "vlan",
        says: "VLAN tags, one and two",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            [
                &[0x81, 0x00, 0, 5][..],
                &[0x88, 0xa8, 0, 9, 0x81, 0x00, 0, 5],
            ]
            .map(|tags| {
                s.send(s.request(SYN))
                    .as_bytes(|b| [&b[..12], tags, &b[12..]].concat())
                    .passes()
            })
            .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "other_version",
        says: "an IP version that contradicts the EtherType",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            [0x05, 0x15, 0x55, 0x75, 0xf5]
                .map(|first| {
                    s.send(s.request(SYN))
                        .as_bytes(|b| patched(&b, ETHERNET, &[first]))
                        .passes()
                })
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "ipv4_options",
        says: "IPv4 options, and header lengths that are none",
        kinds: V4,
        setup: ONE,
        steps: |s| {
            let mut steps = vec![
                // A router alert, with the total length and IHL that belong to it.
                s.send(s.request(SYN))
                    .as_bytes(|b| {
                        let total = (b.len() - ETHERNET + 4) as u16;
                        let mut b = patched(&b, ETHERNET, &[0x46]);
                        b[16..18].copy_from_slice(&total.to_be_bytes());
                        [&b[..34], &[148, 4, 0, 0], &b[34..]].concat()
                    })
                    .passes(),
            ];
            for ihl in (0..16).filter(|&ihl| ihl != 5) {
                steps.push(
                    s.send(s.request(SYN))
                        .as_bytes(|b| patched(&b, ETHERNET, &[0x40 | ihl]))
                        .passes(),
                );
            }
            steps
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "ipv4_fragments",
        says: "IPv4 fragments: the first, one in the middle, the last",
        kinds: V4,
        setup: ONE,
        steps: |s| {
            [[0x20, 0x00], [0x20, 0x10], [0x00, 0x10], [0x1f, 0xff]]
                .map(|word: [u8; 2]| {
                    s.send(s.request(SYN))
                        .as_bytes(|b| patched(&b, ETHERNET + 6, &word))
                        .passes()
                })
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "reserved_flag",
        says: "a packet that may be fragmented, or has the reserved flag, is no fragment",
        kinds: V4,
        setup: ONE,
        steps: |s| {
            [[0x00, 0x00], [0x80, 0x00]]
                .map(|word: [u8; 2]| {
                    let change = |b: Vec<u8>| fresh_ip_checksum(patched(&b, ETHERNET + 6, &word));
                    s.send(s.request(SYN))
                        .as_bytes(change)
                        .to_backend(0)
                        .with_output(change)
                })
                .into()
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "other_protocols",
        says: "other protocols, and what their numbers make of a TCP or UDP header",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let at = if s.kind.is_v4() {
                ETHERNET + 9
            } else {
                ETHERNET + 6
            };
            [1, 2, 4, 41, 47, 58, 132, 255]
                .map(|protocol| {
                    s.send(s.request(SYN))
                        .as_bytes(|b| patched(&b, at, &[protocol]))
                        .passes()
                })
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "ipv6_extensions",
        says: "IPv6 extension headers: hop-by-hop, routing, fragment, destination options, none",
        kinds: V6,
        setup: ONE,
        steps: |s| {
            [0, 43, 44, 60, 59]
                .map(|header| {
                    let protocol = s.kind.protocol();
                    s.send(s.request(SYN))
                        .as_bytes(|b| {
                            let mut b = patched(&b, ETHERNET + 6, &[header]);
                            let length = (b.len() - 54 + 8) as u16;
                            b[18..20].copy_from_slice(&length.to_be_bytes());
                            let extension = [protocol, 0, 1, 4, 0, 0, 0, 0];
                            [&b[..54], &extension, &b[54..]].concat()
                        })
                        .passes()
                })
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "mapped_address",
        says: "an IPv4-mapped address in an IPv6 packet is not the IPv4 VIP",
        kinds: V4,
        setup: ONE,
        steps: |s| {
            let mut frame = s.request(SYN);
            frame.kind = other_family(s.kind);
            frame.source = "[2001:db8:1::77]:40000".parse().expect("an address");
            frame.destination = mapped(s.vip());
            vec![s.send(frame).passes()]
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "backend_without_service",
        says: "a packet to a backend's own address",
        kinds: ALL,
        setup: ONE,
        steps: |s| vec![s.send(s.request(SYN).to(s.backend(0))).passes()],
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "short_frames",
        says: "frames cut short anywhere before the ports, in a flow and without one",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let cut = |len: usize| {
                s.send(s.request(SYN))
                    .as_bytes(|b| b[..len].to_vec())
                    .passes()
            };
            let short = || (ETHERNET..s.kind.l4() + 8).map(cut);
            let mut steps: Vec<_> = short().collect();
            steps.extend(s.establish(0));
            steps.extend(short());
            steps
        },
        flows: 1,
        loads: one_open,
    },
];

fn other_protocol(kind: Kind) -> Kind {
    match kind {
        Kind::Tcp4 => Kind::Udp4,
        Kind::Tcp6 => Kind::Udp6,
        Kind::Udp4 => Kind::Tcp4,
        Kind::Udp6 => Kind::Tcp6,
    }
}

fn other_family(kind: Kind) -> Kind {
    match kind {
        Kind::Tcp4 => Kind::Tcp6,
        Kind::Tcp6 => Kind::Tcp4,
        Kind::Udp4 => Kind::Udp6,
        Kind::Udp6 => Kind::Udp4,
    }
}

/// An IPv4 address in its IPv4-mapped form.
fn mapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(v4) => SocketAddr::new(v4.to_ipv6_mapped().into(), addr.port()),
        IpAddr::V6(_) => addr,
    }
}

/// Computes the checksum of an IPv4 header anew.
fn fresh_ip_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let (header, _) = Ipv4Header::from_slice(&bytes[ETHERNET..]).expect("an IPv4 header");
    let checksum = header.calc_header_checksum().to_be_bytes();
    bytes[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&checksum);
    bytes
}
