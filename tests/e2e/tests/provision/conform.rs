//! The vendor's kit: images that keep to the contract pass, and one that does not is told what it breaks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mooring_contract::names::labels;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner};
use mooring_harness::{Scope, in_namespace_within, is_whole_suite, skipped_without_all, wait_until};

/// Longest judgement of an image: dozens of runs, each a Pod.
const LIMIT: Duration = Duration::from_mins(20);

/// Longest wait for claims that the kit has deleted to be gone.
const GONE_LIMIT: Duration = Duration::from_mins(1);

const LOCAL: &str =
    "provision, delete, expand, modify, clone, snapshot, delete-snapshot, snapshot-group, delete-group, restore";

/// Of these, the kit tries enough in every run of the suite.
const SOME: &str = "provision, delete, expand, snapshot, delete-snapshot, restore";

fn local_provisioner(scope: &Scope) -> Provisioner {
    scope
        .provisioner()
        .key("image", "mooring.dev/provisioner-local:0.1.0")
        .key("backend-volume", "client=pool")
        .key("volume-source", "csi")
        .key("operations", if is_whole_suite() { LOCAL } else { SOME })
}

fn passes_as_local(scope: &Scope, provisioner: &Provisioner) -> Result<()> {
    let judgement = scope.judged_by_kit(provisioner, &["--attribute=preallocate=true"])?;
    ensure!(judgement.passed, "{}", judgement.said);
    ensure!(judgement.said.contains(" 0 failed, 1 skipped"), "{}", judgement.said);
    Ok(())
}

#[test]
fn the_image_of_class_local_passes_the_vendor_s_kit() {
    in_namespace_within(LIMIT, "kit-local", async |scope| {
        passes_as_local(&scope, &local_provisioner(&scope))
    });
}

#[test]
fn a_kit_that_is_interrupted_leaves_nothing_and_says_that_it_has_not_tried_all() {
    in_namespace_within(LIMIT, "kit-interrupted", async |scope| {
        let mut begun = String::new();
        let judgement = scope.interrupted_kit(&local_provisioner(&scope), || {
            let uids = "-o=jsonpath={.items[*].metadata.uid}";
            begun = scope.kubectl(["get", "persistentvolumeclaims", uids])?;
            Ok(())
        })?;
        let said = &judgement.said;
        ensure!(!judgement.passed && said.contains("FAILED  kit"), "{said}");
        let begun: Vec<_> = begun.split_whitespace().map(str::to_owned).collect();
        ensure!(!begun.is_empty(), "it was at nothing: {said}");
        // Kubernetes keeps a deleted claim until it has seen that no Pod uses it.
        wait_until("the kit's claims to be gone", GONE_LIMIT, async || {
            let left = scope.kubectl(["get", "persistentvolumeclaims", "-o", "name"])?;
            ensure!(left.is_empty(), "there are {left}");
            Ok(Some(()))
        })
        .await?;
        let left = scope.left_of(&begun).await?;
        ensure!(left.is_empty(), "the kit left {}", left.join(", "));
        for uid in &begun {
            let left = scope.on_backend(uid)?;
            ensure!(left.is_empty(), "the kit left {}", left.join(", "));
        }
        Ok(())
    });
}

/// Each of its runs about a backup has an sshfs client on another server.
fn local_with_backups() {
    in_namespace_within(LIMIT, "kit-backups", async |scope| {
        let server = scope.ssh_server(&scope.node(1).await?, &["backups"]).await?;
        let backup_volume = format!("client=sshfs,source={}", server.source("backups"));
        let provisioner = local_provisioner(&scope)
            .key("backup-volume", backup_volume)
            .key("secret-name", scope.ssh_secret_for_runs(&server)?)
            .key("operations", format!("{LOCAL}, backup, delete-backup"));
        passes_as_local(&scope, &provisioner)
    });
}

/// The kit removes the workers that it has made, whatever it found.
fn no_worker_left(scope: &Scope, provisioner: &Provisioner) -> Result<()> {
    let of_it = format!("{},{}={}", labels::WORKER, labels::CONFIG_NAME, provisioner.name);
    let left = scope.kubectl(["-n", CONFIG_NAMESPACE, "get", "pods", "-l", &of_it, "-o", "name"])?;
    ensure!(left.is_empty(), "the kit left {left}");
    Ok(())
}

/// The image passes whatever its ConfigMap promises, and as a worker, also while the server that this key names can't
/// be reached.
fn passes(scope: &Scope, provisioner: &Provisioner, server: &str, key: &str) -> Result<()> {
    let provisioner = &provisioner.clone().key("workers", "1");
    let value = provisioner.data.get(key).context("the example has no such key")?;
    ensure!(value.contains(server), "{key}={value} does not name {server}");
    // Nobody has this address (RFC 5737).
    let unreachable = format!("--unreachable={key}={}", value.replace(server, "192.0.2.1"));
    let judgement = scope.judged_by_kit(provisioner, &[&unreachable])?;
    ensure!(judgement.passed, "{}", judgement.said);
    ensure!(judgement.said.contains(" 0 failed, 0 skipped"), "{}", judgement.said);
    ensure!(judgement.said.contains("serve "), "{}", judgement.said);
    no_worker_left(scope, provisioner)
}

fn sshfs() {
    in_namespace_within(LIMIT, "kit-sshfs", async |scope| {
        let server = scope.ssh_server(&scope.node(1).await?, &[]).await?;
        scope.exec("ssh", ["install", "-d", "-o", "mooring", "/srv/volumes"])?;
        let secret = scope.ssh_secret_for_runs(&server)?;
        let provisioner = scope
            .provisioner()
            .example("sshfs.yaml")?
            .key("secret-name", &secret)
            .key("server", &server.address)
            .key("mount-secret", format!("{secret}/{CONFIG_NAMESPACE}"));
        passes(&scope, &provisioner, &server.address, "server")
    });
}

fn iscsi() {
    in_namespace_within(LIMIT, "kit-tgt", async |scope| {
        let (server, provisioner) = scope.iscsi_example(&scope.node(1).await?).await?;
        passes(&scope, &provisioner, &server.address, "server")
    });
}

fn attached_iscsi() {
    in_namespace_within(LIMIT, "kit-attach", async |scope| {
        let (server, provisioner) = scope.attached_iscsi(&scope.node(1).await?).await?;
        passes(&scope, &provisioner, &server.address, "server")
    });
}

fn smb() {
    in_namespace_within(LIMIT, "kit-smb", async |scope| {
        let (server, provisioner) = scope.smb_example().await?;
        passes(&scope, &provisioner, &server.address, "source")
    });
}

fn directory() {
    in_namespace_within(LIMIT, "kit-directory", async |scope| {
        let (_, provisioner) = scope.glusterfs_example(&scope.node(1).await?).await?;
        let provisioner = provisioner.key("workers", "1");
        let judgement = scope.judged_by_kit(&provisioner, &[])?;
        ensure!(judgement.passed, "{}", judgement.said);
        // What it writes to is mounted by Mooring: it does not begin where that can't be reached.
        ensure!(judgement.said.contains(" 0 failed, 1 skipped"), "{}", judgement.said);
        no_worker_left(&scope, &provisioner)
    });
}

fn ceph() {
    for kind in ["cephfs", "rbd"] {
        in_namespace_within(LIMIT, &format!("kit-{kind}"), async |scope| {
            let server = scope.ceph(&scope.node(1).await?, kind).await?;
            let operations = "provision, delete, expand, clone, snapshot, delete-snapshot, restore";
            let provisioner = scope
                .ceph_example(kind, &server)?
                .key("volume-source", "csi")
                .key("operations", operations);
            passes(&scope, &provisioner, &server.address, "monitors")
        });
    }
}

#[test]
fn the_image_of_class_sshfs_passes_the_vendor_s_kit() {
    if skipped_without_all() {
        return;
    }
    sshfs();
}

#[test]
fn the_other_stock_images_pass_the_vendor_s_kit() {
    if skipped_without_all() {
        return;
    }
    // One after the other: each kit has four Pods at work.
    local_with_backups();
    iscsi();
    attached_iscsi();
    smb();
    directory();
    ceph();
}

fn found(scope: &Scope, provision: &str, delete: &str, words: &[&str]) -> Result<()> {
    let provisioner = scope
        .provisioner_named("faulty")
        .key("volume-source", "flexVolume")
        .key("operations", "provision, delete")
        .key("workers", "1")
        .on_provision(provision)
        .on_delete(delete);
    let judgement = scope.judged_by_kit(&provisioner, &["--unreachable=server=192.0.2.1"])?;
    ensure!(!judgement.passed, "{}", judgement.said);
    for words in words {
        ensure!(
            judgement.said.contains(words),
            "{words:?} is not in: {}",
            judgement.said
        );
    }
    no_worker_left(scope, &provisioner)
}

#[test]
fn an_image_that_forgets_what_it_made_lies_about_its_storage_and_is_no_worker_does_not_pass() {
    in_namespace_within(LIMIT, "kit-faulty", async |scope| {
        found(
            &scope,
            "pv options client=nfs source=10.0.0.1:/\"$(cat /proc/sys/kernel/random/uuid)\"",
            "true",
            &[
                "name a volume after pv-name",
                "says that it is done, though its storage",
                "ended at its start: exit code 0; have it run \"pv serve\" where OPERATION is \"serve\"",
            ],
        )
    });
}
