//! Shows `lb` balancing real traffic in network namespaces, next to a random choice.

use clap::Parser;
use lb_tests::{demo, harness};
use std::process::ExitCode;

/// Shows lb balancing real traffic in network namespaces, next to a random choice
///
/// A client, a balancer and backends of unequal speed run in network namespaces of their own, which
/// end with the demo, Ctrl-C or not. The same connections are offered twice: placed by one random
/// choice, and by the better of two. Then a backend is added and another drained under traffic.
/// Progress goes to standard error, the result to standard output. Exit code 0: no connection failed.
#[derive(Parser)]
#[command(name = "cargo xtask demo", bin_name = "cargo xtask demo")]
struct Args {
    /// Seconds of traffic
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// Backends at the start; one more is added midway
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=100))]
    backends: u16,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if !harness::privileged() {
        eprintln!(
            "error: the demo makes network namespaces and loads XDP programs: run it as root"
        );
        return ExitCode::FAILURE;
    }
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<bool> {
    let report = demo::run(demo::Options {
        seconds: args.seconds,
        backends: usize::from(args.backends),
    })?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("\n{report}");
    }
    Ok(report.ok())
}
