//! Every map, and the settings: who writes it, who reads it.

use aya_ebpf::{
    macros::map,
    maps::{HashMap, LpmTrie, PerCpuArray},
};
use lb_common::decap::{AddressKey, Counter, Settings};

/// Addresses of this host that tunnels end at. Written by the user side.
#[map]
pub static LOCAL: HashMap<AddressKey, u32> = HashMap::with_max_entries(4096, 0);

/// Inner destinations that are taken, unless all are. Written by the user side.
#[map]
pub static DESTINATIONS: HashMap<AddressKey, u32> = HashMap::with_max_entries(4096, 0);

/// Prefixes of outer sources that are allowed, unless all are. Written by the user side.
#[map]
pub static SOURCES: LpmTrie<AddressKey, u32> = LpmTrie::with_max_entries(4096, 0);

/// [`Counter`]s of each CPU. Written by the program, read by the user side.
#[map]
pub static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Counter::COUNT, 0);

/// Constant while the program is loaded: the user side fills it in before.
#[unsafe(no_mangle)]
static SETTINGS: Settings = Settings {
    gue_port: 0,
    any_source: 0,
    any_destination: 0,
};

/// The settings, as the user side filled them in.
#[inline(always)]
pub fn setting() -> Settings {
    // SAFETY: a live, aligned static; volatile because the loader changes it behind the compiler's
    // back.
    unsafe { core::ptr::read_volatile(&raw const SETTINGS) }
}
