//! What is written into the packets of a flow, both ways.

use lb_tests::fixture::{
    ALL, Fixture, Kind, Place, Setup, TCP, UDP,
    frame::{ACK, PSH, SYN},
    one_open,
    scene::ONE,
};

/// A port that needs no rewriting.
const SAME_PORT: Setup = Setup {
    backend_port: 80,
    ..ONE
};

/// Timestamps, as Linux sends them with every segment.
const OPTIONS: &[u8] = &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0];

pub const FIXTURES: &[Fixture] = &[
    Fixture {
        name: "first_packet",
        says: "the first packet goes to the backend: addresses, port, checksums, TTL and MACs",
        kinds: ALL,
        setup: ONE,
        steps: |s| vec![s.send(s.request(SYN)).to_backend(0)],
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "there_and_back",
        says: "replies come as from the VIP, to the MAC that the client's first packet came from",
        kinds: ALL,
        setup: ONE,
        steps: |s| s.establish(0),
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "same_port",
        says: "a backend on the VIP's own port: the port stays",
        kinds: ALL,
        setup: SAME_PORT,
        steps: |s| s.establish(0),
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "other_interface",
        says: "a backend behind another interface: frames are redirected, both ways",
        kinds: ALL,
        setup: Setup {
            backends: &[Place::Far],
            ..ONE
        },
        steps: |s| s.establish(0),
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "payloads",
        says: "data of any length, odd and even, both ways, in an established flow",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            for len in [0, 1, 2, 3, 536, 1399, 1400] {
                let payload: Vec<u8> = (0..len).map(|i| (i * 7 + 1) as u8).collect();
                let there = s.request(ACK | PSH).payload(payload.clone());
                let back = s.reply(0, ACK | PSH).payload(payload);
                steps.push(s.send(there).to_backend(0));
                steps.push(s.send(back).to_client());
            }
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "payload_in_first_packet",
        says: "a first packet with data",
        kinds: ALL,
        setup: ONE,
        steps: |s| vec![s.send(s.request(SYN).payload(*b"hello")).to_backend(0)],
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "tcp_options",
        says: "TCP options go through as they are",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            vec![
                s.send(s.request(SYN).options(&[2, 4, 5, 0xb4]))
                    .to_backend(0),
                s.send(s.reply(0, SYN | ACK).options(OPTIONS)).to_client(),
                s.send(s.request(ACK).options(OPTIONS).payload([7; 33]))
                    .to_backend(0),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "ethernet_padding",
        says: "padding behind the IP packet stays, and takes no part in checksums",
        kinds: ALL,
        setup: ONE,
        steps: |s| vec![s.send(s.request(SYN)).padded(&[0xa5; 6]).to_backend(0)],
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "no_udp_checksum",
        says: "UDP without a checksum stays without, both ways",
        kinds: &[Kind::Udp4],
        setup: ONE,
        steps: |s| {
            let there = s.request(0).payload(*b"question").without_checksum();
            let back = s.reply(0, 0).payload(*b"answer").without_checksum();
            vec![s.send(there).to_backend(0), s.send(back).to_client()]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "udp_checksum_of_zero",
        says: "a UDP checksum that comes out as 0 is sent as 0xffff",
        kinds: UDP,
        setup: ONE,
        steps: |s| {
            // Any two bytes of data sum up to 0xffff with the rest for one value of theirs.
            let zero = (0..=u16::MAX).find_map(|word| {
                let frame = s.request(0).payload(word.to_be_bytes());
                let out = frame.clone().to(s.backend(0)).bytes();
                let at = s.kind.l4_checksum();
                (out[at..at + 2] == [0xff, 0xff]).then_some(frame)
            });
            vec![
                s.send(zero.expect("one of all words does it"))
                    .to_backend(0),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "wrong_checksum",
        says: "a wrong checksum stays wrong by the same amount: it is the receiver's to find",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let sent = s
                .send(s.request(SYN))
                .as_bytes(|b| add_to_checksum(b, s.kind));
            let right = s.send(s.request(SYN)).to_backend(0);
            vec![
                right,
                sent.to_backend(0)
                    .with_output(|b| add_to_checksum(b, s.kind)),
            ]
        },
        flows: 1,
        loads: one_open,
    },
];

/// Adds a mistake to the TCP or UDP checksum, in one's complement.
fn add_to_checksum(mut bytes: Vec<u8>, kind: Kind) -> Vec<u8> {
    let at = kind.l4_checksum();
    let sum = u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]])) + 0x0101;
    let folded = (sum & 0xffff) + (sum >> 16);
    bytes[at..at + 2].copy_from_slice(&(folded as u16).to_be_bytes());
    bytes
}
