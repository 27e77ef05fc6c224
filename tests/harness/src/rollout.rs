//! Changes images, arguments or settings of the mounters' `DaemonSet`, and restores it at the end.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Container, EnvVar};
use kube::Api;
use kube::api::{Patch, PatchParams};
use mooring_contract::names::NAMESPACE;
use serde_json::{Value, json};

use super::scope::Scope;
use mooring_testbed::manifests;
use mooring_testbed::progress::note;

/// The DaemonSet.
const NAME: &str = "mounter";

/// Longest wait for all mounters to be replaced.
const LIMIT: Duration = Duration::from_mins(3);

/// The mounters as they were installed. Dropping this restores them.
pub struct Installed<'a> {
    scope: &'a Scope,
    container: Container,
}

impl<'a> Installed<'a> {
    /// Reads how they are installed now.
    pub async fn now(scope: &'a Scope) -> Result<Self> {
        let api: Api<DaemonSet> = Api::namespaced(scope.client.clone(), NAMESPACE);
        let pod = api.get(NAME).await?.spec.template.spec;
        let container = pod.and_then(|pod| pod.containers.into_iter().next());
        let container = container.context("the mounters' DaemonSet has no container")?;
        Ok(Self { scope, container })
    }

    pub fn image(&self) -> &str {
        self.container.image.as_deref().unwrap_or_default()
    }

    /// Rolls out another image, and another one for a client with a container of its own, as `kubectl apply` of a new
    /// version does.
    pub async fn upgrade(&self, image: &str, client: &str, client_image: &str) -> Result<()> {
        let rule = format!("--mount-container={client}=");
        let mut container = self.container.clone();
        container.image = Some(image.to_owned());
        let mut args = container.args.iter_mut().flatten();
        let arg = args.find(|arg| arg.starts_with(&rule));
        *arg.with_context(|| format!("no rule for {client}"))? = format!("{rule}{client_image}");
        self.roll_out(&container).await
    }

    /// Rolls out the image of an earlier version, with the arguments from that version's manifest.
    pub async fn downgrade(&self, image: &str, manifest: &str) -> Result<()> {
        let documents = manifests::documents(manifest)?;
        let daemon_set = documents.into_iter().find(|document| document["kind"] == "DaemonSet");
        let daemon_set = daemon_set.context("the earlier version's manifest has no DaemonSet")?;
        let args = &daemon_set["spec"]["template"]["spec"]["containers"][0]["args"];
        let mut container = self.container.clone();
        container.image = Some(image.to_owned());
        container.args =
            serde_json::from_value(args.clone()).context("failed to read the earlier version's arguments")?;
        self.roll_out(&container).await
    }

    /// Rolls out settings, as environment variables.
    pub async fn set(&self, settings: &[(&str, &str)]) -> Result<()> {
        let mut container = self.container.clone();
        let settings = settings.iter().map(|&(name, value)| EnvVar {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            value_from: None,
        });
        container.env.get_or_insert_default().extend(settings);
        self.roll_out(&container).await
    }

    /// Rolls out what was installed.
    pub async fn roll_back(&self) -> Result<()> {
        self.roll_out(&self.container).await
    }

    async fn roll_out(&self, container: &Container) -> Result<()> {
        let api: Api<DaemonSet> = Api::namespaced(self.scope.client.clone(), NAMESPACE);
        let patch = Patch::Merge(manifest(container));
        api.patch(NAME, &PatchParams::default(), &patch).await?;
        self.rolled_out()
    }

    fn rolled_out(&self) -> Result<()> {
        let limit = format!("--timeout={}s", LIMIT.as_secs());
        let args = ["-n", NAMESPACE, "rollout", "status", "daemonset", NAME, &limit];
        self.scope.kubectl(args).map(drop)
    }
}

fn manifest(container: &Container) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [container]}}}})
}

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        let patch = manifest(&self.container).to_string();
        let args = [
            "-n",
            NAMESPACE,
            "patch",
            "daemonset",
            NAME,
            "--type=merge",
            "-p",
            &patch,
        ];
        let back = self.scope.kubectl(args).and_then(|_| self.rolled_out());
        if let Err(error) = back {
            note(format!(
                "the mounters are not as they were, install Mooring again: {error:#}"
            ));
        }
    }
}
