//! The agent's part in the load counts: what expires, what is published, what the audit finds.
//!
//! CPUs count for themselves and never write another's counts. Whatever is to be added to them from
//! outside goes into one correction for each backend, of which the agent is the only writer.

mod publish;
mod sweep;
mod timeouts;

pub use self::{
    publish::{Pace, Publisher},
    sweep::{Sweeper, Swept},
    timeouts::Timeouts,
};

/// A backend slot in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Index into the backend array.
    pub id: u32,
    /// The owner's generation.
    pub generation: u32,
    /// Its service compares published loads.
    pub published: bool,
}
