//! `lb status`: the agent, its data plane and its services.

use clap::Args;

use super::{Ask, Error, table};

/// Show the agent, the data plane, services and what was counted.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lb status")]
pub struct Status;

impl Status {
    pub(super) fn execute(self, ask: &Ask) -> Result<(), Error> {
        ask.ask(async |client| client.status().await, table::status)
    }
}
