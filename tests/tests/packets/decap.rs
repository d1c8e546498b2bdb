//! The decapsulator: tunnel packets of every kind, and what only looks like one.
//!
//! Every frame is checked whole, with its verdict and all counters.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result, ensure};
use etherparse::{IpEcn, Ipv4Header};
use lb_common::decap::Counter;
use lb_tests::{
    fixture::{
        frame::{ETHERNET, Frame, Kind, Mac, SYN, patched},
        run::{DROP, PASS, run},
    },
    harness::Test,
    tunnel::{Gue0, Tunnel, Way},
};
use lb_user::dataplane::decap::{Decapsulator, Options};

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
    ("gue_0_with_fields", fields),
    ("gue_with_a_checksum", checksum),
    ("gue_on_another_port", other_port),
    ("gue_turned_off", no_gue),
    ("gue_control_message", || {
        unknown(Gue0 {
            control: true,
            ..Gue0::default()
        })
    }),
    ("gue_flags", || {
        unknown(Gue0 {
            flags: 0x8000,
            ..Gue0::default()
        })
    }),
    ("gue_of_another_protocol", || {
        unknown(Gue0 {
            proto: Some(6),
            ..Gue0::default()
        })
    }),
    ("gue_without_a_payload", || {
        unknown(Gue0 {
            proto: Some(59),
            ..Gue0::default()
        })
    }),
    ("gue_of_a_later_version", later_version),
    ("gue_1_of_no_ip_version", no_ip_version),
    ("gue_fields_beyond_the_end", fields_beyond),
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
    ("foreign_outer_destination", foreign),
    ("mapped_address_is_another", mapped),
    ("source_not_allowed", refused_source),
    ("prefixes_of_sources", prefixes),
    ("no_family_stands_for_the_other", families),
    ("any_source", any_source),
    ("inner_destination_not_given", other_destination),
    ("any_inner_destination", any_destination),
    ("local_addresses_change", local_changes),
    ("outer_fragments", fragments),
    ("outer_ipv4_options", options4),
    ("outer_ipv6_extension_headers", extensions6),
    ("cut_short_anywhere", cut),
    ("inner_version_is_another", inner_version),
    ("inner_lengths_do_not_fit", inner_lengths),
    ("outer_lengths_do_not_fit", outer_lengths),
    ("outer_version_is_another", outer_version),
    ("bytes_behind_the_packet_stay", padding),
    ("inner_options_and_fragments", inner_options),
    ("one_layer_only", one_layer),
    ("no_tunnel_packets", no_tunnel),
    ("frames_in_several_buffers", jumbo),
    ("short_frames_with_the_jumbo_program", short_in_jumbo),
];

const FROM_MAC: Mac = [2, 0, 0, 0, 0, 0xaa];
const TO_MAC: Mac = [2, 0, 0, 0, 0, 0xbb];
const BALANCER4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const BALANCER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xa, 0, 0, 0, 0, 1);
const HOST4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
const HOST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xb, 0, 0, 0, 0, 2);
const VIP4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 0x10);
const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const ECT_0: u8 = 2;
const CE: u8 = 3;

/// The loaded program.
struct Bed(Decapsulator);

impl Bed {
    /// With a source prefix and a VIP of each family.
    fn new() -> Result<Self> {
        Self::with(&options(), false)
    }

    fn with(options: &Options, frags: bool) -> Result<Self> {
        let mut decapsulator = Decapsulator::load(options, frags)?;
        decapsulator.set_local(&[HOST4.into(), HOST6.into()].into())?;
        Ok(Self(decapsulator))
    }

    /// Runs a frame, and checks all that comes of it.
    fn check(&self, frame: &[u8], code: u32, expected: &[u8], counter: Counter) -> Result<()> {
        let before = self.0.counters()?;
        let outcome = run(self.0.program()?, frame, None)?;
        let changed: Vec<_> = before
            .into_iter()
            .zip(self.0.counters()?)
            .filter(|(before, after)| before != after)
            .map(|((counter, before), (_, after))| (counter, after - before))
            .collect();
        ensure!(
            changed == [(counter, 1)],
            "{changed:?}, expected {counter:?}"
        );
        ensure!(outcome.code == code, "{outcome:x?}, expected {code}");
        ensure!(
            outcome.bytes == expected,
            "{:02x?}\nexpected {expected:02x?}",
            outcome.bytes
        );
        Ok(())
    }

    fn passes(&self, frame: &[u8], counter: Counter) -> Result<()> {
        self.check(frame, PASS, frame, counter)
    }

    /// Checks that a packet by a tunnel comes out as it was.
    fn takes_off(&self, tunnel: &Tunnel, kind: Kind) -> Result<()> {
        let packet = packet(kind);
        let frame = frame(&tunnel.wrap(&packet), &[]);
        self.check(
            &frame,
            PASS,
            &self::frame(&packet, &[]),
            counter(tunnel, kind),
        )
        .with_context(|| format!("{tunnel:?} {kind:?}"))
    }
}

fn options() -> Options {
    Options {
        gue_port: Some(6080),
        from: vec![prefix("10.0.0.0/24"), prefix("2001:db8:a::/48")],
        vips: vec![VIP4.into(), VIP6.into()],
    }
}

fn prefix(text: &str) -> lb_user::decap::Prefix {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

fn gue0() -> Way {
    Way::Gue0(Gue0::default())
}

/// A tunnel from the balancer to the host.
fn tunnel(way: Way, outer_v4: bool) -> Tunnel {
    match outer_v4 {
        true => Tunnel::new(BALANCER4, HOST4, way),
        false => Tunnel::new(BALANCER6, HOST6, way),
    }
}

/// Every way of tunnel in either outer family.
fn tunnels() -> impl Iterator<Item = Tunnel> {
    let ways = || [Way::Ip, gue0(), Way::Gue1].into_iter();
    [true, false]
        .into_iter()
        .flat_map(move |v4| ways().map(move |way| tunnel(way, v4)))
}

fn counter(tunnel: &Tunnel, kind: Kind) -> Counter {
    match (&tunnel.way, kind.is_v4(), tunnel.destination.is_ipv4()) {
        (Way::Ip, true, true) => Counter::Ip4In4,
        (Way::Ip, false, true) => Counter::Ip6In4,
        (Way::Ip, true, false) => Counter::Ip4In6,
        (Way::Ip, false, false) => Counter::Ip6In6,
        (Way::Gue0(_), ..) => Counter::Gue0,
        (Way::Gue1, ..) => Counter::Gue1,
    }
}

/// A client's packet to a VIP, from the IP header on.
fn packet(kind: Kind) -> Vec<u8> {
    packet_with(kind, b"a question, of some length or other")
}

fn packet_with(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let vip: IpAddr = if kind.is_v4() {
        VIP4.into()
    } else {
        VIP6.into()
    };
    packet_to(kind, vip, payload)
}

fn packet_to(kind: Kind, vip: IpAddr, payload: &[u8]) -> Vec<u8> {
    let client: IpAddr = match kind.is_v4() {
        true => Ipv4Addr::new(203, 0, 113, 9).into(),
        false => Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, 9).into(),
    };
    let frame = Frame {
        kind,
        source_mac: FROM_MAC,
        destination_mac: TO_MAC,
        source: (client, 40_000).into(),
        destination: (vip, 80).into(),
        ttl: 61,
        flags: SYN,
        options: Vec::new(),
        payload: payload.to_vec(),
        without_checksum: false,
    };
    frame.bytes().split_off(ETHERNET)
}

/// A frame around an IP packet, with tags.
fn frame(packet: &[u8], tags: &[[u8; 4]]) -> Vec<u8> {
    let ether_type: [u8; 2] = match packet[0] >> 4 {
        4 => [0x08, 0x00],
        _ => [0x86, 0xdd],
    };
    [&TO_MAC[..], &FROM_MAC, &tags.concat(), &ether_type, packet].concat()
}

/// An IP packet with other ECN bits, and its other six bits of the traffic class set too.
fn marked(packet: &[u8], ecn: u8) -> Vec<u8> {
    const CLASS: u8 = 0xb8;
    let mut packet = packet.to_vec();
    if packet[0] >> 4 == 4 {
        packet[1] = CLASS | ecn;
        return checked(&packet);
    }
    packet[0] = 0x60 | (CLASS | ecn) >> 4;
    packet[1] = (CLASS | ecn) << 4 | packet[1] & 0xf;
    packet
}

/// An IPv4 packet with the right header checksum.
fn checked(packet: &[u8]) -> Vec<u8> {
    let (header, payload) =
        Ipv4Header::from_slice(packet).unwrap_or_else(|e| panic!("no IPv4 header: {e}"));
    let mut header = header;
    header.header_checksum = header.calc_header_checksum();
    [&header.to_bytes()[..], payload].concat()
}

fn taken_off(way: Way, kind: Kind, outer_v4: bool) -> Result<()> {
    let bed = Bed::new()?;
    bed.takes_off(&tunnel(way, outer_v4), kind)
}

fn fields() -> Result<()> {
    let bed = Bed::new()?;
    for words in [1, 2, 7, 16, 30, 31] {
        for v4 in [true, false] {
            for kind in [Kind::Tcp4, Kind::Udp6] {
                let fields = (0..words * 4).map(|i| 0x40 | i as u8).collect();
                let way = Way::Gue0(Gue0 {
                    fields,
                    ..Gue0::default()
                });
                bed.takes_off(&tunnel(way, v4), kind)?;
            }
        }
    }
    Ok(())
}

fn checksum() -> Result<()> {
    let bed = Bed::new()?;
    for way in [gue0(), Way::Gue1] {
        for v4 in [true, false] {
            let tunnel = Tunnel {
                checksum: true,
                ..tunnel(way.clone(), v4)
            };
            bed.takes_off(&tunnel, Kind::Tcp4)?;
            // A wrong one is not noticed.
            let packet = packet(Kind::Tcp4);
            let at = ETHERNET + if v4 { 20 } else { 40 } + 6;
            let wrong = patched(&frame(&tunnel.wrap(&packet), &[]), at, &[0xde, 0xad]);
            let counter = counter(&tunnel, Kind::Tcp4);
            bed.check(&wrong, PASS, &frame(&packet, &[]), counter)?;
        }
    }
    Ok(())
}

fn other_port() -> Result<()> {
    let port = 5555;
    let bed = Bed::with(
        &Options {
            gue_port: Some(port),
            ..options()
        },
        false,
    )?;
    for v4 in [true, false] {
        let usual = tunnel(Way::Gue1, v4);
        bed.takes_off(
            &Tunnel {
                port,
                ..usual.clone()
            },
            Kind::Tcp6,
        )?;
        let frame = frame(&usual.wrap(&packet(Kind::Tcp6)), &[]);
        bed.passes(&frame, Counter::NoTunnel)?;
    }
    Ok(())
}

fn no_gue() -> Result<()> {
    let bed = Bed::with(
        &Options {
            gue_port: None,
            ..options()
        },
        false,
    )?;
    for tunnel in tunnels() {
        if tunnel.way == Way::Ip {
            bed.takes_off(&tunnel, Kind::Tcp4)?;
            continue;
        }
        // Neither the usual port nor port 0.
        for port in [6080, 0] {
            let tunnel = Tunnel {
                port,
                ..tunnel.clone()
            };
            let frame = frame(&tunnel.wrap(&packet(Kind::Tcp4)), &[]);
            bed.passes(&frame, Counter::NoTunnel)?;
        }
    }
    Ok(())
}

fn unknown(header: Gue0) -> Result<()> {
    let bed = Bed::new()?;
    for v4 in [true, false] {
        let tunnel = tunnel(Way::Gue0(header.clone()), v4);
        let frame = frame(&tunnel.wrap(&packet(Kind::Tcp4)), &[]);
        bed.passes(&frame, Counter::GueUnknown)?;
    }
    Ok(())
}

/// Offset of what is behind the UDP header of a frame.
fn behind_udp(v4: bool) -> usize {
    ETHERNET + if v4 { 20 } else { 40 } + 8
}

fn later_version() -> Result<()> {
    let bed = Bed::new()?;
    for v4 in [true, false] {
        let frame = frame(&tunnel(gue0(), v4).wrap(&packet(Kind::Tcp4)), &[]);
        for first in [0x80, 0xc0] {
            let frame = patched(&frame, behind_udp(v4), &[first]);
            bed.passes(&frame, Counter::GueUnknown)?;
        }
    }
    Ok(())
}

fn no_ip_version() -> Result<()> {
    let bed = Bed::new()?;
    for v4 in [true, false] {
        let frame = frame(&tunnel(Way::Gue1, v4).wrap(&packet(Kind::Tcp4)), &[]);
        for first in [0x55, 0x75] {
            let frame = patched(&frame, behind_udp(v4), &[first]);
            bed.passes(&frame, Counter::Malformed)?;
        }
    }
    Ok(())
}

fn fields_beyond() -> Result<()> {
    let bed = Bed::new()?;
    for v4 in [true, false] {
        // 28 bytes of packet, and 4 more words of header than there are.
        let frame = frame(&tunnel(gue0(), v4).wrap(&packet_with(Kind::Udp4, b"")), &[]);
        for words in [4, 7, 8, 31] {
            let frame = patched(&frame, behind_udp(v4), &[words]);
            bed.passes(&frame, Counter::Malformed)?;
        }
    }
    Ok(())
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

fn foreign() -> Result<()> {
    let bed = Bed::new()?;
    for tunnel in tunnels() {
        let destination: IpAddr = match tunnel.destination {
            IpAddr::V4(_) => Ipv4Addr::new(10, 1, 0, 3).into(),
            // Only the last of its words is another.
            IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0xb, 0, 0, 0, 0, 3).into(),
        };
        let tunnel = Tunnel {
            destination,
            ..tunnel
        };
        let frame = frame(&tunnel.wrap(&packet(Kind::Tcp4)), &[]);
        bed.passes(&frame, Counter::ForeignAddress)?;
    }
    Ok(())
}

/// No IPv6 packet is for an IPv4 address, in whatever form.
fn mapped() -> Result<()> {
    let bed = Bed::new()?;
    let [a, b, c, d] = HOST4.octets();
    for destination in [
        HOST4.to_ipv6_mapped(),
        HOST4.to_ipv6_compatible(),
        Ipv6Addr::from(u128::from_be_bytes([
            a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ])),
    ] {
        let tunnel = Tunnel::new(BALANCER6, destination, Way::Ip);
        let frame = frame(&tunnel.wrap(&packet(Kind::Tcp4)), &[]);
        bed.passes(&frame, Counter::ForeignAddress)?;
    }
    Ok(())
}

fn refused_source() -> Result<()> {
    let bed = Bed::new()?;
    for tunnel in tunnels() {
        let source: IpAddr = match tunnel.source {
            IpAddr::V4(_) => Ipv4Addr::new(10, 0, 1, 1).into(),
            IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0xd, 0, 0, 0, 0, 1).into(),
        };
        let tunnel = Tunnel { source, ..tunnel };
        let frame = frame(&tunnel.wrap(&packet(Kind::Tcp4)), &[]);
        bed.passes(&frame, Counter::SourceRefused)?;
    }
    Ok(())
}

fn prefixes() -> Result<()> {
    let bed = Bed::with(
        &Options {
            from: vec![
                prefix("10.0.0.0/24"),
                prefix("10.0.2.7"),
                prefix("192.168.0.0/15"),
                prefix("2001:db8:a::/47"),
            ],
            ..options()
        },
        false,
    )?;
    let allowed = [
        "10.0.0.0",
        "10.0.0.255",
        "10.0.2.7",
        "192.169.255.255",
        "2001:db8:b:ffff::1",
    ];
    let others = [
        "9.255.255.255",
        "10.0.1.0",
        "10.0.2.6",
        "192.170.0.0",
        "2001:db8:c::",
        "2001:db8:9:ffff::",
    ];
    let from = |source: &str| -> Result<Tunnel> {
        let source: IpAddr = source.parse()?;
        Ok(Tunnel {
            source,
            ..tunnel(Way::Ip, source.is_ipv4())
        })
    };
    for source in allowed {
        bed.takes_off(&from(source)?, Kind::Tcp4)?;
    }
    for source in others {
        let frame = frame(&from(source)?.wrap(&packet(Kind::Tcp4)), &[]);
        bed.passes(&frame, Counter::SourceRefused).context(source)?;
    }
    Ok(())
}

/// "All of IPv6" is nothing of IPv4, and the other way round.
fn families() -> Result<()> {
    for (all, allowed_v4) in [("0.0.0.0/0", true), ("::/0", false)] {
        let from = vec![prefix(all)];
        let bed = Bed::with(&Options { from, ..options() }, false)?;
        bed.takes_off(&tunnel(Way::Ip, allowed_v4), Kind::Tcp4)?;
        let frame = frame(&tunnel(Way::Ip, !allowed_v4).wrap(&packet(Kind::Tcp4)), &[]);
        bed.passes(&frame, Counter::SourceRefused)?;
    }
    Ok(())
}

fn any_source() -> Result<()> {
    let from = Vec::new();
    let bed = Bed::with(&Options { from, ..options() }, false)?;
    for source in ["198.18.5.5", "2001:db8:dead::1"] {
        let source: IpAddr = source.parse()?;
        let tunnel = Tunnel {
            source,
            ..tunnel(Way::Gue1, source.is_ipv4())
        };
        bed.takes_off(&tunnel, Kind::Tcp4)?;
    }
    Ok(())
}

/// The same address of another family is another address, too.
fn other_destination() -> Result<()> {
    let bed = Bed::new()?;
    let others = [
        (Kind::Tcp4, IpAddr::from(Ipv4Addr::new(198, 51, 100, 11))),
        (
            Kind::Udp6,
            Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 0x11).into(),
        ),
        (Kind::Tcp6, VIP4.to_ipv6_mapped().into()),
    ];
    for (kind, destination) in others {
        for tunnel in tunnels() {
            let packet = packet_to(kind, destination, b"");
            let frame = frame(&tunnel.wrap(&packet), &[]);
            bed.passes(&frame, Counter::OtherDestination)?;
        }
    }
    Ok(())
}

fn any_destination() -> Result<()> {
    let vips = Vec::new();
    let bed = Bed::with(&Options { vips, ..options() }, false)?;
    for tunnel in tunnels() {
        let packet = packet_to(Kind::Udp4, Ipv4Addr::new(203, 0, 113, 77).into(), b"x");
        bed.check(
            &frame(&tunnel.wrap(&packet), &[]),
            PASS,
            &frame(&packet, &[]),
            counter(&tunnel, Kind::Udp4),
        )?;
    }
    Ok(())
}

fn local_changes() -> Result<()> {
    let mut bed = Bed::new()?;
    let (v4, v6) = (tunnel(Way::Ip, true), tunnel(Way::Ip, false));
    let foreign = |bed: &Bed, tunnel: &Tunnel| {
        let frame = frame(&tunnel.wrap(&packet(Kind::Tcp4)), &[]);
        bed.passes(&frame, Counter::ForeignAddress)
    };
    bed.0.set_local(&[HOST6.into()].into())?;
    foreign(&bed, &v4)?;
    bed.takes_off(&v6, Kind::Tcp4)?;
    bed.0.set_local(&[HOST4.into()].into())?;
    bed.takes_off(&v4, Kind::Tcp4)?;
    foreign(&bed, &v6)?;
    bed.0.set_local(&[].into())?;
    foreign(&bed, &v4)
}

fn fragments() -> Result<()> {
    let bed = Bed::new()?;
    for tunnel in tunnels().filter(|tunnel| tunnel.destination.is_ipv4()) {
        let frame = frame(&tunnel.wrap(&packet(Kind::Tcp4)), &[]);
        // First, middle, last.
        for (flags, offset) in [(0x20, 0), (0x20, 100), (0, 100)] {
            let fragment = patched(&frame, ETHERNET + 6, &[flags, offset]);
            // Ports are in the first only.
            let counter = match tunnel.way == Way::Ip || offset == 0 {
                true => Counter::OuterFragment,
                false => Counter::NoTunnel,
            };
            bed.passes(&fragment, counter)?;
        }
    }
    for kind in [Kind::Tcp4, Kind::Tcp6] {
        let whole = tunnel(Way::Ip, false).wrap(&packet(kind));
        bed.passes(&frame(&behind(&whole, 44), &[]), Counter::OuterFragment)?;
    }
    Ok(())
}

/// An IPv6 packet with an extension header of 8 bytes put before its payload.
fn behind(packet: &[u8], extension: u8) -> Vec<u8> {
    let next = packet[6];
    let length = u16::from_be_bytes([packet[4], packet[5]]) + 8;
    let mut packet = packet.to_vec();
    packet[4..6].copy_from_slice(&length.to_be_bytes());
    packet[6] = extension;
    packet.splice(40..40, [next, 0, 4, 1, 4, 1, 1, 0]);
    packet
}

fn options4() -> Result<()> {
    let bed = Bed::new()?;
    for tunnel in tunnels().filter(|tunnel| tunnel.destination.is_ipv4()) {
        let mut outer = tunnel.wrap(&packet(Kind::Tcp4));
        let length = u16::from_be_bytes([outer[2], outer[3]]) + 4;
        outer[0] = 0x46;
        outer[2..4].copy_from_slice(&length.to_be_bytes());
        outer.splice(20..20, [1, 1, 1, 0]);
        // Whether UDP is to GUE's port is not looked for behind options.
        let counter = match tunnel.way == Way::Ip {
            true => Counter::OuterOptions,
            false => Counter::NoTunnel,
        };
        bed.passes(&frame(&checked(&outer), &[]), counter)?;
    }
    Ok(())
}

fn extensions6() -> Result<()> {
    let bed = Bed::new()?;
    let whole = tunnel(Way::Ip, false).wrap(&packet(Kind::Tcp4));
    // The limit of nesting that senders put there by default (RFC 2473).
    bed.passes(&frame(&behind(&whole, 60), &[]), Counter::OuterOptions)?;
    // Hop-by-hop options, routing.
    for extension in [0, 43] {
        bed.passes(&frame(&behind(&whole, extension), &[]), Counter::NoTunnel)?;
    }
    let whole = tunnel(Way::Gue1, false).wrap(&packet(Kind::Tcp4));
    bed.passes(&frame(&behind(&whole, 60), &[]), Counter::NoTunnel)
}

/// Whatever is left of a frame, it is left as it is.
fn cut() -> Result<()> {
    let bed = Bed::new()?;
    for tunnel in tunnels() {
        for kind in [Kind::Tcp4, Kind::Udp6] {
            let whole = frame(&tunnel.wrap(&packet(kind)), &[[0x81, 0, 0, 5]]);
            let outer = if tunnel.destination.is_ipv4() { 20 } else { 40 };
            let udp = if tunnel.way == Way::Ip { 0 } else { 8 };
            for len in ETHERNET..whole.len() {
                // Until the last header is there that makes it a tunnel packet, it is none.
                let counter = match len < ETHERNET + 4 + outer + udp {
                    true => Counter::NoTunnel,
                    false => Counter::Malformed,
                };
                bed.passes(&whole[..len], counter)
                    .with_context(|| format!("{tunnel:?} {kind:?}, {len} bytes"))?;
            }
        }
    }
    Ok(())
}

/// The protocol announces one family, and the packet is of the other, or of none.
fn inner_version() -> Result<()> {
    let bed = Bed::new()?;
    for tunnel in tunnels().filter(|tunnel| tunnel.way != Way::Gue1) {
        let at = ETHERNET
            + if tunnel.destination.is_ipv4() { 20 } else { 40 }
            + if tunnel.way == Way::Ip { 0 } else { 12 };
        for (kind, others) in [
            (Kind::Tcp4, [0x65, 0x05, 0x55]),
            (Kind::Tcp6, [0x40, 0x00, 0x70]),
        ] {
            let frame = frame(&tunnel.wrap(&packet(kind)), &[]);
            for first in others {
                bed.passes(&patched(&frame, at, &[first]), Counter::Malformed)?;
            }
        }
    }
    Ok(())
}

fn inner_lengths() -> Result<()> {
    let bed = Bed::new()?;
    for tunnel in tunnels() {
        let v4 = packet(Kind::Tcp4);
        let length = v4.len() as u16;
        let mut broken = vec![
            // Shorter than a header, and than its own.
            patched(&v4, 0, &[0x44]),
            patched(&v4, 0, &[0x40]),
            patched(&v4, 2, &19_u16.to_be_bytes()),
            patched(&v4, 2, &0_u16.to_be_bytes()),
            patched(&patched(&v4, 0, &[0x46]), 2, &23_u16.to_be_bytes()),
            // Longer than there is room.
            patched(&v4, 2, &(length + 1).to_be_bytes()),
            patched(&v4, 2, &u16::MAX.to_be_bytes()),
        ];
        let v6 = packet(Kind::Udp6);
        let length = v6.len() as u16 - 40;
        broken.push(patched(&v6, 4, &(length + 1).to_be_bytes()));
        broken.push(patched(&v6, 4, &u16::MAX.to_be_bytes()));
        for packet in broken {
            bed.passes(&frame(&tunnel.wrap(&packet), &[]), Counter::Malformed)
                .with_context(|| format!("{tunnel:?} {packet:02x?}"))?;
        }
    }
    Ok(())
}

fn outer_lengths() -> Result<()> {
    let bed = Bed::new()?;
    for tunnel in tunnels() {
        let packet = packet(Kind::Udp4);
        let whole = tunnel.wrap(&packet);
        let v4 = tunnel.destination.is_ipv4();
        let (at, length) = match v4 {
            true => (2, whole.len() as u16),
            false => (4, whole.len() as u16 - 40),
        };
        let mut broken: Vec<_> = [length + 1, length - 1, 19, 0, u16::MAX]
            .iter()
            .map(|length| patched(&whole, at, &length.to_be_bytes()))
            .collect();
        if tunnel.way != Way::Ip {
            let header = if v4 { 20 } else { 40 };
            let length = (whole.len() - header) as u16;
            // Of UDP: one more than IP has, one less than the inner packet needs, less than a header.
            broken.extend(
                [length + 1, length - 1, 7, 0, u16::MAX]
                    .iter()
                    .map(|length| patched(&whole, header + 4, &length.to_be_bytes())),
            );
        }
        for packet in broken {
            bed.passes(&frame(&packet, &[]), Counter::Malformed)
                .with_context(|| format!("{tunnel:?} {packet:02x?}"))?;
        }
    }
    Ok(())
}

fn outer_version() -> Result<()> {
    let bed = Bed::new()?;
    for tunnel in tunnels() {
        let frame = frame(&tunnel.wrap(&packet(Kind::Tcp4)), &[]);
        for first in [0x05, 0x55, 0x75] {
            bed.passes(&patched(&frame, ETHERNET, &[first]), Counter::NoTunnel)?;
        }
    }
    Ok(())
}

/// Padding of the frame, and of the outer packet, is the inner packet's receiver's to ignore.
fn padding() -> Result<()> {
    let bed = Bed::new()?;
    for tunnel in tunnels() {
        let packet = packet_with(Kind::Udp4, b"");
        let zeros = [0; 18];
        let expected = [&frame(&packet, &[])[..], &zeros].concat();
        let counter = counter(&tunnel, Kind::Udp4);
        let padded = [&frame(&tunnel.wrap(&packet), &[])[..], &zeros].concat();
        bed.check(&padded, PASS, &expected, counter)?;
        let padded = frame(&tunnel.wrap(&[&packet[..], &zeros].concat()), &[]);
        bed.check(&padded, PASS, &expected, counter)?;
    }
    Ok(())
}

/// Options and fragments of the inner packet are the stack's business, as they would be without a tunnel.
fn inner_options() -> Result<()> {
    let bed = Bed::new()?;
    let mut with_options = packet(Kind::Tcp4);
    let length = with_options.len() as u16 + 4;
    with_options[0] = 0x46;
    with_options[2..4].copy_from_slice(&length.to_be_bytes());
    with_options.splice(20..20, [1, 1, 1, 0]);
    let fragment = patched(&packet(Kind::Tcp4), 6, &[0x20, 100]);
    for packet in [with_options, fragment].map(|packet| checked(&packet)) {
        for tunnel in tunnels() {
            // The mark is put in all the same.
            let marking = Tunnel {
                ecn: IpEcn::try_new(CE)?,
                ..tunnel
            };
            let class = |ecn| {
                let mut packet = packet.clone();
                packet[1] = ecn;
                checked(&packet)
            };
            bed.check(
                &frame(&marking.wrap(&class(ECT_0)), &[]),
                PASS,
                &frame(&class(CE), &[]),
                counter(&marking, Kind::Tcp4),
            )?;
        }
    }
    let extended = behind(&packet(Kind::Tcp6), 60);
    let tunnel = tunnel(Way::Gue1, true);
    let frame = frame(&tunnel.wrap(&extended), &[]);
    bed.check(&frame, PASS, &self::frame(&extended, &[]), Counter::Gue1)
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

/// More than a page, so in more than one buffer; all ways, with tags and an ECN mark.
fn jumbo() -> Result<()> {
    let bed = Bed::with(&options(), true)?;
    let payload: Vec<u8> = (0..8_000).map(|i| (i * 7 / 3) as u8).collect();
    for tunnel in tunnels() {
        for kind in [Kind::Tcp4, Kind::Tcp6, Kind::Udp4, Kind::Udp6] {
            for tags in [&[][..], &[[0x81, 0, 0, 5]]] {
                let packet = packet_with(kind, &payload);
                let tunnel = Tunnel {
                    ecn: IpEcn::try_new(CE)?,
                    ..tunnel.clone()
                };
                bed.check(
                    &frame(&tunnel.wrap(&marked(&packet, ECT_0)), tags),
                    PASS,
                    &frame(&marked(&packet, CE), tags),
                    counter(&tunnel, kind),
                )
                .with_context(|| format!("{tunnel:?} {kind:?}"))?;
            }
        }
        // The end of the packet is looked for behind the last buffer.
        let whole = frame(&tunnel.wrap(&packet_with(Kind::Udp4, &payload)), &[]);
        bed.passes(&whole[..whole.len() - 1], Counter::Malformed)?;
    }
    Ok(())
}

fn short_in_jumbo() -> Result<()> {
    let bed = Bed::with(&options(), true)?;
    for tunnel in tunnels() {
        for kind in [Kind::Tcp4, Kind::Udp6] {
            bed.takes_off(&tunnel, kind)?;
        }
    }
    let foreign = Tunnel::new(BALANCER4, BALANCER4, Way::Ip);
    let frame = frame(&foreign.wrap(&packet(Kind::Tcp4)), &[]);
    bed.passes(&frame, Counter::ForeignAddress)
}
