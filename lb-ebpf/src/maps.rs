//! Every map: who writes it, who reads it. Sizes marked "set at load" are the agent's to choose.

use aya_ebpf::{
    macros::map,
    maps::{Array, DevMapHash, HashMap, LpmTrie, LruHashMap, PerCpuArray, ProgramArray},
};
use lb_common::{
    abi::{
        Backend, Budget, Control, Correction, Endpoint, EndpointKey, FlowEntry4, FlowEntry6,
        Fragment, FragmentKey, LoadCell, PortKey, Published, RateKey, Row, Service, ServiceKey,
        Settings, SourceKey, Vip, stage,
    },
    flow::{FlowKey4, FlowKey6, HASH_KEYS},
    verdict::Counter,
};

/// `BPF_F_NO_PREALLOC`, which tries must have.
const NO_PREALLOC: u32 = 1;

/// Flows of each family, two entries for a NAT flow. Written by the program; the agent deletes what
/// has expired. Preallocated and not LRU: an insert never evicts an established flow, and a full
/// table is an error that the program sees. Size set at load.
#[map]
pub static FLOWS4: HashMap<FlowKey4, FlowEntry4> = HashMap::with_max_entries(1 << 20, 0);
#[map]
pub static FLOWS6: HashMap<FlowKey6, FlowEntry6> = HashMap::with_max_entries(1 << 20, 0);

/// Services by VIP, port and protocol. Written by the agent. Size set at load.
#[map]
pub static SERVICES: HashMap<ServiceKey, Service> = HashMap::with_max_entries(1024, 0);

/// Services with a range of ports or all ports, by prefixes of those. Asked only while there are some
/// ([`CONTROL`]). Written by the agent. Size set at load.
#[map]
pub static PORTS: LpmTrie<PortKey, ServiceKey> = LpmTrie::with_max_entries(4096, NO_PREALLOC);

/// Addresses that have a service, IPv4 mapped. Written by the agent. Size set at load.
#[map]
pub static VIPS: HashMap<[u32; 4], Vip> = HashMap::with_max_entries(1024, 0);

/// What is in use. Written by the agent.
#[map]
pub static CONTROL: Array<Control> = Array::with_max_entries(1, 0);

/// Sources that services allow and deny. Written by the agent. Size set at load.
#[map]
pub static SOURCES: LpmTrie<SourceKey, u32> = LpmTrie::with_max_entries(16384, NO_PREALLOC);

/// When each source's next new flow is due (`CLOCK_MONOTONIC`, ns), of services with a rate limit.
/// Written and read by the program; the least recently used goes first. Size set at load.
#[map]
pub static RATES: LruHashMap<RateKey, u64> = LruHashMap::with_max_entries(65536, 0);

/// Packets in fragments. Written and read by the program; the least recently used goes first. Size set
/// at load.
#[map]
pub static FRAGMENTS: LruHashMap<FragmentKey, Fragment> = LruHashMap::with_max_entries(16384, 0);

/// Candidate rows of all services. Written by the agent, a region at a time and before a service
/// points to it. Size set at load.
#[map]
pub static ROWS: Array<Row> = Array::with_max_entries(1 << 18, 0);

/// Backends by slot. Written by the agent. Size set at load, like that of the three maps below.
#[map]
pub static BACKENDS: Array<Backend> = Array::with_max_entries(4096, 0);

/// Each CPU's own counts by backend slot. Written by the CPU that owns the cell, read by all CPUs
/// (`load_view = "exact"`) and by the agent.
#[map]
pub static LOAD: PerCpuArray<LoadCell> = PerCpuArray::with_max_entries(4096, 0);

/// What the agent adds to a backend's in-flight count. Written by the agent.
#[map]
pub static CORRECTION: Array<Correction> = Array::with_max_entries(4096, 0);

/// What each CPU is told of all CPUs' counts (`load_view = "published"`). Written by the agent.
#[map]
pub static PEERS: PerCpuArray<Published> = PerCpuArray::with_max_entries(4096, 0);

/// Backends by address, port and protocol, where that names one. Written by the agent. Size set at
/// load.
#[map]
pub static ENDPOINTS: HashMap<EndpointKey, Endpoint> = HashMap::with_max_entries(4096, 0);

/// Interfaces that packets may be redirected to, by ifindex. Written by the agent.
#[map]
pub static DEVICES: DevMapHash = DevMapHash::with_max_entries(64, 0);

/// [`Counter`]s of each CPU. Written by the program, read by the agent.
#[map]
pub static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Counter::COUNT, 0);

/// Where each CPU's search for a free source port begins, by backend slot (fullnat). Written and read
/// by the program. Size set at load.
#[map]
pub static SOURCE_PORT: PerCpuArray<u32> = PerCpuArray::with_max_entries(4096, 0);

/// The programs that others end in ([`stage`]). Written by the agent.
#[map]
pub static STAGES: ProgramArray = ProgramArray::with_max_entries(stage::PROGRAMS.len() as u32, 0);

/// Each CPU's allowance of what it may do in a tick. Written and read by the program.
#[map]
pub static BUDGET: PerCpuArray<Budget> = PerCpuArray::with_max_entries(1, 0);

/// The tick in which a packet was last placed without an entry. Written and read by the program.
#[map]
pub static STATELESS_TICK: Array<u32> = Array::with_max_entries(1, 0);

/// Constant while the program is loaded: the agent fills it in before, the kernel freezes it, and the
/// verifier knows the values and drops dead branches. Read through [`setting!`] only: the compiler
/// must not take the zeros here for the values.
#[unsafe(no_mangle)]
pub static SETTINGS: Settings = Settings {
    hash_keys: [0; HASH_KEYS],
    cpus: 0,
    inserts_per_tick: 0,
    stateless_ticks: 0,
    fragment_ticks: 0,
    source_port_first: 0,
    source_port_count: 0,
    gue_port: 0,
    flags: 0,
};

/// A field of [`SETTINGS`] as the agent set it.
macro_rules! setting {
    ($($field:tt)+) => {{
        // SAFETY: a live, aligned static; volatile because the loader changes it behind the
        // compiler's back.
        unsafe { core::ptr::read_volatile(&raw const $crate::maps::SETTINGS.$($field)+) }
    }};
}
pub(crate) use setting;
