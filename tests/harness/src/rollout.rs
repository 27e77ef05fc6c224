//! Changes images, arguments or settings of the mounters' `DaemonSet` or the controllers' `Deployment`, and restores it
//! at the end.

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Container, EnvVar};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use mooring_contract::names::NAMESPACE;
use serde_json::{Value, json};

use super::scope::{Scope, blocking};
use mooring_testbed::install::TESTS_NAMESPACES;
use mooring_testbed::manifests;
use mooring_testbed::progress::note;

/// The mounters' `DaemonSet`.
const MOUNTER: &str = "mounter";

/// The controllers' `Deployment`.
const CONTROLLER: &str = "flex-provisioner";

/// Mounters or controllers as they were installed. Dropping this restores them.
pub struct Installed<'a> {
    scope: &'a Scope,
    resource: ApiResource,
    name: &'static str,
    container: Container,
}

impl<'a> Installed<'a> {
    /// Reads how the mounters are installed now.
    pub async fn now(scope: &'a Scope) -> Result<Self> {
        Self::read(scope, ApiResource::erase::<DaemonSet>(&()), MOUNTER).await
    }

    /// Reads how the controllers are installed now.
    pub async fn controllers(scope: &'a Scope) -> Result<Self> {
        Self::read(scope, ApiResource::erase::<Deployment>(&()), CONTROLLER).await
    }

    async fn read(scope: &'a Scope, resource: ApiResource, name: &'static str) -> Result<Self> {
        let api: Api<DynamicObject> = Api::namespaced_with(scope.client.clone(), NAMESPACE, &resource);
        let found = api.get(name).await?;
        let container = &found.data["spec"]["template"]["spec"]["containers"][0];
        let container = serde_json::from_value(container.clone())
            .with_context(|| format!("failed to read the container of {} {name}", resource.kind))?;
        Ok(Self {
            scope,
            resource,
            name,
            container,
        })
    }

    pub fn image(&self) -> &str {
        self.container.image.as_deref().unwrap_or_default()
    }

    /// Rolls out another image, and another one for a client with a container of its own, as `kubectl apply` of a new
    /// version does.
    pub async fn upgrade(&self, image: &str, client: &str, client_image: &str) -> Result<()> {
        let mut container = self.container.clone();
        container.image = Some(image.to_owned());
        let rule = format!("--mount-container={client}={client_image}");
        container.args.get_or_insert_default().push(rule);
        self.roll_out(&container).await
    }

    /// Rolls out the image of an earlier version, with arguments and liveness probe from that version's manifest.
    pub async fn downgrade(&self, image: &str, manifest: &str) -> Result<()> {
        let kind = &self.resource.kind;
        let documents = manifests::documents(manifest)?;
        let workload = documents.into_iter().find(|document| document["kind"] == **kind);
        let workload = workload.with_context(|| format!("the earlier version's manifest has no {kind}"))?;
        let earlier: Container = serde_json::from_value(workload["spec"]["template"]["spec"]["containers"][0].clone())
            .context("failed to read the earlier version's container")?;
        let mut container = self.container.clone();
        container.image = Some(image.to_owned());
        container.args = earlier.args;
        container.liveness_probe = earlier.liveness_probe;
        // It does not know the ConfigMap that has the settings now.
        container.env.get_or_insert_default().push(EnvVar {
            name: "MOORING_CONFIG_NAMESPACES".to_owned(),
            value: Some(TESTS_NAMESPACES.to_owned()),
            value_from: None,
        });
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
        let api: Api<DynamicObject> = Api::namespaced_with(self.scope.client.clone(), NAMESPACE, &self.resource);
        let patch = Patch::Merge(manifest(container));
        api.patch(self.name, &PatchParams::default(), &patch).await?;
        self.rolled_out()
    }

    fn rolled_out(&self) -> Result<()> {
        let status = ["-n", NAMESPACE, "rollout", "status", &self.resource.plural, self.name];
        blocking(self.scope.kubectl_wait(status))
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
            &self.resource.plural,
            self.name,
            "--type=merge",
            "-p",
            &patch,
        ];
        let back = self.scope.kubectl(args).and_then(|_| self.rolled_out());
        if let Err(error) = back {
            note(format!(
                "{} {} is not as it was, install Mooring again: {error:#}",
                self.resource.kind, self.name
            ));
        }
    }
}
