//! The XDP program of `lb`: picks a backend for each new flow and rewrites packets at the NIC.
//!
//! A packet passes through the modules in this order, and values pass between them through here:
//! [`parse`] finds the 5-tuple, [`track`] knows the flow or not; if not, [`service`] tells whether it
//! is for a VIP, [`pick`] chooses the backend and [`track`] remembers the choice; [`rewrite`] changes
//! the headers, or [`one_way`] leaves them as they are and [`tunnel`] puts outer ones before them, and
//! [`forward`] finds the way out. What is not for a VIP passes untouched.
//!
//! ICMP has stages of its own, in the order that [`icmp`] gives: [`echo`] answers pings of a VIP,
//! [`quote`] reads and rewrites the packet that an error quotes.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        internal_features,
        reason = "atomic_or has no stable form for this target"
    ),
    feature(core_intrinsics)
)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod echo;
#[cfg(target_arch = "bpf")]
mod family;
#[cfg(target_arch = "bpf")]
mod forward;
#[cfg(target_arch = "bpf")]
mod icmp;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod one_way;
#[cfg(target_arch = "bpf")]
mod packet;
#[cfg(target_arch = "bpf")]
mod parse;
#[cfg(target_arch = "bpf")]
mod pick;
#[cfg(target_arch = "bpf")]
mod quote;
#[cfg(target_arch = "bpf")]
mod rewrite;
#[cfg(target_arch = "bpf")]
mod service;
#[cfg(target_arch = "bpf")]
mod stats;
#[cfg(target_arch = "bpf")]
mod track;
#[cfg(target_arch = "bpf")]
mod tunnel;

#[cfg(target_arch = "bpf")]
mod program;

/// The kernel lends its GPL-only helpers to programs under a GPL-compatible licence; this one is
/// under MIT or Apache-2.0.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
