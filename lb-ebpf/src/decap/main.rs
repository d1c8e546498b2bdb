//! The XDP program `decap` of backends behind a tunnel: takes the outer headers of IP-in-IP and GUE off,
//! so that the host's stack gets the packets as the clients sent them.
//!
//! A packet is first read as a whole: [`ethernet`], [`outer`], [`tunnel`], [`inner`]. Whatever does not fit passes
//! untouched. Only then does [`program`], which puts these in order, change anything.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod ethernet;
#[cfg(target_arch = "bpf")]
mod inner;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod outer;
#[cfg(target_arch = "bpf")]
mod packet;
#[cfg(target_arch = "bpf")]
mod program;
#[cfg(target_arch = "bpf")]
mod tunnel;

/// The kernel lends its GPL-only helpers to programs under a GPL-compatible licence; this one is
/// under MIT or Apache-2.0.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
