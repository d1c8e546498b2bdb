//! What the maps and the program take, at the default sizes.

use anyhow::{Context as _, Result};
use lb_common::{abi::Row, p2c};
use lb_user::{
    config::Balancer,
    dataplane::{Dataplane, MapMemory, Options},
};
use serde::Serialize;

/// Backends of the candidate table that is given as an example.
const EXAMPLE: u32 = 100;

/// One map.
#[derive(Clone, Debug, Serialize)]
pub struct Map {
    /// Name.
    pub name: &'static str,
    /// Entries it can hold.
    pub max_entries: u32,
    /// What the kernel has set aside for it, in bytes.
    pub bytes: u64,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// CPUs that per-CPU maps are for.
    pub cpus: usize,
    /// The maps.
    pub maps: Vec<Map>,
    /// All maps together, in bytes.
    pub total_bytes: u64,
    /// Of an IPv4 flow: two entries, in bytes.
    pub flow4_bytes: f64,
    /// Of an IPv6 flow: two entries, in bytes.
    pub flow6_bytes: f64,
    /// Of a backend in all its maps, on all CPUs, in bytes.
    pub backend_bytes: f64,
    /// Of a row of the candidate table, in bytes.
    pub row_bytes: usize,
    /// Backends of the example.
    pub example_backends: u32,
    /// Of the candidate table of a service with that many backends, in bytes.
    pub example_table_bytes: usize,
    /// The program's machine code, in bytes.
    pub jited_bytes: u32,
    /// Instructions that the verifier walked.
    pub verified_instructions: Option<u32>,
}

/// Loads the program with the default sizes and asks the kernel.
pub fn memory() -> Result<Memory> {
    let defaults = Balancer::default();
    let dataplane = Dataplane::load(&Options {
        flow_table_size: defaults.flow_table_size,
        max_backends: defaults.max_backends,
        max_services: defaults.max_services,
        candidate_rows: defaults.candidate_rows,
        seed: 0,
        max_new_flows: defaults.max_new_flows_per_second,
        source_ports: lb_user::dataplane::SOURCE_PORTS,
        gue_port: lb_user::dataplane::GUE_PORT,
        debug: false,
    })?;
    let maps = dataplane.memory()?;
    let program = dataplane.program()?;
    let each = |name: &str| -> Result<f64> {
        let map = find(&maps, name)?;
        Ok(map.bytes as f64 / f64::from(map.max_entries))
    };
    let mut backend_bytes = 0.0;
    for name in ["BACKENDS", "LOAD", "CORRECTION", "PEERS", "ENDPOINTS"] {
        backend_bytes += each(name)?;
    }
    let rows = p2c::rows_for(EXAMPLE) as usize;
    Ok(Memory {
        cpus: aya::util::nr_cpus().map_err(|(file, e)| anyhow::anyhow!("{file}: {e}"))?,
        total_bytes: maps.iter().map(|map| map.bytes).sum(),
        flow4_bytes: 2.0 * each("FLOWS4")?,
        flow6_bytes: 2.0 * each("FLOWS6")?,
        backend_bytes,
        row_bytes: size_of::<Row>(),
        example_backends: EXAMPLE,
        example_table_bytes: rows * size_of::<Row>(),
        jited_bytes: program.jited_bytes,
        verified_instructions: program.verified_instructions,
        maps: maps
            .into_iter()
            .map(|map| Map {
                name: map.name,
                max_entries: map.max_entries,
                bytes: map.bytes,
            })
            .collect(),
    })
}

fn find<'a>(maps: &'a [MapMemory], name: &str) -> Result<&'a MapMemory> {
    maps.iter()
        .find(|map| map.name == name)
        .with_context(|| format!("no map {name}"))
}
