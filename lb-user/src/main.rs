//! The `lb` command.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    lb_user::cli::Cli::parse().execute()
}
