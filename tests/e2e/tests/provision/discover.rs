//! Classes of what an image discovers: they come and go as it lists them, never one that is in use.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::ResourceExt;
use mooring_contract::names::annotations;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, until};
use mooring_harness::{Scope, in_namespace, wait_until};

const LIMIT: Duration = Duration::from_mins(3);

async fn class(
    scope: &Scope,
    name: &str,
    what: &str,
    wanted: impl Fn(Option<&StorageClass>) -> bool,
) -> Result<Option<StorageClass>> {
    let classes: Api<StorageClass> = Api::all(scope.client.clone());
    until(&classes, name, what, LIMIT, wanted).await
}

fn is_marked(class: Option<&StorageClass>) -> bool {
    class.is_some_and(|class| class.annotations().contains_key(annotations::VANISHED))
}

/// Waits until Kubernetes has removed the run with its ConfigMap.
async fn runs_gone(scope: &Scope) -> Result<()> {
    let runs = format!("-l=mooring.dev/config-name={}", scope.namespace);
    let there = format!("-n={CONFIG_NAMESPACE}");
    scope
        .kubectl_wait(["wait", "--for=delete", &there, "pods", &runs])
        .await
}

/// Proves: P1
#[test]
fn classes_come_and_go_as_the_image_lists_them_and_never_one_in_use() {
    in_namespace("discover", async |scope| {
        let _controller = scope.snapshot_controller()?;
        // What is listed is in the ConfigMap, and a change of it has the image asked at once.
        let listing = |list: &str| {
            scope
                .provisioner()
                .key("volume-source", "csi")
                .key("operations", "provision, delete, snapshot, delete-snapshot, discover")
                .key("list", list)
                .key("discover-script", "pv get list | pv classes --parameter pool")
                .on_provision("pv options client=sshfs source=nobody@192.0.2.1:/\"$POOL\"")
        };
        let name = |thing: &str| format!("{}-{thing}", scope.namespace);
        let (ssd, hdd, tape) = (name("ssd"), name("hdd"), name("tape"));

        let all = listing("ssd capacity=1000 snapshots\nhdd\ntape\nÜ 1 -- pool=u");
        all.write()?;
        // A line that pv does not understand is a failure, told on the ConfigMap, and no class comes of it.
        let event = scope
            .event_in(CONFIG_NAMESPACE, &all.name, "failed to understand")
            .await?;
        assert_eq!(event.reason.as_deref(), Some("DiscoveryFailed"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));

        listing("ssd capacity=1000 snapshots\nhdd\ntape").apply().await?;
        let made = class(&scope, &ssd, "to come", |class| class.is_some()).await?;
        let made = made.context("no class")?;
        assert_eq!(made.annotations()[annotations::CAPACITY], "1000");
        assert_eq!(made.parameters.context("no parameters")?["pool"], "ssd");
        for name in [&hdd, &tape] {
            class(&scope, name, "to come", |class| class.is_some()).await?;
        }
        all.status("3 storage classes by discovery").await?;
        scope
            .kubectl_wait(["wait", "--for=create", &format!("volumesnapshotclass/{ssd}")])
            .await?;
        wait_until("the metrics to count them", LIMIT, async || {
            let counted = "mooring_provisioner_discovered_classes{state=\"served\"}";
            Ok(scope.metrics()?.contains(counted).then_some(()))
        })
        .await?;

        // A claim of one of them gets what the image said.
        let uid = scope.claim("data", &hdd, "1Gi").await?;
        scope.claim_bound("data").await?;
        let volume = scope.provisioned(&uid).await?.context("no volume")?;
        let csi = volume.spec.and_then(|spec| spec.csi).context("not by CSI")?;
        let options = csi.volume_attributes.context("no options")?;
        assert_eq!(options["source"], "nobody@192.0.2.1:/hdd");

        // The one in use stays, with its mark; the other goes.
        let less = listing("ssd capacity=1000 snapshots");
        less.apply().await?;
        class(&scope, &tape, "to go", |class| class.is_none()).await?;
        class(&scope, &hdd, "to be marked", is_marked).await?;
        // Until the next look, it names the one that went as well.
        wait_until("the status to name the class in use alone", LIMIT, async || {
            let status = less.status("as soon as nothing uses them").await?;
            ensure!(status.contains(&hdd) && !status.contains(&tape), "{status}");
            Ok(Some(()))
        })
        .await?;
        scope.elsewhere("default").event(&hdd, "no longer lists").await?;

        // A discovery that fails changes nothing.
        less.clone()
            .key("discover-script", "echo the array is busy; exit 75")
            .apply()
            .await?;
        scope
            .event_in(CONFIG_NAMESPACE, &less.name, "the array is busy")
            .await?;
        class(&scope, &hdd, "to stay", is_marked).await?;
        class(&scope, &ssd, "to stay", |class| class.is_some() && !is_marked(class)).await?;

        // What is listed again is as before.
        listing("ssd capacity=1000 snapshots\nhdd").apply().await?;
        class(&scope, &hdd, "to be back", |class| class.is_some() && !is_marked(class)).await?;

        // All go with the ConfigMap, the one in use when it is free.
        scope.provisioner().delete()?;
        class(&scope, &ssd, "to go", |class| class.is_none()).await?;
        scope
            .kubectl_wait(["wait", "--for=delete", &format!("volumesnapshotclass/{ssd}")])
            .await?;
        class(&scope, &hdd, "to stay", |class| class.is_some()).await?;
        runs_gone(&scope).await?;
        all.write()?;
        scope.deleted("persistentvolumeclaim/data").await?;
        scope.nothing_left(&uid).await?;
        scope.provisioner().delete()?;
        class(&scope, &hdd, "to go", |class| class.is_none()).await?;
        runs_gone(&scope).await
    });
}
