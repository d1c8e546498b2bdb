//! Replies and refusals as HTTP, and the parts of a request that can be wrong.

use std::{net::IpAddr, time::Duration};

use axum::{
    body::Body,
    http::{Request, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::api::{ErrorBody, ErrorDetail, MAX_BODY_BYTES};
use crate::{
    agent::refusal::{Kind, Refusal},
    model::addr::{Protocol, ServiceId},
};

/// How long a request's body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// An error reply.
#[derive(Debug)]
pub struct ErrorReply {
    status: StatusCode,
    detail: ErrorDetail,
}

impl ErrorReply {
    /// An error with what is wrong and what to do.
    pub fn new(status: StatusCode, field: Option<&str>, message: String, hint: &str) -> Self {
        Self {
            status,
            detail: ErrorDetail {
                field: field.map(str::to_owned),
                message,
                hint: Some(hint.to_owned()),
            },
        }
    }
}

impl IntoResponse for ErrorReply {
    fn into_response(self) -> Response {
        let body = ErrorBody { error: self.detail };
        (self.status, axum::Json(body)).into_response()
    }
}

impl From<Refusal> for ErrorReply {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal.kind {
            Kind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Conflict => StatusCode::CONFLICT,
            Kind::Exhausted => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self {
            status,
            detail: refusal.detail,
        }
    }
}

/// Reads a request's body as JSON, whatever its content type says.
pub async fn json<T: DeserializeOwned>(request: Request<Body>) -> Result<T, ErrorReply> {
    let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect();
    let bytes = match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(e)) if e.downcast_ref::<LengthLimitError>().is_some() => {
            return Err(ErrorReply::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                None,
                format!("the body is longer than {MAX_BODY_BYTES} bytes (1 MiB)"),
                "send less at once: add backends one by one",
            ));
        }
        Ok(Err(e)) => return Err(bad_body(None, e.to_string())),
        Err(_) => {
            return Err(ErrorReply::new(
                StatusCode::REQUEST_TIMEOUT,
                None,
                format!("the body did not come within {} s", BODY_TIMEOUT.as_secs()),
                "send it faster",
            ));
        }
    };
    let mut deserializer = serde_json::Deserializer::from_slice(&bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|e| {
        let path = e.path().to_string();
        let field = (path != ".").then_some(path);
        bad_body(field.as_deref(), e.into_inner().to_string())
    })?;
    deserializer
        .end()
        .map_err(|e| bad_body(None, e.to_string()))?;
    Ok(value)
}

fn bad_body(field: Option<&str>, why: String) -> ErrorReply {
    ErrorReply::new(
        StatusCode::BAD_REQUEST,
        field,
        why,
        "send a JSON object with the fields of this request and no others",
    )
}

/// Reads the part after the `?`.
pub fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, ErrorReply> {
    match axum::extract::Query::try_from_uri(uri) {
        Ok(axum::extract::Query(query)) => Ok(query),
        Err(e) => Err(ErrorReply::new(
            StatusCode::BAD_REQUEST,
            Some("query"),
            e.body_text(),
            "name=value, joined with &",
        )),
    }
}

/// Reads a service's name out of a path.
pub fn service_id(protocol: &str, address: &str, port: &str) -> Result<ServiceId, ErrorReply> {
    Ok(ServiceId {
        protocol: protocol.parse::<Protocol>().map_err(|e| {
            ErrorReply::new(
                StatusCode::BAD_REQUEST,
                Some("protocol"),
                e.to_string(),
                "/v1/services/tcp/192.0.2.10/80",
            )
        })?,
        address: socket_address(address, port)?,
    })
}

/// Reads an address and a port out of a path. IPv6 may stand in brackets.
pub fn socket_address(address: &str, port: &str) -> Result<std::net::SocketAddr, ErrorReply> {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    let ip: IpAddr = bare.parse().map_err(|_| {
        ErrorReply::new(
            StatusCode::BAD_REQUEST,
            Some("address"),
            format!("\"{address}\" is no IPv4 or IPv6 address"),
            "/v1/services/tcp/2001:db8::1/80",
        )
    })?;
    let port: u16 = port.parse().map_err(|_| {
        ErrorReply::new(
            StatusCode::BAD_REQUEST,
            Some("port"),
            format!("\"{port}\" is no port"),
            "a port is a number from 1 to 65535",
        )
    })?;
    Ok((ip, port).into())
}

/// There is no such path.
pub async fn no_path(uri: Uri) -> ErrorReply {
    ErrorReply::new(
        StatusCode::NOT_FOUND,
        None,
        format!("there is no {}", uri.path()),
        "there are /v1/status, /v1/services, /v1/flows",
    )
}

/// The path does not know the method.
pub async fn no_method(request: Request<Body>) -> ErrorReply {
    ErrorReply::new(
        StatusCode::METHOD_NOT_ALLOWED,
        None,
        format!(
            "{} does not know {}",
            request.uri().path(),
            request.method()
        ),
        "the header Allow names the methods that it knows",
    )
}
