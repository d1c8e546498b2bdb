//! The agent: what is wanted, what is in the maps, and the data plane, under one lock.
//!
//! Every change takes the same way: a copy of the spec is edited, checked whole, planned, written and
//! only then taken over. A refused change leaves no trace; a write that fails is undone.

pub mod datapath;
pub mod edit;
mod kernel;
pub mod refusal;
pub mod removal;
pub mod run;
mod upkeep;
mod view;

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use tokio::sync::{Mutex, MutexGuard};
use tracing::{error, warn};

use self::{datapath::Datapath, edit::Edit, refusal::Refusal};
use crate::{
    control::api::{Change, DEFAULT_DEADLINE_MS, MAX_DEADLINE_MS, Outcome, RemoveQuery},
    host,
    model::{
        addr::ServiceId,
        check::{Limits, Place, check},
        diff::{self, Fate, Plan},
        spec::Spec,
        state::{BackendState, State},
    },
};

/// How often a change waits for candidate rows that are about to be free.
const ROW_RETRIES: u32 = 3;

/// The agent's state, shared by the control socket and background tasks.
pub struct Agent<D> {
    inner: Mutex<Inner<D>>,
    started: Instant,
}

/// What the lock protects.
pub struct Inner<D> {
    /// What is wanted.
    pub spec: Spec,
    /// What is in the maps.
    pub state: State,
    /// The data plane.
    pub dataplane: D,
}

/// How removed backends leave.
#[derive(Clone, Copy, Debug)]
struct Grace {
    /// What becomes of those removed by this change, in ms from now; 0 cuts their flows.
    ms: u64,
    /// A service, or one backend of it, that goes at this change even if it was being removed before.
    target: Option<(ServiceId, Option<SocketAddr>)>,
}

impl<D: Datapath> Agent<D> {
    /// An agent with empty maps.
    pub fn new(limits: Limits, seed: u64, dataplane: D) -> Self {
        Self {
            inner: Mutex::new(Inner {
                spec: Spec::default(),
                state: State::new(limits, seed),
                dataplane,
            }),
            started: Instant::now(),
        }
    }

    /// Takes the lock.
    pub async fn lock(&self) -> MutexGuard<'_, Inner<D>> {
        self.inner.lock().await
    }

    /// The agent's clock: ms since it started.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Replaces all that is wanted, at the start.
    pub async fn apply(&self, spec: Spec) -> Result<(), Refusal> {
        let edit = Edit::Replace(spec);
        self.change(
            &edit,
            Grace {
                ms: 0,
                target: None,
            },
        )
        .await?;
        Ok(())
    }

    /// Makes a change; backends that it removes leave as `removal` says.
    pub async fn edit(&self, edit: &Edit, removal: &RemoveQuery) -> Result<Change, Refusal> {
        let ms = match (removal.now, removal.deadline_ms) {
            (true, _) => 0,
            (false, None) => DEFAULT_DEADLINE_MS,
            (false, Some(ms)) if ms <= MAX_DEADLINE_MS => ms,
            (false, Some(ms)) => {
                return Err(Refusal::invalid(
                    "deadline_ms",
                    format!("{ms} ms is longer than the longest deadline, {MAX_DEADLINE_MS} ms"),
                    "give a shorter deadline, or drain the backend and remove it later",
                ));
            }
        };
        let target = match edit {
            Edit::RemoveService(_) | Edit::RemoveBackend(..) => edit.target(),
            _ => None,
        };
        self.change(edit, Grace { ms, target }).await
    }

    async fn change(&self, edit: &Edit, grace: Grace) -> Result<Change, Refusal> {
        let mut retries = 0;
        loop {
            let after_ms = {
                let mut inner = self.lock().await;
                match inner.change(edit, grace, self.now_ms()) {
                    Err(Failure::Later { after_ms, .. }) if retries < ROW_RETRIES => after_ms,
                    Err(failure) => return Err(failure.into()),
                    Ok(change) => return Ok(change),
                }
            };
            retries += 1;
            tokio::time::sleep(Duration::from_millis(after_ms.max(1))).await;
        }
    }

    /// Ends the removals that are due: `due` picks them.
    async fn finish_removals(
        &self,
        due: impl Fn(ServiceId, SocketAddr, &BackendState) -> bool,
    ) -> Result<(), Refusal> {
        let mut inner = self.lock().await;
        let spec = inner.spec.clone();
        let fate = |service, address, backend: &BackendState| {
            if due(service, address, backend) {
                Fate::Cut
            } else {
                keep(backend, u64::MAX)
            }
        };
        let now_ms = self.now_ms();
        let plan = diff::plan(&inner.state, &spec, now_ms, fate).map_err(Failure::from)?;
        inner.write(plan, now_ms)
    }
}

/// The fate of a backend that is not wanted: the deadline it has, or else this one.
fn keep(backend: &BackendState, deadline_ms: u64) -> Fate {
    Fate::DrainUntil {
        deadline_ms: backend.removal.map_or(deadline_ms, |r| r.deadline_ms),
    }
}

/// Why a change was not made.
enum Failure {
    Refused(Refusal),
    /// Rows are about to be free.
    Later {
        after_ms: u64,
        refusal: Refusal,
    },
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) | Failure::Later { refusal, .. } => refusal,
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<diff::Error> for Failure {
    fn from(error: diff::Error) -> Self {
        let refusal = Refusal::exhausted(error.to_string(), error.hint());
        match error {
            diff::Error::Rows {
                retry_in_ms: Some(after_ms),
                ..
            } => Self::Later { after_ms, refusal },
            _ => Self::Refused(refusal),
        }
    }
}

impl<D: Datapath> Inner<D> {
    fn change(&mut self, edit: &Edit, grace: Grace, now_ms: u64) -> Result<Change, Failure> {
        let mut spec = self.spec.clone();
        let mut outcome = edit.apply(&mut spec, &self.state)?;
        self.check(edit, &spec, &host::addresses())?;
        let in_flight = self.in_flight_at(edit.target());

        let aimed_at = |service: ServiceId, address: SocketAddr| match grace.target {
            Some((s, Some(a))) => (s, a) == (service, address),
            Some((s, None)) => s == service,
            None => false,
        };
        let fate = |service, address, backend: &BackendState| match backend.removal {
            Some(_) if !aimed_at(service, address) => keep(backend, u64::MAX),
            _ if grace.ms == 0 => Fate::Cut,
            _ => Fate::DrainUntil {
                deadline_ms: now_ms.saturating_add(grace.ms),
            },
        };
        // A table of many backends takes a while to compute: up to a second for a thousand.
        let plan = tokio::task::block_in_place(|| diff::plan(&self.state, &spec, now_ms, fate))?;
        self.write(plan, now_ms)?;
        self.spec = spec;

        let mut deadline_ms = None;
        if outcome == Outcome::Removing {
            if grace.ms == 0 {
                outcome = Outcome::Removed;
            } else {
                deadline_ms = Some(grace.ms);
            }
        }
        Ok(Change {
            outcome,
            in_flight,
            deadline_ms,
        })
    }

    /// Checks a changed spec. What was wrong before does not keep other things from being changed: an
    /// address may have come to this host since.
    fn check(&self, edit: &Edit, spec: &Spec, own: &[IpAddr]) -> Result<(), Refusal> {
        let limits = self.state.limits();
        let known = check(&self.spec, limits, own);
        let mut fresh = check(spec, limits, own)
            .into_iter()
            .filter(|problem| !known.iter().any(|k| k.message == problem.message));
        let Some(problem) = fresh.next() else {
            return Ok(());
        };
        let field = edit.field(spec, &problem.place);
        let more = match fresh.count() {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        Err(Refusal::invalid(
            &field,
            format!("{}{more}", problem.message),
            &problem.hint,
        ))
    }

    fn write(&mut self, plan: Plan, now_ms: u64) -> Result<(), Refusal> {
        let Err(why) = self.dataplane.write(&plan.writes) else {
            plan.commit(&mut self.state);
            return Ok(());
        };
        let undo = plan.undo(&mut self.state, now_ms);
        let mut message = format!("the maps were not changed: {why}");
        if let Err(e) = self.dataplane.write(&undo) {
            error!("writes to the maps failed and could not be undone: {e}");
            message = format!(
                "writes to the maps failed ({why}) and could not be undone ({e}): restart the agent"
            );
        }
        Err(Refusal::failed(message))
    }

    /// Flows in flight at a service or a backend, if there is such a one and it can be told.
    fn in_flight_at(&self, target: Option<(ServiceId, Option<SocketAddr>)>) -> Option<u64> {
        let (service, address) = target?;
        let slots: Vec<(u32, u32)> = self
            .state
            .service(service)?
            .backends
            .iter()
            .filter(|(a, _)| address.is_none_or(|address| address == **a))
            .map(|(_, b)| (b.slot.id, b.slot.generation))
            .collect();
        match self.dataplane.loads(&slots) {
            Ok(loads) => Some(loads.iter().map(|load| load.in_flight).sum()),
            Err(e) => {
                warn!("cannot read loads: {e}");
                None
            }
        }
    }
}

/// The place of a problem as a path within the request that made it.
fn field_of(place: &Place, service: Option<usize>, backend: Option<usize>) -> String {
    match (place.service == service, place.backend, backend) {
        // The request was about this backend.
        (true, Some(at), Some(mine)) if at == mine => place.field.to_owned(),
        // The request was about the service, with its backends.
        (true, Some(at), None) => format!("backends[{at}].{}", place.field),
        (true, None, None) => place.field.to_owned(),
        // Something else does not go with what the request names.
        _ => "address".to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
