use super::*;
use std::{
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdStream},
    path::PathBuf,
};

use futures_util::FutureExt as _;
use hyper::service::Service as _;

use crate::{
    agent::fake::Fake,
    control::{
        api::{BackendPhase, ErrorBody, MAX_BODY_BYTES},
        client::{Client, Error},
    },
    model::{addr::ServiceId, check::Limits},
};

const LIMITS: Limits = Limits {
    services: 8,
    backends: 32,
    candidate_rows: 1 << 16,
};

/// A server of an agent without a kernel, and where it listens.
struct Bed {
    path: PathBuf,
    agent: Arc<Agent<Fake>>,
    _dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lb.sock");
        let agent = Arc::new(Agent::new(LIMITS, 1, Fake::default()));
        let listener = UnixListener::bind(&path).unwrap();
        tokio::spawn(serve(listener, Arc::clone(&agent)));
        Self {
            path,
            agent,
            _dir: dir,
        }
    }

    fn client(&self) -> Client {
        Client::new(&self.path)
    }

    /// Sends bytes as they are and returns the status and the body of the answer.
    async fn raw(&self, request: impl Into<Vec<u8>>) -> (u16, String) {
        let (path, request) = (self.path.clone(), request.into());
        tokio::task::spawn_blocking(move || {
            let mut stream = StdStream::connect(path).unwrap();
            // The server may have answered and closed before it has read all.
            let _ = stream.write_all(&request);
            let mut reply = Vec::new();
            let _ = stream.read_to_end(&mut reply);
            let reply = String::from_utf8(reply).unwrap();
            let status = reply.get(9..12).map_or(0, |s| s.parse().unwrap());
            let body = reply.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            (status, body.to_owned())
        })
        .await
        .unwrap()
    }

    /// The error of a request with a body.
    async fn error(&self, method: &str, path: &str, body: &str) -> (u16, ErrorBody) {
        let (status, body) = self
            .raw(format!(
                "{method} {path} HTTP/1.1\r\nHost: lb\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ))
            .await;
        (
            status,
            serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}")),
        )
    }
}

fn id(text: &str) -> ServiceId {
    text.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_from_beginning_to_end() {
    let bed = Bed::new();
    let client = bed.client();
    for (vip, address) in [
        ("192.0.2.10:80", "10.0.0.1:8080"),
        ("[2001:db8::10]:53/udp", "[2001:db8:1::1]:53"),
    ] {
        let (id, address) = (id(vip), address.parse().unwrap());
        let spec = ServiceSpec::new(id);
        let outcome = |change: Result<Change, Error>| change.unwrap().outcome;
        assert_eq!(outcome(client.add_service(&spec).await), Outcome::Created);
        assert_eq!(outcome(client.add_service(&spec).await), Outcome::Unchanged);
        let backend = BackendSpec::new(address);
        assert_eq!(
            outcome(client.add_backend(id, &backend).await),
            Outcome::Created
        );
        assert_eq!(
            outcome(client.set_weight(id, address, 0).await),
            Outcome::Changed
        );
        assert_eq!(client.service(id).await.unwrap().backends[0].weight, 0);
        assert_eq!(
            outcome(client.set_weight(id, address, 5).await),
            Outcome::Changed
        );
        let drain = client.set_state(id, address, AdminState::Drain).await;
        assert_eq!(outcome(drain), Outcome::Changed);
        let view = client.service(id).await.unwrap();
        assert_eq!(view.backends[0].state, BackendPhase::Drain);
        let patch = ServicePatch {
            choices: Some(4),
            ..ServicePatch::default()
        };
        assert_eq!(
            outcome(client.set_service(id, &patch).await),
            Outcome::Changed
        );
        assert_eq!(client.service(id).await.unwrap().choices, 4);
        let removed = client
            .remove_backend(id, address, &RemoveQuery::default())
            .await;
        assert_eq!(outcome(removed), Outcome::Removing);
        let now = RemoveQuery {
            deadline_ms: None,
            now: true,
        };
        assert_eq!(
            outcome(client.remove_service(id, &now).await),
            Outcome::Removed
        );
    }
    assert!(client.services().await.unwrap().is_empty());
    assert_eq!(client.status().await.unwrap().pid, std::process::id());
    let flows = client.flows(&FlowsQuery { limit: Some(2) }).await.unwrap();
    assert_eq!((flows.flows.len(), flows.more), (2, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_a_status_and_a_field() {
    let bed = Bed::new();
    let spec = ServiceSpec::new(id("192.0.2.10:80"));
    bed.client().add_service(&spec).await.unwrap();
    let service = "/v1/services/tcp/192.0.2.10/80";
    let backends = format!("{service}/backends");
    for (method, path, body, status, field, said) in [
        ("POST", "/v1/services", "", 400, None, "EOF"),
        ("POST", "/v1/services", "1", 400, None, "invalid type"),
        (
            "POST",
            "/v1/services",
            "{\"address\":\"192.0.2.1:80\"} x",
            400,
            None,
            "trailing",
        ),
        (
            "POST",
            "/v1/services",
            "{\"address\":\"nonsense\"}",
            400,
            Some("address"),
            "192.0.2.10:80",
        ),
        (
            "POST",
            "/v1/services",
            "{\"address\":\"192.0.2.1:80\",\"colour\":1}",
            400,
            Some("colour"),
            "unknown field",
        ),
        (
            "POST",
            "/v1/services",
            "{\"address\":\"192.0.2.1:80\",\"backends\":[{\"address\":\"10.0.0.1:80\",\"weight\":65536}]}",
            400,
            Some("backends[0].weight"),
            "0 to 65535, not 65536",
        ),
        (
            "POST",
            &backends,
            "{\"address\":\"[::1]:80\"}",
            422,
            Some("address"),
            "loopback",
        ),
        (
            "POST",
            &backends,
            "{\"address\":\"192.0.2.10:80\"}",
            422,
            Some("address"),
            "is the VIP",
        ),
        (
            "PATCH",
            service,
            "{\"choices\":0}",
            400,
            Some("choices"),
            "1 to 4",
        ),
        (
            "POST",
            "/v1/services/tcp/1.2.3.4/80/backends",
            "{\"address\":\"10.0.0.1:80\"}",
            404,
            None,
            "no service",
        ),
        (
            "GET",
            "/v1/services/sctp/1.2.3.4/80",
            "",
            400,
            Some("protocol"),
            "sctp",
        ),
        (
            "GET",
            "/v1/services/tcp/1.2.3.400/80",
            "",
            400,
            Some("address"),
            "1.2.3.400",
        ),
        (
            "GET",
            "/v1/services/tcp/1.2.3.4/99999",
            "",
            400,
            Some("port"),
            "99999",
        ),
        ("GET", "/v1/flows?limit=many", "", 400, Some("query"), ""),
        (
            "GET",
            "/v1/flows?limit=100001",
            "",
            422,
            Some("limit"),
            "100000",
        ),
        (
            "DELETE",
            &format!("{service}?soon=1"),
            "",
            400,
            Some("query"),
            "soon",
        ),
        ("GET", "/", "", 404, None, "there is no /"),
        ("PUT", "/v1/services", "", 405, None, "does not know PUT"),
        (
            "DELETE",
            "/v1/status",
            "",
            405,
            None,
            "does not know DELETE",
        ),
    ] {
        let (got, body) = bed.error(method, path, body).await;
        assert_eq!(
            (got, body.error.field.as_deref()),
            (status, field),
            "{method} {path}: {body:?}"
        );
        assert!(
            body.error.message.contains(said),
            "{method} {path}: {body:?}"
        );
    }
    let view = bed.client().service(spec.id()).await.unwrap();
    assert!(view.backends.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_long_is_refused_by_its_limit() {
    let bed = Bed::new();
    let long = format!("{{\"address\":\"{}\"}}", "x".repeat(MAX_BODY_BYTES));
    let (status, body) = bed.error("POST", "/v1/services", &long).await;
    assert_eq!(status, 413);
    assert!(body.error.message.contains("1048576 bytes"), "{body:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_does_no_harm() {
    let bed = Bed::new();
    let noise: Vec<u8> = (0..40_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut long = b"GET /v1/status HTTP/1.1\r\n".to_vec();
    for i in 0..5000 {
        long.extend(format!("X-Header-{i}: {i}\r\n").bytes());
    }
    for garbage in [
        noise,
        long,
        b"\0\0\0\0\r\n\r\n".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"GET /v1/status HTTP/9.9\r\n\r\n".to_vec(),
        b"POST /v1/services HTTP/1.1\r\nHost: lb\r\nContent-Length: -5\r\n\r\n".to_vec(),
        b"POST /v1/services HTTP/1.1\r\nHost: lb\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
            .to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
    ] {
        let (status, body) = bed.raw(garbage).await;
        assert!(
            status == 0 || (400..500).contains(&status),
            "{status} {body}"
        );
    }
    assert_eq!(bed.client().services().await.unwrap(), vec![]);
}

/// Clients that connect and then say nothing, or stop in the middle, do not keep others out.
#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_keep_no_one_out() {
    let bed = Bed::new();
    let silent: Vec<StdStream> = (0..MAX_CONNECTIONS - 1)
        .map(|i| {
            let mut stream = StdStream::connect(&bed.path).unwrap();
            if i % 2 == 0 {
                stream
                    .write_all(b"POST /v1/services HTTP/1.1\r\nContent-Le")
                    .unwrap();
            }
            stream
        })
        .collect();
    bed.client().services().await.unwrap();
    drop(silent);
}

/// A client that hangs up while its request waits does not leave the change undone or half done.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_outlives_its_client() {
    let bed = Bed::new();
    let guard = bed.agent.lock().await;
    let peer = Peer { uid: 0, pid: 1 };
    let server = TowerToHyperService::new(router(Arc::clone(&bed.agent)).layer(Extension(peer)));
    let request = Request::post("/v1/services")
        .body(Body::from("{\"address\":\"192.0.2.10:80\"}"))
        .unwrap();
    // Begun, and dropped before the lock is free.
    assert!(server.call(request).now_or_never().is_none());
    drop(guard);
    while bed.client().services().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_one_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lb.sock");
    let error = Client::new(&path).status().await.unwrap_err();
    assert!(matches!(error, Error::NoAgent(_)));
    assert!(error.to_string().contains("lb run"), "{error}");
    drop(StdUnixListener::bind(&path).unwrap());
    assert!(matches!(
        Client::new(&path).status().await,
        Err(Error::NoAgent(_))
    ));
}
