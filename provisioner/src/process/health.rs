//! `/livez`, `/readyz` and `/metrics`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use mooring_program::paths;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::process::election::Standing;
use crate::process::metrics::Metrics;

#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address}: set another --listen")]
pub struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

/// What a replica is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It has not reached the API server yet.
    Starting,
    /// Another replica leads, and this one would take over.
    StandingBy,
    /// No admission policy holds it, so it does nothing.
    NotHeld,
    /// The API server has not said whether an admission policy holds it, so it does nothing.
    HeldUnknown,
    /// The administrator's settings can't be read, so it does nothing.
    BadSettings,
    /// A later version has led, whose records it can't read, so it does nothing.
    Outdated,
    /// It works.
    Leading,
    /// It ends what it is at.
    Stopping,
}

impl From<Standing> for Phase {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Leading => Self::Leading,
            Standing::StandingBy => Self::StandingBy,
            Standing::Outdated => Self::Outdated,
        }
    }
}

/// What the probes answer. A clone shares the state.
#[derive(Clone)]
pub struct Health {
    phase: watch::Sender<Phase>,
    /// Whether a replica that leads knows what it has to.
    is_synced: Arc<dyn Fn() -> bool + Send + Sync>,
    metrics: Metrics,
}

impl Health {
    /// Health of a replica that is starting. Once it leads, it is ready when `is_synced` says that its ConfigMaps have
    /// been read.
    pub fn new(is_synced: impl Fn() -> bool + Send + Sync + 'static, metrics: Metrics) -> Self {
        Self {
            phase: watch::Sender::new(Phase::Starting),
            is_synced: Arc::new(is_synced),
            metrics,
        }
    }

    pub fn set(&self, phase: Phase) {
        self.phase.send_replace(phase);
        self.metrics.set_leader(phase == Phase::Leading);
    }

    #[cfg(test)]
    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    fn ready(&self) -> (StatusCode, &'static str) {
        let why_not = match *self.phase.borrow() {
            Phase::StandingBy => return (StatusCode::OK, "standing by\n"),
            Phase::Leading if (self.is_synced)() => return (StatusCode::OK, "leading\n"),
            Phase::Leading => "reading provisioner config maps\n",
            Phase::NotHeld => "no admission policy restricts this controller: see its log\n",
            Phase::HeldUnknown => {
                "the controller does not know yet whether an admission policy restricts it: see its log\n"
            }
            Phase::BadSettings => "ConfigMap mooring-settings has a mistake: see this controller's log\n",
            Phase::Outdated => {
                "a controller of a later version has led: install that version again; see this controller's log\n"
            }
            Phase::Stopping => "stopping\n",
            Phase::Starting => "waiting for the Kubernetes API\n",
        };
        (StatusCode::SERVICE_UNAVAILABLE, why_not)
    }
}

/// Takes the address, so that a bad one is known at the start.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ListenError { address, source })
}

/// Answers until `stop`.
pub async fn serve(listener: TcpListener, health: Health, stop: CancellationToken) {
    if let Ok(address) = listener.local_addr() {
        info!(%address, "serving health and metrics");
    }
    let served = axum::serve(listener, router(health)).with_graceful_shutdown(stop.cancelled_owned());
    if let Err(error) = served.await {
        warn!(
            error = &error as &dyn std::error::Error,
            "failed to serve health and metrics"
        );
    }
}

fn router(health: Health) -> Router {
    Router::new()
        // That the runtime turns is all: what is wrong with the API server, a restart does not mend.
        .route(paths::LIVE, get(async || "ok\n"))
        .route(paths::READY, get(async |State(health): State<Health>| health.ready()))
        .route(paths::METRICS, get(metrics))
        .with_state(health)
}

async fn metrics(State(health): State<Health>) -> impl IntoResponse {
    match health.metrics.encode() {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use mooring_program::paths;

    use axum::body::Body;
    use axum::http::{Request, StatusCode};
    use tower::ServiceExt as _;

    use super::{Health, Phase, router};
    use crate::process::metrics::Metrics;

    #[tokio::test]
    async fn a_replica_is_ready_when_it_could_work_or_does() {
        let synced = Arc::new(AtomicBool::new(false));
        let seen = synced.clone();
        let health = Health::new(move || seen.load(Ordering::Relaxed), Metrics::new());
        let ask = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            router(health.clone()).oneshot(request).await.unwrap().status()
        };
        let no = StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(
            (ask(paths::LIVE).await, ask(paths::METRICS).await),
            (StatusCode::OK, StatusCode::OK)
        );
        for (phase, expected) in [
            (Phase::Starting, no),
            (Phase::StandingBy, StatusCode::OK),
            (Phase::NotHeld, no),
            (Phase::HeldUnknown, no),
            (Phase::BadSettings, no),
            (Phase::Leading, no),
            (Phase::Stopping, no),
        ] {
            health.set(phase);
            assert_eq!(ask(paths::READY).await, expected, "{phase:?}");
        }
        synced.store(true, Ordering::Relaxed);
        health.set(Phase::Leading);
        assert_eq!(ask(paths::READY).await, StatusCode::OK);
    }
}
