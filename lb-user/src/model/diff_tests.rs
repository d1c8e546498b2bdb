use super::*;
use crate::model::{
    addr::address_words,
    change::BackendSlot,
    check::Limits,
    regions::REST_MS,
    spec::{AdminState, BackendSpec, LoadView, Mode},
};
use lb_common::abi::{NO_BACKEND, ServiceKey};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    services: 8,
    backends: 24,
    candidate_rows: 1 << 16,
};

/// The maps, as the writes leave them.
#[derive(Clone, Debug, Default, PartialEq)]
struct Maps {
    backends: HashMap<u32, BackendSlot>,
    rows: HashMap<u32, Row>,
    services: HashMap<ServiceKey, Service>,
    endpoints: HashMap<EndpointKey, Endpoint>,
    vips: BTreeSet<[u32; 4]>,
}

impl Maps {
    fn apply(&mut self, write: &MapWrite) {
        match write.clone() {
            MapWrite::Backend(slot) => {
                self.backends.insert(slot.id, slot);
            }
            MapWrite::ClearBackend { id } => {
                self.backends.remove(&id);
            }
            MapWrite::Rows { offset, rows } => {
                for service in self.services.values() {
                    let (from, to) = (service.rows_offset, service.rows_offset + service.rows);
                    assert!(
                        offset >= to || offset + rows.len() as u32 <= from,
                        "rows in use are overwritten"
                    );
                }
                self.rows.extend((offset..).zip(rows));
            }
            MapWrite::Service { key, value } => {
                self.services.insert(key, value);
            }
            MapWrite::RemoveService { key } => {
                self.services.remove(&key);
            }
            MapWrite::Vip { addr } => {
                self.vips.insert(addr);
            }
            MapWrite::RemoveVip { addr } => {
                self.vips.remove(&addr);
            }
            MapWrite::Endpoint { key, value } => {
                self.endpoints.insert(key, value);
            }
            MapWrite::RemoveEndpoint { key } => {
                self.endpoints.remove(&key);
            }
        }
    }

    /// Ids in the rows of a service.
    fn candidates(&self, service: &Service) -> BTreeSet<u32> {
        (service.rows_offset..service.rows_offset + service.rows)
            .flat_map(|at| self.rows[&at])
            .filter(|&id| id != NO_BACKEND)
            .collect()
    }

    /// What holds after every single write.
    fn assert_whole(&self) {
        let mut used: Vec<(u32, u32)> = Vec::new();
        for service in self.services.values().filter(|s| s.rows > 0) {
            let region = (service.rows_offset, service.rows_offset + service.rows);
            assert!(region.1 <= LIMITS.candidate_rows);
            assert!(used.iter().all(|r| region.1 <= r.0 || r.1 <= region.0));
            used.push(region);
            let candidates = self.candidates(service);
            assert!(!candidates.is_empty());
            assert!(candidates.iter().all(|id| self.backends.contains_key(id)));
        }
        for vip in &self.vips {
            assert!(self.services.keys().any(|key| key.addr == *vip));
        }
        for (key, endpoint) in &self.endpoints {
            let slot = &self.backends[&endpoint.backend];
            assert_eq!((slot.addr, slot.port), (key.addr, key.port));
        }
    }

    /// What holds once all writes of a plan are made.
    fn assert_serves(&self, spec: &Spec, state: &State) {
        assert_eq!(self.services.len(), spec.services.len());
        for wanted in &spec.services {
            let service = &self.services[&wanted.id().key()];
            assert_eq!(
                (service.draw, service.choices, service.view),
                (wanted.draw.abi(), wanted.choices, wanted.load_view.abi())
            );
            for backend in &wanted.backends {
                let slot = state.backend(wanted.id(), backend.address).unwrap().slot;
                assert_eq!(slot.manner, wanted.mode.manner());
                let source = wanted.source(backend.address);
                assert_eq!(slot.source, source.map(|s| address_words(s.address())));
                assert_eq!(
                    slot.source_bits,
                    source.map_or(0, |s| u32::from(s.free_bits()))
                );
            }
            let takers: BTreeSet<u32> = wanted
                .backends
                .iter()
                .filter(|b| b.takes_flows())
                .map(|b| state.backend(wanted.id(), b.address).unwrap().slot.id)
                .collect();
            let expected = if service.rows > 0 {
                self.candidates(service)
            } else {
                BTreeSet::new()
            };
            assert_eq!(expected, takers);
            assert!(service.rows >= p2c::rows_for(takers.len() as u32));
        }
        let vips: BTreeSet<_> = self.services.keys().map(|key| key.addr).collect();
        assert_eq!(self.vips, vips);
        let slots: HashMap<u32, BackendSlot> = state
            .backends()
            .map(|(_, _, b)| (b.slot.id, b.slot))
            .collect();
        assert_eq!(self.backends, slots);
        let flagged = slots.values().filter(|s| s.stateless).count();
        assert_eq!(self.endpoints.len(), flagged);
        for (key, endpoint) in &self.endpoints {
            assert!(self.backends[&endpoint.backend].stateless);
            assert!(self.services.contains_key(&endpoint.service));
            let users = state
                .backends()
                .filter(|(_, _, b)| b.slot.manner == 0)
                .filter(|(id, address, _)| endpoint_key(*address, id.protocol) == *key)
                .count();
            assert_eq!(users, 1);
        }
    }

    /// The maps without rows that no service points to.
    fn seen(mut self) -> Self {
        let pointed: Vec<_> = self
            .services
            .values()
            .map(|s| s.rows_offset..s.rows_offset + s.rows)
            .collect();
        self.rows
            .retain(|at, _| pointed.iter().any(|r| r.contains(at)));
        self
    }
}

fn service(vip: &str, backends: &[(&str, u16)]) -> ServiceSpec {
    let mut service = ServiceSpec::new(vip.parse().unwrap());
    service.backends = backends
        .iter()
        .map(|&(address, weight)| BackendSpec {
            weight,
            ..BackendSpec::new(address.parse().unwrap())
        })
        .collect();
    service
}

fn spec(services: &[ServiceSpec]) -> Spec {
    Spec {
        services: services.to_vec(),
    }
}

fn drain(_: ServiceId, _: SocketAddr, _: &BackendState) -> Fate {
    Fate::DrainUntil { deadline_ms: 5000 }
}

fn cut(_: ServiceId, _: SocketAddr, _: &BackendState) -> Fate {
    Fate::Cut
}

/// Plans, applies and commits, with a look after each write.
fn step(
    state: &mut State,
    maps: &mut Maps,
    spec: &Spec,
    now_ms: u64,
    fate: fn(ServiceId, SocketAddr, &BackendState) -> Fate,
) -> Vec<MapWrite> {
    let plan = plan(state, spec, now_ms, fate).unwrap();
    for write in &plan.writes {
        maps.apply(write);
        maps.assert_whole();
    }
    let writes = plan.writes.clone();
    plan.commit(state);
    maps.assert_serves(spec, state);
    writes
}

#[test]
fn a_change_swaps_the_table_in_one_write() {
    let (mut state, mut maps) = (State::new(LIMITS, 1), Maps::default());
    let one = spec(&[service("192.0.2.1:80", &[("10.0.0.1:80", 1)])]);
    step(&mut state, &mut maps, &one, 0, drain);
    let two = spec(&[service(
        "192.0.2.1:80",
        &[("10.0.0.1:80", 1), ("10.0.0.2:80", 3)],
    )]);
    let writes = step(&mut state, &mut maps, &two, 1, drain);
    let [
        MapWrite::Backend(_),
        MapWrite::Endpoint { .. },
        MapWrite::Rows { offset, rows },
        MapWrite::Service { value, .. },
    ] = &writes[..]
    else {
        panic!("{writes:?}");
    };
    assert_eq!(
        (value.rows_offset, value.rows),
        (*offset, rows.len() as u32)
    );
    assert_eq!(value.version, 2);
}

#[test]
fn settings_alone_keep_the_table() {
    let (mut state, mut maps) = (State::new(LIMITS, 1), Maps::default());
    let mut wanted = spec(&[service("192.0.2.1:80", &[("10.0.0.1:80", 1)])]);
    step(&mut state, &mut maps, &wanted, 0, drain);
    wanted.services[0].choices = 1;
    wanted.services[0].load_view = LoadView::Published;
    let writes = step(&mut state, &mut maps, &wanted, 0, drain);
    let [MapWrite::Service { value, .. }] = writes[..] else {
        panic!("{writes:?}");
    };
    assert_eq!((value.version, value.choices), (1, 1));
}

/// What flow entries hold is of the mode in which they were made.
#[test]
fn another_mode_gives_other_slots_and_cuts() {
    let (mut state, mut maps) = (State::new(LIMITS, 7), Maps::default());
    let nat = service("192.0.2.1:80", &[("10.0.0.1:80", 1), ("10.0.0.2:80", 1)]);
    step(
        &mut state,
        &mut maps,
        &spec(std::slice::from_ref(&nat)),
        0,
        drain,
    );
    assert_eq!(maps.endpoints.len(), 2);
    let before = state.slots();
    let dsr = ServiceSpec {
        mode: Mode::Dsr,
        ..nat.clone()
    };
    step(
        &mut state,
        &mut maps,
        &spec(std::slice::from_ref(&dsr)),
        0,
        drain,
    );
    let after = state.slots();
    assert_eq!(after.len(), 2);
    assert!(after.iter().all(|slot| !before.contains(slot)));
    assert!(maps.endpoints.is_empty());
    assert_eq!(state.removals().count(), 0);

    // A removed service that comes back in another mode, too.
    step(&mut state, &mut maps, &spec(&[]), 0, drain);
    assert_eq!(state.slots(), after);
    step(&mut state, &mut maps, &spec(&[nat]), REST_MS, drain);
    assert!(state.slots().iter().all(|slot| !after.contains(slot)));
    assert_eq!(maps.endpoints.len(), 2);
}

#[test]
fn a_table_does_not_shrink() {
    let limits = Limits {
        backends: 40,
        ..LIMITS
    };
    let (mut state, mut maps) = (State::new(limits, 1), Maps::default());
    let names: Vec<String> = (1..=40).map(|i| format!("10.0.0.{i}:80")).collect();
    let backends: Vec<(&str, u16)> = names.iter().map(|b| (b.as_str(), 1)).collect();
    let rows = |maps: &Maps| maps.services.values().next().unwrap().rows;
    for (count, expected) in [(1, 1), (40, 4096), (2, 4096), (0, 0), (1, 4096)] {
        let wanted = spec(&[service("192.0.2.1:80", &backends[..count])]);
        step(&mut state, &mut maps, &wanted, 0, drain);
        assert_eq!(rows(&maps), expected, "{count} backends");
    }
}

#[test]
fn a_removed_backend_keeps_its_slot_until_cut() {
    let (mut state, mut maps) = (State::new(LIMITS, 1), Maps::default());
    let both = spec(&[service(
        "192.0.2.1:80",
        &[("10.0.0.1:80", 1), ("10.0.0.2:80", 1)],
    )]);
    let one = spec(&[service("192.0.2.1:80", &[("10.0.0.1:80", 1)])]);
    step(&mut state, &mut maps, &both, 0, drain);
    step(&mut state, &mut maps, &one, 0, drain);
    let (_, address, gone, removal) = state.removals().next().unwrap();
    assert_eq!((address.port(), removal.deadline_ms), (80, 5000));
    let slot = gone.slot;
    assert_eq!(maps.backends.len(), 2);

    // Wanted again before the end: as if nothing had been.
    step(&mut state, &mut maps, &both, 1, drain);
    assert_eq!(state.removals().count(), 0);
    assert_eq!(maps.backends[&slot.id], slot);

    step(&mut state, &mut maps, &one, 2, drain);
    let writes = step(&mut state, &mut maps, &one, 3, cut);
    assert_eq!(writes.last(), Some(&MapWrite::ClearBackend { id: slot.id }));
    let again = step(&mut state, &mut maps, &both, 4, drain);
    assert!(matches!(again[0], MapWrite::Backend(s) if s.id != slot.id));
}

#[test]
fn weight_zero_and_drain_take_no_flows_but_keep_the_slot() {
    let (mut state, mut maps) = (State::new(LIMITS, 1), Maps::default());
    let mut wanted = spec(&[service(
        "192.0.2.1:80",
        &[("10.0.0.1:80", 7), ("10.0.0.2:80", 1)],
    )]);
    step(&mut state, &mut maps, &wanted, 0, drain);
    let id = wanted.services[0].id();
    wanted.services[0].backends[0].weight = 0;
    wanted.services[0].backends[1].state = AdminState::Drain;
    step(&mut state, &mut maps, &wanted, 0, drain);
    let backend = state.backend(id, "10.0.0.1:80".parse().unwrap()).unwrap();
    assert_eq!((backend.weight, backend.slot.weight), (0, 7));
    assert_eq!(maps.services[&id.key()].rows, 0);
}

#[test]
fn a_removed_service_leaves_only_flows() {
    let (mut state, mut maps) = (State::new(LIMITS, 1), Maps::default());
    let wanted = spec(&[service("192.0.2.1:80", &[("10.0.0.1:80", 1)])]);
    step(&mut state, &mut maps, &wanted, 0, drain);
    step(&mut state, &mut maps, &Spec::default(), 0, drain);
    assert_eq!(state.services().count(), 1);
    step(&mut state, &mut maps, &Spec::default(), 0, cut);
    assert_eq!(state.services().count(), 0);
    assert_eq!(maps.seen(), Maps::default());
}

#[test]
fn an_address_is_a_vip_while_it_has_a_service() {
    let (mut state, mut maps) = (State::new(LIMITS, 1), Maps::default());
    let [web, tls] = ["192.0.2.1:80", "192.0.2.1:443"].map(|vip| service(vip, &[]));
    let addr = web.id().key().addr;
    let both = spec(&[web, tls.clone()]);
    let writes = step(&mut state, &mut maps, &both, 0, drain);
    assert_eq!(writes.last(), Some(&MapWrite::Vip { addr }));
    let of_vips = |writes: Vec<MapWrite>| {
        let is = |w: &MapWrite| matches!(w, MapWrite::Vip { .. } | MapWrite::RemoveVip { .. });
        writes.into_iter().filter(is).collect::<Vec<_>>()
    };
    let writes = step(&mut state, &mut maps, &spec(&[tls]), 0, drain);
    assert_eq!(of_vips(writes), []);
    let writes = step(&mut state, &mut maps, &Spec::default(), 0, drain);
    assert_eq!(of_vips(writes), [MapWrite::RemoveVip { addr }]);
}

#[test]
fn an_endpoint_of_two_services_tells_nothing() {
    let (mut state, mut maps) = (State::new(LIMITS, 1), Maps::default());
    let a = service("192.0.2.1:80", &[("10.0.0.1:80", 1)]);
    let b = service("192.0.2.2:80", &[("10.0.0.1:80", 1)]);
    step(
        &mut state,
        &mut maps,
        &spec(std::slice::from_ref(&a)),
        0,
        drain,
    );
    assert_eq!(maps.endpoints.len(), 1);
    let writes = step(&mut state, &mut maps, &spec(&[a.clone(), b]), 0, drain);
    assert!(matches!(writes[0], MapWrite::Backend(slot) if !slot.stateless));
    assert!(matches!(writes[1], MapWrite::RemoveEndpoint { .. }));
    assert_eq!(maps.endpoints.len(), 0);
    step(
        &mut state,
        &mut maps,
        &spec(std::slice::from_ref(&a)),
        0,
        drain,
    );
    assert_eq!(maps.endpoints.len(), 0, "flows of the other remain");
    step(&mut state, &mut maps, &spec(&[a]), 0, cut);
    assert_eq!(maps.endpoints.len(), 1);
}

#[test]
fn what_is_used_up_is_named() {
    let tight = Limits {
        services: 8,
        backends: 2,
        candidate_rows: 2048,
    };
    let mut state = State::new(tight, 1);
    let full = spec(&[service(
        "192.0.2.1:80",
        &[("10.0.0.1:80", 1), ("10.0.0.2:80", 1)],
    )]);
    plan(&state, &full, 0, drain).unwrap().commit(&mut state);
    let other = spec(&[service("192.0.2.1:80", &[("10.0.0.3:80", 1)])]);
    let error = plan(&state, &other, 0, drain).unwrap_err();
    assert!(matches!(error, Error::Slots { limit: 2, .. }), "{error}");
    let less = spec(&[service("192.0.2.1:80", &[("10.0.0.1:80", 1)])]);
    let error = plan(&state, &less, 0, drain).unwrap_err();
    assert_eq!(
        error,
        Error::Rows {
            service: full.services[0].id(),
            rows: 2048,
            limit: 2048,
            retry_in_ms: None
        }
    );
    plan(&state, &spec(&[service("192.0.2.1:80", &[])]), 0, drain)
        .unwrap()
        .commit(&mut state);
    let error = plan(&state, &less, 0, drain).unwrap_err();
    assert!(matches!(
        error,
        Error::Rows {
            retry_in_ms: Some(REST_MS),
            ..
        }
    ));
}

fn any_service(vip: u8) -> impl Strategy<Value = ServiceSpec> {
    let backend = (0_u8..6, 0_u16..4, any::<bool>());
    let mode = prop::sample::select(vec![Mode::Nat, Mode::Nat, Mode::Dsr, Mode::Ipip]);
    let settings = (1_u8..=4, mode, any::<bool>());
    let backends = prop::collection::vec(backend, 0..7);
    (backends, settings).prop_map(move |(backends, (choices, mode, source))| {
        // Two of the three share an address.
        let mut wanted = service(&format!("192.0.2.{}:{vip}", vip / 2), &[]);
        wanted.choices = choices;
        wanted.mode = mode;
        if source && mode.tunnels() {
            wanted.sources = vec!["10.255.0.0/24".parse().unwrap()];
        }
        for (host, weight, up) in backends {
            let address = SocketAddr::from(([10, 0, 0, host + 1], 80));
            if wanted.backend(address).is_none() {
                wanted.backends.push(BackendSpec {
                    address,
                    weight,
                    state: if up {
                        AdminState::Up
                    } else {
                        AdminState::Drain
                    },
                });
            }
        }
        wanted
    })
}

fn any_spec() -> impl Strategy<Value = Spec> {
    (1_u8..=3)
        .map(|vip| prop::option::weighted(0.8, any_service(vip)))
        .collect::<Vec<_>>()
        .prop_map(|services| Spec {
            services: services.into_iter().flatten().collect(),
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn maps_are_whole_after_every_write(
        steps in prop::collection::vec((any_spec(), 0_u64..1500, any::<bool>(), any::<Option<prop::sample::Index>>()), 1..12)
    ) {
        let (mut state, mut maps) = (State::new(LIMITS, 7), Maps::default());
        let mut generations: HashMap<(u32, u32), (ServiceId, SocketAddr, u32)> = HashMap::new();
        let mut now_ms = 0;
        for (wanted, wait_ms, cuts, fails) in steps {
            now_ms += wait_ms;
            let fate = if cuts { cut } else { drain };
            let Ok(plan) = plan(&state, &wanted, now_ms, fate) else {
                // Rows that rest: nothing has changed, a second later it goes.
                now_ms += REST_MS;
                prop_assert!(super::plan(&state, &wanted, now_ms, fate).is_ok());
                continue;
            };
            for (service, address, backend) in plan.next.backends() {
                let owner = (service, address, backend.slot.manner);
                let slot = (backend.slot.id, backend.slot.generation);
                prop_assert_eq!(*generations.entry(slot).or_insert(owner), owner);
            }
            if let Some(at) = fails {
                let before = maps.clone().seen();
                for write in &plan.writes[..at.index(plan.writes.len() + 1)] {
                    maps.apply(write);
                    maps.assert_whole();
                }
                for write in plan.undo(&mut state, now_ms) {
                    maps.apply(&write);
                    maps.assert_whole();
                }
                prop_assert_eq!(maps.clone().seen(), before);
                continue;
            }
            for write in &plan.writes {
                maps.apply(write);
                maps.assert_whole();
            }
            plan.commit(&mut state);
            maps.assert_serves(&wanted, &state);
            let again = super::plan(&state, &wanted, now_ms, |_, _, b| Fate::DrainUntil {
                deadline_ms: b.removal.map_or(0, |r| r.deadline_ms),
            });
            prop_assert_eq!(again.unwrap().writes, vec![]);
        }
    }
}
