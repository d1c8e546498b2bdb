//! What is said of ways to backends: each change once, and what concerns a device once for all backends
//! behind it.

use std::{collections::HashSet, io::ErrorKind, net::IpAddr};

use tracing::{debug, info, warn};

use super::way::Network;
use crate::dataplane::{
    Error,
    backends::{Missing, Way},
};

/// What has been said already.
#[derive(Debug, Default)]
pub struct Notes {
    devices: HashSet<u32>,
    table_full: bool,
}

impl Notes {
    /// Says that the way to a backend has changed.
    pub fn changed(&mut self, backend: IpAddr, before: &Way, now: &Way, network: &Network) {
        let name = |ifindex| network.link(ifindex).map_or("?", |link| link.name.as_str());
        match now.hop {
            Ok(hop) => debug!(%backend, interface = name(hop.ifindex), "next hop known"),
            Err(missing) if before.hop == Err(missing) => {}
            Err(Missing::Unknown) => {}
            Err(Missing::ThisHost) => info!(%backend, "this host has the backend's address"),
            Err(Missing::NoRoute) => warn!(%backend, "there is no route to the backend"),
            Err(Missing::Gateway(gateway)) => warn!(
                %backend,
                %gateway,
                "mode dsr reaches backends on a connected network only, and this one is behind a gateway: use \
                 mode ipip or gue"
            ),
            Err(Missing::Device(ifindex)) => self.device(ifindex, network),
            Err(Missing::Neighbour { ifindex, addr, .. }) => {
                let (interface, neighbour) = (name(ifindex), addr);
                if before.hop.is_ok() {
                    warn!(%backend, interface, %neighbour, "next hop lost: the neighbour does not answer");
                } else {
                    debug!(%backend, interface, %neighbour, "next hop not known yet");
                }
            }
        }
    }

    /// Says of an interface that the packet program is attached to that XDP cannot send there.
    pub fn attached(&mut self, ifindex: u32, network: &Network) {
        match network.link(ifindex) {
            Some(link) if network.sends_on(link) => {
                self.devices.remove(&ifindex);
            }
            Some(_) => self.device(ifindex, network),
            None => {}
        }
    }

    fn device(&mut self, ifindex: u32, network: &Network) {
        let Some(link) = network.link(ifindex) else {
            return;
        };
        if self.devices.insert(ifindex) {
            let kind = link.kind.as_deref().unwrap_or("hardware");
            let hint = match kind {
                "veth" => {
                    "; at its other end turn GRO on (`ethtool -K IF gro on`) or attach an XDP program"
                }
                "hardware" => {
                    "; with some drivers it can once lb is attached there too: add it to the interfaces"
                }
                _ => "",
            };
            warn!(
                interface = link.name,
                kind,
                "XDP cannot send on this interface: packets to backends behind it are left to the kernel, which \
                 forwards in mode nat only, and replies to clients behind it are lost unless they came in there{hint}"
            );
        }
    }

    /// Forgets devices that are gone: another may get the index.
    pub fn forget_devices(&mut self, network: &Network) {
        self.devices
            .retain(|&ifindex| network.link(ifindex).is_some());
    }

    /// Says what keeps neighbours from being resolved, if one can do something about it.
    pub fn unresolvable(&mut self, error: &Error) {
        let Error::Netlink { cause, .. } = error else {
            return;
        };
        // ENOBUFS: the table's size is that of all namespaces together.
        let full =
            cause.raw_os_error() == Some(libc::ENOBUFS) || cause.kind() == ErrorKind::OutOfMemory;
        if full && !std::mem::replace(&mut self.table_full, true) {
            warn!(
                "the kernel's neighbour table is full, so next hops cannot be resolved: raise \
                 net.ipv4.neigh.default.gc_thresh3 and net.ipv6.neigh.default.gc_thresh3"
            );
        }
    }
}
