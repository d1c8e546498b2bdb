//! Tunnel packets, written out by etherparse, and a sender of them that stands where a balancer would.

use std::{
    fs::File,
    io::{self, Read as _},
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, bail, ensure};
use etherparse::{
    IpDscp, IpEcn, IpFragOffset, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, UdpHeader,
};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{MsgFlags, SockaddrStorage, sendto},
};

use crate::netns::Netns;

/// UDP port of GUE.
pub const GUE_PORT: u16 = 6080;
/// MTU for packets that are yet to be wrapped: the longest headers still fit into 1,500.
pub const INNER_MTU: u16 = 1400;

/// How a packet is wrapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Directly in IP.
    Ip,
    /// In GUE of variant 0.
    Gue0(Gue0),
    /// In GUE of variant 1: IP directly behind UDP.
    Gue1,
}

/// A GUE header of variant 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gue0 {
    /// The C bit.
    pub control: bool,
    /// The protocol, if it is not that of the packet.
    pub proto: Option<u8>,
    /// The flags.
    pub flags: u16,
    /// Fields behind the header, a multiple of four bytes.
    pub fields: Vec<u8>,
}

/// The outer headers of a tunnel packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Outer source.
    pub source: IpAddr,
    /// Outer destination.
    pub destination: IpAddr,
    /// What is between the IP headers.
    pub way: Way,
    /// ECN bits of the outer header.
    pub ecn: IpEcn,
    /// UDP port of GUE.
    pub port: u16,
    /// With a UDP checksum.
    pub checksum: bool,
    /// UDP source port of GUE.
    pub source_port: u16,
    /// Flow label of an outer IPv6 header, 20 bits.
    pub flow_label: u32,
}

impl Tunnel {
    /// A tunnel as balancers make it: no ECN mark, the usual port, no UDP checksum;
    /// nothing in it depends on the flow.
    pub fn new(source: impl Into<IpAddr>, destination: impl Into<IpAddr>, way: Way) -> Self {
        Self {
            source: source.into(),
            destination: destination.into(),
            way,
            ecn: IpEcn::ZERO,
            port: GUE_PORT,
            checksum: false,
            source_port: 50_000,
            flow_label: 0,
        }
    }

    /// The name of the counter of `lb decap` that a packet by this tunnel adds to.
    pub fn counter(&self, inner: IpAddr) -> &'static str {
        match (&self.way, inner.is_ipv4(), self.destination.is_ipv4()) {
            (Way::Ip, true, true) => "4in4",
            (Way::Ip, false, true) => "6in4",
            (Way::Ip, true, false) => "4in6",
            (Way::Ip, false, false) => "6in6",
            (Way::Gue0(_), ..) => "gue_0",
            (Way::Gue1, ..) => "gue_1",
        }
    }

    /// The packet that carries `inner`, an IP packet, from the outer IP header on.
    ///
    /// # Panics
    ///
    /// If the packet is too long, or the addresses are of different families.
    pub fn wrap(&self, inner: &[u8]) -> Vec<u8> {
        let proto = match inner[0] >> 4 {
            4 => 4,
            _ => 41,
        };
        let (proto, payload) = match &self.way {
            Way::Ip => (proto, inner.to_vec()),
            Way::Gue0(header) => (17, self.udp(&[&header.bytes(proto), inner].concat())),
            Way::Gue1 => (17, self.udp(inner)),
        };
        let mut packet = self.ip_header(proto, payload.len());
        packet.extend(payload);
        packet
    }

    fn ip_header(&self, proto: u8, len: usize) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = Ipv4Header {
                    dscp: IpDscp::ZERO,
                    ecn: self.ecn,
                    dont_fragment: true,
                    fragment_offset: IpFragOffset::ZERO,
                    time_to_live: 64,
                    protocol: IpNumber(proto),
                    source: source.octets(),
                    destination: destination.octets(),
                    ..Ipv4Header::default()
                };
                if let Err(e) = header.set_payload_len(len) {
                    panic!("the packet is too long: {e}");
                }
                header.header_checksum = header.calc_header_checksum();
                header.to_bytes().to_vec()
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => Ipv6Header {
                traffic_class: self.ecn.value(),
                flow_label: Ipv6FlowLabel::try_new(self.flow_label)
                    .unwrap_or_else(|e| panic!("{e}")),
                payload_length: length(len),
                next_header: IpNumber(proto),
                hop_limit: 64,
                source: source.octets(),
                destination: destination.octets(),
            }
            .to_bytes()
            .to_vec(),
            other => panic!("{other:?} are of different families"),
        }
    }

    fn udp(&self, payload: &[u8]) -> Vec<u8> {
        let mut udp = UdpHeader {
            source_port: self.source_port,
            destination_port: self.port,
            length: length(UdpHeader::LEN + payload.len()),
            checksum: 0,
        };
        if self.checksum {
            let checksum = match (self.source, self.destination) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    udp.calc_checksum_ipv4_raw(source.octets(), destination.octets(), payload)
                }
                (IpAddr::V6(source), IpAddr::V6(destination)) => {
                    udp.calc_checksum_ipv6_raw(source.octets(), destination.octets(), payload)
                }
                other => panic!("{other:?} are of different families"),
            };
            udp.checksum = checksum.unwrap_or_else(|e| panic!("the packet is too long: {e}"));
        }
        [&udp.to_bytes()[..], payload].concat()
    }
}

impl Gue0 {
    /// The header before a packet of that protocol (draft-ietf-intarea-gue-09, section 3.1).
    fn bytes(&self, proto: u8) -> Vec<u8> {
        assert!(self.fields.len().is_multiple_of(4) && self.fields.len() <= 124);
        let words = (self.fields.len() / 4) as u8;
        let [high, low] = self.flags.to_be_bytes();
        let first = u8::from(self.control) << 5 | words;
        let mut bytes = vec![first, self.proto.unwrap_or(proto), high, low];
        bytes.extend(&self.fields);
        bytes
    }
}

fn length(len: usize) -> u16 {
    u16::try_from(len).unwrap_or_else(|_| panic!("{len} bytes are too many"))
}

/// Wraps what a namespace routes to some addresses, and sends it on through that namespace: a balancer of
/// one backend. Stops when dropped.
#[derive(Debug)]
pub struct Sender {
    sent: Arc<AtomicU64>,
    stop: io::PipeWriter,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Sender {
    /// Takes the packets to the given addresses, of up to `mtu` bytes, each by its own tunnel.
    pub fn start(netns: &Netns, inner: &[(IpAddr, Tunnel)], mtu: u16) -> Result<Self> {
        // A name of its own: a process that is just being started may still hold the device of the sender before.
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let name = format!("tunnel{}", STARTED.fetch_add(1, Relaxed));
        let tun = netns.run(|| open_tun(&name))?;
        let mut commands = format!("link set {name} mtu {mtu} up\n");
        for (address, _) in inner {
            commands.push_str(&format!("route replace {address} dev {name}\n"));
        }
        netns.ip(&commands)?;
        let raw = RawSender::new(netns)?;
        let (stopped, stop) = io::pipe()?;
        let sent = Arc::new(AtomicU64::new(0));
        let (count, inner) = (Arc::clone(&sent), inner.to_vec());
        let thread = thread::spawn(move || -> Result<()> {
            let mut tun = tun;
            let mut buffer = vec![0; 65_536];
            loop {
                let mut fds = [
                    PollFd::new(tun.as_fd(), PollFlags::POLLIN),
                    PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
                ];
                poll(&mut fds, PollTimeout::NONE)?;
                if fds[1].any().unwrap_or(true) {
                    return Ok(());
                }
                let length = tun.read(&mut buffer)?;
                let packet = &buffer[..length];
                // Packets that the kernel sends to groups by itself are for no one.
                let Some((_, tunnel)) = inner
                    .iter()
                    .find(|(address, _)| Some(*address) == destination(packet))
                else {
                    continue;
                };
                // Before it is sent, so that who has an answer also has the count.
                count.fetch_add(1, Relaxed);
                raw.send(&tunnel.wrap(packet))?;
            }
        });
        Ok(Self {
            sent,
            stop,
            thread: Some(thread),
        })
    }

    /// Packets wrapped so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Stops, and returns how many packets were wrapped.
    pub fn stop(mut self) -> Result<u64> {
        self.join()?;
        Ok(self.sent())
    }

    fn join(&mut self) -> Result<()> {
        // Whatever comes wakes the thread; if it has ended, there is nobody to wake.
        let _ = io::Write::write(&mut self.stop, &[1]);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => bail!("the sender panicked"),
            None => Ok(()),
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // A failure there shows in that packets are missing.
        drop(self.join());
    }
}

/// The destination of an IP packet.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => <[u8; 4]>::try_from(packet.get(16..20)?)
            .ok()
            .map(IpAddr::from),
        6 => <[u8; 16]>::try_from(packet.get(24..40)?)
            .ok()
            .map(IpAddr::from),
        _ => None,
    }
}

/// Sends IP packets as they are, by the routes of a namespace.
#[derive(Debug)]
pub struct RawSender {
    v4: OwnedFd,
    v6: OwnedFd,
}

impl RawSender {
    /// Sends through `netns`.
    pub fn new(netns: &Netns) -> Result<Self> {
        netns.run(|| {
            Ok(Self {
                v4: raw_socket(libc::AF_INET)?,
                v6: raw_socket(libc::AF_INET6)?,
            })
        })
    }

    /// Sends one packet.
    pub fn send(&self, packet: &[u8]) -> Result<()> {
        let to = destination(packet).context("no IP packet")?;
        let socket = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        let sent = sendto(
            socket.as_raw_fd(),
            packet,
            &SockaddrStorage::from(SocketAddr::new(to, 0)),
            MsgFlags::empty(),
        )
        .with_context(|| format!("cannot send {} bytes to {to}", packet.len()))?;
        ensure!(sent == packet.len());
        Ok(())
    }
}

/// A TUN device whose packets have no header before them.
fn open_tun(name: &str) -> Result<File> {
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    let file = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .context("cannot open /dev/net/tun (needs CONFIG_TUN)")?;
    ensure!(name.len() < libc::IFNAMSIZ);
    // SAFETY: all-zero is a value of this C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is an ifreq, which this command reads and writes.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error()).context("cannot make a TUN device");
    }
    Ok(file)
}

/// A socket that takes packets with their IP header.
fn raw_socket(family: libc::c_int) -> Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe {
        libc::socket(
            family,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::IPPROTO_RAW,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error()).context("cannot open a raw socket");
    }
    // SAFETY: the kernel has just returned this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
