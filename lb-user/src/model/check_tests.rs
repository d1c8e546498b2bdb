use super::*;
use crate::model::spec::{BackendSpec, Mode};

const LIMITS: Limits = Limits {
    services: 4,
    backends: 8,
    candidate_rows: 1 << 14,
};

fn service(vip: &str, backends: &[&str]) -> ServiceSpec {
    let mut service = ServiceSpec::new(vip.parse().unwrap());
    service.backends = backends
        .iter()
        .map(|b| BackendSpec::new(b.parse().unwrap()))
        .collect();
    service
}

fn problems(services: Vec<ServiceSpec>) -> Vec<String> {
    let own = ["10.0.0.254".parse().unwrap()];
    check(&Spec { services }, &LIMITS, &own)
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[track_caller]
fn one(services: Vec<ServiceSpec>, path: &str, text: &str) {
    let found = problems(services);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].starts_with(&format!("{path}: ")), "{found:?}");
    assert!(found[0].contains(text), "{found:?}");
}

#[test]
fn what_can_be_served() {
    let found = problems(vec![
        service("192.0.2.10:80", &["10.0.0.1:8080", "10.0.0.1:8081"]),
        service("192.0.2.10:80/udp", &["10.0.0.1:8080"]),
        service("192.0.2.10:81", &[]),
        service("[2001:db8::1]:80", &["[2001:db8:1::2]:80"]),
    ]);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn addresses_that_cannot_be() {
    for (address, text) in [
        ("0.0.0.0:80", "unspecified"),
        ("[::]:80", "unspecified"),
        ("224.0.0.1:80", "multicast"),
        ("[ff02::1]:80", "multicast"),
        ("127.0.0.1:80", "loopback"),
        ("[::1]:80", "loopback"),
        ("255.255.255.255:80", "broadcast"),
        ("169.254.1.1:80", "link-local"),
        ("[fe80::1]:80", "link-local"),
        ("[::ffff:10.0.0.1]:80", "IPv4-mapped"),
        ("[2001:db8::5%7]:80", "zone"),
        ("10.0.0.1:0", "port 0"),
    ] {
        one(vec![service(address, &[])], "service[0].address", text);
        let vip = if address.starts_with('[') {
            "[2001:db8::1]:443"
        } else {
            "192.0.2.10:443"
        };
        let path = "service[0].backend[0].address";
        one(vec![service(vip, &[address])], path, text);
    }
}

fn in_mode(mode: Mode, vip: &str, backends: &[&str]) -> ServiceSpec {
    ServiceSpec {
        mode,
        ..service(vip, backends)
    }
}

const ONE_WAY: [Mode; 3] = [Mode::Dsr, Mode::Ipip, Mode::Gue];

#[test]
fn what_can_be_served_one_way() {
    for mode in ONE_WAY {
        // The balancer itself, too.
        let backends = ["10.0.0.1:80", "10.0.0.254:80"];
        let found = problems(vec![in_mode(mode, "192.0.2.10:80", &backends)]);
        assert!(found.is_empty(), "{found:?}");
    }
    for mode in [Mode::Ipip, Mode::Gue] {
        let mixed = ["10.0.0.1:80", "[2001:db8:1::2]:80"];
        let mut services = ["192.0.2.10:80", "[2001:db8::1]:80"].map(|v| in_mode(mode, v, &mixed));
        services[0].sources = ["10.255.0.0/24", "2001:db8:f::/96"]
            .map(|s| s.parse().unwrap())
            .into();
        let found = problems(services.into());
        assert!(found.is_empty(), "{found:?}");
    }
}

#[test]
fn what_a_mode_cannot_do() {
    let path = "service[0].backend[0].address";
    for mode in ONE_WAY {
        let other_port = in_mode(mode, "192.0.2.10:80", &["10.0.0.1:8080"]);
        one(
            vec![other_port],
            path,
            "has another port than VIP 192.0.2.10:80",
        );
    }
    for mode in [Mode::Nat, Mode::Dsr] {
        let other_family = in_mode(mode, "192.0.2.10:80", &["[2001:db8:1::2]:80"]);
        one(vec![other_family], path, "different families");
        let source = ServiceSpec {
            sources: vec!["10.255.0.0/24".parse().unwrap()],
            ..in_mode(mode, "192.0.2.10:80", &[])
        };
        one(vec![source], "service[0].sources", "no outer header");
    }
}

#[test]
fn sources_that_cannot_be() {
    for (sources, text) in [
        (
            &["10.0.0.0/24", "10.1.0.0/24"][..],
            "10.1.0.0/24 is the second IPv4 prefix",
        ),
        (&["2001:db8::/64"], "2001:db8::/64 is shorter than 96 bits"),
        (&["224.0.0.0/8"], "source 224.0.0.0 is a multicast address"),
        (&["0.0.0.0/0"], "source 0.0.0.0 is the unspecified address"),
        (&["::1"], "source [::1] is a loopback address"),
    ] {
        let mut service = in_mode(Mode::Ipip, "192.0.2.10:80", &[]);
        service.sources = sources.iter().map(|s| s.parse().unwrap()).collect();
        one(vec![service], "service[0].sources", text);
    }
}

#[test]
fn conflicts() {
    one(
        vec![service("192.0.2.1:80", &[]), service("192.0.2.1:80", &[])],
        "service[1].address",
        "192.0.2.1:80/tcp is a service already (service[0])",
    );
    one(
        vec![service("192.0.2.1:80", &["10.0.0.1:80", "10.0.0.1:80"])],
        "service[0].backend[1].address",
        "twice",
    );
    one(
        vec![service("192.0.2.1:80", &["192.0.2.1:80"])],
        "service[0].backend[0].address",
        "is the VIP of service 192.0.2.1:80/tcp",
    );
    // A VIP that comes later in the list counts as well.
    one(
        vec![
            service("192.0.2.1:80", &["192.0.2.2:80"]),
            service("192.0.2.2:80", &[]),
        ],
        "service[0].backend[0].address",
        "is the VIP of service 192.0.2.2:80/tcp",
    );
    one(
        vec![service("192.0.2.1:80", &["10.0.0.254:80"])],
        "service[0].backend[0].address",
        "the balancer itself",
    );
    one(
        vec![service("192.0.2.1:80", &["[2001:db8::5]:80"])],
        "service[0].backend[0].address",
        "different families",
    );
    let mut five = service("192.0.2.1:80", &[]);
    five.choices = 5;
    one(vec![five], "service[0].choices", "1 to 4, not 5");
}

#[test]
fn limits() {
    let many = (0..5)
        .map(|i| service(&format!("192.0.2.{}:80", i + 1), &[]))
        .collect();
    one(many, "service", "5 services, but the limit is 4");

    let nine: Vec<String> = (1..=9).map(|i| format!("10.0.0.{i}:80")).collect();
    let nine: Vec<&str> = nine.iter().map(String::as_str).collect();
    one(
        vec![service("192.0.2.1:80", &nine)],
        "backend",
        "9 backends in all, but the limit is 8",
    );

    let tables = Limits {
        candidate_rows: 2047,
        ..LIMITS
    };
    let spec = Spec {
        services: vec![service("192.0.2.1:80", &nine[..8])],
    };
    let found = check(&spec, &tables, &[]);
    assert!(
        found[0]
            .message
            .contains("need 2048 rows, but the limit is 2047"),
        "{found:?}"
    );
}
