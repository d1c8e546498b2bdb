//! Changes through the command line while connections come, and what they must not do.

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    agent::Agent,
    client::{Connection, get},
    topology::{Shape, VIPS},
    traffic::Outcome,
    world::{World, eventually, vip_address},
};
use std::{
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

const TRAFFIC: Duration = Duration::from_secs(3);
const BEFORE: Duration = Duration::from_millis(700);

pub fn added() -> Result<()> {
    let world = World::new(Shape::Routed, 3, 2)?;
    let (outcomes, added_at) = world.under_traffic(TRAFFIC, || {
        thread::sleep(BEFORE);
        let before = Instant::now();
        each_family(&world, "add", 2, &[])?;
        Ok(before)
    })?;
    ensure!(answered(&outcomes, "b2", |o| o.started < added_at) == 0);
    ensure!(answered(&outcomes, "b2", |_| true) > 0);
    Ok(())
}

pub fn drained() -> Result<()> {
    let world = World::new(Shape::Routed, 3, 3)?;
    world.client(async {
        let mut held = hold(40).await?;
        ensure!(held.iter().any(|(_, backend)| backend == "b0"));
        let (outcomes, drained_at) = world.under_traffic(TRAFFIC, || {
            thread::sleep(BEFORE);
            each_family(&world, "drain", 0, &[])?;
            Ok(Instant::now())
        })?;
        ensure!(answered(&outcomes, "b0", |o| o.started < drained_at) > 0);
        ensure!(answered(&outcomes, "b0", |o| o.started > drained_at) == 0);
        // What it had goes on.
        for (connection, backend) in &mut held {
            ensure!(connection.get("/").await?.backend == *backend);
        }
        // And it can come back.
        each_family(&world, "resume", 0, &[])?;
        let (outcomes, ()) = world.under_traffic(BEFORE, || Ok(()))?;
        ensure!(answered(&outcomes, "b0", |_| true) > 0);
        Ok(())
    })
}

pub fn removed() -> Result<()> {
    let world = World::new(Shape::Routed, 3, 3)?;
    world.client(async {
        let mut held = hold(40).await?;
        let (outcomes, removed_at) = world.under_traffic(TRAFFIC, || {
            thread::sleep(BEFORE);
            each_family(&world, "remove", 0, &[])?;
            Ok(Instant::now())
        })?;
        ensure!(answered(&outcomes, "b0", |o| o.started > removed_at) == 0);
        for (connection, backend) in &mut held {
            ensure!(connection.get("/").await?.backend == *backend);
        }
        for (connection, _) in held {
            connection.get_last("/").await?;
        }
        Ok(())
    })?;
    // When its last flow has ended, it is gone.
    eventually("the removed backend is gone", || {
        for vip in VIPS {
            let list = world.agent.ok(&["backend", "list", &service(vip)])?;
            if list.contains(&world.backend(0, vip)) {
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    world.works()
}

pub fn weight_zero() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 2)?;
    each_family(&world, "set-weight", 0, &["0"])?;
    let (outcomes, ()) = world.under_traffic(BEFORE, || Ok(()))?;
    ensure!(answered(&outcomes, "b0", |_| true) == 0);
    // 0 stays 0, and the way back is open.
    let vip = VIPS[0];
    let list = world.agent.json(&["backend", "list", &service(vip)])?;
    let weight = find(&list, "address", &world.backend(0, vip)).context("not listed")?["weight"]
        .as_u64()
        .context("no weight")?;
    ensure!(weight == 0, "{weight}");
    each_family(&world, "set-weight", 0, &["5"])?;
    let (outcomes, ()) = world.under_traffic(BEFORE, || Ok(()))?;
    ensure!(answered(&outcomes, "b0", |_| true) > 0);
    Ok(())
}

pub fn service_comes_and_goes() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 2)?;
    for vip in VIPS {
        let address = SocketAddr::new(vip, 7000);
        let name = address.to_string();
        let backends = [world.backend(0, vip), world.backend(1, vip)];
        let [first, second] = &backends;
        let args = [
            "service",
            "add",
            &name,
            "--backend",
            first,
            "--backend",
            second,
        ];
        world.agent.ok(&args)?;
        world.client(get(address, "/"))?;
        world
            .agent
            .ok(&["service", "set", &name, "--choices", "1"])?;
        world.client(get(address, "/"))?;
        world.agent.ok(&["service", "remove", &name])?;
        // No longer a VIP: the packet passes, and the host has no route to there.
        let after = world.client(get(address, "/"));
        ensure!(after.is_err(), "{after:?}");
        eventually("the removed service is gone", || {
            Ok(!world.agent.ok(&["service", "list"])?.contains(&name))
        })?;
    }
    world.works()
}

pub fn no_backends() -> Result<()> {
    let world = World::new(Shape::Routed, 1, 1)?;
    each_family(&world, "drain", 0, &[])?;
    for vip in VIPS {
        let before = counter(&world.agent, "no_backend")?;
        let connection = world.client(async move {
            let opening = Connection::open(vip_address(vip));
            Ok(tokio::time::timeout(Duration::from_millis(300), opening).await)
        })?;
        ensure!(!matches!(connection, Ok(Ok(_))), "{vip} answered");
        ensure!(counter(&world.agent, "no_backend")? > before);
    }
    each_family(&world, "resume", 0, &[])?;
    world.works()
}

pub fn repeated() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 2)?;
    for _ in 0..2 {
        each_family(&world, "add", 0, &[])?;
        each_family(&world, "drain", 0, &[])?;
        each_family(&world, "drain", 0, &[])?;
        each_family(&world, "resume", 0, &[])?;
    }
    world.works()
}

pub fn refused() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 2)?;
    let before = tables(&world.agent)?;
    let vip = service(VIPS[0]);
    for (args, named) in [
        (&["backend", "add", &vip, "10.1.0.2:0"][..], "port"),
        (
            &["backend", "add", &vip, "[2001:db8:2::2]:80"],
            "2001:db8:2::2",
        ),
        (&["backend", "add", &vip, &vip], "VIP"),
        (
            &["backend", "add", "198.51.100.77:80", "10.1.0.2:80"],
            "198.51.100.77:80",
        ),
        (&["backend", "drain", &vip, "10.9.9.9:80"], "10.9.9.9:80"),
        (
            &["service", "remove", "198.51.100.77:80"],
            "198.51.100.77:80",
        ),
    ] {
        let said = world.agent.refused(args)?;
        ensure!(said.contains(named), "lb {}: {said}", args.join(" "));
    }
    ensure!(tables(&world.agent)? == before);
    world.works()
}

/// What changes would show in: each service, how many candidate tables it has had, and its backends.
fn tables(agent: &Agent) -> Result<Vec<String>> {
    let list = agent.json(&["service", "list"])?;
    let services = list.as_array().context("no list of services")?;
    let line = |service: &serde_json::Value| {
        let backends = service["backends"].as_array().into_iter().flatten();
        let backends: Vec<_> = backends
            .map(|b| format!("{} {} {}", b["address"], b["weight"], b["state"]))
            .collect();
        format!(
            "{} {} {}: {}",
            service["address"],
            service["protocol"],
            service["table_version"],
            backends.join(", ")
        )
    };
    Ok(services.iter().map(line).collect())
}

/// `lb backend VERB` on the TCP services of both VIPs.
fn each_family(world: &World, verb: &str, backend: usize, more: &[&str]) -> Result<()> {
    for vip in VIPS {
        let args = ["backend", verb, &service(vip), &world.backend(backend, vip)];
        world.agent.ok(&[&args, more].concat())?;
    }
    Ok(())
}

fn service(vip: IpAddr) -> String {
    vip_address(vip).to_string()
}

/// Opens connections to both VIPs, and tells their backends.
async fn hold(count: usize) -> Result<Vec<(Connection, String)>> {
    let mut held = Vec::new();
    for vip in VIPS.into_iter().cycle().take(count) {
        let mut connection = Connection::open(vip_address(vip)).await?;
        let backend = connection.get("/").await?.backend;
        held.push((connection, backend));
    }
    Ok(held)
}

fn answered(outcomes: &[Outcome], backend: &str, such: impl Fn(&Outcome) -> bool) -> usize {
    let by_it = |o: &&Outcome| o.backend.as_deref() == Ok(backend) && such(o);
    outcomes.iter().filter(by_it).count()
}

/// Flows in flight, all services together, as `lb` counts them.
pub fn in_flight(agent: &Agent) -> Result<u64> {
    let status = agent.json(&["status"])?;
    let mut sum = 0;
    for service in status["services"].as_array().context("no services")? {
        sum += service["in_flight"].as_u64().context("no in_flight")?;
    }
    Ok(sum)
}

/// A counter of the packet program, by its name.
pub fn counter(agent: &Agent, name: &str) -> Result<u64> {
    let status = agent.json(&["status"])?;
    // What is 0 may be left out.
    Ok(find(&status["counters"], "name", name)
        .and_then(|counter| counter["value"].as_u64())
        .unwrap_or(0))
}

/// The first object, at any depth, that has `key` with that value.
fn find<'a>(
    value: &'a serde_json::Value,
    key: &str,
    wanted: &str,
) -> Option<&'a serde_json::Value> {
    match value {
        serde_json::Value::Object(object) => {
            if object.get(key).and_then(|v| v.as_str()) == Some(wanted) {
                return Some(value);
            }
            object.values().find_map(|v| find(v, key, wanted))
        }
        serde_json::Value::Array(items) => items.iter().find_map(|v| find(v, key, wanted)),
        _ => None,
    }
}
