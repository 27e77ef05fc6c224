//! Volumes that the kernel mounts from a server that hangs, with a real kubelet on the node in a virtual machine: the
//! kubelet hangs in the kernel once it looks at such a volume's directory. Volumes of deleted Pods go all the same; the
//! others wait.

use std::time::Duration;

use anyhow::{Result, ensure};
use mooring_harness::counting::COUNTS;
use mooring_harness::guest_node::{MACHINE_NODE, with_machine_node};
use mooring_harness::smb::{PASSWORD, USER};
use mooring_harness::{Scope, wait_until};
use mooring_program::reasons;
use serde_json::{Value, json};

/// Grace period of the Pods, in seconds.
const GRACE: u32 = 5;

/// Longest until a Pod is gone after its grace period: the mounter checks once a minute whether a mount answers and
/// waits half a minute for that, the unmount may take another minute, and the rest is for a slow machine. With SMB, the
/// kernel waits half a minute for the server, and the kubelet may try again.
const GONE_LIMIT: Duration = Duration::from_mins(4);

/// How often the kernel asks a silent SMB server for a sign of life, in seconds. It waits three times as long for one:
/// three minutes, unless it is told otherwise.
const SMB_ASKED: u32 = 10;

/// Keeps a file open, and has closed another a moment ago.
const HOLDS: &str = "exec 3>/data/held; echo a >&3; while echo b >/data/closed; do sleep 1; done";

/// Pods with a volume of Samba that are deleted while the server hangs. The kernel closes their files then.
const SMB_USERS: [(&str, &str); 2] = [("smb", COUNTS), ("holds", HOLDS)];

/// Longest wait for effects of a server that answers again.
const HEAL_LIMIT: Duration = Duration::from_mins(3);

/// Only the kubelet hangs.
const SLEEPS: &str = "sleep 1000000";

/// Pods, each with a directory of the server, its mount options, and what the Pod does.
const USERS: [(&str, &str, &str); 5] = [
    ("writes", "nosharecache", COUNTS),
    ("sleeps", "nosharecache", SLEEPS),
    ("stays", "nosharecache", COUNTS),
    // The kernel has one file system for these two.
    ("shares", "", COUNTS),
    ("shared", "", SLEEPS),
];

fn pod(scope: &Scope, name: &str, script: &str) -> Result<()> {
    let main = json!([{
        "name": "main", "image": "busybox:1", "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }]);
    let more = json!({"containers": main, "terminationGracePeriodSeconds": GRACE});
    scope.pod(name, MACHINE_NODE, name, more)
}

/// How many connections the kernel has to SMB servers.
const SMB_CONNECTIONS: &str = "grep -c ConnectionId /proc/fs/cifs/DebugData || true";

async fn users_of_smb(scope: &Scope) -> Result<()> {
    let server = scope.storage_server("samba", "node-1", &Value::Null).await?;
    scope.mount_secret("login", &json!({"username": USER, "password": PASSWORD}))?;
    for (name, script) in SMB_USERS {
        let directory = format!("mkdir -m 0777 /srv/volumes/{name}");
        scope.exec("samba", ["sh", "-euc", &directory])?;
        let volume = json!({
            "client": "smb", "source": format!("//{}/volumes/{name}", server.address), "secret": "login",
            "mount-options": format!("echo_interval={SMB_ASKED}"),
        });
        scope.volume(name, &volume)?;
        pod(scope, name, script)?;
    }
    Ok(())
}

async fn goes_on(scope: &Scope, name: &str) -> Result<()> {
    let directory = format!("/srv/open/{name}");
    scope.counts_on(name, "nfs", &directory, HEAL_LIMIT).await
}

/// Whether a Pod's volume is among the mounts of the machine.
fn is_mounted(scope: &Scope, mounts: &[String], name: &str) -> bool {
    let volume = format!("/{} ", scope.volume_name(name));
    mounts.iter().any(|line| line.contains(&volume))
}

#[test]
fn pods_whose_kernel_mount_hangs_can_be_deleted_and_others_wait_for_the_server() {
    with_machine_node("vm-silent", async |scope| {
        scope.require_mooring().await?;
        let server = scope.storage_server("nfs", "node-1", &Value::Null).await?;
        for (name, options, script) in USERS {
            let directory = format!("mkdir -m 0777 /srv/open/{name}");
            scope.exec("nfs", ["sh", "-euc", &directory])?;
            let source = format!("{}:/open/{name}", server.address);
            scope.volume(
                name,
                &json!({"client": "nfs", "source": source, "mount-options": options}),
            )?;
            pod(&scope, name, script)?;
        }
        users_of_smb(&scope).await?;
        let of_smb = SMB_USERS.map(|(name, _)| name);
        for name in USERS.map(|(name, ..)| name).iter().chain(&of_smb) {
            scope.pod_ready(name).await?;
        }
        for name in ["writes", "stays", "shares"] {
            goes_on(&scope, name).await?;
        }

        let stopped = scope.stop("nfs").await?;
        let stopped_samba = scope.stop("samba").await?;
        scope.kubectl(["delete", "pod", "shared", "--wait=false"])?;
        let limit = Duration::from_secs(GRACE.into()) + GONE_LIMIT;
        // With SMB, whether the kubelet hangs depends on what the kernel has cached of the directory. If it hangs, it
        // waits for the server as the mount option says.
        let deleted = [&["writes", "sleeps"][..], &of_smb].concat();
        scope.deleted_within(&deleted, limit).await?;
        scope.say_given_up(&["writes", "sleeps"]).await?;
        let mounts = scope.mounts_on_machine()?;
        for name in deleted {
            ensure!(
                !is_mounted(&scope, &mounts, name),
                "{name} is mounted still: {mounts:#?}"
            );
        }
        // An error for one would be an error for the other.
        let event = scope.event("shared", "does not answer").await?;
        ensure!(
            event.reason.as_deref() == Some(reasons::VOLUME_NOT_GIVEN_UP),
            "{event:?}"
        );
        for name in ["stays", "shares"] {
            ensure!(
                is_mounted(&scope, &mounts, name),
                "{name} is not mounted any more: {mounts:#?}"
            );
        }

        drop((stopped, stopped_samba));
        for name in ["stays", "shares"] {
            goes_on(&scope, name).await?;
        }
        scope.pod_gone("shared").await?;
        for name in ["stays", "shares"] {
            scope.delete(&format!("pod/{name}"))?;
        }
        for name in ["stays", "shares"] {
            scope.pod_gone(name).await?;
        }
        let left = scope.mounts_on_machine()?;
        ensure!(left.is_empty(), "still mounted: {left:?}");
        wait_until("the SMB volumes to be gone from the kernel", HEAL_LIMIT, async || {
            let left = scope.on_machine(SMB_CONNECTIONS)?;
            ensure!(left.trim() == "0", "it has {left} connections");
            Ok(Some(()))
        })
        .await
    });
}
