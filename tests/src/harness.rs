//! Runs test suites that need privileges: without them their tests show as ignored, never as passed.

use libtest_mimic::{Arguments, Conclusion, Failed, Trial};
use std::fs;

/// A test: its name and what it does. It panics or returns an error to fail.
pub type Test = (&'static str, fn() -> anyhow::Result<()>);

/// Likewise, for suites that make their tests from tables.
pub type MadeTest = (String, Box<dyn FnOnce() -> anyhow::Result<()> + Send>);

/// Runs tests that need [`privileged`], as the test binary's `main`.
pub fn run(tests: &[Test]) -> Conclusion {
    let made = tests
        .iter()
        .map(|&(name, test)| -> MadeTest { (name.to_owned(), Box::new(test)) });
    run_made(made.collect())
}

/// Likewise, for suites that make their tests from tables.
pub fn run_made(tests: Vec<MadeTest>) -> Conclusion {
    let arguments = Arguments::from_args();
    let may_run = privileged();
    if !may_run {
        eprintln!("no CAP_SYS_ADMIN: these tests need namespaces and BPF, and are ignored");
    }
    let trials = tests
        .into_iter()
        .map(|(name, test)| {
            Trial::test(name, move || test().map_err(|e| Failed::from(explain(&e))))
                .with_ignored_flag(!may_run)
        })
        .collect();
    libtest_mimic::run(&arguments, trials)
}

/// An error with its causes and, with `RUST_BACKTRACE` set, the places in this package it came through.
fn explain(error: &anyhow::Error) -> String {
    let mut text = format!("{error:#}");
    for line in error.backtrace().to_string().lines() {
        let line = line.trim_start();
        if line.starts_with("at ./src/") || line.starts_with("at ./tests/") {
            text.push_str("\n    ");
            text.push_str(line);
        }
    }
    text
}

/// Whether this process may make namespaces and load BPF programs: it has `CAP_SYS_ADMIN`.
pub fn privileged() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << CAP_SYS_ADMIN) != 0)
}
