//! The loaded program, and the tunnel packets that all tests send through it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result, ensure};
use etherparse::Ipv4Header;
use lb_common::decap::Counter;
use lb_tests::{
    fixture::{
        frame::{ETHERNET, Frame, Kind, Mac, SYN},
        run::{PASS, run},
    },
    tunnel::{Gue0, Tunnel, Way},
};
use lb_user::dataplane::decap::{Decapsulator, Options};

const FROM_MAC: Mac = [2, 0, 0, 0, 0, 0xaa];
const TO_MAC: Mac = [2, 0, 0, 0, 0, 0xbb];
pub const BALANCER4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const BALANCER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xa, 0, 0, 0, 0, 1);
pub const HOST4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
pub const HOST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xb, 0, 0, 0, 0, 2);
pub const VIP4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 0x10);
pub const NOT_ECT: u8 = 0;
pub const ECT_1: u8 = 1;
pub const ECT_0: u8 = 2;
pub const CE: u8 = 3;

/// The loaded program.
pub struct Bed(pub Decapsulator);

impl Bed {
    /// With a source prefix and a VIP of each family.
    pub fn new() -> Result<Self> {
        Self::with(&options(), false)
    }

    pub fn with(options: &Options, frags: bool) -> Result<Self> {
        let mut decapsulator = Decapsulator::load(options, frags)?;
        decapsulator.set_local(&[HOST4.into(), HOST6.into()].into())?;
        Ok(Self(decapsulator))
    }

    /// Runs a frame, and checks all that comes of it.
    pub fn check(&self, frame: &[u8], code: u32, expected: &[u8], counter: Counter) -> Result<()> {
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

    pub fn passes(&self, frame: &[u8], counter: Counter) -> Result<()> {
        self.check(frame, PASS, frame, counter)
    }

    /// Checks that a packet by a tunnel comes out as it was.
    pub fn takes_off(&self, tunnel: &Tunnel, kind: Kind) -> Result<()> {
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

pub fn options() -> Options {
    Options {
        gue_port: Some(6080),
        from: vec![prefix("10.0.0.0/24"), prefix("2001:db8:a::/48")],
        vips: vec![VIP4.into(), VIP6.into()],
    }
}

pub fn prefix(text: &str) -> lb_user::model::prefix::Prefix {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

pub fn gue0() -> Way {
    Way::Gue0(Gue0::default())
}

/// A tunnel from the balancer to the host.
pub fn tunnel(way: Way, outer_v4: bool) -> Tunnel {
    match outer_v4 {
        true => Tunnel::new(BALANCER4, HOST4, way),
        false => Tunnel::new(BALANCER6, HOST6, way),
    }
}

/// Every way of tunnel in either outer family.
pub fn tunnels() -> impl Iterator<Item = Tunnel> {
    let ways = || [Way::Ip, gue0(), Way::Gue1].into_iter();
    [true, false]
        .into_iter()
        .flat_map(move |v4| ways().map(move |way| tunnel(way, v4)))
}

pub fn counter(tunnel: &Tunnel, kind: Kind) -> Counter {
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
pub fn packet(kind: Kind) -> Vec<u8> {
    packet_with(kind, b"a question, of some length or other")
}

pub fn packet_with(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let vip: IpAddr = if kind.is_v4() {
        VIP4.into()
    } else {
        VIP6.into()
    };
    packet_to(kind, vip, payload)
}

pub fn packet_to(kind: Kind, vip: IpAddr, payload: &[u8]) -> Vec<u8> {
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
pub fn frame(packet: &[u8], tags: &[[u8; 4]]) -> Vec<u8> {
    let ether_type: [u8; 2] = match packet[0] >> 4 {
        4 => [0x08, 0x00],
        _ => [0x86, 0xdd],
    };
    [&TO_MAC[..], &FROM_MAC, &tags.concat(), &ether_type, packet].concat()
}

/// An IP packet with other ECN bits, and its other six bits of the traffic class set too.
pub fn marked(packet: &[u8], ecn: u8) -> Vec<u8> {
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
pub fn checked(packet: &[u8]) -> Vec<u8> {
    let (header, payload) =
        Ipv4Header::from_slice(packet).unwrap_or_else(|e| panic!("no IPv4 header: {e}"));
    let mut header = header;
    header.header_checksum = header.calc_header_checksum();
    [&header.to_bytes()[..], payload].concat()
}

/// An IPv6 packet with an extension header of 8 bytes put before its payload.
pub fn behind(packet: &[u8], extension: u8) -> Vec<u8> {
    let next = packet[6];
    let length = u16::from_be_bytes([packet[4], packet[5]]) + 8;
    let mut packet = packet.to_vec();
    packet[4..6].copy_from_slice(&length.to_be_bytes());
    packet[6] = extension;
    packet.splice(40..40, [next, 0, 4, 1, 4, 1, 1, 0]);
    packet
}
