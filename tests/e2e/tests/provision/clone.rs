//! Claims that are copies of other claims.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use mooring_harness::provisioner::{claim, user_of};
use mooring_harness::{Scope, in_namespace};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// Claim `name`, to be a copy of claim `source`.
fn copy_of(source: &str, name: &str, class: &str, size: &str) -> Value {
    let mut claim = claim(name, class, size);
    claim["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": source});
    claim
}

/// Size of the file system in the Pod that uses it, in bytes.
fn size_in(scope: &Scope, pod: &str) -> Result<u64> {
    let said = scope.exec(pod, ["df", "-Pk", "/data"])?;
    let size = said.lines().last().and_then(|line| line.split_whitespace().nth(1));
    let blocks: u64 = size.context("no size")?.parse().context(said.clone())?;
    Ok(blocks * 1024)
}

fn capacity(volume: &PersistentVolume) -> Option<&str> {
    let capacity = volume.spec.as_ref()?.capacity.as_ref()?;
    Some(capacity.get("storage")?.0.as_str())
}

#[test]
fn a_copy_has_what_was_written_and_may_be_larger() {
    in_namespace("clone-local", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("image", "mooring.dev/provisioner-local:0.1.0")
            .key("backend-volume", "client=pool")
            .key("volume-source", "flexVolume")
            .key("volume-binding-mode", "WaitForFirstConsumer")
            .key("operations", "provision, delete, clone");
        provisioner.apply().await?;
        // ext4 grows only where the machine lets its containers have CAP_SYS_RESOURCE.
        let class = provisioner.class_of("xfs")?;
        scope.claim("old", &class, "320Mi").await?;
        scope.apply(&user_of("writer", "old", "sleep 1000000").to_string())?;
        let writer = scope.pod_ready("writer").await?;
        let node = writer.spec.and_then(|spec| spec.node_name).context("no node")?;
        scope.exec("writer", ["sh", "-euc", "echo kept >/data/file; sync"])?;
        scope.claim_bound("old").await?;

        // The source stays in use, and its copy is mounted beside it.
        let copy = copy_of("old", "copy", &class, "384Mi");
        let uid = scope.claim_with(None, &copy).await?;
        let mut reader = user_of("reader", "copy", "sleep 1000000");
        // The scheduler prefers another node at first.
        reader["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = json!([{
            "weight": 100,
            "preference": {"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}]},
        }]);
        scope.apply(&reader.to_string())?;
        let reader = scope.pod_ready("reader").await?;
        assert_eq!(reader.spec.and_then(|spec| spec.node_name), Some(node));
        assert_eq!(scope.exec("reader", ["cat", "/data/file"])?, "kept\n");
        let (small, large) = (size_in(&scope, "writer")?, size_in(&scope, "reader")?);
        ensure!(large > small + 48 * MIB, "{small} bytes have become {large}");
        let volume = scope.provisioned(&uid).await?.context("no volume")?;
        assert_eq!(capacity(&volume), Some("384Mi"));

        // They share nothing.
        scope.exec("reader", ["sh", "-euc", "echo changed >/data/file; sync"])?;
        assert_eq!(scope.exec("writer", ["cat", "/data/file"])?, "kept\n");
        Ok(())
    });
}

#[test]
fn a_copy_waits_for_its_source_and_says_what_can_t_be_copied() {
    in_namespace("clone-waits", async |scope| {
        let provisioner = scope
            .provisioner()
            .printing()
            .key("operations", "provision, delete, clone")
            .key(
                "clone-script",
                "[ \"$(pv get --source client)\" = sshfs ]\n[ \"$SOURCE_SIZE\" = 16777216 ]\n\
                 pv options client=sshfs source=nobody@192.0.2.1:/\"$SOURCE_PV_NAME\"",
            );
        provisioner.apply().await?;
        let uid = scope
            .claim_with(None, &copy_of("old", "copy", &provisioner.class, "16Mi"))
            .await?;
        scope
            .claim_with(None, &copy_of("old", "small", &provisioner.class, "8Mi"))
            .await?;
        let waits = scope.event("copy", "does not exist yet").await?;
        assert_eq!(waits.reason.as_deref(), Some("ProvisioningWaiting"));

        let source = scope.claim("old", &provisioner.class, "16Mi").await?;
        scope.claim_bound("copy").await?;
        let volume = json!(scope.provisioned(&uid).await?.context("no volume")?.spec);
        let copied = volume["flexVolume"]["options"]["source"].as_str().unwrap_or_default();
        assert!(copied.ends_with(&format!("pvc-{source}")), "{copied}");
        let refused = scope.event("small", "ask for at least as much").await?;
        assert_eq!(refused.reason.as_deref(), Some("ClaimRefused"));

        // Nothing holds the source once its copy is made.
        scope.claim_gone("old").await?;
        scope.nothing_left(&source).await
    });
}
