//! The life of a flow: what opens it, what ends it, and that it counts once.

use lb_tests::fixture::{
    ALL, Fixture, Scene, Step, TCP, UDP, event,
    frame::{ACK, FIN, PSH, RST, SYN},
    no_flow, one_closed, one_open,
    scene::{ONE, TWO},
};
use lb_user::dataplane::FlowState;

/// A packet from the client to the backend, and one from the backend to the client.
fn client(scene: &Scene, flags: u8) -> Step {
    scene.send(scene.request(flags)).to_backend(0)
}

fn backend(scene: &Scene, flags: u8) -> Step {
    scene.send(scene.reply(0, flags)).to_client()
}

/// The only flow is in this state.
fn state(expected: FlowState) -> Step {
    event(move |rig| rig.check_state(expected))
}

/// An established flow, and these steps.
fn then(scene: &Scene, steps: impl IntoIterator<Item = Step>) -> Vec<Step> {
    let mut all = scene.establish(0);
    all.extend(steps);
    all
}

pub const FIXTURES: &[Fixture] = &[
    Fixture {
        name: "handshake",
        says: "a TCP flow is established by the client's ACK of an answer",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            vec![
                client(s, SYN),
                state(FlowState::Embryonic),
                backend(s, SYN | ACK),
                state(FlowState::Embryonic),
                client(s, ACK),
                state(FlowState::Established),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "ack_without_answer",
        says: "an ACK that answers nothing does not establish a flow",
        kinds: TCP,
        setup: ONE,
        steps: |s| vec![client(s, SYN), client(s, ACK), state(FlowState::Embryonic)],
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "answer",
        says: "a UDP flow is established by an answer",
        kinds: UDP,
        setup: ONE,
        steps: |s| {
            vec![
                client(s, 0),
                client(s, 0),
                state(FlowState::Embryonic),
                backend(s, 0),
                state(FlowState::Established),
                client(s, 0),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "syn_again",
        says: "a retransmitted SYN stays where the first one went, and opens nothing",
        kinds: TCP,
        setup: TWO,
        steps: |s| {
            let to = s.first();
            vec![
                s.send(s.request(SYN)).to_backend(to),
                s.send(s.request(SYN)).to_backend(to),
                s.send(s.reply(to, SYN | ACK)).to_client(),
                s.send(s.request(SYN)).to_backend(to),
            ]
        },
        flows: 1,
        loads: |s| vec![(s.first(), 1, 0)],
    },
    Fixture {
        name: "syn_in_established",
        says: "a SYN within an established flow goes to its backend, to be refused there",
        kinds: TCP,
        setup: ONE,
        steps: |s| then(s, [client(s, SYN), state(FlowState::Established)]),
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "client_closes_first",
        says: "FIN of the client, then of the backend: closed once; the last ACK still arrives",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            then(
                s,
                [
                    client(s, FIN | ACK),
                    state(FlowState::HalfClosed),
                    backend(s, ACK | PSH),
                    backend(s, FIN | ACK),
                    state(FlowState::Closed),
                    client(s, ACK),
                ],
            )
        },
        flows: 1,
        loads: one_closed,
    },
    Fixture {
        name: "backend_closes_first",
        says: "FIN of the backend, then of the client: closed once; the last ACK still arrives",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            then(
                s,
                [
                    backend(s, FIN | ACK),
                    state(FlowState::HalfClosed),
                    client(s, ACK | PSH),
                    client(s, FIN | ACK),
                    state(FlowState::Closed),
                    backend(s, ACK),
                ],
            )
        },
        flows: 1,
        loads: one_closed,
    },
    Fixture {
        name: "fin_again",
        says: "a FIN of one side is none of the other's, however often it comes",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            then(
                s,
                [
                    client(s, FIN | ACK),
                    client(s, FIN | ACK),
                    state(FlowState::HalfClosed),
                ],
            )
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "backend_fin_again",
        says: "likewise of the backend",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            then(
                s,
                [
                    backend(s, FIN | ACK),
                    backend(s, FIN | ACK),
                    state(FlowState::HalfClosed),
                ],
            )
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "fins_again_after_close",
        says: "retransmitted FINs of a closed flow arrive and count nothing",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            then(
                s,
                [
                    client(s, FIN | ACK),
                    backend(s, FIN | ACK),
                    client(s, FIN | ACK),
                    backend(s, FIN | ACK),
                    client(s, ACK),
                ],
            )
        },
        flows: 1,
        loads: one_closed,
    },
    Fixture {
        name: "client_resets",
        says: "RST of the client closes, once, however often it comes",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            then(
                s,
                [
                    client(s, RST),
                    state(FlowState::Closed),
                    client(s, RST | ACK),
                ],
            )
        },
        flows: 1,
        loads: one_closed,
    },
    Fixture {
        name: "backend_resets",
        says: "RST of the backend closes, once, however often it comes",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            then(
                s,
                [
                    backend(s, RST),
                    state(FlowState::Closed),
                    backend(s, RST | ACK),
                ],
            )
        },
        flows: 1,
        loads: one_closed,
    },
    Fixture {
        name: "refused",
        says: "a SYN answered by RST: the flow is closed",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            vec![
                client(s, SYN),
                backend(s, RST | ACK),
                state(FlowState::Closed),
            ]
        },
        flows: 1,
        loads: one_closed,
    },
    Fixture {
        name: "both_reset",
        says: "RST of both sides closes once",
        kinds: TCP,
        setup: ONE,
        steps: |s| then(s, [client(s, RST), backend(s, RST)]),
        flows: 1,
        loads: one_closed,
    },
    Fixture {
        name: "fin_then_reset",
        says: "FIN of the client and RST of the backend close once",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            then(
                s,
                [
                    client(s, FIN | ACK),
                    backend(s, RST),
                    state(FlowState::Closed),
                    backend(s, FIN | ACK),
                    client(s, RST),
                ],
            )
        },
        flows: 1,
        loads: one_closed,
    },
    Fixture {
        name: "fin_and_reset_in_one",
        says: "FIN and RST in one segment are a reset",
        kinds: TCP,
        setup: ONE,
        steps: |s| then(s, [client(s, FIN | RST | ACK), state(FlowState::Closed)]),
        flows: 1,
        loads: one_closed,
    },
    Fixture {
        name: "syn_after_close",
        says: "a SYN on a closed flow is a new flow, placed by load afresh",
        kinds: TCP,
        setup: TWO,
        steps: |s| {
            let (first, second) = (s.first(), s.second());
            let mut steps = s.establish(first);
            steps.extend([
                s.send(s.request(FIN | ACK)).to_backend(first),
                s.send(s.reply(first, FIN | ACK)).to_client(),
                s.send(s.request(ACK)).to_backend(first),
                // Others have come to the first candidate meanwhile.
                event(move |rig| rig.correct(first, 3)),
                s.send(s.request(SYN)).to_backend(second),
                s.send(s.reply(second, SYN | ACK)).to_client(),
                event(move |rig| rig.correct(first, 0)),
            ]);
            steps
        },
        flows: 1,
        loads: |s| vec![(s.first(), 1, 1), (s.second(), 1, 0)],
    },
    Fixture {
        name: "syn_after_reset",
        says: "likewise on a flow that was reset",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            then(
                s,
                [client(s, RST), client(s, SYN), state(FlowState::Embryonic)],
            )
        },
        flows: 1,
        loads: |_| vec![(0, 2, 1)],
    },
    Fixture {
        name: "syn_after_fin",
        says: "a SYN after the client's FIN is a new flow: the client has given up the one before, \
               and does not wait for its backend",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            then(
                s,
                [
                    client(s, FIN | ACK),
                    client(s, SYN),
                    state(FlowState::Embryonic),
                ],
            )
        },
        flows: 1,
        loads: |_| vec![(0, 2, 1)],
    },
    Fixture {
        name: "data_after_close",
        says: "data on a closed flow goes to the backend that it was on",
        kinds: TCP,
        setup: ONE,
        steps: |s| then(s, [backend(s, RST), client(s, ACK | PSH)]),
        flows: 1,
        loads: one_closed,
    },
    Fixture {
        name: "many_datagrams",
        says: "a flow counts once, its packets and bytes each time",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let rounds = (0..20).flat_map(|_| [client(s, ACK), backend(s, ACK)]);
            then(s, rounds)
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "unknown_reply",
        says: "a backend's packet of no known flow passes to the host",
        kinds: ALL,
        setup: ONE,
        steps: |s| vec![s.send(s.reply(0, SYN | ACK)).passes()],
        flows: 0,
        loads: no_flow,
    },
];
