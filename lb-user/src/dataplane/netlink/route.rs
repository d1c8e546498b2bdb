//! The route to a destination.

use std::net::IpAddr;

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia},
};

use super::{Error, Netlink};

/// The route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Outgoing interface.
    pub ifindex: u32,
    /// Where it leads.
    pub destination: IpAddr,
    /// Who forwards packets there; none on a connected network.
    pub gateway: Option<IpAddr>,
    /// The destination is this host.
    pub local: bool,
    /// The address that this host would send from.
    pub source: Option<IpAddr>,
    /// MTU in bytes, where the route has one of its own: set by hand, or learned on the way.
    pub mtu: Option<u32>,
}

impl Route {
    /// Who to hand packets to: the gateway, or the destination itself.
    pub fn next(&self) -> IpAddr {
        self.gateway.unwrap_or(self.destination)
    }
}

impl Netlink {
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
        let answers = match self.0.exchange(RouteNetlinkMessage::GetRoute(message), 0) {
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
}

fn route(message: &RouteMessage, destination: IpAddr) -> Option<Route> {
    let local = match message.header.kind {
        RouteType::Unicast => false,
        RouteType::Local => true,
        // Blackhole, unreachable, prohibit, multicast: no way to a backend.
        _ => return None,
    };
    let mut ifindex = None;
    let mut gateway = None;
    let mut source = None;
    let mut mtu = None;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => ifindex = Some(*index),
            RouteAttribute::Gateway(RouteAddress::Inet(addr))
            | RouteAttribute::Via(RouteVia::Inet(addr)) => gateway = Some(IpAddr::V4(*addr)),
            RouteAttribute::Gateway(RouteAddress::Inet6(addr))
            | RouteAttribute::Via(RouteVia::Inet6(addr)) => gateway = Some(IpAddr::V6(*addr)),
            RouteAttribute::PrefSource(RouteAddress::Inet(addr)) => source = Some((*addr).into()),
            RouteAttribute::PrefSource(RouteAddress::Inet6(addr)) => source = Some((*addr).into()),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    ifindex.map(|ifindex| Route {
        ifindex,
        destination,
        gateway,
        local,
        source,
        mtu,
    })
}
