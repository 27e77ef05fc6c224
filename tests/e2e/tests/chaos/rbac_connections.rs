//! Mounters that may not read the connections of attached volumes refuse them: the kubelet's copy may be a Secret that
//! the Pod's author wrote. Alone, since all mounters of the cluster share the right.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use mooring_contract::attachment::secret_name;
use mooring_contract::names::NAMESPACE;
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, user_of};
use mooring_harness::{Scope, wait_until};

/// What gives the mounters that right.
const BINDING: &str = "mooring-mounter-connections";

/// Longest wait for a step: the kubelet may wait two minutes before it tries again.
const LIMIT: Duration = Duration::from_mins(4);

/// The node with the server.
const ONE: &str = "node-1";

const TWO: &str = "node-2";

/// A client with the rights of a node's mounter, in the name of its node.
async fn as_mounter(scope: &Scope, node: &str) -> Result<Client> {
    let mounter = scope.mounter(node).await?;
    let token = scope.token_of(NAMESPACE, "mounter", Some(&mounter)).await?;
    scope.with_token_as(&token, Some(&format!("system:node:{node}"))).await
}

/// Waits until a node's mounter may read the connection of a volume, or until it may not. The API server applies that
/// some seconds later.
async fn may_read(scope: &Scope, node: &str, uid: &str, may: bool) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(as_mounter(scope, node).await?, CONFIG_NAMESPACE);
    let name = secret_name(&format!("pvc-{uid}"));
    let what = format!("the mounter of {node} to read the connection: {may}");
    wait_until(&what, LIMIT, async || match secrets.get(&name).await {
        Ok(_) => Ok(may.then_some(())),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok((!may).then_some(())),
        Err(error) => Err(error.into()),
    })
    .await
}

/// Creates a Pod on a node that uses the volume.
fn create(scope: &Scope, name: &str, node: &str) -> Result<()> {
    let mut user = user_of(name, "data", "sleep 1000000");
    user["spec"]["nodeName"] = node.into();
    scope.apply(&user.to_string()).map(drop)
}

async fn ends(scope: &Scope, name: &str) -> Result<()> {
    scope.delete(&format!("pod/{name}"))?;
    scope.pod_gone(name).await
}

/// Without the right, a Pod that runs keeps its volume, and the next Pod is refused with the cure in its Event.
async fn new_mounts_are_refused(scope: &Scope, uid: &str, sum: &str) -> Result<()> {
    may_read(scope, TWO, uid, false).await?;
    let read = ["sha256sum", "/data/file"];
    ensure!(scope.exec("first", read)? == sum, "the Pod has lost its volume");
    ends(scope, "first").await?;
    create(scope, "second", ONE)?;
    scope.event("second", BINDING).await.map(drop)
}

#[test]
fn without_the_right_to_read_connections_a_pod_is_refused_until_the_mounter_has_it_again() {
    on_own_nodes("rbac-connections", async |scope| {
        scope.require_mooring().await?;
        let (_, provisioner) = scope.attached_iscsi(ONE).await?;
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "48Mi").await?;
        scope.claim_bound("data").await?;
        create(&scope, "first", TWO)?;
        scope.pod_ready("first").await?;
        scope.exec("first", ["sh", "-c", "head -c 8m /dev/urandom >/data/file; sync"])?;
        let sum = scope.exec("first", ["sha256sum", "/data/file"])?;
        may_read(&scope, TWO, &uid, true).await?;

        let bindings: Api<RoleBinding> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
        let mut installed = bindings.get(BINDING).await?;
        bindings.delete(BINDING, &DeleteParams::default()).await?;
        let refused = new_mounts_are_refused(&scope, &uid, &sum).await;
        installed.metadata.resource_version = None;
        installed.metadata.uid = None;
        bindings
            .create(&PostParams::default(), &installed)
            .await
            .context("failed to give the mounters their right back: install the tests' namespaces again")?;
        refused?;

        scope.pod_ready("second").await?;
        assert_eq!(scope.exec("second", ["sha256sum", "/data/file"])?, sum);
        ends(&scope, "second").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}
