//! Set-up, build, demo and tests of `lb`: `cargo xtask COMMAND`.
//!
//! Thin on purpose: every command is a few ordinary commands, printed before they run.

mod distro;
mod need;
mod run;
mod setup;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Set-up, build, demo and tests of lb
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what building and testing lb needs and this machine lacks
    ///
    /// On Debian and Ubuntu it installs packages (with sudo if you are not root) and bpf-linker.
    /// Elsewhere it prints what to install, and fails while something is missing.
    Setup {
        /// Only say what is there and what is missing
        #[arg(long)]
        check: bool,
    },
    /// Build the release binary, target/release/lb
    Build,
    /// Show lb balancing real traffic in network namespaces, next to a random choice
    #[command(disable_help_flag = true)]
    Demo {
        /// Passed on to the demo; see `cargo xtask demo --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure what packets cost, how evenly flows come out, and what it takes
    #[command(disable_help_flag = true)]
    Bench {
        /// Passed on to the bench; see `cargo xtask bench --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run every check: formatting, lints, docs, unit, property, packet and end-to-end tests
    Test,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let shell = xshell::Shell::new()?;
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    shell.change_dir(root.parent().unwrap_or(root));
    match Args::parse().command {
        Command::Setup { check: true } => setup::check(),
        Command::Setup { check: false } => setup::install(&shell),
        Command::Build => run::build(&shell),
        Command::Demo { args } => run::demo(&shell, &args),
        Command::Bench { args } => run::bench(&shell, &args),
        Command::Test => run::test(&shell),
    }
}
