//! Test beds, packet fixtures, end-to-end tests, the demo and the benches of `lb`.
//!
//! A test bed leaves nothing behind, however it ends: namespaces, XDP programs and the file system
//! for sockets and configs are held by file descriptors only, and child processes die with the
//! thread that started them. So several beds can also stand side by side.

pub mod agent;
pub mod bench;
pub mod bytes;
pub mod client;
pub mod decap;
pub mod demo;
pub mod fixture;
pub mod harness;
pub mod netns;
pub mod offload;
pub mod process;
pub mod scratch;
pub mod server;
pub mod topology;
pub mod traffic;
pub mod tunnel;
pub mod world;
