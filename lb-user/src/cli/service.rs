//! `lb service`: add, list, change and remove services.

use clap::{Args, Subcommand};

use super::{Ask, Error, show_change, table};
use crate::{
    control::api::{RemoveQuery, ServicePatch},
    model::{
        addr::ServiceId,
        prefix::Prefix,
        spec::{BackendSpec, Draw, LoadView, MAX_CHOICES, Mode, ServiceSpec},
    },
};

/// Add, list, change and remove services.
#[derive(Debug, Subcommand)]
pub enum Service {
    Add(Add),
    List(List),
    Set(Set),
    Remove(Remove),
}

/// Add a service.
///
/// A service that is there already with the same settings is left as it is.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  lb service add 192.0.2.10:80 --backend 10.0.0.1:8080 --backend 10.0.0.2:8080"
)]
pub struct Add {
    /// VIP, port and protocol: 192.0.2.10:80, [2001:db8::1]:53/udp. TCP if not given.
    service: ServiceId,
    /// A backend of weight 1; may be repeated.
    #[arg(long = "backend", value_name = "ADDRESS:PORT", value_parser = crate::model::addr::parse_address)]
    backends: Vec<std::net::SocketAddr>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Args)]
struct Settings {
    /// How packets are sent to backends [default: nat]
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Prefix that outer headers (ipip, gue) have their sources from; once for each family
    #[arg(long = "source", value_name = "PREFIX")]
    sources: Vec<Prefix>,
    /// What selects a new flow's candidates [default: flow]
    #[arg(long, value_enum)]
    draw: Option<Draw>,
    /// How many candidates are compared; 1 is a random choice [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_CHOICES)))]
    choices: Option<u8>,
    /// Which loads are compared [default: exact]
    #[arg(long, value_enum)]
    load_view: Option<LoadView>,
}

/// List services and their backends.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lb service list --json")]
pub struct List;

/// Change the settings of a service.
///
/// Flows that are open stay where they are, but for those of a service that changes its mode: they are cut.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lb service set 192.0.2.10:80 --choices 3")]
pub struct Set {
    /// VIP, port and protocol.
    service: ServiceId,
    /// Outer headers have their sources from no prefix any more, but as the route suggests
    #[arg(long, conflicts_with = "sources")]
    no_source: bool,
    #[command(flatten)]
    settings: Settings,
}

/// Remove a service.
///
/// It takes no new flows from then on. Flows that are open go on until they end or the deadline
/// comes.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lb service remove 192.0.2.10:80 --deadline 5m")]
pub struct Remove {
    /// VIP, port and protocol.
    service: ServiceId,
    #[command(flatten)]
    how: How,
}

/// How to remove.
#[derive(Debug, Args)]
pub(super) struct How {
    /// How long open flows have to end, as 30s or 5m [default: 1m]
    #[arg(long, value_name = "TIME", conflicts_with = "now")]
    deadline: Option<humantime::Duration>,
    /// Cut open flows now.
    #[arg(long)]
    now: bool,
}

impl How {
    pub(super) fn query(&self) -> RemoveQuery {
        RemoveQuery {
            deadline_ms: self
                .deadline
                .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            now: self.now,
        }
    }
}

impl Service {
    pub(super) fn execute(self, ask: &Ask) -> Result<(), Error> {
        match self {
            Self::Add(verb) => {
                let id = verb.service;
                let mut spec = ServiceSpec::new(id);
                spec.backends = verb.backends.into_iter().map(BackendSpec::new).collect();
                let settings = verb.settings;
                spec.mode = settings.mode.unwrap_or(spec.mode);
                spec.sources = settings.sources;
                spec.draw = settings.draw.unwrap_or(spec.draw);
                spec.choices = settings.choices.unwrap_or(spec.choices);
                spec.load_view = settings.load_view.unwrap_or(spec.load_view);
                ask.ask(
                    async move |client| client.add_service(&spec).await,
                    |change| show_change(&format!("service {id}"), change),
                )
            }
            Self::List(List) => ask.ask(
                async |client| client.services().await,
                |services| table::services(services),
            ),
            Self::Set(verb) => {
                let id = verb.service;
                let sources = verb.settings.sources;
                let patch = ServicePatch {
                    mode: verb.settings.mode,
                    sources: (verb.no_source || !sources.is_empty()).then_some(sources),
                    draw: verb.settings.draw,
                    choices: verb.settings.choices,
                    load_view: verb.settings.load_view,
                };
                ask.ask(
                    async move |client| client.set_service(id, &patch).await,
                    |change| show_change(&format!("service {id}"), change),
                )
            }
            Self::Remove(verb) => {
                let (id, query) = (verb.service, verb.how.query());
                ask.ask(
                    async move |client| client.remove_service(id, &query).await,
                    |change| show_change(&format!("service {id}"), change),
                )
            }
        }
    }
}
