//! Each way to install Mooring, by the commands of docs/install.md: the demo runs there, and the page's command takes all
//! of it away. Alone: the installation that other tests need is away meanwhile.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use mooring_contract::names::{CLUSTER_FEATURES, FLEX_EXECUTABLE, NAMESPACE};
use mooring_harness::nodes::{driver_directory, on_own_nodes_within};
use mooring_harness::ways::{Away, Checkout, Way, block};
use mooring_harness::{Scope, wait_until};
use mooring_testbed::binaries::Release;
use mooring_testbed::command::{output, output_with_input};
use mooring_testbed::layout::Layout;
use mooring_testbed::progress::note;
use mooring_testbed::target::TargetArgs;
use mooring_testbed::{demo, manifests};
use serde_json::Value;

/// Longest for `mounter uninstall` in a Pod, and for the remains of a deleted Pod to be gone.
const LIMIT: Duration = Duration::from_mins(2);

/// Time limit of the test: Mooring is installed in each way, and the demo runs each time.
const WHOLE_LIMIT: Duration = Duration::from_mins(40);

/// What a cluster holds, a line each: all objects, those that name Mooring with their content, and what is on the nodes.
type Picture = BTreeSet<String>;

/// Kinds that change by themselves.
fn is_compared(kind: &str) -> bool {
    kind != "componentstatuses" && kind != "events" && !kind.starts_with("events.")
}

fn objects(scope: &Scope) -> Result<Picture> {
    let kinds = scope.kubectl(["api-resources", "--verbs=list", "-o", "name"])?;
    let kinds: Vec<_> = kinds.lines().filter(|kind| is_compared(kind)).collect();
    ensure!(kinds.len() > 30, "only {} kinds: {kinds:?}", kinds.len());
    let all: Value = serde_json::from_str(&scope.kubectl(["get", &kinds.join(","), "-A", "-o", "json"])?)?;
    let items = all["items"].as_array().context("no list")?;
    ensure!(items.len() > 50, "only {} objects", items.len());
    let line = |object: &Value| {
        let mut object = object.clone();
        object["status"] = Value::Null;
        for field in ["managedFields", "resourceVersion", "generation"] {
            object["metadata"][field] = Value::Null;
        }
        let meta = &object["metadata"];
        let name = format!("{} {} {}", object["kind"], meta["namespace"], meta["name"]);
        let content = object.to_string();
        if content.contains("mooring") {
            format!("{name}: {content}")
        } else {
            name
        }
    };
    Ok(items.iter().map(line).collect())
}

/// Files and mounts of a node. The pool stays, and empty folders of the kubelet's, as docs/install.md says.
fn files(scope: &Scope, index: u8, plugins: &str) -> Result<Picture> {
    let script = format!(
        "find {plugins} /etc/cni /etc/kubernetes /var/lib/kubelet /var/lib/mooring -mindepth 1 \
           \\( -path /var/lib/kubelet/pods -o -path /var/lib/mooring/pool \\) -prune \
           -o \\( -type d -path '/var/lib/kubelet/plugins/kubernetes.io*' \\) -o -print
         find /var/lib/kubelet/pods /run -path '*mooring.dev*' 2>/dev/null || true
         awk '$5 ~ \"mooring\" {{ print $5 }}' /proc/self/mountinfo"
    );
    let found = scope.on_node(index, &script)?;
    Ok(found.lines().map(|line| format!("node-{index} {line}")).collect())
}

fn picture(scope: &Scope) -> Result<Picture> {
    let description = &scope.own_cluster()?.description;
    let mut picture = objects(scope)?;
    for index in 1..=description.nodes {
        picture.extend(files(scope, index, description.flavour.plugin_dir())?);
    }
    Ok(picture)
}

/// A picture in which nothing is that was just about to go or to come.
async fn settled_picture(scope: &Scope) -> Result<Picture> {
    let mut last = picture(scope)?;
    wait_until("the cluster to hold still", LIMIT, async || {
        let now = picture(scope)?;
        let before = std::mem::replace(&mut last, now.clone());
        Ok((now == before).then_some(now))
    })
    .await
}

/// Waits until the cluster holds the same as before.
async fn is_as_before(scope: &Scope, before: &Picture) -> Result<()> {
    wait_until("the cluster to be as before", LIMIT, async || {
        let now = picture(scope)?;
        let changes: Vec<_> = now.symmetric_difference(before).map(String::as_str).collect();
        ensure!(changes.is_empty(), "left or gone: {}", changes.join("\n"));
        Ok(Some(()))
    })
    .await
}

/// The cluster says what it is without.
async fn says_what_it_lacks(scope: &Scope, release: Release) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let said = wait_until("the cluster's features", LIMIT, async || {
        Ok(maps.get(CLUSTER_FEATURES).await?.data)
    })
    .await?;
    assert_eq!(said["kubernetes"], release.version());
    for (feature, is_there) in [
        ("claim-users", release.is_complete()),
        ("flexvolume", release.is_complete()),
        ("volume-attributes-classes", release > Release::Oldest),
    ] {
        let said = &said[feature];
        assert_eq!(said.starts_with("no: "), !is_there, "{feature}: {said}");
    }
    Ok(())
}

/// The page's command refuses while the demo's volumes are there, names them, and Mooring runs on.
fn is_refused(scope: &Scope, checkout: &Checkout) -> Result<()> {
    let Err(error) = checkout.uninstall() else {
        bail!("Mooring is uninstalled while volumes are left");
    };
    let text = error.to_string();
    for claim in ["shared", "disk"] {
        let named = |line: &str| line.contains("PersistentVolume ") && line.contains(claim);
        ensure!(
            text.lines().any(named),
            "the volume of claim {claim} is not named: {text}"
        );
    }
    let replicas = "jsonpath={.spec.replicas}";
    let replicas = scope.kubectl(["-n", NAMESPACE, "get", "deployment", "flex-provisioner", "-o", replicas])?;
    assert_eq!(replicas, "2");
    scope.kubectl(["-n", NAMESPACE, "get", "daemonset", "mounter"])?;
    Ok(())
}

/// Runs the page's Pod on node-1 until it ends.
async fn uninstall_by_hand(scope: &Scope) -> Result<()> {
    let manifest = block("yaml", "args: [uninstall]")?;
    ensure!(manifest.contains("nodeName: node-1"), "{manifest}");
    let pod = manifests::documents(&manifest)?.pop().context("no Pod on the page")?;
    let name = pod["metadata"]["name"].as_str().context("a Pod without a name")?;
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default");
    let kubectl = |args: &[&str]| output(scope.target.kubectl(["-n", namespace]).args(args));
    output_with_input(&mut scope.target.kubectl(["apply", "-f", "-"]), manifest.as_bytes())?;
    let ended = wait_until("mounter uninstall to end", LIMIT, async || {
        let phase = kubectl(&["get", "pod", name, "-o", "jsonpath={.status.phase}"])?;
        Ok(["Succeeded", "Failed"].contains(&phase.as_str()).then_some(phase))
    })
    .await;
    let log = kubectl(&["logs", name]);
    kubectl(&["delete", "pod", name])?;
    let (phase, log) = (ended?, log?);
    ensure!(phase == "Succeeded", "mounter uninstall {phase}: {log}");
    Ok(())
}

async fn installs_and_uninstalls(scope: &Scope, checkout: &Checkout, way: Way) -> Result<()> {
    note(format!("by {way:?}"));
    let cluster = scope.own_cluster()?;
    if way == Way::Helm {
        // This namespace stays, with what is in it.
        checkout.run(&block("sh", "kubectl label namespace mooring")?)?;
        let own = ["--for=create", "serviceaccount/default", "configmap/kube-root-ca.crt"];
        scope
            .kubectl_wait([&["-n", NAMESPACE, "wait"], &own[..]].concat())
            .await?;
    }
    let before = settled_picture(scope).await?;
    checkout.install(way)?;
    checkout.is_ready()?;
    says_what_it_lacks(scope, cluster.description.releases.control_plane).await?;
    demo::run_on(&scope.target)?;
    ensure!(
        picture(scope)?.len() > before.len() + 50,
        "the picture has no installation"
    );

    is_refused(scope, checkout)?;
    demo::run(&Layout::from_env()?, &TargetArgs::default(), true)?;
    let volumes = scope.kubectl(["get", "persistentvolumes", "-o", "name"])?;
    assert_eq!(volumes, "", "volumes of the demo are left");
    for index in 1..=cluster.description.nodes {
        let pool = scope.on_node(index, "ls -A /var/lib/mooring/pool 2>/dev/null || true")?;
        assert_eq!(pool, "", "images of the demo's volumes are left on node-{index}");
    }

    // As on a node that can't be reached while the rest is removed.
    let (driver, kept) = (driver_directory(cluster), format!("/run/{}", scope.namespace));
    let shim = driver.join(FLEX_EXECUTABLE);
    let copy = |from: &Path, to: &Path| {
        let script = format!(
            "mkdir -p {} && cp {} {}",
            driver.display(),
            from.display(),
            to.display()
        );
        scope.on_node(1, &script)
    };
    copy(&shim, Path::new(&kept))?;
    // As the client containers of devices leave it.
    let shared = "/var/lib/kubelet/plugins/mooring.dev";
    let as_used = format!("mkdir -p {shared}/claims && touch {shared}/claims/lock {shared}/iscsid.lock");
    scope.on_node(1, &as_used)?;
    checkout.uninstall()?;
    is_as_before(scope, &before).await?;
    copy(Path::new(&kept), &shim)?;
    scope.on_node(1, &as_used)?;
    uninstall_by_hand(scope).await?;
    is_as_before(scope, &before).await?;
    scope.kubectl(["delete", "namespace", NAMESPACE, "--ignore-not-found"])?;
    Ok(())
}

#[test]
fn the_demo_runs_after_each_way_to_install_and_the_page_s_command_takes_all_of_it_away() {
    on_own_nodes_within(WHOLE_LIMIT, "smoke-install", async |scope| {
        let cluster = scope.own_cluster()?;
        let checkout = Checkout::new(&scope.target, cluster)?;
        let away = Away::begin(&scope)?;
        for way in Way::ALL {
            Box::pin(installs_and_uninstalls(&scope, &checkout, way))
                .await
                .with_context(|| format!("{way:?}"))?;
        }
        drop(away);
        for index in 1..=cluster.description.nodes {
            let node = format!("node-{index}");
            wait_until(&format!("the mounter of {node} to be ready"), LIMIT, async || {
                Ok((scope.mounter_status(&node).await?["ready"] == true).then_some(()))
            })
            .await?;
        }
        Ok(())
    });
}
