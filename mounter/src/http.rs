//! Health, status and metrics over HTTP: `/livez`, `/readyz`, `/status` (`?format=json`), `/metrics`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::core::Core;
use crate::status::Status;

type Shared = (Arc<Core>, Status);

/// Answers for ever.
pub async fn serve(listen: SocketAddr, core: Arc<Core>, status: Status) -> io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    let router = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/status", get(report))
        .route("/metrics", get(metrics))
        .with_state((core, status));
    axum::serve(listener, router).await
}

async fn ready(State((_, status)): State<Shared>) -> Response {
    let obstacles = status.obstacles();
    if obstacles.is_empty() {
        return "ready\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, obstacles.join("\n") + "\n").into_response()
}

async fn report(State((core, status)): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let report = status.report(&core);
    if query.as_deref() != Some("format=json") {
        return report.to_text().into_response();
    }
    match serde_json::to_string(&report) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn metrics(State((core, status)): State<Shared>) -> Response {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match core.metrics().encode(&status.snapshot(&core)) {
        Ok(text) => ([(header::CONTENT_TYPE, TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
