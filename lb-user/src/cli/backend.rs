//! `lb backend`: add, list, drain, resume, weigh and remove backends.

use std::net::SocketAddr;

use clap::{Args, Subcommand};

use super::{Ask, Error, service::How, show_change, table};
use crate::model::{
    addr::{ServiceId, parse_address},
    spec::{AdminState, BackendSpec},
};

/// Add, list, drain, resume, weigh and remove backends.
#[derive(Debug, Subcommand)]
pub enum Backend {
    Add(Add),
    List(List),
    Drain(Drain),
    Resume(Resume),
    SetWeight(SetWeight),
    Remove(Remove),
}

/// Which backend of which service.
#[derive(Debug, Args)]
struct Which {
    /// VIP, port and protocol of the service: 192.0.2.10:80, [2001:db8::1]:53/udp. TCP if not given.
    service: ServiceId,
    /// Address and port of the backend.
    #[arg(value_parser = parse_address)]
    backend: SocketAddr,
}

/// Add a backend to a service.
///
/// A backend that is there already with the same weight is left as it is; one that is being removed
/// stays after all.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lb backend add 192.0.2.10:80 10.0.0.3:8080 --weight 2")]
pub struct Add {
    #[command(flatten)]
    which: Which,
    /// Share of the service's flows relative to the other backends, 0 to 65535; 0 takes none.
    #[arg(long, default_value_t = 1)]
    weight: u16,
    /// Add it drained: it takes no flows until `lb backend resume`.
    #[arg(long)]
    drained: bool,
}

/// List the backends of a service, or of all.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lb backend list 192.0.2.10:80 --json")]
pub struct List {
    /// VIP, port and protocol of the service.
    service: Option<ServiceId>,
}

/// Let a backend take no new flows; those it has go on.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lb backend drain 192.0.2.10:80 10.0.0.3:8080")]
pub struct Drain {
    #[command(flatten)]
    which: Which,
}

/// Let a drained backend take new flows again.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lb backend resume 192.0.2.10:80 10.0.0.3:8080")]
pub struct Resume {
    #[command(flatten)]
    which: Which,
}

/// Change a backend's weight. Weight 0 drains.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lb backend set-weight 192.0.2.10:80 10.0.0.3:8080 10")]
pub struct SetWeight {
    #[command(flatten)]
    which: Which,
    /// The new weight, 0 to 65535.
    weight: u16,
}

/// Remove a backend.
///
/// It takes no new flows from then on, and goes once its flows have ended or the deadline comes.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lb backend remove 192.0.2.10:80 10.0.0.3:8080 --deadline 5m")]
pub struct Remove {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: How,
}

impl Which {
    fn name(&self) -> String {
        format!("backend {} of {}", self.backend, self.service)
    }
}

impl Backend {
    pub(super) fn execute(self, ask: &Ask) -> Result<(), Error> {
        match self {
            Self::Add(verb) => {
                let Which { service, backend } = verb.which;
                let spec = BackendSpec {
                    address: backend,
                    weight: verb.weight,
                    state: if verb.drained {
                        AdminState::Drain
                    } else {
                        AdminState::Up
                    },
                };
                ask.ask(
                    async move |client| client.add_backend(service, &spec).await,
                    |change| show_change(&verb.which.name(), change),
                )
            }
            Self::List(verb) => ask.ask(
                async |client| match verb.service {
                    Some(id) => Ok(vec![client.service(id).await?]),
                    None => client.services().await,
                },
                |services| table::backends(services),
            ),
            Self::Drain(verb) => set_state(&verb.which, ask, AdminState::Drain),
            Self::Resume(verb) => set_state(&verb.which, ask, AdminState::Up),
            Self::SetWeight(verb) => {
                let Which { service, backend } = verb.which;
                ask.ask(
                    async move |client| client.set_weight(service, backend, verb.weight).await,
                    |change| show_change(&verb.which.name(), change),
                )
            }
            Self::Remove(verb) => {
                let Which { service, backend } = verb.which;
                let query = verb.how.query();
                ask.ask(
                    async move |client| client.remove_backend(service, backend, &query).await,
                    |change| show_change(&verb.which.name(), change),
                )
            }
        }
    }
}

fn set_state(which: &Which, ask: &Ask, state: AdminState) -> Result<(), Error> {
    let &Which { service, backend } = which;
    ask.ask(
        async move |client| client.set_state(service, backend, state).await,
        |change| {
            let effect = match state {
                AdminState::Drain => "takes no new flows; those it has go on",
                AdminState::Up => "takes new flows",
            };
            format!("{} ({effect})", show_change(&which.name(), change))
        },
    )
}
