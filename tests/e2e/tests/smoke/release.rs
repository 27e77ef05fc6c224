//! Releases: two of one commit have the same digests, and a cluster whose nodes have no image of Mooring's runs the demo
//! from a private registry. Alone: it compiles, builds images, and has a cluster of its own.

mod cosign;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mooring_contract::names::NAMESPACE;
use mooring_harness::registry::{PASSWORD, PrivateRegistry, USER};
use mooring_harness::{open_target, skip};
use mooring_testbed::binaries::ensure_helm;
use mooring_testbed::cluster::{self, Cluster, Wanted};
use mooring_testbed::command::{cargo, command, output, output_within};
use mooring_testbed::images::{self, Form, Selection, TAG};
use mooring_testbed::layout::Layout;
use mooring_testbed::node::{Flavour, PAUSE_IMAGE, REGISTRIES};
use mooring_testbed::progress::note;
use mooring_testbed::target::Target;
use mooring_testbed::{base_images, demo};

use cosign::Cosign;

/// What the demo's main path needs, besides the base that they start from.
const IMAGES: [&str; 5] = [
    "client-sshfs",
    "flex-provisioner",
    "mounter",
    "provisioner-local",
    "provisioner-sshfs",
];

/// The path in the registry.
const PLACE: &str = "team/mooring";

/// Longest for a release: it compiles the programs as users get them.
const RELEASE_LIMIT: Duration = Duration::from_mins(40);

/// Longest until Mooring's Pods are ready, which pull their images first.
const READY_LIMIT: &str = "--timeout=5m";

struct Release<'a> {
    registry: &'a PrivateRegistry,
    folder: PathBuf,
}

impl<'a> Release<'a> {
    fn into(registry: &'a PrivateRegistry, folder: PathBuf) -> Self {
        Self { registry, folder }
    }

    fn place(&self) -> String {
        format!("{}/{PLACE}", self.registry.host())
    }

    /// The command, as anybody calls it.
    fn command(&self, images: &[&str], more: &[&str]) -> Result<Command> {
        let mut release = cargo(["run", "--quiet", "--bin", "testbed", "--", "release", "--allow-dirty"])?;
        release.arg(self.place()).arg("--directory").arg(&self.folder);
        release.arg("--registry-ca").arg(&self.registry.authority);
        release.args(images.iter().map(|image| format!("--image={image}")));
        release.args(more).env("REGISTRY_AUTH_FILE", self.registry.login());
        Ok(release)
    }

    fn run(&self, images: &[&str], more: &[&str]) -> Result<()> {
        note(output_within(&mut self.command(images, more)?, RELEASE_LIMIT)?);
        Ok(())
    }

    fn file(&self, name: &str) -> Result<String> {
        let path = self.folder.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
    }
}

/// The name of a file that each architecture has of its own.
fn of_this_machine(name: &str, end: &str) -> String {
    let architecture = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    format!("{name}-{architecture}{end}")
}

/// Fails if the command succeeds, or does not say this.
fn refused(command: &mut Command, why: &str) -> Result<()> {
    let Err(error) = output_within(command, RELEASE_LIMIT) else {
        anyhow::bail!("{command:?} succeeded, though: {why}");
    };
    let error = error.to_string();
    ensure!(error.contains(why), "it does not say {why:?}: {error}");
    Ok(())
}

/// The images of a node, without those that the testbed gives to each.
fn images_on(cluster: &Cluster, index: u8) -> Result<Vec<String>> {
    let listed = output(&mut cluster.in_node(index, "ctr", ["-n", "k8s.io", "images", "ls", "-q"])?)?;
    let given = [PAUSE_IMAGE, base_images::BUSYBOX];
    let others = listed
        .lines()
        .filter(|name| !given.contains(name) && !name.starts_with("sha256:"));
    Ok(others.map(str::to_owned).collect())
}

fn released_twice(cluster: &Cluster) -> Result<()> {
    let registry = PrivateRegistry::start(cluster)?;
    let folder = tempfile::tempdir().context("failed to make a folder")?;
    let release = |name: &str| Release::into(&registry, folder.path().join(name));
    let (first, second) = (release("first"), release("second"));
    let cosign = Cosign::with_keys()?;
    let mut signed = first.command(&IMAGES, &[])?;
    cosign.sign(&mut signed)?;
    note(output_within(&mut signed, RELEASE_LIMIT)?);
    // The same registry takes only the same content.
    second.run(&IMAGES, &["--rebuild"])?;
    let (digests, sums) = (of_this_machine("digests", ".txt"), of_this_machine("SHA256SUMS", ""));
    for name in [&digests, &sums] {
        assert_eq!(first.file(name)?, second.file(name)?, "{name}");
    }
    output(command("sha256sum", ["--check", &sums]).current_dir(&first.folder))?;
    let references = ["charts/mooring"].into_iter().chain(IMAGES);
    let references = references.map(|name| format!("{}/{name}:{TAG}", first.place()));
    let stranger = Cosign::with_keys()?;
    for reference in references {
        output(&mut cosign.verify(&registry, &reference))?;
        refused(&mut stranger.verify(&registry, &reference), "invalid signature")?;
    }
    output(cosign.verify_file(&sums).current_dir(&first.folder))?;
    refused(
        stranger.verify_file(&sums).current_dir(&first.folder),
        "invalid signature",
    )?;
    let bom = first.file(&of_this_machine("sbom/mounter", ".spdx.json"))?;
    for url in ["pkg:deb/debian/e2fsprogs@", "pkg:cargo/kube@"] {
        ensure!(bom.contains(url), "the mounter's bill of materials has no {url}");
    }
    let manifest = first.file("mooring.yaml")?;
    ensure!(manifest.contains(&format!("image: {}/mounter:{TAG}", first.place())));
    ensure!(
        !first
            .file("mooring-before-1.36.yaml")?
            .contains("MutatingAdmissionPolicy")
    );

    // Another commit, or another image, does not take the place of what somebody may have pulled.
    let other = release("other");
    let base = ["provisioner-base"];
    let source = ["--source=https://example.com/other"];
    refused(&mut other.command(&base, &source)?, "Nothing was pushed")?;
    let login = folder.path().join("wrong.json");
    registry.write_login(&login, "unmoored")?;
    let mut wrong = other.command(&base, &[])?;
    refused(wrong.env("REGISTRY_AUTH_FILE", login), "run `buildah login")?;
    let mut wrong = other.command(&base, &[])?;
    cosign.sign(&mut wrong)?;
    refused(
        wrong.env("COSIGN_PASSWORD", "adrift"),
        "the password in the environment",
    )?;
    let mut unknown = cargo(["run", "--quiet", "--bin", "testbed", "--", "release", "--allow-dirty"])?;
    refused(unknown.arg(other.place()), "name yours by --registry-ca")?;

    let reference = format!("{}/provisioner-base:{TAG}", first.place());
    let login = format!("{USER}:{PASSWORD}");
    let pull = [
        "-n",
        "k8s.io",
        "images",
        "pull",
        "--hosts-dir",
        REGISTRIES,
        "--user",
        &login,
        &reference,
    ];
    output(&mut cluster.in_node(1, "ctr", pull)?)?;
    ensure!(
        images_on(cluster, 1)?.contains(&reference),
        "{reference} is not on the node"
    );
    output(&mut cluster.in_node(1, "ctr", ["-n", "k8s.io", "images", "rm", &reference])?)?;
    Ok(())
}

/// A cluster beside the usual one; it is taken away when this is dropped.
struct Apart(Layout);

impl Drop for Apart {
    fn drop(&mut self) {
        if let Err(error) = cluster::down(&self.0) {
            note(format!("the cluster of this test is left: {error:#}"));
        }
    }
}

fn run_the_demo(cluster: &Cluster, registry: &PrivateRegistry, folder: &Path) -> Result<()> {
    let release = Release::into(registry, folder.to_owned());
    release.run(&IMAGES, &[])?;
    for index in 1..=cluster.description.nodes {
        let there = images_on(cluster, index)?;
        ensure!(there.is_empty(), "node-{index} has {}", there.join(", "));
    }
    output(&mut cluster.kubectl(["create", "namespace", NAMESPACE]))?;
    let secret = ["create", "secret", "docker-registry", "registry", "-n", NAMESPACE];
    let server = format!("--docker-server={}", registry.host());
    let login = [
        format!("--docker-username={USER}"),
        format!("--docker-password={PASSWORD}"),
    ];
    output(cluster.kubectl(secret).arg(server).args(login))?;
    let chart = format!("oci://{}/charts/mooring", release.place());
    let mut helm = command(
        ensure_helm()?,
        ["install", "mooring", &chart, "--version", TAG, "-n", NAMESPACE],
    );
    helm.args(["--set", "pullSecrets={registry}"])
        .arg("--ca-file")
        .arg(&registry.authority)
        .arg("--registry-config")
        .arg(registry.login())
        .env("KUBECONFIG", cluster.layout.kubeconfig());
    output(&mut helm)?;
    for workload in ["deployment/flex-provisioner", "daemonset/mounter"] {
        output(&mut cluster.kubectl(["-n", NAMESPACE, "rollout", "status", workload, READY_LIMIT]))?;
    }
    // The file server stands for the storage, and is not Mooring's.
    let server = images::build(Selection::Named(&["testbed-sshd"]), Form::from_env())?;
    for index in 1..=cluster.description.nodes {
        server
            .iter()
            .try_for_each(|image| cluster.import(index, &image.archive))?;
    }
    demo::run_on(&Target::own(&cluster.layout, Wanted::default(), None)?)?;
    let path = "jsonpath={range .items[*]}{.spec.initContainers[*].image} {.spec.containers[*].image}{\"\\n\"}{end}";
    let images = output(&mut cluster.kubectl(["-n", NAMESPACE, "get", "pods", "-o", path]))?;
    ensure!(
        images.contains(&format!("{}/client-sshfs:", release.place())),
        "{images}"
    );
    for image in images.split_whitespace() {
        ensure!(image.starts_with(&release.place()), "{image} is not of the registry");
    }
    Ok(())
}

#[test]
fn two_releases_of_a_commit_have_the_same_digests_and_a_runtime_pulls_them() {
    let target = open_target().unwrap();
    let Some(cluster) = target.own_cluster() else {
        return skip("the registry is on the testbed's own network");
    };
    released_twice(cluster).unwrap();
}

#[test]
fn nodes_without_images_run_the_demo_from_a_private_registry() {
    if open_target().unwrap().own_cluster().is_none() {
        return skip("it has a cluster of its own on this machine");
    }
    let mut state = Layout::from_env().unwrap().state.into_os_string();
    state.push("-registry");
    let apart = Apart(Layout::of(state.into()));
    let folder = tempfile::tempdir().unwrap();
    let wanted = Wanted {
        flavour: Some(Flavour::Plain),
        releases: None,
    };
    let cluster = cluster::up(&apart.0, cluster::USUAL_NODES, wanted, None).unwrap();
    let registry = PrivateRegistry::start(&cluster).unwrap();
    run_the_demo(&cluster, &registry, &folder.path().join("release")).unwrap();
}
