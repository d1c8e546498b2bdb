//! The local socket: HTTP with JSON under `/v1` on a Unix socket.
//!
//! [`api`] is what both ends share, [`server`] answers out of the [`Agent`](crate::agent::Agent),
//! [`client`] asks.

pub mod api;
pub mod client;
pub mod reply;
pub mod server;
pub mod socket;
