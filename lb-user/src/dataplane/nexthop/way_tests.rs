use std::net::{Ipv4Addr, Ipv6Addr};

use lb_common::vlan::TagType;

use super::*;
use crate::dataplane::netlink::Vlan;

const ETH: u32 = 2;
const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const VLAN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const BACKEND: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

fn eth() -> Link {
    Link {
        ifindex: ETH,
        name: "eth0".to_owned(),
        mac: HOST_MAC,
        mtu: 1500,
        ethernet: true,
        takes_redirects: true,
        ..Link::default()
    }
}

/// A VLAN device with the index of its id.
fn vlan(id: u16, kind: TagType, below: u32) -> Link {
    Link {
        ifindex: id.into(),
        name: format!("vlan{id}"),
        mac: VLAN_MAC,
        mtu: 1496,
        ethernet: true,
        kind: Some("vlan".to_owned()),
        takes_redirects: false,
        vlan: Some(Vlan { below, kind, id }),
        ..Link::default()
    }
}

fn with(links: Vec<Link>, neighbours: Vec<Neighbour>) -> Network {
    Network::of(links, neighbours, Senders::ByKind)
}

fn way(network: &Network, route: Option<Route>) -> Found {
    network.way(route, false)
}

fn route(ifindex: u32) -> Route {
    Route {
        ifindex,
        destination: BACKEND,
        gateway: None,
        local: false,
        source: Some(OWN),
        mtu: None,
    }
}

fn known(ifindex: u32, addr: IpAddr) -> Neighbour {
    Neighbour {
        ifindex,
        addr,
        resolution: Resolution::Known(PEER_MAC),
    }
}

fn missing(found: &Found) -> Option<Missing> {
    found.way.hop.err()
}

#[test]
fn on_a_connected_network() {
    let network = with(vec![eth()], vec![known(ETH, BACKEND)]);
    let found = way(&network, Some(route(ETH)));
    let hop = NextHop {
        ifindex: ETH,
        destination: PEER_MAC,
        source: HOST_MAC,
        tags: Tags::NONE,
    };
    let way = Way {
        hop: Ok(hop),
        mtu: 1500,
        source: Some(OWN),
    };
    assert_eq!(found.way, way);
    assert_eq!(found.neighbour, Some((ETH, BACKEND)));
    assert_eq!(found.device, Some(ETH));
}

#[test]
fn by_a_gateway_of_either_family() {
    for gateway in [
        IpAddr::from([10, 0, 0, 254]),
        "fe80::1".parse().expect("an address"),
    ] {
        let network = with(vec![eth()], vec![known(ETH, gateway)]);
        let by_gateway = Route {
            gateway: Some(gateway),
            ..route(ETH)
        };
        let found = way(&network, Some(by_gateway));
        assert_eq!(found.way.hop.map(|hop| hop.destination), Ok(PEER_MAC));
        // What the backend itself answers to does not matter.
        let network = with(vec![eth()], vec![known(ETH, BACKEND)]);
        let unresolved = Missing::Neighbour {
            ifindex: ETH,
            addr: gateway,
            failed: false,
        };
        assert_eq!(missing(&way(&network, Some(by_gateway))), Some(unresolved));
    }
}

#[test]
fn by_no_gateway_where_none_can_forward() {
    let gateway = IpAddr::from([10, 0, 0, 254]);
    let network = with(vec![eth()], vec![known(ETH, gateway), known(ETH, BACKEND)]);
    let by_gateway = Route {
        gateway: Some(gateway),
        ..route(ETH)
    };
    let found = network.way(Some(by_gateway), true);
    assert_eq!(missing(&found), Some(Missing::Gateway(gateway)));
    assert_eq!((found.neighbour, found.device), (None, None));
    assert!(network.way(Some(route(ETH)), true).way.hop.is_ok());
}

#[test]
fn a_neighbour_of_another_interface_is_another() {
    let network = with(vec![eth()], vec![known(ETH + 1, BACKEND)]);
    assert!(way(&network, Some(route(ETH))).way.hop.is_err());
}

#[test]
fn a_neighbour_that_does_not_answer() {
    let failed = Neighbour {
        resolution: Resolution::Failed,
        ..known(ETH, BACKEND)
    };
    let found = way(&with(vec![eth()], vec![failed]), Some(route(ETH)));
    let unresolved = Missing::Neighbour {
        ifindex: ETH,
        addr: BACKEND,
        failed: true,
    };
    assert_eq!(missing(&found), Some(unresolved));
    // It is asked for all the same, and MTU and source are known.
    assert_eq!(found.neighbour, Some((ETH, BACKEND)));
    assert_eq!((found.way.mtu, found.way.source), (1500, Some(OWN)));
}

#[test]
fn one_vlan_and_two() {
    let (outer, inner) = ((TagType::Dot1Ad, 100), (TagType::Dot1Q, 200));
    let network = with(
        vec![eth(), vlan(100, outer.0, ETH), vlan(200, inner.0, 100)],
        vec![known(100, BACKEND), known(200, BACKEND)],
    );
    let one = way(&network, Some(route(100)));
    let hop = NextHop {
        ifindex: ETH,
        destination: PEER_MAC,
        source: VLAN_MAC,
        tags: Tags::NONE.with(outer.0, outer.1),
    };
    assert_eq!(one.way.hop, Ok(hop));
    assert_eq!(one.way.mtu, 1496);
    assert_eq!(one.device, Some(ETH));
    let two = way(&network, Some(route(200)));
    let tags = two
        .way
        .hop
        .map(|hop| (hop.ifindex, hop.tags.outer(), hop.tags.inner()));
    assert_eq!(tags, Ok((ETH, Some(outer), Some(inner))));
    assert_eq!(two.neighbour, Some((200, BACKEND)));
}

#[test]
fn what_xdp_cannot_send_on() {
    let bridge = Link {
        kind: Some("bridge".to_owned()),
        takes_redirects: false,
        ..eth()
    };
    let tunnel = Link {
        kind: Some("tun".to_owned()),
        ethernet: false,
        ..eth()
    };
    let neighbours = || vec![known(ETH, BACKEND), known(4, BACKEND)];
    for device in [bridge, tunnel] {
        // The device, and a VLAN device on it.
        let links = vec![device, vlan(4, TagType::Dot1Q, ETH)];
        let network = with(links, neighbours());
        for ifindex in [ETH, 4] {
            let found = way(&network, Some(route(ifindex)));
            assert_eq!(missing(&found), Some(Missing::Device(ifindex)));
            assert_eq!((found.neighbour, found.device), (None, None));
        }
    }
}

#[test]
fn three_tags_are_too_many_and_a_missing_storey_is_none() {
    let dot1q = TagType::Dot1Q;
    let network = with(
        vec![
            eth(),
            vlan(10, dot1q, ETH),
            vlan(11, dot1q, 10),
            vlan(12, dot1q, 11),
            vlan(13, dot1q, 99),
        ],
        vec![known(12, BACKEND), known(13, BACKEND)],
    );
    for ifindex in [12, 13] {
        let found = way(&network, Some(route(ifindex)));
        assert_eq!(missing(&found), Some(Missing::Device(ifindex)));
    }
}

#[test]
fn devices_that_go_in_a_circle_lead_nowhere() {
    let network = with(
        vec![vlan(10, TagType::Dot1Q, 11), vlan(11, TagType::Dot1Q, 10)],
        vec![known(10, BACKEND)],
    );
    assert_eq!(
        missing(&way(&network, Some(route(10)))),
        Some(Missing::Device(10))
    );
}

#[test]
fn no_route_and_this_host() {
    let network = with(vec![eth()], vec![known(ETH, BACKEND)]);
    assert_eq!(missing(&way(&network, None)), Some(Missing::NoRoute));
    // The interface went away in between.
    assert_eq!(
        missing(&way(&network, Some(route(9)))),
        Some(Missing::NoRoute)
    );
    let local = Route {
        local: true,
        ..route(1)
    };
    assert_eq!(
        missing(&way(&network, Some(local))),
        Some(Missing::ThisHost)
    );
}

#[test]
fn the_least_mtu_counts() {
    let v6 = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9));
    let link = Link {
        mtu6: Some(1400),
        ..eth()
    };
    let network = with(vec![link], Vec::new());
    for (destination, route_mtu, mtu) in [
        (BACKEND, None, 1500),
        (BACKEND, Some(1450), 1450),
        (BACKEND, Some(9000), 1500),
        (v6, None, 1400),
        (v6, Some(1300), 1300),
        (v6, Some(1450), 1400),
    ] {
        let route = Route {
            destination,
            mtu: route_mtu,
            ..route(ETH)
        };
        assert_eq!(
            way(&network, Some(route)).way.mtu,
            mtu,
            "{destination} {route_mtu:?}"
        );
    }
}

#[test]
fn a_source_that_no_router_takes_is_none() {
    let network = with(vec![eth()], Vec::new());
    for (source, kept) in [
        ("10.0.0.1", true),
        ("2001:db8::1", true),
        ("fd00::1", true),
        ("fe80::1", false),
        ("169.254.1.1", false),
        ("::", false),
        ("127.0.0.1", false),
    ] {
        let source = Some(source.parse().expect("an address"));
        let way = way(
            &network,
            Some(Route {
                source,
                ..route(ETH)
            }),
        );
        assert_eq!(way.way.source, source.filter(|_| kept));
    }
}

#[test]
fn the_kernel_knows_best_what_xdp_can_send_on() {
    let on = |senders, link: Link| {
        let network = Network::of(vec![link], vec![known(ETH, BACKEND)], senders);
        way(&network, Some(route(ETH))).way.hop.is_ok()
    };
    let bond = Link {
        takes_redirects: false,
        ..eth()
    };
    for (says, link) in [(true, bond.clone()), (false, eth())] {
        assert_eq!(on(Senders::These([(ETH, says)].into()), link), says);
    }
    assert!(!on(Senders::These(HashMap::new()), eth()));
    assert!(!on(Senders::ByKind, bond.clone()) && on(Senders::ByKind, eth()));
    // In generic mode the stack sends, but no Ethernet frame where there are none.
    assert!(on(Senders::All, bond));
    let no_ethernet = Link {
        ethernet: false,
        ..eth()
    };
    assert!(!on(Senders::All, no_ethernet));
}
