//! Every map: who writes it, who reads it. Sizes marked "set at load" are the agent's to choose.

use aya_ebpf::{
    macros::map,
    maps::{Array, DevMapHash, HashMap, PerCpuArray},
};
use lb_common::{
    abi::{
        Backend, Correction, Endpoint, EndpointKey, FlowEntry4, FlowEntry6, InsertBudget, LoadCell,
        Published, Row, Service, ServiceKey, Settings,
    },
    flow::{FlowKey4, FlowKey6, HASH_KEYS},
    verdict::Counter,
};

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

/// Addresses that have a service, IPv4 mapped. Written by the agent. Size set at load.
#[map]
pub static VIPS: HashMap<[u32; 4], u32> = HashMap::with_max_entries(1024, 0);

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

/// Each CPU's allowance of new flow entries. Written and read by the program.
#[map]
pub static BUDGET: PerCpuArray<InsertBudget> = PerCpuArray::with_max_entries(1, 0);

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
    reserved: 0,
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
