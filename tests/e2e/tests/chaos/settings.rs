//! The administrator's settings: an upgrade keeps them, and a mistake in them changes nothing that runs. And records of a
//! later version. Alone, since they are those of the whole cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use mooring_contract::names::{NAMESPACE, SETTINGS_CONFIG, annotations};
use mooring_harness::clients::client_pods_of;
use mooring_harness::nodes::on_own_nodes_within;
use mooring_harness::{Scope, wait_until};
use mooring_testbed::install::{apply, render};
use serde_json::{Value, json};

/// Longest wait for one step.
const LIMIT: Duration = Duration::from_mins(4);

/// Time limit of a test.
const WHOLE_LIMIT: Duration = Duration::from_mins(15);

const NODE: &str = "node-1";

/// Of a registry that nobody has.
const IMAGE: &str = "settings.invalid/x:1";

const SECRET: &str = "login";

fn secrets_of(pod: &Pod) -> Vec<&str> {
    let secrets = pod.spec.as_ref().and_then(|spec| spec.image_pull_secrets.as_ref());
    secrets
        .into_iter()
        .flatten()
        .map(|secret| secret.name.as_str())
        .collect()
}

/// Applies the manifests again, and replaces all of Mooring's Pods.
fn upgrade(scope: &Scope) -> Result<()> {
    apply(&scope.target, &render("tests/install", &scope.target)?)?;
    let mooring = |args: &[&str]| scope.kubectl([&["-n", NAMESPACE, "rollout"], args].concat());
    for workload in ["deployment/flex-provisioner", "daemonset/mounter"] {
        mooring(&["restart", workload])?;
        mooring(&["status", workload, "--timeout=240s"])?;
    }
    Ok(())
}

#[test]
fn an_upgrade_keeps_what_an_administrator_has_set() {
    on_own_nodes_within(WHOLE_LIMIT, "settings-upgrade", async |scope| {
        scope.require_mooring().await?;
        let other = scope.provisioner_named("-other").printing().key("image", IMAGE);
        other.write()?;
        other.status("matches none of the allowed images").await?;
        scope.settings(&json!({
            "allowed-images": "mooring.dev/**,custom/*,settings.invalid/*",
            "allowed-client-images": "mooring.dev/*,settings.invalid/*",
            "pull-secrets": SECRET,
        }))?;
        other.status("in force").await?;

        upgrade(&scope)?;
        // The controller of now has to judge it.
        other.key("another", "x").apply().await?;

        let own = scope.provisioner().printing();
        own.apply().await?;
        let uid = scope.claim("data", &own.class, "1Gi").await?;
        let run = scope.run_until("provision", &uid, "to be made", |_| true).await?;
        assert_eq!(secrets_of(&run), [SECRET]);
        scope.claim_bound("data").await?;

        let volume = json!({"client": "sshfs", "source": "nobody@192.0.2.1:/x", "client-image": IMAGE});
        scope.volume("image", &volume)?;
        scope.pod("image", NODE, "image", Value::Null)?;
        let client = wait_until("the client Pod to be made", LIMIT, async || {
            Ok(client_pods_of(&scope, IMAGE).await?.pop())
        })
        .await?;
        assert_eq!(secrets_of(&client), [SECRET]);
        scope.delete("pod/image")?;
        scope.pod_gone("image").await
    });
}

#[test]
fn settings_with_a_mistake_change_nothing_that_runs_and_let_no_new_controller_lead() {
    on_own_nodes_within(WHOLE_LIMIT, "settings-mistake", async |scope| {
        scope.require_mooring().await?;
        scope.settings(&json!({"registry": "https://registry.example.com"}))?;
        scope.event_in(NAMESPACE, SETTINGS_CONFIG, "is not a registry").await?;
        // A mounter that has read no earlier version says so.
        let mounter = scope.mounter(NODE).await?;
        scope.kubectl(["-n", NAMESPACE, "delete", "pod", &mounter])?;
        scope
            .event_in(NAMESPACE, SETTINGS_CONFIG, "nothing of it is in force")
            .await?;
        // The controller that leads goes on.
        scope.provisioner().printing().apply().await?;

        let controllers = "app.kubernetes.io/name=flex-provisioner";
        scope.kubectl(["-n", NAMESPACE, "delete", "pod", "-l", controllers])?;
        wait_until("each new controller to say why it does not lead", LIMIT, async || {
            let said = scope.kubectl(["-n", NAMESPACE, "logs", "-l", controllers, "--tail=-1", "--prefix"])?;
            let reasons = said.lines().filter(|line| line.contains("this replica does not lead"));
            Ok((reasons.count() >= 2).then_some(()))
        })
        .await?;
        let shown = [
            "-n",
            NAMESPACE,
            "get",
            "deployment",
            "flex-provisioner",
            "-o",
            "jsonpath={.status.readyReplicas}",
        ];
        let ready = scope.kubectl(shown)?;
        ensure!(ready.is_empty(), "{ready} controllers are ready");

        scope.settings(&json!({}))?;
        let later = scope.provisioner_named("-later").printing();
        later.apply().await.context("after the mistake was corrected")
    });
}

#[test]
fn a_controller_does_not_lead_where_one_of_a_later_version_has_written_records_that_it_can_t_read() {
    on_own_nodes_within(WHOLE_LIMIT, "settings-records", async |scope| {
        scope.require_mooring().await?;
        let lease = "lease/flex-provisioner";
        let annotate = |change: &str| scope.kubectl(["-n", NAMESPACE, "annotate", "--overwrite", lease, change]);
        annotate(&format!("{}=1000", annotations::RECORDS))?;
        let controllers = "app.kubernetes.io/name=flex-provisioner";
        wait_until("each controller to say why it does not lead", LIMIT, async || {
            let said = scope.kubectl(["-n", NAMESPACE, "logs", "-l", controllers, "--tail=-1", "--prefix"])?;
            let outdated = said
                .lines()
                .filter(|line| line.contains("a controller of a later version has led"));
            let pods: BTreeSet<_> = outdated.filter_map(|line| line.split(']').next()).collect();
            Ok((pods.len() >= 2).then_some(()))
        })
        .await?;
        annotate(&format!("{}-", annotations::RECORDS))?;
        let provisioner = scope.provisioner().printing();
        provisioner.apply().await?;
        scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.claim_bound("data").await?;
        Ok(())
    });
}
