//! The vendor's kit for every stock image.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner};
use mooring_harness::{Scope, in_namespace_within};

use super::conform::{LOCAL, local_provisioner, no_worker_left, passes_as_local};

/// Longest judgement of an image with a server of its own, beside a virtual machine.
const LIMIT: Duration = Duration::from_mins(40);

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

/// The image passes whatever its ConfigMap promises, and as a worker, since it states that it can be one; also while
/// the server that this key names can't be reached.
fn passes(scope: &Scope, provisioner: &Provisioner, server: &str, key: &str) -> Result<()> {
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
        let judgement = scope.judged_by_kit(&provisioner, &[])?;
        ensure!(judgement.passed, "{}", judgement.said);
        ensure!(judgement.said.contains("serve "), "{}", judgement.said);
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

// In each test one after the other: each kit has four Pods at work.

#[test]
fn the_images_of_directories_pass_the_vendor_s_kit() {
    local_with_backups();
    sshfs();
    smb();
    directory();
}

#[test]
fn the_images_of_devices_pass_the_vendor_s_kit() {
    iscsi();
    attached_iscsi();
}

#[test]
fn the_image_of_ceph_passes_the_vendor_s_kit() {
    ceph();
}
