//! The flow tables, read and cleaned up from outside the packet program.

use std::{
    net::{IpAddr, SocketAddr},
    ops::ControlFlow,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use aya::maps::MapData;
use lb_common::{
    abi::FlowEntry,
    flow::{FlowKey, mapped, state},
};

use super::{
    Error,
    backends::ip,
    bpf,
    clock::{Clock, idle},
};

/// How far a flow has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowState {
    /// TCP: the handshake is not complete. UDP: the backend has not answered.
    Embryonic,
    /// Both sides have been heard.
    Established,
    /// TCP: one side has sent FIN.
    HalfClosed,
    /// Ended; the entry still carries the last packets.
    Closed,
}

impl FlowState {
    /// From the state word of a forward entry.
    pub fn of(bits: u32) -> Self {
        if bits & state::CLOSED != 0 {
            Self::Closed
        } else if bits & state::FIN_BOTH != 0 {
            Self::HalfClosed
        } else if bits & state::ESTABLISHED != 0 {
            Self::Established
        } else {
            Self::Embryonic
        }
    }
}

/// A flow, as people want to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// IP protocol number: 6 or 17.
    pub protocol: u8,
    /// The client.
    pub client: SocketAddr,
    /// The service.
    pub vip: SocketAddr,
    /// Slot of the backend.
    pub backend_id: u32,
    /// Generation of the slot when the flow was made.
    pub generation: u32,
    /// The backend; none: the entry does not have it, as packets are not rewritten.
    pub backend: Option<SocketAddr>,
    /// How far the flow has come.
    pub state: FlowState,
    /// Time since the client's last packet.
    pub idle: Duration,
}

/// Entries of the flow tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCount {
    /// Flows, by their forward entries.
    pub flows: u64,
    /// IPv4 entries, of both directions.
    pub entries4: u64,
    /// IPv6 entries, of both directions.
    pub entries6: u64,
}

/// A flow table: IPv4 (`N` = 1) or IPv6 (`N` = 4).
pub struct FlowTable<const N: usize> {
    map: MapData,
}

impl<const N: usize> FlowTable<N>
where
    FlowKey<N>: aya::Pod,
    FlowEntry<N>: aya::Pod,
{
    pub(super) fn new(map: MapData) -> Self {
        Self { map }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.map.fd().as_fd()
    }

    /// Calls `each` with every entry.
    pub fn for_each(&self, mut each: impl FnMut(&FlowKey<N>, &FlowEntry<N>)) -> Result<(), Error> {
        self.until(|key, entry| {
            each(key, entry);
            ControlFlow::Continue(())
        })
    }

    /// Calls `each` with every entry, until it breaks off.
    pub fn until(
        &self,
        mut each: impl FnMut(&FlowKey<N>, &FlowEntry<N>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        bpf::for_each(
            self.fd(),
            size_of::<FlowEntry<N>>(),
            |key: &FlowKey<N>, value| each(key, &bpf::read(value)),
        )
        .map_err(|cause| Error::Bpf {
            what: "reading a flow table",
            cause,
        })
    }

    /// One entry.
    pub fn get(&self, key: &FlowKey<N>) -> Result<Option<FlowEntry<N>>, Error> {
        bpf::lookup(self.fd(), key).map_err(|cause| Error::Bpf {
            what: "looking up a flow",
            cause,
        })
    }

    /// Deletes an entry and returns what it held in that moment.
    pub fn take(&self, key: &FlowKey<N>) -> Result<Option<FlowEntry<N>>, Error> {
        bpf::take(self.fd(), key).map_err(|cause| Error::Bpf {
            what: "deleting a flow",
            cause,
        })
    }

    /// Puts an entry back, unless the flow has a new one.
    pub fn put_back(&self, key: &FlowKey<N>, entry: &FlowEntry<N>) -> Result<(), Error> {
        match bpf::insert_new(self.fd(), key, entry) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            other => other.map_err(|cause| Error::Bpf {
                what: "putting a flow back",
                cause,
            }),
        }
    }
}

/// Both flow tables and the clock of their entries, on file descriptors of their own.
pub struct FlowTables {
    /// IPv4.
    pub v4: FlowTable<1>,
    /// IPv6.
    pub v6: FlowTable<4>,
    /// The clock.
    pub clock: Clock,
}

impl FlowTables {
    /// Up to `limit` flows, in the order of the tables.
    pub fn list(&self, limit: usize) -> Result<Vec<Flow>, Error> {
        let now = self.clock.now()?;
        let mut flows = Vec::new();
        self.list_table(&self.v4, now, limit, mapped_word, &mut flows)?;
        self.list_table(&self.v6, now, limit, |words| *words, &mut flows)?;
        Ok(flows)
    }

    fn list_table<const N: usize>(
        &self,
        table: &FlowTable<N>,
        now: u32,
        limit: usize,
        widen: impl Fn(&[u32; N]) -> [u32; 4],
        flows: &mut Vec<Flow>,
    ) -> Result<(), Error>
    where
        FlowKey<N>: aya::Pod,
        FlowEntry<N>: aya::Pod,
    {
        let end = |addr: &[u32; N], port: u16| -> SocketAddr {
            SocketAddr::new(ip_exact(&widen(addr), N), u16::from_be(port))
        };
        table.until(|key, entry| {
            if flows.len() >= limit {
                return ControlFlow::Break(());
            }
            if entry.state & state::REPLY_ENTRY == 0 {
                flows.push(Flow {
                    protocol: key.proto as u8,
                    client: end(&key.src, key.src_port()),
                    vip: end(&key.dst, key.dst_port()),
                    backend_id: entry.backend,
                    generation: entry.generation,
                    backend: (entry.state & state::ONE_WAY == 0)
                        .then(|| end(&entry.change.addr, entry.change.port)),
                    state: FlowState::of(entry.state),
                    idle: self.clock.since(entry.last_seen, now),
                });
            }
            ControlFlow::Continue(())
        })
    }

    /// How many entries there are.
    pub fn count(&self) -> Result<FlowCount, Error> {
        let mut count = FlowCount::default();
        self.v4.for_each(|_, entry| {
            count.entries4 += 1;
            count.flows += u64::from(entry.state & state::REPLY_ENTRY == 0);
        })?;
        self.v6.for_each(|_, entry| {
            count.entries6 += 1;
            count.flows += u64::from(entry.state & state::REPLY_ENTRY == 0);
        })?;
        Ok(count)
    }

    /// Ticks since the entry's last packet.
    pub fn idle<const N: usize>(entry: &FlowEntry<N>, now: u32) -> u32 {
        idle(entry.last_seen, now)
    }
}

fn mapped_word(words: &[u32; 1]) -> [u32; 4] {
    mapped(words[0])
}

/// In the IPv6 table even an IPv4-mapped address is shown as what it is there.
fn ip_exact(words: &[u32; 4], n: usize) -> IpAddr {
    match ip(words) {
        IpAddr::V4(v4) if n == 4 => IpAddr::V6(v4.to_ipv6_mapped()),
        addr => addr,
    }
}
