//! Test beds, packet fixtures, end-to-end tests, the demo and the benches of `lb`.
