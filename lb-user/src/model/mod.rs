//! What is wanted, what is, and what to write to get from one to the other. Pure: no clock, no I/O.
//!
//! [`spec`] is the desired state and [`check`] tells whether it can be served; [`state`] is what the
//! maps hold, and [`diff`] the way from the one to the other, as the ordered writes of [`change`].

pub mod addr;
pub mod change;
pub mod check;
pub mod diff;
pub mod prefix;
pub mod regions;
pub mod slots;
pub mod spec;
pub mod state;
