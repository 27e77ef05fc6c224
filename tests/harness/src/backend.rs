//! A backend whose volumes tests can see: each is a directory in the pool of the node that it was created on.

use std::time::Duration;

use anyhow::{Result, bail};
use mooring_contract::names::paths;

use super::nodes::POOL;
use super::provisioner::Provisioner;
use super::scope::Scope;
use super::waits::wait_until;

/// The image that runs the ConfigMap's own script as root, since the pool is root's (tests/images/pooled).
pub const POOLED: &str = concat!("mooring.dev/testbed-pooled:", env!("CARGO_PKG_VERSION"));

/// Longest wait for a volume to be gone from the backend.
const LIMIT: Duration = Duration::from_mins(1);

/// What the image of [`Provisioner::on_pool`] prints about a volume.
pub const PRINT: &str = "pv options client=sshfs source=nobody@192.0.2.1:/x";

impl Provisioner {
    /// A provisioner whose volumes can be counted: `provision` first creates the volume in the pool and then runs
    /// `script`, `delete` removes it. `provision` accepts a volume that exists already.
    #[must_use]
    pub fn on_pool(self, script: &str) -> Self {
        let volume = format!("{}/$PV_NAME", paths::BACKEND);
        self.key("image", POOLED)
            .key("backend-volume", "client=pool")
            .key("volume-source", "flexVolume")
            .on_provision(&format!("mkdir -p \"{volume}\"\n{script}"))
            .on_delete(&format!("rm -rf \"{volume}\""))
    }
}

impl Scope {
    /// Volumes on the nodes of the testbed's own cluster whose names contain this text, each as `node:path`. Empty on
    /// another cluster, whose nodes tests can't enter.
    pub fn on_backend(&self, text: &str) -> Result<Vec<String>> {
        let nodes = self.target.own_cluster().map_or(0, |cluster| cluster.description.nodes);
        let mut found = Vec::new();
        for node in 1..=nodes {
            let script = format!("[ ! -d {POOL} ] || ls -A {POOL} | grep -F '{text}' | sed 's|^|{POOL}/|'");
            let listed = self.on_node(node, &script)?;
            found.extend(listed.lines().map(|path| format!("node-{node}:{path}")));
        }
        Ok(found)
    }

    /// Waits until nothing is left of a claim anywhere: the claim, its objects in Kubernetes, and its volume.
    pub async fn gone_without_trace(&self, claim: &str, uid: &str) -> Result<()> {
        self.claim_until(claim, "to be gone", |seen| seen.is_none()).await?;
        self.nothing_left(uid).await?;
        wait_until("the backend to be empty", self.limit(LIMIT), async || {
            let left = self.on_backend(uid)?;
            if left.is_empty() {
                return Ok(Some(()));
            }
            bail!("there are {}", left.join(", "))
        })
        .await
    }
}
