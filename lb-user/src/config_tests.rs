use std::time::Duration;

use super::*;
use crate::model::spec::Mode;

#[track_caller]
fn refused(text: &str) -> Vec<String> {
    match Config::parse("lb.toml", text, &["10.0.0.254".parse().unwrap()]) {
        Err(Error::Invalid(lines)) => lines,
        other => panic!("{other:?}"),
    }
}

const FULL: &str = r#"
[balancer]
interfaces = ["eth1", "eth2"]
xdp_mode = "auto"
socket = "/run/lb/one.sock"
flow_table_size = 65536
max_backends = 100
max_services = 10
candidate_rows = 65536
hash_seed = 42
max_new_flows_per_second = 5000
gue_port = 6081
log_level = "debug"

[timeouts]
embryonic = "5s"
established = "2h"

[[service]]
address = "192.0.2.10:80"

  [[service.backend]]
  address = "10.0.0.1:8080"

  [[service.backend]]
  address = "10.0.0.2:8080"
  weight = 0

[[service]]
address = "192.0.2.10:443"
mode = "ipip"
sources = ["10.255.0.0/24", "2001:db8:f::/112"]
backends = [{ address = "[2001:db8:1::1]:443" }]

[[service]]
address = "[2001:db8::10]:53"
protocol = "udp"
mode = "nat"
draw = "random"
choices = 4
load_view = "published"
backends = [{ address = "[2001:db8:1::1]:53", weight = 65535, state = "drain" }]
"#;

#[test]
fn every_key() {
    let config = Config::parse("lb.toml", FULL, &[]).unwrap();
    assert_eq!(config.balancer.interfaces, ["eth1", "eth2"]);
    assert_eq!(config.balancer.hash_seed, Some(42));
    assert_eq!(config.timeouts.established, Duration::from_secs(7200));
    assert_eq!(config.timeouts.udp, Duration::from_secs(60));
    assert_eq!(config.services[0].backends[1].weight, 0);
    assert_eq!(config.balancer.gue_port, 6081);
    assert_eq!(config.services[1].mode, Mode::Ipip);
    assert_eq!(config.services[1].sources[1].bits(), 112);
    assert_eq!(config.services[2].choices, 4);
    assert_eq!(config.services[2].backends[0].weight, 65535);
    assert_eq!(config.limits().backends, 100);
}

#[test]
fn nothing_is_all_defaults() {
    assert_eq!(Config::parse("", "", &[]).unwrap(), Config::default());
}

#[test]
fn faults_name_line_and_remedy() {
    for (text, line, said) in [
        ("[balancer]\n\nport = 1\n", 3, "unknown field `port`"),
        (
            "[balancer]\nxdp_mode = \"fast\"",
            2,
            "expected one of `native`",
        ),
        (
            "[balancer]\nflow_table_size = 7",
            2,
            "7 is not in the range 1024 to 67108864",
        ),
        ("[balancer]\nhash_seed = -1", 2, "hash_seed is a number"),
        ("[balancer]\ngue_port = 0", 2, "range 1 to 65535"),
        (
            "[[service]]\naddress = \"192.0.2.1:80\"\nsources = [\"10.0.0.1/24\"]",
            3,
            "write 10.0.0.0/24",
        ),
        (
            "[[service]]\naddress = \"192.0.2.1:80\"\nmode = \"ipip\"\nsources = [\"224.0.0.1\"]",
            4,
            "service[0].sources: source 224.0.0.1 is a multicast address",
        ),
        ("[timeouts]\nudp = 60", 2, "expected a string"),
        ("[timeouts]\nudp = \"60\"", 2, "write it with a unit"),
        ("[timeouts]\nudp = \"1s\"", 2, "range 2s to 7days"),
        (
            "[[service]]\naddress = \"192.0.2.1\"",
            2,
            "no address with a port",
        ),
        (
            "[[service]]\naddress = \"192.0.2.1:80\"\nchoices = 5",
            3,
            "choices is 1 to 4, not 5",
        ),
        (
            "[[service]]\nprotocol = \"tcp\"",
            1,
            "missing field `address`",
        ),
        (
            "[[service]]\naddress = \"192.0.2.1:0\"",
            2,
            "service[0].address: VIP 192.0.2.1:0 has port 0",
        ),
        ("x = [", 1, ""),
    ] {
        let found = refused(text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with(&format!("lb.toml:{line}: ")),
            "{found:?}"
        );
        assert!(found[0].contains(said), "{found:?}");
    }
}

#[test]
fn all_faults_of_the_services_at_once() {
    let found = refused(
        r#"
[[service]]
address = "192.0.2.1:80"
[[service.backend]]
address = "192.0.2.1:80"
[[service.backend]]
weight = 3
address = "10.0.0.254:80"
[[service]]
backends = [
  { address = "[2001:db8::1]:80" },
]
address = "192.0.2.1:80"
"#,
    );
    let starts: Vec<&str> = found.iter().map(|l| &l[..l.find(": ").unwrap()]).collect();
    assert_eq!(
        starts,
        ["lb.toml:13", "lb.toml:5", "lb.toml:8", "lb.toml:11"],
        "{found:#?}"
    );
    assert!(
        found[3].contains("service[1].backend[0].address"),
        "{found:?}"
    );
}
