//! Counting: reasons and events, and the load cell of this CPU.

use lb_common::{abi::LoadCell, verdict::Counter};

use crate::maps::{BACKENDS, COUNTERS, LOAD};

/// Adds one to a counter of this CPU.
#[inline(always)]
pub fn count(counter: Counter) {
    count_index(counter as u32);
}

/// Adds one to the counter of this index, on this CPU.
#[inline(always)]
pub fn count_index(index: u32) {
    if let Some(cell) = COUNTERS.get_ptr_mut(index) {
        // SAFETY: a per-CPU cell; XDP programs do not preempt one another on a CPU.
        unsafe { *cell += 1 };
    }
}

/// This CPU's cell of a backend's load, if `generation` owns the slot.
///
/// A cell that still holds counts of an earlier owner is cleared first: each CPU does that for
/// itself when it first meets the new owner, so nobody writes another CPU's cell.
#[inline(always)]
pub fn load_cell(backend: u32, generation: u32) -> Option<&'static mut LoadCell> {
    let cell = LOAD.get_ptr_mut(backend)?;
    // SAFETY: a per-CPU cell that lives as long as the map; this CPU alone writes it, other CPUs and
    // the agent read single words of it.
    let cell = unsafe { &mut *cell };
    if cell.generation != generation {
        // A late packet of an earlier owner's flow must not clear the counts of today's.
        if BACKENDS.get(backend)?.generation != generation {
            return None;
        }
        *cell = LoadCell {
            generation,
            ..LoadCell::default()
        };
    }
    Some(cell)
}
