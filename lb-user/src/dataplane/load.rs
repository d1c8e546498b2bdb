//! Loading the object: map sizes, settings, the verifier's answer.

use std::{io::Write, ops::RangeInclusive, os::fd::AsFd, time::Duration};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, xdp::DevMapHash},
    programs::{ProgramError, Xdp},
    util::nr_cpus,
};
use lb_common::{
    abi::{MAX_CPUS, Settings},
    flow::hash_keys,
};

use super::{
    Endpoints, Error, LoadMaps, Rows, Services, Vips,
    backends::Backends,
    clock::{self, Clock},
    flows::{FlowTable, FlowTables},
    object,
};

/// Sizes and settings that are fixed while the program is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Entries of each family's flow table; a NAT flow takes two.
    pub flow_table_size: u32,
    /// Backend slots.
    pub max_backends: u32,
    /// Services.
    pub max_services: u32,
    /// Rows of candidates, of all services together and with room to replace the largest.
    pub candidate_rows: u32,
    /// Seed of the placement hash; balancers that share it place the same packet alike.
    pub seed: u64,
    /// New flow entries a second that each CPU may make; over it flows are placed without an entry.
    pub max_new_flows: u32,
    /// Ports that fullnat allocates.
    pub source_ports: RangeInclusive<u16>,
    /// UDP port of GUE.
    pub gue_port: u16,
    /// Log every new flow.
    pub debug: bool,
}

/// Ports that fullnat allocates, unless set otherwise: above those that Linux gives its own sockets
/// (`net.ipv4.ip_local_port_range`).
pub const SOURCE_PORTS: RangeInclusive<u16> = 61_000..=65_535;
/// The registered port of GUE.
pub const GUE_PORT: u16 = 6080;

/// How long the fragments of a packet are waited for (RFC 791 suggests 15 s; Linux takes 30 s).
const FRAGMENT_WAIT: Duration = Duration::from_secs(30);

/// For how long after the last packet placed without an entry replies may be told by their source.
const STATELESS_FOR: Duration = Duration::from_secs(60);

/// Prefixes that a range of ports takes, at most: two of each length but the shortest.
const PORT_PREFIXES: u32 = 30;

/// The maps of the loaded object that the agent works with.
pub struct Maps {
    pub services: Services,
    pub vips: Vips,
    pub rows: Rows,
    pub endpoints: Endpoints,
    pub counters: PerCpuArray<MapData, u64>,
    pub devices: DevMapHash<MapData>,
    pub loads: LoadMaps,
    /// Every map, by name and id, to reopen and to measure.
    ids: Vec<(&'static str, u32)>,
    clock: Clock,
}

/// Loads the object and takes its maps apart.
pub fn load(options: &Options) -> Result<(Ebpf, Maps, Backends, DevMapHash<MapData>), Error> {
    let settings = settings(options)?;
    let log_level: u8 = if options.debug { 4 } else { 0 };
    let mut loader = EbpfLoader::new();
    loader
        .override_global("SETTINGS", &settings, true)
        .override_global("AYA_LOG_LEVEL", &log_level, true);
    for (map, size) in [
        ("FLOWS4", options.flow_table_size),
        ("FLOWS6", options.flow_table_size),
        ("SERVICES", options.max_services),
        ("VIPS", options.max_services),
        ("PORTS", options.max_services.saturating_mul(PORT_PREFIXES)),
        ("ROWS", options.candidate_rows),
        ("BACKENDS", options.max_backends),
        ("LOAD", options.max_backends),
        ("CORRECTION", options.max_backends),
        ("PEERS", options.max_backends),
        ("ENDPOINTS", options.max_backends),
        ("SOURCE_PORT", options.max_backends),
    ] {
        loader.map_max_entries(map, size);
    }
    let mut ebpf = loader
        .load(object::LB)
        .map_err(|e| Error::Load(with_causes(&e)))?;
    for name in ["lb", "clock"] {
        load_program(&mut ebpf, name)?;
    }

    let mut ids = Vec::new();
    for name in NAMES {
        let map = ebpf
            .map(name)
            .ok_or_else(|| Error::map(name, "not in the object"))?;
        let id = data(map)
            .and_then(|data| data.info().ok())
            .ok_or_else(|| Error::map(name, "cannot be asked for its id"))?
            .id();
        ids.push((name, id));
    }
    let clock = xdp(&mut ebpf, "clock")?
        .fd()
        .map_err(|e| Error::Load(e.to_string()))?
        .as_fd()
        .try_clone_to_owned()
        .map_err(|cause| Error::Bpf {
            what: "duplicating a program's file descriptor",
            cause,
        })?;
    let opener = Opener { ids: &ids };
    let backends = Backends::new(opener.array("BACKENDS")?);
    let devices = opener.open("DEVICES", DevMapHash::try_from)?;
    let maps = Maps {
        services: opener.open("SERVICES", HashMap::try_from)?,
        vips: opener.open("VIPS", HashMap::try_from)?,
        rows: opener.array("ROWS")?,
        endpoints: opener.open("ENDPOINTS", HashMap::try_from)?,
        counters: opener.open("COUNTERS", PerCpuArray::try_from)?,
        devices: opener.open("DEVICES", DevMapHash::try_from)?,
        loads: opener.loads()?,
        clock: Clock::new(clock)?,
        ids,
    };
    Ok((ebpf, maps, backends, devices))
}

/// Every map of the object, in the order in which a packet meets them.
const NAMES: [&str; 21] = [
    "FLOWS4",
    "FLOWS6",
    "FRAGMENTS",
    "SERVICES",
    "PORTS",
    "VIPS",
    "CONTROL",
    "SOURCES",
    "RATES",
    "ROWS",
    "BACKENDS",
    "LOAD",
    "CORRECTION",
    "PEERS",
    "ENDPOINTS",
    "SOURCE_PORT",
    "DEVICES",
    "STAGES",
    "COUNTERS",
    "BUDGET",
    "STATELESS_TICK",
];

struct Opener<'a> {
    ids: &'a [(&'static str, u32)],
}

impl Opener<'_> {
    fn data(&self, name: &'static str) -> Result<MapData, Error> {
        let (_, id) = self
            .ids
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| Error::map(name, "not in the object"))?;
        MapData::from_id(*id).map_err(|e| Error::map(name, e))
    }

    fn open<T>(
        &self,
        name: &'static str,
        convert: impl FnOnce(Map) -> Result<T, MapError>,
    ) -> Result<T, Error> {
        Map::from_map_data(self.data(name)?)
            .and_then(convert)
            .map_err(|e| Error::map(name, e))
    }

    fn array<V: aya::Pod>(&self, name: &'static str) -> Result<Array<MapData, V>, Error> {
        self.open(name, Array::try_from)
    }

    fn loads(&self) -> Result<LoadMaps, Error> {
        Ok(LoadMaps {
            ids: self.ids.to_vec(),
            cells: self.open("LOAD", PerCpuArray::try_from)?,
            corrections: self.array("CORRECTION")?,
            peers: self.open("PEERS", PerCpuArray::try_from)?,
        })
    }
}

impl LoadMaps {
    /// The same maps again, on file descriptors of their own.
    pub(super) fn reopen(&self) -> Result<Self, Error> {
        Opener { ids: &self.ids }.loads()
    }
}

impl Maps {
    pub fn flow_tables(&self) -> Result<FlowTables, Error> {
        let opener = Opener { ids: &self.ids };
        Ok(FlowTables {
            v4: FlowTable::new(opener.data("FLOWS4")?),
            v6: FlowTable::new(opener.data("FLOWS6")?),
            clock: self.clock.clone(),
        })
    }
}

fn settings(options: &Options) -> Result<Settings, Error> {
    let cpus = nr_cpus().map_err(|(file, cause)| Error::Bpf { what: file, cause })?;
    let cpus = u32::try_from(cpus)
        .ok()
        .filter(|&cpus| cpus <= MAX_CPUS)
        .ok_or_else(|| {
            Error::Load(format!(
                "this machine can have {cpus} CPUs, and loads are summed over at most {MAX_CPUS}"
            ))
        })?;
    let tick = clock::tick()?;
    let per_tick = u128::from(options.max_new_flows) * tick.as_nanos() / 1_000_000_000;
    let ticks = |time: Duration| {
        u32::try_from(time.as_nanos() / tick.as_nanos().max(1)).unwrap_or(u32::MAX)
    };
    Ok(Settings {
        hash_keys: hash_keys(options.seed),
        cpus,
        inserts_per_tick: u32::try_from(per_tick).unwrap_or(u32::MAX).max(1),
        stateless_ticks: ticks(STATELESS_FOR),
        fragment_ticks: ticks(FRAGMENT_WAIT),
        source_port_first: u32::from(*options.source_ports.start()),
        source_port_count: u32::try_from(options.source_ports.len()).unwrap_or(u32::MAX),
        gue_port: u32::from(options.gue_port.to_be()),
        flags: 0,
    })
}

fn xdp<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut Xdp, Error> {
    ebpf.program_mut(name)
        .ok_or_else(|| Error::Load(format!("program {name} is not in the object")))?
        .try_into()
        .map_err(|e: ProgramError| Error::Load(e.to_string()))
}

/// Loads a program of the object into the kernel.
pub fn load_program(ebpf: &mut Ebpf, name: &'static str) -> Result<(), Error> {
    match xdp(ebpf, name)?.load() {
        Ok(()) => Ok(()),
        Err(ProgramError::LoadError {
            io_error,
            verifier_log,
        }) => Err(refused(name, io_error, &verifier_log.to_string())),
        Err(e) => Err(Error::Load(with_causes(&e))),
    }
}

/// The verifier's log can have more than a hundred kilobytes; its end is what matters.
fn refused(program: &'static str, cause: std::io::Error, log: &str) -> Error {
    let lines: Vec<_> = log.lines().collect();
    let tail = lines[lines.len().saturating_sub(15)..].join("\n");
    let path = std::env::temp_dir().join(format!("lb-verifier-{}.log", std::process::id()));
    let saved = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .and_then(|mut file| file.write_all(log.as_bytes()));
    let rest = match saved {
        Ok(()) => format!("The whole log is in {}.", path.display()),
        Err(e) => format!(
            "The whole log could not be saved to {}: {e}.",
            path.display()
        ),
    };
    Error::Verifier {
        program,
        cause,
        tail,
        rest,
    }
}

/// An error with its causes, in one line.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// Turns "no room" of a map, which the kernel calls "argument list too long", into what it means.
pub fn map_error(map: &'static str, limit: u32, setting: &'static str, error: MapError) -> Error {
    match &error {
        MapError::SyscallError(e) if e.io_error.raw_os_error() == Some(libc::E2BIG) => {
            Error::Full {
                map,
                limit,
                setting,
            }
        }
        _ => Error::map(map, with_causes(&error)),
    }
}

fn data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::PerCpuArray(data)
        | Map::DevMapHash(data)
        | Map::LruHashMap(data)
        | Map::LpmTrie(data)
        | Map::ProgramArray(data) => Some(data),
        _ => None,
    }
}

/// Size of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapMemory {
    /// Name.
    pub name: &'static str,
    /// Entries it can hold.
    pub max_entries: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value, on each CPU.
    pub value_size: u32,
    /// What the kernel has set aside for it, in bytes.
    pub bytes: u64,
}

/// The size of every map, as the kernel gives it.
pub fn memory(maps: &Maps) -> Result<Vec<MapMemory>, Error> {
    let opener = Opener { ids: &maps.ids };
    maps.ids
        .iter()
        .map(|&(name, _)| {
            let data = opener.data(name)?;
            let info = data.info().map_err(|e| Error::map(name, e))?;
            Ok(MapMemory {
                name,
                max_entries: info.max_entries(),
                key_size: info.key_size(),
                value_size: info.value_size(),
                bytes: memlock(&data).map_err(|e| Error::map(name, e))?,
            })
        })
        .collect()
}

/// `memlock` of the map's fdinfo (see the kernel's `bpf_map_show_fdinfo`).
fn memlock(data: &MapData) -> std::io::Result<u64> {
    use std::os::fd::AsRawFd;
    let fd = data.fd().as_fd().as_raw_fd();
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    text.lines()
        .find_map(|line| line.strip_prefix("memlock:"))
        .and_then(|value| value.trim().parse().ok())
        .ok_or_else(|| std::io::Error::other("no memlock in the map's fdinfo"))
}

/// The packet program, as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Id.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Bytes of machine code.
    pub jited_bytes: u32,
    /// Instructions that the verifier walked, if the kernel says (5.16 and later).
    pub verified_instructions: Option<u32>,
}

/// Asks the kernel about the packet program.
pub fn program_info(ebpf: &Ebpf) -> Result<ProgramInfo, Error> {
    let info = ebpf
        .program("lb")
        .ok_or_else(|| Error::Load("program lb is not in the object".to_owned()))?
        .info()
        .map_err(|e| Error::Load(e.to_string()))?;
    Ok(ProgramInfo {
        id: info.id(),
        name: info.name_as_str().unwrap_or("lb").to_owned(),
        jited_bytes: info.size_jitted(),
        verified_instructions: info.verified_instruction_count(),
    })
}
