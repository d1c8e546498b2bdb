//! The agent's end of the socket.
//!
//! Whoever may connect may also send garbage, or nothing: heads, bodies and connections each have
//! their time and size, and each connection is its own task.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{Path, State},
    http::{Request, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    api::{
        BackendPatch, Change, Flows, FlowsQuery, Outcome, RemoveQuery, ServicePatch, ServiceView,
        Status,
    },
    reply::{ErrorReply, json, no_method, no_path, query, service_id, socket_address},
};
use crate::{
    agent::{Agent, datapath::Datapath, edit::Edit},
    model::spec::{AdminState, BackendSpec, ServiceSpec},
};

/// How long a request's head may take, and how long a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may last: long enough for every request, short enough to shake off a client
/// that does not read its reply.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(120);

/// Connections at a time; more wait to be accepted.
const MAX_CONNECTIONS: usize = 64;

/// Longest head of a request.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
struct Peer {
    uid: u32,
    pid: i32,
}

/// Accepts connections and serves them, for ever.
pub async fn serve<D: Datapath>(listener: UnixListener, agent: Arc<Agent<D>>) {
    let router = router(agent);
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::spawn(async move {
                    connection(stream, router).await;
                    drop(slot);
                });
            }
            Err(e) => {
                // Out of file descriptors, most likely: it passes, but not at once.
                warn!("cannot accept a connection on the control socket: {e}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: UnixStream, router: Router) {
    let peer = match stream.peer_cred() {
        Ok(cred) => Peer {
            uid: cred.uid(),
            pid: cred.pid().unwrap_or(0),
        },
        Err(e) => {
            warn!("cannot tell who is at the other end of the control socket: {e}");
            return;
        }
    };
    let service = TowerToHyperService::new(router.layer(Extension(peer)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => debug!(?peer, "connection on the control socket ended: {e}"),
        Err(_) => debug!(?peer, "connection on the control socket took too long"),
    }
}

/// All paths.
pub(super) fn router<D: Datapath>(agent: Arc<Agent<D>>) -> Router {
    let service = "/v1/services/{protocol}/{address}/{port}";
    let backends = format!("{service}/backends");
    let backend = format!("{backends}/{{backend}}/{{backend_port}}");
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/flows", get(flows))
        .route("/v1/services", get(services).post(add_service))
        .route(
            service,
            get(one_service).patch(set_service).delete(remove_service),
        )
        .route(&backends, post(add_backend))
        .route(
            &backend,
            axum::routing::patch(patch_backend).delete(remove_backend),
        )
        .route(&format!("{backend}/drain"), post(drain_backend))
        .route(&format!("{backend}/resume"), post(resume_backend))
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        .with_state(agent)
}

type Shared<D> = State<Arc<Agent<D>>>;
type Reply<T> = Result<Json<T>, ErrorReply>;
type ServicePath = Path<(String, String, String)>;
type BackendPath = Path<(String, String, String, String, String)>;

async fn status<D: Datapath>(State(agent): Shared<D>) -> Reply<Status> {
    Ok(Json(agent.status().await?))
}

async fn flows<D: Datapath>(State(agent): Shared<D>, uri: Uri) -> Reply<Flows> {
    let query: FlowsQuery = query(&uri)?;
    Ok(Json(agent.flows(&query).await?))
}

async fn services<D: Datapath>(State(agent): Shared<D>) -> Reply<Vec<ServiceView>> {
    Ok(Json(agent.services().await?))
}

async fn one_service<D: Datapath>(
    State(agent): Shared<D>,
    Path((protocol, address, port)): ServicePath,
) -> Reply<ServiceView> {
    let id = service_id(&protocol, &address, &port)?;
    Ok(Json(agent.service(id).await?))
}

async fn add_service<D: Datapath>(
    State(agent): Shared<D>,
    Extension(peer): Extension<Peer>,
    request: Request<Body>,
) -> Result<Response, ErrorReply> {
    let spec: ServiceSpec = json(request).await?;
    change(&agent, peer, Edit::AddService(spec), RemoveQuery::default()).await
}

async fn set_service<D: Datapath>(
    State(agent): Shared<D>,
    Extension(peer): Extension<Peer>,
    Path((protocol, address, port)): ServicePath,
    request: Request<Body>,
) -> Result<Response, ErrorReply> {
    let id = service_id(&protocol, &address, &port)?;
    let patch: ServicePatch = json(request).await?;
    change(
        &agent,
        peer,
        Edit::SetService(id, patch),
        RemoveQuery::default(),
    )
    .await
}

async fn remove_service<D: Datapath>(
    State(agent): Shared<D>,
    Extension(peer): Extension<Peer>,
    Path((protocol, address, port)): ServicePath,
    uri: Uri,
) -> Result<Response, ErrorReply> {
    let id = service_id(&protocol, &address, &port)?;
    change(&agent, peer, Edit::RemoveService(id), query(&uri)?).await
}

async fn add_backend<D: Datapath>(
    State(agent): Shared<D>,
    Extension(peer): Extension<Peer>,
    Path((protocol, address, port)): ServicePath,
    request: Request<Body>,
) -> Result<Response, ErrorReply> {
    let id = service_id(&protocol, &address, &port)?;
    let spec: BackendSpec = json(request).await?;
    change(
        &agent,
        peer,
        Edit::AddBackend(id, spec),
        RemoveQuery::default(),
    )
    .await
}

async fn patch_backend<D: Datapath>(
    State(agent): Shared<D>,
    Extension(peer): Extension<Peer>,
    Path(path): BackendPath,
    request: Request<Body>,
) -> Result<Response, ErrorReply> {
    let (id, address) = backend(&path)?;
    let patch: BackendPatch = json(request).await?;
    let edit = Edit::SetWeight(id, address, patch.weight);
    change(&agent, peer, edit, RemoveQuery::default()).await
}

async fn drain_backend<D: Datapath>(
    State(agent): Shared<D>,
    Extension(peer): Extension<Peer>,
    Path(path): BackendPath,
) -> Result<Response, ErrorReply> {
    let (id, address) = backend(&path)?;
    let edit = Edit::SetState(id, address, AdminState::Drain);
    change(&agent, peer, edit, RemoveQuery::default()).await
}

async fn resume_backend<D: Datapath>(
    State(agent): Shared<D>,
    Extension(peer): Extension<Peer>,
    Path(path): BackendPath,
) -> Result<Response, ErrorReply> {
    let (id, address) = backend(&path)?;
    let edit = Edit::SetState(id, address, AdminState::Up);
    change(&agent, peer, edit, RemoveQuery::default()).await
}

async fn remove_backend<D: Datapath>(
    State(agent): Shared<D>,
    Extension(peer): Extension<Peer>,
    Path(path): BackendPath,
    uri: Uri,
) -> Result<Response, ErrorReply> {
    let (id, address) = backend(&path)?;
    change(&agent, peer, Edit::RemoveBackend(id, address), query(&uri)?).await
}

fn backend(
    (protocol, address, port, backend, backend_port): &(String, String, String, String, String),
) -> Result<(crate::model::addr::ServiceId, SocketAddr), ErrorReply> {
    Ok((
        service_id(protocol, address, port)?,
        socket_address(backend, backend_port)?,
    ))
}

/// Makes a change and says who asked for it.
async fn change<D: Datapath>(
    agent: &Arc<Agent<D>>,
    peer: Peer,
    edit: Edit,
    removal: RemoveQuery,
) -> Result<Response, ErrorReply> {
    // Its own task: a client that hangs up does not stop a change half-way.
    let task = {
        let agent = Arc::clone(agent);
        tokio::spawn(async move {
            let result = agent.edit(&edit, &removal).await;
            match &result {
                Ok(change) => {
                    info!(
                        uid = peer.uid,
                        pid = peer.pid,
                        "{edit}: {:?}",
                        change.outcome
                    );
                }
                Err(e) => info!(uid = peer.uid, pid = peer.pid, "{edit}: refused: {e}"),
            }
            result
        })
    };
    let change: Change = task.await.map_err(|e| {
        ErrorReply::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            None,
            format!("the change failed inside the agent: {e}"),
            "this is a fault of lb; please report it with the agent's log",
        )
    })??;
    let status = match change.outcome {
        Outcome::Created => StatusCode::CREATED,
        Outcome::Removing => StatusCode::ACCEPTED,
        Outcome::Changed | Outcome::Unchanged | Outcome::Removed => StatusCode::OK,
    };
    Ok((status, Json(change)).into_response())
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
