//! Networks with a client, a balancer and backends, each in a namespace of its own.

use crate::{
    netns::Netns,
    offload::{PassAll, tx_checksum_off},
};
use anyhow::{Result, ensure};
use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// The IPv4 VIP. It is on no interface: the client's route to it is the balancer.
pub const VIP4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
/// The IPv6 VIP, on no interface either.
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 0x10);
/// Both VIPs.
pub const VIPS: [IpAddr; 2] = [IpAddr::V4(VIP4), IpAddr::V6(VIP6)];

const CLIENT_NET4: [u8; 3] = [192, 0, 2];
const CLIENT_NET6: [u16; 3] = [0x2001, 0xdb8, 1];
const BACKEND_NET4: [u8; 2] = [10, 1];
const BACKEND_NET6: [u16; 3] = [0x2001, 0xdb8, 2];
const MAX_BACKENDS: usize = 200;

/// How the backends are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Each backend is in a subnet of its own, on an interface of its own.
    Routed,
    /// All backends are in one subnet behind one interface, on a bridge.
    Lan,
    /// As [`Lan`](Self::Lan), and the client's subnet is behind that same interface.
    OneArm,
}

/// A host other than the balancer.
#[derive(Debug)]
pub struct Host {
    /// Its namespace.
    pub netns: Netns,
    /// Its address.
    pub v4: Ipv4Addr,
    /// Its IPv6 address.
    pub v6: Ipv6Addr,
}

impl Host {
    /// Its address of the family of `like`, with a port.
    pub fn address(&self, like: IpAddr, port: u16) -> SocketAddr {
        match like {
            IpAddr::V4(_) => (self.v4, port).into(),
            IpAddr::V6(_) => (self.v6, port).into(),
        }
    }
}

/// A client, a balancer and backends. Hosts other than the balancer reach all else through it.
pub struct Topology {
    /// The balancer's namespace: a router, until `lb` runs there.
    pub balancer: Netns,
    /// Interfaces of the balancer that traffic for VIPs or from backends comes in by.
    pub interfaces: Vec<String>,
    /// The client.
    pub client: Host,
    /// The backends.
    pub backends: Vec<Host>,
    // Held for their life only.
    _switch: Option<Netns>,
    pass: PassAll,
}

impl Topology {
    /// Lays out a network with that many backends.
    pub fn new(shape: Shape, backends: usize) -> Result<Self> {
        ensure!(
            backends <= MAX_BACKENDS,
            "a test bed has at most {MAX_BACKENDS} backends"
        );
        let balancer = Netns::new("balancer")?;
        for (key, value) in [
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv6/conf/default/forwarding", "1"),
            // With one arm every packet leaves by the interface it came in by.
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
        ] {
            balancer.sysctl(key, value)?;
        }
        let mut build = Build {
            balancer,
            pass: PassAll::load()?,
            interfaces: Vec::new(),
        };
        let switch = match shape {
            Shape::Routed => None,
            Shape::Lan | Shape::OneArm => Some(build.switch()?),
        };
        let client_switch = switch.as_ref().filter(|_| shape == Shape::OneArm);
        let client = build.client(client_switch)?;
        let backends = (0..backends)
            .map(|index| build.backend(index, switch.as_ref()))
            .collect::<Result<_>>()?;
        Ok(Self {
            balancer: build.balancer,
            interfaces: build.interfaces,
            client,
            backends,
            _switch: switch,
            pass: build.pass,
        })
    }

    /// Makes a backend the end of a tunnel: it has the VIPs as addresses of its own, and its interface is free for
    /// the program of [`Decap`](crate::decap::Decap).
    pub fn end_tunnel(&mut self, index: usize) -> Result<()> {
        self.without_xdp(index)?;
        hold_vips(&self.backends[index].netns)
    }

    /// Takes the XDP program off a backend's interface: frames cannot be redirected there any more.
    pub fn without_xdp(&mut self, index: usize) -> Result<()> {
        self.pass.detach(&self.backends[index].netns, "eth0")
    }

    /// Name of the backend with that index, as its servers give it.
    pub fn backend_name(index: usize) -> String {
        format!("b{index}")
    }
}

/// Gives a host the VIPs as addresses of its own, as direct server return needs.
pub fn hold_vips(netns: &Netns) -> Result<()> {
    netns.ip(&format!(
        "address add {VIP4}/32 dev lo\naddress add {VIP6}/128 dev lo nodad"
    ))
}

struct Build {
    balancer: Netns,
    pass: PassAll,
    interfaces: Vec<String>,
}

/// Addresses of a host and of the balancer in its subnet.
struct Subnet {
    host4: Ipv4Addr,
    host6: Ipv6Addr,
    gateway4: Ipv4Addr,
    gateway6: Ipv6Addr,
}

impl Build {
    /// A bridge, with the balancer on it.
    fn switch(&mut self) -> Result<Netns> {
        let switch = Netns::new("switch")?;
        switch.ip(
            "link add name br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
                   link set br0 up",
        )?;
        switch.ip(&format!(
            "link add name balancer type veth peer name lan netns {}\n\
             link set balancer master br0 up",
            self.balancer.path()
        ))?;
        self.balancer.ip("link set lan up")?;
        self.pass.attach(&switch, "balancer")?;
        self.interfaces.push("lan".to_owned());
        Ok(switch)
    }

    fn client(&mut self, switch: Option<&Netns>) -> Result<Host> {
        let [a, b, c] = CLIENT_NET4;
        let [x, y, z] = CLIENT_NET6;
        let subnet = Subnet {
            host4: Ipv4Addr::new(a, b, c, 2),
            host6: Ipv6Addr::new(x, y, z, 0, 0, 0, 0, 2),
            gateway4: Ipv4Addr::new(a, b, c, 1),
            gateway6: Ipv6Addr::new(x, y, z, 0, 0, 0, 0, 1),
        };
        self.host("client", subnet, switch, true)
    }

    fn backend(&mut self, index: usize, switch: Option<&Netns>) -> Result<Host> {
        let [a, b] = BACKEND_NET4;
        let [x, y, z] = BACKEND_NET6;
        let number = u8::try_from(index)?;
        let subnet = match switch {
            None => Subnet {
                host4: Ipv4Addr::new(a, b, number, 2),
                host6: Ipv6Addr::new(x, y, z, number.into(), 0, 0, 0, 2),
                gateway4: Ipv4Addr::new(a, b, number, 1),
                gateway6: Ipv6Addr::new(x, y, z, number.into(), 0, 0, 0, 1),
            },
            Some(_) => Subnet {
                host4: Ipv4Addr::new(a, b, 0, number + 10),
                host6: Ipv6Addr::new(x, y, z, 0, 0, 0, 0, u16::from(number) + 10),
                gateway4: Ipv4Addr::new(a, b, 0, 1),
                gateway6: Ipv6Addr::new(x, y, z, 0, 0, 0, 0, 1),
            },
        };
        let first = index == 0;
        self.host(&Topology::backend_name(index), subnet, switch, first)
    }

    /// A host behind the switch, or behind an interface of the balancer of the host's name. On the
    /// switch, `add_gateway` gives the balancer its address in the subnet.
    fn host(
        &mut self,
        name: &str,
        subnet: Subnet,
        switch: Option<&Netns>,
        add_gateway: bool,
    ) -> Result<Host> {
        let Subnet {
            host4,
            host6,
            gateway4,
            gateway6,
        } = subnet;
        let netns = Netns::new(name)?;
        let add = format!(
            "link add name {name} type veth peer name eth0 netns {}\n",
            netns.path()
        );
        let mut gateway = String::new();
        let near = match switch {
            Some(switch) => {
                switch.ip(&format!("{add}link set {name} master br0 up"))?;
                "lan"
            }
            None => {
                gateway = format!("{add}link set {name} up\n");
                self.interfaces.push(name.to_owned());
                name
            }
        };
        if switch.is_none() || add_gateway {
            write!(
                gateway,
                "address add {gateway4}/24 dev {near}\naddress add {gateway6}/64 dev {near} nodad"
            )?;
            self.balancer.ip(&gateway)?;
        }
        netns.ip(&format!(
            "address add {host4}/24 dev eth0\naddress add {host6}/64 dev eth0 nodad\n\
             link set eth0 up\n\
             route add default via {gateway4}\nroute add default via {gateway6}"
        ))?;
        tx_checksum_off(&netns, "eth0")?;
        self.pass.attach(&netns, "eth0")?;
        Ok(Host {
            netns,
            v4: host4,
            v6: host6,
        })
    }
}
