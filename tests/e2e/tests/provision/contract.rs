//! What a provisioning image gets, and the two ways in which its volume becomes a PersistentVolume.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod, Secret};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{ListParams, ResourceExt};
use mooring_harness::provisioner::{CONFIG_NAMESPACE, MAKER, claim, until, user_of};
use mooring_harness::{Scope, in_namespace};
use serde_json::{Value, json};
use std::time::Duration;

/// The original ConfigMap that Mooring began with, and what belongs to it.
const SILVER: &str = include_str!("../../../../configmaps/examples/silver.yaml");
const SILVER_TOKEN: &str = "23092390532lksf90kwelklfw";

/// Separates what is read from a run.
const MARK: &str = "-- next --";

/// What a running image got, read in all three ways.
struct Given {
    pod: Pod,
    files: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
    request: Value,
}

async fn given(scope: &Scope, namespace: &str, uid: &str) -> Result<Given> {
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), namespace);
    let name = format!("provision-{uid}");
    let pod = until(&pods, &name, "to run", Duration::from_mins(1), |pod: Option<&Pod>| {
        let phase = pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref());
        phase == Some("Running")
    })
    .await?;
    let script = format!(
        "cd /run/mooring/properties && for file in *; do echo \"$file=$(cat \"$file\")\"; done
         echo {MARK}; env; echo {MARK}; cat /run/mooring/request.json"
    );
    let all = scope.elsewhere(namespace).exec(&name, ["sh", "-c", &script])?;
    let mut parts = all
        .splitn(3, &format!("{MARK}\n"))
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .into_iter();
    let mut part = || parts.next().with_context(|| all.clone());
    let (files, environment, request) = (part()?, part()?, part()?);
    let pairs = |text: &str| {
        text.lines()
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    Ok(Given {
        pod: pod.context("no Pod")?,
        files: pairs(&files),
        environment: pairs(&environment),
        request: serde_json::from_str(&request).context(request)?,
    })
}

impl Given {
    fn file(&self, property: &str) -> &str {
        self.files.get(property).map_or("(none)", String::as_str)
    }
}

#[test]
fn the_original_configmap_gives_tom_s_claim_the_original_s_properties() {
    in_namespace("silver", async |scope| {
        scope.apply_anywhere(SILVER)?;
        let classes: Api<StorageClass> = Api::all(scope.client.clone());
        let limit = Duration::from_mins(1);
        until(
            &classes,
            "silver",
            "to be made",
            limit,
            |class: Option<&StorageClass>| class.is_some(),
        )
        .await?;
        let uid = scope.claim_with(Some("tom"), &claim("data", "silver", "1Gi")).await?;

        let given = given(&scope, "admin", &uid).await?;
        let pv_name = format!("pvc-{uid}");
        let table = [
            ("pv-name", pv_name.as_str()),
            ("username", "tom"),
            ("storage-class", "silver"),
            ("zone", "west"),
            ("use-nfs-server", "10.10.2.4"),
            ("service-account", "foo"),
            ("service-token", SILVER_TOKEN),
        ];
        for (property, value) in table {
            assert_eq!(given.file(property), value, "file {property}");
            let variable = property.to_uppercase().replace('-', "_");
            let found = given.environment.get(&variable).map(String::as_str);
            assert_eq!(found, Some(value), "variable {variable}");
        }
        let api = given.file("kube-api");
        assert!(api.starts_with("https://"), "{api}");
        assert_eq!(given.environment.get("KUBE_API").map(String::as_str), Some(api));
        for property in ["pv-name", "username", "storage-class", "service-account", "kube-api"] {
            assert_eq!(
                given.request[property],
                json!(given.file(property)),
                "request.json {property}"
            );
        }
        assert_eq!(given.request["parameters"]["zone"], "west");
        assert_eq!(given.request["parameters"]["use-nfs-server"], "10.10.2.4");
        assert_eq!(given.request["size"], json!(1_u64 << 30));

        scope.let_pod_go_on("admin", &given.pod.name_any())?;
        scope.claim_bound("data").await?;
        let volume = scope.provisioned(&uid).await?.context("no volume")?;
        let source = volume.spec.and_then(|spec| spec.iscsi).context("no iscsi source")?;
        assert_eq!(source.target_portal, "10.10.2.4:3260");

        // Only the Pod's Secret has the token.
        assert!(
            !json!(given.pod).to_string().contains(SILVER_TOKEN),
            "the Pod has the token"
        );
        let request = given.request.to_string();
        assert!(!request.contains(SILVER_TOKEN), "request.json has the token: {request}");
        let events: Api<Event> = Api::all(scope.client.clone());
        let events = events.list(&ListParams::default()).await?.items;
        assert!(
            !json!(events).to_string().contains(SILVER_TOKEN),
            "an Event has the token"
        );

        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await?;
        // The class is removed with its ConfigMap.
        scope.kubectl(["-n", "admin", "delete", "configmap", "custom-isci-provisioner"])?;
        scope.kubectl(["delete", "clusterrolebinding", "mooring-volume-maker-admin-foo"])?;
        until(
            &classes,
            "silver",
            "to be given up",
            limit,
            |class: Option<&StorageClass>| class.is_none(),
        )
        .await?;
        Ok(())
    });
}

/// Proves: P6
#[test]
fn every_property_arrives_as_file_and_variable_and_in_the_request_and_no_secret_stands_elsewhere() {
    in_namespace("properties", async |scope| {
        let secret = format!("{}-key", scope.namespace);
        scope.apply_anywhere(
            &json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": secret, "namespace": CONFIG_NAMESPACE},
                "stringData": {"password": "swordfish-5309"},
            })
            .to_string(),
        )?;
        let provisioner = scope
            .provisioner()
            .on_provision("sleep 1000")
            .key("secret-name", &*secret)
            .key("service-account-name", MAKER)
            .key("reclaim-policy", "Retain")
            .key("mount-options", "ro,noatime")
            .key("tier", "with blanks, \"quotes\" and $signs");
        provisioner.apply().await?;
        let mut wanted = claim("data", &provisioner.class, "1500Mi");
        wanted["spec"]["accessModes"] = json!(["ReadWriteOnce", "ReadOnlyMany"]);
        let uid = scope.claim_with(Some("anna"), &wanted).await?;

        let given = given(&scope, CONFIG_NAMESPACE, &uid).await?;
        for (property, value) in [
            ("operation", "provision"),
            ("contract", "1"),
            ("username", "anna"),
            ("size", "1572864000"),
            ("size-gi", "2"),
            ("pvc-name", "data"),
            ("pvc-namespace", &scope.namespace),
            ("access-modes", "ReadWriteOnce,ReadOnlyMany"),
            ("volume-mode", "Filesystem"),
            ("mount-options", "ro,noatime"),
            ("reclaim-policy", "Retain"),
            ("service-account", MAKER),
            ("tier", "with blanks, \"quotes\" and $signs"),
            ("password", "swordfish-5309"),
            ("node-name", ""),
            ("topology", "{}"),
        ] {
            assert_eq!(given.file(property), value, "file {property}");
            let variable = property.to_uppercase().replace('-', "_");
            let found = given.environment.get(&variable).map(String::as_str);
            assert_eq!(found, Some(value), "variable {variable}");
        }
        assert!(
            given
                .file("groups")
                .split(',')
                .any(|group| group == "system:authenticated")
        );
        assert!(
            given.file("service-token").split('.').count() == 3,
            "a token of its own"
        );
        assert_eq!(given.request["access-modes"], json!(["ReadWriteOnce", "ReadOnlyMany"]));
        assert_eq!(
            given.request["parameters"]["tier"],
            "with blanks, \"quotes\" and $signs"
        );

        let public = json!([given.pod, given.request]).to_string();
        for hidden in ["swordfish-5309", given.file("service-token")] {
            assert!(!public.contains(hidden), "a secret is in the Pod or the request");
        }
        let secrets: Api<Secret> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
        let volumes = given.pod.spec.clone().and_then(|spec| spec.volumes).unwrap_or_default();
        let of_pod = volumes
            .iter()
            .find_map(|volume| volume.secret.as_ref()?.secret_name.clone());
        let owner = secrets
            .get(&of_pod.context("no Secret")?)
            .await?
            .metadata
            .owner_references;
        assert_eq!(owner.context("no owner")?[0].uid, given.pod.uid().unwrap_or_default());
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await?;
        scope.kubectl(["-n", CONFIG_NAMESPACE, "delete", "secret", &secret])?;
        Ok(())
    });
}

#[test]
fn a_provisioning_pod_has_no_privilege_and_no_way_to_the_node() {
    in_namespace("skeleton", async |scope| {
        let provisioner = scope.provisioner().printing().on_provision("sleep 1000");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        let spec = scope.runs("provision", &uid).await?.spec.context("no spec")?;
        assert_eq!(spec.automount_service_account_token, Some(false));
        assert_eq!(spec.host_network, None);
        assert_eq!(spec.host_pid, None);
        let container = spec.containers[0]
            .security_context
            .clone()
            .context("no security context")?;
        assert_eq!(container.allow_privilege_escalation, Some(false));
        assert_ne!(container.privileged, Some(true));
        assert_eq!(container.read_only_root_filesystem, Some(true));
        assert_eq!(
            container.capabilities.and_then(|all| all.drop),
            Some(vec!["ALL".to_owned()])
        );
        let volumes = json!(spec.volumes).to_string();
        assert!(!volumes.contains("hostPath"), "{volumes}");
        let token = scope.exec_in_run("provision", &uid, ["ls", "/var/run/secrets"]);
        assert!(token.is_err(), "there is a token: {token:?}");
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn with_wait_for_first_consumer_the_selected_node_and_its_topology_reach_the_image() {
    in_namespace("topology", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("volume-binding-mode", "WaitForFirstConsumer")
            .on_provision("sleep 1000");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        let nodes: Api<Node> = Api::all(scope.client.clone());
        let node = nodes.list_metadata(&ListParams::default()).await?.items;
        let node = node.last().map(ResourceExt::name_any).context("no node")?;
        let mut user = user_of("user", "data", "true");
        user["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        scope.apply(&user.to_string())?;
        let given = given(&scope, CONFIG_NAMESPACE, &uid).await?;
        assert_eq!(given.file("node-name"), node);
        let topology: Value = serde_json::from_str(given.file("topology"))?;
        assert_eq!(topology["kubernetes.io/hostname"], json!(node));
        assert_eq!(given.request["topology"], topology);
        scope.delete("pod/user")?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn a_waiting_claim_costs_nothing_until_a_pod_wants_it() {
    in_namespace("waiting", async |scope| {
        let provisioner = scope
            .provisioner()
            .printing()
            .key("volume-binding-mode", "WaitForFirstConsumer");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.event("data", "waiting for first consumer").await?;
        let claims: Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> = scope.api();
        let seen = claims.get("data").await?;
        assert!(
            !seen.finalizers().iter().any(|name| name.starts_with("mooring.dev/")),
            "{seen:?}"
        );
        scope.nothing_left(&uid).await
    });
}

#[test]
fn an_image_makes_its_volume_by_pv_create_with_a_token_of_its_own() {
    in_namespace("pv-create", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("service-account-name", MAKER)
            .key("mount-options", "noatime")
            .on_provision("pv create --option client=sshfs --option source=nobody@192.0.2.1:/x");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "3Gi").await?;
        scope.claim_bound("data").await?;
        let spec = scope
            .provisioned(&uid)
            .await?
            .context("no volume")?
            .spec
            .context("no spec")?;
        let options = spec
            .flex_volume
            .and_then(|source| source.options)
            .context("no options")?;
        assert_eq!(options["client"], "sshfs");
        assert_eq!(options["mount-options"], "noatime");
        assert_eq!(spec.capacity.context("no capacity")?["storage"].0, "3Gi");
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn an_image_without_any_right_prints_its_volume_and_mooring_makes_it() {
    in_namespace("printed", async |scope| {
        let provisioner = scope.provisioner().printing().key("mount-options", "noatime");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "3Gi").await?;
        scope.claim_bound("data").await?;
        let spec = scope
            .provisioned(&uid)
            .await?
            .context("no volume")?
            .spec
            .context("no spec")?;
        let options = spec
            .flex_volume
            .and_then(|source| source.options)
            .context("no options")?;
        assert_eq!(options["source"], "nobody@192.0.2.1:/x");
        assert_eq!(options["mount-options"], "noatime");
        assert_eq!(spec.storage_class_name.as_deref(), Some(provisioner.class.as_str()));
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn options_that_can_t_be_read_are_reported_and_make_no_volume() {
    in_namespace("misprinted", async |scope| {
        let provisioner = scope
            .provisioner()
            .printing()
            .on_provision("echo 'all is well' >/dev/termination-log");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.event("data", "provisioning failed").await?;
        assert!(scope.provisioned(&uid).await?.is_none());

        // The next attempt uses what the image prints then.
        provisioner.printing().apply().await?;
        scope.claim_bound("data").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn a_copy_of_a_class_under_another_name_works_by_its_parameters() {
    in_namespace("copy", async |scope| {
        let provisioner = scope.provisioner().printing();
        provisioner.apply().await?;
        let classes: Api<StorageClass> = Api::all(scope.client.clone());
        let class = classes.get(&provisioner.class).await?;
        let copy = format!("{}-copy", scope.namespace);
        let mut parameters = class.parameters.clone().unwrap_or_default();
        parameters.insert("tier".to_owned(), "gold".to_owned());
        scope.apply_anywhere(
            &json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                "metadata": {"name": copy, "labels": {"testbed.mooring.dev/namespace": scope.namespace}},
                "provisioner": class.provisioner, "parameters": parameters,
            })
            .to_string(),
        )?;
        provisioner
            .clone()
            .on_provision("pv options client=sshfs source=nobody@192.0.2.1:/\"$TIER/$STORAGE_CLASS\"")
            .apply()
            .await?;
        let uid = scope.claim("data", &copy, "1Gi").await?;
        scope.claim_bound("data").await?;
        let spec = scope
            .provisioned(&uid)
            .await?
            .context("no volume")?
            .spec
            .context("no spec")?;
        let options = spec
            .flex_volume
            .and_then(|source| source.options)
            .context("no options")?;
        assert_eq!(options["source"], format!("nobody@192.0.2.1:/gold/{copy}"));
        let configs: Api<ConfigMap> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
        assert!(configs.get_opt(&provisioner.name).await?.is_some());
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}
