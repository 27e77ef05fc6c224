//! A FUSE volume whose program runs but does not answer, since its server hangs: processes that use it hang in the
//! kernel, and so does the kubelet once it looks at its directory. Volumes of deleted Pods go all the same; the others
//! wait.

use std::time::Duration;

use anyhow::{Result, ensure};
use mooring_harness::Scope;
use mooring_harness::clients::{image_of_its_own, remove_image};
use mooring_harness::counting::COUNTS;
use mooring_harness::nodes::on_own_nodes;
use mooring_program::reasons;
use serde_json::json;

const NODE: &str = "node-1";

/// Grace period of the Pods, in seconds.
const GRACE: u32 = 5;

/// Longest until a Pod is gone after its grace period: the mounter checks once a minute whether a mount answers, and
/// waits half a minute for that. The rest is for a busy machine.
const GONE_LIMIT: Duration = Duration::from_mins(4);

/// Longest wait for effects of a server that answers again.
const HEAL_LIMIT: Duration = Duration::from_mins(1);

/// Pods that use a volume all the time, with what each does.
const USERS: [(&str, &str); 4] = [
    // Hangs in the kernel with the server.
    ("writes", "while :; do date >>/data/dates; sleep 0.2; done"),
    // Only the kubelet does.
    ("sleeps", "sleep 1000000"),
    ("stays", COUNTS),
    ("other", COUNTS),
];

fn user(scope: &Scope, name: &str, script: &str) -> Result<()> {
    let main = json!([{
        "name": "main", "image": "busybox:1", "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }]);
    scope.pod(
        name,
        NODE,
        name,
        json!({"containers": main, "terminationGracePeriodSeconds": GRACE}),
    )
}

/// The remaining mounts, without those of deleted Pods.
fn mounts_of_others(scope: &Scope) -> Result<Vec<String>> {
    let mounts = scope.mounts_on(1)?.into_iter();
    Ok(mounts
        .filter(|line| !["-writes ", "-sleeps "].iter().any(|name| line.contains(name)))
        .collect())
}

async fn goes_on(scope: &Scope, server: &str, name: &str) -> Result<()> {
    let directory = format!("/srv/volumes/{name}");
    scope.counts_on(name, server, &directory, HEAL_LIMIT).await
}

#[test]
fn pods_on_a_server_that_hangs_for_ever_can_be_deleted_and_all_others_wait_for_it_and_go_on() {
    on_own_nodes("mount-silent", async |scope| {
        let hung = scope
            .ssh_server_called("hung", NODE, &["writes", "sleeps", "stays"])
            .await?;
        let fine = scope.ssh_server_called("fine", NODE, &["other"]).await?;
        // Other tests let other images serve sshfs meanwhile, and wait until those are gone.
        let image = image_of_its_own(&scope, "silent")?;
        for (name, script) in USERS {
            let server = if name == "other" { &fine } else { &hung };
            let mut volume = server.volume(name);
            // Like programs without a time limit: by default, sshfs returns errors after half a minute.
            volume["mount-options"] = "ServerAliveInterval=0".into();
            volume["client-image"] = image.clone().into();
            scope.volume(name, &volume)?;
            user(&scope, name, script)?;
        }
        for (name, _) in USERS {
            scope.pod_ready(name).await?;
        }
        let others = mounts_of_others(&scope)?;
        ensure!(others.len() == 2, "{others:?}");
        goes_on(&scope, "hung", "stays").await?;

        let stopped = scope.stop("hung").await?;
        let limit = Duration::from_secs(GRACE.into()) + GONE_LIMIT;
        scope.given_up(&["writes", "sleeps"], limit).await?;
        // A neighbour on another server, in the same client container, is not affected; one on the same server waits.
        goes_on(&scope, "fine", "other").await?;
        assert_eq!(scope.mounts_on(1)?, others);

        drop(stopped);
        goes_on(&scope, "hung", "stays").await?;
        assert_eq!(scope.mounts_on(1)?, others);
        let given_up = scope.kubectl([
            "get",
            "events",
            "--field-selector",
            &format!("reason={}", reasons::VOLUME_GIVEN_UP),
            "-o",
            "name",
        ])?;
        assert_eq!(given_up.lines().count(), 2, "{given_up}");
        for name in ["stays", "other"] {
            scope.delete(&format!("pod/{name}"))?;
            scope.pod_gone(name).await?;
        }
        assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        remove_image(&scope, &image)
    });
}
