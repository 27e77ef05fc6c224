//! The base of the end-to-end tests in `tests/e2e/`: a cluster; a namespace per test, which must be gone after it; a
//! folder with all information when a test fails; and time limits for the test and its waits.
//!
//! ```no_run
//! use mooring_harness::in_namespace;
//!
//! #[test]
//! fn a_pod_runs() {
//!     in_namespace("a-pod-runs", async |scope| {
//!         scope.apply("…")?;
//!         scope.pod_ready("writer").await?;
//!         assert_eq!(scope.exec("writer", ["cat", "/data/f"])?, "x\n");
//!         Ok(())
//!     });
//! }
//! ```
#![forbid(unsafe_code)]

pub mod api_proxy;
pub mod audit;
pub mod backend;
pub mod bare_machine;
mod census;
pub mod ceph;
pub mod children;
pub mod clients;
pub mod controller;
pub mod counting;
pub mod credentials;
mod drop_in;
mod glusterfs;
pub mod guest_node;
pub mod hidden;
pub mod iscsi;
pub mod kit;
mod leaks;
pub mod lots;
pub mod migrate;
mod namespace;
pub mod nodes;
pub mod own_mounter;
pub mod processes;
pub mod provisioner;
mod results;
pub mod rights;
pub mod rollout;
pub mod server;
mod skip;
pub mod smb;
pub mod snapshots;
pub mod ssh;
mod time_limit;
pub mod volumes;
mod waiting;
mod waits;
mod web;
mod writer;

use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::FutureExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume};
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use serde_json::json;

use mooring_testbed::command::{line, output, output_with_input};
use mooring_testbed::layout::Layout;
use mooring_testbed::progress::note;
use mooring_testbed::target::{EXISTING_VARIABLE, Target, TargetArgs};

use results::Failed;
use time_limit::{CLEAN_LIMIT, SHOW_LIMIT, watched, within};
use waiting::wait_for;

pub use results::RESULTS_VARIABLE;
pub use skip::{SKIPPED_MARK, skip};
pub use time_limit::TEST_LIMIT;
pub use waiting::WAITS_VARIABLE;
pub use waits::wait_until;

/// Environment variable: keep the namespaces of failed tests for a person to look at.
pub const KEEP_VARIABLE: &str = "MOORING_TESTBED_KEEP";

/// Longest wait for a test's namespace and volumes to be gone.
const GONE_LIMIT: Duration = Duration::from_mins(2);

/// A test's namespace, and the cluster that it is on.
#[derive(Clone)]
pub struct Scope {
    /// The cluster.
    pub target: Target,
    /// A client with all rights.
    pub client: Client,
    /// The namespace's name.
    pub namespace: String,
    /// By what factor a wait may be longer here than on the testbed's usual nodes.
    patience: u32,
}

/// Runs a test in a namespace of its own, named after `name`, for [`TEST_LIMIT`] at most.
///
/// # Panics
/// If the test fails or does not end in time; a folder then has all information. Also if the namespace, or a
/// PersistentVolume of one of its claims that is not to be retained, still exists two minutes after the test, or if the
/// cluster holds more than before once no test runs: such a leak is a failure of Mooring, not of the test.
pub fn in_namespace<F>(name: &str, test: F)
where
    F: AsyncFnOnce(Scope) -> Result<()>,
{
    in_namespace_within(TEST_LIMIT, name, test);
}

/// How long a test and its waits may take.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// The whole test.
    test: Duration,
    /// By what factor a wait for Kubernetes or Mooring may be longer than on the testbed's usual nodes.
    patience: u32,
}

impl From<Duration> for Limits {
    fn from(test: Duration) -> Self {
        Self { test, patience: 1 }
    }
}

/// [`in_namespace`] for a test that takes longer than others.
///
/// # Panics
/// Like [`in_namespace`].
pub fn in_namespace_within<F>(limit: Duration, name: &str, test: F)
where
    F: AsyncFnOnce(Scope) -> Result<()>,
{
    in_namespace_with(limit.into(), name, test);
}

fn in_namespace_with<F>(limits: Limits, name: &str, test: F)
where
    F: AsyncFnOnce(Scope) -> Result<()>,
{
    let result = open_target().and_then(|target| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("failed to start the runtime")?
            .block_on(run_with(target, limits, name, test))
    });
    if let Err(error) = result {
        panic!("{name}: {error:#}");
    }
}

/// Runs a function in a namespace of its own, with the same checks at the end as [`in_namespace_within`], on a cluster
/// that is open already.
pub async fn run<F>(target: Target, limit: Duration, name: &str, test: F) -> Result<()>
where
    F: AsyncFnOnce(Scope) -> Result<()>,
{
    run_with(target, limit.into(), name, test).await
}

async fn run_with<F>(target: Target, limits: Limits, name: &str, test: F) -> Result<()>
where
    F: AsyncFnOnce(Scope) -> Result<()>,
{
    let counted = leaks::begin(&target, name)?;
    let scope = Scope::open(target, name, limits.patience).await?;
    let failed = Failed::of(&scope, name);
    let show = |error: &anyhow::Error| {
        waiting::begin("showing what there is", SHOW_LIMIT);
        failed.show(error);
    };
    let _watched = watched(failed.clone());
    let mut shown = false;
    let act = AssertUnwindSafe(test(scope.clone())).catch_unwind();
    let act = async { act.await.unwrap_or_else(|panic| bail!(panic_message(panic.as_ref()))) };
    let outcome = within("the test", limits.test, act, |error| {
        shown = true;
        show(error);
    })
    .await;
    if let Err(error) = &outcome {
        if !shown {
            show(error);
        }
        if std::env::var_os(KEEP_VARIABLE).is_some() {
            note(format!("{KEEP_VARIABLE} is set: namespace {} stays", scope.namespace));
            return outcome;
        }
    }
    let close = async {
        let closed = scope.close().await;
        let swept = counted.map_or(Ok(()), |counted| counted.end(outcome.is_err() || closed.is_err()));
        closed.and(swept)
    };
    let closed = within("cleaning up after the test", CLEAN_LIMIT, close, |_| ()).await;
    match (&outcome, &closed) {
        (Ok(()), Err(error)) => show(error),
        (Err(_), Err(error)) => note(format!("{}: {error:#}", failed.test())),
        _ => {}
    }
    outcome.and(closed)
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("the test panicked")
        .to_owned()
}

/// The cluster that tests run on; starts the testbed's own if it does not run.
pub fn open_target() -> Result<Target> {
    // Tests of one program start at once: the first one starts the cluster, the others wait for it.
    static OPENED: Mutex<Option<Target>> = Mutex::new(None);
    let mut opened = OPENED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(target) = &*opened {
        return Ok(target.clone());
    }
    let args = TargetArgs {
        existing: std::env::var_os(EXISTING_VARIABLE).is_some(),
        ..TargetArgs::default()
    };
    let target = args.open(&Layout::from_env()?)?;
    *opened = Some(target.clone());
    Ok(target)
}

/// A client of the cluster, with all rights or as a user who has only what RBAC gives.
pub async fn client(target: &Target, user: Option<(&str, &[&str])>) -> Result<Client> {
    let kubeconfig = match &target.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    }
    .context("failed to read the kubeconfig")?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .context("failed to understand the kubeconfig")?;
    if let Some((user, groups)) = user {
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some(groups.iter().map(|&group| group.to_owned()).collect());
    }
    Client::try_from(config).context("failed to make a client")
}

/// Runs a command to its end and returns what it printed. A test that takes too long says that it waits for the
/// command.
pub(crate) fn said_by(command: &mut std::process::Command) -> Result<String> {
    let _waiting = wait_for(line(command));
    Ok(output(command)?)
}

impl Scope {
    async fn open(target: Target, name: &str, patience: u32) -> Result<Self> {
        let client = client(&target, None).await?;
        // The name is unique without coordination: the API server tries generated names until one is free.
        let namespace: Namespace = serde_json::from_value(json!({
            "metadata": {"generateName": format!("{name}-"), "labels": {leaks::TESTS_LABEL: name}},
        }))
        .context("failed to write a namespace")?;
        let made = Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("failed to make a namespace for {name}"))?;
        let namespace = made.metadata.name.context("a namespace without a name")?;
        let scope = Self {
            target,
            client,
            namespace,
            patience,
        };
        // No Pod can be created in it before its service account exists.
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = scope.api();
        wait_until("the namespace's service account", Duration::from_secs(30), async || {
            Ok(accounts.get_opt("default").await?)
        })
        .await?;
        Ok(scope)
    }

    /// The same test in another namespace, which the test does not delete.
    #[must_use]
    pub fn elsewhere(&self, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ..self.clone()
        }
    }

    /// The limit of a wait that takes `usual` at most on the testbed's usual nodes.
    fn limit(&self, usual: Duration) -> Duration {
        usual * self.patience
    }

    /// Objects of a kind in the namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Runs kubectl in the namespace, with all rights; returns what it printed.
    pub fn kubectl<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        said_by(self.target.kubectl(["-n", &self.namespace]).args(args))
    }

    /// Applies a manifest in the namespace: YAML with any number of documents.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        self.apply_as(None, manifest)
    }

    /// Applies a manifest in the namespace as a user, whose name admission sees.
    pub fn apply_as(&self, user: Option<&str>, manifest: &str) -> Result<()> {
        let mut apply = self.target.kubectl(["-n", &self.namespace, "apply", "-f", "-"]);
        if let Some(user) = user {
            apply.arg(format!("--as={user}")).arg("--as-group=system:masters");
        }
        let _waiting = wait_for(line(&apply));
        output_with_input(&mut apply, self.target.with_image_names(manifest).as_bytes())?;
        Ok(())
    }

    /// Applies a manifest whose objects name their namespaces, or have none. Several tests may apply the same object at
    /// once; only server-side apply copes with that.
    pub fn apply_anywhere(&self, manifest: &str) -> Result<()> {
        let manifest = self.target.with_image_names(manifest);
        let mut apply = self
            .target
            .kubectl(["apply", "--server-side", "--force-conflicts", "-f", "-"]);
        let _waiting = wait_for(line(&apply));
        output_with_input(&mut apply, manifest.as_bytes())?;
        Ok(())
    }

    /// Runs a command in a Pod's first container; returns what it printed on standard output.
    pub fn exec<S: AsRef<std::ffi::OsStr>>(&self, pod: &str, args: impl IntoIterator<Item = S>) -> Result<String> {
        let mut kubectl = self.target.kubectl(["-n", &self.namespace, "exec", pod, "--"]);
        said_by(kubectl.args(args))
    }

    /// Deletes an object by kind and name (`pod/writer`) without waiting until it is gone.
    pub fn delete(&self, object: &str) -> Result<()> {
        self.kubectl(["delete", "--wait=false", "--ignore-not-found", object])?;
        Ok(())
    }

    /// Fails with a clear message if Mooring is not installed on the cluster.
    pub async fn require_mooring(&self) -> Result<()> {
        let namespace = mooring_contract::names::NAMESPACE;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        if namespaces.get_opt(namespace).await?.is_none() {
            bail!("Mooring is not installed on this cluster: run `cargo testbed install` first");
        }
        Ok(())
    }

    /// Deletes the namespace and waits until it and everything made for its claims are gone.
    async fn close(&self) -> Result<()> {
        let claims = self.claims().await?;
        leaks::remember(claims.iter().cloned().chain([self.namespace.clone()]));
        self.namespace_gone().await?;
        self.clean_volumes().await?;
        self.clean_nodes().await?;
        self.volumes_gone().await?;
        let what = format!("the provisioning Pods for the namespace {} to be gone", self.namespace);
        wait_until(&what, self.limit(GONE_LIMIT), async || {
            let left = self.left_of(&claims).await?;
            ensure!(left.is_empty(), "{} are still there", left.join(", "));
            Ok(Some(()))
        })
        .await?;
        self.remove_outside().await
    }

    /// Waits until the controller has deleted the volumes of this namespace's claims.
    ///
    /// # Errors
    ///
    /// If one is still there after the limit.
    pub async fn volumes_gone(&self) -> Result<()> {
        let what = format!("the volumes of the namespace {} to be gone", self.namespace);
        wait_until(&what, self.limit(GONE_LIMIT), async || {
            let left = self.volumes().await?;
            ensure!(left.is_empty(), "{} are still there", left.join(", "));
            Ok(Some(()))
        })
        .await
    }

    /// Names of the `PersistentVolumes` that are to be deleted with this namespace's claims.
    async fn volumes(&self) -> Result<Vec<String>> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let all = volumes
            .list(&ListParams::default())
            .await
            .context("failed to list PersistentVolumes")?;
        Ok(all
            .items
            .into_iter()
            .filter_map(|volume| {
                let spec = volume.spec?;
                let ours = spec.claim_ref?.namespace.as_deref() == Some(&self.namespace);
                let retained = spec.persistent_volume_reclaim_policy.as_deref() == Some("Retain");
                (ours && !retained).then_some(volume.metadata.name).flatten()
            })
            .collect())
    }
}
