//! `lb flows`: what is in the flow tables.

use clap::Args;

use super::{Ask, Error, table};
use crate::control::api::{DEFAULT_FLOW_LIMIT, FlowsQuery};

/// List flows.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lb flows --limit 1000 --json")]
pub struct Flows {
    /// Most flows to list.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_FLOW_LIMIT)]
    limit: usize,
}

impl Flows {
    pub(super) fn execute(self, ask: &Ask) -> Result<(), Error> {
        let query = FlowsQuery {
            limit: Some(self.limit),
        };
        ask.ask(async move |client| client.flows(&query).await, table::flows)
    }
}
