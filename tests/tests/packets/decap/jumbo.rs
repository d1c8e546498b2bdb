//! Frames in several buffers.

use anyhow::{Context as _, Result};
use etherparse::IpEcn;
use lb_common::decap::Counter;
use lb_tests::{
    fixture::{frame::Kind, run::PASS},
    harness::Test,
    tunnel::{Tunnel, Way},
};

use super::bed::{
    BALANCER4, Bed, CE, ECT_0, counter, frame, marked, options, packet, packet_with, tunnels,
};

pub const TESTS: &[Test] = &[
    ("frames_in_several_buffers", jumbo),
    ("short_frames_with_the_jumbo_program", short_in_jumbo),
];

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
