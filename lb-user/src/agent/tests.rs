use super::{fake::Fake, refusal::Kind, removal::Removals, *};
use crate::{
    control::api::{BackendPhase, Load, ServicePatch, ServicePhase},
    model::{
        change::MapWrite,
        spec::{AdminState, BackendSpec, ServiceSpec},
    },
};

const LIMITS: Limits = Limits {
    services: 2,
    backends: 4,
    candidate_rows: 1 << 15,
};
const VIP: &str = "192.0.2.10:80";
const ONE: &str = "10.0.0.1:80";
const TWO: &str = "10.0.0.2:80";

fn id() -> ServiceId {
    VIP.parse().unwrap()
}

fn backend(address: &str, weight: u16) -> BackendSpec {
    BackendSpec {
        weight,
        ..BackendSpec::new(address.parse().unwrap())
    }
}

fn service(backends: &[&str]) -> ServiceSpec {
    let mut service = ServiceSpec::new(id());
    service.backends = backends.iter().map(|a| backend(a, 1)).collect();
    service
}

async fn agent(backends: &[&str]) -> Agent<Fake> {
    let agent = Agent::new(LIMITS, 1, Fake::default());
    let services = vec![service(backends)];
    agent.apply(Spec { services }).await.unwrap();
    agent
}

async fn edit(agent: &Agent<Fake>, edit: Edit) -> Result<Outcome, Refusal> {
    let change = agent.edit(&edit, &RemoveQuery::default()).await?;
    Ok(change.outcome)
}

/// Edits, and expects a refusal of this kind and field.
async fn refused(agent: &Agent<Fake>, wrong: Edit, kind: Kind, field: Option<&str>) -> String {
    let now = |inner: &Inner<Fake>| (inner.spec.clone(), inner.dataplane.writes.len());
    let before = now(&*agent.lock().await);
    let refusal = edit(agent, wrong).await.unwrap_err();
    assert_eq!(
        (refusal.kind, refusal.detail.field.as_deref()),
        (kind, field),
        "{refusal}"
    );
    assert_eq!(now(&*agent.lock().await), before, "half applied");
    refusal.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_idempotent() {
    let agent = agent(&[ONE]).await;
    let add = Edit::AddBackend(id(), backend(TWO, 3));
    let address = TWO.parse().unwrap();
    for (change, first) in [
        (add, Outcome::Created),
        (Edit::SetWeight(id(), address, 0), Outcome::Changed),
        (
            Edit::SetState(id(), address, AdminState::Drain),
            Outcome::Changed,
        ),
        (
            Edit::SetService(
                id(),
                ServicePatch {
                    choices: Some(3),
                    ..ServicePatch::default()
                },
            ),
            Outcome::Changed,
        ),
    ] {
        assert_eq!(edit(&agent, change.clone()).await.unwrap(), first);
        let written = agent.lock().await.dataplane.writes.len();
        assert_eq!(edit(&agent, change).await.unwrap(), Outcome::Unchanged);
        assert_eq!(agent.lock().await.dataplane.writes.len(), written);
    }
    let views = agent.services().await.unwrap();
    let two = &views[0].backends[1];
    assert_eq!((two.weight, two.state), (0, BackendPhase::Drain));
    let same = agent.lock().await.spec.services[0].clone();
    assert_eq!(
        edit(&agent, Edit::AddService(same)).await.unwrap(),
        Outcome::Unchanged
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_the_field_and_leave_no_trace() {
    let agent = agent(&[ONE]).await;
    let nowhere: ServiceId = "192.0.2.99:80".parse().unwrap();
    let v6 = Edit::AddBackend(id(), backend("[2001:db8::1]:80", 1));
    let said = refused(&agent, v6, Kind::Invalid, Some("address")).await;
    assert!(said.contains("different families"), "{said}");
    let vip = Edit::AddBackend(id(), backend(VIP, 1));
    refused(&agent, vip, Kind::Invalid, Some("address")).await;
    let mut other = ServiceSpec::new(nowhere);
    other.backends = vec![backend(ONE, 1), backend("10.0.0.9:0", 1)];
    refused(
        &agent,
        Edit::AddService(other),
        Kind::Invalid,
        Some("backends[1].address"),
    )
    .await;
    // A VIP that an existing backend has.
    let taken = ServiceSpec::new(ONE.parse().unwrap());
    refused(
        &agent,
        Edit::AddService(taken),
        Kind::Invalid,
        Some("address"),
    )
    .await;
    let weight = Edit::AddBackend(id(), backend(ONE, 7));
    let said = refused(&agent, weight, Kind::Conflict, Some("weight")).await;
    assert!(said.contains("set-weight"), "{said}");
    let gone = Edit::AddBackend(nowhere, backend(ONE, 1));
    refused(&agent, gone, Kind::NotFound, None).await;
    let gone = Edit::SetWeight(id(), TWO.parse().unwrap(), 1);
    refused(&agent, gone, Kind::NotFound, None).await;
    let query = RemoveQuery {
        deadline_ms: Some(MAX_DEADLINE_MS + 1),
        now: false,
    };
    let refusal = agent
        .edit(&Edit::RemoveService(id()), &query)
        .await
        .unwrap_err();
    assert_eq!(refusal.detail.field.as_deref(), Some("deadline_ms"));
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_named() {
    let agent = agent(&[ONE, TWO, "10.0.0.3:80", "10.0.0.4:80"]).await;
    let five = Edit::AddBackend(id(), backend("10.0.0.5:80", 1));
    let said = refused(&agent, five, Kind::Invalid, Some("backend")).await;
    assert!(said.contains("limit is 4"), "{said}");
    for vip in ["192.0.2.11:80", "192.0.2.12:80"] {
        let add = Edit::AddService(ServiceSpec::new(vip.parse().unwrap()));
        if vip.contains("11") {
            edit(&agent, add).await.unwrap();
        } else {
            let said = refused(&agent, add, Kind::Invalid, Some("service")).await;
            assert!(said.contains("limit is 2"), "{said}");
        }
    }
    // A slot stays taken until its flows have ended.
    let remove = Edit::RemoveBackend(id(), ONE.parse().unwrap());
    edit(&agent, remove).await.unwrap();
    let five = Edit::AddBackend(id(), backend("10.0.0.5:80", 1));
    let said = refused(&agent, five, Kind::Exhausted, None).await;
    assert!(
        said.contains("1 of them by backends being removed"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_write_is_undone() {
    let agent = agent(&[ONE]).await;
    let add = Edit::AddBackend(id(), backend(TWO, 1));
    let value = |inner: &Inner<Fake>| inner.state.service(id()).unwrap().value.unwrap();
    let before = value(&*agent.lock().await);
    agent.lock().await.dataplane.fail_after = Some(3);
    let refusal = edit(&agent, add.clone()).await.unwrap_err();
    assert_eq!(refusal.kind, Kind::Failed);
    assert!(refusal.to_string().contains("out of memory"), "{refusal}");
    {
        let inner = agent.lock().await;
        assert_eq!(value(&inner), before);
        let last = inner.dataplane.writes.iter().rev();
        let restored = last.clone().find(|w| matches!(w, MapWrite::Service { .. }));
        assert_eq!(
            restored,
            Some(&MapWrite::Service {
                key: id().key(),
                value: before
            })
        );
        assert!(matches!(
            last.clone().next(),
            Some(MapWrite::ClearBackend { id: 1 })
        ));
    }
    assert_eq!(edit(&agent, add).await.unwrap(), Outcome::Created);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_waits_for_flows() {
    let agent = agent(&[ONE, TWO]).await;
    let slot = |inner: &Inner<Fake>| {
        let slot = inner.state.backend(id(), TWO.parse().unwrap())?.slot;
        Some((slot.id, slot.generation))
    };
    let two = slot(&*agent.lock().await).unwrap();
    let busy = Load {
        in_flight: 2,
        opened: 5,
        ..Load::default()
    };
    agent.lock().await.dataplane.loads.insert(two, busy);
    let remove = Edit::RemoveBackend(id(), TWO.parse().unwrap());
    let change = agent.edit(&remove, &RemoveQuery::default()).await.unwrap();
    assert_eq!(
        (change.outcome, change.in_flight, change.deadline_ms),
        (Outcome::Removing, Some(2), Some(DEFAULT_DEADLINE_MS))
    );
    let mut removals = Removals::new(0);
    removals.run_once(&agent).await.unwrap();
    assert_eq!(slot(&*agent.lock().await), Some(two));
    let views = agent.services().await.unwrap();
    assert_eq!(views[0].backends[1].state, BackendPhase::Removing);
    assert!(views[0].backends[1].deadline_ms.is_some());

    agent.lock().await.dataplane.loads.insert(
        two,
        Load {
            in_flight: 0,
            ..busy
        },
    );
    removals.run_once(&agent).await.unwrap();
    let inner = agent.lock().await;
    assert_eq!(slot(&inner), None);
    let last = inner.dataplane.writes.last();
    assert_eq!(last, Some(&MapWrite::ClearBackend { id: two.0 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn now_cuts_even_what_is_being_removed() {
    let agent = agent(&[ONE, TWO]).await;
    let now = RemoveQuery {
        deadline_ms: None,
        now: true,
    };
    for address in [ONE, TWO] {
        edit(&agent, Edit::RemoveBackend(id(), address.parse().unwrap()))
            .await
            .unwrap();
    }
    assert_eq!(agent.lock().await.state.removals().count(), 2);
    let remove = Edit::RemoveBackend(id(), TWO.parse().unwrap());
    let change = agent.edit(&remove, &now).await.unwrap();
    assert_eq!(change.outcome, Outcome::Removed);
    // Only the one that was named.
    assert_eq!(agent.lock().await.state.removals().count(), 1);
    let gone = agent.edit(&remove, &now).await.unwrap_err();
    assert_eq!(gone.kind, Kind::NotFound);
    assert_eq!(
        edit(&agent, Edit::RemoveService(id())).await.unwrap(),
        Outcome::Removing
    );
    let views = agent.services().await.unwrap();
    assert_eq!(views[0].state, ServicePhase::Removing);
    agent.edit(&Edit::RemoveService(id()), &now).await.unwrap();
    assert!(agent.services().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_wrong_before_does_not_block_other_changes() {
    let agent = agent(&[ONE]).await;
    // As if the host had got the backend's address later.
    let inner = agent.lock().await;
    let own = [ONE.parse::<SocketAddr>().unwrap().ip()];
    let mut spec = inner.spec.clone();
    spec.services[0].backends.push(backend(TWO, 1));
    let add = Edit::AddBackend(id(), backend(TWO, 1));
    inner.check(&add, &spec, &own).unwrap();
    let own = [TWO.parse::<SocketAddr>().unwrap().ip()];
    let refusal = inner.check(&add, &spec, &own).unwrap_err();
    assert_eq!(refusal.detail.field.as_deref(), Some("address"));
}

#[tokio::test(flavor = "multi_thread")]
async fn notes_say_what_is_amiss() {
    let agent = agent(&[]).await;
    let status = agent.status().await.unwrap();
    let has = |text: &str| status.notes.iter().any(|note| note.contains(text));
    assert!(has("ipv4 flow table is 95% full"), "{:?}", status.notes);
    assert!(
        has("has no backend that takes new flows"),
        "{:?}",
        status.notes
    );
}
