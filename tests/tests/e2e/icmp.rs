//! Pings of VIPs, and ICMP errors that find their way through `lb`.

use crate::{changes::counter, passed::ping};
use anyhow::{Context as _, Result, bail, ensure};
use lb_tests::{
    client::Connection,
    netns::Netns,
    offload::tx_checksum_off,
    topology::{Shape, VIPS},
    world::{World, vip_address},
};
use std::{
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    time::Duration,
};

/// An MTU that only the last hop before the client has.
const SMALL_MTU: u16 = 1300;
const INNER4: Ipv4Addr = Ipv4Addr::new(192, 0, 3, 2);
const INNER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 0, 2);

pub fn pings() -> Result<()> {
    let world = World::new(Shape::Routed, 1, 1)?;
    let data: Vec<u8> = (0..1452).map(|i| (i * 7) as u8).collect();
    let lengths = [0, 1, 2, 3, 18, 56, 57, 512, 1399, 1452];
    for vip in VIPS {
        for length in lengths {
            ping(&world, vip, &data[..length]).with_context(|| format!("{length} bytes"))?;
        }
        ping(&world, vip, &[0; 56])?;
        ping(&world, vip, &[0xff; 57])?;
    }
    let replies = counter(&world.agent, "echo_reply")?;
    ensure!(replies == 2 * (lengths.len() as u64 + 2), "{replies}");
    Ok(())
}

/// A router on the client's side has a smaller MTU behind it. Its "fragmentation needed" and "packet too
/// big" go to the VIP; the backend must hear of them.
pub fn path_mtu() -> Result<()> {
    let world = World::new(Shape::Routed, 1, 1)?;
    let router = &world.bed.client.netns;
    for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        router.sysctl(key, "1")?;
    }
    let inner = Netns::new("inner")?;
    router.ip(&format!(
        "link add name inner mtu {SMALL_MTU} type veth peer name eth0 mtu 1500 netns {}\n\
         link set inner up\n\
         address add 192.0.3.1/24 dev inner\naddress add 2001:db8:3::1/64 dev inner nodad",
        inner.path()
    ))?;
    inner.ip(&format!(
        "address add {INNER4}/24 dev eth0\naddress add {INNER6}/64 dev eth0 nodad\n\
         link set eth0 up\n\
         route add default via 192.0.3.1\nroute add default via 2001:db8:3::1"
    ))?;
    tx_checksum_off(&inner, "eth0")?;
    for vip in VIPS {
        let before = counter(&world.agent, "icmp_error")?;
        inner.block_on(async move {
            let mut connection = Connection::open(vip_address(vip)).await?;
            connection.download(2_000_000).await?;
            Ok(())
        })?;
        ensure!(
            counter(&world.agent, "icmp_error")? > before,
            "{vip}: no error was passed on"
        );
        // The backend has learnt the MTU of its path to the client, by its own address.
        let client = match vip {
            IpAddr::V4(_) => INNER4.to_string(),
            IpAddr::V6(_) => INNER6.to_string(),
        };
        let backend = &world.bed.backends[0].netns;
        let route = backend.output("ip", &["route", "get", &client])?;
        ensure!(route.contains(&format!("mtu {SMALL_MTU}")), "{route}");
    }
    Ok(())
}

/// Nobody listens on the backend's UDP port: the client hears of it as it would from the VIP itself.
pub fn unreachable_port() -> Result<()> {
    let mut world = World::new(Shape::Routed, 1, 1)?;
    world.servers.clear();
    for vip in VIPS {
        world.bed.client.netns.run(|| {
            let any: IpAddr = match vip {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = UdpSocket::bind((any, 0))?;
            socket.set_read_timeout(Some(Duration::from_secs(30)))?;
            // Only errors about datagrams to this very address and port are reported.
            socket.connect(vip_address(vip))?;
            socket.send(b"anybody?")?;
            match socket.recv(&mut [0; 100]) {
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => Ok(()),
                other => bail!("{vip}: {other:?}"),
            }
        })?;
    }
    ensure!(counter(&world.agent, "icmp_error")? == 2);
    Ok(())
}
