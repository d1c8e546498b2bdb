//! The BPF objects, built by this crate's build script and carried inside the binary.

use aya::include_bytes_aligned;

/// The packet program and its maps.
pub static LB: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lb"));

/// The decapsulator of backends behind a tunnel, and its maps.
pub static DECAP: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/decap"));

/// The programs of test beds and benches.
#[cfg(feature = "testbed")]
pub static TESTBED: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/testbed"));
