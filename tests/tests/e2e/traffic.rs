//! Traffic through VIPs.

use crate::changes::in_flight;
use anyhow::{Context as _, Result, ensure};
use lb_common::{
    abi::Row,
    flow::mix64,
    p2c::{Candidate, Member, choose, member_key, row, rows_for, scale},
};
use lb_tests::{
    client::{Connection, Questions},
    topology::{Shape, Topology, VIPS},
    world::{World, eventually, service, vip_address},
};
use std::{collections::BTreeMap, io, net::SocketAddr, thread, time::Duration};

pub fn download_is_whole() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 2)?;
    for vip in VIPS {
        world.client(async move {
            let mut connection = Connection::open(vip_address(vip)).await?;
            connection.download(100_000_000).await?;
            // Still in step: the same connection goes on.
            connection.get("/").await?;
            Ok(())
        })?;
    }
    Ok(())
}

pub fn a_thousand_parallel() -> Result<()> {
    let world = World::new(Shape::Routed, 4, 4)?;
    world.client(async {
        let mut opening = tokio::task::JoinSet::new();
        for vip in VIPS.into_iter().cycle().take(1000) {
            opening.spawn(async move {
                let mut connection = Connection::open(vip_address(vip)).await?;
                let reply = connection.get("/busy/1000").await?;
                ensure!(reply.client == connection.local(), "{reply:?}");
                Ok((connection, reply.backend))
            });
        }
        let mut held = Vec::new();
        while let Some(opened) = opening.join_next().await {
            held.push(opened??);
        }
        // All are open at once, and lb knows.
        ensure!(held.len() == 1000);
        ensure!(in_flight(&world.agent)? == 1000);
        for (connection, backend) in &mut held {
            ensure!(connection.get("/").await?.backend == *backend);
        }
        for (connection, backend) in held {
            ensure!(connection.get_last("/").await?.backend == backend);
        }
        Ok(())
    })?;
    eventually("no flow in flight", || Ok(in_flight(&world.agent)? == 0))?;
    for server in &world.servers {
        ensure!(server.stats().open() == 0);
    }
    Ok(())
}

pub fn udp_echo() -> Result<()> {
    let world = World::new(Shape::Routed, 3, 3)?;
    for vip in VIPS {
        world.client(async move {
            let mut seen = BTreeMap::new();
            for _ in 0..60 {
                let questions = Questions::to(vip_address(vip)).await?;
                let backend = questions.ask(b"first").await?;
                for payload in [&[][..], &[1], &[2; 1400]] {
                    ensure!(questions.ask(payload).await? == backend);
                }
                *seen.entry(backend).or_insert(0) += 1;
            }
            ensure!(seen.len() == 3, "{seen:?}");
            Ok(())
        })?;
    }
    Ok(())
}

pub fn every_shape() -> Result<()> {
    for shape in [Shape::Lan, Shape::OneArm] {
        let world = World::new(shape, 3, 3)?;
        for vip in VIPS {
            world
                .client(async move {
                    for _ in 0..20 {
                        let mut connection = Connection::open(vip_address(vip)).await?;
                        let reply = connection.get("/").await?;
                        ensure!(reply.client == connection.local(), "{reply:?}");
                        connection.download(200_000).await?;
                        let questions = Questions::to(vip_address(vip)).await?;
                        questions.ask(b"question").await?;
                    }
                    Ok(())
                })
                .with_context(|| format!("{shape:?}, {vip}"))?;
        }
    }
    Ok(())
}

/// A backend behind a device that takes no redirected frames is reached by way of the stack. The device
/// is a macvlan, and the agent starts before it is there.
pub fn no_redirects() -> Result<()> {
    let world = World::new(Shape::Routed, 1, 1)?;
    world.works()?;
    world.bed.balancer.ip(
        "address del 10.1.0.1/24 dev b0\naddress del 2001:db8:2::1/64 dev b0\n\
         link add link b0 name over type macvlan mode bridge\nlink set over up\n\
         address add 10.1.0.1/24 dev over\naddress add 2001:db8:2::1/64 dev over nodad",
    )?;
    eventually("connections by way of the macvlan", || {
        Ok(world.works().is_ok())
    })?;
    // And stays reachable: the agent must not find a next hop that leads nowhere.
    for _ in 0..10 {
        world.works()?;
        thread::sleep(Duration::from_millis(200));
    }
    let status = world.agent.json(&["status"])?;
    let counters = status["counters"].as_array().context("no counters")?;
    let asked = counters
        .iter()
        .find(|counter| counter["name"] == "asked_fib");
    ensure!(
        asked.is_some_and(|counter| counter["value"].as_u64() > Some(0)),
        "{counters:?}"
    );
    Ok(())
}

/// The server closes first, so the client's port is free at once: a new connection from it comes while
/// the old flow is still closing.
pub fn same_port() -> Result<()> {
    let world = World::new(Shape::Routed, 3, 3)?;
    for vip in VIPS {
        world.client(async move {
            for _ in 0..100 {
                reopen(vip_address(vip)).await?.get_last("/").await?;
            }
            Ok(())
        })?;
    }
    eventually("no flow in flight", || Ok(in_flight(&world.agent)? == 0))
}

/// Connects from the port used before, as soon as the client's own kernel lets go of it.
async fn reopen(vip: SocketAddr) -> Result<Connection> {
    loop {
        match Connection::open_from(vip, 20_000).await {
            Err(e)
                if e.downcast_ref::<io::Error>()
                    .is_some_and(|e| e.kind() == io::ErrorKind::AddrNotAvailable) =>
            {
                tokio::task::yield_now().await;
            }
            opened => return opened,
        }
    }
}

pub fn flows_are_listed() -> Result<()> {
    let world = World::new(Shape::Routed, 3, 3)?;
    world.client(async {
        let mut held = Vec::new();
        for vip in VIPS.into_iter().cycle().take(30) {
            let mut connection = Connection::open(vip_address(vip)).await?;
            let backend = connection.get("/").await?.backend;
            held.push((vip, connection, backend));
        }
        let listed = world.agent.json(&["flows"])?;
        let listed = listed["flows"].as_array().context("no flows")?;
        ensure!(listed.len() == held.len(), "{listed:?}");
        for (vip, connection, backend) in &held {
            let client = connection.local().to_string();
            let flow = listed
                .iter()
                .find(|flow| flow["client"] == *client)
                .with_context(|| format!("the flow of {client} is not listed"))?;
            ensure!(flow["vip"] == *vip_address(*vip).to_string(), "{flow}");
            let index = (0..3).find(|i| Topology::backend_name(*i) == *backend);
            let address = world.backend(index.context("another backend")?, *vip);
            ensure!(flow["backend"] == *address, "{flow}");
        }
        Ok(())
    })
}

const FLOWS: u16 = 2000;
const BACKENDS: usize = 20;

/// Everything that placement depends on is given here: addresses, ports, the order and the hash seed.
/// So the outcome is the same in every run.
pub fn spread() -> Result<()> {
    let bound = (0..200).map(simulated_most).max().context("no seeds")?;
    let [two, one] = [2, 1].map(most_connections);
    let (two, one) = (two?, one?);
    for (vip, most) in VIPS.iter().zip(two) {
        ensure!(
            most <= bound,
            "{vip}: {most} on one backend, not {bound} or less"
        );
    }
    // And the bound means something: one choice does not keep it.
    for (vip, most) in VIPS.iter().zip(one) {
        ensure!(most > bound, "{vip}: {most} even with one choice");
    }
    Ok(())
}

/// Holds connections open, and returns what the fullest backend has, for each VIP.
fn most_connections(choices: u8) -> Result<[u64; 2]> {
    let world = World::with(Shape::Lan, BACKENDS, |bed| {
        let services = VIPS.map(|vip| {
            let settings = format!("choices = {choices}");
            service(bed, vip, "tcp", &settings, BACKENDS)
        });
        format!("[balancer]\nhash_seed = 1\n{}", services.concat())
    })?;
    let mut most = [0; 2];
    for (vip, most) in VIPS.into_iter().zip(&mut most) {
        let counts = world.client(async move {
            let mut held = Vec::new();
            let mut counts = BTreeMap::new();
            for port in 10_000..10_000 + FLOWS {
                let mut connection = Connection::open_from(vip_address(vip), port).await?;
                let reply = connection.get("/").await?;
                *counts.entry(reply.backend).or_insert(0) += 1;
                held.push(connection);
            }
            Ok(counts)
        })?;
        *most = counts.values().copied().max().context("no backend")?;
        ensure!(counts.values().sum::<u64>() == u64::from(FLOWS));
        ensure!(
            counts.len() == BACKENDS,
            "{} got none",
            Topology::backend_name(0)
        );
    }
    Ok(most)
}

/// What the fullest backend has in a simulation of the same.
fn simulated_most(seed: u64) -> u64 {
    let members: Vec<_> = (0..BACKENDS as u32)
        .map(|id| Member {
            id,
            key: member_key(&[0, 0, 0, id.to_be()], 1),
            weight: 1,
        })
        .collect();
    let rows = rows_for(BACKENDS as u32);
    let table: Vec<Row> = (0..rows).map(|index| row(seed, index, &members)).collect();
    let mut counts = [0_u64; BACKENDS];
    for flow in 0..u64::from(FLOWS) {
        let hash = (mix64(mix64(seed + 1) ^ flow) >> 32) as u32;
        let row = &table[scale(hash, rows) as usize];
        let look = |id: u32| {
            Some(Candidate {
                load: counts[id as usize],
                weight: 1,
            })
        };
        if let Some(place) = choose(row, 2, look) {
            counts[row[place] as usize] += 1;
        }
    }
    counts.into_iter().max().unwrap_or(0)
}
