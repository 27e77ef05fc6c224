//! New versions of mounter, shim and client image are rolled out and rolled back while volumes are in use: a version
//! that differs only in its files, and the programs of an earlier commit. Alone: every mounter of the cluster is
//! replaced.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ResourceExt as _;
use kube::{Api, Client};
use mooring_contract::names::{FLEX_EXECUTABLE, labels};
use mooring_harness::clients::{
    MOUNTER_IMAGE, SSH_CLIENT_IMAGE, client_pods_of, client_pods_with_agent_of, earlier_mounter, image_of_its_own,
    next_mounter, remove_image,
};
use mooring_harness::nodes::{POOL, driver_directory, driver_directory_outside, on_own_nodes, on_own_nodes_within};
use mooring_harness::rollout::Installed;
use mooring_harness::ssh::SshServer;
use mooring_harness::{Scope, open_target, skip, wait_until};
use mooring_testbed::earlier::{self, Earlier};
use mooring_testbed::images::program_folder;
use mooring_testbed::layout::repository;
use serde_json::json;

const NODE: &str = "node-1";

/// Longest wait for a client Pod to start or to go, and for the node to report it.
pub(crate) const LIMIT: Duration = Duration::from_mins(3);

/// Time limit of the test that goes from one version to the other and back: all mounters are replaced three times.
const WHOLE_LIMIT: Duration = Duration::from_mins(20);

/// What the node reports about client Pods of an earlier version: how many, and which.
async fn old_client_pods(client: &Client) -> Result<(String, String)> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get(NODE).await?;
    let of = |all: &std::collections::BTreeMap<String, String>| {
        all.get(labels::NODE_OLD_CLIENT_PODS).cloned().unwrap_or_default()
    };
    Ok((of(node.labels()), of(node.annotations())))
}

async fn until_old(scope: &Scope, count: &str) -> Result<String> {
    wait_until(&format!("{NODE} to say {count} old client Pods"), LIMIT, async || {
        let (said, words) = old_client_pods(&scope.client).await?;
        ensure!(said == count, "it says {said:?}: {words}");
        Ok(Some(words))
    })
    .await
}

/// The client Pods of an image, with their containers' restarts.
async fn serving(scope: &Scope, image: &str) -> Result<Vec<(String, i32)>> {
    Ok(with_restarts(&client_pods_of(scope, image).await?))
}

/// The client Pods whose agent is from a mounter's image.
async fn agents(scope: &Scope, mounter: &str) -> Result<Vec<(String, i32)>> {
    Ok(with_restarts(&client_pods_with_agent_of(scope, mounter).await?))
}

fn with_restarts(pods: &[Pod]) -> Vec<(String, i32)> {
    let restarts = |pod: &Pod| {
        let statuses = pod
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref());
        statuses.map_or(0, |all| all.iter().map(|one| one.restart_count).sum())
    };
    pods.iter()
        .map(|pod| (pod.uid().unwrap_or_default(), restarts(pod)))
        .collect()
}

/// The checksum of the shim on the node.
fn shim(scope: &Scope) -> Result<String> {
    scope.on_node(
        1,
        &format!(
            "sha256sum {}",
            driver_directory(scope.own_cluster()?).join(FLEX_EXECUTABLE).display()
        ),
    )
}

/// How often each of these Pods has written.
fn written(scope: &Scope, users: &[&str]) -> Result<Vec<usize>> {
    users.iter().map(|user| scope.written(user)).collect()
}

/// Volumes in use are unaffected: the same mounts, no error, and something written since.
async fn untouched(scope: &Scope, users: &[&str], mounts: &[String], before: &[usize]) -> Result<()> {
    assert_eq!(scope.mounts_on(1)?, mounts);
    for (user, before) in users.iter().zip(before) {
        wait_until(&format!("{user} to write on"), LIMIT, async || {
            Ok((scope.written(user)? > before + 3).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Proves: M2
#[test]
fn an_upgrade_and_its_way_back_disturb_no_volume_and_old_client_pods_go_with_their_last_one() {
    on_own_nodes("chaos-upgrade", async |scope| {
        scope.require_mooring().await?;
        let server = scope.ssh_server(NODE, &["a", "b"]).await?;
        for name in ["a", "b"] {
            scope.volume(name, &server.volume(name))?;
        }
        let file = scope.volume_name("local");
        scope.on_node(1, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{file}"))?;
        scope.volume("local", &json!({"client": "local", "source": file}))?;
        let users = ["on-a", "on-local"];
        for (user, claim) in users.iter().zip(["a", "local"]) {
            scope.writer(user, NODE, claim)?;
        }
        for user in users {
            scope.pod_ready(user).await?;
        }
        let mounts = scope.mounts_on(1)?;
        assert_eq!(mounts.len(), 2, "{mounts:?}");
        until_old(&scope, "0").await?;
        let installed = Installed::now(&scope).await?;
        let old_image = format!("{SSH_CLIENT_IMAGE}:{}", env!("CARGO_PKG_VERSION"));
        ensure!(installed.image().starts_with(MOUNTER_IMAGE), "{}", installed.image());
        let (old, old_shim) = (serving(&scope, &old_image).await?, shim(&scope)?);
        assert_eq!(old.len(), 1, "{old:?}");
        let new_image = image_of_its_own(&scope, "next")?;
        let new_mounter = next_mounter(&scope, "next")?;

        let before = written(&scope, &users)?;
        installed.upgrade(&new_mounter, "sshfs", &new_image).await?;
        untouched(&scope, &users, &mounts, &before).await?;
        assert_eq!(serving(&scope, &old_image).await?, old);
        assert_ne!(shim(&scope)?, old_shim);
        let words = until_old(&scope, "1").await?;
        ensure!(
            words.contains(&old_image) && words.contains(&format!("{}/on-a", scope.namespace)),
            "{words}"
        );

        // The new version serves new mounts, and the old one keeps serving its own.
        scope.writer("on-b", NODE, "b")?;
        scope.pod_ready("on-b").await?;
        let new = serving(&scope, &new_image).await?;
        assert_eq!(new.len(), 1, "{new:?}");
        assert_eq!(serving(&scope, &old_image).await?, old);

        // It goes with its last volume, and the node reports that.
        scope.stopped_and_intact("on-a").await?;
        scope.delete("pod/on-a")?;
        scope.pod_gone("on-a").await?;
        wait_until("the old client Pod to go", LIMIT, async || {
            Ok(serving(&scope, &old_image).await?.is_empty().then_some(()))
        })
        .await?;
        let words = until_old(&scope, "0").await?;
        assert_eq!(words, "");

        // Rolling back is an upgrade as well.
        let users = ["on-b", "on-local"];
        let mounts = scope.mounts_on(1)?;
        let before = written(&scope, &users)?;
        installed.roll_back().await?;
        untouched(&scope, &users, &mounts, &before).await?;
        assert_eq!(serving(&scope, &new_image).await?, new);
        assert_eq!(shim(&scope)?, old_shim);
        until_old(&scope, "1").await?;
        for user in users {
            scope.stopped_and_intact(user).await?;
            scope.delete(&format!("pod/{user}"))?;
            scope.pod_gone(user).await?;
        }
        assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        until_old(&scope, "0").await?;
        drop(installed);
        for image in [new_image, new_mounter] {
            remove_image(&scope, &image)?;
        }
        Ok(())
    });
}

/// The earlier version's programs, and the installation of this one.
struct Versions<'a> {
    scope: &'a Scope,
    server: &'a SshServer,
    installed: &'a Installed<'a>,
    earlier: &'a Earlier,
    /// The mounter's image of the earlier version.
    image: String,
}

/// One of the two versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    Earlier,
    This,
}

impl Version {
    fn other(self) -> Self {
        match self {
            Self::Earlier => Self::This,
            Self::This => Self::Earlier,
        }
    }
}

impl Versions<'_> {
    async fn roll_out(&self, version: Version) -> Result<()> {
        match version {
            Version::Earlier => self.installed.downgrade(&self.image, &self.earlier.manifest()?).await,
            Version::This => self.installed.roll_back().await,
        }
    }

    fn image(&self, version: Version) -> &str {
        match version {
            Version::Earlier => &self.image,
            Version::This => self.installed.image(),
        }
    }

    /// The client Pods of a version's agents that serve volumes of this test: idle ones are gone.
    async fn agents(&self, version: Version) -> Result<Vec<(String, i32)>> {
        agents(self.scope, self.image(version)).await
    }

    /// Kills the program that serves a volume: its agent, of version `from`, mounts it again, and the mounter of the
    /// other version puts the mount where it is used. An agent of the earlier version holds no dead mounts, and its
    /// mounts show no ids, so the mounter of this one does not know which volume a dead mount is of, and says so.
    async fn killed(&self, from: Version, user: &str, volume: &str) -> Result<()> {
        let scope = self.scope;
        let source = self.server.source(volume);
        let kill = format!(
            "for process in /proc/[0-9]*; do \
               [ \"$(cat $process/comm 2>/dev/null)\" = sshfs ] || continue; \
               tr '\\0' ' ' <$process/cmdline | grep -qF ' {source} ' || continue; \
               kill -KILL ${{process#/proc/}}; echo killed; \
             done"
        );
        assert_eq!(scope.on_node(1, &kill)?, "killed\n");
        if from == Version::Earlier {
            return scope.event(user, "Delete this Pod").await.map(drop);
        }
        scope.event(user, "can be used again").await?;
        wait_until(&format!("{user} to have its files again"), LIMIT, async || {
            scope.intact(user).map(Some)
        })
        .await
    }

    /// Goes from one version to the other with a served and a local volume in use. Each is unmounted by the other
    /// version, which mounts the same volume next.
    async fn change(&self, from: Version, ssh: &str, local: &str) -> Result<()> {
        let scope = self.scope;
        self.roll_out(from).await?;
        let users = [format!("{ssh}-{from:?}"), format!("{local}-{from:?}")].map(|name| name.to_lowercase());
        for (user, claim) in users.iter().zip([ssh, local]) {
            scope.writer(user, NODE, claim)?;
            scope.pod_ready(user).await?;
        }
        let old = self.agents(from).await?;
        assert_eq!(old.len(), 1, "{old:?}");
        let mounts = scope.mounts_on(1)?;
        assert_eq!(mounts.len(), 2, "{mounts:?}");
        let (old_shim, names) = (shim(scope)?, users.each_ref().map(String::as_str));
        let before = written(scope, &names)?;

        self.roll_out(from.other()).await?;
        assert_ne!(shim(scope)?, old_shim);
        untouched(scope, &names, &mounts, &before).await?;
        assert_eq!(self.agents(from).await?, old);
        until_old(scope, "1").await?;
        self.shim_of(from).await?;
        for user in &users {
            scope.stopped_and_intact(user).await?;
        }
        self.killed(from, &users[0], ssh).await?;
        assert_eq!(self.agents(from).await?, old, "another client Pod than {from:?}'s own");

        for user in &users {
            scope.delete(&format!("pod/{user}"))?;
            scope.pod_gone(user).await?;
        }
        assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        wait_until(&format!("the client Pod of {from:?} to go"), LIMIT, async || {
            Ok(self.agents(from).await?.is_empty().then_some(()))
        })
        .await?;
        assert_eq!(until_old(scope, "0").await?, "");
        Ok(())
    }

    /// Puts one version's shim in front of the other's mounter, as when a kubelet runs it while it is replaced.
    async fn shim_of(&self, version: Version) -> Result<()> {
        let scope = self.scope;
        let driver = driver_directory(scope.own_cluster()?);
        let program = match version {
            Version::Earlier => self.earlier.shim(),
            Version::This => repository().join(program_folder()?).join("vcs"),
        };
        // The socket is beside the shim. The kubelet ignores names that begin with a dot.
        let place = driver.join(format!(".{}", scope.namespace));
        let outside = driver_directory_outside(NODE)?.join(format!(".{}", scope.namespace));
        std::fs::copy(&program, &outside).with_context(|| format!("failed to copy {}", program.display()))?;
        let tried = self.tried_shim(&place.to_string_lossy()).await;
        std::fs::remove_file(&outside).with_context(|| format!("failed to remove {}", outside.display()))?;
        tried
    }

    async fn tried_shim(&self, place: &str) -> Result<()> {
        let scope = self.scope;
        let file = format!("{}-shim", scope.namespace);
        scope.on_node(1, &format!("truncate -s 64M {POOL}/{file}"))?;
        // The PersistentVolume has the file's name.
        let own = json!({"client": "local", "source": file});
        scope.volume("shim", &own)?;
        let pod = scope.refused_pod("shim", 1, &["shim"]).await?;
        let target = format!("{}/{file}", pod.volumes);
        scope.on_node(1, &format!("mkdir -p {target}"))?;
        let options = pod.options(&own).to_string();
        let refused = json!({"client": "local", "source": "../x"}).to_string();
        for (call, wanted) in [
            (&["init"][..], "Success"),
            (&["mount", &target, &refused], "Failure"),
            (&["mount", &target, &options], "Success"),
            (&["mount", &target, &options], "Success"),
            (&["unmount", &target], "Success"),
        ] {
            let answer = scope.call_out_of(1, place, call)?;
            assert_eq!(answer.status(), wanted, "{call:?}: {answer:?}");
        }
        scope.on_node(1, &format!("rm -rf {target} {POOL}/{file}"))?;
        scope.delete("pod/shim")?;
        scope.delete("persistentvolumeclaim/shim")?;
        scope.kubectl(["delete", "pv", &scope.volume_name("shim")])?;
        Ok(())
    }
}

/// Proves: M2
#[test]
fn mounters_shims_and_agents_of_an_earlier_commit_and_of_this_one_work_together_both_ways() {
    if let Some(reason) = earlier::missing() {
        return skip(&reason);
    }
    // Before the test's own time limit begins.
    if open_target().is_ok_and(|target| target.own_cluster().is_some()) {
        earlier::ensure().unwrap();
    }
    on_own_nodes_within(WHOLE_LIMIT, "chaos-versions", async |scope| {
        scope.require_mooring().await?;
        let earlier = earlier::ensure()?;
        let server = scope.ssh_server(NODE, &["a", "b"]).await?;
        for name in ["a", "b"] {
            scope.volume(name, &server.volume(name))?;
        }
        for name in ["disk", "other-disk"] {
            let file = scope.volume_name(name);
            scope.on_node(1, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{file}"))?;
            scope.volume(name, &json!({"client": "local", "source": file}))?;
        }
        let installed = Installed::now(&scope).await?;
        let image = earlier_mounter(&scope, &earlier, "earlier")?;
        until_old(&scope, "0").await?;
        let versions = Versions {
            scope: &scope,
            server: &server,
            installed: &installed,
            earlier: &earlier,
            image,
        };
        versions.change(Version::Earlier, "a", "disk").await?;
        versions.change(Version::This, "b", "other-disk").await?;
        let image = versions.image;
        drop(installed);
        remove_image(&scope, &image)
    });
}
