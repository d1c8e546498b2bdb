//! The test bed itself: without `lb`, the balancer's namespace is a plain router, and everything
//! must work through it. What fails here is no fault of `lb`.

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    client::{Connection, Questions, get},
    harness,
    netns::Netns,
    scratch::Scratch,
    server::{Config, Server},
    topology::{Shape, Topology, VIPS},
    traffic::{self, Outcomes},
};
use std::{fs, time::Duration};

const PORT: u16 = 80;

fn main() {
    harness::run(&[
        ("http_and_udp_routed", || http_and_udp(Shape::Routed)),
        ("http_and_udp_lan", || http_and_udp(Shape::Lan)),
        ("http_and_udp_one_arm", || http_and_udp(Shape::OneArm)),
        ("downloads_are_whole", downloads_are_whole),
        ("planned_traffic_arrives", planned_traffic_arrives),
        ("scratch_is_seen_by_children", scratch_is_seen_by_children),
        (
            "children_die_with_their_thread",
            children_die_with_their_thread,
        ),
    ])
    .exit()
}

fn http_and_udp(shape: Shape) -> Result<()> {
    let bed = Topology::new(shape, 3)?;
    let servers = start_servers(&bed)?;
    for (index, backend) in bed.backends.iter().enumerate() {
        let name = Topology::backend_name(index);
        for family in VIPS {
            let address = backend.address(family, PORT);
            let name = &name;
            bed.client.netns.block_on(async move {
                let mut connection = Connection::open(address).await?;
                for _ in 0..3 {
                    let reply = connection.get("/").await?;
                    ensure!(&reply.backend == name && reply.body == name.as_bytes());
                    ensure!(reply.client == connection.local(), "{reply:?}");
                }
                drop(connection);
                ensure!(&get(address, "/busy/100").await?.backend == name);
                let questions = Questions::to(address).await?;
                ensure!(&questions.ask(b"").await? == name);
                ensure!(&questions.ask(&[7; 1400]).await? == name);
                Ok(())
            })?;
        }
        let stats = servers[index].stats();
        ensure!(stats.accepted() == 4, "{stats:?}");
        ensure!(stats.datagrams() == 4, "{stats:?}");
    }
    Ok(())
}

fn downloads_are_whole() -> Result<()> {
    let bed = Topology::new(Shape::Routed, 1)?;
    let _servers = start_servers(&bed)?;
    for family in VIPS {
        let address = bed.backends[0].address(family, PORT);
        bed.client.netns.block_on(async move {
            let mut connection = Connection::open(address).await?;
            connection.download(0).await?;
            connection.download(3_000_000).await?;
            // The connection is still in step.
            connection.get("/").await?;
            Ok(())
        })?;
    }
    Ok(())
}

fn planned_traffic_arrives() -> Result<()> {
    let bed = Topology::new(Shape::Lan, 2)?;
    let servers = start_servers(&bed)?;
    let targets: Vec<_> = VIPS
        .iter()
        .zip(&bed.backends)
        .map(|(family, backend)| backend.address(*family, PORT))
        .collect();
    let plan = traffic::plan(
        1,
        500.0,
        Duration::from_millis(400),
        Duration::from_millis(1),
        &targets,
    );
    let outcomes = Outcomes::default();
    bed.client.netns.block_on(async {
        traffic::offer(&plan, &outcomes).await;
        Ok(())
    })?;
    let outcomes = outcomes.lock().ok().context("a connection panicked")?;
    ensure!(outcomes.len() == plan.len());
    ensure!(outcomes.iter().all(|o| o.backend.is_ok()), "{outcomes:?}");
    let accepted: u64 = servers.iter().map(|s| s.stats().accepted()).sum();
    ensure!(accepted == plan.len() as u64);
    Ok(())
}

fn scratch_is_seen_by_children() -> Result<()> {
    let scratch = Scratch::new()?;
    let path = scratch.write("greeting", "hello")?;
    let path = path.to_string_lossy().into_owned();
    let netns = Netns::new("reader")?;
    ensure!(netns.output("cat", &[&path])? == "hello");
    drop(scratch);
    ensure!(fs::metadata(&path).is_err(), "{path} is still there");
    Ok(())
}

fn children_die_with_their_thread() -> Result<()> {
    let netns = Netns::new("sleeper")?;
    let mut child = std::thread::scope(|scope| {
        scope
            .spawn(|| netns.command("sleep").arg("1000").spawn())
            .join()
            .ok()
            .context("the thread panicked")?
            .context("cannot run sleep")
    })?;
    // Without the signal this would last 1,000 s.
    let status = child.wait()?;
    ensure!(!status.success(), "{status}");
    Ok(())
}

fn start_servers(bed: &Topology) -> Result<Vec<Server>> {
    bed.backends
        .iter()
        .enumerate()
        .map(|(index, host)| {
            let name = Topology::backend_name(index);
            Server::start(&host.netns, Config::new(&name, PORT))
        })
        .collect()
}
