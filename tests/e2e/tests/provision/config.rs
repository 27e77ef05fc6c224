//! Provisioner ConfigMaps: what a bad one changes (nothing) and reports, and the StorageClasses that exist for good
//! ones.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::ResourceExt;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, until};
use mooring_harness::{Scope, in_namespace, wait_until};
use serde_json::json;

const LIMIT: Duration = Duration::from_mins(2);

async fn class_until(
    scope: &Scope,
    name: &str,
    what: &str,
    wanted: impl Fn(Option<&StorageClass>) -> bool,
) -> Result<()> {
    let classes: Api<StorageClass> = Api::all(scope.client.clone());
    until(&classes, name, what, LIMIT, wanted).await?;
    Ok(())
}

/// The source that the image printed for a claim.
async fn source(scope: &Scope, uid: &str) -> Result<String> {
    let spec = scope
        .provisioned(uid)
        .await?
        .context("no volume")?
        .spec
        .context("no spec")?;
    let options = spec
        .flex_volume
        .and_then(|source| source.options)
        .context("no options")?;
    Ok(options["source"].clone())
}

/// Proves: P5
#[test]
fn a_bad_edit_changes_nothing_that_runs_and_is_reported_on_the_configmap() {
    in_namespace("bad-edit", async |scope| {
        let good = scope
            .provisioner()
            .printing()
            .key("zone", "west")
            .on_provision("pv options client=sshfs source=nobody@192.0.2.1:/\"$ZONE\"");
        good.apply().await?;
        good.clone().key("zone", "east").key("timeout", "soon").write()?;
        let status = good.status("\"soon\" is not a length of time").await?;
        assert!(status.contains("the version before it stays in force"), "{status}");
        let event = scope
            .event_in(CONFIG_NAMESPACE, &good.name, "is not a length of time")
            .await?;
        assert_eq!(event.reason.as_deref(), Some("ConfigRefused"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        let counted =
            |line: &str| line.starts_with("mooring_provisioner_configs{state=\"last-good\"}") && !line.ends_with(" 0");
        // A controller that has just begun to lead counts it with its first status.
        wait_until("the metrics to count it", LIMIT, async || {
            let metrics = scope.metrics()?;
            let problem = metrics.contains("mooring_provisioner_config_problems{category=\"bad-value\"}");
            Ok((problem && metrics.lines().any(counted)).then_some(()))
        })
        .await?;

        let first = scope.claim("first", &good.class, "1Gi").await?;
        scope.claim_bound("first").await?;
        assert_eq!(source(&scope, &first).await?, "nobody@192.0.2.1:/west");

        // Once corrected, it is in force at once, and the next claim uses it.
        good.key("zone", "east").apply().await?;
        let second = scope.claim("second", &scope.namespace, "1Gi").await?;
        scope.claim_bound("second").await?;
        assert_eq!(source(&scope, &second).await?, "nobody@192.0.2.1:/east");
        Ok(())
    });
}

#[test]
fn a_configmap_that_never_was_good_is_refused_with_all_its_mistakes() {
    in_namespace("never-good", async |scope| {
        let bad = scope
            .provisioner()
            .key("image", "evil.example.com/x:1")
            .key("sevice-account-name", "foo")
            .key("max-parallel", "many");
        bad.write()?;
        let status = bad.status("refused: ").await?;
        for part in [
            "evil.example.com/x:1",
            "looks like \"service-account-name\" misspelt",
            "max-parallel",
        ] {
            assert!(status.contains(part), "{part} is not in {status}");
        }
        class_until(&scope, &bad.class, "not to be made", |class| class.is_none()).await
    });
}

#[test]
fn a_missing_space_after_a_colon_is_said_though_kubectl_took_it() {
    in_namespace("zone-west", async |scope| {
        // As kubectl reads "use-nfs-server: 10.10.2.4" with a line "  zone:west" below it.
        let provisioner = scope
            .provisioner()
            .printing()
            .key("use-nfs-server", "10.10.2.4 zone:west");
        provisioner.write()?;
        let status = provisioner.status("zone: west").await?;
        assert!(status.contains("without the space after its colon"), "{status}");
        scope
            .event_in(CONFIG_NAMESPACE, &provisioner.name, "zone: west")
            .await?;
        Ok(())
    });
}

#[test]
fn a_configmap_of_a_namespace_that_is_not_honoured_makes_nothing() {
    in_namespace("not-honoured", async |scope| {
        scope.apply(
            &json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "x", "labels": {"type": "provisioner-config", "storage-class": scope.namespace}},
                "data": {"plugin-name": "mooring.dev/flex-provisioner", "image": "mooring.dev/testbed-scripted:0.1.0"},
            })
            .to_string(),
        )?;
        // A later ConfigMap that is honoured has been read by then.
        scope.provisioner_named("-later").printing().apply().await?;
        class_until(&scope, &scope.namespace, "not to be made", |class| class.is_none()).await
    });
}

#[test]
fn of_two_configmaps_for_one_class_the_older_has_it_and_the_younger_says_so() {
    in_namespace("two", async |scope| {
        let older = scope.provisioner().printing();
        older.apply().await?;
        // Creation times are in whole seconds.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let mut younger = scope.provisioner_named("-younger").printing();
        younger.class.clone_from(&older.class);
        younger.write()?;
        let status = younger.status("belongs to the older ConfigMap").await?;
        assert!(
            status.contains(&format!("{CONFIG_NAMESPACE}/{}", older.name)),
            "{status}"
        );
        let of = |name: &str| {
            let name = name.to_owned();
            move |class: Option<&StorageClass>| {
                let parameters = class.and_then(|class| class.parameters.as_ref());
                parameters.and_then(|all| all.get("mooring.dev/config-name")) == Some(&name)
            }
        };
        class_until(&scope, &older.class, "to be the older's", of(&older.name)).await?;
        older.delete()?;
        class_until(&scope, &older.class, "to be the younger's", of(&younger.name)).await
    });
}

#[test]
fn a_class_is_made_again_when_deleted_and_given_up_with_its_configmap_but_never_while_in_use() {
    in_namespace("class-life", async |scope| {
        let provisioner = scope.provisioner().printing().key("mount-options", "noatime");
        provisioner.apply().await?;
        let classes: Api<StorageClass> = Api::all(scope.client.clone());
        let before = classes.get(&provisioner.class).await?.uid();
        scope.kubectl(["delete", "storageclass", &provisioner.class])?;
        class_until(&scope, &provisioner.class, "to be made again", |class| {
            class.is_some_and(|class| class.uid() != before)
        })
        .await?;

        scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.claim_bound("data").await?;
        provisioner.delete()?;
        // Another class is created and removed meanwhile, so the controller must have seen the earlier deletion.
        let other = scope.provisioner_named("-other").printing();
        other.apply().await?;
        other.delete()?;
        class_until(&scope, &other.class, "to be given up", |class| class.is_none()).await?;
        assert!(
            classes.get_opt(&provisioner.class).await?.is_some(),
            "a class in use was removed"
        );

        provisioner.apply().await?;
        scope.claim_gone("data").await?;
        let uids = |volume: Option<&k8s_openapi::api::core::v1::PersistentVolume>| volume.is_none();
        let volumes: Api<k8s_openapi::api::core::v1::PersistentVolume> = Api::all(scope.client.clone());
        for volume in volumes.list(&kube::api::ListParams::default()).await?.items {
            let ours =
                volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref()) == Some(&provisioner.class);
            if ours {
                until(&volumes, &volume.name_any(), "to be gone", LIMIT, uids).await?;
            }
        }
        provisioner.delete()?;
        class_until(&scope, &provisioner.class, "to be given up", |class| class.is_none()).await
    });
}

#[test]
fn somebody_else_s_class_is_never_touched() {
    in_namespace("foreign", async |scope| {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": scope.namespace, "labels": {"testbed.mooring.dev/namespace": scope.namespace}},
            "provisioner": "example.com/other", "parameters": {"a": "b"},
        });
        scope.apply_anywhere(&class.to_string())?;
        let provisioner = scope.provisioner().printing();
        provisioner.write()?;
        provisioner
            .status("is example.com/other's, and Mooring leaves it unchanged")
            .await?;
        provisioner.delete()?;
        let other = scope.provisioner_named("-other").printing();
        other.apply().await?;
        let classes: Api<StorageClass> = Api::all(scope.client.clone());
        let found = classes.get(&scope.namespace).await?;
        assert_eq!(found.provisioner, "example.com/other");
        assert_eq!(found.parameters.context("no parameters")?["a"], "b");
        Ok(())
    });
}
