//! Measures what packets cost, how evenly flows come out, and what it takes.

use clap::{Parser, ValueEnum};
use lb_tests::{
    bench::{chain::Chain, cost, memory, report::Report, spread},
    fixture::Net,
    harness,
};
use std::process::ExitCode;

/// Measures what packets cost, how evenly flows come out, and what it takes
///
/// Nothing is sent on any network: the packet program runs on made-up frames, in a network namespace of
/// its own. Times are of this machine in this moment: compare only within one run. The method is in
/// docs/benchmark.md.
#[derive(Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
struct Args {
    /// What to measure; everything if not given
    what: Option<What>,
    /// Rounds of the timed calls
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    rounds: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Packets of known flows
    Hit,
    /// Packets that open flows
    New,
    /// How evenly flows come out over backends
    Spread,
    /// Bytes of flows, backends and candidates
    Memory,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if !harness::privileged() {
        eprintln!("error: the bench loads XDP programs: run it as root");
        return ExitCode::FAILURE;
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let wanted = |what| args.what.is_none_or(|only| only == what);
    let rounds = args.rounds as usize;
    let net = Net::new()?;
    Chain::route(&net)?;
    let mut report = Report::default();
    if wanted(What::Hit) {
        report.hit = Some(cost::hit(&net, rounds)?);
    }
    if wanted(What::New) {
        report.new = Some(cost::new_flow(&net, rounds)?);
    }
    if wanted(What::Spread) {
        report.spread = Some(spread::spread(&net, 10_000, 3)?);
    }
    if wanted(What::Memory) {
        report.memory = Some(net.netns.run(memory::memory)?);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(())
}
