//! From what is in the maps to what is wanted: the writes, in order, and the state after them.
//!
//! The packet program reads while the maps are written, so each write must leave them whole. What
//! makes a backend reachable comes after the backend, what takes it out of reach before its slot is
//! cleared:
//!
//! 1. an endpoint that gets a second user: the flag off its backends, then the endpoint away;
//! 2. new and changed backends; endpoints; the flag on backends that have become the only user;
//! 3. of each changed service the new rows, then the service itself: the swap; then new VIPs;
//! 4. VIPs without a service, removed services, then endpoints whose service or backend goes;
//! 5. cleared slots.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::SocketAddr,
};

use lb_common::{
    abi::{Endpoint, EndpointKey, Row, Service, backend_flags},
    p2c,
};

use super::{
    addr::{ServiceId, endpoint_key},
    change::MapWrite,
    spec::{ServiceSpec, Spec},
    state::{BackendState, Removal, ServiceState, State},
};

/// What becomes of a backend that is not wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It keeps its flows until they end, or until then.
    DrainUntil {
        /// When its flows are cut, in ms.
        deadline_ms: u64,
    },
    /// It goes now; its flows are cut.
    Cut,
}

/// Writes, and the state once all of them have succeeded.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The writes, in order; none: nothing changes in the maps.
    pub writes: Vec<MapWrite>,
    next: State,
}

/// Why a spec that is valid cannot be served now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No slot is free.
    #[error(
        "no backend slot is free for {backend}: all {limit} are in use, {removing} of them by backends being removed"
    )]
    Slots {
        /// The backend.
        backend: SocketAddr,
        /// Slots.
        limit: u32,
        /// Slots of backends that are being removed.
        removing: usize,
    },
    /// No candidate rows are free.
    #[error(
        "no {rows} free candidate rows in a line for service {service} (there are {limit} rows for all services)"
    )]
    Rows {
        /// The service.
        service: ServiceId,
        /// Rows needed.
        rows: u32,
        /// Rows of all services.
        limit: u32,
        /// After how long there will be room, if only just released rows are in the way.
        retry_in_ms: Option<u64>,
    },
}

impl Error {
    /// What to do.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Slots { removing: 0, .. } => "raise max_backends in [balancer] and restart",
            Self::Slots { .. } => {
                "wait for removals to end, cut them with `lb backend remove --now`, or raise max_backends in \
                 [balancer] and restart"
            }
            Self::Rows {
                retry_in_ms: Some(_),
                ..
            } => "try again in a second",
            Self::Rows { .. } => {
                "raise candidate_rows in [balancer] (a change needs old and new table at once) and restart"
            }
        }
    }
}

/// Plans the way from `state` to `spec`, which must have passed [`check`](super::check::check).
///
/// `fate` says what becomes of each backend that is in the state and not in the spec.
pub fn plan(
    state: &State,
    spec: &Spec,
    now_ms: u64,
    fate: impl Fn(ServiceId, SocketAddr, &BackendState) -> Fate,
) -> Result<Plan, Error> {
    let mut next = state.clone();
    let wanted: HashMap<ServiceId, &ServiceSpec> =
        spec.services.iter().map(|s| (s.id(), s)).collect();
    let mut cleared = give_slots(&mut next, spec)?;
    cleared.extend(dismiss(&mut next, &wanted, fate));
    let new_tables = place(&mut next, &wanted, now_ms)?;
    mark_stateless(&mut next);
    let writes = writes(state, &next, &cleared, &new_tables);
    next.services
        .retain(|_, service| service.value.is_some() || !service.backends.is_empty());
    for id in cleared {
        next.slots.release(id);
    }
    Ok(Plan { writes, next })
}

impl Plan {
    /// Takes over the state that the writes have made.
    pub fn commit(self, state: &mut State) {
        *state = self.next;
    }

    /// The writes that put the maps back to `state` after some of this plan's writes, in order, were
    /// made. They may remove what is not there.
    pub fn undo(&self, state: &mut State, now_ms: u64) -> Vec<MapWrite> {
        let mut writes = Vec::new();
        writes.extend(state.backends().map(|(_, _, b)| MapWrite::Backend(b.slot)));
        let endpoints = state.endpoints();
        writes.extend(
            endpoints
                .iter()
                .map(|(&key, &value)| MapWrite::Endpoint { key, value }),
        );
        writes.extend(state.services().filter_map(|(id, service)| {
            let value = service.value?;
            Some(MapWrite::Service {
                key: id.key(),
                value,
            })
        }));
        let vips = state.vips();
        writes.extend(vips.iter().map(|&addr| MapWrite::Vip { addr }));
        let gone = self.next.vips();
        let gone = gone.difference(&vips);
        writes.extend(gone.map(|&addr| MapWrite::RemoveVip { addr }));
        let live = |state: &State, id| state.service(id).is_some_and(|s| s.value.is_some());
        for (id, _) in self.next.services() {
            if live(&self.next, id) && !live(state, id) {
                writes.push(MapWrite::RemoveService { key: id.key() });
            }
        }
        for key in self.next.endpoints().into_keys() {
            if !endpoints.contains_key(&key) {
                writes.push(MapWrite::RemoveEndpoint { key });
            }
        }
        let owned: BTreeSet<u32> = state.slots().into_iter().map(|(id, _)| id).collect();
        for (id, _) in self.next.slots() {
            if !owned.contains(&id) {
                writes.push(MapWrite::ClearBackend { id });
            }
        }
        state.after_failure(&self.next, now_ms);
        writes
    }
}

/// Gives every wanted backend a slot, and takes over what is wanted of it. Returns the slots to clear, of
/// backends that have got another: flows in them are cut.
fn give_slots(next: &mut State, spec: &Spec) -> Result<Vec<u32>, Error> {
    let mut cleared = Vec::new();
    let removing = next.removals().count();
    for wanted in &spec.services {
        let service = next.services.entry(wanted.id()).or_default();
        for backend in &wanted.backends {
            if let Some(known) = service.backends.get_mut(&backend.address) {
                if known.suits(wanted) {
                    known.want(backend, wanted);
                    continue;
                }
                cleared.push(known.slot.id);
            }
            let slot = next.slots.take().ok_or(Error::Slots {
                backend: backend.address,
                limit: next.limits.backends,
                removing,
            })?;
            service
                .backends
                .insert(backend.address, BackendState::new(backend, wanted, slot));
        }
    }
    Ok(cleared)
}

/// Sends off the backends that are not wanted; returns the slots to clear.
fn dismiss(
    next: &mut State,
    wanted: &HashMap<ServiceId, &ServiceSpec>,
    fate: impl Fn(ServiceId, SocketAddr, &BackendState) -> Fate,
) -> Vec<u32> {
    let mut cleared = Vec::new();
    for (id, service) in &mut next.services {
        let keep: HashSet<SocketAddr> = wanted
            .get(id)
            .iter()
            .flat_map(|s| s.backends.iter().map(|b| b.address))
            .collect();
        service.backends.retain(|address, backend| {
            if keep.contains(address) {
                return true;
            }
            match fate(*id, *address, backend) {
                Fate::DrainUntil { deadline_ms } => {
                    backend.removal = Some(Removal { deadline_ms });
                    true
                }
                Fate::Cut => {
                    cleared.push(backend.slot.id);
                    false
                }
            }
        });
    }
    cleared
}

/// Sets every service's value, and finds a region for each table that changes; returns the services
/// whose table is new.
fn place(
    next: &mut State,
    wanted: &HashMap<ServiceId, &ServiceSpec>,
    now_ms: u64,
) -> Result<Vec<ServiceId>, Error> {
    let mut new_tables = Vec::new();
    let mut used: BTreeSet<u32> = next
        .services
        .values()
        .filter_map(|s| s.value.map(|value| value.id))
        .collect();
    for (id, service) in &mut next.services {
        let members = match wanted.get(id) {
            Some(_) => service.wanted_members(),
            None => Vec::new(),
        };
        let mut version = service.value.map_or(0, |value| value.version);
        if members != service.members || service.value.is_none() {
            version = version.wrapping_add(1);
            let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
            let old = service.region.take();
            if count > 0 {
                let rows = p2c::rows_for(count).max(service.most_rows);
                let region = next.regions.take(rows, now_ms).map_err(|e| Error::Rows {
                    service: *id,
                    rows,
                    limit: next.limits.candidate_rows,
                    retry_in_ms: e.retry_in_ms,
                })?;
                service.most_rows = rows;
                service.region = Some(region);
                new_tables.push(*id);
            }
            if let Some(old) = old {
                next.regions.release(old, now_ms);
            }
            service.members = members;
        }
        service.value = wanted.get(id).map(|spec| Service {
            rows_offset: service.region.map_or(0, |region| region.offset),
            rows: service.region.map_or(0, |region| region.rows),
            version,
            id: service
                .value
                .map_or_else(|| lowest_unused(&mut used), |value| value.id),
            draw: spec.draw.abi(),
            choices: spec.choices,
            view: spec.load_view.abi(),
            flags: 0,
            source_interval_ns: 0,
        });
    }
    Ok(new_tables)
}

/// Takes the lowest number that is not used.
fn lowest_unused(used: &mut BTreeSet<u32>) -> u32 {
    let id = (0..).find(|id| !used.contains(id)).unwrap_or(u32::MAX);
    used.insert(id);
    id
}

/// Marks the backends whose endpoint no other backend uses, in services that are live. Replies that go
/// straight to the client have the VIP as source, so backends of such services use none.
fn mark_stateless(next: &mut State) {
    let mut users: HashMap<EndpointKey, u32> = HashMap::new();
    let replies = |backend: &BackendState| backend.slot.manner & backend_flags::ONE_WAY == 0;
    for (service, address, backend) in next.backends() {
        if !replies(backend) {
            continue;
        }
        *users
            .entry(endpoint_key(address, service.protocol))
            .or_default() += 1;
    }
    for (id, service) in &mut next.services {
        let live = service.value.is_some();
        for (address, backend) in &mut service.backends {
            let key = endpoint_key(*address, id.protocol);
            backend.slot.stateless = live && replies(backend) && users.get(&key) == Some(&1);
        }
    }
}

/// The writes from `old` to `next`, in the order of the module's description.
fn writes(old: &State, next: &State, cleared: &[u32], new_tables: &[ServiceId]) -> Vec<MapWrite> {
    let mut lose_flag = Vec::new();
    let mut lose_endpoint = Vec::new();
    let mut backends = Vec::new();
    let mut gain_flag = Vec::new();
    for (id, address, backend) in next.backends() {
        let slot = backend.slot;
        let before = old.backend(id, address);
        let Some(before) = before.filter(|before| before.slot.id == slot.id) else {
            backends.push(MapWrite::Backend(slot));
            continue;
        };
        let live = next.service(id).is_some_and(|s| s.value.is_some());
        match (before.slot.stateless, slot.stateless) {
            (true, false) if live => {
                lose_flag.push(MapWrite::Backend(slot));
                lose_endpoint.push(endpoint_key(address, id.protocol));
            }
            (false, true) => gain_flag.push(MapWrite::Backend(slot)),
            _ if before.slot != slot => backends.push(MapWrite::Backend(slot)),
            _ => {}
        }
    }
    let (had, has) = (old.endpoints(), next.endpoints());
    let put = |(&key, &value): (&EndpointKey, &Endpoint)| MapWrite::Endpoint { key, value };
    let remove = |key: EndpointKey| MapWrite::RemoveEndpoint { key };

    let mut writes = lose_flag;
    writes.extend(lose_endpoint.iter().copied().map(remove));
    writes.extend(backends);
    writes.extend(
        has.iter()
            .filter(|&(key, value)| had.get(key) != Some(value))
            .map(put),
    );
    writes.extend(gain_flag);
    for (id, service) in next.services() {
        if new_tables.contains(&id)
            && let Some(region) = service.region
        {
            writes.push(MapWrite::Rows {
                offset: region.offset,
                rows: table(next.seed, region.rows, service),
            });
        }
        let before = old.service(id).and_then(|s| s.value);
        if let Some(value) = service.value
            && before != Some(value)
        {
            writes.push(MapWrite::Service {
                key: id.key(),
                value,
            });
        }
    }
    let (had_vips, has_vips) = (old.vips(), next.vips());
    let new_vips = has_vips.difference(&had_vips);
    writes.extend(new_vips.map(|&addr| MapWrite::Vip { addr }));
    let gone_vips = had_vips.difference(&has_vips);
    writes.extend(gone_vips.map(|&addr| MapWrite::RemoveVip { addr }));
    for (id, service) in old.services() {
        let stays = next.service(id).is_some_and(|s| s.value.is_some());
        if service.value.is_some() && !stays {
            writes.push(MapWrite::RemoveService { key: id.key() });
        }
    }
    writes.extend(
        had.into_keys()
            .filter(|key| !has.contains_key(key) && !lose_endpoint.contains(key))
            .map(remove),
    );
    writes.extend(cleared.iter().map(|&id| MapWrite::ClearBackend { id }));
    writes
}

fn table(seed: u64, rows: u32, service: &ServiceState) -> Vec<Row> {
    (0..rows)
        .map(|index| p2c::row(seed, index, &service.members))
        .collect()
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
