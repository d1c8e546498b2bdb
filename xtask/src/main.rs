//! Set-up, demo, tests and benches of `lb`.
fn main() {}
