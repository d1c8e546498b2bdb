//! What the agent does with flows and counts that the loaded program has made: expired flows are
//! collected, counts are held against the flow table, loads are published.

use std::{collections::HashSet, time::Duration};

use anyhow::{Result, ensure};
use lb_common::abi::view;
use lb_tests::{
    fixture::{
        Kind, Net, Port, Rig, Scene, Setup,
        frame::{ACK, FIN, Frame, RST, SYN},
        run::{TX, cpus, pin},
        scene::{FOUR, TWO},
    },
    harness::Test,
};
use lb_user::load::{Publisher, Slot, Sweeper, Swept, Timeouts};

pub const TESTS: &[Test] = &[
    ("as_many_flows_are_listed_as_asked_for", listed),
    ("expired_flows_are_collected::tcp4", || expired(Kind::Tcp4)),
    ("expired_flows_are_collected::tcp6", || expired(Kind::Tcp6)),
    ("expired_flows_are_collected::udp4", || expired(Kind::Udp4)),
    ("closed_flows_are_not_counted_twice", closed),
    ("answers_keep_a_flow_alive", answers_keep_alive),
    ("flows_of_a_backend_that_is_gone", backend_gone),
    ("drift_is_mended", drift),
    ("published_loads_are_compared", published),
    ("a_new_owner_inherits_no_publication", new_owner),
];

/// One tick of the program's clock at least: the shortest that a flow can be idle.
const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(3600);

/// Nothing expires but what a test shortens.
const PATIENT: Timeouts = Timeouts {
    embryonic: LONG,
    established: LONG,
    half_closed: LONG,
    closing: LONG,
    udp: LONG,
};

const FLOWS: u16 = 100;

fn with_rig(
    kind: Kind,
    setup: Setup,
    test: impl FnOnce(&mut Rig<'_>) -> Result<()> + Send,
) -> Result<()> {
    let net = Net::shared()?;
    let net: &Net = &net;
    net.netns.run(|| {
        // In the published view a CPU sees its own flows at once, and others' only once published.
        pin(cpus()?[0])?;
        let mut rig = Rig::new(net, Scene { kind, setup })?;
        test(&mut rig)?;
        rig.finish()
    })
}

fn flow(rig: &Rig<'_>, number: u16, flags: u8) -> Frame {
    let mut frame = rig.scene.request(flags);
    frame.source.set_port(1024 + number);
    frame
}

fn send(rig: &Rig<'_>, frame: &Frame) -> Result<()> {
    let outcome = rig.run(&frame.bytes(), Port::Near)?;
    ensure!(outcome.code == TX, "{outcome:?}");
    Ok(())
}

/// All slots, as the agent gives them.
fn slots(rig: &Rig<'_>) -> Vec<Slot> {
    rig.owners()
        .into_iter()
        .map(|(id, generation)| Slot {
            id,
            generation,
            published: rig.scene.setup.view == view::PUBLISHED,
        })
        .collect()
}

fn sweep(rig: &Rig<'_>, slots: &[Slot], timeouts: &Timeouts) -> Result<Swept> {
    let tables = rig.dataplane.flow_tables()?;
    Ok(Sweeper::new(tables, rig.dataplane.load_maps()?).sweep(slots, timeouts)?)
}

fn in_flight(rig: &Rig<'_>) -> Result<u64> {
    Ok(rig.loads()?.values().map(|load| load.in_flight).sum())
}

/// Two ticks, so that what came before is idle for more than one.
fn wait(rig: &Rig<'_>) -> Result<()> {
    rig.await_tick()?;
    rig.await_tick()
}

fn expired(kind: Kind) -> Result<()> {
    with_rig(kind, FOUR, |rig| {
        for number in 0..FLOWS {
            send(rig, &flow(rig, number, SYN))?;
        }
        let slots = slots(rig);
        let kept = sweep(rig, &slots, &PATIENT)?;
        let entries = u64::from(FLOWS) * 2;
        let (entries4, entries6) = if kind.is_v4() {
            (entries, 0)
        } else {
            (0, entries)
        };
        let expected = Swept {
            flows: u64::from(FLOWS),
            entries4,
            entries6,
            collected: 0,
            drift: 0,
        };
        ensure!(kept == expected, "{kept:?}, expected {expected:?}");
        ensure!(in_flight(rig)? == u64::from(FLOWS));

        wait(rig)?;
        let timeouts = Timeouts {
            embryonic: SHORT,
            udp: SHORT,
            ..PATIENT
        };
        let swept = sweep(rig, &slots, &timeouts)?;
        ensure!(
            swept.collected == u64::from(FLOWS) && swept.flows == 0,
            "{swept:?}"
        );
        ensure!(rig.dataplane.flow_tables()?.count()?.flows == 0);
        let again = sweep(rig, &slots, &timeouts)?;
        ensure!(again == Swept::default(), "entries are left: {again:?}");
        for load in rig.loads()?.values() {
            ensure!(load.in_flight == 0 && load.closed == 0, "{load:?}");
        }
        Ok(())
    })
}

/// Entries of replies are no flows of their own, wherever they stand in the table.
fn listed() -> Result<()> {
    with_rig(Kind::Tcp4, FOUR, |rig| {
        for number in 0..FLOWS {
            send(rig, &flow(rig, number, SYN))?;
        }
        let tables = rig.dataplane.flow_tables()?;
        for limit in 0..=usize::from(FLOWS) + 1 {
            let flows = tables.list(limit)?;
            let clients: HashSet<_> = flows.iter().map(|flow| flow.client).collect();
            let expected = limit.min(FLOWS.into());
            ensure!(
                flows.len() == expected && clients.len() == expected,
                "{} listed, {expected} expected",
                flows.len()
            );
        }
        Ok(())
    })
}

/// A flow that has been counted down at the NIC is not counted down again when its entry goes.
fn closed() -> Result<()> {
    with_rig(Kind::Tcp4, FOUR, |rig| {
        for number in 0..FLOWS {
            send(rig, &flow(rig, number, SYN))?;
            if number % 2 == 0 {
                send(rig, &flow(rig, number, RST))?;
            }
        }
        wait(rig)?;
        let timeouts = Timeouts {
            closing: SHORT,
            ..PATIENT
        };
        let half = u64::from(FLOWS / 2);
        let swept = sweep(rig, &slots(rig), &timeouts)?;
        ensure!(swept.collected == half && swept.drift == 0, "{swept:?}");
        ensure!(in_flight(rig)? == half);
        Ok(())
    })
}

/// A flow in which only the backend talks, as in a long download over UDP.
fn answers_keep_alive() -> Result<()> {
    with_rig(Kind::Udp4, FOUR, |rig| {
        let scene = rig.scene;
        send(rig, &scene.request(0))?;
        let flows = rig.dataplane.flow_tables()?.list(1)?;
        ensure!(flows.len() == 1, "{flows:?}");
        let backend = (0..4).find(|&i| Some(scene.backend(i)) == flows[0].backend);
        let Some(backend) = backend else {
            anyhow::bail!("no backend is {:?}", flows[0].backend);
        };
        wait(rig)?;
        send(rig, &scene.reply(backend, 0))?;
        let timeouts = Timeouts {
            udp: SHORT,
            ..PATIENT
        };
        let swept = sweep(rig, &slots(rig), &timeouts)?;
        ensure!(swept.collected == 0 && swept.flows == 1, "{swept:?}");
        wait(rig)?;
        let swept = sweep(rig, &slots(rig), &timeouts)?;
        ensure!(swept.collected == 1 && swept.flows == 0, "{swept:?}");
        Ok(())
    })
}

/// The flows of a backend that has left its slot go, at once and without being counted against
/// anybody; the others stay.
fn backend_gone() -> Result<()> {
    with_rig(Kind::Tcp4, TWO, |rig| {
        for number in 0..FLOWS {
            send(rig, &flow(rig, number, SYN))?;
        }
        let loads = rig.loads()?;
        let (gone, rest) = (loads[&0].in_flight, loads[&1].in_flight);
        ensure!(gone + rest == u64::from(FLOWS) && gone > 0 && rest > 0);
        rig.clear(0)?;
        let slots = &slots(rig)[1..];
        let swept = sweep(rig, slots, &PATIENT)?;
        ensure!(
            swept.collected == gone && swept.flows == rest && swept.drift == 0,
            "{swept:?}, {gone} and {rest} before"
        );
        ensure!(rig.loads()?[&1].in_flight == rest);
        Ok(())
    })
}

/// Counts that have gone astray, in both directions, are what the flow table says after a sweep.
fn drift() -> Result<()> {
    with_rig(Kind::Tcp4, FOUR, |rig| {
        for number in 0..FLOWS {
            send(rig, &flow(rig, number, SYN))?;
        }
        let right = rig.loads()?;
        rig.correct(0, 7)?;
        rig.correct(1, -3)?;
        ensure!(rig.loads()?[&0].in_flight == right[&0].in_flight + 7);
        let swept = sweep(rig, &slots(rig), &PATIENT)?;
        ensure!(swept.drift == 10, "{swept:?}");
        for (slot, load) in rig.loads()? {
            ensure!(load == right[&slot], "{load:?}, was {:?}", right[&slot]);
        }
        let swept = sweep(rig, &slots(rig), &PATIENT)?;
        ensure!(swept.drift == 0, "{swept:?}");

        // And a flow that ends after that is counted down as ever.
        send(rig, &flow(rig, 0, FIN | RST | ACK))?;
        ensure!(in_flight(rig)? == u64::from(FLOWS) - 1);
        Ok(())
    })
}

/// What only the agent knows of decides once it is published, and not before.
fn published() -> Result<()> {
    const PUBLISHED: Setup = Setup {
        view: view::PUBLISHED,
        ..TWO
    };
    with_rig(Kind::Tcp4, PUBLISHED, |rig| {
        let place = |rig: &Rig<'_>, from: u16| -> Result<[u64; 2]> {
            let before = rig.loads()?;
            for number in from..from + FLOWS {
                send(rig, &flow(rig, number, SYN))?;
                // Ended at once: own counts say nothing.
                send(rig, &flow(rig, number, RST))?;
            }
            let after = rig.loads()?;
            Ok([0, 1].map(|slot| after[&slot].opened - before[&slot].opened))
        };
        rig.correct(0, 1000)?;
        let unaware = place(rig, 0)?;
        ensure!(unaware[0] > 20 && unaware[1] > 20, "{unaware:?}");

        let mut publisher = Publisher::new(rig.dataplane.load_maps()?);
        publisher.publish(&slots(rig))?;
        let aware = place(rig, FLOWS)?;
        ensure!(aware == [0, u64::from(FLOWS)], "{aware:?}");
        Ok(())
    })
}

/// A slot's new owner is not taken for as busy as the old one was published to be.
fn new_owner() -> Result<()> {
    const PUBLISHED: Setup = Setup {
        view: view::PUBLISHED,
        ..TWO
    };
    with_rig(Kind::Tcp4, PUBLISHED, |rig| {
        rig.correct(0, 1000)?;
        Publisher::new(rig.dataplane.load_maps()?).publish(&slots(rig))?;
        send(rig, &flow(rig, 0, SYN))?;
        ensure!(rig.loads()?[&1].opened == 1);
        rig.replace(0)?;
        // One flow is in flight at the other backend, and none at the new owner.
        for number in 1..=FLOWS {
            send(rig, &flow(rig, number, SYN))?;
            send(rig, &flow(rig, number, RST))?;
        }
        let opened = rig.loads()?[&0].opened;
        ensure!(opened == u64::from(FLOWS), "{opened} of {FLOWS}");
        Ok(())
    })
}
