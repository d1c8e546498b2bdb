//! From whom and to whom: outer sources and destinations, inner destinations.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result};
use lb_common::decap::Counter;
use lb_tests::{
    fixture::{frame::Kind, run::PASS},
    harness::Test,
    tunnel::{Tunnel, Way},
};
use lb_user::dataplane::decap::Options;

use super::bed::{
    BALANCER6, Bed, HOST4, HOST6, VIP4, counter, frame, options, packet, packet_to, prefix, tunnel,
    tunnels,
};

pub const TESTS: &[Test] = &[
    ("foreign_outer_destination", foreign),
    ("mapped_address_is_another", mapped),
    ("source_not_allowed", refused_source),
    ("prefixes_of_sources", prefixes),
    ("no_family_stands_for_the_other", families),
    ("any_source", any_source),
    ("inner_destination_not_given", other_destination),
    ("any_inner_destination", any_destination),
    ("local_addresses_change", local_changes),
];

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
