//! What on the host would make the kernel drop packets after they have been taken out of their tunnel.

use std::{collections::BTreeSet, fs, net::IpAddr};

/// Reverse-path filtering that only takes a packet from where its source is routed to (RFC 3704).
const STRICT: u8 = 1;

/// Notes on devices with strict reverse-path filtering. Inner packets arrive by them from clients anywhere.
pub fn reverse_path(devices: &[String]) -> Vec<String> {
    let all = filter("all");
    devices
        .iter()
        // The kernel takes the greater of the two.
        .filter(|device| all.max(filter(device)) == Some(STRICT))
        .map(|device| {
            format!(
                "net.ipv4.conf.{device}.rp_filter is 1 (strict) in effect: packets of clients that are not routed \
                 back by {device} are dropped; set it to 2 with `sysctl -w net.ipv4.conf.{device}.rp_filter=2`"
            )
        })
        .collect()
}

fn filter(device: &str) -> Option<u8> {
    fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// Notes on VIPs that are no address of this host.
pub fn missing_vips(vips: &[IpAddr], own: &[IpAddr]) -> Vec<String> {
    let missing: BTreeSet<_> = vips.iter().filter(|vip| !own.contains(vip)).collect();
    missing
        .into_iter()
        .map(|vip| {
            let bits = if vip.is_ipv4() { 32 } else { 128 };
            format!(
                "{vip} is no address of this host: what is taken out of a tunnel for it is forwarded or dropped; add \
                 it with `ip address add {vip}/{bits} dev lo`"
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vips_that_the_host_has_not_are_named_once() {
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        let own = [parse("127.0.0.1"), parse("198.51.100.10")];
        let vips = [
            parse("198.51.100.10"),
            parse("2001:db8::10"),
            parse("2001:db8::10"),
        ];
        let notes = missing_vips(&vips, &own);
        assert_eq!(notes.len(), 1);
        assert!(notes[0].contains("ip address add 2001:db8::10/128 dev lo"));
    }
}
