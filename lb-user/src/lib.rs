//! `lb`: load balancer agent and command line.
//!
//! [`cli`] parses the command line and, except for `run`, talks to the agent through
//! [`control::client`]; the decapsulator [`decap`] needs no agent. The [`agent`] wires together [`control`] (the socket), [`model`] (what is wanted
//! and what that means for the maps, pure), [`dataplane`] (the only user of BPF and netlink) and [`load`]
//! (what is read from and published to the load maps). [`config`] is the file, [`host`] what is asked
//! of the machine.

pub mod agent;
pub mod cli;
pub mod config;
pub mod control;
pub mod dataplane;
pub mod decap;
pub mod host;
pub mod load;
pub mod model;
