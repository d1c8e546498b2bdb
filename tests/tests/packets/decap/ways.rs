//! What is taken off, and what only looks like a tunnel packet.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use etherparse::IpEcn;
use lb_common::decap::Counter;
use lb_tests::{
    fixture::{
        frame::{ETHERNET, Kind, patched},
        run::{DROP, PASS},
    },
    harness::Test,
    tunnel::{Tunnel, Way},
};

use super::bed::{
    Bed, CE, ECT_0, ECT_1, HOST4, HOST6, NOT_ECT, counter, frame, gue0, marked, options, packet,
    packet_to, tunnel, tunnels,
};

pub const TESTS: &[Test] = &[
    ("ipv4_in_ipv4", || taken_off(Way::Ip, Kind::Tcp4, true)),
    ("ipv6_in_ipv4", || taken_off(Way::Ip, Kind::Tcp6, true)),
    ("ipv4_in_ipv6", || taken_off(Way::Ip, Kind::Udp4, false)),
    ("ipv6_in_ipv6", || taken_off(Way::Ip, Kind::Udp6, false)),
    ("gue_0_ipv4_in_ipv4", || taken_off(gue0(), Kind::Udp4, true)),
    ("gue_0_ipv6_in_ipv4", || taken_off(gue0(), Kind::Udp6, true)),
    ("gue_0_ipv4_in_ipv6", || {
        taken_off(gue0(), Kind::Tcp4, false)
    }),
    ("gue_0_ipv6_in_ipv6", || {
        taken_off(gue0(), Kind::Tcp6, false)
    }),
    ("gue_1_ipv4_in_ipv4", || {
        taken_off(Way::Gue1, Kind::Tcp4, true)
    }),
    ("gue_1_ipv6_in_ipv4", || {
        taken_off(Way::Gue1, Kind::Tcp6, true)
    }),
    ("gue_1_ipv4_in_ipv6", || {
        taken_off(Way::Gue1, Kind::Udp4, false)
    }),
    ("gue_1_ipv6_in_ipv6", || {
        taken_off(Way::Gue1, Kind::Udp6, false)
    }),
    ("one_vlan_tag", || tagged(&[[0x81, 0, 0x20, 5]])),
    ("two_vlan_tags", || {
        tagged(&[[0x88, 0xa8, 0, 7], [0x81, 0, 0xe0, 5]])
    }),
    ("two_vlan_tags_of_one_type", || {
        tagged(&[[0x81, 0, 0, 7], [0x81, 0, 0, 8]])
    }),
    ("three_vlan_tags", three_tags),
    ("ecn_ipv4_in_ipv4", || ecn(Kind::Tcp4, true)),
    ("ecn_ipv6_in_ipv4", || ecn(Kind::Tcp6, true)),
    ("ecn_ipv4_in_ipv6", || ecn(Kind::Tcp4, false)),
    ("ecn_ipv6_in_ipv6", || ecn(Kind::Tcp6, false)),
    ("one_layer_only", one_layer),
    ("no_tunnel_packets", no_tunnel),
];

fn taken_off(way: Way, kind: Kind, outer_v4: bool) -> Result<()> {
    let bed = Bed::new()?;
    bed.takes_off(&tunnel(way, outer_v4), kind)
}

fn tagged(tags: &[[u8; 4]]) -> Result<()> {
    let bed = Bed::new()?;
    for tunnel in tunnels() {
        for kind in [Kind::Tcp4, Kind::Udp6] {
            let packet = packet(kind);
            bed.check(
                &frame(&tunnel.wrap(&packet), tags),
                PASS,
                &frame(&packet, tags),
                counter(&tunnel, kind),
            )
            .with_context(|| format!("{tunnel:?} {kind:?}"))?;
        }
    }
    Ok(())
}

fn three_tags() -> Result<()> {
    let bed = Bed::new()?;
    let tags = [[0x88, 0xa8, 0, 1], [0x81, 0, 0, 2], [0x81, 0, 0, 3]];
    for tunnel in tunnels() {
        let frame = frame(&tunnel.wrap(&packet(Kind::Tcp4)), &tags);
        bed.passes(&frame, Counter::NoTunnel)?;
    }
    Ok(())
}

/// All combinations, as in figure 4 of RFC 6040. The rest of the inner traffic class stays.
fn ecn(kind: Kind, outer_v4: bool) -> Result<()> {
    let bed = Bed::new()?;
    let outers = [NOT_ECT, ECT_0, ECT_1, CE];
    let figure = [
        (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
        (ECT_0, [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]),
        (ECT_1, [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]),
        (CE, [Some(CE), Some(CE), Some(CE), Some(CE)]),
    ];
    for way in [Way::Ip, gue0(), Way::Gue1] {
        for (inner, row) in figure {
            for (outer, expected) in outers.into_iter().zip(row) {
                let tunnel = Tunnel {
                    ecn: IpEcn::try_new(outer)?,
                    ..tunnel(way.clone(), outer_v4)
                };
                let packet = packet(kind);
                let frame = frame(&tunnel.wrap(&marked(&packet, inner)), &[]);
                match expected {
                    Some(ecn) => {
                        let expected = self::frame(&marked(&packet, ecn), &[]);
                        bed.check(&frame, PASS, &expected, counter(&tunnel, kind))
                    }
                    None => bed.check(&frame, DROP, &frame, Counter::Congested),
                }
                .with_context(|| format!("{tunnel:?}, inner {inner}"))?;
            }
        }
    }
    Ok(())
}

fn one_layer() -> Result<()> {
    let mut options = options();
    options.vips.push(HOST4.into());
    let bed = Bed::with(&options, false)?;
    let once = tunnel(Way::Ip, true).wrap(&packet(Kind::Tcp4));
    let twice = tunnel(Way::Ip, true).wrap(&once);
    let (once, twice) = (frame(&once, &[]), frame(&twice, &[]));
    bed.check(&twice, PASS, &once, Counter::Ip4In4)
}

fn no_tunnel() -> Result<()> {
    let bed = Bed::new()?;
    let own = |kind: Kind| {
        let host = if kind.is_v4() {
            IpAddr::from(HOST4)
        } else {
            HOST6.into()
        };
        frame(&packet_to(kind, host, b"hello"), &[])
    };
    for kind in [Kind::Tcp4, Kind::Tcp6, Kind::Udp4, Kind::Udp6] {
        bed.passes(&own(kind), Counter::NoTunnel)?;
        bed.passes(&frame(&packet(kind), &[[0x81, 0, 0, 5]]), Counter::NoTunnel)?;
    }
    // Other protocols: ICMP, GRE, ESP, SCTP.
    for proto in [1, 47, 50, 132] {
        bed.passes(
            &patched(&own(Kind::Tcp4), ETHERNET + 9, &[proto]),
            Counter::NoTunnel,
        )?;
        bed.passes(
            &patched(&own(Kind::Tcp6), ETHERNET + 6, &[proto]),
            Counter::NoTunnel,
        )?;
    }
    // ARP, LLDP, a length in place of a type; nothing behind the Ethernet header.
    for ether_type in [[0x08, 0x06], [0x88, 0xcc], [0x00, 0x2e]] {
        bed.passes(
            &patched(&own(Kind::Tcp4), 12, &ether_type),
            Counter::NoTunnel,
        )?;
    }
    bed.passes(&own(Kind::Tcp4)[..ETHERNET], Counter::NoTunnel)
}
