//! `cargo testbed openstack`: OpenStack's storage services on the cluster, with a line and a time for each step.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{output, output_with_input};
use crate::images::{Built, Selection};
use crate::install::{apply, install, render};
use crate::layout::{Layout, repository};
use crate::progress::{note, say, spoken, step};
use crate::target::{Target, TargetArgs};
use crate::wait::{Look, wait_for};

/// Where the services run.
pub const NAMESPACE: &str = "openstack";

/// What is applied, and what an administrator edits.
pub const FOLDER: &str = "configmaps/openstack-services";

/// The class of their volumes.
const CLASS: &str = "configmaps/examples/local.yaml";

/// Longest wait for a Job or for Pods.
const LIMIT: Duration = Duration::from_mins(10);

/// On a workload's Pods: the hash of the image, which shows a changed one under an unchanged tag.
const IMAGE_ANNOTATION: &str = "testbed.mooring.dev/image";

/// Runs the services, and waits until each is ready.
pub fn run(layout: &Layout, args: &TargetArgs, kustomization: &Path) -> Result<()> {
    let started = Instant::now();
    let target = args.open(layout)?;
    let images = target.load_images(Selection::OpenStack)?;
    install(&target, &images)?;
    let began = Instant::now();
    put(&target, kustomization, &images)?;
    if let Err(error) = wait_ready(&target) {
        explain(&target);
        return Err(error);
    }
    say(format!(
        "\nOpenStack is ready: {} for its services, {} for everything.",
        spoken(began.elapsed()),
        spoken(started.elapsed())
    ));
    let kubectl = if target.own_cluster().is_some() {
        "cargo testbed kubectl"
    } else {
        "kubectl"
    };
    for line in [
        format!("{kubectl} -n {NAMESPACE} exec -it deploy/client -- openstack token issue"),
        format!("{kubectl} -n {NAMESPACE} exec -it deploy/client -- bash    # and then: openstack help"),
        format!("{kubectl} -n {NAMESPACE} get pods"),
        "cargo testbed openstack --remove".to_owned(),
    ] {
        say(format!("  {line}"));
    }
    Ok(())
}

/// Applies the class of the volumes and a kustomization of the services.
pub fn put(target: &Target, kustomization: &Path, images: &[Built]) -> Result<()> {
    let class = repository().join(CLASS);
    let class = std::fs::read_to_string(&class).with_context(|| format!("failed to read {}", class.display()))?;
    step(&format!("apply {CLASS}"), |_| {
        apply(target, &target.with_image_names(&class))
    })?;
    let folder = kustomization.to_string_lossy();
    let builds: Vec<_> = images
        .iter()
        .map(|image| (target.with_image_names(&image.archive.name), image.hash.as_str()))
        .collect();
    let manifest = with_hashes(&render(&folder, target)?, &builds)?;
    step(&format!("apply {folder}"), |_| apply(target, &manifest))
}

/// Notes on each workload's Pods which builds they run, so that a new build rolls them out. A Job has that in its name:
/// it can't be changed.
fn with_hashes(manifest: &str, builds: &[(String, &str)]) -> Result<String> {
    let mut items = Vec::new();
    for mut item in crate::manifests::documents(manifest)? {
        let text = item.to_string();
        let hashes: Vec<_> = builds
            .iter()
            .filter(|(name, _)| text.contains(&format!("{name}\"")))
            .map(|(_, hash)| *hash)
            .collect();
        let hashes = hashes.join("-");
        match item["kind"].as_str() {
            Some("Job") if !hashes.is_empty() => {
                let name = item["metadata"]["name"].as_str().unwrap_or_default();
                item["metadata"]["name"] = Value::from(format!("{name}-{hashes}"));
            }
            Some("Deployment" | "StatefulSet") if !hashes.is_empty() => {
                item["spec"]["template"]["metadata"]["annotations"][IMAGE_ANNOTATION] = Value::from(hashes);
            }
            _ => {}
        }
        items.push(item);
    }
    Ok(serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string())
}

/// Waits for each Job and each workload, with a step each.
pub fn wait_ready(target: &Target) -> Result<()> {
    for job in names(target, "jobs")? {
        step(&job, |_| wait_for_job(target, &job))?;
    }
    let limit = format!("--timeout={}s", LIMIT.as_secs());
    for workload in names(target, "statefulsets,deployments")? {
        step(&workload, |_| {
            output(&mut target.kubectl(["-n", NAMESPACE, "rollout", "status", &workload, &limit]))?;
            Ok(())
        })?;
    }
    Ok(())
}

fn wait_for_job(target: &Target, job: &str) -> Result<()> {
    let path = "jsonpath={.status.conditions[?(@.status==\"True\")].type}";
    let ended = wait_for(job, LIMIT, &[], || {
        match output(&mut target.kubectl(["-n", NAMESPACE, "get", job, "-o", path])) {
            Ok(conditions) if conditions.contains("Complete") => Look::Ready(true),
            Ok(conditions) if conditions.contains("Failed") => Look::Ready(false),
            Ok(conditions) => Look::NotYet(conditions),
            Err(error) => Look::NotYet(error.to_string()),
        }
    })?;
    if !ended {
        bail!("{job} failed: cargo testbed kubectl -n {NAMESPACE} logs {job}");
    }
    Ok(())
}

/// Names of the namespace's objects of some kinds.
fn names(target: &Target, kinds: &str) -> Result<Vec<String>> {
    let mut get = target.kubectl(["-n", NAMESPACE, "get", kinds, "-o", "name"]);
    Ok(output(&mut get)?.lines().map(str::to_owned).collect())
}

/// Removes the services, their Secrets and their volumes.
pub fn remove(target: &Target) -> Result<()> {
    let limit = format!("--timeout={}s", LIMIT.as_secs());
    step("delete the services, with their volumes", |_| {
        let mut delete = target.kubectl(["delete", "namespace", NAMESPACE, "--ignore-not-found", &limit]);
        output(&mut delete)?;
        Ok(())
    })?;
    step("volumes gone", |_| {
        wait_for("the volumes to be gone", LIMIT, &[], || match volumes(target) {
            Ok(left) if left.is_empty() => Look::Ready(()),
            Ok(left) => Look::NotYet(left),
            Err(error) => Look::NotYet(format!("{error:#}")),
        })?;
        Ok(())
    })?;
    let class = repository().join(CLASS);
    let class = std::fs::read(&class).with_context(|| format!("failed to read {}", class.display()))?;
    output_with_input(&mut target.kubectl(["delete", "--ignore-not-found", "-f", "-"]), &class)?;
    Ok(())
}

fn volumes(target: &Target) -> Result<String> {
    let path = format!("jsonpath={{.items[?(@.spec.claimRef.namespace==\"{NAMESPACE}\")].metadata.name}}");
    Ok(output(&mut target.kubectl(["get", "persistentvolumes", "-o", &path]))?)
}

/// Prints what helps when something is not ready.
fn explain(target: &Target) {
    for args in [
        &["get", "pods,jobs,persistentvolumeclaims", "-o", "wide"][..],
        &["get", "events", "--sort-by=.lastTimestamp"],
        &[
            "logs",
            "--all-containers",
            "--prefix",
            "--tail=8",
            "-l",
            "app.kubernetes.io/part-of=openstack-services",
        ],
    ] {
        note(output(target.kubectl(["-n", NAMESPACE]).args(args)).unwrap_or_else(|error| error.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use serde_json::Value;

    use super::{FOLDER, with_hashes};
    use crate::images::{HOST, TAG};
    use crate::layout::repository;
    use crate::manifests::documents;

    fn defaults() -> PathBuf {
        repository().join(FOLDER).join("defaults")
    }

    fn read(name: &str) -> String {
        std::fs::read_to_string(defaults().join(name)).unwrap()
    }

    fn kustomization() -> Value {
        documents(&read("kustomization.yaml")).unwrap().remove(0)
    }

    /// Every object of the manifests.
    fn objects() -> Vec<Value> {
        let names = kustomization()["resources"].as_array().unwrap().clone();
        let texts = names.iter().map(|name| read(name.as_str().unwrap()));
        texts.flat_map(|text| documents(&text).unwrap()).collect()
    }

    /// The specification of the Pods of each workload, with the workload's name.
    fn pods() -> Vec<(String, Value)> {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        let with_pods = objects()
            .into_iter()
            .filter(|object| object["spec"]["template"].is_object());
        with_pods
            .map(|object| (name(&object), object["spec"]["template"]["spec"].clone()))
            .collect()
    }

    #[test]
    fn images_and_jobs_have_this_version() {
        let images = kustomization()["images"].as_array().unwrap().clone();
        let listed: BTreeSet<_> = images
            .iter()
            .map(|image| image["name"].as_str().unwrap().to_owned())
            .collect();
        assert!(images.iter().all(|image| image["newTag"] == TAG), "{images:?}");
        let mut used = BTreeSet::new();
        for (_, pod) in pods() {
            for containers in ["containers", "initContainers"] {
                for container in pod[containers].as_array().into_iter().flatten() {
                    used.insert(container["image"].as_str().unwrap().to_owned());
                }
            }
        }
        assert_eq!(listed, used);
        for image in used {
            let folder = image.strip_prefix(&format!("{HOST}/")).unwrap();
            assert!(repository().join("images").join(folder).is_dir(), "{image}");
        }
        for job in objects().iter().filter(|object| object["kind"] == "Job") {
            let name = job["metadata"]["name"].as_str().unwrap();
            assert!(
                name.ends_with(&format!("-{}", TAG.replace('.', "-"))),
                "{name}: a Job can't be changed"
            );
            assert!(
                !job.to_string().contains("configMap"),
                "{name} would change with a setting"
            );
        }
    }

    #[test]
    fn no_pod_has_more_rights_than_it_needs() {
        for (name, pod) in pods() {
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
            assert_eq!(pod["enableServiceLinks"], false, "{name}");
            for container in pod["containers"].as_array().unwrap() {
                let rights = &container["securityContext"];
                assert_eq!(rights["readOnlyRootFilesystem"], true, "{name}");
                assert_eq!(rights["allowPrivilegeEscalation"], false, "{name}");
                assert_eq!(rights["capabilities"]["drop"][0], "ALL", "{name}");
                assert!(container["resources"]["requests"]["memory"].is_string(), "{name}");
            }
        }
    }

    #[test]
    fn a_new_build_changes_what_runs_it() {
        let manifest = "kind: Job\nmetadata: {name: a}\nspec: {image: \"r/one:1\"}\n---\n\
                        kind: Deployment\nspec: {template: {metadata: {}, image: \"r/one:1\"}}\n---\n\
                        kind: StatefulSet\nspec: {image: \"r/two:1\"}\n";
        let made = with_hashes(manifest, &[("r/one:1".to_owned(), "5eed")]).unwrap();
        let made: Value = serde_json::from_str(&made).unwrap();
        let items = &made["items"];
        assert_eq!(items[0]["metadata"]["name"], "a-5eed");
        assert_eq!(
            items[1]["spec"]["template"]["metadata"]["annotations"][super::IMAGE_ANNOTATION],
            "5eed"
        );
        assert!(!items[2].to_string().contains("5eed"));
    }
}
