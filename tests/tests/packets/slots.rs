//! Backend slots that change their owner, and backends shared by two VIPs.

use lb_common::verdict::Counter::{Stale, TupleTaken};
use lb_tests::fixture::{
    ALL, Fixture, Setup, TCP, UDP, event,
    frame::{ACK, RST, SYN},
    no_flow, one_open,
    scene::{ONE, TWO},
};

/// Two VIPs with the same backend, in a slot for each.
const SHARED: Setup = Setup {
    second_vip: true,
    stateless: false,
    ..ONE
};

/// Two VIPs with the same two backends.
const SHARED_TWO: Setup = Setup {
    second_vip: true,
    stateless: false,
    ..TWO
};

pub const FIXTURES: &[Fixture] = &[
    Fixture {
        name: "stale",
        says: "a flow of a slot's former owner is placed afresh; the new owner inherits no count",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            steps.extend([
                event(|rig| rig.replace(0)),
                s.send(s.request(ACK)).to_backend(0).counting(Stale),
                s.send(s.request(ACK)).to_backend(0),
            ]);
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "stale_syn",
        says: "a SYN on a stale flow opens a flow like any other",
        kinds: TCP,
        setup: TWO,
        steps: |s| {
            let first = s.first();
            vec![
                s.send(s.request(SYN)).to_backend(first),
                event(move |rig| {
                    rig.replace(first)?;
                    rig.correct(first, 1)
                }),
                s.send(s.request(SYN))
                    .to_backend(s.second())
                    .counting(Stale),
                event(move |rig| rig.correct(first, 0)),
            ]
        },
        flows: 1,
        loads: |s| vec![(s.second(), 1, 0)],
    },
    Fixture {
        name: "stale_reset",
        says: "the last words of a stale flow go on, and nothing of it stays",
        kinds: TCP,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            steps.extend([
                event(|rig| rig.replace(0)),
                s.send(s.request(RST)).to_backend(0).counting(Stale),
            ]);
            steps
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "late_reply",
        says: "a late reply of a stale flow reaches the client and is charged to nobody",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            steps.extend([
                event(|rig| rig.replace(0)),
                s.send(s.reply(0, ACK)).to_client().uncharged(),
            ]);
            steps
        },
        flows: 1,
        loads: no_flow,
    },
    Fixture {
        name: "removed",
        says: "a flow of a removed backend goes to another one",
        kinds: ALL,
        setup: TWO,
        steps: |s| {
            let first = s.first();
            let mut steps = s.establish(first);
            steps.extend([
                event(move |rig| rig.clear(first)),
                s.send(s.request(ACK))
                    .to_backend(s.second())
                    .counting(Stale),
                s.send(s.reply(s.second(), ACK)).to_client(),
            ]);
            steps
        },
        flows: 1,
        loads: |s| vec![(s.first(), 1, 0), (s.second(), 1, 0)],
    },
    Fixture {
        name: "tuple_taken",
        says: "a backend cannot tell two flows of one client port through two VIPs apart: the \
               second is refused where there is no other backend",
        kinds: ALL,
        setup: SHARED,
        steps: |s| {
            let mut steps = s.establish(0);
            steps.extend([
                s.send(s.request(SYN).to(s.vip2())).drops(TupleTaken),
                // The first is as it was.
                s.send(s.request(ACK)).to_backend(0),
                s.send(s.reply(0, ACK)).to_client(),
            ]);
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "tuple_on_other_backend",
        says: "where there is another backend, it goes there",
        kinds: ALL,
        setup: SHARED_TWO,
        steps: |s| {
            let (first, second) = (s.first(), s.second());
            let mut steps = s.establish(first);
            steps.extend([
                // Twice as many on the other backend: by load it would be the first.
                event(move |rig| rig.correct(2 + second, 2)),
                s.send(s.request(SYN).to(s.vip2())).to_backend(second),
                s.send(s.reply(second, SYN | ACK)).to_client_as(s.vip2()),
                s.send(s.reply(first, ACK)).to_client(),
                event(move |rig| rig.correct(2 + second, 0)),
            ]);
            steps
        },
        flows: 2,
        loads: |s| vec![(s.first(), 1, 0), (2 + s.second(), 1, 0)],
    },
    Fixture {
        name: "tuple_of_closed_flow",
        says: "the tuple of a flow that has ended is free",
        kinds: TCP,
        setup: SHARED,
        steps: |s| {
            let mut steps = s.establish(0);
            steps.extend([
                s.send(s.request(RST)).to_backend(0),
                s.send(s.request(SYN).to(s.vip2())).to_backend(0),
                s.send(s.reply(0, SYN | ACK)).to_client_as(s.vip2()),
                // And taken by the second one now.
                s.send(s.request(SYN)).drops(TupleTaken),
                s.send(s.reply(0, ACK)).to_client_as(s.vip2()),
            ]);
            steps
        },
        flows: 1,
        loads: |_| vec![(0, 1, 1), (1, 1, 0)],
    },
    Fixture {
        name: "tuple_of_stale_flow",
        says: "the tuple of a flow whose backend is gone is free",
        kinds: ALL,
        setup: SHARED,
        steps: |s| {
            let mut steps = s.establish(0);
            steps.extend([
                event(|rig| rig.replace(0)),
                s.send(s.request(SYN).to(s.vip2())).to_backend(0),
                s.send(s.reply(0, SYN | ACK)).to_client_as(s.vip2()),
                s.send(s.request(SYN)).drops(TupleTaken).counting(Stale),
            ]);
            steps
        },
        flows: 1,
        loads: |_| vec![(1, 1, 0)],
    },
    Fixture {
        name: "two_ports",
        says: "another client port is another flow, also through the other VIP",
        kinds: UDP,
        setup: SHARED,
        steps: |s| {
            let mut other = s.request(0).to(s.vip2());
            other.source.set_port(40_001);
            let mut steps = s.establish(0);
            steps.push(s.send(other).to_backend(0));
            steps
        },
        flows: 2,
        loads: |_| vec![(0, 1, 0), (1, 1, 0)],
    },
];
