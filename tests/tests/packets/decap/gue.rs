//! What is particular to GUE.

use anyhow::Result;
use lb_common::decap::Counter;
use lb_tests::{
    fixture::{
        frame::{ETHERNET, Kind, patched},
        run::PASS,
    },
    harness::Test,
    tunnel::{Gue0, Tunnel, Way},
};
use lb_user::dataplane::decap::Options;

use super::bed::{Bed, counter, frame, gue0, options, packet, packet_with, tunnel, tunnels};

pub const TESTS: &[Test] = &[
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
];

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
