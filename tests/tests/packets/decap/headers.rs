//! Headers with more in them, and headers that do not fit together.

use anyhow::{Context as _, Result};
use etherparse::IpEcn;
use lb_common::decap::Counter;
use lb_tests::{
    fixture::{
        frame::{ETHERNET, Kind, patched},
        run::PASS,
    },
    harness::Test,
    tunnel::{Tunnel, Way},
};

use super::bed::{
    Bed, CE, ECT_0, behind, checked, counter, frame, packet, packet_with, tunnel, tunnels,
};

pub const TESTS: &[Test] = &[
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
];

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
