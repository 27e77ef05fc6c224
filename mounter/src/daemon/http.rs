//! Health and metrics over HTTP: `/livez`, `/readyz`, `/metrics`. Anyone who reaches the port may read them, so they
//! have numbers and no names, which [`crate::daemon::status_socket`] has.
//!
//! A thread of its own answers, over a fixed number of connections: a flood of callers takes neither time nor
//! descriptors from the kubelet's calls. When there are too many, the oldest is closed, so that a new caller such as
//! the kubelet's probe gets its answer.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mooring_program::error::chain;
use mooring_program::paths;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::core::Core;
use crate::daemon::status::Status;

/// Most connections at a time.
const CONNECTIONS: usize = 64;

/// Longest that a caller may take to say what it wants.
const HEADER_LIMIT: Duration = Duration::from_secs(5);

/// Longest that a connection may last.
const CONNECTION_LIMIT: Duration = Duration::from_secs(30);

/// Pause after a failed accept, as when there are no descriptors left: it would fail again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// How often the daemon shows that it is alive.
const BEAT: Duration = Duration::from_secs(1);

/// How long it may show nothing before it counts as hanging, and the kubelet restarts it.
const STILL: Duration = Duration::from_secs(30);

type Shared = (Arc<Core>, Status);

/// When the daemon's own thread last showed that it is alive; that the answering thread is alive proves nothing.
#[derive(Debug, Clone)]
struct Pulse(Arc<Mutex<Instant>>);

impl Pulse {
    /// Beats for as long as the runtime that this is called in.
    fn start() -> Self {
        let pulse = Self(Arc::new(Mutex::new(Instant::now())));
        let beating = pulse.clone();
        tokio::spawn(async move {
            loop {
                *beating.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                tokio::time::sleep(BEAT).await;
            }
        });
        pulse
    }

    fn is_felt(&self, now: Instant) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        now.saturating_duration_since(last) < STILL
    }
}

/// Answers in a thread of its own, which never ends.
pub async fn serve(listen: SocketAddr, core: Arc<Core>, status: Status) -> io::Result<()> {
    let router = router(Pulse::start(), core, status);
    let listener = std::net::TcpListener::bind(listen)?;
    listener.set_nonblocking(true)?;
    let (ended, end) = oneshot::channel();
    std::thread::Builder::new().name("http".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let served = runtime
            .and_then(|runtime| runtime.block_on(async { accept(TcpListener::from_std(listener)?, router).await }));
        // The daemon may have ended before.
        let _ = ended.send(served);
    })?;
    end.await
        .unwrap_or_else(|_| Err(io::Error::other("the thread that answers has ended")))
}

fn router(pulse: Pulse, core: Arc<Core>, status: Status) -> Router {
    Router::new()
        .route(paths::LIVE, get(async move || live(pulse.is_felt(Instant::now()))))
        .route(paths::READY, get(ready))
        .route(paths::METRICS, get(metrics))
        .with_state((core, status))
}

async fn accept(listener: TcpListener, router: Router) -> io::Result<()> {
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(error = %chain(&error), "failed to accept a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        while open.len() >= CONNECTIONS {
            if let Some(oldest) = open.pop_front() {
                oldest.abort();
                // Its descriptor is free when it has ended.
                let _ = oldest.await;
            }
        }
        open.push_back(tokio::spawn(answer(stream, router.clone())));
    }
}

async fn answer(stream: TcpStream, router: Router) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // A caller that went away or took too long needs no answer.
    let _ = tokio::time::timeout(CONNECTION_LIMIT, connection).await;
}

fn live(is_felt: bool) -> Response {
    if is_felt {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, "the mounter hangs\n").into_response()
}

async fn ready(State((_, status)): State<Shared>) -> Response {
    match status.obstacles().len() {
        0 => "ready\n".into_response(),
        count => {
            let text = format!("not ready for {count} reasons: see mounter status, in its Pod\n");
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

async fn metrics(State((core, status)): State<Shared>) -> Response {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match core.metrics().encode(&status.snapshot(&core)) {
        Ok(text) => ([(header::CONTENT_TYPE, TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use axum::Router;
    use axum::routing::get;
    use clap::Parser as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use std::time::Instant;

    use mooring_program::paths;

    use super::{CONNECTIONS, Pulse, STILL, accept, router};
    use crate::core::tests::{core, volume};
    use crate::daemon::args::ServeArgs;
    use crate::daemon::status::Status;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        args: ServeArgs,
    }

    async fn listening(router: Router) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(accept(listener, router));
        address
    }

    async fn asked(address: SocketAddr, path: &str) -> String {
        let mut caller = TcpStream::connect(address).await.unwrap();
        let ask = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        caller.write_all(ask.as_bytes()).await.unwrap();
        let mut answer = String::new();
        caller.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_port_counts_servers_and_volumes_and_names_none() {
        let core = Arc::new(core(&Arc::default()));
        let mount = core.mount_soon(volume("client=nfs,source=dead:/x", "plans"));
        assert_eq!(mount.await.unwrap_err().category(), "timeout");
        assert_eq!(core.breakers().tripped(Instant::now()), ["dead (nfs)"]);
        let status = Status::new(Arc::new(Flags::parse_from(["serve"]).args));
        let address = listening(router(Pulse::start(), core, status)).await;
        let mut all = String::new();
        for path in [paths::LIVE, paths::READY, paths::METRICS, "/status"] {
            all.push_str(&asked(address, path).await);
        }
        assert!(all.contains("mooring_mounter_tripped_servers 1"), "{all}");
        // The server, the volume, its Pod and the Pod's namespace.
        for name in ["dead", "plans", "web", "shop"] {
            assert!(!all.contains(name), "{name} is in {all}");
        }
    }

    #[tokio::test]
    async fn a_daemon_that_hangs_is_not_taken_to_be_alive_by_the_thread_that_answers_for_it() {
        let pulse = Pulse::start();
        assert!(pulse.is_felt(Instant::now()));
        assert!(!pulse.is_felt(Instant::now() + STILL));
    }

    #[tokio::test]
    async fn silent_callers_keep_no_other_from_its_answer_and_connections_stay_limited() {
        let address = listening(Router::new().route(paths::LIVE, get(async || "ok\n"))).await;
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS * 2 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /livez HT").await.unwrap();
            silent.push(stream);
        }
        let answer = asked(address, paths::LIVE).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"),
            "{answer}"
        );
        // The oldest had to go.
        let gone = silent[0].read(&mut [0; 16]).await;
        assert!(gone.is_err() || gone.is_ok_and(|read| read == 0));
    }
}
