//! Which backend a flow goes to.

use lb_common::abi::{draw, view};
use lb_tests::fixture::{
    ALL, Fixture, Frame, Scene, Setup, Step, TCP, event,
    frame::{ACK, FIN, RST, SYN},
    no_flow, one_open,
    scene::{FOUR, ONE, TWO},
};

/// Two backends of which the second has four times the weight.
const UNEQUAL: Setup = Setup {
    weights: &[1, 4],
    ..TWO
};

pub const FIXTURES: &[Fixture] = &[
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
        name: "idle_of_unequal_weight",
        says: "of two idle candidates neither is cheaper, whatever they weigh: the draw decides",
        kinds: ALL,
        setup: UNEQUAL,
        steps: |s| vec![s.send(s.request(SYN)).to_backend(s.first())],
        flows: 1,
        loads: |s| vec![(s.first(), 1, 0)],
    },
    Fixture {
        name: "load_by_weight",
        says: "loads are compared by weight: (in-flight + 1) / weight",
        kinds: ALL,
        setup: UNEQUAL,
        steps: |s| {
            let [one, _] = like_the_client(s);
            vec![
                event(|rig| rig.correct(1, 2)),
                // 3/4 is less than 1/1.
                s.send(s.request(SYN)).to_backend(1),
                event(|rig| rig.correct(1, 3)),
                // 5/4 is more.
                s.send(one).to_backend(0),
                event(|rig| rig.correct(1, 0)),
            ]
        },
        flows: 2,
        loads: |_| vec![(0, 1, 0), (1, 1, 0)],
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
