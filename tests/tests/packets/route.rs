//! The way out: next hops, the kernel's FIB, and the client's last hop.

use lb_common::verdict::Counter::{AskedFib, NoNeighbour, NoRoute};
use lb_tests::fixture::{
    ALL, Fixture, Place, Port, Setup, Side, event,
    frame::{ACK, SYN},
    one_open,
    scene::ONE,
};
use lb_user::dataplane::NextHop;

/// One backend behind the other interface.
const FAR: Setup = Setup {
    backends: &[Place::Far],
    ..ONE
};

/// A MAC that nobody has.
const NEW_MAC: [u8; 6] = [2, 0, 0, 9, 9, 9];

pub const FIXTURES: &[Fixture] = &[
    Fixture {
        name: "next_hop_changes",
        says: "a changed next hop counts from the next packet on",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let mut steps = s.establish(0);
            steps.extend([
                event(|rig| {
                    let hop = NextHop {
                        destination: NEW_MAC,
                        ..rig.next_hop(0)
                    };
                    rig.set_next_hop(0, Some(hop))
                }),
                s.send(s.request(ACK))
                    .to_backend(0)
                    .with_macs(Port::Near.mac(), NEW_MAC),
            ]);
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "by_fib",
        says: "without a next hop from the agent the kernel's FIB says the way",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            vec![
                event(|rig| rig.set_next_hop(0, None)),
                s.send(s.request(SYN)).to_backend(0).counting(AskedFib),
                s.send(s.reply(0, SYN | ACK)).to_client(),
                s.send(s.request(ACK)).to_backend(0).counting(AskedFib),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "by_fib_elsewhere",
        says: "likewise out of another interface",
        kinds: ALL,
        setup: FAR,
        steps: |s| {
            vec![
                event(|rig| rig.set_next_hop(0, None)),
                s.send(s.request(SYN)).to_backend(0).counting(AskedFib),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "by_fib_to_unknown_interface",
        says: "to an interface that the agent has not allowed yet the stack forwards",
        kinds: ALL,
        setup: FAR,
        steps: |s| {
            vec![
                event(|rig| {
                    rig.set_next_hop(0, None)?;
                    rig.forbid_redirect(Port::Far)
                }),
                s.send(s.request(SYN)).to_stack_for(0).counting(AskedFib),
                event(|rig| rig.allow_redirect(Port::Far)),
                s.send(s.request(SYN)).to_backend(0).counting(AskedFib),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "interface_gone",
        says: "a frame for an interface that is gone is dropped, and counted",
        kinds: ALL,
        setup: FAR,
        steps: |s| {
            let mut steps = s.establish(0);
            let rewritten = s.send(s.request(ACK)).to_backend(0).dropped(NoRoute);
            steps.extend([
                event(|rig| rig.forbid_redirect(Port::Far)),
                rewritten,
                event(|rig| rig.allow_redirect(Port::Far)),
            ]);
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "no_neighbour",
        says: "a backend whose MAC is not known: the stack gets the packet, finds it out, forwards",
        kinds: ALL,
        setup: Setup {
            backends: &[Place::Silent],
            ..ONE
        },
        steps: |s| {
            [SYN, SYN]
                .map(|flags| {
                    s.send(s.request(flags))
                        .to_stack_for(0)
                        .counting(AskedFib)
                        .counting(NoNeighbour)
                })
                .into()
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "unreachable",
        says: "a backend to which there is no usable route",
        kinds: ALL,
        setup: Setup {
            backends: &[Place::Unreachable],
            ..ONE
        },
        steps: |s| {
            vec![
                s.send(s.request(SYN))
                    .drops(NoRoute)
                    .counting(AskedFib)
                    .charged(0, Side::In),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "clients_hop_changes",
        says: "replies follow the client to another router, within a tick",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let moved = |flags| s.request(flags).macs(s.other_hop(), Port::Near.mac());
            let mut steps = s.establish(0);
            steps.extend([
                event(|rig| rig.await_tick()),
                s.send(moved(ACK)).to_backend(0),
                s.send(s.reply(0, ACK))
                    .to_client()
                    .with_macs(Port::Near.mac(), s.other_hop()),
            ]);
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "clients_interface_changes",
        says: "replies follow the client to another interface, within a tick",
        kinds: ALL,
        setup: ONE,
        steps: |s| {
            let moved = s.request(ACK).macs(s.other_hop(), Port::Far.mac());
            let mut steps = s.establish(0);
            steps.extend([
                event(|rig| rig.await_tick()),
                s.send(moved).by(Port::Far).to_backend(0),
                s.send(s.reply(0, ACK))
                    .to_client()
                    .redirected()
                    .with_macs(Port::Far.mac(), s.other_hop()),
            ]);
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "client_behind_other_interface",
        says: "a client that comes in elsewhere gets its replies there",
        kinds: ALL,
        setup: FAR,
        steps: |s| {
            let macs = (Port::Far.mac(), s.other_hop());
            let request = |flags| s.request(flags).macs(macs.1, macs.0);
            vec![
                s.send(request(SYN)).by(Port::Far).to_backend(0),
                s.send(s.reply(0, SYN | ACK))
                    .to_client()
                    .sent_back()
                    .with_macs(macs.0, macs.1),
                s.send(request(ACK)).by(Port::Far).to_backend(0),
            ]
        },
        flows: 1,
        loads: one_open,
    },
];
