//! The administrator's settings: an upgrade keeps them, and a mistake in them changes nothing that runs. And records of a
//! later version. Alone, since they are those of the whole cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use mooring_contract::names::{MOUNTER_CONFIG, NAMESPACE, SETTINGS_CONFIG, annotations};
use mooring_e2e::settings::{self as table, IMAGE, NEXT_TAG, REGISTRY, SECRET};
use mooring_harness::clients::{CONTROLLER_IMAGE, MOUNTER_IMAGE, client_pods_of, remove_image, tag_image};
use mooring_harness::nodes::on_own_nodes_within;
use mooring_harness::provisioner::SCRIPTED;
use mooring_harness::ways::{Away, Checkout, Way};
use mooring_harness::{Scope, wait_until};
use mooring_testbed::command::output;
use mooring_testbed::images::{HOST, TAG};
use mooring_testbed::layout::{repository, write_file};
use serde_json::{Value, json};

/// Longest wait for one step.
const LIMIT: Duration = Duration::from_mins(4);

/// Time limit of a test.
const WHOLE_LIMIT: Duration = Duration::from_mins(15);

/// The same for the one that installs Mooring in several ways.
const UPGRADES_LIMIT: Duration = Duration::from_mins(40);

const NODE: &str = "node-1";

/// What the next version of Mooring has in place of something: where, and what.
const NEXT_VERSION: [(&str, &str, &str); 2] = [
    (
        "provisioner.yaml",
        "terminationGracePeriodSeconds: 50",
        "terminationGracePeriodSeconds: 51",
    ),
    (
        "mounter.yaml",
        "terminationGracePeriodSeconds: 120",
        "terminationGracePeriodSeconds: 121",
    ),
];

fn secrets_of(pod: &Pod) -> Vec<&str> {
    let secrets = pod.spec.as_ref().and_then(|spec| spec.image_pull_secrets.as_ref());
    secrets
        .into_iter()
        .flatten()
        .map(|secret| secret.name.as_str())
        .collect()
}

/// Changes all settings that the way has. Returns parts of the objects that show them.
fn change_all(scope: &Scope, checkout: &Checkout, way: Way) -> Result<Vec<Value>> {
    let all = table::settings();
    if way == Way::Helm {
        write_file(&checkout.path("values.json"), table::values(&all).to_string())?;
        checkout.run("helm upgrade mooring configmaps/install -n mooring --reset-then-reuse-values -f values.json")?;
        return Ok(all.into_iter().flat_map(|setting| setting.shown).collect());
    }
    let patch = json!({"data": table::data_of(&all, MOUNTER_CONFIG)}).to_string();
    let config = |args: &[&str]| scope.kubectl([&["-n", NAMESPACE], args].concat());
    config(&["create", "configmap", MOUNTER_CONFIG])?;
    config(&["patch", "configmap", MOUNTER_CONFIG, "--type=merge", "-p", &patch])?;
    let shown = all.iter().flat_map(|setting| setting.shown.iter().cloned());
    if way == Way::Kustomize {
        let own = checkout.path("configmaps/mine/kustomization.yaml");
        let text = std::fs::read_to_string(&own).context("failed to read the kustomization")?;
        write_file(&own, table::kustomization(&text, &all)?.to_string())?;
        checkout.upgrade(way)?;
        return Ok(shown.collect());
    }
    // The folder itself has none but those of the ConfigMaps.
    let patch = json!({"data": table::data_of(&all, SETTINGS_CONFIG)}).to_string();
    config(&["patch", "configmap", SETTINGS_CONFIG, "--type=merge", "-p", &patch])?;
    Ok(shown.filter(|object| object["kind"] == "ConfigMap").collect())
}

/// Upgrades Mooring to a version with other manifests, and returns parts of the objects that show it.
fn upgrade(checkout: &Checkout, way: Way) -> Result<Vec<Value>> {
    for (file, here, next) in NEXT_VERSION {
        let file = checkout.path("configmaps/install").join(file);
        let text = std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
        write_file(&file, text.replace(here, next))?;
    }
    checkout.upgrade(way)?;
    checkout.is_ready()?;
    let seconds = |seconds: u32| json!({"terminationGracePeriodSeconds": seconds});
    Ok(table::WORKLOADS
        .iter()
        .zip([51, 121])
        .map(|(workload, new)| workload.pod(&seconds(new)))
        .collect())
}

/// Whether an object has all that is wanted of it; of lists, these elements.
fn has(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| found.get(key).is_some_and(|found| has(found, wanted))),
        (Value::Array(found), Value::Array(wanted)) => {
            wanted.iter().all(|wanted| found.iter().any(|found| has(found, wanted)))
        }
        _ => found == wanted,
    }
}

/// What the settings say is what Mooring does.
async fn are_in_force(scope: &Scope, way: Way) -> Result<()> {
    // In a namespace that is not Mooring's own, with an image that is not of the registry.
    let other = scope.provisioner_named("-other").printing().key("image", IMAGE);
    other.apply().await?;
    let own = scope.provisioner().printing();
    own.apply().await?;
    let uid = scope.claim("data", &own.class, "1Gi").await?;
    let run = scope.run_until("provision", &uid, "to be made", |_| true).await?;
    let image = run.spec.as_ref().and_then(|spec| spec.containers[0].image.as_deref());
    assert_eq!(image, Some(SCRIPTED.replace(HOST, REGISTRY).as_str()));
    assert_eq!(secrets_of(&run), [SECRET]);
    scope.claim_bound("data").await?;

    let volume = json!({"client": "sshfs", "source": "nobody@192.0.2.1:/x", "client-image": IMAGE});
    scope.volume("image", &volume)?;
    scope.pod("image", NODE, "image", Value::Null)?;
    let client = wait_until("the client Pod to be made", LIMIT, async || {
        Ok(client_pods_of(scope, IMAGE).await?.pop())
    })
    .await?;
    assert_eq!(secrets_of(&client), [SECRET]);
    for (client, serving) in table::CLIENTS {
        assert_eq!(scope.mounter_status(NODE).await?["clients"][client], serving);
    }
    // Without a kustomization, the setting does not reach Mooring's own Pods.
    if way != Way::Folder {
        let part = ListParams::default().labels("app.kubernetes.io/part-of=mooring");
        let pods = Api::<Pod>::namespaced(scope.client.clone(), NAMESPACE)
            .list(&part)
            .await?;
        let pods = pods
            .items
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none());
        for pod in pods {
            assert_eq!(secrets_of(pod), [SECRET], "{:?}", pod.metadata.name);
        }
    }

    scope.delete("pod/image")?;
    scope.pod_gone("image").await?;
    scope.claim_gone("image").await?;
    scope.kubectl(["delete", "persistentvolume", &scope.volume_name("image")])?;
    scope.claim_gone("data").await?;
    scope.nothing_left(&uid).await?;
    own.delete()?;
    other.delete()
}

async fn keeps_all_settings(scope: &Scope, way: Way) -> Result<()> {
    let cluster = scope.own_cluster()?;
    let checkout = Checkout::new(&scope.target, cluster)?;
    // It would judge client Pods by the settings of the installation before.
    cluster.restart_api_server()?;
    checkout.install(way)?;
    let mut shown = change_all(scope, &checkout, way)?;
    shown.extend(upgrade(&checkout, way)?);
    for wanted in shown {
        let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
        let (kind, name) = (text(&wanted["kind"]), text(&wanted["metadata"]["name"]));
        let found = scope.kubectl(["-n", NAMESPACE, "get", &kind, &name, "-o", "json"])?;
        ensure!(
            has(&serde_json::from_str(&found)?, &wanted),
            "{wanted} is not in {found}"
        );
    }
    Box::pin(are_in_force(scope, way)).await?;
    checkout.uninstall()?;
    scope.kubectl(["delete", "namespace", NAMESPACE, "--ignore-not-found"])?;
    Ok(())
}

#[test]
fn an_upgrade_keeps_every_setting_that_an_administrator_has_changed() {
    on_own_nodes_within(UPGRADES_LIMIT, "settings-upgrade", async |scope| {
        let next = |image: &str| format!("{}:{NEXT_TAG}", image.replace(HOST, REGISTRY));
        let aliases = [
            (format!("{CONTROLLER_IMAGE}:{TAG}"), next(CONTROLLER_IMAGE)),
            (format!("{MOUNTER_IMAGE}:{TAG}"), next(MOUNTER_IMAGE)),
            (SCRIPTED.to_owned(), SCRIPTED.replace(HOST, REGISTRY)),
        ];
        for (image, alias) in &aliases {
            tag_image(&scope, image, alias)?;
        }
        let away = Away::begin(&scope)?;
        // The tests' namespaces are an administrator's own.
        let namespaces = repository().join("tests/install/namespaces.yaml");
        output(scope.target.kubectl(["apply", "-f"]).arg(namespaces))?;
        for way in [Way::Helm, Way::Kustomize, Way::Folder] {
            Box::pin(keeps_all_settings(&scope, way))
                .await
                .with_context(|| format!("{way:?}"))?;
        }
        drop(away);
        aliases.iter().try_for_each(|(_, alias)| remove_image(&scope, alias))
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
        wait_until("no controller to be ready", LIMIT, async || {
            Ok(scope.kubectl(shown)?.is_empty().then_some(()))
        })
        .await?;

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
