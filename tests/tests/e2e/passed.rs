//! What is not for a VIP: `lb` must not touch it.

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    client::{Questions, get},
    server::{Config, Server},
    topology::{Shape, VIP4, VIP6, VIPS},
    world::{BACKEND_PORT, VIP_PORT, World},
};
use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::{FromRawFd as _, OwnedFd},
    time::Duration,
};

const SSH_LIKE: u16 = 22;
const OTHER: u16 = 9999;

pub fn to_the_balancer() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 2)?;
    // Its addresses in the client's subnet and in a backend's, of both families.
    let addresses = ["192.0.2.1", "10.1.0.1", "2001:db8:1::1", "2001:db8:2::1"];
    let addresses = addresses
        .iter()
        .map(|a| a.parse())
        .collect::<Result<Vec<IpAddr>, _>>()?;
    let mut config = Config::new("balancer", SSH_LIKE);
    config.udp_addresses.clone_from(&addresses);
    let _server = Server::start(&world.bed.balancer, config)?;
    for address in addresses {
        let server = SocketAddr::new(address, SSH_LIKE);
        ensure!(world.client(get(server, "/"))?.backend == "balancer");
        let reply = world.client(async move { Questions::to(server).await?.ask(b"x").await })?;
        ensure!(reply == "balancer");
        ping(&world, address, b"abcdefghijklmnopq")?;
    }
    world.works()
}

pub fn through_the_balancer() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 2)?;
    let host = &world.bed.backends[1];
    let _server = Server::start(&host.netns, Config::new("other", OTHER))?;
    for vip in VIPS {
        let other = host.address(vip, OTHER);
        ensure!(world.client(get(other, "/"))?.backend == "other");
        let reply = world.client(async move { Questions::to(other).await?.ask(b"x").await })?;
        ensure!(reply == "other");
        ping(&world, other.ip(), b"abcdefghijklmnopq")?;
        // The very port that the VIP's flows go to.
        let same = host.address(vip, BACKEND_PORT);
        ensure!(world.client(get(same, "/"))?.backend == "b1");
        let reply = world.client(async move { Questions::to(same).await?.ask(b"x").await })?;
        ensure!(reply == "b1");
    }
    world.works()
}

pub fn other_ports() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 2)?;
    // The host has the VIP as an address too, as hosts may, and serves on other ports of it.
    world.bed.balancer.ip(&format!(
        "address add {VIP4}/32 dev lo\naddress add {VIP6}/128 dev lo nodad"
    ))?;
    let mut config = Config::new("balancer", OTHER);
    config.udp_addresses = VIPS.to_vec();
    let _server = Server::start(&world.bed.balancer, config)?;
    for vip in VIPS {
        let other = SocketAddr::new(vip, OTHER);
        ensure!(world.client(get(other, "/"))?.backend == "balancer");
        let reply = world.client(async move { Questions::to(other).await?.ask(b"x").await })?;
        ensure!(reply == "balancer");
        let vip_port = SocketAddr::new(vip, VIP_PORT);
        ensure!(world.client(get(vip_port, "/"))?.backend != "balancer");
    }
    Ok(())
}

/// Sends an echo request from the client, and checks the reply.
pub fn ping(world: &World, to: IpAddr, payload: &[u8]) -> Result<()> {
    let client = &world.bed.client.netns;
    client.sysctl("ipv4/ping_group_range", "0 0")?;
    client.run(|| {
        let (socket, request, reply) = match to {
            IpAddr::V4(_) => (icmp(libc::AF_INET, libc::IPPROTO_ICMP)?, 8, 0),
            IpAddr::V6(_) => (icmp(libc::AF_INET6, libc::IPPROTO_ICMPV6)?, 128, 129),
        };
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        socket.connect(SocketAddr::new(to, 0))?;
        // Type, code, checksum and id (the kernel's), sequence.
        socket.send(&[&[request, 0, 0, 0, 0, 0, 0, 1], payload].concat())?;
        let mut buffer = [0; 2000];
        let length = socket
            .recv(&mut buffer)
            .with_context(|| format!("no echo reply from {to}"))?;
        ensure!(buffer[0] == reply && &buffer[8..length] == payload);
        Ok(())
    })
}

fn icmp(family: i32, protocol: i32) -> Result<UdpSocket> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error()).context("cannot open a ping socket");
    }
    // SAFETY: the kernel has just returned this descriptor to us alone. An ICMP socket has the calls of
    // a UDP one.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}
