//! From the kernel's links, routes and neighbours to the way to a backend.

use std::{collections::HashMap, net::IpAddr};

use lb_common::vlan::Tags;

use crate::dataplane::{
    Error,
    backends::{Missing, NextHop, Way},
    netlink::{Link, Neighbour, Netlink, Resolution, Route},
};

/// A neighbour: interface and address.
pub type Key = (u32, IpAddr);

/// The links and neighbours of this host, at one time.
#[derive(Default)]
pub struct Network {
    links: HashMap<u32, Link>,
    neighbours: HashMap<Key, Resolution>,
    senders: Senders,
}

/// Which interfaces XDP can send on.
#[derive(Debug, Default)]
pub enum Senders {
    /// Every one that carries Ethernet frames: the stack sends.
    All,
    /// Those of which the kernel says so.
    These(HashMap<u32, bool>),
    /// Those whose drivers are known to; the kernel does not tell.
    #[default]
    ByKind,
}

/// The way to a backend, and the neighbour that it depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The way.
    pub way: Way,
    /// Who must be resolved for it; `None`: nobody.
    pub neighbour: Option<Key>,
    /// The interface that frames will be redirected to once that is done.
    pub device: Option<u32>,
}

impl Network {
    /// Asks the kernel.
    pub fn read(netlink: &mut Netlink, senders: Senders) -> Result<Self, Error> {
        Ok(Self::of(netlink.links()?, netlink.neighbours()?, senders))
    }

    fn of(links: Vec<Link>, neighbours: Vec<Neighbour>, senders: Senders) -> Self {
        Self {
            links: links.into_iter().map(|link| (link.ifindex, link)).collect(),
            neighbours: neighbours
                .into_iter()
                .map(|n| ((n.ifindex, n.addr), n.resolution))
                .collect(),
            senders,
        }
    }

    /// An interface.
    pub fn link(&self, ifindex: u32) -> Option<&Link> {
        self.links.get(&ifindex)
    }

    /// Whether XDP can send frames on an interface: they can be redirected to it.
    pub fn sends_on(&self, link: &Link) -> bool {
        let sends = match &self.senders {
            Senders::All => true,
            Senders::These(known) => known.get(&link.ifindex).copied().unwrap_or(false),
            Senders::ByKind => link.takes_redirects,
        };
        sends && link.ethernet
    }

    /// What is known of a neighbour.
    pub fn resolution(&self, neighbour: &Key) -> Option<Resolution> {
        self.neighbours.get(neighbour).copied()
    }

    /// The way that a route leads. `direct`: no gateway can forward what is sent to the backend.
    pub fn way(&self, route: Option<Route>, direct: bool) -> Found {
        let missing = |missing, way: Way| Found {
            way: Way {
                hop: Err(missing),
                ..way
            },
            neighbour: None,
            device: None,
        };
        let Some(route) = route else {
            return missing(Missing::NoRoute, Way::UNKNOWN);
        };
        let way = Way {
            source: route.source.filter(is_routable),
            ..Way::UNKNOWN
        };
        if route.local {
            return missing(Missing::ThisHost, way);
        }
        let Some(device) = self.link(route.ifindex) else {
            // It went away after the route was looked up.
            return missing(Missing::NoRoute, way);
        };
        let way = Way {
            mtu: mtu(&route, device),
            ..way
        };
        let Some((ifindex, tags)) = self.wire(device) else {
            return missing(Missing::Device(route.ifindex), way);
        };
        if let Some(gateway) = route.gateway.filter(|_| direct) {
            return missing(Missing::Gateway(gateway), way);
        }
        let neighbour = (route.ifindex, route.next());
        let resolution = self.resolution(&neighbour);
        let hop = match resolution.and_then(Resolution::mac) {
            Some(destination) => Ok(NextHop {
                ifindex,
                destination,
                source: device.mac,
                tags,
            }),
            None => Err(Missing::Neighbour {
                ifindex: route.ifindex,
                addr: route.next(),
                failed: resolution == Some(Resolution::Failed),
            }),
        };
        Found {
            way: Way { hop, ..way },
            neighbour: Some(neighbour),
            device: Some(ifindex),
        }
    }

    /// The interface that frames of a device leave by, and the tags that they have there; `None` if XDP
    /// cannot send them so. A VLAN device takes no redirected frames itself, the one below may.
    fn wire(&self, device: &Link) -> Option<(u32, Tags)> {
        // Found from the inside out, to be put on from the outside in.
        let mut vlans = Vec::new();
        let mut link = device;
        while let Some(vlan) = link.vlan {
            if vlans.len() == 2 {
                return None;
            }
            vlans.push(vlan);
            link = self.link(vlan.below)?;
        }
        let tags = vlans
            .iter()
            .rfold(Tags::NONE, |tags, vlan| tags.with(vlan.kind, vlan.id));
        self.sends_on(link).then_some((link.ifindex, tags))
    }
}

/// The longest IP packet that goes out on a device by a route.
fn mtu(route: &Route, device: &Link) -> u32 {
    let of_device = match (route.destination, device.mtu6) {
        (IpAddr::V6(_), Some(mtu6)) => device.mtu.min(mtu6),
        _ => device.mtu,
    };
    route.mtu.map_or(of_device, |mtu| mtu.min(of_device))
}

/// Whether a packet with this source gets past a router.
fn is_routable(source: &IpAddr) -> bool {
    let link_local = match source {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !link_local && !source.is_loopback() && !source.is_unspecified()
}

#[cfg(test)]
#[path = "way_tests.rs"]
mod tests;
