//! Starting, stopping and what may be in the way.

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    agent::{Agent, Start, refusal},
    netns::Netns,
    offload::PassAll,
    scratch::Scratch,
    topology::{Shape, Topology},
    world::World,
};
use nix::sys::signal::Signal;
use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixListener, UnixStream},
        process::CommandExt as _,
    },
    time::Duration,
};

pub fn second_agent() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 2)?;
    let elsewhere = Topology::new(Shape::Routed, 1)?;
    for bed in [&world.bed, &elsewhere] {
        let second = Start::new(&bed.balancer, &bed.interfaces, &world.scratch);
        let said = second.expect_refusal()?;
        ensure!(said.contains("lb.sock"), "{said}");
    }
    ensure!(xdp_programs(&elsewhere.balancer)?.is_empty());
    world.agent.ok(&["status"])?;
    world.works()?;
    world.agent.stop()
}

pub fn stale_socket() -> Result<()> {
    let bed = Topology::new(Shape::Routed, 1)?;
    let scratch = Scratch::new()?;
    let path = scratch.path("lb.sock");
    // A listener that goes leaves its file.
    drop(UnixListener::bind(&path)?);
    ensure!(path.exists());
    let agent = Agent::start(&scratch, &bed.balancer, &bed.interfaces, "")?;
    agent.ok(&["status"])?;
    ensure!(fs::metadata(&path)?.permissions().mode() & 0o777 == 0o660);
    agent.stop()?;
    ensure!(!path.exists());

    // What is no socket is not ours to remove.
    fs::write(&path, "precious")?;
    let start = Start::new(&bed.balancer, &bed.interfaces, &scratch);
    let said = start.expect_refusal()?;
    ensure!(said.contains("lb.sock"), "{said}");
    ensure!(fs::read_to_string(&path)? == "precious");
    Ok(())
}

pub fn garbage() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 2)?;
    let socket = world.agent.socket();
    // Said and left open, while the rest goes on.
    let mut open = Vec::new();
    let long_header = [b"GET /v1/status HTTP/1.1\r\nx: ", &[b'a'; 100_000][..]].concat();
    let sayings: [&[u8]; 9] = [
        b"",
        b"\0",
        b"\r\n\r\n\r\n",
        &[0xff; 4096],
        b"GET /v1/status HTTP/1.1\r\n",
        &long_header,
        b"POST /v1/services HTTP/1.1\r\nhost: x\r\ncontent-length: 18446744073709551615\r\n\r\n{",
        b"POST /v1/services HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ];
    for saying in sayings {
        let mut stream = UnixStream::connect(socket)?;
        // It may hang up on us before all is said.
        drop(stream.write_all(saying));
        open.push(stream);
        let mut stream = UnixStream::connect(socket)?;
        drop(stream.write_all(saying));
        drop(stream);
        world.agent.ok(&["status"])?;
    }
    for body in [
        "",
        "{",
        "null",
        "[]",
        "{\"address\": 7}",
        "{\"address\": \"198.51.100.9:80\", \"colour\": 1}",
    ] {
        let (status, said) = post(socket, "/v1/services", body)?;
        ensure!((400..500).contains(&status), "{body}: {said}");
    }
    world.works()?;
    drop(open);
    world.agent.stop()
}

/// Posts a body by hand, and returns the status and the whole answer.
fn post(socket: &std::path::Path, path: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: lb\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).context("no status")?.parse()?;
    Ok((status, answer))
}

pub fn sigterm() -> Result<()> {
    let world = World::new(Shape::Routed, 1, 1)?;
    let interfaces = world.bed.interfaces.clone();
    ensure!(xdp_programs(&world.bed.balancer)? == interfaces);
    let socket = world.agent.socket().to_owned();
    world.agent.stop()?;
    ensure!(xdp_programs(&world.bed.balancer)?.is_empty());
    ensure!(!socket.exists());
    Ok(())
}

pub fn sigkill() -> Result<()> {
    let mut world = World::new(Shape::Routed, 1, 1)?;
    world.agent.signal(Signal::SIGKILL)?;
    world.agent.wait()?;
    // The links were descriptors of the process.
    lb_tests::world::eventually("no program attached", || {
        Ok(xdp_programs(&world.bed.balancer)?.is_empty())
    })?;
    // The socket it left is no obstacle.
    let World { bed, scratch, .. } = &world;
    let again = Agent::start(scratch, &bed.balancer, &bed.interfaces, "")?;
    again.stop()
}

pub fn taken_interface() -> Result<()> {
    let bed = Topology::new(Shape::Routed, 1)?;
    let mut other = PassAll::load()?;
    // Not the first, so that there is one to take off again.
    let taken = bed.interfaces.last().context("no interface")?;
    other.attach(&bed.balancer, taken)?;
    let scratch = Scratch::new()?;
    let start = Start::new(&bed.balancer, &bed.interfaces, &scratch);
    let said = start.expect_refusal()?;
    ensure!(said.contains(taken), "{said}");
    ensure!(said.contains("pass"), "{said}");
    ensure!(xdp_programs(&bed.balancer)? == std::slice::from_ref(taken));
    ensure!(!start.socket.exists());
    Ok(())
}

pub fn unknown_interface() -> Result<()> {
    let bed = Topology::new(Shape::Routed, 1)?;
    let scratch = Scratch::new()?;
    let mut interfaces = bed.interfaces.clone();
    interfaces.push("eth7".to_owned());
    let start = Start::new(&bed.balancer, &interfaces, &scratch);
    let said = start.expect_refusal()?;
    // Names it, and those that there are.
    ensure!(said.contains("eth7") && said.contains("b0"), "{said}");
    ensure!(xdp_programs(&bed.balancer)?.is_empty());
    ensure!(!start.socket.exists());
    Ok(())
}

pub fn big_mtu() -> Result<()> {
    let bed = Topology::new(Shape::Routed, 1)?;
    bed.balancer
        .ip("link add name big mtu 9000 type veth peer name far mtu 9000\nlink set big up")?;
    let mut interfaces = bed.interfaces.clone();
    interfaces.push("big".to_owned());
    let scratch = Scratch::new()?;
    let start = Start::new(&bed.balancer, &interfaces, &scratch);
    let said = start.expect_refusal()?;
    ensure!(said.contains("big") && said.contains("MTU"), "{said}");
    ensure!(xdp_programs(&bed.balancer)?.is_empty());
    Ok(())
}

pub fn generic_mode() -> Result<()> {
    let bed = Topology::new(Shape::Routed, 1)?;
    let scratch = Scratch::new()?;
    let generic = Start {
        xdp_mode: "generic",
        ..Start::new(&bed.balancer, &bed.interfaces, &scratch)
    };
    let agent = Agent::spawn(&generic)?;
    let status = agent.json(&["status"])?;
    let attachments = status["attachments"].as_array().context("no attachments")?;
    ensure!(attachments.len() == bed.interfaces.len());
    ensure!(
        attachments.iter().all(|a| a["mode"] == "generic"),
        "{status}"
    );
    agent.stop()
}

pub fn no_privileges() -> Result<()> {
    const CAP_NET_ADMIN: libc::c_ulong = 12;
    const CAP_SYS_ADMIN: libc::c_ulong = 21;
    const CAP_BPF: libc::c_ulong = 39;
    let bed = Topology::new(Shape::Routed, 1)?;
    let scratch = Scratch::new()?;
    let mut command = Start::new(&bed.balancer, &bed.interfaces, &scratch).command()?;
    // SAFETY: only system calls between fork and exec. What is not in the bounding set when a program
    // starts, it does not get, not even as root.
    unsafe {
        command.pre_exec(|| {
            for capability in [CAP_NET_ADMIN, CAP_BPF, CAP_SYS_ADMIN] {
                if libc::prctl(libc::PR_CAPBSET_DROP, capability) != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let said = refusal(&mut command)?;
    ensure!(said.contains("root") || said.contains("CAP_"), "{said}");
    ensure!(!scratch.path("lb.sock").exists());
    Ok(())
}

pub fn no_agent() -> Result<()> {
    let mut world = World::new(Shape::Routed, 1, 1)?;
    world.agent.signal(Signal::SIGKILL)?;
    world.agent.wait()?;
    for args in [&["status"][..], &["flows"], &["service", "list"]] {
        let said = world.agent.refused(args)?;
        ensure!(
            said.contains("lb.sock") && said.contains("lb run"),
            "{said}"
        );
    }
    Ok(())
}

/// Interfaces that have an XDP program.
pub fn xdp_programs(netns: &Netns) -> Result<Vec<String>> {
    let text = netns.output("ip", &["-json", "-details", "link", "show"])?;
    let links: Vec<serde_json::Value> = serde_json::from_str(&text)?;
    let mut names: Vec<(u64, String)> = Vec::new();
    for link in links {
        if link
            .get("xdp")
            .is_some_and(|xdp| xdp["prog"]["id"].is_u64())
        {
            let index = link["ifindex"].as_u64().context("no ifindex")?;
            let name = link["ifname"].as_str().context("no ifname")?;
            names.push((index, name.to_owned()));
        }
    }
    names.sort();
    Ok(names.into_iter().map(|(_, name)| name).collect())
}
