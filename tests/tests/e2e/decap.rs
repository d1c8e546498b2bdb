//! `lb decap` on a backend: real connections through every kind of tunnel, answered directly.

use anyhow::{Context as _, Result, ensure};
use etherparse::IpEcn;
use lb_tests::{
    agent::refusal,
    client::{Connection, Questions},
    decap::Decap,
    fixture::frame::{ETHERNET, Frame, Kind},
    offload::PassAll,
    process::Process,
    server::{Config, Server},
    topology::{Shape, Topology, VIPS},
    tunnel::{Gue0, INNER_MTU, RawSender, Sender, Tunnel, Way},
    world::{VIP_PORT, eventually, vip_address},
};
use nix::sys::signal::Signal;
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use crate::lifecycle::xdp_programs;

/// The balancer's addresses in the subnet of the first backend.
const BALANCER4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const BALANCER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 1);
/// What `lb decap` is told of the network.
const ARGS: [&str; 8] = [
    "--vip",
    "198.51.100.10",
    "--vip",
    "2001:db8:f::10",
    "--from",
    "10.1.0.0/24",
    "--from",
    "2001:db8:2::/64",
];

/// A network whose one backend has the VIPs, and a server on them.
struct Bed {
    server: Server,
    topology: Topology,
}

impl Bed {
    fn new() -> Result<Self> {
        let mut topology = Topology::new(Shape::Routed, 1)?;
        topology.end_tunnel(0)?;
        let config = Config {
            udp_addresses: VIPS.to_vec(),
            ..Config::new("b0", VIP_PORT)
        };
        Ok(Self {
            server: Server::start(&topology.backends[0].netns, config)?,
            topology,
        })
    }

    fn decap(&self, args: &[&str]) -> Result<Decap> {
        let args = [&ARGS[..], args].concat();
        Decap::start(&self.topology.backends[0].netns, "eth0", &args)
    }

    /// A tunnel from the balancer to the backend.
    fn tunnel(&self, way: Way, outer_v4: bool) -> Tunnel {
        let backend = &self.topology.backends[0];
        match outer_v4 {
            true => Tunnel::new(BALANCER4, backend.v4, way),
            false => Tunnel::new(BALANCER6, backend.v6, way),
        }
    }

    /// Sends what the client sends to the VIPs by a tunnel, checks that all works, and that what was sent is
    /// what was taken off.
    fn works_by(&self, decap: &Decap, tunnel: &Tunnel) -> Result<()> {
        let names = VIPS.map(|vip| tunnel.counter(vip));
        let counted = || -> Result<u64> {
            let mut names = names.to_vec();
            names.dedup();
            names.iter().map(|name| decap.counter(name)).sum()
        };
        let before = counted()?;
        let sender = Sender::start(
            &self.topology.balancer,
            &VIPS.map(|vip| (vip, tunnel.clone())),
            INNER_MTU,
        )?;
        for vip in VIPS {
            self.topology.client.netns.block_on(async move {
                let mut connection = Connection::open(vip_address(vip)).await?;
                let reply = connection.get("/").await?;
                ensure!(reply.backend == "b0" && reply.client == connection.local());
                connection.download(300_000).await?;
                // Another connection, closed by both ends.
                drop(
                    Connection::open(vip_address(vip))
                        .await?
                        .get_last("/")
                        .await?,
                );
                let questions = Questions::to(vip_address(vip)).await?;
                for length in [0, 1, 1_000] {
                    ensure!(questions.ask(&vec![7; length]).await? == "b0");
                }
                Ok(())
            })?;
        }
        let sent = sender.stop()?;
        eventually("all that was sent is counted", || {
            Ok(counted()? - before == sent)
        })
    }
}

/// A datagram from the client, from the IP header on.
fn datagram(bed: &Bed, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let frame = Frame {
        kind: if to.is_ipv4() { Kind::Udp4 } else { Kind::Udp6 },
        source_mac: [0; 6],
        destination_mac: [0; 6],
        source: bed.topology.client.address(to.ip(), 5_555),
        destination: to,
        ttl: 60,
        flags: 0,
        options: Vec::new(),
        payload: payload.to_vec(),
        without_checksum: false,
    };
    frame.bytes().split_off(ETHERNET)
}

pub fn every_tunnel() -> Result<()> {
    let bed = Bed::new()?;
    let decap = bed.decap(&[])?;
    ensure!(decap.log().contains("native"), "{}", decap.log());
    let fields = Gue0 {
        fields: vec![1; 8],
        ..Gue0::default()
    };
    for way in [
        Way::Ip,
        Way::Gue0(Gue0::default()),
        Way::Gue0(fields),
        Way::Gue1,
    ] {
        for outer_v4 in [true, false] {
            let tunnel = bed.tunnel(way.clone(), outer_v4);
            bed.works_by(&decap, &tunnel)
                .with_context(|| format!("{tunnel:?}"))?;
        }
    }
    let with_checksum = Tunnel {
        checksum: true,
        ..bed.tunnel(Way::Gue1, false)
    };
    bed.works_by(&decap, &with_checksum)?;
    let counted = decap.stop()?;
    ensure!(counted["dropped"] == 0, "{counted}");
    Ok(())
}

pub fn generic_mode() -> Result<()> {
    let bed = Bed::new()?;
    let decap = bed.decap(&["--xdp-mode", "generic"])?;
    ensure!(decap.log().contains("generic"), "{}", decap.log());
    for way in [Way::Ip, Way::Gue1] {
        for outer_v4 in [true, false] {
            bed.works_by(&decap, &bed.tunnel(way.clone(), outer_v4))?;
        }
    }
    Ok(())
}

/// Each is kept from the server, and counted by its reason; the last, which is in order, arrives.
pub fn refused_packets() -> Result<()> {
    let bed = Bed::new()?;
    let decap = bed.decap(&[])?;
    let raw = RawSender::new(&bed.topology.balancer)?;
    let tunnel = bed.tunnel(Way::Ip, true);
    let good = datagram(&bed, vip_address(VIPS[0]), b"hello");
    let foreign_source = Tunnel {
        source: Ipv4Addr::new(10, 9, 9, 9).into(),
        ..tunnel.clone()
    };
    let congested = Tunnel {
        ecn: IpEcn::try_new(3)?,
        ..tunnel.clone()
    };
    let other_vip = datagram(
        &bed,
        bed.topology.backends[0].address(VIPS[0], VIP_PORT),
        b"hello",
    );
    raw.send(&foreign_source.wrap(&good))?;
    raw.send(&congested.wrap(&good))?;
    raw.send(&tunnel.wrap(&other_vip))?;
    raw.send(&tunnel.wrap(&good))?;
    eventually("the good datagram arrives", || {
        Ok(bed.server.stats().datagrams() == 1)
    })?;
    let counted = decap.stop()?;
    for name in ["source_refused", "congested", "other_destination", "4in4"] {
        ensure!(counted["counters"][name] == 1, "{name}: {counted}");
    }
    ensure!(counted["decapsulated"] == 1 && counted["dropped"] == 1);
    ensure!(bed.server.stats().datagrams() == 1);
    Ok(())
}

/// With a large MTU the program is the one for frames in several buffers, and native all the same.
pub fn jumbo_frames() -> Result<()> {
    const PORT: u16 = 7_777;
    let bed = Bed::new()?;
    let backend = &bed.topology.backends[0].netns;
    bed.topology.balancer.ip("link set b0 mtu 9000")?;
    backend.ip("link set eth0 mtu 9000")?;
    let decap = bed.decap(&[])?;
    ensure!(decap.log().contains("native"), "{}", decap.log());
    let raw = RawSender::new(&bed.topology.balancer)?;
    let payload: Vec<u8> = (0..8_500).map(|i| (i * 11 / 3) as u8).collect();
    for (vip, outer_v4) in [(VIPS[0], true), (VIPS[1], false)] {
        let socket = backend.run(|| Ok(UdpSocket::bind((vip, PORT))?))?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        for way in [Way::Ip, Way::Gue0(Gue0::default()), Way::Gue1] {
            let packet = datagram(&bed, (vip, PORT).into(), &payload);
            let tunnel = bed.tunnel(way, outer_v4);
            raw.send(&tunnel.wrap(&packet))?;
            let mut received = vec![0; 9_000];
            let length = socket
                .recv(&mut received)
                .with_context(|| format!("{tunnel:?}"))?;
            ensure!(received[..length] == payload, "{tunnel:?}: altered");
        }
    }
    Ok(())
}

/// The addresses that tunnels end at come and go with those of the interface, and of what is on top of it.
pub fn addresses_followed() -> Result<()> {
    let bed = Bed::new()?;
    let decap = bed.decap(&[])?;
    let backend = &bed.topology.backends[0].netns;
    let raw = RawSender::new(&bed.topology.balancer)?;
    let good = datagram(&bed, vip_address(VIPS[0]), b"hello");
    let second = Tunnel {
        destination: Ipv4Addr::new(10, 1, 0, 77).into(),
        ..bed.tunnel(Way::Ip, true)
    };
    bed.topology
        .balancer
        .ip("route add 10.1.0.77 via 10.1.0.2 dev b0")?;
    // Sends until the counter goes up.
    let until = |counter: &str| {
        let before = decap.counter(counter)?;
        eventually(counter, || {
            raw.send(&second.wrap(&good))?;
            Ok(decap.counter(counter)? > before)
        })
    };
    until("foreign_address")?;
    backend.ip("address add 10.1.0.77/32 dev eth0")?;
    until("4in4")?;
    backend.ip("address del 10.1.0.77/32 dev eth0")?;
    until("foreign_address")?;
    backend.ip("link add link eth0 name upper type macvlan mode bridge\n\
         address add 10.1.0.77/32 dev upper")?;
    until("4in4")?;
    // An address on the loopback, as a VIP is, ends no tunnel.
    backend.ip("link delete upper\naddress add 10.1.0.77/32 dev lo")?;
    until("foreign_address")?;

    bed.topology.balancer.ip("link delete b0")?;
    let said = decap.fails()?;
    ensure!(said.contains("eth0 is gone"), "{said}");
    Ok(())
}

/// Addresses that are given are the only ones.
pub fn given_addresses() -> Result<()> {
    let bed = Bed::new()?;
    let backend = &bed.topology.backends[0];
    let decap = bed.decap(&["--address", &backend.v6.to_string()])?;
    bed.works_by(&decap, &bed.tunnel(Way::Ip, false))?;
    let raw = RawSender::new(&bed.topology.balancer)?;
    let datagram = datagram(&bed, vip_address(VIPS[1]), b"hello");
    raw.send(&bed.tunnel(Way::Ip, true).wrap(&datagram))?;
    eventually("the other address is foreign", || {
        Ok(decap.counter("foreign_address")? == 1)
    })
}

pub fn signals() -> Result<()> {
    let bed = Bed::new()?;
    let backend = &bed.topology.backends[0].netns;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut command = Decap::command(backend, "eth0", &ARGS)?;
        let mut process = Process::spawn(&mut command)?;
        ensure!(xdp_programs(backend)? == ["eth0"]);
        process.end(signal)?;
        ensure!(xdp_programs(backend)?.is_empty());
        let printed = process.output();
        for name in ["4in4", "6in4", "4in6", "6in6", "gue_0", "gue_1"] {
            ensure!(printed.contains(name), "{printed}");
        }
    }
    Ok(())
}

pub fn taken_interface() -> Result<()> {
    let bed = Bed::new()?;
    let backend = &bed.topology.backends[0].netns;
    let mut other = PassAll::load()?;
    other.attach(backend, "eth0")?;
    let said = refusal(&mut Decap::command(backend, "eth0", &ARGS)?)?;
    ensure!(said.contains("eth0") && said.contains("pass"), "{said}");
    ensure!(xdp_programs(backend)? == ["eth0"]);
    other.detach(backend, "eth0")?;

    let decap = bed.decap(&[])?;
    let said = refusal(&mut Decap::command(backend, "eth0", &ARGS)?)?;
    ensure!(said.contains("decap"), "{said}");
    drop(decap);

    let said = refusal(&mut Decap::command(backend, "eth7", &ARGS)?)?;
    ensure!(said.contains("eth7") && said.contains("eth0"), "{said}");
    Ok(())
}

/// What would keep packets from arriving is said at the start, and nothing when all is well.
pub fn notes() -> Result<()> {
    let bed = Bed::new()?;
    let backend = &bed.topology.backends[0].netns;
    let told = ["no --from", "rp_filter", "is no address of this host"];
    let log = bed.decap(&[])?.log();
    for note in told {
        ensure!(!log.contains(note), "{log}");
    }
    backend.sysctl("ipv4/conf/eth0/rp_filter", "1")?;
    let log = Decap::start(backend, "eth0", &["--vip", "192.0.2.99"])?.log();
    for note in told {
        ensure!(log.contains(note), "{note}: {log}");
    }
    ensure!(log.contains("192.0.2.99") && log.contains("net.ipv4.conf.eth0.rp_filter=2"));
    // Loose filtering of all interfaces makes this one loose, too.
    backend.sysctl("ipv4/conf/all/rp_filter", "2")?;
    let log = bed.decap(&[])?.log();
    ensure!(!log.contains("rp_filter"), "{log}");
    Ok(())
}

/// What cannot be meant ends with exit code 2, and says what is wrong.
pub fn wrong_usage() -> Result<()> {
    let bed = Bed::new()?;
    let backend = &bed.topology.backends[0].netns;
    let cases: [(&[&str], &str); 6] = [
        (&["--from", "10.1.0.1/24"], "10.1.0.0/24"),
        (&["--from", "balancer"], "balancer"),
        (&["--vip", "198.51.100.10:80"], "198.51.100.10:80"),
        (&["--gue-port", "70000"], "70000"),
        (&["--gue-port", "5555", "--no-gue"], "--no-gue"),
        (&["--stats-interval", "0s"], "0s"),
    ];
    for (args, named) in cases {
        let output = Decap::command(backend, "eth0", args)?.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(2), "{args:?}: {said}");
        ensure!(said.contains(named), "{args:?}: {said}");
    }
    ensure!(xdp_programs(backend)?.is_empty());
    Ok(())
}
