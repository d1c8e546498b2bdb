//! The `lb` command.
fn main() {}
