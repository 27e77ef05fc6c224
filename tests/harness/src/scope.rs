//! A test's namespace, and what a test does there.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use serde_json::json;
use tokio::runtime::{Builder, Handle};

use super::connection::client;
use super::names::TESTS_LABEL;
use super::waiting::wait_for;
use super::waits::wait_until;
use mooring_testbed::command::{line, output};
use mooring_testbed::target::Target;

/// How long kubectl waits at a time, and how long all its waits for one thing may take.
const KUBECTL_TIMEOUT: &str = "--timeout=10s";
const KUBECTL_LIMIT: Duration = Duration::from_mins(4);

/// A test's namespace, and the cluster that it is on.
#[derive(Clone)]
pub struct Scope {
    pub target: Target,
    /// A client with all rights.
    pub client: Client,
    pub namespace: String,
    /// By what factor a wait may be longer here than on the testbed's usual nodes.
    patience: u32,
}

/// Runs a command to its end and returns what it printed. A test that takes too long says that it waits for the
/// command.
pub(crate) fn said_by(command: &mut std::process::Command) -> Result<String> {
    let _waiting = wait_for(line(command));
    Ok(output(command)?)
}

/// Waits for the API, also where a function is not `async`: a test calls it from its runtime as it calls programs.
pub(crate) fn blocking<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    match Handle::try_current() {
        Ok(runtime) => tokio::task::block_in_place(|| runtime.block_on(work)),
        Err(_) => Builder::new_current_thread()
            .enable_all()
            .build()
            .context("failed to start a runtime")?
            .block_on(work),
    }
}

impl Scope {
    /// A new namespace, named after `name`.
    pub(super) async fn open(target: Target, name: &str, patience: u32) -> Result<Self> {
        let client = client(&target, None).await?;
        // The name is unique without coordination: the API server tries generated names until one is free.
        let namespace: Namespace = serde_json::from_value(json!({
            "metadata": {"generateName": format!("{name}-"), "labels": {TESTS_LABEL: name}},
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
        wait_until("the namespace's service account", Duration::from_mins(1), async || {
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
    pub(super) fn limit(&self, usual: Duration) -> Duration {
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

    /// Runs a kubectl command that waits, such as `wait` or `rollout status`, for a few seconds at a time until it
    /// succeeds.
    pub async fn kubectl_wait<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<()> {
        let mut command = self.target.kubectl(["-n", &self.namespace]);
        command.args(args).arg(KUBECTL_TIMEOUT);
        wait_until(&line(&command), self.limit(KUBECTL_LIMIT), async || {
            said_by(&mut command).map(|_| Some(()))
        })
        .await
    }

    /// Deletes an object by kind and name (`volumesnapshot/monday`), and waits until it is gone.
    pub async fn deleted(&self, object: &str) -> Result<()> {
        self.delete(object)?;
        self.kubectl_wait(["wait", "--for=delete", object]).await
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
}
