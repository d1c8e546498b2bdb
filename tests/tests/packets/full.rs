//! No room for an entry: flows are placed on their first candidate, packet by packet.

use lb_common::{
    abi::draw,
    verdict::Counter::{
        NoEntry, NoNeighbour, PlacedInsertCap, PlacedTableFull, StatelessReply, TtlExpired,
    },
};
use lb_tests::fixture::{
    ALL, Fixture, Frame, Scene, Setup, Side, Step, TCP, event,
    frame::{ACK, FIN, RST, SYN},
    no_flow, one_open,
    run::PASS,
    scene::{ONE, TWO},
};

/// A table with room for one flow.
const FULL: Setup = Setup {
    flow_table_size: 2,
    ..ONE
};

/// Likewise, with two backends.
const FULL_TWO: Setup = Setup {
    flow_table_size: 2,
    ..TWO
};

/// One new flow a tick.
const CAPPED: Setup = Setup {
    max_new_flows: 1,
    one_tick: true,
    ..ONE
};

/// A packet of another flow of the client with the same candidates, and the reply to it.
fn other(scene: &Scene, flags: u8) -> Frame {
    let mut frame = scene.same_candidates(1).remove(0);
    frame.flags = flags;
    frame
}

fn other_reply(scene: &Scene, backend: usize, flags: u8) -> Frame {
    scene.reply(backend, flags).to(other(scene, 0).source)
}

/// The table has an established flow on the first candidate, and no room for another.
fn fill(scene: &Scene) -> Vec<Step> {
    scene.establish(scene.first())
}

pub const FIXTURES: &[Fixture] = &[
    Fixture {
        name: "table_full",
        says: "a full table: placed without an entry, the reply told by its source, both ways again",
        kinds: ALL,
        setup: FULL,
        steps: |s| {
            let mut steps = fill(s);
            for flags in [SYN, ACK] {
                let there = s.send(other(s, flags)).to_backend(0);
                let back = s.send(other_reply(s, 0, flags | ACK)).to_client();
                steps.push(there.counting(PlacedTableFull));
                steps.push(back.counting(StatelessReply));
            }
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "known_flow_in_full_table",
        says: "a full table evicts nothing: the flow in it goes on and ends as ever",
        kinds: TCP,
        setup: FULL,
        steps: |s| {
            let mut steps = fill(s);
            steps.extend([
                s.send(other(s, SYN))
                    .to_backend(0)
                    .counting(PlacedTableFull),
                s.send(s.request(ACK)).to_backend(0),
                s.send(s.reply(0, ACK)).to_client(),
                s.send(s.request(FIN | ACK)).to_backend(0),
                s.send(s.reply(0, FIN | ACK)).to_client(),
            ]);
            steps
        },
        flows: 1,
        loads: |_| vec![(0, 1, 1)],
    },
    Fixture {
        name: "room_for_half_a_flow",
        says: "room for one entry of the two: neither is made",
        kinds: ALL,
        setup: Setup {
            flow_table_size: 3,
            ..ONE
        },
        steps: |s| {
            let mut steps = fill(s);
            let sent = s.send(other(s, SYN));
            steps.push(sent.to_backend(0).counting(PlacedTableFull));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "first_candidate_when_full",
        says: "without an entry the first candidate counts, however busy it is",
        kinds: ALL,
        setup: FULL_TWO,
        steps: |s| {
            let mut steps = fill(s);
            let sent = s.send(other(s, SYN));
            steps.push(sent.to_backend(s.first()).counting(PlacedTableFull));
            steps
        },
        flows: 1,
        loads: |s| vec![(s.first(), 1, 0)],
    },
    Fixture {
        name: "random_draw_when_full",
        says: "also in a service with a random draw: the reply could not be told otherwise",
        kinds: ALL,
        setup: Setup {
            draw: draw::RANDOM,
            ..FULL_TWO
        },
        steps: |s| {
            let mut steps = vec![event(|rig| rig.fill_tables())];
            for _ in 0..8 {
                let sent = s.send(other(s, SYN)).to_backend(s.first());
                steps.push(sent.counting(PlacedTableFull));
            }
            steps.push(event(|rig| rig.empty_tables()));
            steps
        },
        flows: 0,
        loads: no_flow,
    },
    Fixture {
        name: "no_entry",
        says: "a backend of several VIPs takes no flow without an entry: nobody could tell its replies",
        kinds: ALL,
        setup: Setup {
            stateless: false,
            ..FULL
        },
        steps: |s| {
            let mut steps = fill(s);
            steps.push(s.send(other(s, SYN)).drops(NoEntry));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "stranger_while_full",
        says: "while flows are placed without an entry, what is nobody's reply still passes",
        kinds: ALL,
        setup: FULL_TWO,
        steps: |s| {
            let mut steps = fill(s);
            let (first, second) = (s.first(), s.second());
            let mut other_port = other_reply(s, first, ACK);
            other_port.source.set_port(8081);
            steps.extend([
                s.send(other(s, SYN))
                    .to_backend(first)
                    .counting(PlacedTableFull),
                // From no backend.
                s.send(other_reply(s, first, ACK).from(s.stranger()))
                    .passes(),
                s.send(other_port).passes(),
                // From a backend that would not have got this flow.
                s.send(other_reply(s, second, ACK)).passes(),
                // To this host.
                s.send(other_reply(s, first, ACK).to(s.host())).passes(),
                // Not forwarded any further, by the host either.
                s.send(other_reply(s, first, ACK).ttl(1)).passes(),
                s.send(other_reply(s, first, ACK))
                    .to_client()
                    .counting(StatelessReply),
            ]);
            steps
        },
        flows: 1,
        loads: |s| vec![(s.first(), 1, 0)],
    },
    Fixture {
        name: "reply_to_unknown_neighbour",
        says: "a reply without an entry to a client whose MAC is not known: as from the VIP, by the \
               stack",
        kinds: ALL,
        setup: FULL,
        steps: |s| {
            let mut steps = fill(s);
            let there = s.request(SYN).from(s.silent_client());
            let back = s.reply(0, SYN | ACK).to(s.silent_client());
            let expected = back.clone().from(s.vip());
            steps.extend([
                s.send(there).to_backend(0).counting(PlacedTableFull),
                s.send(back)
                    .becomes(PASS, expected, Some((0, Side::Out)))
                    .counting(StatelessReply)
                    .counting(NoNeighbour),
            ]);
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "ttl_when_full",
        says: "a TTL that expires here is dropped before anything else",
        kinds: ALL,
        setup: FULL,
        steps: |s| {
            let mut steps = fill(s);
            steps.push(s.send(other(s, SYN).ttl(1)).drops(TtlExpired));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "insert_cap",
        says: "over the cap of new flows: placed without an entry; known flows go on",
        kinds: ALL,
        setup: CAPPED,
        steps: |s| {
            let mut steps = s.establish(0);
            steps.extend([
                s.send(other(s, SYN))
                    .to_backend(0)
                    .counting(PlacedInsertCap),
                s.send(other_reply(s, 0, ACK))
                    .to_client()
                    .counting(StatelessReply),
                s.send(other(s, ACK))
                    .to_backend(0)
                    .counting(PlacedInsertCap),
                s.send(s.request(ACK)).to_backend(0),
                s.send(s.reply(0, ACK)).to_client(),
            ]);
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "insert_cap_not_stateless",
        says: "over the cap a backend of several VIPs gets no new flow",
        kinds: ALL,
        setup: Setup {
            stateless: false,
            ..CAPPED
        },
        steps: |s| {
            let mut steps = s.establish(0);
            steps.push(s.send(other(s, SYN)).drops(NoEntry));
            steps
        },
        flows: 1,
        loads: one_open,
    },
    Fixture {
        name: "insert_cap_is_for_a_tick",
        says: "in the next tick there is room for a flow again",
        kinds: ALL,
        setup: Setup {
            one_tick: false,
            ..CAPPED
        },
        steps: |s| {
            vec![
                event(|rig| rig.await_tick()),
                s.send(s.request(SYN)).to_backend(0),
                event(|rig| rig.await_tick()),
                s.send(other(s, SYN)).to_backend(0),
            ]
        },
        flows: 2,
        loads: |_| vec![(0, 2, 0)],
    },
    Fixture {
        name: "last_words_over_cap",
        says: "last words of unknown flows make no entry and use up no allowance",
        kinds: TCP,
        setup: CAPPED,
        steps: |s| {
            vec![
                s.send(other(s, RST)).to_backend(0),
                s.send(other(s, FIN | ACK)).to_backend(0),
                s.send(s.request(SYN)).to_backend(0),
            ]
        },
        flows: 1,
        loads: one_open,
    },
];
