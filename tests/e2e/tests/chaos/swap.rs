//! Volumes of one Pod that little but their devices tells apart, and whose FUSE daemons, client container and mounter
//! die in pairs while the Pod writes: each keeps its own data. One at a time, since other volumes of the node use the
//! same client container.

use std::time::Duration;

use anyhow::{Result, ensure};
use mooring_contract::names::NAMESPACE;
use mooring_harness::nodes::on_own_nodes_within;
use mooring_harness::processes::kill_all;
use mooring_harness::random::Random;
use mooring_harness::{Scope, is_whole_suite, skipped_without_all, wait_until};
use mooring_testbed::progress::note;
use serde_json::{Value, json};

const NODE: &str = "node-2";
const NODE_INDEX: u8 = 2;

const VOLUMES: [&str; 3] = ["left", "middle", "right"];

/// Longest wait for the volumes to be in use again: agent and kubelet pause longer after each death.
const LIMIT: Duration = Duration::from_mins(4);

const WHOLE_LIMIT: Duration = Duration::from_mins(20);

/// Longest time between the two deaths of a pair, in milliseconds: within it a volume is mounted again.
const LONGEST_GAP: u64 = 2_500;

/// Writes files with a token that no other file has: the volume's name and a number. A write that fails is no matter:
/// which volume has what was written is.
const WRITE: &str = "
for name in left middle right; do
    ( i=1; while :; do echo $name $i >/$name/$i; i=$((i + 1)); sleep 0.2; done ) 2>/dev/null &
done
wait";

/// What is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Daemons,
    Container,
    Mounter,
}

use Victim::{Container, Daemons, Mounter};

/// All pairs, and those of each run of the suite.
const PAIRS: [[Victim; 2]; 6] = [
    [Daemons, Daemons],
    [Daemons, Mounter],
    [Container, Daemons],
    [Container, Mounter],
    [Mounter, Mounter],
    [Container, Container],
];
const FIRST_PAIRS: usize = 3;

/// A FUSE client with its volumes on a server.
struct Client {
    /// The name of its daemons' program.
    daemon: &'static str,
    /// A text in their command lines.
    mark: String,
    /// The Pod of the server, and the directory there with the volumes.
    server: (&'static str, &'static str),
}

impl Client {
    fn kill(&self, scope: &Scope, parents: bool) -> Result<()> {
        let (daemon, mark) = (self.daemon, &self.mark);
        let pid = if parents {
            "$(awk '$1 == \"PPid:\" { print $2 }' $process/status)"
        } else {
            "${process#/proc/}"
        };
        let kill = format!(
            "pids=; for process in /proc/[0-9]*; do \
               [ \"$(cat $process/comm 2>/dev/null)\" = {daemon} ] || continue; \
               tr '\\0' ' ' <$process/cmdline | grep -qF '{mark}' || continue; \
               pids=\"$pids {pid}\"; \
             done; \
             [ -z \"$pids\" ] || kill -KILL $(echo $pids | tr ' ' '\\n' | sort -u) 2>/dev/null || true"
        );
        scope.on_node(NODE_INDEX, &kill).map(drop)
    }

    async fn strike(&self, scope: &Scope, victim: Victim) -> Result<()> {
        match victim {
            Daemons => self.kill(scope, false),
            // All volumes' daemons are children of the container's first process.
            Container => self.kill(scope, true),
            Mounter => {
                kill_all(&scope.processes_of(NAMESPACE, &scope.mounter(NODE).await?).await?);
                Ok(())
            }
        }
    }

    /// Kills in pairs while the Pod writes, and then looks on the server, since a Pod that has its volumes changed over
    /// reads what it wrote.
    async fn keeps_its_volumes_apart(&self, scope: &Scope) -> Result<()> {
        scope.apply(&user().to_string())?;
        scope.pod_ready("user").await?;
        all_take(scope, "before").await?;
        let mut random = Random::new(Random::seed());
        let count = if is_whole_suite() { PAIRS.len() } else { FIRST_PAIRS };
        for (round, pair) in PAIRS.iter().take(count).enumerate() {
            let gap = random.below(LONGEST_GAP);
            note(format!("{:?} and {:?} die, {gap} ms apart", pair[0], pair[1]));
            self.strike(scope, pair[0]).await?;
            tokio::time::sleep(Duration::from_millis(gap)).await;
            self.strike(scope, pair[1]).await?;
            all_take(scope, &format!("round-{round}")).await?;
        }
        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        let (pod, folder) = self.server;
        for name in VOLUMES {
            let files = format!("cd {folder}/{name}; find . -name .glusterfs -prune -o -type f -size +0 -print");
            let said = scope.exec(pod, ["sh", "-euc", &format!("{files} | xargs cat")])?;
            let foreign: Vec<_> = said.lines().filter(|line| !line.starts_with(name)).collect();
            ensure!(
                foreign.is_empty(),
                "volume {name} has data that is not its own: {foreign:?}"
            );
            ensure!(said.lines().count() > 2 * count, "volume {name} has only {said:?}");
        }
        Ok(())
    }
}

fn user() -> Value {
    let mounts = VOLUMES.map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    let volumes = VOLUMES.map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"},
        "spec": {
            "nodeName": NODE, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "busybox:1", "command": ["sh", "-c", WRITE],
                            "volumeMounts": mounts}],
            "volumes": volumes,
        },
    })
}

/// Waits until each volume takes a file of this name, whose text tells for which volume it was meant.
async fn all_take(scope: &Scope, file: &str) -> Result<()> {
    for name in VOLUMES {
        wait_until(&format!("volume {name} to be in use again"), LIMIT, async || {
            let write = format!("echo {name} {file} >/{name}/{file}");
            scope.exec("user", ["sh", "-c", &write]).map(Some)
        })
        .await?;
    }
    Ok(())
}

/// Proves: M2
#[test]
fn volumes_of_a_pod_keep_their_data_when_their_daemons_die_together() {
    on_own_nodes_within(WHOLE_LIMIT, "swap-s3", async |scope| {
        let server = scope.s3_server("node-1").await?;
        scope.mount_secret("key", &server.data)?;
        // s3fs gives the kernel the same type and source for every bucket.
        for name in VOLUMES {
            scope.on_s3_server(&format!("mkdir /srv/volumes/{name}"))?;
            let source = format!("{}/{name}", server.url);
            scope.volume(name, &json!({"client": "s3", "source": source, "secret": "key"}))?;
        }
        let client = Client {
            daemon: "s3fs",
            mark: format!("url={} ", server.url),
            server: ("versitygw", "/srv/volumes"),
        };
        client.keeps_its_volumes_apart(&scope).await
    });
}

#[test]
fn directories_of_an_ssh_server_keep_their_data_when_their_daemons_die_together() {
    if skipped_without_all() {
        return;
    }
    on_own_nodes_within(WHOLE_LIMIT, "swap-sshfs", async |scope| {
        let server = scope.ssh_server("node-1", &VOLUMES).await?;
        for name in VOLUMES {
            scope.volume(name, &server.volume(name))?;
        }
        let client = Client {
            daemon: "sshfs",
            mark: format!("@{}:", server.address),
            server: ("ssh", "/srv/volumes"),
        };
        client.keeps_its_volumes_apart(&scope).await
    });
}

#[test]
fn directories_of_a_glusterfs_volume_keep_their_data_when_their_daemons_die_together() {
    if skipped_without_all() {
        return;
    }
    on_own_nodes_within(WHOLE_LIMIT, "swap-glusterfs", async |scope| {
        let (server, _) = scope.glusterfs_example("node-1").await?;
        let source = format!("{}:/volumes", server.address);
        // Only a client can make directories there.
        scope.volume("whole", &json!({"client": "glusterfs", "source": source}))?;
        scope.pod("maker", NODE, "whole", Value::Null)?;
        scope.pod_ready("maker").await?;
        for name in VOLUMES {
            scope.exec("maker", ["mkdir", &format!("/data/{name}")])?;
            scope.volume(
                name,
                &json!({"client": "glusterfs", "source": format!("{source}/{name}")}),
            )?;
        }
        scope.delete("pod/maker")?;
        scope.pod_gone("maker").await?;
        let client = Client {
            daemon: "glusterfs",
            mark: server.address.clone(),
            server: ("glusterfs", "/srv/volumes/brick"),
        };
        client.keeps_its_volumes_apart(&scope).await
    });
}
