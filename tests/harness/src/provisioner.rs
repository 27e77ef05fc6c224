//! Provisioners and claims of a test: a ConfigMap in the tests' namespace for ConfigMaps, with the test's scripts.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Event, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ListParams, ResourceExt};
use kube::runtime::wait::await_condition;
use kube::{Api, Resource};
use mooring_contract::names::{NAMESPACE, PROVISIONER, annotations, labels};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::scope::{Scope, blocking};
use super::waits::wait_until;
use mooring_testbed::cluster;
use mooring_testbed::layout::Layout;
use mooring_testbed::manifests::example;

pub use super::names::CONFIG_NAMESPACE;

/// Service account there that an image may use to create its own volumes.
pub const MAKER: &str = "maker";

/// The image that runs the ConfigMap's own script (tests/images/scripted).
pub const SCRIPTED: &str = concat!("mooring.dev/testbed-scripted:", env!("CARGO_PKG_VERSION"));

/// Label of objects outside a test's namespace: the namespace of the test. [`Scope`] removes them when the test is
/// over.
pub const TEST_LABEL: &str = "testbed.mooring.dev/namespace";

/// Longest wait for one step of the controller, which may have a provisioning Pod start on a busy node.
const LIMIT: Duration = Duration::from_mins(3);

/// Longest until the API shows that a container has ended.
const END_LIMIT: Duration = Duration::from_mins(1);

/// How long to watch an object again after the limit, where the machine is busy.
const LOOK: Duration = Duration::from_secs(10);

/// A provisioner ConfigMap, and its class, which has the same name unless changed.
#[derive(Clone)]
pub struct Provisioner {
    scope: Scope,
    /// Name of the ConfigMap.
    pub name: String,
    /// Name of its class.
    pub class: String,
    /// Its keys.
    pub data: BTreeMap<String, String>,
}

impl Provisioner {
    #[must_use]
    pub fn key(mut self, key: &str, value: impl Into<String>) -> Self {
        self.data.insert(key.to_owned(), value.into());
        self
    }

    /// With the keys of the ConfigMap of an example in `configmaps/examples`.
    pub fn example(self, file: &str) -> Result<Self> {
        let documents = example(file)?;
        let config_map = documents.iter().find(|document| document["kind"] == "ConfigMap");
        let data = config_map.and_then(|config_map| config_map["data"].as_object());
        let data = data.with_context(|| format!("{file} has no ConfigMap"))?;
        Ok(data.iter().fold(self, |provisioner, (key, value)| {
            provisioner.key(key, value.as_str().unwrap_or_default())
        }))
    }

    /// With this script for operation `provision`.
    #[must_use]
    pub fn on_provision(self, script: &str) -> Self {
        self.key("provision-script", script)
    }

    /// With this script for operation `delete`; without one, deletion is done at once.
    #[must_use]
    pub fn on_delete(self, script: &str) -> Self {
        self.key("delete-script", script)
    }

    /// With volumes that are never mounted, described by what the image prints.
    #[must_use]
    pub fn printing(self) -> Self {
        self.key("volume-source", "flexVolume")
            .on_provision("pv options client=sshfs source=nobody@192.0.2.1:/x")
    }

    pub fn write(&self) -> Result<()> {
        let manifest = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": self.name, "namespace": CONFIG_NAMESPACE,
                "labels": {
                    labels::TYPE: labels::TYPE_PROVISIONER_CONFIG,
                    labels::STORAGE_CLASS: self.class,
                    TEST_LABEL: self.scope.namespace,
                },
            },
            "data": self.data,
        });
        self.scope.apply_anywhere(&manifest.to_string())
    }

    /// Creates another class like that of the ConfigMap, whose volumes have this type of file system; returns its
    /// name.
    pub fn class_of(&self, fs_type: &str) -> Result<String> {
        let name = format!("{}-{fs_type}", self.name);
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": PROVISIONER,
            "metadata": {"name": name, "labels": {TEST_LABEL: self.scope.namespace}},
            "volumeBindingMode": self.data.get("volume-binding-mode"),
            "allowVolumeExpansion": self.data.get("allow-volume-expansion").map(|value| value == "true"),
            "parameters": {
                "mooring.dev/config-namespace": CONFIG_NAMESPACE, "mooring.dev/config-name": self.name,
                "fs-type": fs_type,
            },
        });
        self.scope.apply_anywhere(&class.to_string())?;
        Ok(name)
    }

    /// Writes the ConfigMap, and waits until this version of it is in force and its class exists.
    pub async fn apply(&self) -> Result<()> {
        self.write()?;
        let in_force = |config_map: &ConfigMap| {
            let last = config_map.annotations().get(annotations::LAST_GOOD);
            let last: Option<Value> = last.and_then(|text| serde_json::from_str(text).ok());
            let data: BTreeMap<String, String> = config_map.data.clone().unwrap_or_default();
            last.is_some_and(|last| last["data"] == json!(data)) && said(config_map).starts_with("in force")
        };
        let api: Api<ConfigMap> = Api::namespaced(self.scope.client.clone(), CONFIG_NAMESPACE);
        until(&api, &self.name, "to be in force", self.scope.limit(LIMIT), |seen| {
            seen.is_some_and(in_force)
        })
        .await?;
        let classes: Api<StorageClass> = Api::all(self.scope.client.clone());
        until(
            &classes,
            &self.class,
            "to be made",
            self.scope.limit(LIMIT),
            |seen: Option<&StorageClass>| seen.is_some(),
        )
        .await?;
        Ok(())
    }

    /// Waits until the ConfigMap's status contains this text; returns the status.
    pub async fn status(&self, text: &str) -> Result<String> {
        let api: Api<ConfigMap> = Api::namespaced(self.scope.client.clone(), CONFIG_NAMESPACE);
        let what = format!("to say {text:?}");
        let found = until(
            &api,
            &self.name,
            &what,
            self.scope.limit(LIMIT),
            |seen: Option<&ConfigMap>| seen.is_some_and(|config_map| said(config_map).contains(text)),
        )
        .await?;
        Ok(found.as_ref().map(said).unwrap_or_default().to_owned())
    }

    pub fn delete(&self) -> Result<()> {
        let object = format!("configmap/{}", self.name);
        self.scope.kubectl(["-n", CONFIG_NAMESPACE, "delete", &object])?;
        Ok(())
    }
}

fn said(config_map: &ConfigMap) -> &str {
    config_map
        .annotations()
        .get(annotations::STATUS)
        .map_or("", String::as_str)
}

/// Watches the object of this name (none if it does not exist) until it is as wanted; returns it. It is as patient as
/// [`wait_until`], and says how the object was last seen.
pub async fn until<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    limit: Duration,
    wanted: impl Fn(Option<&K>) -> bool,
) -> Result<Option<K>>
where
    K: Resource + Clone + std::fmt::Debug + Send + Serialize + DeserializeOwned + 'static,
    K::DynamicType: Default,
{
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let last = Mutex::new("it was not seen".to_owned());
    let looked = |seen: Option<&K>| {
        *last.lock().unwrap_or_else(PoisonError::into_inner) = shown(seen);
        wanted(seen)
    };
    // One watch for the whole limit, which misses no state.
    let mut look = limit;
    let found = wait_until(&format!("{kind} {name} {what}"), limit, async || {
        let watch = await_condition(api.clone(), name, &looked);
        let Ok(seen) = tokio::time::timeout(std::mem::replace(&mut look, LOOK), watch).await else {
            return Ok(None);
        };
        seen.with_context(|| format!("failed to watch {kind} {name}")).map(Some)
    })
    .await;
    found.map_err(|error| anyhow!("{error:#}; {}", last.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// How an object was seen.
fn shown<K: Serialize>(seen: Option<&K>) -> String {
    let mut seen = json!(seen);
    if seen.is_null() {
        return "it did not exist".to_owned();
    }
    if let Some(metadata) = seen["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    format!("last seen as {seen}")
}

impl Scope {
    /// A provisioner of the test's own, not written yet. It provisions nothing before it has a script.
    pub fn provisioner(&self) -> Provisioner {
        self.provisioner_named("")
    }

    /// Another provisioner of the test's own, with this suffix in its name.
    pub fn provisioner_named(&self, end: &str) -> Provisioner {
        let name = format!("{}{end}", self.namespace);
        Provisioner {
            scope: self.clone(),
            class: name.clone(),
            name,
            data: [("plugin-name", PROVISIONER), ("image", SCRIPTED)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        }
    }

    /// Creates a `VolumeAttributesClass` that is deleted with the test; returns its name, which no other test uses.
    pub fn attributes_class(&self, end: &str, driver: &str, parameters: &Value) -> Result<String> {
        let name = format!("{}-{end}", self.namespace);
        self.apply_anywhere(
            &json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
                "metadata": {"name": name, "labels": {TEST_LABEL: self.namespace}},
                "driverName": driver, "parameters": parameters,
            })
            .to_string(),
        )?;
        Ok(name)
    }

    /// Creates a claim; returns its uid.
    pub async fn claim(&self, name: &str, class: &str, size: &str) -> Result<String> {
        self.claim_with(None, &claim(name, class, size)).await
    }

    /// Creates the given claim as a user; returns its uid.
    pub async fn claim_with(&self, user: Option<&str>, claim: &Value) -> Result<String> {
        self.apply_as(user, &claim.to_string())?;
        let claims: Api<PersistentVolumeClaim> = self.api();
        let name = claim["metadata"]["name"].as_str().unwrap_or_default();
        let made = claims
            .get(name)
            .await
            .with_context(|| format!("failed to read the claim {name}"))?;
        made.uid().context("a claim without a uid")
    }

    /// Waits until a claim is as wanted (none if it is gone).
    pub async fn claim_until(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(Option<&PersistentVolumeClaim>) -> bool,
    ) -> Result<()> {
        until(&self.api(), name, what, self.limit(LIMIT), wanted).await?;
        Ok(())
    }

    /// Deletes a claim and waits until it is gone.
    pub async fn claim_gone(&self, name: &str) -> Result<()> {
        self.delete(&format!("persistentvolumeclaim/{name}"))?;
        self.claim_until(name, "to be gone", |seen| seen.is_none()).await
    }

    /// Waits until the Pod of an operation (`provision` or `delete`) on a claim's volume is as wanted; returns it.
    pub async fn run_until(
        &self,
        operation: &str,
        uid: &str,
        what: &str,
        wanted: impl Fn(&Pod) -> bool,
    ) -> Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), CONFIG_NAMESPACE);
        let name = format!("{operation}-{uid}");
        let seen = until(&pods, &name, what, self.limit(LIMIT), |seen: Option<&Pod>| {
            seen.is_some_and(&wanted)
        })
        .await?;
        seen.with_context(|| format!("Pod {name} was seen and then not"))
    }

    /// Waits until the Pod of an operation runs.
    pub async fn runs(&self, operation: &str, uid: &str) -> Result<Pod> {
        self.run_until(operation, uid, "to run", |pod| {
            let status = pod.status.as_ref();
            status.and_then(|status| status.phase.as_deref()) == Some("Running")
        })
        .await
    }

    /// Runs a command in a provisioning Pod; returns what it printed.
    pub fn exec_in_run<const N: usize>(&self, operation: &str, uid: &str, args: [&str; N]) -> Result<String> {
        self.elsewhere(CONFIG_NAMESPACE)
            .exec(&format!("{operation}-{uid}"), args)
    }

    /// Lets a run go on that waits for the file `/tmp/go`. The run may end before the command that makes the file: the
    /// command is then ended with its container, in whichever way, and has done its work.
    pub fn let_run_go_on(&self, operation: &str, uid: &str) -> Result<()> {
        self.let_pod_go_on(CONFIG_NAMESPACE, &format!("{operation}-{uid}"))
    }

    /// The same for a run whose ConfigMap is in another namespace.
    pub fn let_pod_go_on(&self, namespace: &str, pod: &str) -> Result<()> {
        let there = self.elsewhere(namespace);
        let pods: Api<Pod> = there.api();
        let uid = blocking(async { Ok(pods.get(pod).await?.uid()) })?;
        let Err(error) = there.exec(pod, ["touch", "/tmp/go"]) else {
            return Ok(());
        };
        let what = format!("Pod {pod} to end");
        let ended = wait_until(&what, self.limit(END_LIMIT), async || {
            let now = pods.get_opt(pod).await?.filter(|now| now.uid() == uid);
            Ok(now.is_none_or(|now| has_ended(&now)).then_some(()))
        });
        blocking(ended).map_err(|_| error)
    }

    pub async fn provisioned(&self, uid: &str) -> Result<Option<PersistentVolume>> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let name = format!("pvc-{uid}");
        volumes
            .get_opt(&name)
            .await
            .with_context(|| format!("failed to read the PersistentVolume {name}"))
    }

    /// Waits until a claim's volume is as wanted (none if it is gone).
    pub async fn provisioned_until(
        &self,
        uid: &str,
        what: &str,
        wanted: impl Fn(Option<&PersistentVolume>) -> bool,
    ) -> Result<Option<PersistentVolume>> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        until(&volumes, &format!("pvc-{uid}"), what, self.limit(LIMIT), wanted).await
    }

    /// Name of the controller's Pod that leads at present.
    pub fn leader(&self) -> Result<String> {
        let holder = "jsonpath={.spec.holderIdentity}";
        self.kubectl(["-n", NAMESPACE, "get", "lease", "flex-provisioner", "-o", holder])
    }

    /// The metrics of the controller that leads at present, in Prometheus' format.
    pub fn metrics(&self) -> Result<String> {
        let path = format!(
            "/api/v1/namespaces/{NAMESPACE}/pods/{}:8080/proxy/metrics",
            self.leader()?
        );
        self.kubectl(["get", "--raw", &path])
    }

    /// Waits for an Event whose message contains this text on an object of any namespace. Events on objects without a
    /// namespace are in `default`.
    pub async fn event_in(&self, namespace: &str, object: &str, text: &str) -> Result<Event> {
        self.elsewhere(namespace).event(object, text).await
    }

    /// Waits until nothing is left of what was created for a claim: no volume, and no Pod or Secret in any namespace.
    pub async fn nothing_left(&self, uid: &str) -> Result<()> {
        self.provisioned_until(uid, "to be gone", |seen| seen.is_none()).await?;
        wait_until(
            &format!("nothing to be left of claim {uid}"),
            self.limit(LIMIT),
            async || {
                let left = self.left_of(&[uid.to_owned()]).await?;
                if left.is_empty() {
                    return Ok(Some(()));
                }
                bail!("there are {}", left.join(", "))
            },
        )
        .await
    }

    /// Waits until nothing has a run of this operation: its Pod is gone, or its worker waits for another.
    pub async fn no_run_left(&self, operation: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), CONFIG_NAMESPACE);
        let of_it = ListParams::default().labels(&format!("{}={operation}", labels::OPERATION));
        wait_until(
            &format!("the runs of {operation} to be gone"),
            self.limit(LIMIT),
            async || Ok(pods.list_metadata(&of_it).await?.items.is_empty().then_some(())),
        )
        .await
    }

    /// Provisioning Pods and Secrets of all namespaces whose names contain one of these claim uids.
    pub async fn left_of(&self, uids: &[String]) -> Result<Vec<String>> {
        let ours = ListParams::default().labels(&format!("{}={}", labels::COMPONENT, labels::COMPONENT_PROVISIONING));
        let pods = Api::<Pod>::all(self.client.clone()).list_metadata(&ours).await;
        let secrets = Api::<Secret>::all(self.client.clone()).list_metadata(&ours).await;
        let pods = pods.context("failed to list Pods")?.items;
        let secrets = secrets.context("failed to list Secrets")?.items;
        let all = pods
            .iter()
            .map(|pod| ("Pod", pod.name_any()))
            .chain(secrets.iter().map(|secret| ("Secret", secret.name_any())));
        Ok(all
            .filter(|(_, name)| uids.iter().any(|uid| name.contains(uid.as_str())))
            .map(|(kind, name)| format!("{kind} {name}"))
            .collect())
    }

    /// Uids of the claims in the namespace.
    pub(super) async fn claims(&self) -> Result<Vec<String>> {
        let claims: Api<PersistentVolumeClaim> = self.api();
        let all = claims.list_metadata(&ListParams::default()).await;
        let all = all.context("failed to list claims")?.items;
        Ok(all.iter().filter_map(ResourceExt::uid).collect())
    }

    /// Removes what a test created outside its namespace, and waits until Mooring has removed its classes.
    pub(super) async fn remove_outside(&self) -> Result<()> {
        let selector = format!("{TEST_LABEL}={}", self.namespace);
        let running = cluster::running(&Layout::from_env()?)?;
        let release = running.map(|cluster| cluster.releases.control_plane);
        let kinds = [
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "storageclasses",
            "clusterroles",
            "clusterrolebindings",
            "namespaces",
        ];
        let kinds = kinds.iter().chain(release.unwrap_or_default().later_kinds());
        let kinds = kinds.copied().collect::<Vec<_>>().join(",");
        for place in [
            &["-n", CONFIG_NAMESPACE, "delete", "configmaps,secrets"][..],
            &["delete", &kinds],
        ] {
            let mut delete = place.to_vec();
            delete.extend(["--ignore-not-found", "-l", &selector]);
            self.kubectl_wait(delete).await?;
        }
        self.remove_snapshots().await?;
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        wait_until("the test's classes to be given up", self.limit(LIMIT), async || {
            let all = classes.list_metadata(&ListParams::default()).await?.items;
            let left = all.iter().any(|class| class.name_any().starts_with(&self.namespace));
            Ok((!left).then_some(()))
        })
        .await
    }
}

/// Whether one of its containers has ended.
fn has_ended(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| &status.container_statuses);
    statuses
        .flatten()
        .any(|container| container.state.as_ref().is_some_and(|state| state.terminated.is_some()))
}

/// A claim for a file system that one node may use.
pub fn claim(name: &str, class: &str, size: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
        },
    })
}

/// The options of a volume of Mooring's, whichever driver it uses.
pub fn options_of(volume: &PersistentVolume) -> Result<BTreeMap<String, String>> {
    let spec = volume.spec.as_ref().context("no spec")?;
    let flex = spec.flex_volume.as_ref().and_then(|flex| flex.options.clone());
    let csi = || spec.csi.as_ref().and_then(|csi| csi.volume_attributes.clone());
    flex.or_else(csi).context("no options")
}

/// A Pod that mounts a claim at /data and runs a shell command.
pub fn user_of(name: &str, claim: &str, command: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "containers": [{
                "name": "main", "image": "busybox:1", "command": ["sh", "-euc", command],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}
