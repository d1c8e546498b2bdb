//! `lb decap`: the decapsulator of a backend behind a tunnel.

use std::{net::IpAddr, time::Duration};

use clap::Args;

use super::{Ask, Error, print, print_json_line, table};
use crate::{
    agent::run::log_to_stderr,
    config::{LogLevel, XdpMode},
    dataplane::{self, GUE_PORT, decap},
    decap::{self as decapsulator, Options},
    model::prefix::Prefix,
};

/// Take packets out of IP-in-IP and GUE tunnels, on a backend.
///
/// For the backends of services in mode ipip or gue, in place of a tunnel device: the packets reach the host's
/// stack as the clients sent them, and answers go to the clients directly. The VIPs must be addresses of the host
/// (ip address add VIP/32 dev lo).
///
/// Takes off IPv4 and IPv6 in IPv4 and IPv6 (protocols 4 and 41), and GUE of variants 0 and 1; one or two VLAN tags
/// stay. All else passes untouched: outer packets with IPv4 options or IPv6 extension headers, fragments, GUE control
/// messages and GUE with flags. The UDP checksum of GUE is not verified; the inner packet has its own.
///
/// Runs in the foreground until SIGTERM or SIGINT, then detaches and prints what it has counted. Prints "lb: ready"
/// on standard error once it works.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lb decap --interface eth0 --vip 192.0.2.10 --from 10.0.0.0/24")]
pub struct Decap {
    /// Interface to attach to.
    #[arg(long, short, value_name = "IF")]
    interface: String,
    /// Outer destination; may be repeated [default: the addresses of the interface, and of VLAN devices, macvlans,
    /// the bridge or the bond on top of it, as they come and go]
    #[arg(long = "address", value_name = "ADDR")]
    addresses: Vec<IpAddr>,
    /// Inner destination; may be repeated [default: any]
    #[arg(long = "vip", value_name = "ADDR")]
    vips: Vec<IpAddr>,
    /// Outer sources to take packets from: the balancers; may be repeated [default: any, with a warning]
    #[arg(long, value_name = "PREFIX")]
    from: Vec<Prefix>,
    /// UDP port of GUE; 0 takes no GUE off
    #[arg(long, value_name = "PORT", default_value_t = GUE_PORT)]
    gue_port: u16,
    /// Take no GUE off
    #[arg(long, conflicts_with = "gue_port")]
    no_gue: bool,
    /// How to attach
    #[arg(long, value_enum, default_value = "native")]
    xdp_mode: XdpMode,
    /// Print what was counted so far at this interval, such as 10s
    #[arg(long, value_name = "TIME", value_parser = interval)]
    stats_interval: Option<Duration>,
    /// What to log
    #[arg(long, value_enum, default_value = "info")]
    log_level: LogLevel,
}

/// A time that can be waited for again and again.
fn interval(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    if time < Duration::from_millis(100) {
        return Err("less than 100ms".to_owned());
    }
    Ok(time)
}

impl Decap {
    pub(super) fn execute(self, ask: &Ask) -> Result<(), Error> {
        log_to_stderr(self.log_level);
        let options = Options {
            interface: self.interface,
            addresses: self.addresses,
            packets: decap::Options {
                gue_port: Some(self.gue_port).filter(|&port| port != 0 && !self.no_gue),
                from: self.from,
                vips: self.vips,
            },
            xdp_mode: match self.xdp_mode {
                XdpMode::Native => dataplane::XdpMode::Native,
                XdpMode::Generic => dataplane::XdpMode::Generic,
                XdpMode::Auto => dataplane::XdpMode::Auto,
            },
            stats_interval: self.stats_interval,
        };
        let counters = decapsulator::run(&options, |counters| match ask.json {
            true => print_json_line(&decapsulator::json(counters)),
            false => print(&decapsulator::line(counters)),
        })?;
        match ask.json {
            true => print_json_line(&decapsulator::json(&counters)),
            false => print(&table::decap(&counters)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        assert_eq!(interval("10s"), Ok(Duration::from_secs(10)));
        for text in ["0s", "1ms", "10", "soon"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
