//! The ways to backends, and how the agent follows them.

use crate::changes::counter;
use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    client::Connection,
    netns::Netns,
    offload::{gro_on, tx_checksum_off},
    server::{Config, Server},
    topology::{Shape, VIPS},
    world::{BACKEND_PORT, World, eventually, vip_address},
};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A host behind backends that are routers.
const INNER4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const INNER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 2);
/// A MAC address that no interface has.
const NEW_MAC: &str = "02:00:00:09:09:09";

pub fn two_interfaces() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 2)?;
    for vip in VIPS {
        for (index, name) in ["b0", "b1"].into_iter().enumerate() {
            let backend = world.bed.backends[index].address(vip, BACKEND_PORT);
            leads_to(
                &world,
                vip,
                backend,
                name,
                &mac(&world.bed.backends[index].netns)?,
            )?;
        }
    }
    by_xdp(&world)
}

/// Both routes to the backend's network, with its gateways on two interfaces; one after the other.
pub fn gateways() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 1)?;
    let _inner = Inner::behind_both(&world)?;
    route_by(&world, 0, "add", "")?;
    serve_inner(&world)?;
    let mac0 = mac(&world.bed.backends[0].netns)?;
    let mac1 = mac(&world.bed.backends[1].netns)?;
    for vip in VIPS {
        leads_to(&world, vip, inner(vip), "b0", &mac0)?;
        let source = match vip {
            IpAddr::V4(_) => "10.1.0.1",
            IpAddr::V6(_) => "2001:db8:2::1",
        };
        let way = way(&world, vip, inner(vip))?;
        ensure!(way["route_source"] == source && way["mtu"] == 1500, "{way}");
    }
    by_xdp(&world)?;

    held_through(&world, "inner", || {
        route_by(&world, 1, "replace", "")?;
        for vip in VIPS {
            leads_to(&world, vip, inner(vip), "b1", &mac1)?;
        }
        Ok(())
    })?;
    by_xdp(&world)?;

    // Gateways by their link-local addresses, for IPv4 too (RFC 5549).
    let gateway = link_local(&world.bed.backends[0].netns)?;
    world.bed.balancer.ip(&format!(
        "route replace 10.9.0.0/24 via inet6 {gateway} dev b0\n\
         route replace 2001:db8:9::/64 via {gateway} dev b0"
    ))?;
    for vip in VIPS {
        leads_to(&world, vip, inner(vip), "b0", &mac0)?;
    }
    by_xdp(&world)?;

    // And without a route there is none.
    world
        .bed
        .balancer
        .ip("route del 10.9.0.0/24\nroute del 2001:db8:9::/64")?;
    for vip in VIPS {
        unresolved(&world, vip, inner(vip), "no route")?;
    }
    route_by(&world, 0, "add", "")?;
    for vip in VIPS {
        leads_to(&world, vip, inner(vip), "b0", &mac0)?;
    }
    by_xdp(&world)
}

/// The route of second choice takes over when the interface of the first goes down.
pub fn link_down() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 1)?;
    let _inner = Inner::behind_both(&world)?;
    route_by(&world, 0, "add", "metric 10")?;
    route_by(&world, 1, "add", "metric 20")?;
    serve_inner(&world)?;
    let first = mac(&world.bed.backends[0].netns)?;
    for vip in VIPS {
        leads_to(&world, vip, inner(vip), "b0", &first)?;
    }
    let second = mac(&world.bed.backends[1].netns)?;
    held_through(&world, "inner", || {
        world.bed.balancer.ip("link set b0 down")?;
        for vip in VIPS {
            leads_to(&world, vip, inner(vip), "b1", &second)?;
        }
        Ok(())
    })?;
    by_xdp(&world)
}

pub fn mtu() -> Result<()> {
    let world = World::new(Shape::Routed, 1, 1)?;
    let becomes = |mtu: u32| {
        for vip in VIPS {
            let backend = world.bed.backends[0].address(vip, BACKEND_PORT);
            eventually(&format!("the MTU to {backend} is {mtu}"), || {
                Ok(way(&world, vip, backend)?["mtu"] == mtu)
            })?;
        }
        anyhow::Ok(())
    };
    let balancer = &world.bed.balancer;
    becomes(1500)?;
    balancer.ip("link set b0 mtu 1450")?;
    becomes(1450)?;
    balancer
        .ip("route add 10.1.0.2/32 dev b0 mtu 1400\nroute add 2001:db8:2::2/128 dev b0 mtu 1400")?;
    becomes(1400)?;
    balancer.ip("link set b0 mtu 1350")?;
    becomes(1350)?;
    balancer.ip("route del 10.1.0.2/32 dev b0\nroute del 2001:db8:2::2/128 dev b0")?;
    balancer.ip("link set b0 mtu 1500")?;
    becomes(1500)?;
    by_xdp(&world)
}

/// A backend gets another MAC address, and says so.
pub fn announced_mac() -> Result<()> {
    let world = World::new(Shape::Lan, 1, 1)?;
    let backend = &world.bed.backends[0].netns;
    backend.sysctl("ipv4/conf/eth0/arp_notify", "1")?;
    backend.sysctl("ipv6/conf/eth0/ndisc_notify", "1")?;
    changes_mac(&world)
}

/// Likewise, and says nothing: it is noticed when the neighbour is confirmed.
pub fn silent_mac() -> Result<()> {
    changes_mac(&World::new(Shape::Lan, 1, 1)?)
}

fn changes_mac(world: &World) -> Result<()> {
    let host = &world.bed.backends[0];
    let before = mac(&host.netns)?;
    for vip in VIPS {
        leads_to(world, vip, host.address(vip, BACKEND_PORT), "lan", &before)?;
    }
    held_through(world, "b0", || {
        host.netns.ip(&format!("link set eth0 address {NEW_MAC}"))?;
        for vip in VIPS {
            leads_to(world, vip, host.address(vip, BACKEND_PORT), "lan", NEW_MAC)?;
        }
        Ok(())
    })?;
    by_xdp(world)
}

/// Nobody has the backend's address; then somebody has.
pub fn unanswered() -> Result<()> {
    let world = World::new(Shape::Lan, 2, 1)?;
    let addresses = [
        SocketAddr::from(([10, 1, 0, 99], BACKEND_PORT)),
        SocketAddr::new("2001:db8:2::99".parse()?, BACKEND_PORT),
    ];
    for (vip, address) in VIPS.into_iter().zip(addresses) {
        let service = vip_address(vip).to_string();
        let address_text = address.to_string();
        world
            .agent
            .ok(&["backend", "add", &service, &address_text])?;
        unresolved(&world, vip, address, "does not answer")?;
    }
    let note = "backends have no next hop (10.1.0.99 on lan does not answer";
    ensure!(world.agent.ok(&["status"])?.contains(note));
    let host = &world.bed.backends[1].netns;
    host.ip("address add 10.1.0.99/24 dev eth0\naddress add 2001:db8:2::99/64 dev eth0 nodad")?;
    for (vip, address) in VIPS.into_iter().zip(addresses) {
        leads_to(&world, vip, address, "lan", &mac(host)?)?;
    }
    ensure!(!world.agent.ok(&["status"])?.contains("no next hop"));
    by_xdp(&world)
}

/// The backend's address comes to the balancer itself, and goes again.
pub fn own_address() -> Result<()> {
    let world = World::new(Shape::Routed, 1, 1)?;
    let host = &world.bed.backends[0];
    for (verb, own) in [("add", true), ("del", false)] {
        world.bed.balancer.ip(&format!(
            "address {verb} {}/32 dev lo\naddress {verb} {}/128 dev lo",
            host.v4, host.v6
        ))?;
        for vip in VIPS {
            let backend = host.address(vip, BACKEND_PORT);
            if own {
                unresolved(&world, vip, backend, "this host")?;
            } else {
                leads_to(&world, vip, backend, "b0", &mac(&host.netns)?)?;
            }
        }
    }
    by_xdp(&world)
}

/// The far end of a veth pair takes no redirected frames; then it does. No netlink message tells, so another
/// change makes the agent look.
pub fn far_end_of_veth() -> Result<()> {
    let mut world = World::new(Shape::Routed, 1, 1)?;
    world.bed.without_xdp(0)?;
    world.bed.balancer.ip("link set b0 mtu 1499")?;
    let host = &world.bed.backends[0];
    for vip in VIPS {
        let backend = host.address(vip, BACKEND_PORT);
        unresolved(&world, vip, backend, "b0 takes no XDP frames")?;
    }
    world.works()?;
    ensure!(counter(&world.agent, "asked_fib")? > 0);

    gro_on(&host.netns, "eth0")?;
    world.bed.balancer.ip("link set b0 mtu 1500")?;
    for vip in VIPS {
        let backend = host.address(vip, BACKEND_PORT);
        leads_to(&world, vip, backend, "b0", &mac(&host.netns)?)?;
    }
    by_xdp(&world)
}

/// A server that is reached through both backends, which forward to it. Its own packets all leave by the second.
struct Inner {
    _server: Server,
}

impl Inner {
    fn behind_both(world: &World) -> Result<Self> {
        let netns = Netns::new("inner")?;
        for (index, name) in ["eth0", "eth1"].into_iter().enumerate() {
            let router = &world.bed.backends[index].netns;
            router.sysctl("ipv4/ip_forward", "1")?;
            router.sysctl("ipv6/conf/all/forwarding", "1")?;
            router.ip(&format!(
                "link add name inner type veth peer name {name} netns {}\nlink set inner up\n\
                 address add 172.16.{index}.1/24 dev inner\n\
                 address add 2001:db8:a:{index}::1/64 dev inner nodad\n\
                 route add {INNER4}/32 via 172.16.{index}.2\n",
                netns.path()
            ))?;
            netns.ip(&format!(
                "address add 172.16.{index}.2/24 dev {name}\n\
                 address add 2001:db8:a:{index}::2/64 dev {name} nodad\nlink set {name} up"
            ))?;
            router.ip(&format!("route add {INNER6}/128 via 2001:db8:a:{index}::2"))?;
            tx_checksum_off(&netns, name)?;
        }
        netns.ip(&format!(
            "address add {INNER4}/32 dev lo\naddress add {INNER6}/128 dev lo nodad\n\
             route add default via 172.16.1.1\nroute add default via 2001:db8:a:1::1"
        ))?;
        Ok(Self {
            _server: Server::start(&netns, Config::new("inner", BACKEND_PORT))?,
        })
    }
}

fn inner(like: IpAddr) -> SocketAddr {
    match like {
        IpAddr::V4(_) => (INNER4, BACKEND_PORT).into(),
        IpAddr::V6(_) => (INNER6, BACKEND_PORT).into(),
    }
}

/// Makes the inner server the only backend of the TCP services.
fn serve_inner(world: &World) -> Result<()> {
    for vip in VIPS {
        let service = vip_address(vip).to_string();
        let (new, old) = (inner(vip).to_string(), world.backend(0, vip));
        world.agent.ok(&["backend", "add", &service, &new])?;
        world
            .agent
            .ok(&["backend", "remove", &service, &old, "--now"])?;
    }
    eventually("the inner server answers", || Ok(world.works().is_ok()))
}

/// Routes to the inner server by a backend.
fn route_by(world: &World, index: usize, verb: &str, metric: &str) -> Result<()> {
    let host = &world.bed.backends[index];
    world.bed.balancer.ip(&format!(
        "route {verb} 10.9.0.0/24 via {} {metric}\nroute {verb} 2001:db8:9::/64 via {} {metric}",
        host.v4, host.v6
    ))
}

/// MAC address of `eth0`.
fn mac(netns: &Netns) -> Result<String> {
    let text = netns.output("ip", &["-json", "link", "show", "eth0"])?;
    let links: Value = serde_json::from_str(&text)?;
    let mac = links[0]["address"].as_str();
    Ok(mac.context("eth0 has no address")?.to_owned())
}

/// Link-local address of `eth0`.
fn link_local(netns: &Netns) -> Result<String> {
    let text = netns.output(
        "ip",
        &[
            "-6", "-json", "address", "show", "dev", "eth0", "scope", "link",
        ],
    )?;
    let links: Value = serde_json::from_str(&text)?;
    // Addresses of another scope are empty objects.
    let mut addresses = links[0]["addr_info"].as_array().into_iter().flatten();
    let address = addresses.find_map(|address| address["local"].as_str());
    Ok(address
        .with_context(|| format!("no link-local address: {text}"))?
        .to_owned())
}

/// What `lb` says of a backend of a TCP service.
fn way(world: &World, vip: IpAddr, backend: SocketAddr) -> Result<Value> {
    let services = world
        .agent
        .json(&["backend", "list", &vip_address(vip).to_string()])?;
    let backends = services[0]["backends"].as_array();
    let found = backends
        .context("no backends")?
        .iter()
        .find(|b| b["address"] == *backend.to_string());
    Ok(found.with_context(|| format!("no {backend}"))?.clone())
}

/// Waits until a backend's next hop is this one.
fn leads_to(
    world: &World,
    vip: IpAddr,
    backend: SocketAddr,
    interface: &str,
    mac: &str,
) -> Result<()> {
    let what = format!("the next hop to {backend} is {mac} on {interface}");
    eventually(&what, || {
        let hop = &way(world, vip, backend)?["next_hop"];
        Ok(hop["interface"] == *interface && hop["mac"] == *mac)
    })
}

/// Waits until a backend has no next hop, for this reason.
fn unresolved(world: &World, vip: IpAddr, backend: SocketAddr, why: &str) -> Result<()> {
    eventually(&format!("{backend} is not resolved: {why}"), || {
        let way = way(world, vip, backend)?;
        let said = way["unresolved"].as_str().unwrap_or_default();
        Ok(way["next_hop"].is_null() && said.contains(why))
    })
}

/// Opens a connection to each VIP, does something, and checks that both go on.
fn held_through(world: &World, backend: &str, work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    world.client(async {
        let mut held = Vec::new();
        for vip in VIPS {
            held.push(Connection::open(vip_address(vip)).await?);
        }
        work()?;
        for connection in &mut held {
            ensure!(connection.get("/").await?.backend == backend);
        }
        Ok(())
    })
}

/// Checks that connections work without the kernel being asked for the way.
fn by_xdp(world: &World) -> Result<()> {
    let before = counter(&world.agent, "asked_fib")?;
    world.works()?;
    ensure!(counter(&world.agent, "asked_fib")? == before);
    Ok(())
}
