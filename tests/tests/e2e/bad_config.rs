//! Configs that cannot be meant: each is refused by name, and nothing is left attached.

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    agent::Start,
    scratch::Scratch,
    topology::{Shape, Topology},
};

/// What is wrong, the config, and what the message must name.
const CASES: &[(&str, &str, &[&str])] = &[
    ("no TOML", "[[service]\naddress = 1", &["lb.toml:1:"]),
    (
        "unknown key",
        "[[service]]\naddress = \"198.51.100.10:80\"\ncolour = \"red\"",
        &["lb.toml:3:", "colour"],
    ),
    (
        "unknown section",
        "\n[balanser]\nhash_seed = 1",
        &["lb.toml:2:", "balanser"],
    ),
    (
        "duplicate backend",
        "[[service]]\naddress = \"198.51.100.10:80\"\n\
         [[service.backend]]\naddress = \"10.1.0.2:80\"\n\
         [[service.backend]]\naddress = \"10.1.0.2:80\"",
        &["10.1.0.2:80"],
    ),
    (
        "duplicate service",
        "[[service]]\naddress = \"198.51.100.10:80\"\n[[service]]\naddress = \"198.51.100.10:80\"",
        &["198.51.100.10:80"],
    ),
    (
        "backend is the VIP",
        "[[service]]\naddress = \"198.51.100.10:80\"\n[[service.backend]]\naddress = \"198.51.100.10:80\"",
        &["198.51.100.10:80", "VIP"],
    ),
    (
        "backend is the balancer",
        "[[service]]\naddress = \"198.51.100.10:80\"\n[[service.backend]]\naddress = \"192.0.2.1:80\"",
        &["192.0.2.1"],
    ),
    (
        "port 0",
        "[[service]]\naddress = \"198.51.100.10:80\"\n[[service.backend]]\naddress = \"10.1.0.2:0\"",
        &["port"],
    ),
    (
        "VIP port 0",
        "[[service]]\naddress = \"198.51.100.10:0\"",
        &["port"],
    ),
    (
        "mixed families",
        "[[service]]\naddress = \"198.51.100.10:80\"\n[[service.backend]]\naddress = \"[2001:db8:2::2]:80\"",
        &["2001:db8:2::2"],
    ),
    (
        "too many choices",
        "[[service]]\naddress = \"198.51.100.10:80\"\nchoices = 5",
        &["choices", "4"],
    ),
    (
        "weight out of range",
        "[[service]]\naddress = \"198.51.100.10:80\"\n[[service.backend]]\naddress = \"10.1.0.2:80\"\nweight = 65536",
        &["weight", "65535"],
    ),
    (
        "no address",
        "[[service]]\naddress = \"example.com:80\"",
        &["example.com"],
    ),
];

pub fn each_is_refused() -> Result<()> {
    let bed = Topology::new(Shape::Routed, 1)?;
    let scratch = Scratch::new()?;
    for (what, config, named) in CASES {
        let start = Start {
            config: Some(scratch.write("lb.toml", config)?),
            ..Start::new(&bed.balancer, &bed.interfaces, &scratch)
        };
        let said = start.expect_refusal().with_context(|| (*what).to_owned())?;
        for name in *named {
            ensure!(
                said.replace(',', "").contains(name),
                "{what}: the message does not name {name}: {said}"
            );
        }
        ensure!(!start.socket.exists(), "{what}: the socket is still there");
        let links = bed.balancer.output("ip", &["-details", "link", "show"])?;
        ensure!(!links.contains("prog/xdp"), "{what}: {links}");
    }
    Ok(())
}
