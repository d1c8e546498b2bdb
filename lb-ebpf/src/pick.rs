//! Third stage of a new flow: its candidates, and the cheapest of them.

use aya_ebpf::helpers::{bpf_get_prandom_u32, generated::bpf_map_lookup_percpu_elem};
use lb_common::{
    abi::{Backend, LoadCell, MAX_CPUS, NO_BACKEND, ROW, Row, Service, draw, view},
    flow::{FlowKey, placement},
    load,
    p2c::{self, Candidate},
};

use crate::maps::{BACKENDS, CORRECTION, LOAD, PEERS, ROWS, setting};

/// The keyed hash of a flow.
#[inline(never)]
pub fn hash<const N: usize>(key: &FlowKey<N>) -> u32 {
    placement(key, |i| setting!(hash_keys[i]))
}

/// The number of the row that the keyed hash of the flow selects: the same for every packet of it.
#[inline(always)]
fn row_by_hash<const N: usize>(service: &Service, key: &FlowKey<N>) -> u32 {
    let hash = hash(key);
    service
        .rows_offset
        .wrapping_add(p2c::scale(hash, service.rows))
}

/// The number of the row of a flow that will be remembered, so that it need not be found again.
#[inline(always)]
fn row<const N: usize>(service: &Service, key: &FlowKey<N>) -> u32 {
    if service.draw == draw::RANDOM {
        // SAFETY: a helper without arguments.
        let random = unsafe { bpf_get_prandom_u32() };
        service
            .rows_offset
            .wrapping_add(p2c::scale(random, service.rows))
    } else {
        row_by_hash(service, key)
    }
}

/// A backend as it stands in a row of candidates.
#[derive(Clone, Copy)]
pub struct Choice {
    pub row: u32,
    pub place: u32,
}

impl Choice {
    // A function of the program that is not inlined returns one register.
    const NONE: u64 = u64::MAX;

    #[inline(always)]
    fn pack(row: u32, place: Option<usize>) -> u64 {
        match place {
            Some(place) => u64::from(row) << 32 | place as u64,
            None => Self::NONE,
        }
    }

    #[inline(always)]
    fn unpack(packed: u64) -> Option<Self> {
        (packed != Self::NONE).then_some(Self {
            row: (packed >> 32) as u32,
            place: packed as u32,
        })
    }
}

/// The cheapest candidate of a new flow.
#[inline(always)]
pub fn new_flow<const N: usize>(service: &Service, key: &FlowKey<N>) -> Option<Choice> {
    Choice::unpack(by_load(service, key))
}

#[inline(never)]
fn by_load<const N: usize>(service: &Service, key: &FlowKey<N>) -> u64 {
    let row = row(service, key);
    let place = ROWS
        .get(row)
        .and_then(|row| cheapest(row, service.choices, service.view));
    Choice::pack(row, place)
}

/// The first candidate of a flow of which nothing is known: where every packet of it goes.
#[inline(always)]
pub fn first<const N: usize>(service: &Service, key: &FlowKey<N>) -> Option<Choice> {
    Choice::unpack(by_hash(service, key))
}

#[inline(never)]
fn by_hash<const N: usize>(service: &Service, key: &FlowKey<N>) -> u64 {
    let row = row_by_hash(service, key);
    let place = ROWS.get(row).and_then(|row| cheapest(row, 1, service.view));
    Choice::pack(row, place)
}

/// The backend at a place in a row, if there is one.
#[inline(always)]
pub fn backend(choice: Choice) -> Option<(u32, &'static Backend)> {
    // The mask changes nothing; it is what the verifier takes the bound from.
    let id = ROWS.get(choice.row)?[choice.place as usize & (ROW - 1)];
    if id == NO_BACKEND {
        return None;
    }
    let backend = BACKENDS.get(id)?;
    (backend.generation != 0).then_some((id, backend))
}

/// The place in the row of the cheapest of the first `choices` backends, by the loads that the
/// service's view shows.
#[inline(always)]
fn cheapest(row: &Row, choices: u8, view: u8) -> Option<usize> {
    p2c::choose(row, choices, |id| {
        let backend = BACKENDS.get(id)?;
        if backend.generation == 0 {
            return None;
        }
        let load = if choices == 1 {
            0
        } else if view == view::PUBLISHED {
            published(id, backend.generation)
        } else {
            exact(id, backend.generation)
        };
        Some(Candidate {
            load,
            weight: backend.weight,
        })
    })
}

/// In-flight flows by the agent's last publication and this CPU's own counts since.
#[inline(always)]
fn published(id: u32, generation: u32) -> u64 {
    let own = LOAD.get(id).map_or(0, |cell| cell.in_flight(generation));
    PEERS
        .get(id)
        .map_or(0, |peers| peers.estimate(own, setting!(cpus)))
}

/// In-flight flows now, summed over the cells of all CPUs.
///
/// Exported, which makes it a global function to the verifier: walked once, for any arguments, and not
/// again on each of the ways that lead here (a third fewer instructions to verify).
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn exact(id: u32, generation: u32) -> u64 {
    let mut sum = CORRECTION
        .get(id)
        .map_or(0, |correction| correction.of(generation));
    let cpus = setting!(cpus);
    let mut cpu = 0;
    // The verifier knows `cpus` and walks the loop that often, not MAX_CPUS times.
    while cpu < MAX_CPUS && cpu < cpus {
        // SAFETY: map and key are what the helper takes; it returns null or a cell of the map.
        let cell = unsafe {
            bpf_map_lookup_percpu_elem(
                (&raw const LOAD).cast_mut().cast(),
                (&raw const id).cast(),
                cpu,
            )
            .cast::<LoadCell>()
            .as_ref()
        };
        if let Some(cell) = cell {
            sum += cell.in_flight(generation);
        }
        cpu += 1;
    }
    load::clamp(sum)
}
