//! `cargo testbed openstack`: OpenStack's storage services on the cluster, with a line and a time for each step.
#![forbid(unsafe_code)]

pub mod conform;
mod external_ceph;
mod faults;
mod kustomization;
mod logs;
mod nodes;
mod trial;
mod upgrade;
mod volumes;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use mooring_testbed::command::{output, output_with_input};
use mooring_testbed::images::{Built, Selection};
use mooring_testbed::install::{apply, install, render};
use mooring_testbed::layout::{Layout, repository};
use mooring_testbed::progress::{note, say, spoken, step};
use mooring_testbed::target::{Target, TargetArgs};
use mooring_testbed::wait::{Look, wait_for};

use kustomization::Kustomization;

/// Where the services run.
pub const NAMESPACE: &str = "openstack";

/// What is applied, and what an administrator edits.
pub const FOLDER: &str = "configmaps/openstack-services";

/// All of their objects have it.
const LABEL: &str = "app.kubernetes.io/part-of=openstack-services";

/// The Secret that all others are made from.
const SOURCE: &str = "openstack";

/// The class of their volumes.
const CLASS: &str = "configmaps/examples/local.yaml";

/// Kinds of objects without data.
const RUNNING: &str = "deployments,statefulsets,daemonsets,jobs,services,poddisruptionbudgets,configmaps,\
                       rolebindings,roles,serviceaccounts";

/// Longest wait for a Job or for Pods.
const LIMIT: Duration = Duration::from_mins(10);

/// How often to look for claims without a volume while a Job runs.
const CLAIMS_PERIOD: Duration = Duration::from_secs(5);

/// On a workload's Pods: the hash of the image, which shows a changed one under an unchanged tag.
const IMAGE_ANNOTATION: &str = "testbed.mooring.dev/image";

/// Used in Pod `client`.
const USE: &str = include_str!("use.py");

/// What is done with the services.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags of a command line")]
pub struct Trials {
    /// Begin with those of Debian's release before, and upgrade them.
    pub upgrade: bool,
    /// Use and break them.
    pub services: bool,
    /// Have Pods use volumes of theirs.
    pub volumes: bool,
    /// Have each call of the image's runs go wrong.
    pub faults: bool,
    /// Have Pods use volumes of back ends that come by iSCSI and NFS.
    pub back_ends: bool,
    /// Have a node that is a server of Nova's use volumes of Cinder.
    pub nova: bool,
}

/// Runs the services, waits until each is ready, and tries them out.
pub fn run(layout: &Layout, args: &TargetArgs, kustomization: &Path, trials: Trials) -> Result<()> {
    let started = Instant::now();
    let target = args.open(layout)?;
    let Trials {
        upgrade,
        services,
        volumes,
        faults,
        back_ends,
        nova,
    } = trials;
    let images = target.load_images(if back_ends {
        Selection::OpenStackWith(&volumes::back_ends::IMAGES)
    } else if nova {
        Selection::OpenStackWith(&volumes::nova::IMAGES)
    } else {
        Selection::OpenStack
    })?;
    install(&target, &images)?;
    if upgrade {
        upgrade::run(&target, &images).inspect_err(|_| explain(&target))?;
    }
    let mut components = Vec::new();
    if services {
        components.push(logs::COMPONENT);
        // A volume stays where it was made.
        if nodes::label(&target)? && !upgrade {
            components.push(nodes::COMPONENT);
        }
    }
    let tried = Kustomization::new(&components);
    let kustomization = if services {
        tried.write()?
    } else if faults {
        faults::settings().write()?
    } else if back_ends {
        volumes::back_ends::settings().write()?
    } else if nova {
        volumes::nova::settings().write()?
    } else {
        kustomization.to_path_buf()
    };
    let began = Instant::now();
    let put = || put_and_wait(&target, &kustomization, &images).inspect_err(|_| explain(&target));
    // With roles, all nodes have services.
    if volumes && !services {
        volumes::spare(&target, put)?;
    } else {
        put()?;
    }
    say(format!(
        "\nOpenStack is ready: {} for its services, {} for everything.",
        spoken(began.elapsed()),
        spoken(started.elapsed())
    ));
    if volumes {
        volumes::run(&target)?;
    }
    if faults {
        faults::run(&target)?;
    }
    if back_ends {
        volumes::back_ends::run(&target)?;
    }
    if nova {
        volumes::nova::run(&target)?;
    }
    if services {
        trial::run(&target, &tried, &images).inspect_err(|_| explain(&target))?;
    }
    if upgrade || services || volumes || faults || back_ends || nova {
        say(format!(
            "\nOpenStack has passed: {} for everything.",
            spoken(started.elapsed())
        ));
    }
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

/// Runs the services for somebody else's trials.
pub fn serve(target: &Target) -> Result<()> {
    let images = target.load_images(Selection::OpenStack)?;
    put_and_wait(target, Path::new(FOLDER), &images).inspect_err(|_| explain(target))
}

/// The same with the back ends of the tests.
pub fn serve_with_back_ends(target: &Target) -> Result<()> {
    let images = target.load_images(Selection::OpenStackWith(&volumes::back_ends::IMAGES))?;
    let folder = volumes::back_ends::settings().write()?;
    put_and_wait(target, &folder, &images).inspect_err(|_| explain(target))
}

/// Makes a share type for the back end that serves NFS.
pub fn nfs_type(target: &Target, name: &str) -> Result<()> {
    volumes::back_ends::SHARES[0].make_type(target, name)
}

/// What the Secret of a ConfigMap for Cinder or Manila has, as the administrator of these services logs in.
pub fn login(target: &Target) -> Result<Value> {
    let read = |name: &str, key: &str| {
        let template = format!("go-template={{{{index .data \"{key}\" | base64decode}}}}");
        output(&mut target.kubectl(["-n", NAMESPACE, "get", "secret", name, "-o", &template]))
    };
    Ok(json!({
        "clouds.yaml": read("openstack-admin", "clouds.yaml")?,
        "ceph-key": read(SOURCE, "ceph-cinder-key")?,
    }))
}

/// Makes a share type of this name whose shares can be restored from snapshots; with a "-" before it, removes it again.
pub fn share_type(target: &Target, name: &str) -> Result<()> {
    use_services(target, "share_type", &[&json!(name)]).map(drop)
}

/// Runs the services with a Ceph in another namespace, uses them, and removes both.
pub fn run_with_external_ceph(layout: &Layout, args: &TargetArgs) -> Result<()> {
    let target = args.open(layout)?;
    let images = target.load_images(Selection::OpenStack)?;
    install(&target, &images)?;
    external_ceph::run(&target, &images).inspect_err(|_| explain(&target))
}

/// Runs a script in a Pod; returns its output.
fn script(target: &Target, pod: &str, script: &str, args: &[&str]) -> Result<String> {
    let mut exec = target.kubectl(["-n", NAMESPACE, "exec", "-i", pod, "--", "python3", "-"]);
    Ok(output_with_input(exec.args(args), script.as_bytes())?)
}

/// Has `use.py` do something; returns its answer.
fn use_services(target: &Target, what: &str, args: &[&Value]) -> Result<Value> {
    let args: Vec<_> = args.iter().map(ToString::to_string).collect();
    let mut words = vec![what];
    words.extend(args.iter().map(String::as_str));
    let answer = script(target, "deploy/client", USE, &words)?;
    serde_json::from_str(&answer).with_context(|| format!("use.py {what} answered {answer:?}"))
}

/// Applies a kustomization, waits until all is ready, and deletes the Jobs of earlier builds.
fn put_and_wait(target: &Target, kustomization: &Path, images: &[Built]) -> Result<()> {
    let jobs = put(target, kustomization, images)?;
    wait_ready(target, &jobs)?;
    for job in names(target, "jobs")?.iter().filter(|job| !jobs.contains(job)) {
        output(&mut target.kubectl(["-n", NAMESPACE, "delete", job]))?;
    }
    Ok(())
}

/// Applies the class of the volumes.
fn put_class(target: &Target) -> Result<()> {
    let class = repository().join(CLASS);
    let class = std::fs::read_to_string(&class).with_context(|| format!("failed to read {}", class.display()))?;
    step(&format!("apply {CLASS}"), |_| {
        apply(target, &target.with_image_names(&class))
    })
}

/// Applies the class of the volumes and a kustomization of the services; returns its Jobs, as kubectl names them.
fn put(target: &Target, kustomization: &Path, images: &[Built]) -> Result<Vec<String>> {
    put_class(target)?;
    let folder = kustomization.to_string_lossy();
    let builds: Vec<_> = images
        .iter()
        .map(|image| (target.with_image_names(&image.archive.name), image.hash.as_str()))
        .collect();
    let items = with_hashes(&render(&folder, target)?, &builds)?;
    let jobs = items.iter().filter(|item| item["kind"] == "Job");
    let jobs = jobs
        .filter_map(|job| job["metadata"]["name"].as_str())
        .map(|name| format!("job.batch/{name}"))
        .collect();
    let manifest = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items});
    step(&format!("apply {folder}"), |_| apply(target, &manifest.to_string()))?;
    Ok(jobs)
}

/// Notes on each workload's Pods which builds they run, so that a new build rolls them out. A Job has that in its name:
/// it can't be changed.
fn with_hashes(manifest: &str, builds: &[(String, &str)]) -> Result<Vec<Value>> {
    let mut items = Vec::new();
    for mut item in mooring_testbed::manifests::documents(manifest)? {
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
            Some("DaemonSet" | "Deployment" | "StatefulSet") if !hashes.is_empty() => {
                item["spec"]["template"]["metadata"]["annotations"][IMAGE_ANNOTATION] = Value::from(hashes);
            }
            _ => {}
        }
        items.push(item);
    }
    Ok(items)
}

/// Waits for Jobs and each workload, with a step each.
fn wait_ready(target: &Target, jobs: &[String]) -> Result<()> {
    for job in jobs {
        step(job, |progress| {
            wait_for_job(target, NAMESPACE, job, |seen| progress.update(seen))
        })?;
    }
    step("volumes of the services", |progress| {
        Ok(wait_for(
            "each claim to have a volume",
            LIMIT,
            &[],
            || match without_volume(target, NAMESPACE) {
                Ok(seen) if seen.is_empty() => Look::Ready(()),
                Ok(seen) => {
                    progress.update(&seen);
                    Look::NotYet(seen)
                }
                Err(error) => Look::NotYet(format!("{error:#}")),
            },
        )?)
    })?;
    for workload in names(target, "statefulsets,deployments,daemonsets")? {
        step(&workload, |_| ready_within(target, &workload, LIMIT))?;
    }
    Ok(())
}

/// Waits for a workload's rollout. The error has what its Pods say.
fn ready_within(target: &Target, workload: &str, limit: Duration) -> Result<()> {
    let timeout = format!("--timeout={}s", limit.as_secs());
    let Err(error) = output(&mut target.kubectl(["-n", NAMESPACE, "rollout", "status", workload, &timeout])) else {
        return Ok(());
    };
    let name = workload.rsplit('/').next().unwrap_or_default();
    let selector = format!("app.kubernetes.io/name={name}");
    let mut logs = target.kubectl(["-n", NAMESPACE, "logs", "--all-containers", "--prefix", "--tail=3"]);
    // A container that has not started has no log: that is an error, and says so.
    let said = output(logs.args(["-l", &selector])).unwrap_or_else(|error| error.to_string());
    bail!("{workload} is not ready: {error}\n{said}");
}

/// Waits until a Job has ended. `tell` is told what keeps claims of the namespace from having volumes: Jobs wait for
/// what keeps its data there.
fn wait_for_job(target: &Target, namespace: &str, job: &str, mut tell: impl FnMut(&str)) -> Result<()> {
    let path = "jsonpath={.status.conditions[?(@.status==\"True\")].type}";
    let (mut asked, mut seen) = (Instant::now(), String::new());
    let ended = wait_for(job, LIMIT, &[], || {
        match output(&mut target.kubectl(["-n", namespace, "get", job, "-o", path])) {
            Ok(conditions) if conditions.contains("Complete") => return Look::Ready(true),
            Ok(conditions) if conditions.contains("Failed") => return Look::Ready(false),
            Err(error) => return Look::NotYet(error.to_string()),
            Ok(_) => (),
        }
        if asked.elapsed() > CLAIMS_PERIOD {
            seen = without_volume(target, namespace).unwrap_or_else(|error| error.to_string());
            tell(&seen);
            asked = Instant::now();
        }
        Look::NotYet(seen.clone())
    })?;
    if !ended {
        bail!("{job} failed: cargo testbed kubectl -n {namespace} logs {job}");
    }
    Ok(())
}

/// The first claim that has no volume, and the newest warning about it; empty if all have one.
fn without_volume(target: &Target, namespace: &str) -> Result<String> {
    let pending = "jsonpath={range .items[?(@.status.phase==\"Pending\")]}{.metadata.name}{\"\\n\"}{end}";
    let mut get = target.kubectl(["-n", namespace, "get", "persistentvolumeclaims", "-o", pending]);
    let claims = output(&mut get)?;
    let Some(claim) = claims.lines().next() else {
        return Ok(String::new());
    };
    let about = format!("--field-selector=type=Warning,involvedObject.name={claim}");
    let messages = "jsonpath={range .items[*]}{.message}{\"\\n\"}{end}";
    let mut get = target.kubectl(["-n", namespace, "get", "events", "--sort-by=.lastTimestamp", &about]);
    let said = output(get.args(["-o", messages]))?;
    Ok(match said.lines().last() {
        Some(why) => format!("claim {claim} has no volume: {why}"),
        None => format!("claim {claim} has no volume yet"),
    })
}

/// Names of the namespace's objects of some kinds.
fn names(target: &Target, kinds: &str) -> Result<Vec<String>> {
    let mut get = target.kubectl(["-n", NAMESPACE, "get", kinds, "-o", "name"]);
    Ok(output(&mut get)?.lines().map(str::to_owned).collect())
}

/// Removes the services. Their volumes stay, and so does the Secret that they can be used with again; with `data`,
/// these go, too.
pub fn remove(target: &Target, data: bool) -> Result<()> {
    let limit = format!("--timeout={}s", LIMIT.as_secs());
    if !data {
        return step("delete the services; their volumes stay", |_| {
            let mut delete = target.kubectl(["-n", NAMESPACE, "delete", RUNNING, "-l", LABEL]);
            output(delete.args(["--cascade=foreground", "--ignore-not-found", &limit]))?;
            let not_source = format!("--field-selector=metadata.name!={SOURCE}");
            let mut delete = target.kubectl(["-n", NAMESPACE, "delete", "secrets", "-l", LABEL]);
            output(delete.args([&not_source, "--ignore-not-found", &limit]))?;
            Ok(())
        });
    }
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
        &["logs", "--all-containers", "--prefix", "--tail=8", "-l", LABEL],
    ] {
        note(output(target.kubectl(["-n", NAMESPACE]).args(args)).unwrap_or_else(|error| error.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use serde_json::Value;

    use super::{FOLDER, LABEL, with_hashes};
    use mooring_testbed::images::{HOST, TAG};
    use mooring_testbed::layout::repository;
    use mooring_testbed::manifests::documents;

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
    fn what_a_component_generates_is_removed_with_the_services() {
        let mut generated = 0;
        for component in std::fs::read_dir(repository().join(FOLDER).join("components")).unwrap() {
            let file = component.unwrap().path().join("kustomization.yaml");
            let component = documents(&std::fs::read_to_string(&file).unwrap()).unwrap().remove(0);
            for map in component["configMapGenerator"].as_array().into_iter().flatten() {
                let (key, value) = LABEL.split_once('=').unwrap();
                assert_eq!(map["options"]["labels"][key], value, "{}", file.display());
                generated += 1;
            }
        }
        assert!(generated > 0);
    }

    #[test]
    fn the_collector_of_logs_reads_and_has_no_capability() {
        let path = repository()
            .join(FOLDER)
            .join("components/log-collector/daemonset.yaml");
        let daemon_set = documents(&std::fs::read_to_string(path).unwrap()).unwrap().remove(0);
        let pod = &daemon_set["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(pod["automountServiceAccountToken"], false);
        let mounts = container["volumeMounts"].as_array().unwrap();
        let of_node = |mount: &&Value| mount["name"] == "logs";
        assert!(
            mounts.iter().filter(of_node).all(|mount| mount["readOnly"] == true),
            "{mounts:?}"
        );
    }

    /// The objects of a kind, with their names.
    fn of_kind(kind: &str) -> Vec<(String, Value)> {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        let all = objects().into_iter().filter(|object| object["kind"] == kind);
        all.map(|object| (name(&object), object)).collect()
    }

    #[test]
    fn each_workload_says_whether_it_is_ready() {
        let workloads = of_kind("Deployment").into_iter().chain(of_kind("StatefulSet"));
        for (name, object) in workloads.filter(|(name, _)| name != "client") {
            for container in object["spec"]["template"]["spec"]["containers"].as_array().unwrap() {
                assert!(container["readinessProbe"].is_object(), "{name}");
            }
        }
    }

    #[test]
    fn a_broken_setting_can_be_taken_back() {
        for (name, object) in of_kind("StatefulSet") {
            assert_eq!(
                object["spec"]["podManagementPolicy"], "Parallel",
                "{name}: a Pod that never became ready would stay"
            );
        }
        for (name, object) in of_kind("Deployment") {
            let strategy = &object["spec"]["strategy"]["rollingUpdate"];
            let is_api = object.to_string().contains("openstack_services.wait");
            assert!(
                !is_api || strategy["maxUnavailable"] == 0,
                "{name}: its old Pod would go first"
            );
        }
    }

    #[test]
    fn what_may_have_several_pods_has_a_budget_of_disruption() {
        let budgets: BTreeSet<_> = of_kind("PodDisruptionBudget")
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        let expected = ["ceph-osd", "cinder-api", "keystone", "manila-api"];
        assert_eq!(budgets, expected.map(str::to_owned).into());
    }

    #[test]
    fn what_uses_ceph_waits_for_it() {
        for (name, object) in of_kind("StatefulSet") {
            let pod = &object["spec"]["template"]["spec"];
            let uses = pod["volumes"].to_string().contains("ceph-client");
            let wait = pod["initContainers"][0]["command"].as_array();
            let waits = wait.is_some_and(|words| words.iter().any(|word| word == "--id"));
            assert_eq!(uses, waits, "{name}");
        }
    }

    #[test]
    fn a_new_build_changes_what_runs_it() {
        let manifest = "kind: Job\nmetadata: {name: a}\nspec: {image: \"r/one:1\"}\n---\n\
                        kind: Deployment\nspec: {template: {metadata: {}, image: \"r/one:1\"}}\n---\n\
                        kind: StatefulSet\nspec: {image: \"r/two:1\"}\n";
        let items = with_hashes(manifest, &[("r/one:1".to_owned(), "5eed")]).unwrap();
        assert_eq!(items[0]["metadata"]["name"], "a-5eed");
        assert_eq!(
            items[1]["spec"]["template"]["metadata"]["annotations"][super::IMAGE_ANNOTATION],
            "5eed"
        );
        assert!(!items[2].to_string().contains("5eed"));
    }
}
