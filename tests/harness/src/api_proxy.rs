//! A proxy between the controller and the real API server. It records every call, and makes chosen calls fail.
//!
//! A fault belongs to one claim and one step of its life, so many claims can each have a fault of their own at the same
//! time. The steps are learned by recording a life without faults; there is no list of them.

mod call;
mod fault;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{PostParams, ResourceExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use mooring_contract::names::NAMESPACE;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use call::Step;
pub use fault::Fault;

use self::call::{Known, name};
use super::provisioner::claim;
use super::scope::Scope;
use super::waits::wait_until;
use mooring_testbed::command::output;

/// Longest until a client has started its watches again: it waits a moment after one that broke.
const RENEW_LIMIT: Duration = Duration::from_mins(2);

/// Largest request that the proxy forwards.
const LARGEST: usize = 8 << 20;

/// How many of a claim's calls the message of a failure shows.
const LAST_STEPS: usize = 40;

/// A claim, and what is planned for its life.
#[derive(Debug, Default)]
struct Life {
    known: Known,
    /// The calls that concern it, in order.
    steps: Vec<Step>,
    planned: Vec<(Step, Fault)>,
    done: Vec<(Step, Fault)>,
}

struct Shared {
    upstream: Client,
    /// By the claim's name.
    lives: Mutex<BTreeMap<String, Life>>,
    /// Held while a claim is created whose uid has to be known before any call about it.
    gate: tokio::sync::RwLock<()>,
    /// Changes when all watches are to end. Each open watch has a receiver.
    cut: watch::Sender<u64>,
    /// How many watches were started.
    watches: AtomicUsize,
    /// How late watches deliver changes, in milliseconds.
    lag: AtomicU64,
    /// How many pieces of watches came late.
    lagged: AtomicUsize,
    events_fail: AtomicBool,
    /// Kills the controller, waits until it is dead, and starts another.
    kill: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

impl Shared {
    fn new(upstream: Client) -> Self {
        Self {
            upstream,
            lives: Mutex::default(),
            gate: tokio::sync::RwLock::default(),
            cut: watch::channel(0).0,
            watches: AtomicUsize::new(0),
            lag: AtomicU64::new(0),
            lagged: AtomicUsize::new(0),
            events_fail: AtomicBool::new(false),
            kill: Mutex::default(),
        }
    }
}

/// A proxy that runs until it is dropped.
pub struct ApiProxy {
    /// Where it listens, `http://127.0.0.1:port`.
    pub address: String,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

impl Drop for ApiProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl ApiProxy {
    /// Starts a proxy that talks to the API server with the rights of Mooring's controller.
    pub async fn start(scope: &Scope) -> Result<Self> {
        let account = ["-n", NAMESPACE, "create", "token", "flex-provisioner", "--duration=2h"];
        let token = output(&mut scope.target.kubectl(account))?;
        let path = scope.target.kubeconfig.as_ref().context("no kubeconfig")?;
        let mut file = Kubeconfig::read_from(path).context("failed to read the kubeconfig")?;
        for user in &mut file.auth_infos {
            user.auth_info = Some(kube::config::AuthInfo {
                token: Some(token.trim().to_owned().into()),
                ..Default::default()
            });
        }
        let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .context("failed to understand the kubeconfig")?;
        config.read_timeout = None;
        let upstream = Client::try_from(config).context("failed to make a client")?;
        let listener = TcpListener::bind("127.0.0.1:0").await.context("failed to listen")?;
        let address = format!("http://{}", listener.local_addr().context("no address")?);
        let shared = Arc::new(Shared::new(upstream));
        let app = Router::new().fallback(handle).with_state(shared.clone());
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                mooring_testbed::progress::note(format!("the API proxy ended: {error}"));
            }
        });
        Ok(Self {
            address,
            shared,
            server,
        })
    }

    /// Sets how to kill the controller, wait until it is dead, and start another.
    pub fn on_kill(&self, kill: impl Fn() + Send + Sync + 'static) {
        *lock(&self.shared.kill) = Some(Arc::new(kill));
    }

    /// Creates a claim with this fault in its life; returns its uid.
    pub async fn claim(&self, scope: &Scope, name: &str, class: &str, fault: Option<(&Step, Fault)>) -> Result<String> {
        let wanted = serde_json::from_value(claim(name, class, "16Mi")).context("no claim")?;
        let claims: Api<PersistentVolumeClaim> = scope.api();
        // No call about the claim is forwarded before its uid is known here. This is a single call, and no program such
        // as kubectl: it is over before a waiting controller times out.
        let _shut = self.shared.gate.write().await;
        let made = claims.create(&PostParams::default(), &wanted).await;
        let made = made.with_context(|| format!("failed to make the claim {name}"))?;
        let uid = made.uid().context("a claim without a uid")?;
        let life = Life {
            known: Known {
                namespace: scope.namespace.clone(),
                name: name.to_owned(),
                uid: uid.clone(),
            },
            planned: fault.map(|(step, fault)| (step.clone(), fault)).into_iter().collect(),
            ..Life::default()
        };
        lock(&self.shared.lives).insert(name.to_owned(), life);
        Ok(uid)
    }

    /// Plans a fault for the rest of a claim's life, whose steps count from 1 again.
    pub fn plan(&self, name: &str, fault: Option<(&Step, Fault)>) {
        if let Some(life) = lock(&self.shared.lives).get_mut(name) {
            life.steps.clear();
            life.planned = fault.map(|(step, fault)| (step.clone(), fault)).into_iter().collect();
        }
    }

    /// The calls for a claim since it was created or last planned for.
    pub fn steps(&self, name: &str) -> Vec<Step> {
        lock(&self.shared.lives)
            .get(name)
            .map(|life| life.steps.clone())
            .unwrap_or_default()
    }

    /// Faults at such steps that have not happened yet, by claim.
    pub fn pending(&self, at: impl Fn(&Step) -> bool) -> Vec<String> {
        let lives = lock(&self.shared.lives);
        let planned = lives
            .iter()
            .flat_map(|(name, life)| life.planned.iter().map(move |(step, fault)| (name, step, fault)));
        planned
            .filter(|(_, step, _)| at(step))
            .map(|(name, step, fault)| format!("{name}: {fault:?} at {step}"))
            .collect()
    }

    /// The calls and faults of a claim, for the message of a failure.
    pub fn story(&self, name: &str) -> String {
        let lives = lock(&self.shared.lives);
        let Some(life) = lives.get(name) else {
            return String::new();
        };
        let last = life.steps.len().saturating_sub(LAST_STEPS);
        let steps: Vec<String> = life.steps[last..].iter().map(|step| format!("\n  {step}")).collect();
        format!("{name} ({:?}):{}", life.done, steps.concat())
    }

    /// Ends all watches: now as a server does, now as a broken connection does.
    pub fn cut_watches(&self) {
        self.shared.cut.send_modify(|count| *count += 1);
    }

    /// [`Self::cut_watches`], and waits until as many were started again.
    pub async fn renew_watches(&self) -> Result<()> {
        let started = || self.shared.watches.load(Ordering::Relaxed);
        let wanted = started() + self.shared.cut.receiver_count();
        self.cut_watches();
        wait_until("the watches that were cut to start again", RENEW_LIMIT, async || {
            let now = started();
            ensure!(now >= wanted, "{} are missing", wanted - now);
            Ok(Some(()))
        })
        .await
    }

    /// Makes watches deliver changes late.
    pub fn lag_watches(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.shared.lag.store(millis, Ordering::Relaxed);
    }

    /// How many pieces of watches have come late.
    pub fn lagged(&self) -> usize {
        self.shared.lagged.load(Ordering::Relaxed)
    }

    pub fn fail_events(&self, fail: bool) {
        self.shared.events_fail.store(fail, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn handle(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = match to_bytes(body, LARGEST).await {
        Ok(body) => body,
        Err(error) => return fault::bad_gateway(&error.to_string()),
    };
    let query = parts.uri.query().unwrap_or_default();
    if query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1") {
        return watched(&shared, &parts, body).await;
    }
    let path = parts.uri.path();
    if path.contains("/events") {
        if shared.events_fail.load(Ordering::Relaxed) {
            return fault::status(500, None);
        }
        return pass_on(&shared, &parts, body).await;
    }
    // A client that gives up here drops this future. Its call does not count then, and the fault stays for its next
    // call.
    let fault = {
        let _open = shared.gate.read().await;
        take_fault(&shared, &parts.method, path, &body)
    };
    let Some(fault) = fault else {
        return pass_on(&shared, &parts, body).await;
    };
    // A task of its own: a fault that was taken happens even if the client gives up.
    let carried_out = tokio::spawn(async move { carry_out(&shared, fault, &parts, body).await });
    let answer = match carried_out.await {
        Ok(answer) => answer,
        Err(error) => return fault::bad_gateway(&error.to_string()),
    };
    match fault {
        // Until the client gives up.
        Fault::Silence => std::future::pending().await,
        Fault::Late(by) => {
            tokio::time::sleep(by).await;
            answer
        }
        _ => answer,
    }
}

/// Applies the planned fault to a call; returns the answer that the client still gets.
async fn carry_out(shared: &Shared, fault: Fault, parts: &http::request::Parts, body: Bytes) -> Response {
    match fault {
        Fault::KilledBefore => {
            kill(shared).await;
            fault::bad_gateway("nobody hears this")
        }
        Fault::KilledAfter => {
            let answer = pass_on(shared, parts, body).await;
            kill(shared).await;
            answer
        }
        Fault::Status(code) => fault::status(code, Some(&parts.method)),
        Fault::BrokenOff => fault::broken_off(pass_on(shared, parts, body).await),
        Fault::Silence | Fault::Late(_) => pass_on(shared, parts, body).await,
    }
}

/// Notes the call in the claim's life; returns the fault planned for it.
fn take_fault(shared: &Shared, method: &http::Method, path: &str, body: &[u8]) -> Option<Fault> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let mut lives = lock(&shared.lives);
    for life in lives.values_mut() {
        let Some(name) = name(&life.known, method, path, &body) else {
            continue;
        };
        let before = life.steps.iter().filter(|step| step.name == name).count();
        let step = Step { name, nth: before + 1 };
        life.steps.push(step.clone());
        let at = life.planned.iter().position(|(planned, _)| *planned == step)?;
        let planned = life.planned.remove(at);
        let fault = planned.1;
        life.done.push(planned);
        return Some(fault);
    }
    None
}

async fn kill(shared: &Shared) {
    let kill = lock(&shared.kill).clone();
    if let Some(kill) = kill {
        let _ = tokio::task::spawn_blocking(move || kill()).await;
    }
}

async fn send(
    shared: &Shared,
    parts: &http::request::Parts,
    body: Bytes,
) -> Result<http::Response<kube::client::Body>> {
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut request = http::Request::builder().method(parts.method.clone()).uri(target);
    for name in [http::header::ACCEPT, http::header::CONTENT_TYPE] {
        if let Some(value) = parts.headers.get(&name) {
            request = request.header(name, value);
        }
    }
    let request = request.body(kube::client::Body::from(body.to_vec()))?;
    Ok(shared.upstream.send(request).await?)
}

async fn pass_on(shared: &Shared, parts: &http::request::Parts, body: Bytes) -> Response {
    match send(shared, parts, body).await {
        Ok(answer) => {
            let (head, body) = answer.into_parts();
            // Read to the end, so that what follows happens after the call's effect.
            match to_bytes(Body::new(body), usize::MAX).await {
                Ok(body) => answered(&head, Body::from(body)),
                Err(error) => fault::bad_gateway(&error.to_string()),
            }
        }
        Err(error) => fault::bad_gateway(&format!("{error:#}")),
    }
}

/// A watch: forwarded chunk by chunk, late if wanted, until it is cut.
async fn watched(shared: &Arc<Shared>, parts: &http::request::Parts, body: Bytes) -> Response {
    let mut cut = shared.cut.subscribe();
    let answer = match send(shared, parts, body).await {
        Ok(answer) => answer,
        Err(error) => return fault::bad_gateway(&format!("{error:#}")),
    };
    shared.watches.fetch_add(1, Ordering::Relaxed);
    let (head, body) = answer.into_parts();
    let lag = Duration::from_millis(shared.lag.load(Ordering::Relaxed));
    // The delay is the same for each chunk, since this reads them as they arrive.
    let (late, mut due) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut pieces = Body::new(body).into_data_stream();
        loop {
            let piece = tokio::select! {
                () = late.closed() => return,
                piece = pieces.next() => piece,
            };
            let Some(piece) = piece else { return };
            if late.send((Instant::now() + lag, piece)).is_err() {
                return;
            }
        }
    });
    let delaying = Arc::clone(shared);
    let pieces = futures::stream::poll_fn(move |context| due.poll_recv(context)).then(move |(when, piece)| {
        let shared = Arc::clone(&delaying);
        async move {
            tokio::time::sleep_until(when).await;
            shared.lagged.fetch_add(usize::from(!lag.is_zero()), Ordering::Relaxed);
            piece
        }
    });
    let ended = async move {
        if cut.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        cut.borrow().is_multiple_of(2)
    };
    let pieces = Box::pin(pieces);
    let stream = futures::stream::unfold((pieces, Some(Box::pin(ended))), |(mut pieces, ended)| async move {
        let mut ended = ended?;
        tokio::select! {
            broken = &mut ended => broken.then(|| (Err(axum::Error::new(std::io::Error::other("cut"))), (pieces, None))),
            piece = pieces.next() => piece.map(|piece| (piece, (pieces, Some(ended)))),
        }
    });
    answered(&head, Body::from_stream(stream))
}

fn answered(head: &http::response::Parts, body: Body) -> Response {
    let mut response = (head.status, body).into_response();
    if let Some(kind) = head.headers.get(http::header::CONTENT_TYPE) {
        response.headers_mut().insert(http::header::CONTENT_TYPE, kind.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use axum::Router;
    use kube::{Client, Config};
    use tokio::net::TcpListener;
    use tokio::time::{sleep, timeout};

    use super::{Fault, Known, Life, Shared, Step, handle, lock};

    /// How long the API server takes.
    const SLOW: Duration = Duration::from_millis(600);
    const PATIENCE: Duration = Duration::from_secs(1);

    async fn serve(app: Router) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Client::try_from(Config::new(address.parse().unwrap())).unwrap()
    }

    /// A proxy and a claim whose first patch has this fault, and counters of the patches that reached the API server
    /// and of the kills.
    async fn proxy(fault: Fault) -> (Arc<Shared>, Client, [Arc<AtomicUsize>; 2]) {
        let [arrived, killed] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let (count, kills) = (arrived.clone(), killed.clone());
        let upstream = Router::new().fallback(move || {
            count.fetch_add(1, Ordering::Relaxed);
            async {
                sleep(SLOW).await;
                "{}"
            }
        });
        let shared = Arc::new(Shared::new(serve(upstream).await));
        *lock(&shared.kill) = Some(Arc::new(move || {
            kills.fetch_add(1, Ordering::Relaxed);
        }));
        let step = Step {
            name: "PATCH persistentvolumeclaims".into(),
            nth: 1,
        };
        let life = Life {
            known: Known {
                namespace: "t".into(),
                name: "a".into(),
                uid: "u".into(),
            },
            planned: vec![(step, fault)],
            ..Life::default()
        };
        lock(&shared.lives).insert("a".into(), life);
        let client = serve(Router::new().fallback(handle).with_state(shared.clone())).await;
        (shared, client, [arrived, killed])
    }

    async fn patch(client: &Client) -> kube::Result<String> {
        let path = "/api/v1/namespaces/t/persistentvolumeclaims/a";
        let request = http::Request::patch(path).body(b"{}".to_vec()).unwrap();
        client.request_text(request).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_call_that_is_given_up_at_the_gate_leaves_its_fault_to_the_next() {
        let (shared, client, [arrived, _]) = proxy(Fault::Status(500)).await;
        let shut = shared.gate.write().await;
        assert!(timeout(PATIENCE, patch(&client)).await.is_err());
        // The proxy notices a moment later.
        sleep(PATIENCE).await;
        drop(shut);
        sleep(PATIENCE).await;
        assert_eq!(lock(&shared.lives)["a"].steps.len(), 0);
        assert!(patch(&client).await.is_err());
        assert_eq!(lock(&shared.lives)["a"].done.len(), 1);
        assert_eq!(arrived.load(Ordering::Relaxed), 0);
        assert_eq!(patch(&client).await.unwrap(), "{}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_fault_that_was_taken_happens_although_its_client_gave_up() {
        let (shared, client, [arrived, killed]) = proxy(Fault::KilledAfter).await;
        let becomes_one = async |count: &AtomicUsize| {
            while count.load(Ordering::Relaxed) == 0 {
                sleep(SLOW / 10).await;
            }
            assert_eq!(count.load(Ordering::Relaxed), 1);
        };
        let given_up = tokio::spawn(async move { patch(&client).await });
        becomes_one(&arrived).await;
        given_up.abort();
        becomes_one(&killed).await;
        assert_eq!(lock(&shared.lives)["a"].done.len(), 1);
    }
}
