//! The installation that users have: the demo runs on it, and it is removed as docs/install.md says. Alone: the
//! installation that other tests need is away meanwhile.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use mooring_contract::names::{FLEX_EXECUTABLE, NAMESPACE};
use mooring_harness::nodes::{driver_directory, on_own_nodes_within};
use mooring_harness::{Scope, wait_until};
use mooring_testbed::command::{command, output, output_with_input};
use mooring_testbed::images::Selection;
use mooring_testbed::install::{install_for_tests, uninstall};
use mooring_testbed::layout::{Layout, repository};
use mooring_testbed::progress::note;
use mooring_testbed::target::{Target, TargetArgs};
use mooring_testbed::{demo, manifests};
use serde_json::Value;

/// Longest for `mounter uninstall` in a Pod, and for the remains of a deleted Pod to be gone.
const LIMIT: Duration = Duration::from_mins(2);

/// Time limit of the test: Mooring is installed twice, and the demo runs.
const WHOLE_LIMIT: Duration = Duration::from_mins(20);

/// Installs Mooring again for the other tests when dropped, whatever happened to this one.
struct Again(Target);

impl Drop for Again {
    fn drop(&mut self) {
        let images = self.0.load_images(Selection::Named(&["flex-provisioner", "mounter"]));
        if let Err(error) = images.and_then(|images| install_for_tests(&self.0, &images)) {
            note(format!("Mooring is not installed any more: {error:#}"));
        }
    }
}

/// The manual's section about uninstalling.
fn manual() -> Result<String> {
    let page = std::fs::read_to_string(repository().join("docs/install.md"))?;
    let (_, part) = page
        .split_once("\n## Uninstall\n")
        .context("docs/install.md has no section about uninstalling")?;
    Ok(part.to_owned())
}

/// The first code block of a language in a page.
fn block<'a>(page: &'a str, kind: &str) -> Result<&'a str> {
    let begin = format!("```{kind}\n");
    let rest = page.split_once(&begin).map(|(_, rest)| rest);
    let found = rest.and_then(|rest| rest.split_once("```"));
    Ok(found.with_context(|| format!("no block of {kind} in {page}"))?.0)
}

/// The manual's command, with the target's kubectl.
fn uninstall_as_documented(target: &Target) -> Result<Command> {
    let manual = manual()?;
    let mut words = block(&manual, "sh")?.split_whitespace();
    let mut uninstall = command(words.next().context("no command")?, words);
    let kubectl = target.kubectl::<&str>([]);
    uninstall
        .current_dir(repository())
        .env("KUBECTL", kubectl.get_program());
    uninstall.envs(kubectl.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Ok(uninstall)
}

/// The manual's command refuses while the demo's volumes are there, names them, and Mooring runs on.
fn is_refused(scope: &Scope) -> Result<()> {
    let Err(error) = output(&mut uninstall_as_documented(&scope.target)?) else {
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

/// All objects in the API that name Mooring, except for Events, the images that a node lists, and this test's own
/// objects.
fn left_in_api(scope: &Scope) -> Result<Vec<String>> {
    let kinds = scope.kubectl(["api-resources", "--verbs=list", "-o", "name"])?;
    let kinds: Vec<_> = kinds
        .lines()
        .filter(|kind| *kind != "events" && !kind.starts_with("events.") && *kind != "componentstatuses")
        .collect();
    ensure!(kinds.len() > 30, "only {} kinds: {kinds:?}", kinds.len());
    let all: Value = serde_json::from_str(&scope.kubectl(["get", &kinds.join(","), "-A", "-o", "json"])?)?;
    let items = all["items"].as_array().context("no list")?;
    ensure!(items.len() > 50, "only {} objects", items.len());
    let mut left = Vec::new();
    for object in items {
        let meta = &object["metadata"];
        let ours = [&meta["namespace"], &meta["name"]].contains(&&Value::from(scope.namespace.as_str()));
        let mut object = object.clone();
        object["status"] = Value::Null;
        object["metadata"]["managedFields"] = Value::Null;
        if !ours && object.to_string().contains("mooring") {
            left.push(format!(
                "{} {} {}: {object}",
                object["kind"], object["metadata"]["namespace"], object["metadata"]["name"]
            ));
        }
    }
    Ok(left)
}

/// What is on a node from Mooring, except for the pool and its content.
fn left_on_node(scope: &Scope, index: u8, driver: &Path) -> Result<String> {
    let script = format!(
        "ls -dA {driver} 2>/dev/null || true
         awk '$5 ~ \"mooring.dev~vcs\" || $5 ~ \"^/var/lib/mooring/\" {{ print $5 }}' /proc/self/mountinfo
         find /var/lib/mooring -mindepth 1 ! -path /var/lib/mooring/pool ! -path '/var/lib/mooring/pool/*'
         find /var/lib/kubelet -maxdepth 6 -path '*mooring.dev~vcs*' 2>/dev/null || true",
        driver = driver.display()
    );
    scope.on_node(index, &script)
}

/// Runs the manual's Pod on a node until it ends.
async fn uninstall_by_hand(scope: &Scope, node: &str) -> Result<()> {
    let manual = manual()?;
    let manifest = block(&manual, "yaml")?;
    ensure!(manifest.contains("nodeName: node-1"), "{manifest}");
    let manifest = manifest.replace("nodeName: node-1", &format!("nodeName: {node}"));
    let pod = manifests::documents(&manifest)?.pop().context("no Pod in the manual")?;
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

#[test]
fn the_demo_runs_on_the_stock_installation_and_the_manual_takes_all_of_it_away() {
    on_own_nodes_within(WHOLE_LIMIT, "chaos-installation", async |scope| {
        let cluster = scope.own_cluster()?;
        let driver = driver_directory(cluster);
        let nodes = || (1..=cluster.description.nodes).map(|index| (index, format!("node-{index}")));
        let again = Again(scope.target.clone());
        uninstall(&scope.target)?;
        assert_eq!(left_in_api(&scope)?, Vec::<String>::new());

        // What `cargo testbed demo` runs.
        let (layout, args) = (Layout::from_env()?, TargetArgs::default());
        demo::run(&layout, &args, false)?;
        let shown = "jsonpath={.spec.template.spec.containers[0].env[*]['name', 'value']}";
        let settings = scope.kubectl(["-n", NAMESPACE, "get", "daemonset", "mounter", "-o", shown])?;
        assert_eq!(
            settings, "NODE_NAME POD_NAME POD_NAMESPACE",
            "not the stock installation"
        );
        let stranger = scope.kubectl(["get", "namespace", "mooring-e2e", "--ignore-not-found", "-o", "name"])?;
        assert_eq!(stranger, "", "not the stock installation");
        let there = left_in_api(&scope)?;
        ensure!(
            there.len() > 30,
            "the search finds what is there, but not here: {there:#?}"
        );
        for (index, node) in nodes() {
            let there = left_on_node(&scope, index, &driver)?;
            ensure!(
                there.contains("mooring.dev~vcs"),
                "nothing of Mooring is on {node}: {there:?}"
            );
        }

        is_refused(&scope)?;
        demo::run(&layout, &args, true)?;
        let volumes = scope.kubectl(["get", "persistentvolumes", "-o", "name"])?;
        assert_eq!(volumes, "", "volumes of the demo are left");
        for (index, node) in nodes() {
            let pool = scope.on_node(index, "ls -A /var/lib/mooring/pool 2>/dev/null || true")?;
            assert_eq!(pool, "", "images of the demo's volumes are left on {node}");
        }

        // As on a node that can't be reached while the rest is removed.
        let shim = driver.join(FLEX_EXECUTABLE);
        let kept = format!("/run/{}", scope.namespace);
        scope.on_node(1, &format!("cp {} {kept}", shim.display()))?;
        output(&mut uninstall_as_documented(&scope.target)?)?;
        assert_eq!(left_in_api(&scope)?, Vec::<String>::new());
        for (index, node) in nodes() {
            wait_until(&format!("nothing to be left on {node}"), LIMIT, async || {
                let left = left_on_node(&scope, index, &driver)?;
                ensure!(left.is_empty(), "{left}");
                Ok(Some(()))
            })
            .await?;
        }

        let put_back = format!("mkdir -p {} && cp {kept} {}", driver.display(), shim.display());
        scope.on_node(1, &put_back)?;
        uninstall_by_hand(&scope, "node-1").await?;
        assert_eq!(left_on_node(&scope, 1, &driver)?, "");
        assert_eq!(left_in_api(&scope)?, Vec::<String>::new());
        drop(again);
        scope.require_mooring().await?;
        for (_, node) in nodes() {
            wait_until(&format!("the mounter of {node} to be ready"), LIMIT, async || {
                Ok((scope.mounter_status(&node).await?["ready"] == true).then_some(()))
            })
            .await?;
        }
        Ok(())
    });
}
