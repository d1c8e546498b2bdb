//! Backends that answer clients themselves: dsr, ipip and gue.

use lb_common::{
    abi::backend_flags::{DSR, GUE, TUNNEL},
    flow::state,
    verdict::Counter::{
        IcmpError, NoBackend, PlacedInsertCap, Stale, TooBig, TtlExpired, Unresolved,
    },
};
use lb_tests::fixture::{
    ALL, Fixture, Place, Port, Scene, Setup, Side, Step, TCP, event,
    frame::{ACK, FIN, PSH, RST, SYN},
    one_closed, one_open,
    run::TX,
    scene::{ONE, TWO},
};
use lb_user::dataplane::FlowState;

const ONE_DSR: Setup = Setup {
    manner: DSR,
    stateless: false,
    ..ONE
};
const ONE_IPIP: Setup = Setup {
    manner: TUNNEL,
    ..ONE_DSR
};
const ONE_GUE: Setup = Setup {
    manner: TUNNEL | GUE,
    ..ONE_DSR
};
const MANY_SOURCES: u32 = 16;

/// The first packets of a client, which establish a flow to the first backend.
fn life(s: &Scene) -> Vec<Step> {
    let mut steps = vec![
        s.send(s.request(SYN)).to_backend_as_is(0),
        s.send(s.request(ACK)).to_backend_as_is(0),
        s.send(s.request(ACK | PSH).payload("a question"))
            .to_backend_as_is(0),
    ];
    if s.kind.is_tcp() {
        steps.push(event(|rig| rig.check_state(FlowState::Established)));
    }
    steps
}

macro_rules! lives {
    ($($name:literal $says:literal $setup:expr;)*) => {
        [$(Fixture { name: $name, says: $says, kinds: ALL, setup: $setup, steps: life, flows: 1, loads: one_open },)*]
    };
}

/// In each mode and mix of families.
pub const LIVES: &[Fixture] = &lives! {
    "dsr" "only the Ethernet header and the TTL change" ONE_DSR;
    "dsr_other_interface" "likewise out of another interface" Setup { backends: &[Place::Far], ..ONE_DSR };
    "dsr_other_family" "the backend's own address only names its MAC" Setup { other_family: true, ..ONE_DSR };
    "ipip" "a packet goes in a packet of its own family" ONE_IPIP;
    "ipip_other_interface" "likewise out of another interface" Setup { backends: &[Place::Far], ..ONE_IPIP };
    "ipip_other_family" "a packet goes in a packet of the other family" Setup { other_family: true, ..ONE_IPIP };
    "ipip_sources" "the last bits of the outer source are the flow's" Setup { source_bits: MANY_SOURCES, ..ONE_IPIP };
    "ipip_sources_other_family" "likewise in the other family"
        Setup { source_bits: MANY_SOURCES, other_family: true, ..ONE_IPIP };
    "gue" "UDP is between outer and inner header, from a port of the flow's" ONE_GUE;
    "gue_other_family" "likewise in a packet of the other family" Setup { other_family: true, ..ONE_GUE };
    "gue_sources" "likewise with the last bits of the source" Setup { source_bits: MANY_SOURCES, ..ONE_GUE };
};

pub const FIXTURES: &[Fixture] = &[
    Fixture {
        name: "fin_ends",
        says: "the client's FIN ends the flow, and what follows still goes to the backend",
        kinds: TCP,
        setup: ONE_IPIP,
        steps: |s| {
            let mut steps = life(s);
            steps.extend([
                s.send(s.request(FIN | ACK)).to_backend_as_is(0),
                event(|rig| rig.check_state(FlowState::Closed)),
                s.send(s.request(ACK)).to_backend_as_is(0),
            ]);
            steps
        },
        flows: 1,
        loads: one_closed,
    },
    Fixture {
        name: "rst_ends",
        says: "the client's RST ends the flow",
        kinds: TCP,
        setup: ONE_DSR,
        steps: |s| {
            let mut steps = life(s);
            steps.push(s.send(s.request(RST)).to_backend_as_is(0));
            steps.push(event(|rig| rig.check_state(FlowState::Closed)));
            steps
        },
        flows: 1,
        loads: one_closed,
    },
    Fixture {
        name: "port_reused",
        says: "a SYN on a flow that has ended opens another, in its place",
        kinds: TCP,
        setup: ONE_IPIP,
        steps: |s| {
            let mut steps = life(s);
            steps.push(s.send(s.request(FIN | ACK)).to_backend_as_is(0));
            steps.push(s.send(s.request(SYN)).to_backend_as_is(0));
            steps
        },
        flows: 1,
        loads: |_| vec![(0, 2, 1)],
    },
    Fixture {
        name: "backend_replaced",
        says: "flows of a backend that is gone are placed afresh",
        kinds: ALL,
        setup: ONE_IPIP,
        steps: |s| {
            let mut steps = life(s);
            steps.push(event(|rig| rig.replace(0)));
            steps.push(s.send(s.request(ACK)).to_backend_as_is(0).counting(Stale));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "unresolved",
        says: "without a known next hop a packet is dropped: the stack would send it to the VIP",
        kinds: ALL,
        setup: ONE_DSR,
        steps: |s| {
            vec![
                event(|rig| rig.set_next_hop(0, None)),
                s.send(s.request(SYN))
                    .drops(Unresolved)
                    .charged(0, Side::In),
                event(|rig| rig.set_next_hop(0, Some(rig.next_hop(0)))),
                s.send(s.request(SYN)).to_backend_as_is(0),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "ttl_expired",
        says: "a packet of TTL 1 goes no further",
        kinds: ALL,
        setup: ONE_IPIP,
        steps: |s| {
            vec![
                s.send(s.request(SYN).ttl(1)).drops(TtlExpired),
                s.send(s.request(SYN)).to_backend_as_is(0),
                s.send(s.request(ACK).ttl(1)).drops(TtlExpired),
                s.send(s.request(ACK).ttl(2)).to_backend_as_is(0),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "too_big",
        says: "a packet that the outer header makes longer than the way takes is dropped",
        kinds: ALL,
        setup: ONE_IPIP,
        steps: |s| {
            let own = s.request(ACK).bytes().len() - 14;
            let room = 1500 - own - if s.kind.is_v4() { 20 } else { 40 };
            vec![
                s.send(s.request(ACK).payload(vec![7; room]))
                    .to_backend_as_is(0),
                s.send(s.request(ACK).payload(vec![7; room + 1]))
                    .drops(TooBig)
                    .charged(0, Side::In),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "padding",
        says: "padding of a short frame stays outside of all lengths",
        kinds: ALL,
        setup: ONE_IPIP,
        steps: |s| {
            vec![
                s.send(s.request(SYN))
                    .padded(&[0xee; 6])
                    .to_backend_as_is(0),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "over_the_cap",
        says: "over the cap of new entries a flow is placed by hash, on backends of several services too",
        kinds: ALL,
        setup: Setup {
            max_new_flows: 1,
            one_tick: true,
            ..ONE_GUE
        },
        steps: |s| {
            let mut first = s.request(SYN);
            first.source.set_port(40_001);
            vec![
                s.send(first).to_backend_as_is(0),
                s.send(s.request(SYN))
                    .to_backend_as_is(0)
                    .counting(PlacedInsertCap),
                s.send(s.request(ACK))
                    .to_backend_as_is(0)
                    .counting(PlacedInsertCap),
            ]
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "no_backend",
        says: "no new flow goes to a service without candidates; one that is known stays",
        kinds: ALL,
        setup: ONE_DSR,
        steps: |s| {
            let mut steps = life(s);
            let mut other = s.request(SYN);
            other.source.set_port(40_001);
            steps.extend([
                event(|rig| rig.drain_service()),
                s.send(other).drops(NoBackend),
                s.send(s.request(ACK)).to_backend_as_is(0),
            ]);
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "by_load",
        says: "flows are placed by load: the second goes where the first is not",
        kinds: ALL,
        setup: Setup {
            manner: DSR,
            stateless: false,
            ..TWO
        },
        steps: |s| {
            let second = s.same_candidates(1).remove(0);
            vec![
                s.send(s.request(SYN)).to_backend_as_is(s.first()),
                s.send(second).to_backend_as_is(s.second()),
            ]
        },
        flows: 2,
        loads: |_| vec![(0, 1, 0), (1, 1, 0)],
    },
    Fixture {
        name: "error_about_a_reply",
        says: "an error about a backend's packet to the client reaches the backend, as it is",
        kinds: ALL,
        setup: ONE_DSR,
        steps: |s| {
            let reply = s.reply(0, ACK).from(s.vip()).payload(vec![1; 100]);
            let mut steps = life(s);
            steps.extend(s.errors().into_iter().map(|error| {
                let message = s.error(error, s.elsewhere().ip(), &reply, 40);
                let out = message
                    .clone()
                    .ttl(message.ttl - 1)
                    .macs(s.port(0).mac(), s.backend_mac(0));
                s.message(&message, Port::Near)
                    .becoming(TX, out.bytes())
                    .counting(IcmpError)
            }));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "states",
        says: "an entry says that its flow has no other",
        kinds: ALL,
        setup: ONE_DSR,
        steps: |s| {
            let mut steps = life(s);
            steps.push(event(|rig| rig.check_bits(state::ONE_WAY)));
            steps
        },
        flows: 1,
        loads: one_open,
    },
];
