//! Services whose backends are services again.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use aya::programs::{TestRun as _, TestRunOptions, Xdp};
use lb_common::{
    abi::{Service, ServiceKey, draw},
    p2c::{self, Member},
};
use lb_user::{
    dataplane::{Dataplane, Options},
    model::{
        addr::{Protocol, address_words, endpoint_key},
        change::{BackendSlot, MapWrite},
    },
};

use crate::fixture::{
    Frame, Kind, Net, Place, Port,
    frame::{ACK, SYN},
    net::host_mac,
    run::{TX, program},
};

/// Runs in one call: a packet starts with TTL 255, each run takes one, and the last must leave 2 or more.
pub const RUNS: u32 = 250;
/// Longer than the next hops of all backends take to be known.
const PATIENCE: Duration = Duration::from_secs(60);
/// The gateway to all nodes, a host of the fixtures' network.
const GATEWAY: u8 = 1;
/// The client, a host of the fixtures' network.
const CLIENT: u8 = 118;
/// Rows of a candidate table: fewer than the agent makes, so that those of all nodes fit.
const ROWS: u32 = 128;
const SEED: u64 = 7;

/// A loaded program, and nodes that are services and backends at once.
pub struct Chain<'a> {
    /// The data plane.
    pub dataplane: Dataplane,
    net: &'a Net,
    kind: Kind,
    slots: u32,
    rows: u32,
    services: u32,
}

impl<'a> Chain<'a> {
    /// Loads the program, without services. To be called in the namespace of `net`.
    pub fn new(net: &'a Net, kind: Kind, flow_table_size: u32, max_new_flows: u32) -> Result<Self> {
        let dataplane = Dataplane::load(&Options {
            flow_table_size,
            max_backends: 1024,
            max_services: 1024,
            candidate_rows: 1 << 16,
            seed: SEED,
            max_new_flows,
            source_ports: lb_user::dataplane::SOURCE_PORTS,
            gue_port: lb_user::dataplane::GUE_PORT,
            debug: false,
        })?;
        Ok(Self {
            dataplane,
            net,
            kind,
            slots: 0,
            rows: 0,
            services: 0,
        })
    }

    /// Routes to the nodes; once for a network.
    pub fn route(net: &Net) -> Result<()> {
        let (v4, v6) = (
            Place::Near.ip(true, GATEWAY),
            Place::Near.ip(false, GATEWAY),
        );
        net.netns.ip(&format!(
            "route add 10.64.0.0/16 via {v4}\nroute add 2001:db8:64::/64 via {v6}"
        ))
    }

    /// The address of a node.
    pub fn node(&self, node: u16) -> SocketAddr {
        let [high, low] = node.to_be_bytes();
        let ip: IpAddr = if self.kind.is_v4() {
            Ipv4Addr::new(10, 64, high, low).into()
        } else {
            Ipv6Addr::new(0x2001, 0xdb8, 0x64, 0, 0, 0, 0, node).into()
        };
        SocketAddr::new(ip, 1000 + node)
    }

    /// Makes the nodes `from` services, with the nodes `to` as their backends. The services share one
    /// candidate table and its slots.
    pub fn link(&mut self, from: &[u16], to: &[u16], view: u8) -> Result<()> {
        let mut writes = Vec::new();
        let mut members = Vec::new();
        for &node in to {
            let addr = self.node(node);
            let (words, port) = (address_words(addr.ip()), addr.port().to_be());
            members.push(Member {
                id: self.slots,
                key: p2c::member_key(&words, port),
                weight: 1,
            });
            writes.push(MapWrite::Backend(BackendSlot {
                stateless: true,
                ..BackendSlot::new(self.slots, 1, words, port)
            }));
            self.slots += 1;
        }
        writes.push(MapWrite::Rows {
            offset: self.rows,
            rows: (0..ROWS).map(|i| p2c::row(SEED, i, &members)).collect(),
        });
        for &node in from {
            writes.push(MapWrite::Service {
                key: self.key(node),
                value: Service {
                    rows_offset: self.rows,
                    rows: ROWS,
                    version: 1,
                    id: self.services,
                    draw: draw::FLOW,
                    choices: 2,
                    view,
                    flags: 0,
                    source_interval_ns: 0,
                },
            });
            self.services += 1;
        }
        self.rows += ROWS;
        Ok(self.dataplane.write(&writes)?)
    }

    fn key(&self, node: u16) -> ServiceKey {
        let protocol = if self.kind.is_tcp() {
            Protocol::Tcp
        } else {
            Protocol::Udp
        };
        endpoint_key(self.node(node), protocol)
    }

    /// Waits until all next hops are known.
    pub fn await_next_hops(&self) -> Result<()> {
        let start = Instant::now();
        while self.dataplane.next_hops().len() < self.slots as usize {
            ensure!(start.elapsed() < PATIENCE, "next hops stay unknown");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// A packet from the client to a node.
    pub fn request(&self, node: u16, flags: u8) -> Frame {
        Frame {
            kind: self.kind,
            source_mac: host_mac(Place::Near, CLIENT),
            destination_mac: Port::Near.mac(),
            source: self.client(),
            destination: self.node(node),
            ttl: 255,
            flags,
            options: Vec::new(),
            payload: Vec::new(),
            without_checksum: false,
        }
    }

    /// A packet from a node to the client.
    pub fn reply(&self, node: u16, flags: u8) -> Frame {
        let client = self.client();
        self.request(node, flags).from(self.node(node)).to(client)
    }

    fn client(&self) -> SocketAddr {
        SocketAddr::new(Place::Near.ip(self.kind.is_v4(), CLIENT), 40_000)
    }

    /// Establishes a flow to the node `vip`, of which `backend` is the only backend.
    pub fn establish(&self, vip: u16, backend: u16) -> Result<()> {
        self.time(&self.request(vip, SYN), 1)?;
        self.time(&self.reply(backend, SYN | ACK), 1)?;
        self.time(&self.request(vip, ACK), 1)?;
        Ok(())
    }

    /// Runs the program on a frame, again and again on what it made of it, and returns the mean time of
    /// a run in nanoseconds, as the kernel gives it: a whole number, rounded down.
    pub fn time(&self, frame: &Frame, runs: u32) -> Result<u64> {
        time(
            program(&self.dataplane)?,
            &frame.bytes(),
            runs,
            self.net.ifindex(Port::Near),
            TX,
        )
    }
}

/// Runs a program so many times, the last time with this outcome, and returns the mean time of a run
/// in nanoseconds.
pub fn time(program: &Xdp, frame: &[u8], runs: u32, ifindex: u32, code: u32) -> Result<u64> {
    // struct xdp_md, of which data_end and ingress_ifindex are set.
    let mut context = [0; 24];
    context[4..8].copy_from_slice(&u32::try_from(frame.len())?.to_ne_bytes());
    context[12..16].copy_from_slice(&ifindex.to_ne_bytes());
    let mut options = TestRunOptions::new();
    options.data_in = Some(frame);
    options.ctx_in = Some(&context);
    options.repeat = runs;
    let result = program.test_run(options)?;
    ensure!(
        result.return_value == code,
        "the last run ended with XDP code {}",
        result.return_value
    );
    Ok(result.duration.as_nanos().try_into()?)
}
