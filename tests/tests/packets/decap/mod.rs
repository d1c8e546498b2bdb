//! The decapsulator: tunnel packets of every kind, and what only looks like one.
//!
//! Every frame is checked whole, with its verdict and all counters.

use lb_tests::harness::Test;

mod addresses;
mod bed;
mod gue;
mod headers;
mod jumbo;
mod ways;

/// The tests, by topic.
pub const TESTS: &[&[Test]] = &[
    ways::TESTS,
    gue::TESTS,
    addresses::TESTS,
    headers::TESTS,
    jumbo::TESTS,
];
