//! rancher/local-path-provisioner on the cluster: built from its Go module, in an image made here, and installed as its
//! project does.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};

use mooring_harness::Scope;
use mooring_harness::provisioner::SCRIPTED;
use mooring_testbed::base_images::Archive;
use mooring_testbed::binaries::ensure_peer;
use mooring_testbed::command::{output, output_with_input};
use mooring_testbed::oci::{Runs, write_archive};

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
        let image = image(&ensure_peer()?)?;
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

/// An image with only the program, in the program's folder.
fn image(program: &Path) -> Result<Archive> {
    let archive = Archive {
        name: IMAGE.to_owned(),
        path: program.with_extension("image.tar"),
    };
    if archive.path.is_file() {
        return Ok(archive);
    }
    let layer = program.with_extension("layer.tar");
    let pack = || -> std::io::Result<()> {
        let mut tar = tar::Builder::new(File::create(&layer)?);
        tar.mode(tar::HeaderMode::Deterministic);
        tar.append_path_with_name(program, "local-path-provisioner")?;
        tar.into_inner()?.sync_all()
    };
    pack().context("failed to pack local-path-provisioner")?;
    let runs = Runs {
        entrypoint: &["/local-path-provisioner"],
        cmd: &[],
    };
    write_archive(&archive.path, &layer, &runs)?;
    let _ = std::fs::remove_file(&layer);
    Ok(archive)
}
