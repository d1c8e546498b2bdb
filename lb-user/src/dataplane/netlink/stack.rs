//! Which addresses frames of an interface may be for: its own, and those of the devices on top of it.

use std::{collections::BTreeSet, net::IpAddr};

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage},
};

use super::{Error, Netlink};

/// A device that gets frames of an interface: the interface itself, a VLAN device or macvlan on it, the
/// bridge or bond that it is a port of, and what is on top of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// The interface that it is made on.
    below: Option<u32>,
    /// The bridge or bond that it is a port of.
    above: Option<u32>,
}

impl Netlink {
    /// The interface of index `ifindex` and the devices on top of it; empty if there is no such interface.
    pub fn stack(&mut self, ifindex: u32) -> Result<Vec<Layer>, Error> {
        let answers = self.ask(
            "listing interfaces",
            RouteNetlinkMessage::GetLink(LinkMessage::default()),
            NLM_F_DUMP,
        )?;
        Ok(over(answers.iter().filter_map(layer).collect(), ifindex))
    }

    /// The addresses of devices.
    pub fn addresses_of(&mut self, devices: &[Layer]) -> Result<BTreeSet<IpAddr>, Error> {
        let answers = self.ask(
            "listing addresses",
            RouteNetlinkMessage::GetAddress(AddressMessage::default()),
            NLM_F_DUMP,
        )?;
        let mut addresses = BTreeSet::new();
        for answer in &answers {
            let RouteNetlinkMessage::NewAddress(message) = answer else {
                continue;
            };
            if !devices.iter().any(|d| d.ifindex == message.header.index) {
                continue;
            }
            // On a point-to-point link "address" is the peer's, and "local" the host's.
            let local = message.attributes.iter().find_map(|a| match a {
                AddressAttribute::Local(addr) => Some(*addr),
                _ => None,
            });
            let address = message.attributes.iter().find_map(|a| match a {
                AddressAttribute::Address(addr) => Some(*addr),
                _ => None,
            });
            addresses.extend(local.or(address));
        }
        Ok(addresses)
    }
}

fn layer(answer: &RouteNetlinkMessage) -> Option<Layer> {
    let RouteNetlinkMessage::NewLink(message) = answer else {
        return None;
    };
    let mut layer = Layer {
        ifindex: message.header.index,
        name: String::new(),
        below: None,
        above: None,
    };
    let (mut splits, mut elsewhere) = (false, false);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => layer.name.clone_from(name),
            LinkAttribute::Link(index) => layer.below = Some(*index),
            LinkAttribute::Controller(index) => layer.above = Some(*index),
            // The other interface is in another network namespace.
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            // For other kinds the other interface is a peer, or what a tunnel's packets leave by.
            LinkAttribute::LinkInfo(info) => {
                splits = info.iter().any(|info| {
                    matches!(
                        info,
                        LinkInfo::Kind(InfoKind::Vlan | InfoKind::MacVlan | InfoKind::IpVlan)
                    )
                });
            }
            _ => {}
        }
    }
    if elsewhere || !splits {
        layer.below = None;
    }
    Some(layer)
}

/// Those of `layers` that frames of the interface `ifindex` reach.
fn over(layers: Vec<Layer>, ifindex: u32) -> Vec<Layer> {
    let mut reached = BTreeSet::from([ifindex]);
    // Each round climbs one storey at least, or is the last.
    loop {
        let before = reached.len();
        for layer in &layers {
            if layer.below.is_some_and(|below| reached.contains(&below)) {
                reached.insert(layer.ifindex);
            }
            if reached.contains(&layer.ifindex) {
                reached.extend(layer.above);
            }
        }
        if reached.len() == before {
            break;
        }
    }
    let is_reached = |layer: &Layer| reached.contains(&layer.ifindex);
    layers.into_iter().filter(is_reached).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(ifindex: u32, below: Option<u32>, above: Option<u32>) -> Layer {
        Layer {
            ifindex,
            name: format!("if{ifindex}"),
            below,
            above,
        }
    }

    #[test]
    fn a_stack_is_climbed_in_any_order() {
        // A VLAN device (2) on a bond (3) of 4 and 5; 6 is a VLAN device on 4 itself; 7 is on nothing, and 8
        // on 7.
        let layers = vec![
            layer(2, Some(3), None),
            layer(3, None, None),
            layer(4, None, Some(3)),
            layer(5, None, Some(3)),
            layer(6, Some(4), None),
            layer(7, None, None),
            layer(8, Some(7), None),
        ];
        let of = |ifindex| {
            over(layers.clone(), ifindex)
                .iter()
                .map(|layer| layer.ifindex)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(4), [2, 3, 4, 6]);
        assert_eq!(of(3), [2, 3]);
        assert_eq!(of(7), [7, 8]);
        assert!(of(9).is_empty());
    }
}
