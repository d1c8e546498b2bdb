//! What a packet costs: of a known flow, and of a new one.

use anyhow::{Context as _, Result, bail, ensure};
use aya::{Ebpf, programs::Xdp};
use lb_common::{abi::view, verdict::Counter};
use lb_user::dataplane::object::TESTBED;
use serde::Serialize;

use super::chain::{Chain, RUNS, time};
use crate::fixture::{
    Kind, Net, Port,
    frame::{ACK, SYN},
    rig,
    run::{PASS, TX, cpus, pin},
};

/// The cost of one path.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// What is measured.
    pub path: String,
    /// The least of all calls, in nanoseconds.
    pub min_ns: u64,
    /// Their median, in nanoseconds.
    pub median_ns: u64,
    /// The mean of their middle half, in nanoseconds: finer than the kernel's whole numbers.
    pub middle_ns: f64,
    /// `middle_ns` without that of an empty program, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_empty_ns: Option<f64>,
    /// `middle_ns` relative to that of the path that all are compared with.
    pub ratio: f64,
}

/// The way to measure one path once.
type Probe<'a> = Box<dyn FnMut() -> Result<u64> + 'a>;

/// Known flows, all paths against the floor: a program that parses Ethernet and IPv4, swaps the MACs
/// and sends the frame back. An empty program shows what the kernel's loop itself takes.
pub fn hit(net: &Net, rounds: usize) -> Result<Vec<Cost>> {
    net.netns.run(|| {
        pin(cpus()?[0])?;
        let chains: Vec<_> = [Kind::Tcp4, Kind::Udp4, Kind::Tcp6, Kind::Udp6]
            .into_iter()
            .map(|kind| Ok((kind, bounce(net, kind)?)))
            .collect::<Result<_>>()?;
        let mut testbed = Ebpf::load(TESTBED)?;
        load(&mut testbed, "floor")?;
        load(&mut testbed, "pass")?;
        let (floor, empty) = (loaded(&testbed, "floor")?, loaded(&testbed, "pass")?);
        let ifindex = net.ifindex(Port::Near);
        let frame = chains[0].1.request(0, ACK).bytes();
        let frame = &frame;
        let mut probes: Vec<(String, Probe<'_>)> = vec![
            (
                "floor".to_owned(),
                Box::new(move || time(floor, frame, RUNS, ifindex, TX)),
            ),
            (
                "empty program".to_owned(),
                Box::new(move || time(empty, frame, RUNS, ifindex, PASS)),
            ),
        ];
        for (kind, chain) in &chains {
            for (name, frame) in [
                ("request", chain.request(0, ACK)),
                ("reply", chain.reply(1, ACK)),
            ] {
                probes.push((
                    format!("{} {name}", kind.name()),
                    Box::new(move || chain.time(&frame, RUNS)),
                ));
            }
        }
        let mut costs = measure(&mut probes, rounds)?;
        drop(probes);
        let empty = costs[1].middle_ns;
        for cost in &mut costs {
            cost.over_empty_ns = Some(cost.middle_ns - empty);
        }
        for (kind, chain) in &chains {
            check_hits(*kind, chain)?;
        }
        Ok(costs)
    })
}

fn load(testbed: &mut Ebpf, name: &str) -> Result<()> {
    let program = testbed.program_mut(name);
    let program: &mut Xdp = program
        .with_context(|| format!("no program {name}"))?
        .try_into()?;
    Ok(program.load()?)
}

fn loaded<'a>(testbed: &'a Ebpf, name: &str) -> Result<&'a Xdp> {
    let program = testbed.program(name);
    Ok(program
        .with_context(|| format!("no program {name}"))?
        .try_into()?)
}

/// Two services that are each other's backend, with an established flow each: an established packet
/// bounces between them, in both directions.
fn bounce<'a>(net: &'a Net, kind: Kind) -> Result<Chain<'a>> {
    let mut chain = Chain::new(net, kind, 1 << 20, u32::MAX)?;
    chain.link(&[0], &[1], view::EXACT)?;
    chain.link(&[1], &[0], view::EXACT)?;
    chain.await_next_hops()?;
    chain.establish(0, 1)?;
    chain.establish(1, 0)?;
    Ok(chain)
}

/// Nothing but hits was measured.
fn check_hits(kind: Kind, chain: &Chain<'_>) -> Result<()> {
    let counted: Vec<_> = chain
        .dataplane
        .counters()?
        .into_iter()
        .filter(|&(_, count)| count > 0)
        .collect();
    ensure!(counted.is_empty(), "{}: counted {counted:?}", kind.name());
    let opened: u64 = chain
        .dataplane
        .loads(&[(0, 1), (1, 1)])?
        .iter()
        .map(|load| load.opened)
        .sum();
    ensure!(opened == 2, "{}: {opened} flows were opened", kind.name());
    Ok(())
}

/// New flows in an IPv4 TCP service of two backends, against the hit path.
pub fn new_flow(net: &Net, rounds: usize) -> Result<Vec<Cost>> {
    net.netns.run(|| {
        pin(cpus()?[0])?;
        let hit = bounce(net, Kind::Tcp4)?;
        let ack = hit.request(0, ACK);
        let mut probes: Vec<(String, Probe<'_>)> =
            vec![("hit".to_owned(), Box::new(|| hit.time(&ack, RUNS)))];
        for (name, view) in [("exact", view::EXACT), ("published", view::PUBLISHED)] {
            for room in [Room::Entries, Room::Full] {
                let line = line(net, view, room)?;
                probes.push((
                    format!("{name}, {}", room.name()),
                    Box::new(move || opens(&line, room)),
                ));
            }
        }
        for (name, view) in [("exact", view::EXACT), ("published", view::PUBLISHED)] {
            let ring = ring(net, view)?;
            probes.push((
                format!("{name}, table full, cached"),
                Box::new(move || opens(&ring, Room::Full)),
            ));
        }
        let capped = line(net, view::EXACT, Room::Capped)?;
        probes.push((
            Room::Capped.name().to_owned(),
            Box::new(move || opens(&capped, Room::Capped)),
        ));
        measure(&mut probes, rounds)
    })
}

/// What becomes of a new flow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// It is placed by load and remembered in two entries.
    Entries,
    /// It is placed by load, the table refuses it, and it goes to its first candidate.
    Full,
    /// It is over the cap of new flows, and goes to its first candidate.
    Capped,
}

impl Room {
    const fn name(self) -> &'static str {
        match self {
            Self::Entries => "with entries",
            Self::Full => "table full",
            Self::Capped => "over the cap",
        }
    }
}

/// A line of services, each with the next two as its backends: a SYN opens a new flow in each run.
fn line(net: &Net, view: u8, room: Room) -> Result<Chain<'_>> {
    let cap = if room == Room::Capped { 1 } else { u32::MAX };
    let size = if room == Room::Full { 1024 } else { 1 << 20 };
    let mut chain = Chain::new(net, Kind::Tcp4, size, cap)?;
    for layer in 0..u16::try_from(RUNS)? {
        let at = 2 * layer;
        chain.link(&[at, at + 1], &[at + 2, at + 3], view)?;
    }
    chain.await_next_hops()?;
    if room == Room::Full {
        rig::fill(&chain.dataplane.flow_tables()?.v4, size)?;
    }
    Ok(chain)
}

/// Two pairs of services that are each other's backends, and a full table: a SYN goes round between
/// them, placed anew in each run by entries that are in the CPU's caches.
fn ring(net: &Net, view: u8) -> Result<Chain<'_>> {
    let size = 1024;
    let mut chain = Chain::new(net, Kind::Tcp4, size, u32::MAX)?;
    chain.link(&[0, 1], &[2, 3], view)?;
    chain.link(&[2, 3], &[0, 1], view)?;
    chain.await_next_hops()?;
    rig::fill(&chain.dataplane.flow_tables()?.v4, size)?;
    Ok(chain)
}

/// Opens a flow in every service along the line or ring, checks that it was so, and forgets the flows.
fn opens(chain: &Chain<'_>, room: Room) -> Result<u64> {
    let expected = match room {
        Room::Entries => None,
        Room::Full => Some(Counter::PlacedTableFull),
        Room::Capped => Some(Counter::PlacedInsertCap),
    };
    let count = || -> Result<u64> {
        let counters = chain.dataplane.counters()?;
        Ok(expected.map_or(0, |counter| counters[counter as usize].1))
    };
    if room == Room::Capped {
        // The first flow of a tick is not over the cap.
        let mut other = chain.request(0, SYN);
        other.source.set_port(40_001);
        chain.time(&other, 1)?;
    }
    let before = count()?;
    let cost = chain.time(&chain.request(0, SYN), RUNS)?;
    let placed = count()? - before;
    let tables = chain.dataplane.flow_tables()?;
    match room {
        Room::Entries => {
            let opened = rig::clear(&tables.v4)?;
            ensure!(opened == 2 * RUNS as usize, "{opened} entries");
        }
        Room::Full => ensure!(
            placed == u64::from(RUNS),
            "{placed} placed without an entry"
        ),
        Room::Capped => {
            // A tick may have ended meanwhile, and let one in.
            rig::clear(&tables.v4)?;
            ensure!(placed + 2 >= u64::from(RUNS), "{placed} over the cap");
        }
    }
    Ok(cost)
}

/// Measures all paths in turn, that many times, and compares them with the first.
fn measure(probes: &mut [(String, Probe<'_>)], rounds: usize) -> Result<Vec<Cost>> {
    let mut samples = vec![Vec::with_capacity(rounds); probes.len()];
    for _ in 0..rounds {
        for ((_, probe), samples) in probes.iter_mut().zip(&mut samples) {
            samples.push(probe()?);
        }
    }
    let mut base = None;
    let mut costs = Vec::new();
    for ((path, _), mut samples) in probes.iter().zip(samples) {
        samples.sort_unstable();
        let (Some(&min), Some(&median)) = (samples.first(), samples.get(samples.len() / 2)) else {
            bail!("no rounds");
        };
        let middle = &samples[samples.len() / 4..samples.len().div_ceil(4) * 3];
        let middle_ns = middle.iter().sum::<u64>() as f64 / middle.len() as f64;
        costs.push(Cost {
            path: path.clone(),
            min_ns: min,
            median_ns: median,
            middle_ns,
            over_empty_ns: None,
            ratio: middle_ns / *base.get_or_insert(middle_ns),
        });
    }
    Ok(costs)
}
