//! What is for a VIP and cannot be delivered is dropped, with its reason counted.

use lb_common::verdict::Counter::{Malformed, NoBackend, TtlExpired};
use lb_tests::fixture::{
    ALL, Fixture, Scene, TCP, UDP, V4, V6, event,
    frame::{ACK, ETHERNET, FIN, RST, SYN, patched},
    no_flow, one_open,
    scene::{ONE, TWO},
};

pub const FIXTURES: &[Fixture] = &[
    Fixture {
        name: "ttl",
        says: "a TTL or hop limit of 0 or 1 ends here, of 2 leaves as 1",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let request = |ttl| s.send(s.request(SYN).ttl(ttl));
            vec![
                request(0).drops(TtlExpired),
                request(1).drops(TtlExpired),
                request(2).to_backend(0),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "ttl_in_flow",
        says: "likewise in a flow, both ways",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            for ttl in [0, 1] {
                steps.push(s.send(s.request(ACK).ttl(ttl)).drops(TtlExpired));
                steps.push(s.send(s.reply(0, ACK).ttl(ttl)).drops(TtlExpired));
            }
            steps.push(s.send(s.request(ACK).ttl(2)).to_backend(0));
            steps.push(s.send(s.reply(0, ACK).ttl(2)).to_client());
            steps.push(s.send(s.request(ACK).ttl(255)).to_backend(0));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "expired_words_do_not_count",
        says: "a FIN or RST that expires here has not ended the flow",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            steps.push(s.send(s.request(RST).ttl(1)).drops(TtlExpired));
            steps.push(s.send(s.reply(0, RST).ttl(1)).drops(TtlExpired));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "no_backend",
        says: "a service without candidates drops new flows; known ones go on",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            let mut other = s.request(SYN);
            other.source.set_port(40_001);
            steps.extend([
                event(|rig| rig.drain_service()),
                s.send(other).drops(NoBackend),
                s.send(s.request(ACK)).to_backend(0),
                s.send(s.reply(0, ACK)).to_client(),
            ]);
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "last_words_without_backend",
        says: "the last words of an unknown flow have nowhere to go either",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            vec![
                event(|rig| rig.drain_service()),
                s.send(s.request(FIN | ACK)).drops(NoBackend),
                s.send(s.request(RST)).drops(NoBackend),
            ]
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "emptied_slot",
        says: "rows that name only emptied slots: no backend",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            vec![
                event(|rig| rig.clear(0)),
                s.send(s.request(SYN)).drops(NoBackend),
            ]
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "stand_in",
        says: "the rest of the row stands in for an emptied slot",
        kinds: ALL,
        setup: TWO,
        steps: |s| {
            let first = s.first();
            vec![
                event(move |rig| rig.clear(first)),
                s.send(s.request(SYN)).to_backend(s.second()),
            ]
        },
        flows: 1,
        loads: |s| vec![(s.second(), 1, 0)],
    },
    Fixture {
        name: "cut_tcp_header",
        says: "a frame that ends in the TCP header; no header length says that it may",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            (s.kind.l4() + 8..s.kind.l4() + 20)
                .map(|len| cut(s, len).drops(Malformed))
                .collect()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "cut_tcp_header_in_flow",
        says: "a TCP header cut short is dropped in a flow as well; a backend's passes to the host",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            let len = s.kind.l4() + 19;
            steps.push(cut(s, len).drops(Malformed));
            let reply = s.send(s.reply(0, ACK)).as_bytes(|b| b[..len].to_vec());
            steps.push(reply.passes());
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "cut_data",
        says: "a frame that ends before the data that its IP header announces",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let whole = s.request(SYN).payload([1; 20]).bytes().len();
            (whole - 20..whole)
                .map(|len| {
                    s.send(s.request(SYN).payload([1; 20]))
                        .as_bytes(|b| b[..len].to_vec())
                        .drops(Malformed)
                })
                .collect()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "ipv4_total_length",
        says: "an IPv4 total length that has no room for the headers, or is longer than the frame",
        kinds: V4,
        setup: ONE,
        steps: |s| {
            let total = (s.request(SYN).bytes().len() - ETHERNET) as u16;
            [0, 1, 19, 20, 21, total - 1, total + 1, 1500, u16::MAX]
                .map(|length: u16| {
                    s.send(s.request(SYN))
                        .as_bytes(|b| patched(&b, ETHERNET + 2, &length.to_be_bytes()))
                        .drops(Malformed)
                })
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "ipv6_payload_length",
        says: "likewise of the IPv6 payload length; 0 would be a jumbogram",
        kinds: V6,
        setup: ONE,
        steps: |s| {
            let payload = (s.request(SYN).bytes().len() - ETHERNET - 40) as u16;
            [0, 1, payload - 1, payload + 1, 1500, u16::MAX]
                .map(|length: u16| {
                    s.send(s.request(SYN))
                        .as_bytes(|b| patched(&b, ETHERNET + 4, &length.to_be_bytes()))
                        .drops(Malformed)
                })
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "udp_length",
        says: "a UDP length shorter than its header or longer than the IP packet",
        kinds: UDP,
        setup: ONE,
        steps: |s| {
            [0, 1, 7, 19, 1500, u16::MAX]
                .map(|length: u16| {
                    s.send(s.request(0).payload([1; 10]))
                        .as_bytes(|b| patched(&b, s.kind.l4() + 4, &length.to_be_bytes()))
                        .drops(Malformed)
                })
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "tcp_data_offset",
        says: "a TCP data offset inside the fixed header or beyond the segment",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            // 10 bytes of data: up to two words more of header would be possible.
            [0, 1, 2, 3, 4, 8, 9, 15]
                .map(|words: u8| {
                    s.send(s.request(SYN).payload([1; 10]))
                        .as_bytes(|b| patched(&b, s.kind.l4() + 12, &[words << 4]))
                        .drops(Malformed)
                })
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "malformed_last_words",
        says: "the last words of an unknown flow must be well formed too",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            vec![
                s.send(s.request(RST))
                    .as_bytes(|b| patched(&b, s.kind.l4() + 12, &[0x40]))
                    .drops(Malformed),
            ]
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "malformed_in_flow",
        says: "lengths are judged when a flow is made; in a flow they are the backend's to judge",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let at = s.kind.l4() + if s.kind.is_tcp() { 12 } else { 4 };
            let mut steps = s.establish(0);
            // The wrong word is no part of the checksum's change: it stays as wrong as it is.
            let change = |b: Vec<u8>| patched(&b, at, &[0]);
            steps.push(
                s.send(s.request(ACK))
                    .as_bytes(change)
                    .to_backend(0)
                    .with_output(change),
            );
            steps
        },
        flows: 1,
        loads: one_open,
    },
];

fn cut(scene: &Scene, len: usize) -> lb_tests::fixture::step::Sent<'_> {
    scene
        .send(scene.request(SYN))
        .as_bytes(|b| b[..len].to_vec())
}
