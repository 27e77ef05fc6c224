//! Mooring on a cluster: `kubectl apply -k configmaps/install` and its settings, then a wait until it is ready.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_contract::names::{NAMESPACE, SETTINGS_CONFIG};
use serde_json::json;

use crate::command::{output, output_with_input};
use crate::images::Built;
use crate::layout::repository;
use crate::progress::{note, step};
use crate::target::Target;

/// Longest wait for Mooring's Pods.
const LIMIT: Duration = Duration::from_mins(3);

/// On the namespace: the hash of the running images, which shows a changed image under an unchanged tag.
const IMAGES_ANNOTATION: &str = "testbed.mooring.dev/images";

/// The images whose Pods need a restart; all others belong to short-lived Pods.
const LONG_RUNNING: [&str; 2] = ["/flex-provisioner:", "/mounter:"];

/// What users install: since Kubernetes 1.36, and before.
const PLAIN: [&str; 2] = ["configmaps/install", "configmaps/install-before-1.36"];

/// The same, and what the end-to-end tests need besides.
const FOR_TESTS: [&str; 2] = ["tests/install", "tests/install-before-1.36"];

/// Those that the tests' ConfigMaps are in.
pub const TESTS_NAMESPACES: &str = "mooring,mooring-e2e,admin";

/// A kind that the API serves since Kubernetes 1.36.
const SINCE_1_36: &str = "mutatingadmissionpolicies.admissionregistration.k8s.io";

/// Installs Mooring as users do, or updates an installation, and waits until it is ready.
pub fn install(target: &Target, images: &[Built]) -> Result<()> {
    install_from(PLAIN, target, images)
}

/// Installs Mooring and the tests' additions on any cluster.
pub fn install_for_tests(target: &Target, images: &[Built]) -> Result<()> {
    install_from(FOR_TESTS, target, images)
}

/// Everything that may be installed: tests run on the testbed's own cluster, and leave their additions there.
fn at_most(target: &Target) -> [&'static str; 2] {
    match target.own_cluster() {
        Some(_) => FOR_TESTS,
        None => PLAIN,
    }
}

/// Of the two folders, the one for this cluster's version.
fn fitting(folders: [&'static str; 2], target: &Target) -> Result<&'static str> {
    let mut kinds = target.kubectl([
        "api-resources",
        "--api-group=admissionregistration.k8s.io",
        "-o",
        "name",
    ]);
    let [since, before] = folders;
    let has_all = output(&mut kinds)?.lines().any(|kind| kind == SINCE_1_36);
    Ok(if has_all { since } else { before })
}

fn install_from(folders: [&'static str; 2], target: &Target, images: &[Built]) -> Result<()> {
    let _lock = target.lock()?;
    let folder = fitting(folders, target)?;
    let manifest = render(folder, target)?;
    let ran_before = is_installed(target)?;
    step(&format!("apply {folder}"), |_| {
        apply(target, &manifest)?;
        apply_settings(target, folders == FOR_TESTS)
    })?;
    let hashes: Vec<_> = images
        .iter()
        .filter(|image| LONG_RUNNING.iter().any(|name| image.archive.name.contains(name)))
        .map(|image| image.hash.as_str())
        .collect();
    let hashes = hashes.join("-");
    // An interrupted installation has not written it.
    if ran_before && running_images(target)? != hashes {
        step("restart Mooring on its new images", |_| {
            output(&mut target.kubectl(["-n", NAMESPACE, "rollout", "restart", "deployment,daemonset"]))?;
            Ok(())
        })?;
    }
    step("Mooring ready", |_| wait_ready(target))?;
    let annotation = format!("{IMAGES_ANNOTATION}={hashes}");
    output(&mut target.kubectl(["annotate", "--overwrite", "namespace", NAMESPACE, &annotation]))?;
    Ok(())
}

/// Removes Mooring, and waits until its namespace is gone.
pub fn uninstall(target: &Target) -> Result<()> {
    let manifest = render(fitting(at_most(target), target)?, target)?;
    let limit = format!("--timeout={}s", LIMIT.as_secs());
    // The mounters go first, while they still have the right to remove their labels from the nodes.
    step("delete the mounters", |_| {
        let mut delete = target.kubectl(["-n", NAMESPACE, "delete", "daemonset", "mounter"]);
        output(delete.args(["--cascade=foreground", "--ignore-not-found", &limit]))?;
        Ok(())
    })?;
    step("delete what was installed", |_| {
        let mut delete = target.kubectl(["delete", "--ignore-not-found", &limit, "-f", "-"]);
        output_with_input(&mut delete, manifest.as_bytes())?;
        Ok(())
    })
}

pub fn apply(target: &Target, manifest: &str) -> Result<()> {
    output_with_input(&mut target.kubectl(["apply", "-f", "-"]), manifest.as_bytes())?;
    Ok(())
}

/// Makes the settings, which the manifests don't have; what others have set in them stays.
fn apply_settings(target: &Target, for_tests: bool) -> Result<()> {
    let mut data = BTreeMap::new();
    data.extend(
        target
            .image_registry()
            .map(|registry| ("registry", registry.to_owned())),
    );
    data.extend(for_tests.then(|| ("config-namespaces", TESTS_NAMESPACES.to_owned())));
    let settings = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": SETTINGS_CONFIG, "namespace": NAMESPACE},
        "data": data,
    });
    let mut apply = target.kubectl([
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=testbed",
        "-f",
        "-",
    ]);
    output_with_input(&mut apply, settings.to_string().as_bytes())?;
    Ok(())
}

/// A folder's manifests, as kustomize makes them, with the target's names of images.
pub fn render(folder: &str, target: &Target) -> Result<String> {
    let mut kustomize = target.kubectl(["kustomize"]);
    kustomize.arg(repository().join(folder));
    let manifest = output(&mut kustomize).with_context(|| format!("failed to render {folder}"))?;
    Ok(target.with_image_names(&manifest))
}

fn is_installed(target: &Target) -> Result<bool> {
    let mut get = target.kubectl(["-n", NAMESPACE, "get", "deployment,daemonset", "-o", "name"]);
    Ok(!output(&mut get)?.is_empty())
}

fn running_images(target: &Target) -> Result<String> {
    let path = format!(
        "jsonpath={{.metadata.annotations.{}}}",
        IMAGES_ANNOTATION.replace('.', "\\.")
    );
    Ok(output(&mut target.kubectl([
        "get",
        "namespace",
        NAMESPACE,
        "-o",
        &path,
    ]))?)
}

fn wait_ready(target: &Target) -> Result<()> {
    let limit = format!("--timeout={}s", LIMIT.as_secs());
    let workloads = output(&mut target.kubectl(["-n", NAMESPACE, "get", "deployment,daemonset", "-o", "name"]))?;
    for workload in workloads.lines() {
        let mut wait = target.kubectl(["-n", NAMESPACE, "rollout", "status", workload, &limit]);
        if let Err(error) = output(&mut wait) {
            explain(target);
            bail!("{workload} is not ready: {error}");
        }
    }
    Ok(())
}

/// Prints information about Mooring's own Pods.
fn explain(target: &Target) {
    for args in [
        &["get", "pods", "-o", "wide"][..],
        &["get", "events", "--sort-by=.lastTimestamp"],
        &[
            "logs",
            "--all-containers",
            "--prefix",
            "--tail=20",
            "-l",
            "app.kubernetes.io/part-of=mooring",
        ],
    ] {
        match output(target.kubectl(["-n", NAMESPACE]).args(args)) {
            Ok(text) => note(text),
            Err(error) => note(error.to_string()),
        }
    }
}
