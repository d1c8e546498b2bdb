//! What the packet program and the agent share.
//!
//! Compiled for the BPF target and for the host: the choice of a backend, the checksum arithmetic and
//! the flow states that run at the NIC are the ones that unit tests run. Nothing in here allocates,
//! reads a clock or draws a random number: time and randomness are arguments.
//!
//! All integers that name a thing on the wire (addresses, ports) are kept as they stand in the packet,
//! in network byte order, whatever the host's order is; fields say so.
#![cfg_attr(not(test), no_std)]

pub mod abi;
pub mod csum;
pub mod decap;
pub mod flow;
pub mod load;
pub mod p2c;
pub mod verdict;
pub mod vlan;
pub mod wire;
