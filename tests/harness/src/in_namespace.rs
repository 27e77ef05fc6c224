//! Runs a test in a namespace of its own: with a time limit, a folder with all information if it fails, and a look at
//! what it leaves.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::FutureExt;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::api::ListParams;

use super::connection::open_target;
use super::leaks;
use super::namespace::GONE_LIMIT;
use super::results::Failed;
use super::scope::Scope;
use super::time_limit::{CLEAN_LIMIT, SHOW_LIMIT, TEST_LIMIT, watched, within};
use super::waiting;
use super::waits::wait_until;
use mooring_testbed::progress::note;
use mooring_testbed::target::Target;

/// Environment variable: keep the namespaces of failed tests for a person to look at.
pub const KEEP_VARIABLE: &str = "MOORING_TESTBED_KEEP";

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
pub(super) struct Limits {
    /// The whole test.
    pub(super) test: Duration,
    /// By what factor a wait for Kubernetes or Mooring may be longer than on the testbed's usual nodes.
    pub(super) patience: u32,
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

pub(super) fn in_namespace_with<F>(limits: Limits, name: &str, test: F)
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
    waiting::begin("the picture before the test", CLEAN_LIMIT);
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
    outcome.and(closed).with_context(|| failed.where_to_look())
}

pub(super) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("the test panicked")
        .to_owned()
}

impl Scope {
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
