//! What the agent shows.

use std::collections::{BTreeSet, HashMap};

use super::{Agent, Inner, datapath::Datapath, edit::no_service, refusal::Refusal};
use crate::{
    control::api::{
        BackendPhase, BackendView, DEFAULT_FLOW_LIMIT, Flows, FlowsQuery, Load, MAX_FLOW_LIMIT,
        ServicePhase, ServiceView, Status, Way,
    },
    host,
    model::{
        addr::ServiceId,
        spec::ServiceSpec,
        state::{BackendState, ServiceState},
    },
};

impl<D: Datapath> Agent<D> {
    /// Every service, with its backends and their loads.
    pub async fn services(&self) -> Result<Vec<ServiceView>, Refusal> {
        self.lock().await.services(self.now_ms())
    }

    /// One service.
    pub async fn service(&self, id: ServiceId) -> Result<ServiceView, Refusal> {
        let services = self.services().await?;
        services
            .into_iter()
            .find(|service| service.id() == id)
            .ok_or_else(|| no_service(id))
    }

    /// The agent and its data plane.
    pub async fn status(&self) -> Result<Status, Refusal> {
        let (mut status, counter) = {
            let inner = self.lock().await;
            let status = Status {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                uptime_ms: self.now_ms(),
                attachments: inner.dataplane.attachments(),
                program: inner
                    .dataplane
                    .program()
                    .map_err(|e| failed("program", e))?,
                flow_tables: Vec::new(),
                maps: inner.dataplane.maps().map_err(|e| failed("maps", e))?,
                services: inner.services(self.now_ms())?,
                counters: inner
                    .dataplane
                    .counters()
                    .map_err(|e| failed("counters", e))?,
                notes: Vec::new(),
            };
            let counter = inner.dataplane.flow_counter();
            (status, counter.map_err(|e| failed("flow tables", e))?)
        };
        status.flow_tables = blocking(counter).await?;
        status.notes = notes(&status);
        Ok(status)
    }

    /// Flows of the flow tables.
    pub async fn flows(&self, query: &FlowsQuery) -> Result<Flows, Refusal> {
        let limit = query.limit.unwrap_or(DEFAULT_FLOW_LIMIT);
        if limit > MAX_FLOW_LIMIT {
            return Err(Refusal::invalid(
                "limit",
                format!("{limit} flows are more than can be listed at once, {MAX_FLOW_LIMIT}"),
                "ask for fewer",
            ));
        }
        let lister = self.lock().await.dataplane.flow_lister();
        let lister = lister.map_err(|e| failed("flow tables", e))?;
        blocking(move || lister(limit)).await
    }
}

fn failed(what: &str, why: impl std::fmt::Display) -> Refusal {
    Refusal::failed(format!("cannot read the {what}: {why}"))
}

async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, super::datapath::DatapathError> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(read).await {
        Ok(done) => done.map_err(|e| failed("flow tables", e)),
        Err(e) => Err(failed("flow tables", e)),
    }
}

/// Reasons that a note gives, at most: more of them are one trouble.
const MOST_REASONS: usize = 3;

/// What stands in the way of good service.
fn notes(status: &Status) -> Vec<String> {
    let families = |v4: bool| {
        let mut services = status.services.iter();
        services.any(|s| s.address.is_ipv4() == v4)
    };
    let mut notes = host::forwarding_notes(families(true), families(false));
    for table in &status.flow_tables {
        if table.entries.saturating_mul(10) >= table.limit.saturating_mul(9) {
            notes.push(format!(
                "the {} flow table is {}% full: new flows are about to be placed without an entry; raise \
                 flow_table_size",
                table.family,
                table.entries * 100 / table.limit.max(1)
            ));
        }
    }
    for service in &status.services {
        let up = |b: &BackendView| b.state == BackendPhase::Up;
        if service.state == ServicePhase::Up && !service.backends.iter().any(up) {
            notes.push(format!(
                "service {} has no backend that takes new flows: its new flows are dropped",
                service.id()
            ));
        }
    }
    let attached = |interface: &str| status.attachments.iter().any(|a| a.interface == interface);
    let backends = status.services.iter().flat_map(|s| &s.backends);
    let unseen: BTreeSet<&str> = backends
        .filter_map(|b| b.way.next_hop.as_ref())
        .map(|hop| hop.interface.as_str())
        .filter(|interface| !attached(interface))
        .collect();
    for interface in unseen {
        notes.push(format!(
            "backends are reached by {interface}, to which lb is not attached: replies that come in \
             there keep the backend's address; add it to the interfaces and restart"
        ));
    }
    let unresolved: BTreeSet<&str> = status
        .services
        .iter()
        .flat_map(|s| &s.backends)
        .filter_map(|b| b.way.unresolved.as_deref())
        .collect();
    if !unresolved.is_empty() {
        let why: Vec<_> = unresolved.into_iter().take(MOST_REASONS).collect();
        notes.push(format!(
            "backends have no next hop ({}): see `lb backend list`",
            why.join("; ")
        ));
    }
    for attachment in &status.attachments {
        if attachment.mode == "generic" {
            notes.push(format!(
                "{} is attached in generic mode: it works, and is several times slower than native",
                attachment.interface
            ));
        }
    }
    notes
}

impl<D: Datapath> Inner<D> {
    fn services(&self, now_ms: u64) -> Result<Vec<ServiceView>, Refusal> {
        let loads = self
            .dataplane
            .loads(&self.state.slots())
            .map_err(|e| failed("loads", e))?;
        let ways = self.dataplane.ways();
        // `slots` and `services` walk the backends in the same order.
        let mut loads = loads.into_iter();
        let views = self.state.services().map(|(id, service)| {
            let spec = self.spec.service(id);
            view(id, service, spec, &mut loads, &ways, now_ms)
        });
        Ok(views.collect())
    }
}

fn view(
    id: ServiceId,
    service: &ServiceState,
    spec: Option<&ServiceSpec>,
    loads: &mut impl Iterator<Item = Load>,
    ways: &HashMap<u32, Way>,
    now_ms: u64,
) -> ServiceView {
    let defaults = ServiceSpec::new(id);
    let settings = spec.unwrap_or(&defaults);
    let mut backends: Vec<BackendView> = service
        .backends
        .iter()
        .map(|(&address, backend)| BackendView {
            address,
            weight: backend.weight,
            state: phase(backend),
            id: backend.slot.id,
            generation: backend.slot.generation,
            load: loads.next().unwrap_or_default(),
            share: 0.0,
            way: ways.get(&backend.slot.id).cloned().unwrap_or_default(),
            deadline_ms: backend
                .removal
                .map(|removal| removal.deadline_ms.saturating_sub(now_ms)),
        })
        .collect();
    let opened: u64 = backends.iter().map(|b| b.load.opened).sum();
    for backend in &mut backends {
        backend.share = backend.load.opened as f64 / opened.max(1) as f64;
    }
    ServiceView {
        address: id.address,
        protocol: id.protocol,
        state: match service.value {
            Some(_) => ServicePhase::Up,
            None => ServicePhase::Removing,
        },
        mode: settings.mode,
        draw: settings.draw,
        choices: settings.choices,
        load_view: settings.load_view,
        sources: settings.sources.clone(),
        candidate_rows: service.value.map_or(0, |value| value.rows),
        table_version: service.value.map_or(0, |value| value.version),
        in_flight: backends.iter().map(|b| b.load.in_flight).sum(),
        opened,
        backends,
    }
}

fn phase(backend: &BackendState) -> BackendPhase {
    match backend.removal {
        Some(_) => BackendPhase::Removing,
        None if backend.takes_flows() => BackendPhase::Up,
        None => BackendPhase::Drain,
    }
}
