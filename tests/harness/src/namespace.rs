//! The end of a test's namespace. Kubernetes begins to delete what is in a namespace five seconds after the namespace,
//! and looks seconds later whether it is gone (`pkg/controller/namespace/namespace_controller.go`). On the testbed's
//! own cluster, the same is done here without these pauses: Pods first, then objects of all kinds, and the namespace's
//! own finalizer once nothing is left. [`Scope::end_by_kubernetes`] leaves all of it to Kubernetes.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams, ResourceExt};
use kube::discovery::{Discovery, Scope as Reach, verbs};
use tokio::sync::OnceCell;

use super::scope::Scope;
use super::waits::wait_until;

/// Longest wait for a test's namespace and volumes to be gone.
pub(super) const GONE_LIMIT: Duration = Duration::from_mins(3);

/// Kubernetes' own kinds: tests add none.
static KINDS: OnceCell<Vec<ApiResource>> = OnceCell::const_new();

/// What the namespace's controller says of what is left in it.
fn why_it_stays(namespace: &Namespace) -> String {
    let conditions = namespace
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let told: Vec<_> = conditions.filter_map(|condition| condition.message.clone()).collect();
    format!("it is still there: {}", told.join("; "))
}

impl Scope {
    /// Deletes the namespace as a user does, and waits until Kubernetes has deleted what is in it, in its own order and
    /// time. A test that does so ends with it.
    pub async fn end_by_kubernetes(&self) -> Result<()> {
        self.delete_namespace().await?;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let what = format!("Kubernetes to delete the namespace {}", self.namespace);
        wait_until(&what, self.limit(GONE_LIMIT), async || {
            let there = namespaces.get_opt(&self.namespace).await?;
            let Some(there) = there else { return Ok(Some(())) };
            bail!("{}", why_it_stays(&there))
        })
        .await
    }

    async fn delete_namespace(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let deleted = namespaces.delete(&self.namespace, &DeleteParams::default()).await;
        deleted
            .map(drop)
            .with_context(|| format!("failed to delete the namespace {}", self.namespace))
    }

    /// Deletes the namespace and what is in it, and waits until it is gone. An object that does not go keeps it.
    pub(super) async fn namespace_gone(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        if namespaces.get_opt(&self.namespace).await?.is_none() {
            // The test has ended it.
            return Ok(());
        }
        self.delete_namespace().await?;
        self.api::<Pod>()
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await
            .context("failed to delete the test's Pods")?;
        self.api::<PersistentVolumeClaim>()
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await
            .context("failed to delete the test's claims")?;
        let what = format!("the namespace {} to be gone", self.namespace);
        wait_until(&what, self.limit(GONE_LIMIT), async || {
            let Some(there) = namespaces.get_opt(&self.namespace).await? else {
                return Ok(Some(()));
            };
            if self.target.own_cluster().is_some() {
                self.emptied().await?;
                self.finalized(&namespaces, there).await?;
            }
            Ok(None)
        })
        .await
    }

    /// Deletes everything in the namespace. Fails as long as something is there.
    async fn emptied(&self) -> Result<()> {
        let pods = self.api::<Pod>().list_metadata(&ListParams::default()).await?;
        let pods: Vec<_> = pods.items.iter().map(|pod| format!("Pod {}", pod.name_any())).collect();
        ensure!(pods.is_empty(), "{} are still there", pods.join(", "));
        let kinds = KINDS.get_or_try_init(async || self.kinds().await).await?;
        let left = try_join_all(kinds.iter().map(|kind| self.emptied_of(kind))).await?;
        let left = left.concat();
        ensure!(left.is_empty(), "{} are still there", left.join(", "));
        Ok(())
    }

    /// Deletes all objects of a kind. Gives those that are still there.
    async fn emptied_of(&self, kind: &ApiResource) -> Result<Vec<String>> {
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, kind);
        let list = async || -> Result<Vec<String>> {
            let there = objects.list_metadata(&ListParams::default()).await?;
            let name = |object: &_| format!("{} {}", kind.kind, ResourceExt::name_any(object));
            Ok(there.items.iter().map(name).collect())
        };
        if list().await?.is_empty() {
            return Ok(Vec::new());
        }
        objects
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await
            .with_context(|| format!("failed to delete the test's {}", kind.plural))?;
        list().await
    }

    /// The kinds whose objects can be listed and deleted in a namespace.
    async fn kinds(&self) -> Result<Vec<ApiResource>> {
        let found = Discovery::new(self.client.clone()).run().await;
        let found = found.context("failed to ask the API server for its kinds")?;
        let all = found
            .groups()
            .flat_map(kube::discovery::ApiGroup::recommended_resources);
        let ours = all.filter(|(_, can)| {
            can.scope == Reach::Namespaced
                && [verbs::LIST, verbs::DELETE_COLLECTION]
                    .iter()
                    .all(|verb| can.supports_operation(verb))
        });
        let kinds: Vec<_> = ours.map(|(kind, _)| kind).collect();
        if kinds.is_empty() {
            bail!("the API server says that it has no kinds");
        }
        Ok(kinds)
    }

    /// Removes the finalizer for which the namespace stays until it is empty.
    async fn finalized(&self, namespaces: &Api<Namespace>, mut there: Namespace) -> Result<()> {
        there.spec.get_or_insert_default().finalizers = Some(Vec::new());
        // It may have changed or gone meanwhile: the next look tells.
        namespaces
            .replace_subresource("finalize", &self.namespace, &PostParams::default(), &there)
            .await
            .map(drop)
            .with_context(|| format!("failed to let the namespace {} go", self.namespace))
    }
}
