//! Interfaces: what they are made on, what they carry, what XDP program they have.

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{
        AfSpecInet6, AfSpecUnspec, InfoData, InfoKind, InfoVlan, LinkAttribute, LinkInfo,
        LinkLayerType, LinkMessage, LinkXdp, VlanProtocol, XdpAttached,
    },
};

use lb_common::vlan::TagType;

use super::{Error, Netlink};

/// The XDP program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpOnLink {
    /// Id of the program.
    pub program_id: u32,
    /// Runs in the driver.
    pub native: bool,
}

/// What a VLAN device puts on its frames, and where they leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// The interface that it is made on.
    pub below: u32,
    /// How its tag is announced.
    pub kind: TagType,
    /// VLAN id.
    pub id: u16,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// MAC address; all zeros where there is none.
    pub mac: [u8; 6],
    /// MTU in bytes.
    pub mtu: u32,
    /// MTU of IPv6 in bytes, where there is IPv6: at most `mtu`, and less if a router advertised less.
    pub mtu6: Option<u32>,
    /// It carries Ethernet frames.
    pub ethernet: bool,
    /// What it is, as ip(8) calls it: "vlan", "bridge"; none for hardware.
    pub kind: Option<String>,
    /// XDP frames can be redirected to it.
    pub takes_redirects: bool,
    /// Set for a VLAN device, if what it is made on is in this network namespace.
    pub vlan: Option<Vlan>,
    /// What XDP program is attached.
    pub xdp: Option<XdpOnLink>,
}

impl Netlink {
    /// All interfaces of this network namespace.
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let answers = self.ask(
            "listing interfaces",
            RouteNetlinkMessage::GetLink(LinkMessage::default()),
            NLM_F_DUMP,
        )?;
        Ok(answers.iter().filter_map(link).collect())
    }
}

fn link(answer: &RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = answer else {
        return None;
    };
    let mut link = Link {
        ifindex: message.header.index,
        ethernet: message.header.link_layer_type == LinkLayerType::Ether,
        takes_redirects: true,
        ..Link::default()
    };
    let (mut below, mut elsewhere, mut tag) = (None, false, None);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Link(index) => below = Some(*index),
            // The other interface is in another network namespace.
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => {
                            link.takes_redirects = takes_redirects(kind);
                            link.kind = Some(kind.to_string());
                        }
                        LinkInfo::Data(InfoData::Vlan(infos)) => tag = vlan_tag(infos),
                        _ => {}
                    }
                }
            }
            LinkAttribute::Address(bytes) => {
                if let Ok(mac) = bytes.as_slice().try_into() {
                    link.mac = mac;
                }
            }
            LinkAttribute::AfSpecUnspec(specs) => link.mtu6 = mtu6(specs),
            LinkAttribute::Xdp(xdp) => link.xdp = xdp_on(xdp),
            _ => {}
        }
    }
    link.vlan = match (below, tag) {
        (Some(below), Some((kind, id))) if !elsewhere => Some(Vlan { below, kind, id }),
        _ => None,
    };
    Some(link)
}

/// Virtual devices that transmit XDP frames (`ndo_xdp_xmit`). VLAN devices, macvlans, bridges and
/// tunnels do not: what is redirected to them is lost. A bond does if all its ports do, which is not to be
/// seen here. Hardware has no kind.
fn takes_redirects(kind: &InfoKind) -> bool {
    matches!(kind, InfoKind::Veth | InfoKind::Tun)
}

fn vlan_tag(infos: &[InfoVlan]) -> Option<(TagType, u16)> {
    let mut kind = TagType::Dot1Q;
    let mut id = None;
    for info in infos {
        match info {
            InfoVlan::Id(vlan) => id = Some(*vlan),
            InfoVlan::Protocol(VlanProtocol::Ieee8021Ad) => kind = TagType::Dot1Ad,
            _ => {}
        }
    }
    id.map(|id| (kind, id))
}

fn mtu6(specs: &[AfSpecUnspec]) -> Option<u32> {
    specs.iter().find_map(|spec| match spec {
        AfSpecUnspec::Inet6(infos) => infos.iter().find_map(|info| match info {
            AfSpecInet6::DevConf(conf) => u32::try_from(conf.mtu6).ok().filter(|&mtu| mtu > 0),
            _ => None,
        }),
        _ => None,
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::link::LinkHeader;

    fn message(attributes: Vec<LinkAttribute>) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header = LinkHeader {
            index: 7,
            link_layer_type: LinkLayerType::Ether,
            ..LinkHeader::default()
        };
        message.attributes = attributes;
        message
    }

    /// As it comes through the socket: to bytes and back.
    fn read(attributes: Vec<LinkAttribute>) -> Link {
        use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
        let sent = RouteNetlinkMessage::NewLink(message(attributes));
        let mut sent = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(sent));
        sent.finalize();
        let mut bytes = vec![0; sent.buffer_len()];
        sent.serialize(&mut bytes);
        let received = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes)
            .expect("a message that was just made");
        match received.payload {
            NetlinkPayload::InnerMessage(inner) => link(&inner).expect("a link"),
            other => panic!("{other:?}"),
        }
    }

    fn vlan(more: Vec<LinkAttribute>, infos: Vec<InfoVlan>) -> Link {
        let info = LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Vlan),
            LinkInfo::Data(InfoData::Vlan(infos)),
        ]);
        read([vec![LinkAttribute::Link(3), info], more].concat())
    }

    #[test]
    fn vlan_devices() {
        let tagged = |protocol| {
            vlan(
                Vec::new(),
                vec![InfoVlan::Protocol(protocol), InfoVlan::Id(100)],
            )
        };
        for (protocol, kind) in [
            (VlanProtocol::Ieee8021Q, TagType::Dot1Q),
            (VlanProtocol::Ieee8021Ad, TagType::Dot1Ad),
        ] {
            let link = tagged(protocol);
            let expected = Vlan {
                below: 3,
                kind,
                id: 100,
            };
            assert_eq!(link.vlan, Some(expected));
            assert_eq!(link.kind.as_deref(), Some("vlan"));
            assert!(!link.takes_redirects);
        }
    }

    #[test]
    fn a_vlan_device_on_an_interface_elsewhere() {
        let link = vlan(vec![LinkAttribute::LinkNetNsId(1)], vec![InfoVlan::Id(100)]);
        assert_eq!(link.vlan, None);
    }

    #[test]
    fn only_vlan_devices_have_tags() {
        // IFLA_LINK of a veth is its peer.
        let kind = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth)]);
        let link = read(vec![LinkAttribute::Link(3), kind]);
        assert_eq!(link.vlan, None);
        assert!(link.takes_redirects && link.ethernet);
    }

    #[test]
    fn what_takes_redirects() {
        for (kind, takes) in [
            (InfoKind::Veth, true),
            (InfoKind::Tun, true),
            (InfoKind::Bond, false),
            (InfoKind::Bridge, false),
            (InfoKind::MacVlan, false),
            (InfoKind::Vxlan, false),
        ] {
            let kind = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]);
            assert_eq!(read(vec![kind.clone()]).takes_redirects, takes, "{kind:?}");
        }
        assert!(read(Vec::new()).takes_redirects);
    }
}
