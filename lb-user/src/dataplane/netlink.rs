//! rtnetlink(7), as far as the agent needs it: links with their XDP programs, routes, neighbours.
//!
//! Requests are few and answered by the kernel at once, so a plain blocking socket does.

mod stack;

use std::{io, net::IpAddr};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage, LinkXdp, XdpAttached},
    neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
    },
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

pub use self::stack::Layer;
use super::Error;

/// The XDP program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpOnLink {
    /// Id of the program.
    pub program_id: u32,
    /// Runs in the driver.
    pub native: bool,
}

/// An interface.
#[derive(Clone, Debug)]
pub struct Link {
    /// Index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// MAC address; all zeros where there is none.
    pub mac: [u8; 6],
    /// MTU in bytes.
    pub mtu: u32,
    /// XDP frames can be redirected to it.
    pub takes_redirects: bool,
    /// What XDP program is attached.
    pub xdp: Option<XdpOnLink>,
}

/// The route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Outgoing interface.
    pub ifindex: u32,
    /// Who to hand packets to: the gateway, or the destination itself on a connected network.
    pub next: IpAddr,
    /// The destination is this host.
    pub local: bool,
}

/// A neighbour table entry that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Interface.
    pub ifindex: u32,
    /// Address.
    pub addr: IpAddr,
    /// MAC address.
    pub mac: [u8; 6],
    /// It needs no resolving: it is static, or the interface has no address resolution.
    pub fixed: bool,
}

/// A netlink socket for requests.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        };
        Ok(Self {
            socket: open().map_err(|cause| Error::Netlink {
                what: "opening a socket".to_owned(),
                cause,
            })?,
            sequence: 0,
        })
    }

    fn ask(
        &mut self,
        what: &str,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, Error> {
        self.exchange(message, flags)
            .map_err(|cause| Error::Netlink {
                what: what.to_owned(),
                cause,
            })
    }

    fn exchange(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        // A dump comes in several parts and ends with "done", anything else in one.
        let dump = flags & NLM_F_DUMP == NLM_F_DUMP;
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(io::Error::other)?;
                let length = (answer.header.length as usize).next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(e) if e.code.is_some() => return Err(e.to_io()),
                    NetlinkPayload::Error(_) => return Ok(answers),
                    NetlinkPayload::InnerMessage(inner) => {
                        answers.push(inner);
                        if !dump && flags & NLM_F_ACK == 0 {
                            return Ok(answers);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// All interfaces of this network namespace.
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let answers = self.ask(
            "listing interfaces",
            RouteNetlinkMessage::GetLink(LinkMessage::default()),
            NLM_F_DUMP,
        )?;
        Ok(answers.iter().filter_map(link).collect())
    }

    /// The addresses of this host, in this network namespace.
    pub fn addresses(&mut self) -> Result<Vec<IpAddr>, Error> {
        let answers = self.ask(
            "listing addresses",
            RouteNetlinkMessage::GetAddress(AddressMessage::default()),
            NLM_F_DUMP,
        )?;
        Ok(answers
            .iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewAddress(message) => {
                    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| {
                        message.attributes.iter().find_map(wanted)
                    };
                    // On a point-to-point link "address" is the peer's, and "local" the host's.
                    find(|a| match a {
                        AddressAttribute::Local(addr) => Some(*addr),
                        _ => None,
                    })
                    .or_else(|| {
                        find(|a| match a {
                            AddressAttribute::Address(addr) => Some(*addr),
                            _ => None,
                        })
                    })
                }
                _ => None,
            })
            .collect())
    }

    /// The route that the kernel takes to `destination`; `None` if it has none.
    pub fn route(&mut self, destination: IpAddr) -> Result<Option<Route>, Error> {
        let mut message = RouteMessage::default();
        let (family, bits, addr) = match destination {
            IpAddr::V4(addr) => (AddressFamily::Inet, 32, RouteAddress::Inet(addr)),
            IpAddr::V6(addr) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(addr)),
        };
        message.header.address_family = family;
        message.header.destination_prefix_length = bits;
        message.attributes.push(RouteAttribute::Destination(addr));
        let answers = match self.exchange(RouteNetlinkMessage::GetRoute(message), 0) {
            Ok(answers) => answers,
            // "No route" is an answer, whichever of its errors the kernel gives.
            Err(e)
                if [
                    libc::ENETUNREACH,
                    libc::EHOSTUNREACH,
                    libc::EACCES,
                    libc::EINVAL,
                    libc::ENODEV,
                ]
                .iter()
                .any(|&code| e.raw_os_error() == Some(code)) =>
            {
                return Ok(None);
            }
            Err(cause) => {
                return Err(Error::Netlink {
                    what: format!("looking up the route to {destination}"),
                    cause,
                });
            }
        };
        Ok(answers.iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(message) => route(message, destination),
            _ => None,
        }))
    }

    /// The neighbour entries that have a MAC address and have not failed.
    pub fn neighbours(&mut self) -> Result<Vec<Neighbour>, Error> {
        let answers = self.ask(
            "listing neighbours",
            RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
            NLM_F_DUMP,
        )?;
        Ok(answers.iter().filter_map(neighbour).collect())
    }

    /// Has the kernel resolve or confirm a neighbour (`NTF_USE`, see rtnetlink(7) and
    /// `include/uapi/linux/neighbour.h`), as if a packet were sent to it. Returns at once.
    ///
    /// Not for a [`fixed`](Neighbour::fixed) neighbour: since Linux 5.16 the kernel makes a permanent
    /// entry an ordinary one that is yet to be resolved.
    pub fn resolve(&mut self, ifindex: u32, addr: IpAddr) -> Result<(), Error> {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = ifindex;
        message.header.state = NeighbourState::None;
        message.header.flags = NeighbourFlags::Use;
        let (family, destination) = match addr {
            IpAddr::V4(addr) => (AddressFamily::Inet, NeighbourAddress::Inet(addr)),
            IpAddr::V6(addr) => (AddressFamily::Inet6, NeighbourAddress::Inet6(addr)),
        };
        message.header.family = family;
        message
            .attributes
            .push(NeighbourAttribute::Destination(destination));
        self.ask(
            &format!("resolving {addr}"),
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_ACK | NLM_F_CREATE,
        )
        .map(|_| ())
    }
}

fn link(answer: &RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = answer else {
        return None;
    };
    let mut link = Link {
        ifindex: message.header.index,
        name: String::new(),
        mac: [0; 6],
        mtu: 0,
        takes_redirects: true,
        xdp: None,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::LinkInfo(info) => {
                link.takes_redirects = info.iter().all(|info| match info {
                    LinkInfo::Kind(kind) => takes_redirects(kind),
                    _ => true,
                });
            }
            LinkAttribute::Address(bytes) => {
                if let Ok(mac) = bytes.as_slice().try_into() {
                    link.mac = mac;
                }
            }
            LinkAttribute::Xdp(xdp) => link.xdp = xdp_on(xdp),
            _ => {}
        }
    }
    Some(link)
}

/// Virtual devices that transmit XDP frames (`ndo_xdp_xmit`). VLAN devices, macvlans, bridges and
/// tunnels do not: what is redirected to them is lost. Hardware has no kind.
fn takes_redirects(kind: &InfoKind) -> bool {
    matches!(kind, InfoKind::Veth | InfoKind::Tun | InfoKind::Bond)
}

fn xdp_on(attributes: &[LinkXdp]) -> Option<XdpOnLink> {
    let mut id = None;
    let mut native = false;
    for attribute in attributes {
        match attribute {
            LinkXdp::Attached(attached) => {
                native = matches!(attached, XdpAttached::Driver | XdpAttached::Hardware);
            }
            LinkXdp::ProgId(program)
            | LinkXdp::DrvProgId(program)
            | LinkXdp::SkbProgId(program)
            | LinkXdp::HwProgId(program) => id = Some(*program),
            _ => {}
        }
    }
    id.filter(|&id| id != 0)
        .map(|program_id| XdpOnLink { program_id, native })
}

fn route(message: &RouteMessage, destination: IpAddr) -> Option<Route> {
    let local = match message.header.kind {
        RouteType::Unicast => false,
        RouteType::Local => true,
        // Blackhole, unreachable, prohibit, multicast: no way to a backend.
        _ => return None,
    };
    let mut ifindex = None;
    let mut next = destination;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => ifindex = Some(*index),
            RouteAttribute::Gateway(RouteAddress::Inet(addr))
            | RouteAttribute::Via(RouteVia::Inet(addr)) => next = IpAddr::V4(*addr),
            RouteAttribute::Gateway(RouteAddress::Inet6(addr))
            | RouteAttribute::Via(RouteVia::Inet6(addr)) => next = IpAddr::V6(*addr),
            _ => {}
        }
    }
    ifindex.map(|ifindex| Route {
        ifindex,
        next,
        local,
    })
}

fn neighbour(answer: &RouteNetlinkMessage) -> Option<Neighbour> {
    let RouteNetlinkMessage::NewNeighbour(message) = answer else {
        return None;
    };
    let usable = matches!(
        message.header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp
    );
    if !usable {
        return None;
    }
    let mut addr = None;
    let mut mac = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                addr = Some(IpAddr::V4(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                addr = Some(IpAddr::V6(*v6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.as_slice().try_into().ok(),
            _ => {}
        }
    }
    Some(Neighbour {
        ifindex: message.header.ifindex,
        addr: addr?,
        mac: mac?,
        fixed: matches!(
            message.header.state,
            NeighbourState::Permanent | NeighbourState::Noarp
        ),
    })
}

/// A socket that becomes readable when links, addresses, routes or neighbours change.
pub struct Changes(Socket);

impl Changes {
    /// Subscribes.
    pub fn subscribe() -> Result<Self, Error> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            for group in [
                libc::RTNLGRP_LINK,
                libc::RTNLGRP_NEIGH,
                libc::RTNLGRP_IPV4_IFADDR,
                libc::RTNLGRP_IPV4_ROUTE,
                libc::RTNLGRP_IPV6_IFADDR,
                libc::RTNLGRP_IPV6_ROUTE,
            ] {
                socket.add_membership(group)?;
            }
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        open().map(Self).map_err(|cause| Error::Netlink {
            what: "subscribing to changes".to_owned(),
            cause,
        })
    }

    /// Takes what has come. What exactly changed does not matter: whoever waits looks again at all.
    pub fn drain(&self) {
        // An overflow of the socket's buffer is one more reason to look again; the error is cleared
        // by having been read.
        let mut buffer = bytes::BytesMut::with_capacity(1 << 16);
        for _ in 0..1024 {
            buffer.clear();
            match self.0.recv(&mut buffer, 0) {
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => return,
            }
        }
    }
}

impl std::os::fd::AsFd for Changes {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::os::fd::AsRawFd for Changes {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsFd::as_fd(self).as_raw_fd()
    }
}
