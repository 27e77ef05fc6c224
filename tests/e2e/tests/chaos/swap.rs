//! Volumes of one Pod that nothing but their devices tells apart, and whose FUSE daemons die together: each keeps its
//! own data. One at a time, since other volumes of the node use the same client container.

use std::time::Duration;

use anyhow::{Result, ensure};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::{Scope, wait_until};
use serde_json::{Value, json};

const NODE: &str = "node-2";

/// s3fs gives the kernel the same type and source for every bucket.
const VOLUMES: [&str; 3] = ["left", "middle", "right"];

/// Enough for each volume's new mount to be made before and after the others'.
const ROUNDS: usize = 5;

/// Longest wait for the volumes to be in use again: the agent pauses longer after each death.
const LIMIT: Duration = Duration::from_mins(3);

fn user() -> Value {
    let mounts = VOLUMES.map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    let volumes = VOLUMES.map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"},
        "spec": {
            "nodeName": NODE, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
                            "volumeMounts": mounts}],
            "volumes": volumes,
        },
    })
}

/// Writes a file of this name into each volume, which tells by its text for which one it was meant.
fn write(scope: &Scope, file: &str) -> Result<()> {
    for name in VOLUMES {
        scope.exec("user", ["sh", "-c", &format!("echo {name} >/{name}/{file}")])?;
    }
    Ok(())
}

/// Proves: M2
#[test]
fn volumes_of_a_pod_keep_their_data_when_their_daemons_die_together() {
    on_own_nodes("chaos-swap", async |scope| {
        let server = scope.s3_server("node-1").await?;
        scope.mount_secret("key", &server.data)?;
        for name in VOLUMES {
            scope.on_s3_server(&format!("mkdir /srv/volumes/{name}"))?;
            let source = format!("{}/{name}", server.url);
            scope.volume(name, &json!({"client": "s3", "source": source, "secret": "key"}))?;
        }
        scope.apply(&user().to_string())?;
        scope.pod_ready("user").await?;
        write(&scope, "0")?;
        for round in 1..=ROUNDS {
            ensure!(
                scope.kill_s3fs(2, &server)? == VOLUMES.len(),
                "not every volume has a daemon"
            );
            wait_until("every volume to be in use again", LIMIT, async || {
                write(&scope, &round.to_string()).map(Some)
            })
            .await?;
        }
        // On the server, since a Pod that has the volumes changed over reads what it wrote.
        for name in VOLUMES {
            let found = scope.on_s3_server(&format!("cd /srv/volumes/{name}; cat *; ls | wc -l"))?;
            let wanted = format!("{name}\n").repeat(ROUNDS + 1) + &format!("{}\n", ROUNDS + 1);
            ensure!(found == wanted, "volume {name} has data that is not its own: {found:?}");
        }
        scope.delete("pod/user")?;
        scope.pod_gone("user").await
    });
}
