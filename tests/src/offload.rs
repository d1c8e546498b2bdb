//! What has to be set on veth pairs for XDP to work on them.
//!
//! - XDP_TX and redirected frames reach a peer only if it has an XDP program (or GRO) itself, so a
//!   program that passes everything is attached to the far ends.
//! - A veth sender leaves checksums to hardware that is not there; a program that rewrites addresses
//!   would then update a checksum that is none. So endpoints compute them.

use anyhow::{Context as _, Result, ensure};
use aya::{
    Ebpf, EbpfLoader,
    programs::{
        Xdp,
        xdp::{XdpLinkId, XdpMode},
    },
};
use lb_user::dataplane::object::TESTBED;
use std::{collections::HashMap, io, net::UdpSocket, os::fd::AsRawFd as _};

use crate::netns::Netns;

/// The program that passes every frame, attached wherever it was asked for while this value lives.
pub struct PassAll {
    ebpf: Ebpf,
    /// Where it is attached, by the names of the namespace and the interface.
    links: HashMap<(String, String), XdpLinkId>,
}

impl PassAll {
    /// Loads the program.
    pub fn load() -> Result<Self> {
        let mut ebpf = EbpfLoader::new()
            .load(TESTBED)
            .context("cannot load the test bed's BPF object")?;
        program(&mut ebpf)?
            .load()
            .context("cannot load the XDP program `pass`")?;
        Ok(Self {
            ebpf,
            links: HashMap::new(),
        })
    }

    /// Attaches it to an interface, in native mode.
    pub fn attach(&mut self, netns: &Netns, interface: &str) -> Result<()> {
        let link = netns.run(|| {
            program(&mut self.ebpf)?
                .attach(interface, XdpMode::Driver)
                .with_context(|| format!("cannot attach `pass` to {interface} of {}", netns.name()))
        })?;
        self.links.insert(key(netns, interface), link);
        Ok(())
    }

    /// Takes it off an interface again, for a program that does what is needed there itself.
    pub fn detach(&mut self, netns: &Netns, interface: &str) -> Result<()> {
        let link = self.links.remove(&key(netns, interface));
        let link = link.with_context(|| format!("`pass` is not on {interface}"))?;
        program(&mut self.ebpf)?.detach(link)?;
        Ok(())
    }
}

fn key(netns: &Netns, interface: &str) -> (String, String) {
    (netns.name().to_owned(), interface.to_owned())
}

fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp> {
    let program = ebpf.program_mut("pass").context("no program `pass`")?;
    Ok(program.try_into()?)
}

/// Has an interface's sender compute checksums itself.
pub fn tx_checksum_off(netns: &Netns, interface: &str) -> Result<()> {
    const ETHTOOL_STXCSUM: u32 = 0x17;
    ethtool(netns, interface, ETHTOOL_STXCSUM, 0)
        .with_context(|| format!("cannot turn off checksum offload of {interface}"))
}

/// Turns GRO on: frames can then be redirected to the other end of a veth pair.
pub fn gro_on(netns: &Netns, interface: &str) -> Result<()> {
    const ETHTOOL_SGRO: u32 = 0x2c;
    ethtool(netns, interface, ETHTOOL_SGRO, 1)
        .with_context(|| format!("cannot turn on GRO of {interface}"))
}

/// A command of `linux/ethtool.h` that sets one value.
fn ethtool(netns: &Netns, interface: &str, command: u32, data: u32) -> Result<()> {
    #[repr(C)]
    struct EthtoolValue {
        cmd: u32,
        data: u32,
    }
    let mut value = EthtoolValue { cmd: command, data };
    let bytes = interface.as_bytes();
    ensure!(
        bytes.len() < libc::IFNAMSIZ,
        "interface name {interface} is too long"
    );
    netns.run(move || {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        // SAFETY: all-zero is a value of this C structure.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: the request points to an ethtool_value, which this command reads.
        let result =
            unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error().into())
        }
    })
}
