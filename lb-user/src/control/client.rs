//! The command line's end of the socket.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::UnixStream, time::timeout};

use super::api::{
    BackendPatch, Change, ErrorBody, ErrorDetail, Flows, FlowsQuery, RemoveQuery, ServicePatch,
    ServiceView, Status, backend_path, service_path,
};
use crate::model::{
    addr::ServiceId,
    spec::{AdminState, BackendSpec, ServiceSpec},
};

/// How long the agent may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why the agent did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No one listens.
    #[error(
        "no agent listens on {}: start one with `lb run --interface IF`, or name its socket with --socket or \
         LB_SOCKET", .0.display()
    )]
    NoAgent(PathBuf),
    /// This user may not ask it.
    #[error(
        "no permission to use {}: run as root (sudo lb ...), or join group lb and log in again", .0.display()
    )]
    NoPermission(PathBuf),
    /// The connection failed.
    #[error("cannot talk to the agent on {}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It does not speak HTTP.
    #[error("what listens on {} does not answer as an agent of lb does: {why}", path.display())]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// It takes too long.
    #[error("the agent on {} has not answered within {} s", path.display(), TIMEOUT.as_secs())]
    Timeout {
        /// The socket.
        path: PathBuf,
    },
    /// It said no.
    #[error("{}", refused(detail))]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// Why.
        detail: ErrorDetail,
    },
}

fn refused(detail: &ErrorDetail) -> String {
    let mut text = String::new();
    if let Some(field) = &detail.field {
        text = format!("{field}: ");
    }
    text += &detail.message;
    if let Some(hint) = &detail.hint {
        text += &format!("; {hint}");
    }
    text
}

/// A client of the agent on one socket. Each request is its own connection.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// A client of the agent that listens on `path`.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// The agent and its data plane.
    pub async fn status(&self) -> Result<Status, Error> {
        self.get("/v1/status").await
    }

    /// Every service.
    pub async fn services(&self) -> Result<Vec<ServiceView>, Error> {
        self.get("/v1/services").await
    }

    /// One service.
    pub async fn service(&self, id: ServiceId) -> Result<ServiceView, Error> {
        self.get(&service_path(id)).await
    }

    /// Flows.
    pub async fn flows(&self, query: &FlowsQuery) -> Result<Flows, Error> {
        let query = query
            .limit
            .map_or_else(String::new, |n| format!("?limit={n}"));
        self.get(&format!("/v1/flows{query}")).await
    }

    /// Adds a service.
    pub async fn add_service(&self, spec: &ServiceSpec) -> Result<Change, Error> {
        self.send(Method::POST, "/v1/services", spec).await
    }

    /// Changes a service's settings.
    pub async fn set_service(&self, id: ServiceId, patch: &ServicePatch) -> Result<Change, Error> {
        self.send(Method::PATCH, &service_path(id), patch).await
    }

    /// Removes a service.
    pub async fn remove_service(
        &self,
        id: ServiceId,
        query: &RemoveQuery,
    ) -> Result<Change, Error> {
        self.delete(&service_path(id), query).await
    }

    /// Adds a backend.
    pub async fn add_backend(&self, id: ServiceId, spec: &BackendSpec) -> Result<Change, Error> {
        let path = format!("{}/backends", service_path(id));
        self.send(Method::POST, &path, spec).await
    }

    /// Drains or resumes a backend.
    pub async fn set_state(
        &self,
        id: ServiceId,
        backend: SocketAddr,
        state: AdminState,
    ) -> Result<Change, Error> {
        let verb = match state {
            AdminState::Up => "resume",
            AdminState::Drain => "drain",
        };
        let path = format!("{}/{verb}", backend_path(id, backend));
        self.exchange(Method::POST, &path, Bytes::new()).await
    }

    /// Changes a backend's weight.
    pub async fn set_weight(
        &self,
        id: ServiceId,
        backend: SocketAddr,
        weight: u16,
    ) -> Result<Change, Error> {
        let path = backend_path(id, backend);
        self.send(Method::PATCH, &path, &BackendPatch { weight })
            .await
    }

    /// Removes a backend.
    pub async fn remove_backend(
        &self,
        id: ServiceId,
        backend: SocketAddr,
        query: &RemoveQuery,
    ) -> Result<Change, Error> {
        self.delete(&backend_path(id, backend), query).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.exchange(Method::GET, path, Bytes::new()).await
    }

    async fn delete<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &RemoveQuery,
    ) -> Result<T, Error> {
        let mut path = format!("{path}?now={}", query.now);
        if let Some(ms) = query.deadline_ms {
            path += &format!("&deadline_ms={ms}");
        }
        self.exchange(Method::DELETE, &path, Bytes::new()).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        let body = serde_json::to_vec(body).map_err(|e| self.protocol(e))?;
        self.exchange(method, path, body.into()).await
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, Error> {
        match timeout(TIMEOUT, self.exchange_raw(method, path, body)).await {
            Ok(reply) => {
                let (status, body) = reply?;
                if status.is_success() {
                    return serde_json::from_slice(&body).map_err(|e| self.protocol(e));
                }
                match serde_json::from_slice::<ErrorBody>(&body) {
                    Ok(body) => Err(Error::Refused {
                        status,
                        detail: body.error,
                    }),
                    Err(_) => Err(self.protocol(format!("it said {status}"))),
                }
            }
            Err(_) => Err(Error::Timeout {
                path: self.path.clone(),
            }),
        }
    }

    async fn exchange_raw(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Error> {
        let stream = UnixStream::connect(&self.path)
            .await
            .map_err(|e| self.connect_error(e))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.protocol(e))?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "lb")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|e| self.protocol(e))?;
        let reply = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            Ok::<_, hyper::Error>((status, body))
        };
        // The connection must be driven while the reply is awaited; it ends with it.
        tokio::select! {
            reply = reply => reply.map_err(|e| self.protocol(e)),
            Err(e) = connection => Err(self.protocol(e)),
        }
    }

    fn protocol(&self, why: impl ToString) -> Error {
        Error::Protocol {
            path: self.path.clone(),
            why: why.to_string(),
        }
    }

    fn connect_error(&self, source: io::Error) -> Error {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::NoAgent(path),
            io::ErrorKind::PermissionDenied => Error::NoPermission(path),
            _ => Error::Io { path, source },
        }
    }
}
