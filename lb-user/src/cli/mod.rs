//! The command line: a file a verb. All but `run` and `decap` only ask the agent, through its socket.

mod backend;
mod decap;
mod flows;
mod run;
mod service;
mod status;
mod table;

use std::{
    future::Future,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};
use serde::Serialize;

use crate::control::{
    api::{self, Change, ErrorBody, ErrorDetail, Outcome},
    client::{self, Client},
};

const EXIT_CODES: &str = "Exit codes:\n  0  done\n  1  refused or failed; the reason is on standard error\n  \
                          2  the command line is wrong";

/// Layer-4 load balancer: XDP, the power of two choices.
#[derive(Debug, Parser)]
#[command(name = "lb", version, after_help = EXIT_CODES, after_long_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    #[command(subcommand)]
    Service(service::Service),
    #[command(subcommand)]
    Backend(backend::Backend),
    Status(status::Status),
    Flows(flows::Flows),
    Decap(decap::Decap),
}

/// What every command has, before or after its verb.
#[derive(Debug, Args)]
struct Ask {
    /// The agent's control socket [default: /run/lb/lb.sock]
    #[arg(long, global = true, value_name = "PATH", env = "LB_SOCKET")]
    socket: Option<PathBuf>,
    /// Print the agent's reply as JSON (`run` has none), or what `decap` has counted.
    #[arg(long, global = true)]
    json: bool,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The agent was not reached, or refused.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// The agent could not start or had to stop.
    #[error(transparent)]
    Agent(#[from] crate::agent::run::Error),
    /// The decapsulator could not start or had to stop.
    #[error(transparent)]
    Decap(#[from] crate::decap::Error),
    /// There is no runtime.
    #[error("cannot start the runtime: {0}")]
    Runtime(std::io::Error),
}

impl Cli {
    /// Does what the command line says.
    pub fn execute(self) -> ExitCode {
        match self.command.execute(&self.ask) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                if self.ask.json {
                    print_error_json(&error);
                } else {
                    eprintln!("lb: {error}");
                }
                ExitCode::FAILURE
            }
        }
    }
}

impl Command {
    fn execute(self, ask: &Ask) -> Result<(), Error> {
        match self {
            Self::Run(verb) => verb.execute(ask),
            Self::Service(verb) => verb.execute(ask),
            Self::Backend(verb) => verb.execute(ask),
            Self::Status(verb) => verb.execute(ask),
            Self::Flows(verb) => verb.execute(ask),
            Self::Decap(verb) => verb.execute(ask),
        }
    }
}

impl Ask {
    /// Asks the agent and prints the reply, as JSON or by `show`.
    fn ask<T, F>(
        &self,
        request: impl FnOnce(Client) -> F,
        show: impl FnOnce(&T) -> String,
    ) -> Result<(), Error>
    where
        T: Serialize,
        F: Future<Output = Result<T, client::Error>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::Runtime)?;
        let socket = self.socket.as_deref();
        let socket = socket.unwrap_or_else(|| Path::new(api::DEFAULT_SOCKET));
        let reply = runtime.block_on(request(Client::new(socket)))?;
        if self.json {
            print_json(&reply);
        } else {
            print(&show(&reply));
        }
        Ok(())
    }
}

/// Prints a text and ends its line. A reader that has gone away (`lb flows | head`) is no failure.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
}

fn print_json(value: &impl Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => print(&text),
        Err(e) => eprintln!("lb: cannot write the reply as JSON: {e}"),
    }
}

/// One line, for what comes again and again.
fn print_json_line(value: &serde_json::Value) {
    print(&value.to_string());
}

fn print_error_json(error: &Error) {
    let detail = match error {
        Error::Client(client::Error::Refused { detail, .. }) => detail.clone(),
        other => ErrorDetail {
            field: None,
            message: other.to_string(),
            hint: None,
        },
    };
    match serde_json::to_string_pretty(&ErrorBody { error: detail }) {
        Ok(text) => eprintln!("{text}"),
        Err(_) => eprintln!("lb: {error}"),
    }
}

/// One line about a change of `what`.
fn show_change(what: &str, change: &Change) -> String {
    let flows = match change.in_flight {
        None | Some(0) => String::new(),
        Some(1) => ", 1 flow in flight".to_owned(),
        Some(n) => format!(", {n} flows in flight"),
    };
    match change.outcome {
        Outcome::Created => format!("{what}: added"),
        Outcome::Changed => format!("{what}: changed{flows}"),
        Outcome::Unchanged => format!("{what}: unchanged{flows}"),
        Outcome::Removed => format!("{what}: removed"),
        Outcome::Removing => format!(
            "{what}: takes no new flows{flows}; removed when they end, at the latest in {}",
            table::duration_ms(change.deadline_ms.unwrap_or(api::DEFAULT_DEADLINE_MS))
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
