//! Packets that are wrong in every header: the program passes them untouched, drops them with one
//! reason counted, or changes in them what NAT changes and nothing else. Nothing here is random from
//! run to run: what fails once fails again.

use std::{cell::Cell, net::SocketAddr};

use anyhow::{Context as _, Result, bail, ensure};
use lb_common::verdict::Counter;
use lb_tests::{
    fixture::{
        ALL, Frame, Kind, Net, Place, Port, Rig, Scene, Setup,
        frame::{ACK, ETHERNET, FIN, RST, SYN},
        run::{DROP, Outcome, PASS, REDIRECT, TX, cpus, pin},
        scene::ONE,
        step::counted,
    },
    harness::{self, MadeTest},
};
use lb_user::dataplane::FlowState;

/// Packets of each random test; there is one for each kind and origin.
const RANDOM_PACKETS: usize = 2_500;
/// Data behind the headers.
const PAYLOAD: &[u8] = b"0123456789";

const SETUP: Setup = Setup {
    backends: &[Place::Near, Place::Far],
    flow_table_size: 1 << 16,
    ..ONE
};

fn main() {
    let mut tests: Vec<MadeTest> = Vec::new();
    for &kind in ALL {
        for origin in Origin::ALL {
            let mut add = |name: &str, run: fn(&mut Suite) -> Result<()>| {
                let name = format!("{name}::{}::{}", origin.name(), kind.name());
                tests.push((name, Box::new(move || suite(kind, origin, run))));
            };
            add("every_byte", every_byte);
            add("every_length", every_length);
            add("random", random);
        }
    }
    harness::run_made(tests).exit()
}

/// Who sends the packets before they are spoilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// A client, to a VIP.
    Client,
    /// A backend, to a client.
    Backend,
    /// Somebody, to an address that is no VIP, nor a mistake away from one.
    Stranger,
    /// A client, who pings a VIP.
    Pinger,
    /// Routers and backends, with errors about packets of a flow.
    Router,
}

impl Origin {
    const ALL: [Self; 5] = [
        Self::Client,
        Self::Backend,
        Self::Stranger,
        Self::Pinger,
        Self::Router,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Backend => "backend",
            Self::Stranger => "stranger",
            Self::Pinger => "pinger",
            Self::Router => "router",
        }
    }
}

struct Suite<'a> {
    rig: Rig<'a>,
    scene: Scene,
    origin: Origin,
    frames: Vec<Vec<u8>>,
    rewritten: Cell<u64>,
}

fn suite(kind: Kind, origin: Origin, run: fn(&mut Suite) -> Result<()>) -> Result<()> {
    let net = Net::shared()?;
    let net: &Net = &net;
    net.netns.run(|| {
        pin(cpus()?[0])?;
        let scene = Scene { kind, setup: SETUP };
        let mut suite = Suite {
            rig: Rig::new(net, scene)?,
            scene,
            origin,
            frames: Vec::new(),
            rewritten: Cell::new(0),
        };
        suite.frames = suite.frames()?;
        run(&mut suite)?;
        let may_rewrite = origin != Origin::Stranger;
        ensure!(
            (suite.rewritten.get() > 0) == may_rewrite,
            "{} packets were rewritten",
            suite.rewritten.get()
        );
        suite.check_counts()?;
        suite.rig.finish()
    })
}

impl Suite<'_> {
    /// The packets to spoil: of an established flow, and of none.
    fn frames(&self) -> Result<Vec<Vec<u8>>> {
        let scene = self.scene;
        let backend = scene.first();
        let establish = [
            (scene.request(SYN), Port::Near),
            (scene.reply(backend, SYN | ACK), scene.port(backend)),
            (scene.request(ACK), Port::Near),
        ];
        for (frame, port) in establish {
            let outcome = self.rig.run(&frame.bytes(), port)?;
            ensure!(matches!(outcome.code, TX | REDIRECT), "{outcome:?}");
        }
        let other = |mut frame: Frame| {
            frame.source.set_port(40_001);
            frame
        };
        let payload = |frame: Frame| frame.payload(PAYLOAD);
        let bytes = |frame: Frame| payload(frame).bytes();
        Ok(match self.origin {
            Origin::Client => vec![bytes(scene.request(ACK)), bytes(other(scene.request(SYN)))],
            Origin::Backend => vec![bytes(scene.reply(backend, ACK))],
            Origin::Stranger => vec![
                bytes(scene.request(ACK).to(scene.elsewhere())),
                bytes(scene.request(SYN).to(scene.elsewhere())),
                scene.ping(7, 1, PAYLOAD).to(scene.elsewhere().ip()).bytes(),
            ],
            Origin::Pinger => vec![scene.ping(7, 1, PAYLOAD).bytes()],
            Origin::Router => {
                let reply = payload(scene.reply(backend, ACK).from(scene.vip()));
                let request = payload(scene.request(ACK).to(scene.backend(backend)));
                let error = |source: SocketAddr, about: &Frame, len| {
                    scene
                        .error(scene.too_big(), source.ip(), about, len)
                        .bytes()
                };
                vec![
                    error(scene.elsewhere(), &reply, 8),
                    error(scene.elsewhere(), &reply, 1500),
                    error(scene.backend(backend), &request, 1500),
                ]
            }
        })
    }

    /// Runs the program on a frame and judges what came of it.
    fn check(&self, input: &[u8]) -> Result<()> {
        let before = self.rig.counters()?;
        let outcome = self.rig.run(input, Port::Near)?;
        let counted = counted(&before, &self.rig.counters()?);
        self.judge(input, &outcome, &counted)
            .with_context(|| format!("input {input:02x?}\noutput {outcome:02x?}"))
    }

    fn judge(&self, input: &[u8], outcome: &Outcome, counted: &[Counter]) -> Result<()> {
        let unchanged = outcome.bytes == input;
        match outcome.code {
            PASS => ensure!(
                unchanged && counted.is_empty(),
                "passed, counted {counted:?}"
            ),
            _ if self.origin == Origin::Stranger => bail!("for no VIP, and not passed"),
            DROP => ensure!(
                unchanged && counted.len() == 1 && counted[0].is_drop(),
                "dropped, counted {counted:?}"
            ),
            TX | REDIRECT => {
                match counted {
                    [] => self.judge_rewrite(input, &outcome.bytes)?,
                    [Counter::EchoReply] => self.judge_reply(input, &outcome.bytes)?,
                    [Counter::IcmpError] => self.judge_error(input, &outcome.bytes)?,
                    _ => bail!("counted {counted:?}"),
                }
                self.rewritten.update(|count| count + 1);
            }
            code => bail!("XDP code {code}"),
        }
        Ok(())
    }

    /// Only what NAT may change has changed, and the checksums are as wrong or right as before.
    fn judge_rewrite(&self, input: &[u8], output: &[u8]) -> Result<()> {
        let fields = Fields::of(self.scene.kind.is_v4());
        let proto = input[fields.proto];
        ensure!(proto == 6 || proto == 17, "rewritten, protocol {proto}");
        let checksum = fields.l4 + if proto == 6 { 16 } else { 6 };
        let mut mutable = vec![(0, 12), (fields.ttl, 1), (checksum, 2)];
        mutable.extend(fields.ip_checksum.map(|at| (at, 2)));
        let to_backend =
            output[fields.source..][..fields.addr] == input[fields.source..][..fields.addr];
        let (addr, port) = match to_backend {
            true => (fields.destination, fields.l4 + 2),
            false => (fields.source, fields.l4),
        };
        mutable.extend([(addr, fields.addr), (port, 2)]);
        only_changes(input, output, &mutable)?;
        ensure!(output[fields.ttl] == input[fields.ttl].wrapping_sub(1) && output[fields.ttl] > 0);
        if fields.ip_checksum.is_some() {
            let header = |bytes: &[u8]| sum(&bytes[ETHERNET..ETHERNET + 20]);
            ensure!(header(input) == header(output), "IP checksum");
        }
        let none = proto == 17 && input[checksum..][..2] == [0, 0];
        if none {
            ensure!(output[checksum..][..2] == [0, 0], "a checksum of none");
        } else {
            // All else in what the checksum covers is as it was.
            let covered = |bytes: &[u8]| {
                let addresses = &bytes[fields.source..fields.source + 2 * fields.addr];
                let ports = &bytes[fields.l4..fields.l4 + 4];
                sum(&[addresses, ports, &bytes[checksum..checksum + 2]].concat())
            };
            ensure!(covered(input) == covered(output), "checksum");
            ensure!(proto == 6 || output[checksum..][..2] != [0, 0], "now none");
        }
        Ok(())
    }

    /// Addresses have changed places, the type is that of a reply; the checksum is as wrong or right as
    /// before.
    fn judge_reply(&self, input: &[u8], output: &[u8]) -> Result<()> {
        let fields = Fields::of(self.scene.kind.is_v4());
        let mut mutable = fields.of_message();
        mutable.extend([
            (fields.source, 2 * fields.addr),
            (fields.l4, 1),
            (fields.ttl, 1),
        ]);
        only_changes(input, output, &mutable)?;
        let field = |bytes: &[u8], at, len| bytes[at..at + len].to_vec();
        for (one, other, len) in [(0, 6, 6), (fields.source, fields.destination, fields.addr)] {
            ensure!(field(input, one, len) == field(output, other, len));
            ensure!(field(input, other, len) == field(output, one, len));
        }
        ensure!(output[fields.ttl] == 64);
        fields.same_sums(input, output)
    }

    /// What has changed is one address and port of the quoted packet, the error's address at the other
    /// end, and checksums, which are as wrong or right as before.
    fn judge_error(&self, input: &[u8], output: &[u8]) -> Result<()> {
        let fields = Fields::of(self.scene.kind.is_v4());
        let quoted = fields.quoted();
        let to_backend = output[quoted.destination..][..fields.addr]
            == input[quoted.destination..][..fields.addr];
        let (addr, quoted_addr, port) = match to_backend {
            true => (fields.destination, quoted.source, quoted.l4),
            false => (fields.source, quoted.destination, quoted.l4 + 2),
        };
        let mut mutable = fields.of_message();
        mutable.extend(quoted.ip_checksum.map(|at| (at, 2)));
        let checksum = quoted.l4 + if input[quoted.proto] == 6 { 16 } else { 6 };
        mutable.extend([
            (fields.ttl, 1),
            (addr, fields.addr),
            (quoted_addr, fields.addr),
            (port, 2),
            (checksum, 2),
        ]);
        only_changes(input, output, &mutable)?;
        ensure!(output[fields.ttl] == input[fields.ttl].wrapping_sub(1) && output[fields.ttl] > 0);
        fields.same_sums(input, output)?;
        if let Some(at) = quoted.ip_checksum {
            let header = |bytes: &[u8]| sum(&bytes[at - 10..at + 10]);
            ensure!(header(input) == header(output), "quoted IP checksum");
        }
        let whole = checksum + 2 <= fields.l4 + fields.message_len(input);
        let none = input[quoted.proto] == 17 && input[checksum..][..2] == [0, 0];
        if whole && !none {
            let covered = |bytes: &[u8]| {
                let addresses = &bytes[quoted.source..][..2 * fields.addr];
                let ports = &bytes[quoted.l4..][..4];
                sum(&[addresses, ports, &bytes[checksum..][..2]].concat())
            };
            ensure!(covered(input) == covered(output), "quoted checksum");
        } else {
            let end = (checksum + 2).min(input.len());
            let at = checksum.min(end);
            ensure!(input[at..end] == output[at..end], "no whole checksum");
        }
        Ok(())
    }

    /// However spoilt the packets were, what is counted in flight is what is in the table.
    fn check_counts(&self) -> Result<()> {
        let flows = self.rig.dataplane.flow_tables()?.list(usize::MAX)?;
        let open = flows
            .iter()
            .filter(|flow| flow.state != FlowState::Closed)
            .count() as u64;
        let in_flight: u64 = self.rig.loads()?.values().map(|load| load.in_flight).sum();
        ensure!(
            in_flight == open,
            "{in_flight} in flight, {open} flows are open"
        );
        Ok(())
    }
}

/// Where the fields lie in a frame.
struct Fields {
    proto: usize,
    ttl: usize,
    ip_checksum: Option<usize>,
    source: usize,
    destination: usize,
    addr: usize,
    l4: usize,
}

impl Fields {
    const fn of(v4: bool) -> Self {
        if v4 {
            Self {
                proto: 23,
                ttl: 22,
                ip_checksum: Some(24),
                source: 26,
                destination: 30,
                addr: 4,
                l4: 34,
            }
        } else {
            Self {
                proto: 20,
                ttl: 21,
                ip_checksum: None,
                source: 22,
                destination: 38,
                addr: 16,
                l4: 54,
            }
        }
    }
}

impl Fields {
    /// Those of the packet that an ICMP error quotes.
    fn quoted(&self) -> Self {
        let by = self.l4 + 8 - ETHERNET;
        Self {
            proto: self.proto + by,
            ttl: self.ttl + by,
            ip_checksum: self.ip_checksum.map(|at| at + by),
            source: self.source + by,
            destination: self.destination + by,
            addr: self.addr,
            l4: self.l4 + by,
        }
    }

    /// Ranges that change in every ICMP message that is answered or passed on: MACs and checksums.
    fn of_message(&self) -> Vec<(usize, usize)> {
        let mut ranges = vec![(0, 12), (self.l4 + 2, 2)];
        ranges.extend(self.ip_checksum.map(|at| (at, 2)));
        ranges
    }

    /// Length of what follows the IP header, as that says.
    fn message_len(&self, frame: &[u8]) -> usize {
        let (at, headers) = match self.ip_checksum {
            Some(_) => (16, 20),
            None => (18, 0),
        };
        usize::from(u16::from_be_bytes([frame[at], frame[at + 1]])) - headers
    }

    /// The IP header, and all that the checksum of an ICMP message covers, have the sums they had.
    fn same_sums(&self, input: &[u8], output: &[u8]) -> Result<()> {
        let len = self.message_len(input);
        let covered = |bytes: &[u8]| {
            let mut covered = bytes[self.l4..self.l4 + len].to_vec();
            covered.resize(len.next_multiple_of(2), 0);
            if self.ip_checksum.is_none() {
                covered.extend(&bytes[self.source..][..2 * self.addr]);
            }
            sum(&covered)
        };
        ensure!(covered(input) == covered(output), "ICMP checksum");
        if self.ip_checksum.is_some() {
            let header = |bytes: &[u8]| sum(&bytes[ETHERNET..ETHERNET + 20]);
            ensure!(header(input) == header(output), "IP checksum");
        }
        Ok(())
    }
}

/// Checks that only these ranges (start and length) have changed.
fn only_changes(input: &[u8], output: &[u8], mutable: &[(usize, usize)]) -> Result<()> {
    ensure!(input.len() == output.len(), "the length changed");
    for at in 0..input.len() {
        let may = mutable
            .iter()
            .any(|&(from, len)| (from..from + len).contains(&at));
        ensure!(may || input[at] == output[at], "byte {at} changed");
    }
    Ok(())
}

/// The one's-complement sum of 16-bit words (RFC 1071), with one form of 0.
fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    if sum == 0xffff { 0 } else { sum as u16 }
}

/// Each byte of the headers, to its neighbours, its complement, and the ends of its range.
fn every_byte(suite: &mut Suite) -> Result<()> {
    for frame in &suite.frames {
        for at in 0..frame.len() - PAYLOAD.len() {
            let byte = frame[at];
            let single_bits = (0..8).map(|bit| byte ^ 1 << bit);
            let others = [0, 1, 0x7f, 0x80, 0xff, !byte, byte.wrapping_add(1)];
            for value in single_bits.chain(others) {
                let mut spoilt = frame.clone();
                spoilt[at] = value;
                suite.check(&spoilt)?;
            }
        }
    }
    Ok(())
}

/// Each length from an Ethernet header to more than the packet has, also with the lengths in the
/// headers made to match.
fn every_length(suite: &mut Suite) -> Result<()> {
    for frame in &suite.frames {
        for len in ETHERNET..frame.len() + 32 {
            let mut cut = frame.clone();
            cut.resize(len, 0);
            suite.check(&cut)?;
            let (at, counted_from) = match suite.scene.kind.is_v4() {
                true => (16, ETHERNET),
                false => (18, ETHERNET + 40),
            };
            if len >= at + 2 {
                let length = u16::try_from(len.saturating_sub(counted_from))?;
                cut[at..at + 2].copy_from_slice(&length.to_be_bytes());
                suite.check(&cut)?;
            }
        }
    }
    Ok(())
}

/// Up to eight bytes anywhere, some of them cut off as well, with flags that make and end flows.
fn random(suite: &mut Suite) -> Result<()> {
    let mut rng = SplitMix(0x1b_5eed + suite.scene.kind as u64 * 16 + suite.origin as u64);
    for _ in 0..RANDOM_PACKETS {
        let mut frame = suite.frames[rng.below(suite.frames.len())].clone();
        if suite.scene.kind.is_tcp() && rng.below(2) == 0 {
            let flags = [
                SYN,
                ACK,
                FIN | ACK,
                RST,
                SYN | ACK,
                SYN | FIN,
                RST | ACK,
                0,
                0xff,
            ];
            frame[suite.scene.kind.l4() + 13] = flags[rng.below(flags.len())];
        }
        for _ in 0..rng.below(9) {
            // Mostly in the headers.
            let headers = (suite.scene.kind.l4() + 20).min(frame.len());
            let end = if rng.below(8) == 0 {
                frame.len()
            } else {
                headers
            };
            let at = rng.below(end);
            frame[at] = match rng.below(4) {
                0 => 0,
                1 => 0xff,
                2 => frame[at] ^ 1 << rng.below(8),
                _ => rng.below(256) as u8,
            };
        }
        if rng.below(4) == 0 {
            frame.truncate(ETHERNET + rng.below(frame.len() - ETHERNET));
        }
        suite.check(&frame)?;
    }
    Ok(())
}

/// SplitMix64.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}
