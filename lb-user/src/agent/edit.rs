//! The changes that can be asked for, each as an edit of the spec.

use std::{fmt, net::SocketAddr};

use super::{field_of, refusal::Refusal};
use crate::{
    control::api::{Outcome, ServicePatch},
    model::{
        addr::ServiceId,
        check::Place,
        spec::{AdminState, BackendSpec, ServiceSpec, Spec},
        state::State,
    },
};

/// A change.
#[derive(Clone, Debug)]
pub enum Edit {
    /// All that is wanted.
    Replace(Spec),
    /// Add a service.
    AddService(ServiceSpec),
    /// Change a service's settings.
    SetService(ServiceId, ServicePatch),
    /// Remove a service.
    RemoveService(ServiceId),
    /// Add a backend.
    AddBackend(ServiceId, BackendSpec),
    /// Drain or resume a backend.
    SetState(ServiceId, SocketAddr, AdminState),
    /// Change a backend's weight.
    SetWeight(ServiceId, SocketAddr, u16),
    /// Remove a backend.
    RemoveBackend(ServiceId, SocketAddr),
}

impl Edit {
    /// Edits the spec. `state` knows what is still being removed.
    pub fn apply(&self, spec: &mut Spec, state: &State) -> Result<Outcome, Refusal> {
        let before = spec.clone();
        let outcome = match self {
            Self::Replace(new) => {
                *spec = new.clone();
                Outcome::Changed
            }
            Self::AddService(new) => return add_service(spec, new),
            Self::SetService(id, patch) => {
                let service = service_mut(spec, *id)?;
                service.mode = patch.mode.unwrap_or(service.mode);
                if let Some(sources) = &patch.sources {
                    service.sources.clone_from(sources);
                }
                service.draw = patch.draw.unwrap_or(service.draw);
                service.choices = patch.choices.unwrap_or(service.choices);
                service.load_view = patch.load_view.unwrap_or(service.load_view);
                Outcome::Changed
            }
            Self::RemoveService(id) => {
                if let Some(at) = spec.position(*id) {
                    spec.services.remove(at);
                } else if state.service(*id).is_none() {
                    return Err(no_service(*id));
                }
                return Ok(Outcome::Removing);
            }
            Self::AddBackend(id, new) => return add_backend(spec, state, *id, new),
            Self::SetState(id, address, wanted) => {
                backend_mut(spec, *id, *address)?.state = *wanted;
                Outcome::Changed
            }
            Self::SetWeight(id, address, weight) => {
                backend_mut(spec, *id, *address)?.weight = *weight;
                Outcome::Changed
            }
            Self::RemoveBackend(id, address) => {
                if let Some(service) = spec.service_mut(*id)
                    && service.backend(*address).is_some()
                {
                    service.backends.retain(|b| b.address != *address);
                } else if state.backend(*id, *address).is_none() {
                    return Err(no_backend(spec, *id, *address));
                }
                return Ok(Outcome::Removing);
            }
        };
        Ok(if *spec == before {
            Outcome::Unchanged
        } else {
            outcome
        })
    }

    /// The service, and maybe the one backend of it, that the change is about.
    pub fn target(&self) -> Option<(ServiceId, Option<SocketAddr>)> {
        match self {
            Self::Replace(_) => None,
            Self::AddService(service) => Some((service.id(), None)),
            Self::SetService(id, _) | Self::RemoveService(id) => Some((*id, None)),
            Self::AddBackend(id, backend) => Some((*id, Some(backend.address))),
            Self::SetState(id, address, _)
            | Self::SetWeight(id, address, _)
            | Self::RemoveBackend(id, address) => Some((*id, Some(*address))),
        }
    }

    /// The field of the request that a problem of the edited spec is about.
    pub fn field(&self, spec: &Spec, place: &Place) -> String {
        let Some((id, address)) = self.target() else {
            return place.path();
        };
        if place.service.is_none() {
            return place.field.to_owned();
        }
        let service = spec.position(id);
        let backend = address.and_then(|address| {
            let backends = &spec.services.get(service?)?.backends;
            backends.iter().position(|b| b.address == address)
        });
        field_of(place, service, backend)
    }
}

impl fmt::Display for Edit {
    /// As the log says it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replace(spec) => write!(f, "set up {} services", spec.services.len()),
            Self::AddService(service) => {
                let backends = service.backends.len();
                write!(f, "add service {} with {backends} backends", service.id())
            }
            Self::SetService(id, _) => write!(f, "change service {id}"),
            Self::RemoveService(id) => write!(f, "remove service {id}"),
            Self::AddBackend(id, backend) => write!(
                f,
                "add backend {} of weight {} to {id}",
                backend.address, backend.weight
            ),
            Self::SetState(id, address, AdminState::Up) => {
                write!(f, "resume backend {address} of {id}")
            }
            Self::SetState(id, address, AdminState::Drain) => {
                write!(f, "drain backend {address} of {id}")
            }
            Self::SetWeight(id, address, weight) => {
                write!(f, "set weight of backend {address} of {id} to {weight}")
            }
            Self::RemoveBackend(id, address) => write!(f, "remove backend {address} of {id}"),
        }
    }
}

fn add_service(spec: &mut Spec, new: &ServiceSpec) -> Result<Outcome, Refusal> {
    let id = new.id();
    match spec.service(id) {
        None => {
            spec.services.push(new.clone());
            Ok(Outcome::Created)
        }
        Some(old) if old == new => Ok(Outcome::Unchanged),
        Some(old) if old.same_settings(new) => Err(Refusal::conflict(
            "backends",
            format!("service {id} is there already, with other backends"),
            "change them with `lb backend add`, `set-weight` and `remove`",
        )),
        Some(_) => Err(Refusal::conflict(
            "address",
            format!("service {id} is there already, with other settings"),
            "change them with `lb service set`",
        )),
    }
}

fn add_backend(
    spec: &mut Spec,
    state: &State,
    id: ServiceId,
    new: &BackendSpec,
) -> Result<Outcome, Refusal> {
    let service = service_mut(spec, id)?;
    match service.backend(new.address) {
        None => {
            service.backends.push(new.clone());
            // One that was being removed stays after all, with its flows.
            Ok(match state.backend(id, new.address) {
                Some(_) => Outcome::Changed,
                None => Outcome::Created,
            })
        }
        Some(old) if old == new => Ok(Outcome::Unchanged),
        Some(old) if old.weight != new.weight => Err(Refusal::conflict(
            "weight",
            format!(
                "backend {} of {id} is there already, with weight {}",
                new.address, old.weight
            ),
            "change it with `lb backend set-weight`",
        )),
        Some(old) => Err(Refusal::conflict(
            "state",
            format!(
                "backend {} of {id} is there already, with state {}",
                new.address, old.state
            ),
            "change it with `lb backend drain` or `lb backend resume`",
        )),
    }
}

fn service_mut(spec: &mut Spec, id: ServiceId) -> Result<&mut ServiceSpec, Refusal> {
    spec.service_mut(id).ok_or_else(|| no_service(id))
}

fn backend_mut(
    spec: &mut Spec,
    id: ServiceId,
    address: SocketAddr,
) -> Result<&mut BackendSpec, Refusal> {
    // Looked for first: a borrow that is returned cannot be given up for the error.
    if spec.service(id).and_then(|s| s.backend(address)).is_none() {
        return Err(no_backend(spec, id, address));
    }
    spec.service_mut(id)
        .and_then(|service| service.backend_mut(address))
        .ok_or_else(|| no_service(id))
}

/// There is no such service.
pub(super) fn no_service(id: ServiceId) -> Refusal {
    Refusal::not_found(
        format!("there is no service {id}"),
        "`lb service list` shows those that there are; the protocol is part of the name",
    )
}

fn no_backend(spec: &Spec, id: ServiceId, address: SocketAddr) -> Refusal {
    if spec.service(id).is_none() {
        return no_service(id);
    }
    Refusal::not_found(
        format!("service {id} has no backend {address}"),
        "`lb backend list` shows those that there are",
    )
}
