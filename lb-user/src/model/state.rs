//! What is in the maps.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
};

use lb_common::{
    abi::{Endpoint, EndpointKey, Service, backend_flags},
    p2c::Member,
};

use super::{
    addr::{ServiceId, address_words, endpoint_key},
    change::BackendSlot,
    check::Limits,
    regions::{Region, Regions},
    slots::Slots,
    spec::{AdminState, BackendSpec, ServiceSpec},
};

/// The maps' contents as the agent knows them. Changed only by committing a
/// [`Plan`](super::diff::Plan) whose writes succeeded.
#[derive(Clone, Debug)]
pub struct State {
    pub(super) limits: Limits,
    /// Seed of the candidate tables.
    pub(super) seed: u64,
    pub(super) services: BTreeMap<ServiceId, ServiceState>,
    pub(super) slots: Slots,
    pub(super) regions: Regions,
}

/// A service, or what is left of one.
#[derive(Clone, Debug, Default)]
pub struct ServiceState {
    /// Its value in the service map; none: the service is removed and only flows remain.
    pub value: Option<Service>,
    /// Where its candidates are.
    pub(super) region: Option<Region>,
    /// Most rows it has had; its table never shrinks, so a backend that goes and comes back finds
    /// the rows as they were.
    pub(super) most_rows: u32,
    /// The backends in its candidates, in order of address.
    pub(super) members: Vec<Member>,
    /// Its backends, those being removed included.
    pub backends: BTreeMap<SocketAddr, BackendState>,
}

/// A backend in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendState {
    /// What was last written to the slot.
    pub slot: BackendSlot,
    /// The weight wanted, which may be 0.
    pub weight: u16,
    /// Whether it is wanted to take flows.
    pub state: AdminState,
    /// It is being removed.
    pub removal: Option<Removal>,
}

/// A removal that waits for flows to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// When the flows that remain are cut.
    pub deadline_ms: u64,
}

impl BackendState {
    /// Whether it takes new flows.
    pub fn takes_flows(&self) -> bool {
        self.removal.is_none() && self.state == AdminState::Up && self.weight > 0
    }
}

impl State {
    /// Empty maps.
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self {
            limits,
            seed,
            services: BTreeMap::new(),
            slots: Slots::new(limits.backends),
            regions: Regions::new(limits.candidate_rows),
        }
    }

    /// How much the maps hold.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Every service, those included of which only flows remain.
    pub fn services(&self) -> impl Iterator<Item = (ServiceId, &ServiceState)> {
        self.services.iter().map(|(id, service)| (*id, service))
    }

    /// A service.
    pub fn service(&self, id: ServiceId) -> Option<&ServiceState> {
        self.services.get(&id)
    }

    /// A backend.
    pub fn backend(&self, service: ServiceId, address: SocketAddr) -> Option<&BackendState> {
        self.services.get(&service)?.backends.get(&address)
    }

    /// Every backend.
    pub fn backends(&self) -> impl Iterator<Item = (ServiceId, SocketAddr, &BackendState)> {
        self.services.iter().flat_map(|(id, service)| {
            service
                .backends
                .iter()
                .map(|(address, backend)| (*id, *address, backend))
        })
    }

    /// Slot and generation of every backend.
    pub fn slots(&self) -> Vec<(u32, u32)> {
        self.backends()
            .map(|(_, _, backend)| (backend.slot.id, backend.slot.generation))
            .collect()
    }

    /// Backends that are being removed.
    pub fn removals(
        &self,
    ) -> impl Iterator<Item = (ServiceId, SocketAddr, &BackendState, Removal)> {
        self.backends().filter_map(|(service, address, backend)| {
            backend
                .removal
                .map(|removal| (service, address, backend, removal))
        })
    }

    /// The endpoint map: the endpoints that a single backend uses, if its service is live.
    pub(super) fn endpoints(&self) -> HashMap<EndpointKey, Endpoint> {
        self.backends()
            .filter(|(_, _, backend)| backend.slot.stateless)
            .map(|(service, address, backend)| {
                let value = Endpoint {
                    service: service.key(),
                    backend: backend.slot.id,
                };
                (endpoint_key(address, service.protocol), value)
            })
            .collect()
    }

    /// The VIP map: the addresses that have a service.
    pub(super) fn vips(&self) -> BTreeSet<[u32; 4]> {
        self.services()
            .filter(|(_, service)| service.value.is_some())
            .map(|(id, _)| id.key().addr)
            .collect()
    }

    /// The state after the writes of a plan failed at some point and were undone: as before, except
    /// that generations and rows which may have been seen are not given out again.
    pub(super) fn after_failure(&mut self, failed: &Self, now_ms: u64) {
        let owned: BTreeSet<u32> = self.slots().into_iter().map(|(id, _)| id).collect();
        self.slots = failed.slots.clone();
        self.slots.own_exactly(&owned);
        self.regions.rest_all(now_ms);
    }
}

impl ServiceState {
    /// Its backends that take new flows, as the candidate table wants them.
    pub(super) fn wanted_members(&self) -> Vec<Member> {
        self.backends
            .values()
            .filter(|backend| backend.takes_flows())
            .map(|backend| Member {
                id: backend.slot.id,
                key: lb_common::p2c::member_key(&backend.slot.addr, backend.slot.port),
                weight: backend.slot.weight,
            })
            .collect()
    }
}

impl BackendState {
    /// A backend as wanted by a service, in a slot.
    pub(super) fn new(
        spec: &BackendSpec,
        service: &ServiceSpec,
        (id, generation): (u32, u32),
    ) -> Self {
        let key = endpoint_key(spec.address, service.protocol);
        let mut backend = Self {
            slot: BackendSlot {
                vip: address_words(service.address.ip()),
                vip_port: service.address.port().to_be(),
                manner: service.mode.manner(),
                ..BackendSlot::new(id, generation, key.addr, key.port)
            },
            weight: 0,
            state: AdminState::Up,
            removal: None,
        };
        backend.want(spec, service);
        backend
    }

    /// Takes over what is wanted.
    pub(super) fn want(&mut self, spec: &BackendSpec, service: &ServiceSpec) {
        self.weight = spec.weight;
        self.state = spec.state;
        self.removal = None;
        // Weight 0 takes it out of the candidates; the slot keeps a weight that can be divided by.
        if spec.weight > 0 {
            self.slot.weight = u32::from(spec.weight);
        }
        let source = service.source(spec.address);
        self.slot.source = source.map(|prefix| address_words(prefix.address()));
        self.slot.source_bits = source.map_or(0, |prefix| u32::from(prefix.free_bits()));
    }

    /// Whether flows in its slot are sent as the service has it. If not, it needs a slot of its own for
    /// the new ones: what its flow entries hold is of another mode.
    pub(super) fn suits(&self, service: &ServiceSpec) -> bool {
        self.slot.manner & backend_flags::MODE == service.mode.manner()
    }
}
