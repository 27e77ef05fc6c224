//! `cargo testbed demo`: from nothing to a Pod on one node that reads what a Pod on another wrote, with a line for each
//! step.

pub mod picture;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mooring_contract::names::{NAMESPACE, labels};
use serde_json::{Value, json};

use crate::command::output;
use crate::images::Selection;
use crate::install::{apply, install};
use crate::layout::Layout;
use crate::progress::{note, say, spoken};
use crate::target::{Target, TargetArgs};
use crate::wait::{Look, wait_for};
use crate::{keys, manifests};

pub const DEMO_NAMESPACE: &str = "mooring-demo";

/// Longest wait for any single step of the demo.
const LIMIT: &str = "--timeout=120s";

const IMAGES: &[&str] = &[
    "flex-provisioner",
    "mounter",
    "provisioner-sshfs",
    "provisioner-local",
    "client-sshfs",
    "testbed-sshd",
];

/// The Pods and claims of the demo.
const USERS: [&str; 5] = [
    "pod/writer",
    "pod/reader",
    "pod/hoarder",
    "persistentvolumeclaim/shared",
    "persistentvolumeclaim/disk",
];

/// Runs the demo; with `remove`, removes its objects instead.
pub fn run(layout: &Layout, args: &TargetArgs, remove: bool) -> Result<()> {
    let started = Instant::now();
    if remove {
        let target = args.open(layout)?;
        clean(&target)?;
        say("The demo's objects are gone; the cluster and Mooring stay. `cargo testbed down` takes the testbed away.");
        return Ok(());
    }
    say("Mooring: storage clients that live in containers. A Pod on one node writes, a Pod on another node reads,");
    say("on a file server for which neither node has a client.");
    let mut story = Story::default();

    let (target, nodes) = story.step("A Kubernetes cluster", || {
        let target = args.open(layout)?;
        let nodes = target_nodes(&target)?;
        let told = vec![format!("nodes: {}", nodes.join(", "))];
        Ok(((target, nodes), told))
    })?;
    let title = "Mooring itself: its images are built and `kubectl apply -k configmaps/install` is run";
    story.step(title, || {
        let images = target.load_images(Selection::Named(IMAGES))?;
        install(&target, &images)?;
        let told = [
            format!("Deployment {NAMESPACE}/flex-provisioner: makes volumes for claims"),
            format!("DaemonSet {NAMESPACE}/mounter: mounts them, one Pod on each node"),
        ];
        Ok(((), told.into()))
    })?;
    tell(&mut story, &target, &nodes)?;
    farewell(&target, started.elapsed());
    Ok(())
}

/// The demo's steps on a cluster that has Mooring already; its nodes have the image of the file server.
pub fn run_on(target: &Target) -> Result<()> {
    tell(&mut Story::default(), target, &target_nodes(target)?)
}

/// Numbers the steps and prints how long each took.
#[derive(Default)]
struct Story {
    steps: usize,
}

impl Story {
    fn step<T>(&mut self, title: &str, run: impl FnOnce() -> Result<(T, Vec<String>)>) -> Result<T> {
        self.steps += 1;
        say(format!("\n{}. {title}", self.steps));
        let started = Instant::now();
        let (value, told) = run()?;
        for line in told {
            say(format!("     {line}"));
        }
        say(format!("     [{}]", spoken(started.elapsed())));
        Ok(value)
    }
}

fn tell(story: &mut Story, target: &Target, nodes: &[String]) -> Result<()> {
    clean(target)?;
    let told = tell_steps(story, target, nodes);
    if told.is_err() {
        explain(target);
    }
    told
}

fn tell_steps(story: &mut Story, target: &Target, nodes: &[String]) -> Result<()> {
    let (first, last) = (&nodes[0], &nodes[nodes.len() - 1]);
    let server = story.step("A file server, standing in for yours", || {
        let address = start_server(target)?;
        let told = vec![
            format!("Pod {DEMO_NAMESPACE}/file-server: sshd with a directory for volumes, at {address}"),
            clients_on_nodes(target, nodes),
        ];
        Ok((address, told))
    })?;
    story.step(
        "The administrator registers two kinds of storage, each by one ConfigMap (configmaps/examples)",
        || {
            register(target, &server)?;
            Ok((
                (),
                vec![
                    format!(
                        "ConfigMap {NAMESPACE}/demo-sshfs -> StorageClass demo-sshfs: directories on the file server"
                    ),
                    format!(
                        "ConfigMap {NAMESPACE}/demo-local -> StorageClass demo-local: image files on a node's own disk"
                    ),
                ],
            ))
        },
    )?;
    story.step("A user claims 64 MiB of class demo-sshfs", || {
        put(target, include_str!("../demo/claim.yaml"))?;
        wait(
            target,
            DEMO_NAMESPACE,
            "jsonpath={.status.phase}=Bound",
            "persistentvolumeclaim/shared",
        )?;
        let volume = field(
            target,
            DEMO_NAMESPACE,
            "persistentvolumeclaim/shared",
            "{.spec.volumeName}",
        )?;
        Ok((
            (),
            vec![
                "flex-provisioner ran the vendor's image in a Pod: it made a directory on the server".to_owned(),
                format!("claim {DEMO_NAMESPACE}/shared is bound to PersistentVolume {volume}"),
            ],
        ))
    })?;
    story.step(&format!("A Pod on {first} writes"), || {
        put(target, &include_str!("../demo/writer.yaml").replace("NODE", first))?;
        wait(target, DEMO_NAMESPACE, "condition=Ready", "pod/writer")?;
        Ok(((), mounted(target, "writer", first)?))
    })?;
    story.step(&format!("A Pod on {last} reads"), || {
        put(target, &include_str!("../demo/reader.yaml").replace("NODE", last))?;
        wait(target, DEMO_NAMESPACE, "condition=Ready", "pod/reader")?;
        let mut told = mounted(target, "reader", last)?;
        let letter = kubectl(
            target,
            &["-n", DEMO_NAMESPACE, "exec", "reader", "--", "cat", "/data/letter"],
        )?;
        let letter = letter.trim();
        ensure!(
            letter == format!("Written on {first}."),
            "the reader has another letter: {letter:?}"
        );
        told.push(format!("/data/letter in Pod reader: {letter:?}"));
        Ok(((), told))
    })?;
    story.step(
        "No server at all: 64 MiB of class demo-local, and a Pod that tries to write 200 MiB to it",
        || {
            put(target, include_str!("../demo/disk.yaml"))?;
            wait(target, DEMO_NAMESPACE, "condition=Ready", "pod/hoarder")?;
            let said = kubectl(target, &["-n", DEMO_NAMESPACE, "logs", "hoarder"])?;
            let refused = said
                .lines()
                .find(|line| line.contains("No space left"))
                .with_context(|| format!("a volume of 64 MiB took 200: {said}"))?;
            let node = field(target, DEMO_NAMESPACE, "pod/hoarder", "{.spec.nodeName}")?;
            Ok((
                (),
                vec![
                    format!("the volume is an ext4 file system in a file on {node}, so its size holds"),
                    format!("Pod hoarder says: {refused}"),
                ],
            ))
        },
    )
}

fn farewell(target: &Target, took: Duration) {
    let kubectl = if target.own_cluster().is_some() {
        "cargo testbed kubectl"
    } else {
        "kubectl"
    };
    say(format!(
        "\nDone in {}. All of it is still there; look around:",
        spoken(took)
    ));
    for line in [
        format!("{kubectl} get pods -A -o wide                    # the client Pods are in namespace {NAMESPACE}"),
        format!("{kubectl} -n {DEMO_NAMESPACE} get events           # what happened to the claims"),
        format!("{kubectl} -n {DEMO_NAMESPACE} exec -it writer -- sh    # write another letter in /data"),
        format!("{kubectl} get storageclass,pv"),
    ] {
        say(format!("  {line}"));
    }
    say("Take it down:");
    if target.own_cluster().is_some() {
        say("  cargo testbed demo --remove    # the demo's objects only");
        say("  cargo testbed down             # all of it, with the cluster");
    } else {
        say("  cargo testbed demo --remove --existing    # the demo's objects only; Mooring stays");
    }
}

fn kubectl(target: &Target, args: &[&str]) -> Result<String> {
    Ok(output(&mut target.kubectl(args))?)
}

/// Applies a manifest in the demo's namespace.
fn put(target: &Target, manifest: &str) -> Result<()> {
    let manifest = manifests::in_namespace(&target.with_image_names(manifest), DEMO_NAMESPACE)?;
    apply(target, &manifest)
}

fn wait(target: &Target, namespace: &str, what: &str, object: &str) -> Result<()> {
    kubectl(
        target,
        &["-n", namespace, "wait", &format!("--for={what}"), LIMIT, object],
    )
    .with_context(|| format!("{object} in namespace {namespace} did not come"))?;
    Ok(())
}

fn field(target: &Target, namespace: &str, object: &str, path: &str) -> Result<String> {
    kubectl(
        target,
        &["-n", namespace, "get", object, "-o", &format!("jsonpath={path}")],
    )
}

/// Names of the nodes that Pods can run on.
fn target_nodes(target: &Target) -> Result<Vec<String>> {
    let all: Value = serde_json::from_str(&kubectl(target, &["get", "nodes", "-o", "json"])?)?;
    let nodes: Vec<_> = all["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|node| node["spec"]["unschedulable"] != true && node["spec"]["taints"].is_null())
        .filter_map(|node| node["metadata"]["name"].as_str().map(str::to_owned))
        .collect();
    ensure!(!nodes.is_empty(), "the cluster has no node that Pods can run on");
    Ok(nodes)
}

/// Starts the file server; returns its address.
fn start_server(target: &Target) -> Result<manifests::Server> {
    let keys = keys::make()?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DEMO_NAMESPACE}});
    apply(target, &namespace.to_string())?;
    put(target, &manifests::server_secret(&keys).to_string())?;
    put(target, include_str!("../demo/server.yaml"))?;
    wait(target, DEMO_NAMESPACE, "condition=Ready", "pod/file-server")?;
    let address = field(target, DEMO_NAMESPACE, "service/file-server", "{.spec.clusterIP}")?;
    Ok(manifests::Server { address, keys })
}

/// A line about whether the nodes have a client of their own, which only the testbed's nodes can answer.
fn clients_on_nodes(target: &Target, nodes: &[String]) -> String {
    let Some(cluster) = target.own_cluster() else {
        return "the nodes need no sshfs".to_owned();
    };
    let with: Vec<_> = (1..=cluster.description.nodes)
        .zip(nodes)
        .filter(|(index, _)| {
            let run = cluster.in_node(*index, "sshfs", ["--version"]);
            run.is_ok_and(|mut sshfs| output(&mut sshfs).is_ok())
        })
        .map(|(_, node)| node.as_str())
        .collect();
    if with.is_empty() {
        format!("`sshfs` on {}: there is no such program", nodes.join(" and on "))
    } else {
        format!("`sshfs` is there on {}, but not used", with.join(", "))
    }
}

fn register(target: &Target, server: &manifests::Server) -> Result<()> {
    for manifest in manifests::registrations(server)? {
        apply(target, &target.with_image_names(&manifest))?;
    }
    for class in ["demo-sshfs", "demo-local"] {
        kubectl(
            target,
            &["wait", "--for=create", LIMIT, &format!("storageclass/{class}")],
        )
        .with_context(|| format!("StorageClass {class} was not made"))?;
    }
    Ok(())
}

/// Which client Pod mounts for the Pods of a node.
fn mounted(target: &Target, pod: &str, node: &str) -> Result<Vec<String>> {
    let selector = format!("{}=sshfs,{}={node}", labels::CLIENT, labels::NODE);
    let path = "jsonpath={.items[?(@.status.phase==\"Running\")].metadata.name}";
    let clients = kubectl(target, &["-n", NAMESPACE, "get", "pods", "-l", &selector, "-o", path])?;
    Ok(vec![
        format!("the mounter started client Pod {NAMESPACE}/{clients}: sshfs runs there, not on the node"),
        format!("Pod {DEMO_NAMESPACE}/{pod} has the volume at /data"),
    ])
}

/// Removes the demo's objects: first those that use volumes, while the server still runs.
fn clean(target: &Target) -> Result<()> {
    if kubectl(
        target,
        &["get", "namespace", DEMO_NAMESPACE, "--ignore-not-found", "-o", "name"],
    )?
    .is_empty()
    {
        return Ok(());
    }
    crate::progress::step("remove what an earlier demo left", |_| {
        let mut delete = vec!["-n", DEMO_NAMESPACE, "delete", "--ignore-not-found", LIMIT];
        delete.extend(USERS);
        kubectl(target, &delete)?;
        wait_for(
            "the demo's volumes to be gone",
            Duration::from_mins(2),
            &[],
            || match volumes(target) {
                Ok(left) if left.is_empty() => Look::Ready(()),
                Ok(left) => Look::NotYet(left.join(", ")),
                Err(error) => Look::NotYet(format!("{error:#}")),
            },
        )?;
        for object in ["configmap/demo-sshfs", "configmap/demo-local", "secret/demo-sshfs-key"] {
            kubectl(
                target,
                &["-n", NAMESPACE, "delete", "--ignore-not-found", LIMIT, object],
            )?;
        }
        kubectl(target, &["delete", LIMIT, "namespace", DEMO_NAMESPACE])?;
        Ok(())
    })
}

/// Names of the volumes (PersistentVolume) of the demo's claims.
fn volumes(target: &Target) -> Result<Vec<String>> {
    let path = format!(
        "jsonpath={{range \
         .items[?(@.spec.claimRef.namespace==\"{DEMO_NAMESPACE}\")]}}{{.metadata.name}}{{\"\\n\"}}{{end}}"
    );
    let all = kubectl(target, &["get", "persistentvolumes", "-o", &path])?;
    Ok(all.lines().map(str::to_owned).collect())
}

/// Prints the information that helps when a step failed.
fn explain(target: &Target) {
    for args in [
        &["-n", DEMO_NAMESPACE, "get", "pods,persistentvolumeclaims,events"][..],
        &["-n", NAMESPACE, "get", "pods,events"],
        &[
            "-n",
            NAMESPACE,
            "logs",
            "-l",
            "app.kubernetes.io/part-of=mooring",
            "--tail=20",
            "--prefix",
        ],
    ] {
        note(kubectl(target, args).unwrap_or_else(|error| format!("{error:#}")));
    }
}
