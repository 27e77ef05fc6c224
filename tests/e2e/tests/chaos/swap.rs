//! Volumes of one Pod that little but their devices tells apart, and whose FUSE daemons, client container and mounter
//! die in pairs while the Pod writes: afterwards the server is searched, and each volume has its own data alone. One at
//! a time, since other volumes of the node use the same client container.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, ResourceExt};
use mooring_contract::names::{NAMESPACE, labels};
use mooring_harness::ceph::key_of;
use mooring_harness::nodes::on_own_nodes_within;
use mooring_harness::processes::{is_first, kill_all};
use mooring_harness::random::Random;
use mooring_harness::{Scope, is_whole_suite, skipped_without_all, wait_until};
use mooring_testbed::progress::note;
use serde_json::{Value, json};

const NODE: &str = "node-2";
const NODE_INDEX: u8 = 2;

/// The volumes, of which a Pod has the first two to four.
const VOLUMES: [&str; 4] = ["left", "middle", "right", "last"];

/// How many the Pod of each group has with the usual seed. Another seed begins with another number.
const COUNTS: [usize; 3] = [3, 2, 4];

/// Longest wait for the volumes to be in use again: agent and kubelet pause longer after each death.
const LIMIT: Duration = Duration::from_mins(4);

const WHOLE_LIMIT: Duration = Duration::from_mins(40);

/// Longest time between the two deaths of a pair, in milliseconds: within it a volume is mounted again.
const LONGEST_GAP: u64 = 2_500;

/// The place in a volume of what is written between deaths. The writers have those below.
const CHECKS: usize = 100_000;

/// Writes token `$3` as file `$2` of volume `$1`.
const AS_A_FILE: &str = "put() { echo \"$3\" >/$1/$2; }";

/// Writes token `$3` as sector `$2` of volume `$1`, which shows a device.
const AS_A_SECTOR: &str =
    "put() { printf '%-511s\\n' \"$3\" | dd of=/$1/disk bs=512 seek=$2 conv=notrunc,fsync 2>/dev/null; }";

/// What is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Daemons,
    Container,
    Mounter,
}

use Victim::{Container, Daemons, Mounter};

/// Every pair, in groups with a Pod each. The first group is that of each run of the suite. No group ends a container
/// more than three times: the kubelet would wait for minutes before it starts it again.
const GROUPS: [[[Victim; 2]; 3]; 3] = [
    [[Daemons, Daemons], [Daemons, Mounter], [Container, Daemons]],
    [[Container, Container], [Mounter, Daemons], [Mounter, Mounter]],
    [[Daemons, Container], [Container, Mounter], [Mounter, Container]],
];

/// A FUSE client with its volumes on a server.
struct Client {
    /// As volumes name it.
    name: &'static str,
    /// The names of its daemons' programs, as a pattern of the shell.
    daemons: &'static str,
    /// A text in their command lines.
    mark: String,
    /// Shell function `put` of the Pod.
    put: &'static str,
    search: Search,
}

/// Where all that was written is searched for.
struct Search {
    pod: &'static str,
    /// All that a client could write to.
    root: &'static str,
    /// The directory with the volumes, each a directory or a file.
    volumes: &'static str,
}

impl Search {
    /// Fails if a token of this run is anywhere but in its own volume, or if a volume has fewer than `least`.
    fn finds_all_in_their_places(&self, scope: &Scope, volumes: &[&str], least: usize) -> Result<()> {
        let (run, root) = (&scope.namespace, self.root);
        // GlusterFS has a second name for each file. A device has zeros where nothing was written.
        let search = format!(
            "find {root} -xdev -name .glusterfs -prune -o -type f -size +0 -exec grep -aHF '{run}/' {{}} + | \
             tr -d '\\000'"
        );
        let said = scope.exec(self.pod, ["sh", "-c", &search])?;
        let mut found = BTreeMap::<&str, usize>::new();
        for line in said.lines() {
            let (path, text) = line.split_once(':').with_context(|| format!("no file in {line:?}"))?;
            let inside = path.strip_prefix(self.volumes).and_then(|rest| rest.strip_prefix('/'));
            let name = inside.and_then(|rest| rest.split('/').next()).unwrap_or_default();
            let is_own = text.starts_with(&format!("{run}/{name} ")) && text.matches(run.as_str()).count() == 1;
            ensure!(is_own, "{path} on the server has {text:?}");
            *found.entry(name).or_default() += 1;
        }
        for name in volumes {
            let count = found.get(name).copied().unwrap_or_default();
            ensure!(
                count > least,
                "the server has only {count} tokens of volume {name}: {found:?}"
            );
        }
        note(format!("on the server: {found:?}"));
        Ok(())
    }
}

impl Client {
    fn kill_daemons(&self, scope: &Scope) -> Result<()> {
        let (daemons, mark) = (self.daemons, &self.mark);
        let kill = format!(
            "pids=; for process in /proc/[0-9]*; do \
               case $(cat $process/comm 2>/dev/null) in {daemons}) ;; *) continue ;; esac; \
               tr '\\0' ' ' <$process/cmdline | grep -qF '{mark}' || continue; \
               pids=\"$pids ${{process#/proc/}}\"; \
             done; \
             [ -z \"$pids\" ] || kill -KILL $pids 2>/dev/null || true"
        );
        scope.on_node(NODE_INDEX, &kill).map(drop)
    }

    /// The names of its client Pods on the node.
    async fn pods(&self, scope: &Scope) -> Result<Vec<String>> {
        let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
        let ours = format!("{}={},{}={NODE}", labels::CLIENT, self.name, labels::NODE);
        let found = pods.list(&ListParams::default().labels(&ours)).await?;
        Ok(found.items.iter().map(ResourceExt::name_any).collect())
    }

    async fn strike(&self, scope: &Scope, victim: Victim) -> Result<()> {
        match victim {
            Daemons => self.kill_daemons(scope)?,
            Container => {
                for pod in self.pods(scope).await? {
                    let mut pids = scope.processes_of(NAMESPACE, &pod).await?;
                    pids.retain(|&pid| is_first(pid));
                    kill_all(&pids);
                }
            }
            Mounter => kill_all(&scope.processes_of(NAMESPACE, &scope.mounter(NODE).await?).await?),
        }
        Ok(())
    }

    /// Replaces the mounter and the client Pods: the kubelet starts a container that ended often only after minutes.
    async fn replace_containers(&self, scope: &Scope) -> Result<()> {
        let mounter = scope.mounter(NODE).await?;
        let pods = self.pods(scope).await?;
        let delete = ["-n", NAMESPACE, "delete", "pod", "--ignore-not-found", &mounter];
        scope.kubectl(delete.into_iter().chain(pods.iter().map(String::as_str)))?;
        wait_until("the next mounter to be ready", LIMIT, async || {
            let status = scope.mounter_status(NODE).await?;
            Ok((status["ready"] == true).then_some(()))
        })
        .await
    }

    async fn keeps_its_volumes_apart(&self, scope: &Scope) -> Result<()> {
        let seed = Random::seed();
        let mut random = Random::new(seed);
        let groups = if is_whole_suite() { &GROUPS[..] } else { &GROUPS[..1] };
        let counts = COUNTS.iter().cycle().skip(usize::try_from(seed % 3)?);
        for (group, (pairs, count)) in groups.iter().zip(counts).enumerate() {
            if group > 0 {
                self.replace_containers(scope).await?;
            }
            let round = Group {
                client: self,
                scope,
                number: group,
                volumes: &VOLUMES[..*count],
            };
            round.dies_in(pairs, &mut random).await?;
            self.search
                .finds_all_in_their_places(scope, round.volumes, 2 * pairs.len())?;
        }
        Ok(())
    }
}

/// Pairs of deaths with one Pod.
struct Group<'a> {
    client: &'a Client,
    scope: &'a Scope,
    number: usize,
    volumes: &'a [&'static str],
}

impl Group<'_> {
    /// Kills in pairs while the Pod writes.
    async fn dies_in(&self, pairs: &[[Victim; 2]], random: &mut Random) -> Result<()> {
        let Self {
            client, scope, volumes, ..
        } = self;
        scope.apply(&self.user().to_string())?;
        scope.pod_ready("user").await?;
        self.all_take(CHECKS).await?;
        for (round, pair) in pairs.iter().enumerate() {
            let gap = random.below(LONGEST_GAP);
            note(format!(
                "{:?} and {:?} of {} volumes die, {gap} ms apart",
                pair[0],
                pair[1],
                volumes.len()
            ));
            client.strike(scope, pair[0]).await?;
            tokio::time::sleep(Duration::from_millis(gap)).await;
            client.strike(scope, pair[1]).await?;
            self.all_take(CHECKS + 1 + round).await?;
        }
        scope.delete("pod/user")?;
        scope.pod_gone("user").await
    }

    /// How a token begins, which no other run, volume or group has.
    fn token(&self, name: &str) -> String {
        format!("{}/{name} {}", self.scope.namespace, self.number)
    }

    /// The Pod, which writes tokens to each volume. A write that fails is no matter: which volume has what was written
    /// is.
    fn user(&self) -> Value {
        let loops = self.volumes.iter().map(|name| {
            let token = self.token(name);
            format!("( i=1; while :; do put {name} $i \"{token} $i\"; i=$((i + 1)); sleep 0.2; done ) 2>/dev/null &\n")
        });
        let script = format!("{}\n{}wait", self.client.put, loops.collect::<String>());
        let of_all = |one: &dyn Fn(&&str) -> Value| self.volumes.iter().map(one).collect::<Vec<_>>();
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"},
            "spec": {
                "nodeName": NODE, "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main", "image": "busybox:1", "command": ["sh", "-c", script],
                    "volumeMounts": of_all(&|name| json!({"name": name, "mountPath": format!("/{name}")})),
                }],
                "volumes": of_all(&|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}})),
            },
        })
    }

    /// Waits until each volume takes a token in this place.
    async fn all_take(&self, place: usize) -> Result<()> {
        for name in self.volumes {
            let write = format!("{}\nput {name} {place} '{} {place}'", self.client.put, self.token(name));
            wait_until(&format!("volume {name} to be in use again"), LIMIT, async || {
                self.scope.exec("user", ["sh", "-c", &write]).map(Some)
            })
            .await?;
        }
        Ok(())
    }
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
            name: "s3",
            daemons: "s3fs",
            mark: format!("url={} ", server.url),
            put: AS_A_FILE,
            search: Search {
                pod: "versitygw",
                root: "/srv/volumes",
                volumes: "/srv/volumes",
            },
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
            name: "sshfs",
            daemons: "sshfs",
            mark: format!("@{}:", server.address),
            put: AS_A_FILE,
            search: Search {
                pod: "ssh",
                // It lets clients write wherever its user may.
                root: "/",
                volumes: "/srv/volumes",
            },
        };
        client.keeps_its_volumes_apart(&scope).await
    });
}

/// Makes the volumes in what claim `whole` has, by Pod `whole` of the server's node, which stays.
async fn make_in_the_whole(scope: &Scope) -> Result<()> {
    scope.pod("whole", "node-1", "whole", Value::Null)?;
    scope.pod_ready("whole").await?;
    for name in VOLUMES {
        scope.exec("whole", ["mkdir", &format!("/data/{name}")])?;
    }
    Ok(())
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
        make_in_the_whole(&scope).await?;
        for name in VOLUMES {
            scope.volume(
                name,
                &json!({"client": "glusterfs", "source": format!("{source}/{name}")}),
            )?;
        }
        let client = Client {
            name: "glusterfs",
            daemons: "glusterfs",
            mark: server.address.clone(),
            put: AS_A_FILE,
            search: Search {
                pod: "glusterfs",
                root: "/srv/volumes/brick",
                volumes: "/srv/volumes/brick",
            },
        };
        client.keeps_its_volumes_apart(&scope).await
    });
}

#[test]
fn directories_of_a_ceph_file_system_keep_their_data_when_their_daemons_die_together() {
    if skipped_without_all() {
        return;
    }
    on_own_nodes_within(WHOLE_LIMIT, "swap-cephfs", async |scope| {
        let server = scope.ceph("node-1", "cephfs").await?;
        // A new client of a directory waits until the dead one's session is over: as short as the cluster takes it.
        scope.on_ceph("ceph fs set cephfs session_timeout 30")?;
        let user = "cephfs-nodes";
        scope.ceph_secret(&scope.namespace, "key", user, key_of(user))?;
        let of = |path: &str| {
            let source = format!("{}:/volumes/mooring{path}", server.address);
            json!({"client": "cephfs", "source": source, "driver": "fuse", "secret": "key"})
        };
        scope.volume("whole", &of(""))?;
        make_in_the_whole(&scope).await?;
        for name in VOLUMES {
            scope.volume(name, &of(&format!("/{name}")))?;
        }
        let client = Client {
            name: "cephfs",
            daemons: "ceph-fuse",
            mark: format!("-m {} ", server.address),
            put: AS_A_FILE,
            // The server has no tree of files. The user of the nodes may write here alone.
            search: Search {
                pod: "whole",
                root: "/data",
                volumes: "/data",
            },
        };
        client.keeps_its_volumes_apart(&scope).await
    });
}

#[test]
fn devices_that_are_shown_as_files_keep_their_data_when_their_daemons_die_together() {
    if skipped_without_all() {
        return;
    }
    on_own_nodes_within(WHOLE_LIMIT, "swap-raw", async |scope| {
        let server = scope.storage_server("tgt", "node-1", &Value::Null).await?;
        // nbdfuse gives the kernel the same type and source for every device.
        for (name, source) in VOLUMES.iter().zip(scope.iscsi_targets(&server.address, VOLUMES)?) {
            scope.volume(name, &json!({"client": "block", "source": source, "fs-type": "raw"}))?;
        }
        let client = Client {
            name: "block",
            // The kernel cuts the name of qemu-storage-daemon.
            daemons: "nbdfuse | qemu-storage-da",
            // Nothing else uses the client on this node.
            mark: String::new(),
            put: AS_A_SECTOR,
            search: Search {
                pod: "tgt",
                root: "/srv/volumes",
                volumes: "/srv/volumes",
            },
        };
        client.keeps_its_volumes_apart(&scope).await
    });
}
