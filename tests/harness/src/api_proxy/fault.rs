//! What can go wrong with a call.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::json;

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The controller is killed before the call reaches the API server.
    KilledBefore,
    /// The controller is killed after the call's effect, before it has the answer.
    KilledAfter,
    /// The API server refuses with this code and does nothing.
    Status(u16),
    /// The call is carried out, and the connection breaks within the answer.
    BrokenOff,
    /// The call is carried out, and no answer ever comes.
    Silence,
    /// The call is carried out at once, and the answer comes this late.
    Late(Duration),
}

/// A refusal in the API server's format.
pub(super) fn status(code: u16, method: Option<&Method>) -> Response {
    let reason = match code {
        409 if method == Some(&Method::POST) => "AlreadyExists",
        409 => "Conflict",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "as the test wished", "reason": reason, "code": code,
        "details": {"retryAfterSeconds": i32::from(code == 429)},
    });
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (code, body.to_string()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if code == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// An answer that ends after its head.
pub(super) fn broken_off(answer: Response) -> Response {
    let (head, _) = answer.into_parts();
    let broken = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("as the test wished")) });
    Response::from_parts(head, Body::from_stream(broken))
}

/// The API server could not be reached.
pub(super) fn bad_gateway(why: &str) -> Response {
    (StatusCode::BAD_GATEWAY, why.to_owned()).into_response()
}
