//! Building, the demo, the bench and the tests.

use crate::setup::{ensure_ready, is_root};
use anyhow::{Context as _, Result, ensure};
use std::{
    io::{BufRead as _, BufReader, IsTerminal as _, stdin},
    process::{Command, Stdio},
    time::Instant,
};
use xshell::{Shell, cmd};

/// Has cargo start what it has built by sudo.
const BY_SUDO: [&str; 2] = ["--config", "target.'cfg(unix)'.runner='sudo'"];

/// Builds the release binary.
pub fn build(shell: &Shell) -> Result<()> {
    ensure_ready(shell)?;
    cmd!(shell, "cargo build --release --package lb-user").run()?;
    Ok(())
}

/// Runs the demo, as root or by sudo.
pub fn demo(shell: &Shell, args: &[String]) -> Result<()> {
    ensure_ready(shell)?;
    // Both packages at once, as the tests are built: nothing is then built twice.
    cmd!(
        shell,
        "cargo build --package lb-user --package lb-tests --bins"
    )
    .run()?;
    run_privileged(shell, &["--bin", "demo"], "the demo", args)
}

/// Runs the bench, as root or by sudo, from a release build.
pub fn bench(shell: &Shell, args: &[String]) -> Result<()> {
    ensure_ready(shell)?;
    cmd!(
        shell,
        "cargo build --release --package lb-tests --bin bench"
    )
    .run()?;
    run_privileged(shell, &["--release", "--bin", "bench"], "the bench", args)
}

/// Runs a program of the tests as root or by sudo, and ends with its exit code.
fn run_privileged(shell: &Shell, program: &[&str], what: &str, args: &[String]) -> Result<()> {
    let mut runner: &[&str] = &[];
    if !is_root() && !args.iter().any(|arg| arg == "--help" || arg == "-h") {
        eprintln!("Network namespaces and XDP need root: running {what} by sudo.");
        runner = &BY_SUDO;
    }
    // Its own exit code and messages say what went wrong.
    let status = Command::new("cargo")
        .current_dir(shell.current_dir())
        .args(["run", "--quiet", "--package", "lb-tests"])
        .args(program)
        .args(runner)
        .arg("--")
        .args(args)
        .status()
        .context("cannot run cargo")?;
    std::process::exit(status.code().unwrap_or(1))
}

/// Runs every check and test, and ends with the runners' own results.
pub fn test(shell: &Shell) -> Result<()> {
    let start = Instant::now();
    ensure_ready(shell)?;
    cmd!(shell, "cargo fmt --all --check").run()?;
    cmd!(
        shell,
        "cargo clippy --workspace --all-targets -- -D warnings"
    )
    .run()?;
    cmd!(shell, "cargo doc --workspace --no-deps --quiet")
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    cmd!(
        shell,
        "cargo build --package lb-user --package lb-tests --bins"
    )
    .run()?;

    let mut results = Results::default();
    results.run(shell, &["test", "--workspace", "--no-fail-fast"])?;
    let root = is_root();
    if !root {
        if may_sudo() {
            println!("Not root: running the privileged test suites again, by sudo.");
            let mut args = vec![
                "test",
                "--package",
                "lb-tests",
                "--test",
                "*",
                "--no-fail-fast",
            ];
            args.extend(BY_SUDO);
            results.run(shell, &args)?;
        } else {
            println!("Neither root nor sudo: privileged tests show as ignored.");
        }
    }
    println!("\nResults, after {} s:", start.elapsed().as_secs());
    for line in &results.lines {
        println!("{line}");
    }
    let [passed, failed, ignored] = results.totals();
    println!("In all: {passed} passed; {failed} failed; {ignored} ignored.");
    ensure!(!results.failed, "tests failed: see above");
    Ok(())
}

/// Whether sudo works, or can ask for a password.
fn may_sudo() -> bool {
    let without_asking = Command::new("sudo")
        .args(["-n", "true"])
        .stderr(Stdio::null())
        .status();
    match without_asking {
        Ok(status) => status.success() || stdin().is_terminal(),
        Err(_) => false,
    }
}

/// The closing lines of test runners.
#[derive(Default)]
struct Results {
    lines: Vec<String>,
    failed: bool,
}

impl Results {
    /// Runs `cargo` with its output shown, and keeps the lines that say how it ended.
    fn run(&mut self, shell: &Shell, args: &[&str]) -> Result<()> {
        println!("$ cargo {}", args.join(" "));
        let mut child = Command::new("cargo")
            .current_dir(shell.current_dir())
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run cargo")?;
        if let Some(stdout) = child.stdout.take() {
            for line in BufReader::new(stdout).lines() {
                let line = line.context("cannot read what cargo prints")?;
                println!("{line}");
                // Not those of targets without tests.
                if line.starts_with("test result:") && counts(&line) != [0; 3] {
                    self.lines.push(line);
                }
            }
        }
        let passed = child.wait().context("cannot wait for cargo")?.success();
        self.failed |= !passed;
        Ok(())
    }

    /// Tests that passed, failed and were ignored.
    fn totals(&self) -> [u64; 3] {
        let mut totals = [0; 3];
        for line in &self.lines {
            for (total, count) in totals.iter_mut().zip(counts(line)) {
                *total += count;
            }
        }
        totals
    }
}

/// Tests that passed, failed and were ignored, by a runner's closing line.
fn counts(line: &str) -> [u64; 3] {
    let words: Vec<_> = line.split([' ', ';']).collect();
    ["passed", "failed", "ignored"].map(|what| {
        let place = words.iter().position(|word| *word == what);
        place
            .and_then(|place| words.get(place.checked_sub(1)?)?.parse().ok())
            .unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_counted() {
        let line = "test result: FAILED. 41 passed; 2 failed; 7 ignored; 1 measured; 0 filtered out; \
                    finished in 4.15s";
        assert_eq!(counts(line), [41, 2, 7]);
        assert_eq!(counts("test result: ok."), [0; 3]);
    }
}
