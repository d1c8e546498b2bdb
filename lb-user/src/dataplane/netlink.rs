//! Netlink, as far as the agent needs it: links with their XDP programs and what XDP can do on them, routes,
//! neighbours (rtnetlink(7), and the generic netlink family "netdev").
//!
//! Requests are few and answered by the kernel at once, so a plain blocking socket does.

mod changes;
mod channel;
mod features;
mod link;
mod neighbour;
mod route;
mod stack;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;

use self::channel::Channel;
pub use self::{
    changes::Changes,
    features::XdpFeatures,
    link::{Link, Vlan, XdpOnLink},
    neighbour::{Neighbour, Resolution},
    route::Route,
    stack::Layer,
};
use super::Error;

/// A route netlink socket for requests.
pub struct Netlink(Channel);

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        Channel::open(NETLINK_ROUTE).map(Self)
    }

    fn ask(
        &mut self,
        what: &str,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, Error> {
        self.0
            .exchange(message, flags)
            .map_err(|cause| Error::Netlink {
                what: what.to_owned(),
                cause,
            })
    }
}
