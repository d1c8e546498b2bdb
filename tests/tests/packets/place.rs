//! New flows: where they go, and what is written into their packets.

use lb_common::abi::{draw, view};
use lb_tests::fixture::{
    ALL, Fixture, Frame, Kind, Place, Scene, Setup, Step, TCP, UDP, event,
    frame::{ACK, FIN, PSH, RST, SYN},
    no_flow, one_open,
    scene::{FOUR, ONE, TWO},
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
    Fixture {
        name: "first_candidate",
        says: "while loads are equal a flow goes to its first candidate",
        kinds: ALL,
        setup: FOUR,
        steps: |s| vec![s.send(s.request(SYN)).to_backend(s.first())],
        flows: 1,
        loads: |s| vec![(s.first(), 1, 0)],
    },
    Fixture {
        name: "same_backend",
        says: "all packets of a flow go to one backend, also when that is the busier by then",
        kinds: ALL,
        setup: TWO,
        steps: |s| {
            let mut steps = s.establish(s.first());
            for _ in 0..3 {
                steps.push(s.send(s.request(ACK)).to_backend(s.first()));
            }
            steps
        },
        flows: 1,
        loads: |s| vec![(s.first(), 1, 0)],
    },
    Fixture {
        name: "emptier_of_two",
        says: "a flow goes to the emptier of its two candidates",
        kinds: ALL,
        setup: TWO,
        steps: |s| {
            let [one, other] = like_the_client(s);
            vec![
                s.send(s.request(SYN)).to_backend(s.first()),
                s.send(one).to_backend(s.second()),
                s.send(other).to_backend(s.first()),
            ]
        },
        flows: 3,
        loads: |s| vec![(s.first(), 2, 0), (s.second(), 1, 0)],
    },
    Fixture {
        name: "emptier_as_published",
        says: "the published view compares what was published plus what this CPU has counted since",
        kinds: ALL,
        setup: Setup {
            view: view::PUBLISHED,
            ..TWO
        },
        steps: |s| {
            let (first, second) = (s.first(), s.second());
            let [one, other] = like_the_client(s);
            vec![
                event(move |rig| rig.publish(first, |_| 5)),
                s.send(s.request(SYN)).to_backend(second),
                event(move |rig| rig.publish(first, |_| 0)),
                event(move |rig| rig.publish(second, |_| 0)),
                s.send(one).to_backend(first),
                // The flow just placed counts once for every CPU.
                event(move |rig| rig.publish(second, |cpus| cpus - 1)),
                s.send(other).to_backend(second),
            ]
        },
        flows: 3,
        loads: |s| vec![(s.first(), 1, 0), (s.second(), 2, 0)],
    },
    Fixture {
        name: "one_choice",
        says: "with one choice the load does not matter",
        kinds: ALL,
        setup: Setup { choices: 1, ..TWO },
        steps: |s| {
            let [one, other] = like_the_client(s);
            [s.request(SYN), one, other]
                .map(|frame| s.send(frame).to_backend(s.first()))
                .into()
        },
        flows: 3,
        loads: |s| vec![(s.first(), 3, 0)],
    },
    Fixture {
        name: "three_choices",
        says: "with three choices the third candidate gets its turn, the fourth does not",
        kinds: ALL,
        setup: Setup { choices: 3, ..FOUR },
        steps: |s| in_turn(s, 3),
        flows: 4,
        loads: |s| {
            let row = s.candidates(&s.request(0));
            vec![(row[0], 2, 0), (row[1], 1, 0), (row[2], 1, 0)]
        },
    },
    Fixture {
        name: "four_choices",
        says: "with four choices all candidates of the row get their turn",
        kinds: ALL,
        setup: Setup { choices: 4, ..FOUR },
        steps: |s| in_turn(s, 4),
        flows: 5,
        loads: |s| {
            let row = s.candidates(&s.request(0));
            vec![
                (row[0], 2, 0),
                (row[1], 1, 0),
                (row[2], 1, 0),
                (row[3], 1, 0),
            ]
        },
    },
    Fixture {
        name: "more_choices_than_backends",
        says: "more choices than backends: those that there are",
        kinds: TCP,
        setup: Setup { choices: 4, ..TWO },
        steps: |s| in_turn(s, 2),
        flows: 3,
        loads: |s| vec![(s.first(), 2, 0), (s.second(), 1, 0)],
    },
    Fixture {
        name: "heavier_of_two",
        says: "of two idle candidates a heavier one is cheaper",
        kinds: ALL,
        setup: Setup {
            weights: &[1, 3],
            ..TWO
        },
        steps: |s| vec![s.send(s.request(SYN)).to_backend(1)],
        flows: 1,
        loads: |_| vec![(1, 1, 0)],
    },
    Fixture {
        name: "random_draw",
        says: "a random draw: with one backend there is nothing to draw, and packets stay with it",
        kinds: ALL,
        setup: Setup {
            draw: draw::RANDOM,
            ..ONE
        },
        steps: |s| s.establish(0),
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "syn_with_ack",
        says: "a SYN with ACK opens nothing: without an entry it goes where a mid-flow packet goes",
        kinds: TCP,
        setup: TWO,
        steps: |s| {
            let [one, _] = like_the_client(s);
            vec![
                s.send(one).to_backend(s.first()),
                s.send(s.request(SYN | ACK)).to_backend(s.first()),
            ]
        },
        flows: 2,
        loads: |s| vec![(s.first(), 2, 0)],
    },
    Fixture {
        name: "mid_flow",
        says: "a mid-flow packet without an entry goes to its first candidate, however busy, and \
               makes an entry",
        kinds: TCP,
        setup: TWO,
        steps: |s| {
            let [one, _] = like_the_client(s);
            vec![
                s.send(one).to_backend(s.first()),
                s.send(s.request(ACK)).to_backend(s.first()),
                s.send(s.reply(s.first(), ACK)).to_client(),
                s.send(s.request(ACK)).to_backend(s.first()),
            ]
        },
        flows: 2,
        loads: |s| vec![(s.first(), 2, 0)],
    },
    Fixture {
        name: "last_words",
        says: "a FIN or RST without an entry goes to the first candidate and makes no entry",
        kinds: TCP,
        setup: TWO,
        steps: |s| {
            [FIN | ACK, RST, RST | ACK]
                .map(|flags| s.send(s.request(flags)).to_backend(s.first()))
                .into()
        },
        flows: 0,
        loads: no_flow,
    },
];

/// First packets of two other flows that have the same candidates as the client's.
fn like_the_client(scene: &Scene) -> [Frame; 2] {
    let frames = scene.same_candidates(2);
    [frames[0].clone(), frames[1].clone()]
}

/// Flows with the same candidates take them in turn: the first `choices` of them, and the first again.
fn in_turn(scene: &Scene, choices: usize) -> Vec<Step> {
    let row = scene.candidates(&scene.request(SYN));
    let mut frames = vec![scene.request(SYN)];
    frames.extend(scene.same_candidates(choices));
    frames
        .into_iter()
        .enumerate()
        .map(|(i, frame)| scene.send(frame).to_backend(row[i % choices]))
        .collect()
}

/// Adds a mistake to the TCP or UDP checksum, in one's complement.
fn add_to_checksum(mut bytes: Vec<u8>, kind: Kind) -> Vec<u8> {
    let at = kind.l4_checksum();
    let sum = u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]])) + 0x0101;
    let folded = (sum & 0xffff) + (sum >> 16);
    bytes[at..at + 2].copy_from_slice(&(folded as u16).to_be_bytes());
    bytes
}
