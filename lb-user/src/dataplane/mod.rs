//! The packet program in the kernel: loading, attaching, maps, next hops. The only user of BPF and
//! netlink.

mod attach;
mod backends;
mod bpf;
mod clock;
pub mod decap;
mod error;
mod flows;
mod load;
pub mod netlink;
mod nexthop;
pub mod object;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use aya::{
    Ebpf,
    maps::{Array, HashMap as BpfHashMap, MapData, MapError, PerCpuArray, PerCpuValues},
};
use aya_log::EbpfLogger;
use lb_common::{
    abi::{Correction, Endpoint, EndpointKey, LoadCell, Published, Row, Service, ServiceKey, Vip},
    verdict::Counter,
};

pub use self::{
    attach::{AttachedMode, Attachment, XdpMode},
    backends::{Missing, NextHop, Way, ip},
    clock::Clock,
    error::Error,
    flows::{Flow, FlowCount, FlowState, FlowTable, FlowTables},
    load::{GUE_PORT, MapMemory, Options, ProgramInfo, SOURCE_PORTS},
};
use self::{
    backends::Backends,
    load::{Maps, map_error},
    nexthop::{NextHops, lock},
};
use crate::model::change::MapWrite;

/// Log records from the packet program; readable when there are some.
pub type PacketLog = EbpfLogger<&'static dyn log::Log>;

/// What the CPUs have counted for a backend, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendLoad {
    /// Slot.
    pub id: u32,
    /// Flows in flight, corrections included.
    pub in_flight: u64,
    /// Flows opened.
    pub opened: u64,
    /// Flows closed at the NIC; those that expired are not among them.
    pub closed: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Packets to clients.
    pub packets_out: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
}

/// The loaded packet program. Dropping it detaches the program from every interface.
pub struct Dataplane {
    // Dropped in this order: the thread first, then links and maps.
    next_hops: NextHops,
    ebpf: Ebpf,
    attachments: Vec<Attachment>,
    backends: Arc<Mutex<Backends>>,
    maps: Maps,
    options: Options,
}

impl Dataplane {
    /// Loads program and maps. Nothing is attached yet.
    pub fn load(options: &Options) -> Result<Self, Error> {
        let (ebpf, maps, backends, devices) = load::load(options)?;
        let backends = Arc::new(Mutex::new(backends));
        Ok(Self {
            next_hops: NextHops::start(Arc::clone(&backends), devices)?,
            ebpf,
            attachments: Vec::new(),
            backends,
            maps,
            options: options.clone(),
        })
    }

    /// The options that the program was loaded with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Attaches the program to an interface. It is attached, or nothing has changed.
    pub fn attach(&mut self, interface: &str, mode: XdpMode) -> Result<Attachment, Error> {
        let attachment = attach::attach(&mut self.ebpf, "lb", interface, mode)?;
        self.attachments.push(attachment.clone());
        self.maps
            .devices
            .insert(attachment.ifindex, attachment.ifindex, None, 0)
            .map_err(|e| Error::map("DEVICES", e))?;
        let native = attachment.mode == AttachedMode::Native;
        self.next_hops.attached(attachment.ifindex, native);
        Ok(attachment)
    }

    /// Where the program is attached.
    pub fn attachments(&self) -> &[Attachment] {
        &self.attachments
    }

    /// Makes the writes in their order. After an error the ones before it stand; the lists are made
    /// so that this leaves every service with backends that exist.
    pub fn write(&mut self, writes: &[MapWrite]) -> Result<(), Error> {
        let result = writes.iter().try_for_each(|write| self.write_one(write));
        self.next_hops.wake();
        result
    }

    fn write_one(&mut self, write: &MapWrite) -> Result<(), Error> {
        let maps = &mut self.maps;
        match write {
            MapWrite::Backend(slot) => {
                let mut backends = lock(&self.backends);
                if !backends.is_owner(slot.id, slot.generation) {
                    // What was published of an earlier owner is not the new one's.
                    maps.loads.publish_nothing(slot.id)?;
                }
                backends.set(*slot)
            }
            MapWrite::ClearBackend { id } => lock(&self.backends).clear(*id),
            MapWrite::Rows { offset, rows } => {
                for (i, row) in (*offset..).zip(rows) {
                    maps.rows
                        .set(i, row, 0)
                        .map_err(|e| Error::map("ROWS", e))?;
                }
                Ok(())
            }
            MapWrite::Service { key, value } => maps
                .services
                .insert(key, value, 0)
                .map_err(|e| map_error("SERVICES", self.options.max_services, "max_services", e)),
            MapWrite::RemoveService { key } => remove(&mut maps.services, key, "SERVICES"),
            MapWrite::Vip { addr } => maps
                .vips
                .insert(addr, Vip::default(), 0)
                .map_err(|e| map_error("VIPS", self.options.max_services, "max_services", e)),
            MapWrite::RemoveVip { addr } => remove(&mut maps.vips, addr, "VIPS"),
            MapWrite::Endpoint { key, value } => maps
                .endpoints
                .insert(key, value, 0)
                .map_err(|e| map_error("ENDPOINTS", self.options.max_backends, "max_backends", e)),
            MapWrite::RemoveEndpoint { key } => remove(&mut maps.endpoints, key, "ENDPOINTS"),
        }
    }

    /// All counters, summed over CPUs.
    pub fn counters(&self) -> Result<Vec<(Counter, u64)>, Error> {
        Counter::ALL
            .iter()
            .map(|&counter| {
                let cells = self
                    .maps
                    .counters
                    .get(&(counter as u32), 0)
                    .map_err(|e| Error::map("COUNTERS", e))?;
                Ok((counter, cells.iter().sum()))
            })
            .collect()
    }

    /// The loads of backends, given as slot and generation.
    pub fn loads(&self, slots: &[(u32, u32)]) -> Result<Vec<BackendLoad>, Error> {
        slots
            .iter()
            .map(|&(id, generation)| {
                let cells = self.maps.loads.cells(id)?;
                let correction = self.maps.loads.correction(id)?;
                Ok(sum(id, generation, &cells, &correction))
            })
            .collect()
    }

    /// The load maps, on file descriptors of their own.
    pub fn load_maps(&self) -> Result<LoadMaps, Error> {
        self.maps.loads.reopen()
    }

    /// The way to each backend, by slot.
    pub fn ways(&self) -> HashMap<u32, Way> {
        lock(&self.backends)
            .iter()
            .map(|(slot, way)| (slot.id, *way))
            .collect()
    }

    /// Whether the way to some backend is still being looked for.
    pub fn are_ways_open(&self) -> bool {
        lock(&self.backends).iter().any(|(_, way)| {
            matches!(
                way.hop,
                Err(Missing::Unknown | Missing::Neighbour { failed: false, .. })
            )
        })
    }

    /// Address and port of each backend, by slot and generation.
    pub fn backend_addresses(&self) -> HashMap<(u32, u32), SocketAddr> {
        lock(&self.backends)
            .iter()
            .map(|(slot, _)| {
                let address = SocketAddr::new(backends::ip(&slot.addr), u16::from_be(slot.port));
                ((slot.id, slot.generation), address)
            })
            .collect()
    }

    /// The next hop of each backend slot that has one.
    #[cfg(feature = "testbed")]
    pub fn next_hops(&self) -> HashMap<u32, NextHop> {
        self.ways()
            .into_iter()
            .filter_map(|(id, way)| Some((id, way.hop.ok()?)))
            .collect()
    }

    /// The flow tables, on file descriptors of their own.
    pub fn flow_tables(&self) -> Result<FlowTables, Error> {
        self.maps.flow_tables()
    }

    /// The size of every map.
    pub fn memory(&self) -> Result<Vec<MapMemory>, Error> {
        load::memory(&self.maps)
    }

    /// The packet program's log, for whoever will pass its records on to [`mod@log`]. `None` unless it was
    /// loaded with [`Options::debug`].
    pub fn take_log(&mut self) -> Result<Option<PacketLog>, Error> {
        if !self.options.debug {
            return Ok(None);
        }
        EbpfLogger::init(&mut self.ebpf)
            .map(Some)
            .map_err(|e| Error::map("AYA_LOGS", e))
    }

    /// The program, as the kernel has it.
    pub fn program(&self) -> Result<ProgramInfo, Error> {
        load::program_info(&self.ebpf)
    }

    /// The loaded object, for test runs of its programs.
    #[cfg(feature = "testbed")]
    pub fn ebpf(&self) -> &Ebpf {
        &self.ebpf
    }

    /// Sets the way to a backend by hand, for test runs, where there is no network. Returns whether that
    /// changed anything.
    #[cfg(feature = "testbed")]
    pub fn set_way(&self, id: u32, generation: u32, way: Way) -> Result<bool, Error> {
        let before = lock(&self.backends).set_way(id, generation, way)?;
        Ok(before.is_some())
    }

    /// Sets a backend's next hop by hand, and leaves what else is known of the way.
    #[cfg(feature = "testbed")]
    pub fn set_next_hop(
        &self,
        id: u32,
        generation: u32,
        hop: Option<NextHop>,
    ) -> Result<bool, Error> {
        let way = self.ways().remove(&id).unwrap_or(Way::UNKNOWN);
        let hop = hop.ok_or(Missing::Unknown);
        self.set_way(id, generation, Way { hop, ..way })
    }
}

fn remove<K: aya::Pod, V: aya::Pod>(
    map: &mut BpfHashMap<MapData, K, V>,
    key: &K,
    name: &'static str,
) -> Result<(), Error> {
    match map.remove(key) {
        Ok(()) => Ok(()),
        Err(MapError::SyscallError(e)) if e.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(e) => Err(Error::map(name, e)),
    }
}

/// Sums what the CPUs counted for one backend.
pub fn sum(
    id: u32,
    generation: u32,
    cells: &PerCpuValues<LoadCell>,
    correction: &Correction,
) -> BackendLoad {
    let mut load = BackendLoad {
        id,
        ..BackendLoad::default()
    };
    let mut in_flight = correction.of(generation);
    for cell in cells.iter().filter(|cell| cell.generation == generation) {
        in_flight += cell.in_flight(generation);
        load.opened = load.opened.wrapping_add(cell.opened);
        load.closed = load.closed.wrapping_add(cell.closed);
        load.packets_in = load.packets_in.wrapping_add(cell.packets_in);
        load.bytes_in = load.bytes_in.wrapping_add(cell.bytes_in);
        load.packets_out = load.packets_out.wrapping_add(cell.packets_out);
        load.bytes_out = load.bytes_out.wrapping_add(cell.bytes_out);
    }
    load.in_flight = lb_common::load::clamp(in_flight);
    load
}

/// The load maps: what CPUs counted, what the agent adds, what it publishes.
pub struct LoadMaps {
    ids: Vec<(&'static str, u32)>,
    cells: PerCpuArray<MapData, LoadCell>,
    corrections: Array<MapData, Correction>,
    peers: PerCpuArray<MapData, Published>,
}

impl LoadMaps {
    /// What each CPU has counted for a slot.
    pub fn cells(&self, id: u32) -> Result<PerCpuValues<LoadCell>, Error> {
        self.cells.get(&id, 0).map_err(|e| Error::map("LOAD", e))
    }

    /// What is added to a slot's in-flight count.
    pub fn correction(&self, id: u32) -> Result<Correction, Error> {
        self.corrections
            .get(&id, 0)
            .map_err(|e| Error::map("CORRECTION", e))
    }

    /// Sets what is added to a slot's in-flight count. The agent is the only writer.
    pub fn set_correction(&mut self, id: u32, correction: Correction) -> Result<(), Error> {
        self.corrections
            .set(id, correction, 0)
            .map_err(|e| Error::map("CORRECTION", e))
    }

    /// Tells every CPU that nothing is in flight.
    pub fn publish_nothing(&mut self, id: u32) -> Result<(), Error> {
        let cpus = self.cells(id)?.len();
        self.publish(id, vec![Published::default(); cpus])
    }

    /// Tells every CPU what all CPUs together have in flight.
    pub fn publish(&mut self, id: u32, views: Vec<Published>) -> Result<(), Error> {
        let views = PerCpuValues::try_from(views).map_err(|e| Error::map("PEERS", e))?;
        self.peers
            .set(id, views, 0)
            .map_err(|e| Error::map("PEERS", e))
    }
}

// The types of the maps that `load` opens, in one place.
type Services = BpfHashMap<MapData, ServiceKey, Service>;
type Vips = BpfHashMap<MapData, [u32; 4], Vip>;
type Endpoints = BpfHashMap<MapData, EndpointKey, Endpoint>;
type Rows = Array<MapData, Row>;
