//! Neighbours: who answers to an address on a link, by ARP (RFC 826) or neighbour discovery (RFC 4861).

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
    },
};

use super::{Error, Netlink};

/// What is known of a neighbour's MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It is known.
    Known([u8; 6]),
    /// It is known and needs no resolving: it is static, or kept by a routing daemon, or the interface
    /// has no address resolution.
    Fixed([u8; 6]),
    /// It is asked for.
    Pending,
    /// It was asked for, and nobody answered.
    Failed,
}

impl Resolution {
    /// The MAC address, if it is known.
    pub const fn mac(self) -> Option<[u8; 6]> {
        match self {
            Self::Known(mac) | Self::Fixed(mac) => Some(mac),
            Self::Pending | Self::Failed => None,
        }
    }
}

/// A neighbour table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Interface.
    pub ifindex: u32,
    /// Address.
    pub addr: IpAddr,
    /// Its MAC address.
    pub resolution: Resolution,
}

impl Netlink {
    /// The neighbour entries, proxy entries aside.
    pub fn neighbours(&mut self) -> Result<Vec<Neighbour>, Error> {
        let answers = self.ask(
            "listing neighbours",
            RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
            NLM_F_DUMP,
        )?;
        Ok(answers.iter().filter_map(neighbour).collect())
    }

    /// Has the kernel resolve a neighbour (`NTF_USE`, see rtnetlink(7) and
    /// `include/uapi/linux/neighbour.h`), as if a packet were sent to it. Returns at once.
    ///
    /// Not for a [`Fixed`](Resolution::Fixed) one: since Linux 5.16 the kernel makes a permanent entry an
    /// ordinary one that is yet to be resolved.
    pub fn resolve(&mut self, ifindex: u32, addr: IpAddr) -> Result<(), Error> {
        let mut message = neighbour_message(ifindex, addr);
        message.header.flags = NeighbourFlags::Use;
        self.ask(
            &format!("resolving {addr}"),
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_ACK | NLM_F_CREATE,
        )
        .map(|_| ())
    }

    /// Has the kernel ask a [`Known`](Resolution::Known) neighbour whether it is still there (`NUD_PROBE`).
    /// Its entry stays usable meanwhile, and fails without an answer. Returns at once; an error if the
    /// entry is not usable any more.
    pub fn confirm(&mut self, ifindex: u32, addr: IpAddr) -> Result<(), Error> {
        let mut message = neighbour_message(ifindex, addr);
        message.header.state = NeighbourState::Probe;
        self.ask(
            &format!("confirming {addr}"),
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_ACK,
        )
        .map(|_| ())
    }
}

fn neighbour_message(ifindex: u32, addr: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = ifindex;
    message.header.state = NeighbourState::None;
    let (family, destination) = match addr {
        IpAddr::V4(addr) => (AddressFamily::Inet, NeighbourAddress::Inet(addr)),
        IpAddr::V6(addr) => (AddressFamily::Inet6, NeighbourAddress::Inet6(addr)),
    };
    message.header.family = family;
    let destination = NeighbourAttribute::Destination(destination);
    message.attributes.push(destination);
    message
}

fn neighbour(answer: &RouteNetlinkMessage) -> Option<Neighbour> {
    let RouteNetlinkMessage::NewNeighbour(message) = answer else {
        return None;
    };
    if message.header.flags.contains(NeighbourFlags::Proxy) {
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
    let kept = message.header.flags.contains(NeighbourFlags::ExtLearned);
    let resolution = match (message.header.state, mac) {
        (NeighbourState::Permanent | NeighbourState::Noarp, Some(mac)) => Resolution::Fixed(mac),
        (
            NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe,
            Some(mac),
        ) if kept => Resolution::Fixed(mac),
        (
            NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe,
            Some(mac),
        ) => Resolution::Known(mac),
        (NeighbourState::Failed, _) => Resolution::Failed,
        _ => Resolution::Pending,
    };
    Some(Neighbour {
        ifindex: message.header.ifindex,
        addr: addr?,
        resolution,
    })
}
