//! `lb run`: the agent.

use std::path::PathBuf;

use clap::Args;

use super::{Ask, Error};
use crate::{
    agent::run::{self, Options},
    config::{LogLevel, XdpMode},
};

/// Run the agent: load the packet program, attach it, serve the control socket.
///
/// Runs in the foreground until SIGTERM or SIGINT, then detaches and removes its socket. Prints
/// "lb: ready" on standard error once packets are balanced and the socket answers.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  lb run --interface eth0 --config /etc/lb/lb.toml\n\n\
                        What is given here goes before what the configuration says."
)]
pub struct Run {
    /// Interface to attach to; may be repeated, or given as a list a,b.
    #[arg(long = "interface", short, value_name = "IF", value_delimiter = ',')]
    interfaces: Vec<String>,
    /// Configuration file.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How to attach [default: native]
    #[arg(long, value_enum)]
    xdp_mode: Option<XdpMode>,
    /// What to log [default: info]
    #[arg(long, value_enum)]
    log_level: Option<LogLevel>,
}

impl Run {
    pub(super) fn execute(self, ask: &Ask) -> Result<(), Error> {
        Ok(run::run(Options {
            interfaces: self.interfaces,
            config: self.config,
            xdp_mode: self.xdp_mode,
            socket: ask.socket.clone(),
            log_level: self.log_level,
        })?)
    }
}
