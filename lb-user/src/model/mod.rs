//! What is wanted, what is, and what to write to get from one to the other. Pure: no clock, no I/O.

pub mod change;
