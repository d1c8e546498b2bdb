//! What the agent needs of a data plane, in the terms of the control socket.
//!
//! There is one in the kernel; tests put another in its place.

use std::{collections::HashMap, error::Error};

use crate::{
    control::api::{Attachment, CounterValue, FlowTable, Flows, Load, Map, Program, Way},
    model::change::MapWrite,
};

/// Why the data plane did not do something.
pub type DatapathError = Box<dyn Error + Send + Sync>;

/// Lists up to so many flows. Needs no lock, and may take long: it walks the flow tables.
pub type FlowLister = Box<dyn FnOnce(usize) -> Result<Flows, DatapathError> + Send>;

/// Counts the entries of the flow tables. Needs no lock, and may take long.
pub type FlowCounter = Box<dyn FnOnce() -> Result<Vec<FlowTable>, DatapathError> + Send>;

/// A data plane.
pub trait Datapath: Send + 'static {
    /// Makes writes, in order, until one fails.
    fn write(&mut self, writes: &[MapWrite]) -> Result<(), DatapathError>;

    /// What backends carry, by slot and generation, in the same order.
    fn loads(&self, slots: &[(u32, u32)]) -> Result<Vec<Load>, DatapathError>;

    /// What the packet program has counted.
    fn counters(&self) -> Result<Vec<CounterValue>, DatapathError>;

    /// The ways to backends, by slot.
    fn ways(&self) -> HashMap<u32, Way>;

    /// Where the packet program is attached.
    fn attachments(&self) -> Vec<Attachment>;

    /// The packet program.
    fn program(&self) -> Result<Program, DatapathError>;

    /// The maps.
    fn maps(&self) -> Result<Vec<Map>, DatapathError>;

    /// Something to list flows with, away from the lock.
    fn flow_lister(&self) -> Result<FlowLister, DatapathError>;

    /// Something to count flow entries with, away from the lock.
    fn flow_counter(&self) -> Result<FlowCounter, DatapathError>;
}
