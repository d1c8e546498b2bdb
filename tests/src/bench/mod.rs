//! The benches: what a packet costs, how evenly flows come out, what the maps take.
//!
//! Costs are measured by `BPF_PROG_TEST_RUN`, which runs the program many times on one frame and
//! gives the mean time of a run. The frame is not restored between runs, so the services are laid
//! out as a [`chain`]: what the program makes of a packet is again a packet for a VIP. The TTL limits a
//! call to [`chain::RUNS`] runs; calls of all paths take turns, over many rounds, so that whatever
//! disturbs the machine disturbs all alike. Only ratios within one run mean anything.

pub mod chain;
pub mod cost;
pub mod memory;
pub mod report;
pub mod spread;
