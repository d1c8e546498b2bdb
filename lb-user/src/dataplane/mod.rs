//! The packet program in the kernel: loading, attaching, maps, next hops. The only user of BPF and
//! netlink.

pub mod object;
