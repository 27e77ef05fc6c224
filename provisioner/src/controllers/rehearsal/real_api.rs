//! Kubernetes' own API server and its etcd, without nodes and without controllers, and the proxy before it. Its calls
//! block; its watches are dropped and expire as a seed says, and those of a kind are held back on request.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use axum::body::Body as Answer;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::addresses::{Kind, addressed, status};
use super::policies::{CONTROLLER, shipped};

/// Longest until the API server answers: it starts beside much else.
const START: Duration = Duration::from_mins(3);

/// How often a watch that is held back looks whether it may go on.
const HELD: Duration = Duration::from_millis(5);

/// Of the administrator and of the controller, whom the policies are about.
const TOKENS: [(&str, &str); 2] = [("administrator", "admin"), ("controller", CONTROLLER)];

/// A handle; the programs end with the last one.
#[derive(Clone)]
pub(super) struct RealApi(Arc<Cluster>);

impl fmt::Debug for RealApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RealApi")
    }
}

struct Cluster {
    /// Of the calls, which the thread of a test waits for.
    runtime: Runtime,
    /// Of the users of [`TOKENS`].
    clients: [Client; 2],
    folder: PathBuf,
    programs: Vec<Child>,
    chance: Mutex<u64>,
    watches: Arc<Watches>,
}

/// What those who pass watches on know: they may outlive the last handle.
#[derive(Debug, Default)]
struct Watches {
    held: Mutex<BTreeSet<Kind>>,
    expired: AtomicUsize,
    dropped: AtomicUsize,
}

impl Watches {
    fn are_held(&self, kind: Option<Kind>) -> bool {
        let held = self.held.lock().unwrap();
        kind.is_some_and(|kind| held.contains(kind))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for program in &mut self.programs {
            let _ = program.kill();
            let _ = program.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What becomes of a watch.
#[derive(Debug, Clone, Copy)]
enum Lot {
    /// It has expired: its client has to list again.
    Expires,
    /// After so many pieces it ends, as the API server ends one.
    Ends(u64),
    /// After so many pieces its connection breaks.
    Breaks(u64),
}

/// The newest program of this name that the testbed has built, of the version that it takes for itself.
fn program(folder: &str, name: &str) -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
    let built = fs::read_dir(cache.join("mooring")).ok()?.flatten();
    let is_of_name = |name: &str| name.starts_with(folder) && !name.contains('.');
    let of_name = built.filter(|entry| is_of_name(&entry.file_name().to_string_lossy()));
    let programs = of_name
        .map(|entry| entry.path().join(name))
        .filter(|path| path.is_file());
    programs.max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok())
}

/// The CRDs of snapshots, which allow anything.
fn crds() -> Vec<Value> {
    let kinds = [
        ("VolumeSnapshotContent", "volumesnapshotcontents", "Cluster"),
        ("VolumeSnapshotClass", "volumesnapshotclasses", "Cluster"),
        ("VolumeSnapshot", "volumesnapshots", "Namespaced"),
    ];
    let group = crate::volume::snapshot::GROUP;
    let crd = |(kind, plural, scope): (&str, &str, &str)| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}"),
                         "annotations": {"api-approved.kubernetes.io": "unapproved, a model's"}},
            "spec": {
                "group": group, "scope": scope,
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{
                    "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                }],
            },
        })
    };
    kinds.into_iter().map(crd).collect()
}

/// Makes the key that signs tokens, of which there are none.
fn make_key(folder: &Path) {
    let mut openssl = Command::new("openssl");
    openssl.args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key.pem"]);
    let made = openssl.current_dir(folder).output().unwrap();
    assert!(
        made.status.success(),
        "openssl made no key: {}",
        String::from_utf8_lossy(&made.stderr)
    );
}

fn spawn(program: &Path, folder: &Path, flags: &[String]) -> Child {
    let log = fs::File::create(folder.join(program.file_name().unwrap()).with_extension("log")).unwrap();
    // It ends with the test, however that ends.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program).args(flags);
    command.current_dir(folder).stdin(Stdio::null());
    command.stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap()
}

impl RealApi {
    /// Starts both programs; `None`, which it says, where the testbed has not built them.
    pub(super) fn start() -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);

        let programs = program("etcd-", "etcd").zip(program("kubernetes-", "kube-apiserver"));
        let Some((etcd, api_server)) = programs else {
            // Past the capture of a test's output: the suite counts such lines.
            let thread = std::thread::current();
            let test = thread.name().unwrap_or_default();
            let _ = writeln!(
                std::io::stderr(),
                "testbed-skipped: {test}: the testbed has not built Kubernetes yet"
            );
            return None;
        };
        let nth = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("mooring-model-{}-{nth}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        make_key(&folder);
        let tokens = TOKENS.map(|(token, user)| format!("{token},{user},{token}\n"));
        fs::write(folder.join("tokens.csv"), tokens.concat()).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let socket = |name: &str| format!("unix://{}/{name}.sock", folder.display());
        let etcd_flags = [
            "--name=model".to_owned(),
            format!("--data-dir={}/etcd", folder.display()),
            format!("--listen-client-urls={}", socket("client")),
            "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
            format!("--listen-peer-urls={}", socket("peer")),
            "--initial-advertise-peer-urls=http://127.0.0.1:2380".to_owned(),
            "--initial-cluster=model=http://127.0.0.1:2380".to_owned(),
            "--unsafe-no-fsync=true".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        let api_flags = [
            format!("--etcd-servers={}", socket("client")),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--secure-port={port}"),
            format!("--cert-dir={}/certificates", folder.display()),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-account-signing-key-file=key.pem".to_owned(),
            "--service-account-key-file=key.pem".to_owned(),
            "--token-auth-file=tokens.csv".to_owned(),
            "--authorization-mode=AlwaysAllow".to_owned(),
            // There are no controllers that would take its finalizers off, and no service accounts.
            "--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection".to_owned(),
        ];
        let programs = vec![
            spawn(&etcd, &folder, &etcd_flags),
            spawn(&api_server, &folder, &api_flags),
        ];
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let clients = TOKENS.map(|(token, _)| {
            let _in = runtime.enter();
            let mut config = Config::new(format!("https://127.0.0.1:{port}").parse().unwrap());
            config.accept_invalid_certs = true;
            config.auth_info.token = Some(token.to_owned().into());
            config.read_timeout = None;
            Client::try_from(config).unwrap()
        });
        let api = Self(Arc::new(Cluster {
            runtime,
            clients,
            folder,
            programs,
            chance: Mutex::new(1),
            watches: Arc::default(),
        }));
        api.until("/readyz", 200);
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "admin"}});
        api.must(&Method::POST, "/api/v1/namespaces", &namespace);
        for crd in crds() {
            api.must(
                &Method::POST,
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                &crd,
            );
            let plural = crd["spec"]["names"]["plural"].as_str().unwrap();
            api.until(&format!("/apis/{}/v1/{plural}", crate::volume::snapshot::GROUP), 200);
        }
        api.until("/api/v1/namespaces/default", 200);
        api.install_policies();
        Some(api)
    }

    /// Installs the shipped policies, and waits until they are in force.
    fn install_policies(&self) {
        for (kind, plural) in [
            ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
            ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
        ] {
            for object in shipped().iter().filter(|object| object["kind"] == kind) {
                self.must(
                    &Method::POST,
                    &format!("/apis/admissionregistration.k8s.io/v1/{plural}"),
                    object,
                );
            }
        }
        // One of the last.
        let others = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "others"},
                            "provisioner": "example.com/other"});
        let target = "/apis/storage.k8s.io/v1/storageclasses?dryRun=All";
        self.until_so("the policies are in force", || {
            self.call_by_controller(&Method::POST, target, &others).0 == StatusCode::UNPROCESSABLE_ENTITY
        });
    }

    fn until(&self, target: &str, code: u16) {
        self.until_so(&format!("{code} at {target}"), || {
            self.call(&Method::GET, target, &Value::Null).0.as_u16() == code
        });
    }

    fn until_so(&self, what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            let log = || fs::read_to_string(self.0.folder.join("kube-apiserver.log")).unwrap_or_default();
            assert!(begun.elapsed() < START, "not so: {what}: {}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// What the proxy does from now on to watches is this seed's.
    pub(super) fn begin(&self, seed: u64) {
        *self.0.chance.lock().unwrap() = seed | 1;
        self.hold(&[]);
    }

    /// Holds back the watches of these kinds, and lets go all others.
    pub(super) fn hold(&self, kinds: &[Kind]) {
        *self.0.watches.held.lock().unwrap() = kinds.iter().copied().collect();
    }

    /// How many watches have expired so far, and how many were dropped.
    pub(super) fn watches(&self) -> [usize; 2] {
        [&self.0.watches.expired, &self.0.watches.dropped].map(|count| count.load(Ordering::Relaxed))
    }

    /// A number that the seed draws, less than this.
    pub(super) fn draw(&self, below: u64) -> u64 {
        let mut chance = self.0.chance.lock().unwrap();
        // Marsaglia's xorshift.
        *chance ^= *chance << 13;
        *chance ^= *chance >> 7;
        *chance ^= *chance << 17;
        *chance % below
    }

    fn lot(&self) -> Lot {
        match self.draw(16) {
            0 => Lot::Expires,
            1 => Lot::Breaks(self.draw(10)),
            _ => Lot::Ends(self.draw(20)),
        }
    }

    /// A call that has to succeed; its answer.
    pub(super) fn must(&self, method: &Method, target: &str, body: &Value) -> Value {
        let (code, answer) = self.call(method, target, body);
        assert!(code.is_success(), "{method} {target}: {answer:#}\nbody: {body:#}");
        answer
    }

    /// A call, which blocks this thread.
    pub(super) fn call(&self, method: &Method, target: &str, body: &Value) -> (StatusCode, Value) {
        self.call_by(&self.0.clients[0], method, target, body)
    }

    /// The same by the controller.
    pub(super) fn call_by_controller(&self, method: &Method, target: &str, body: &Value) -> (StatusCode, Value) {
        self.call_by(&self.0.clients[1], method, target, body)
    }

    fn call_by(&self, client: &Client, method: &Method, target: &str, body: &Value) -> (StatusCode, Value) {
        let content = match *method {
            Method::PATCH if body.is_array() => "application/json-patch+json",
            Method::PATCH if body["metadata"]["$deleteFromPrimitiveList/finalizers"].is_array() => {
                "application/strategic-merge-patch+json"
            }
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let bytes = if body.is_null() {
            vec![]
        } else {
            body.to_string().into_bytes()
        };
        let request = Request::builder().method(method).uri(target);
        let request = request.header(http::header::CONTENT_TYPE, content);
        let request = request.body(Body::from(bytes)).unwrap();
        let (client, (answered, answer)) = (client.clone(), mpsc::channel());
        self.0.runtime.spawn(async move {
            let result = async {
                let response = client.send(request).await.map_err(|error| error.to_string())?;
                let (head, body) = response.into_parts();
                let body = body.collect_bytes().await.map_err(|error| error.to_string())?;
                let body = serde_json::from_slice(&body)
                    .unwrap_or_else(|_| json!(String::from_utf8_lossy(&body).into_owned()));
                Ok((head.status, body))
            };
            let _ = answered.send(result.await);
        });
        let failed = |why: String| (StatusCode::BAD_GATEWAY, json!(why));
        answer.recv().unwrap().unwrap_or_else(failed)
    }

    /// A watch, as the proxy lets it through.
    pub(super) async fn watch(&self, path: &str, query: &str) -> Response<Answer> {
        let kind = addressed(path).map(|addressed| addressed.kind);
        let lot = self.lot();
        if let Lot::Expires = lot {
            self.0.watches.expired.fetch_add(1, Ordering::Relaxed);
            let expired = status(StatusCode::GONE, "too old resource version").1;
            let line = format!("{}\n", json!({"type": "ERROR", "object": expired}));
            return Response::new(Answer::from(line));
        }
        let (begun, begins) = tokio::sync::oneshot::channel();
        let (give, mut pieces) = tokio::sync::mpsc::unbounded_channel();
        let (client, watches) = (self.0.clients[1].clone(), Arc::clone(&self.0.watches));
        let request = Request::builder().uri(format!("{path}?{query}"));
        let request = request.body(Body::empty()).unwrap();
        self.0.runtime.spawn(async move {
            let Ok(response) = client.send(request).await else {
                return;
            };
            let (head, body) = response.into_parts();
            let _ = begun.send(head.status);
            let mut body = Answer::new(body).into_data_stream();
            let (Lot::Ends(count) | Lot::Breaks(count)) = lot else {
                return;
            };
            for _ in 0..=count {
                let piece = tokio::select! {
                    () = give.closed() => return,
                    piece = body.next() => piece,
                };
                let Some(Ok(piece)) = piece else { return };
                while watches.are_held(kind) {
                    tokio::time::sleep(HELD).await;
                }
                if give.send(Ok(piece)).is_err() {
                    return;
                }
            }
            watches.dropped.fetch_add(1, Ordering::Relaxed);
            if let Lot::Breaks(_) = lot {
                let _ = give.send(Err("the connection broke"));
            }
        });
        let code = begins.await.unwrap_or(StatusCode::BAD_GATEWAY);
        let pieces = futures::stream::poll_fn(move |context| pieces.poll_recv(context));
        Response::builder()
            .status(code)
            .body(Answer::from_stream(pieces))
            .unwrap()
    }
}
