//! rancher/local-path-provisioner on the cluster: built from its Go module, in an image made here, and installed as its
//! project does.

use anyhow::{Context, Result};

use super::go_image::image;
use mooring_harness::Scope;
use mooring_harness::provisioner::SCRIPTED;
use mooring_testbed::binaries::ensure_peer;
use mooring_testbed::command::{output, output_with_input};

/// The image's full name.
const IMAGE: &str = "docker.io/rancher/local-path-provisioner:v0.0.30";

/// Its default number of worker threads.
pub(super) const USUAL_THREADS: usize = 4;

const MANIFEST: &str = include_str!("../local-path.yaml");

/// An installation; its objects and its class are named after the bench's namespace.
pub(super) struct Peer<'a> {
    scope: &'a Scope,
    /// Namespace and class.
    pub(super) name: String,
}

impl<'a> Peer<'a> {
    pub(super) fn of(scope: &'a Scope) -> Self {
        Self {
            scope,
            name: format!("{}-local-path", scope.namespace),
        }
    }

    /// Brings the image to all nodes and starts it.
    pub(super) fn install(&self) -> Result<()> {
        let cluster = self.scope.own_cluster()?;
        let image = image(IMAGE, &[ensure_peer()?])?;
        (1..=cluster.description.nodes).try_for_each(|index| cluster.import(index, &image))?;
        self.apply(USUAL_THREADS)
    }

    /// Runs it with this many worker threads.
    pub(super) fn apply(&self, threads: usize) -> Result<()> {
        let mut apply = self.scope.target.kubectl(["apply", "-f", "-"]);
        output_with_input(&mut apply, self.manifest(threads).as_bytes())?;
        let args = [
            "-n",
            &self.name,
            "rollout",
            "status",
            "deployment/local-path-provisioner",
            "--timeout=120s",
        ];
        output(&mut self.scope.target.kubectl(args)).context("local-path-provisioner does not start")?;
        Ok(())
    }

    /// Removes it, and waits until it is gone.
    pub(super) fn remove(&self) -> Result<()> {
        let args = ["delete", "--ignore-not-found", "--timeout=180s", "-f", "-"];
        output_with_input(
            &mut self.scope.target.kubectl(args),
            self.manifest(USUAL_THREADS).as_bytes(),
        )?;
        Ok(())
    }

    fn manifest(&self, threads: usize) -> String {
        // The scope removes the folder with its name.
        let folder = format!("/var/lib/mooring/{}", self.name);
        MANIFEST
            .replace("PEER-NAME", &self.name)
            .replace("PEER-FOLDER", &folder)
            .replace("PEER-HELPER", SCRIPTED)
            .replace("PEER-WORKERS", &threads.to_string())
    }
}
