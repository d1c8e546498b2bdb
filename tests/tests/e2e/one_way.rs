//! Services whose backends answer the client directly, with the real `lb decap` behind tunnels.

use crate::changes::in_flight;
use anyhow::{Result, ensure};
use lb_tests::{
    agent::Agent,
    client::{Connection, Questions},
    decap::Decap,
    scratch::Scratch,
    server::{Config, Server},
    topology::{Shape, Topology, VIPS, hold_vips},
    world::{VIP_PORT, eventually, vip_address},
};
use std::{collections::BTreeMap, fmt::Write as _, net::IpAddr};

/// Where outer headers have their sources from, and nothing else may send to the decapsulators.
const SOURCES: [&str; 2] = ["10.255.0.0/24", "2001:db8:ff::/112"];

/// A network whose backends have the VIPs, with servers on them and `lb`.
struct Bed {
    // In the order in which they must end.
    agent: Agent,
    _servers: Vec<Server>,
    decaps: Vec<Decap>,
    _scratch: Scratch,
    topology: Topology,
}

/// What a bed is to be.
struct Plan {
    shape: Shape,
    backends: usize,
    /// Lines for `[balancer]`.
    balancer: &'static str,
    /// Lines for each service.
    service: String,
    /// Whether each service has a backend in the family of its VIP only.
    same_family: bool,
    /// Arguments for a decapsulator on each backend; none: no decapsulator.
    decap: Option<&'static [&'static str]>,
}

fn server(name: &str) -> Config {
    Config {
        udp_addresses: VIPS.to_vec(),
        ..Config::new(name, VIP_PORT)
    }
}

impl Bed {
    fn new(plan: &Plan) -> Result<Self> {
        let mut topology = Topology::new(plan.shape, plan.backends)?;
        let (mut servers, mut decaps) = (Vec::new(), Vec::new());
        for index in 0..plan.backends {
            match plan.decap {
                Some(_) => topology.end_tunnel(index)?,
                None => hold_vips(&topology.backends[index].netns)?,
            }
            let host = &topology.backends[index].netns;
            servers.push(Server::start(host, server(&Topology::backend_name(index)))?);
            if let Some(args) = plan.decap {
                let from = SOURCES.map(|source| ["--from", source]).concat();
                decaps.push(Decap::start(host, "eth0", &[&from, args].concat())?);
            }
        }
        let mut config = format!("[balancer]\n{}\n", plan.balancer);
        for protocol in ["tcp", "udp"] {
            for vip in VIPS {
                write!(
                    config,
                    "[[service]]\naddress = \"{}\"\nprotocol = \"{protocol}\"\n{}\n",
                    vip_address(vip),
                    plan.service
                )?;
                for (index, host) in topology.backends.iter().enumerate() {
                    // One by its IPv4 address, the next by its IPv6 address, unless that cannot be.
                    let like = match plan.same_family {
                        true => vip,
                        false => VIPS[index % 2],
                    };
                    let address = host.address(like, VIP_PORT);
                    writeln!(config, "[[service.backend]]\naddress = \"{address}\"")?;
                }
            }
        }
        let scratch = Scratch::new()?;
        let agent = Agent::start(&scratch, &topology.balancer, &topology.interfaces, &config)?;
        Ok(Self {
            agent,
            _servers: servers,
            decaps,
            _scratch: scratch,
            topology,
        })
    }

    /// Uses a VIP by TCP and UDP until every one of the backends named has served both, and checks that
    /// nothing is lost or altered.
    fn works(&self, vip: IpAddr, names: &[&str]) -> Result<()> {
        self.topology.client.netns.block_on(async move {
            let (mut tcp, mut udp) = (BTreeMap::new(), BTreeMap::new());
            for _ in 0..200 {
                let mut connection = Connection::open(vip_address(vip)).await?;
                let reply = connection.get("/").await?;
                ensure!(reply.client == connection.local(), "{reply:?}");
                if *tcp
                    .entry(reply.backend)
                    .and_modify(|n| *n += 1)
                    .or_insert(1)
                    == 1
                {
                    connection.download(300_000).await?;
                }
                connection.get_last("/").await?;
                let questions = Questions::to(vip_address(vip)).await?;
                let backend = questions.ask(b"who?").await?;
                ensure!(questions.ask(&[7; 1_000]).await? == backend);
                *udp.entry(backend).or_insert(0) += 1;
                if tcp.len() == names.len() && udp.len() == names.len() {
                    break;
                }
            }
            let [tcp, udp] = [tcp, udp].map(|seen| seen.into_keys().collect::<Vec<_>>());
            ensure!(tcp == names && udp == names, "{tcp:?} {udp:?}");
            Ok(())
        })
    }

    /// Checks that flows are listed with their backends, TCP flows that are over not counted as in flight,
    /// and no packet dropped.
    fn is_in_order(&self, backends: &[String]) -> Result<()> {
        let flows = self.agent.json(&["flows", "--limit", "1000"])?;
        let flows = flows["flows"].as_array().cloned().unwrap_or_default();
        ensure!(!flows.is_empty());
        for flow in &flows {
            let backend = flow["backend"].as_str().unwrap_or_default();
            ensure!(backends.iter().any(|known| known == backend), "{flow}");
            let open = flow["state"] == "established";
            ensure!(open == (flow["protocol"] == "udp"), "{flow}");
        }
        let udp = flows
            .iter()
            .filter(|flow| flow["protocol"] == "udp")
            .count();
        ensure!(in_flight(&self.agent)? == udp as u64);
        let status = self.agent.json(&["status"])?;
        for counter in status["counters"].as_array().into_iter().flatten() {
            ensure!(
                counter["drop"] == false || counter["value"] == 0,
                "{counter}"
            );
        }
        Ok(())
    }

    fn addresses(&self, like: impl Fn(usize) -> Vec<IpAddr>) -> Vec<String> {
        let hosts = self.topology.backends.iter().enumerate();
        hosts
            .flat_map(|(index, host)| {
                like(index)
                    .into_iter()
                    .map(|like| host.address(like, VIP_PORT).to_string())
            })
            .collect()
    }
}

pub fn dsr() -> Result<()> {
    let bed = Bed::new(&Plan {
        shape: Shape::Lan,
        backends: 3,
        balancer: "",
        service: "mode = \"dsr\"".to_owned(),
        same_family: true,
        decap: None,
    })?;
    for vip in VIPS {
        bed.works(vip, &["b0", "b1", "b2"])?;
    }
    bed.is_in_order(&bed.addresses(|_| VIPS.to_vec()))
}

fn tunnels(mode: &str, balancer: &'static str, decap: &'static [&'static str]) -> Result<Bed> {
    let bed = Bed::new(&Plan {
        shape: Shape::Routed,
        backends: 2,
        balancer,
        service: format!("mode = \"{mode}\"\nsources = {SOURCES:?}"),
        same_family: false,
        decap: Some(decap),
    })?;
    for vip in VIPS {
        bed.works(vip, &["b0", "b1"])?;
    }
    bed.is_in_order(&bed.addresses(|index| vec![VIPS[index % 2]]))?;
    Ok(bed)
}

/// Both VIPs have a backend of each family. The decapsulators take packets from the prefixes that are set alone.
pub fn ipip() -> Result<()> {
    let bed = tunnels("ipip", "", &[])?;
    for (decap, used) in bed.decaps.iter().zip([["4in4", "6in4"], ["4in6", "6in6"]]) {
        for counter in used {
            eventually(counter, || Ok(decap.counter(counter)? > 0))?;
        }
    }
    Ok(())
}

pub fn gue() -> Result<()> {
    let bed = tunnels("gue", "gue_port = 5555", &["--gue-port", "5555"])?;
    for decap in &bed.decaps {
        eventually("GUE", || Ok(decap.counter("gue_1")? > 0))?;
    }
    Ok(())
}

/// A server on the balancer's host has its part of the flows.
pub fn balancer_itself() -> Result<()> {
    let bed = Bed::new(&Plan {
        shape: Shape::Lan,
        backends: 1,
        balancer: "",
        service: "mode = \"dsr\"".to_owned(),
        same_family: true,
        decap: None,
    })?;
    hold_vips(&bed.topology.balancer)?;
    // The balancer routes the answers of the other backend, whose source is an address of its own now.
    bed.topology
        .balancer
        .sysctl("ipv4/conf/all/accept_local", "1")?;
    let _here = Server::start(&bed.topology.balancer, server("here"))?;
    for (vip, own) in VIPS.into_iter().zip(["10.1.0.1", "[2001:db8:2::1]"]) {
        for protocol in ["tcp", "udp"] {
            let service = format!("{}/{protocol}", vip_address(vip));
            let backend = format!("{own}:{VIP_PORT}");
            bed.agent.ok(&["backend", "add", &service, &backend])?;
        }
        bed.works(vip, &["b0", "here"])?;
    }
    let listed = bed.agent.json(&["backend", "list"])?;
    ensure!(listed.to_string().contains("10.1.0.1"), "{listed}");
    Ok(())
}

/// A service changes from nat to a tunnel and back while it is in use; only connections that were open are cut.
pub fn change_of_mode() -> Result<()> {
    let bed = Bed::new(&Plan {
        shape: Shape::Routed,
        backends: 2,
        balancer: "",
        service: String::new(),
        same_family: true,
        decap: Some(&[]),
    })?;
    // Frames cannot be redirected to the backends yet, so the stack forwards what is for them.
    let set = |vip: IpAddr, args: &[&str]| -> Result<()> {
        for protocol in ["tcp", "udp"] {
            let service = format!("{}/{protocol}", vip_address(vip));
            bed.agent
                .ok(&[&["service", "set", &service], args].concat())?;
        }
        Ok(())
    };
    for vip in VIPS {
        // The servers answer UDP by the VIPs' addresses alone, so nat is seen by TCP.
        let serves_by_nat = || {
            bed.topology.client.netns.block_on(async move {
                let mut connection = Connection::open(vip_address(vip)).await?;
                connection.download(200_000).await?;
                ensure!(connection.get("/").await?.client == connection.local());
                Ok(())
            })
        };
        let taken_off = || -> Result<u64> {
            let mut sum = 0;
            for decap in &bed.decaps {
                for name in ["4in4", "6in6"] {
                    sum += decap.counter(name)?;
                }
            }
            Ok(sum)
        };
        let before = taken_off()?;
        serves_by_nat()?;
        set(
            vip,
            &[
                "--mode", "ipip", "--source", SOURCES[0], "--source", SOURCES[1],
            ],
        )?;
        bed.works(vip, &["b0", "b1"])?;
        eventually("packets are taken off", || Ok(taken_off()? > before))?;
        let services = bed.agent.json(&["service", "list"])?;
        let address = vip_address(vip).to_string();
        let changed = |s: &&serde_json::Value| s["address"] == address.as_str();
        for service in services.as_array().into_iter().flatten().filter(changed) {
            ensure!(service["mode"] == "ipip", "{service}");
            ensure!(service["sources"][1] == SOURCES[1], "{service}");
        }
        // Sources stay with a mode that has none, unless they are taken away.
        let service = address.clone();
        let output = bed
            .agent
            .lb(&["service", "set", &service, "--mode", "nat"])?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            !output.status.success() && said.contains("--no-source"),
            "{said}"
        );
        set(vip, &["--mode", "nat", "--no-source"])?;
        serves_by_nat()?;
    }
    Ok(())
}

/// What cannot be served in a mode is refused, with what to do, and nothing changes.
pub fn refusals() -> Result<()> {
    let bed = Bed::new(&Plan {
        shape: Shape::Lan,
        backends: 1,
        balancer: "",
        service: "mode = \"dsr\"".to_owned(),
        same_family: true,
        decap: None,
    })?;
    let service = vip_address(VIPS[0]).to_string();
    let before = bed.agent.json(&["service", "list"])?;
    let cases: [(&[&str], &str); 5] = [
        (
            &["backend", "add", &service, "10.1.0.77:81"],
            "give the backend that port",
        ),
        (
            &["backend", "add", &service, "[2001:db8:2::77]:8080"],
            "ipip and gue take both",
        ),
        (
            &["service", "set", &service, "--source", "10.255.0.0/24"],
            "use mode ipip or gue",
        ),
        (
            &[
                "service",
                "set",
                &service,
                "--mode",
                "ipip",
                "--source",
                "2001:db8::/64",
            ],
            "shorter than 96 bits",
        ),
        (
            &[
                "service",
                "set",
                &service,
                "--mode",
                "ipip",
                "--source",
                "10.255.0.1/24",
            ],
            "10.255.0.0/24",
        ),
    ];
    for (args, said) in cases {
        let output = bed.agent.lb(args)?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            !output.status.success() && error.contains(said),
            "{args:?}: {error}"
        );
    }
    ensure!(bed.agent.json(&["service", "list"])? == before);
    Ok(())
}
