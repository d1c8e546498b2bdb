//! The demo: the same traffic offered twice to the same servers, with one random choice and with two.

mod measure;
mod report;
mod scenario;
mod screen;

pub use measure::{BackendShare, Phase, Spread};
pub use report::Report;
pub use scenario::{Options, run};
