//! Volumes that an administrator created by hand: `PersistentVolumes`, claims for them, and Pods that use them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Preconditions};
use mooring_contract::names::{
    CSI_DRIVER, FLEX_DRIVER, FLEX_DRIVER_DIR, MOUNTER_CONFIG, NAMESPACE, PROVISIONER, SETTINGS_CONFIG, annotations,
};
use serde_json::{Value, json};

use super::scope::Scope;
use super::waits::wait_until;
use mooring_testbed::command::{output, output_with_input};

/// Longest wait until a kubelet refuses a Pod.
const REFUSED_LIMIT: Duration = Duration::from_mins(1);

/// A Pod that its kubelet leaves alone, so that a test can act as the kubelet.
#[derive(Debug, Clone)]
pub struct RefusedPod {
    name: String,
    namespace: String,
    /// Where it has its volumes of our driver.
    pub volumes: String,
}

impl RefusedPod {
    /// Options of a volume, with those that a kubelet adds for this Pod.
    pub fn options(&self, options: &Value) -> Value {
        let mut options = options.clone();
        options["kubernetes.io/pod.name"] = json!(self.name);
        options["kubernetes.io/pod.namespace"] = json!(self.namespace);
        options
    }
}

/// Label of `PersistentVolumes` that a test created: its namespace.
const NAMESPACE_LABEL: &str = "testbed.mooring.dev/namespace";

impl Scope {
    /// Creates a PersistentVolume with these options (`client`, `source`, …; key `secret` names the Secret in this
    /// namespace) and a claim named `name` that is bound to it. Both are deleted with the namespace.
    pub fn volume(&self, name: &str, options: &Value) -> Result<()> {
        let (options, secret) = self.split_secret(options);
        let mut source = json!({"driver": FLEX_DRIVER, "options": options});
        if let Some(secret) = secret {
            source["secretRef"] = secret;
        }
        self.volume_from(name, json!({"flexVolume": source}))
    }

    /// [`Self::volume`] for CSI; `more` is merged into the spec of the PersistentVolume.
    pub fn csi_volume(&self, name: &str, options: &Value, more: &Value) -> Result<()> {
        let (options, secret) = self.split_secret(options);
        let mut source =
            json!({"driver": CSI_DRIVER, "volumeHandle": self.volume_name(name), "volumeAttributes": options});
        if let Some(secret) = secret {
            source["nodePublishSecretRef"] = secret;
        }
        let mut spec = json!({"csi": source});
        merge(&mut spec, more.clone());
        self.volume_from(name, spec)
    }

    /// Options without their `secret`, and the reference to that Secret.
    fn split_secret(&self, options: &Value) -> (Value, Option<Value>) {
        let mut options = options.clone();
        let secret = options.as_object_mut().and_then(|options| options.remove("secret"));
        let reference = secret.map(|secret| json!({"name": secret, "namespace": self.namespace}));
        (options, reference)
    }

    /// Creates a PersistentVolume with this merged into its spec, and a claim named `name` that is bound to it, with
    /// the same `volumeMode` and `accessModes`.
    fn volume_from(&self, name: &str, more: Value) -> Result<()> {
        let volume = self.volume_name(name);
        let size = json!({"storage": "64Mi"});
        let mut list = json!({"apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume, "labels": {NAMESPACE_LABEL: self.namespace}},
                "spec": {
                    "capacity": size,
                    "accessModes": ["ReadWriteMany"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": "",
                    "claimRef": {"namespace": self.namespace, "name": name},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": {
                    "accessModes": ["ReadWriteMany"],
                    "storageClassName": "",
                    "volumeName": volume,
                    "resources": {"requests": size},
                },
            },
        ]});
        let same = |key: &str| more.get(key).cloned().unwrap_or_default();
        let of_both = json!({"volumeMode": same("volumeMode"), "accessModes": same("accessModes")});
        merge(&mut list["items"][1]["spec"], of_both);
        merge(&mut list["items"][0]["spec"], more);
        self.apply(&list.to_string())
    }

    /// The name of the PersistentVolume behind a claim of [`Scope::volume`] or [`Scope::csi_volume`].
    pub fn volume_name(&self, claim: &str) -> String {
        format!("{}-{claim}", self.namespace)
    }

    /// Starts a Pod on a node that has a claim at `/data` and does nothing; `more` is merged into its spec.
    pub fn pod(&self, name: &str, node: &str, claim: &str, more: Value) -> Result<()> {
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main",
                    "image": "busybox:1",
                    "command": ["sleep", "1000000"],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            },
        });
        merge(&mut pod["spec"], more);
        self.apply(&pod.to_string())
    }

    /// Creates a Pod with these claims on a node of the testbed's own cluster, whose kubelet refuses to run it, and makes
    /// the directory of the Pod's volumes of our driver. The API shows the Pod, so the mounter grants it its claims'
    /// volumes; and the kubelet mounts none of them.
    pub async fn refused_pod(&self, name: &str, index: u8, claims: &[&str]) -> Result<RefusedPod> {
        let volume = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        let volumes: Vec<_> = claims.iter().map(volume).collect();
        // The kubelet sees that the Pod does not fit the node.
        let selector = json!({"testbed.mooring.dev/nowhere": "true"});
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": format!("node-{index}"),
                "nodeSelector": selector,
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "busybox:1"}],
                "volumes": volumes,
            },
        });
        self.apply(&pod.to_string())?;
        let pods: Api<Pod> = self.api();
        let uid = wait_until(
            &format!("the kubelet to refuse Pod {name}"),
            REFUSED_LIMIT,
            async || {
                let pod = pods.get(name).await?;
                let phase = pod.status.and_then(|status| status.phase);
                Ok(pod.metadata.uid.filter(|_| phase.as_deref() == Some("Failed")))
            },
        )
        .await?;
        let volumes = format!("/var/lib/kubelet/pods/{uid}/volumes/{FLEX_DRIVER_DIR}");
        self.on_node(index, &format!("mkdir -p {volumes}"))?;
        Ok(RefusedPod {
            name: name.to_owned(),
            namespace: self.namespace.clone(),
            volumes,
        })
    }

    /// Has the kubelet of node 1 ask for these volumes, each of a PersistentVolume and for a Pod of its own, and waits
    /// until an Event has the words beside each. Nothing may be mounted. A `provisioned` PersistentVolume looks as one
    /// that was made for a claim.
    pub async fn all_refused(&self, volumes: &[(Value, &str)], provisioned: bool) -> Result<()> {
        let names: Vec<_> = (0..volumes.len()).map(|number| format!("refused-{number}")).collect();
        for (name, (options, _)) in names.iter().zip(volumes) {
            self.volume(name, options)?;
            if provisioned {
                let mark = format!("{}={PROVISIONER}", annotations::PROVISIONED_BY);
                self.kubectl(["annotate", "pv", &self.volume_name(name), &mark])?;
            }
            self.pod(name, "node-1", name, Value::Null)?;
        }
        for (name, (options, words)) in names.iter().zip(volumes) {
            let told = self.event(name, words).await;
            told.with_context(|| options.to_string())?;
        }
        let mounts = self.mounts_on(1)?;
        ensure!(mounts.is_empty(), "{mounts:?}");
        for name in &names {
            self.delete(&format!("pod/{name}"))?;
        }
        for name in &names {
            self.pod_gone(name).await?;
            self.delete(&format!("persistentvolumeclaim/{name}"))?;
            self.kubectl(["delete", "pv", &self.volume_name(name)])?;
        }
        Ok(())
    }

    /// Sets a key of the mounters' ConfigMap, until the test ends.
    pub fn mounter_config(&self, key: &str, value: &str) -> Result<()> {
        self.apply_mounter_config(&json!({key: value}))
    }

    /// Sets this test's keys in the mounters' ConfigMap. Each test is a field manager of its own, so tests share the
    /// one ConfigMap without removing each other's keys.
    pub fn apply_mounter_config(&self, data: &Value) -> Result<()> {
        self.apply_config(MOUNTER_CONFIG, data)
    }

    /// Sets keys of the administrator's settings, until the test ends.
    pub fn settings(&self, data: &Value) -> Result<()> {
        self.apply_config(SETTINGS_CONFIG, data)
    }

    fn apply_config(&self, name: &str, data: &Value) -> Result<()> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "data": data,
        });
        let manager = format!("--field-manager={}", self.namespace);
        let mut apply = self
            .target
            .kubectl(["apply", "--server-side", "--force-conflicts", &manager, "-f", "-"]);
        output_with_input(&mut apply, config.to_string().as_bytes())?;
        Ok(())
    }

    /// Removes what tests created by hand outside their namespaces.
    pub(super) async fn clean_volumes(&self) -> Result<()> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let ours = ListParams::default().labels(&format!("{NAMESPACE_LABEL}={}", self.namespace));
        volumes.delete_collection(&DeleteParams::default(), &ours).await?;
        let configs: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        for name in [MOUNTER_CONFIG, SETTINGS_CONFIG] {
            let config = configs.get_opt(name).await?;
            let managers = config
                .and_then(|config| config.metadata.managed_fields)
                .unwrap_or_default();
            if managers
                .iter()
                .any(|one| one.manager.as_deref() == Some(&self.namespace))
            {
                self.apply_config(name, &json!({}))?;
            }
        }
        remove_if_empty(&configs).await
    }

    /// How much of a claim's volume is used according to a node's kubelet, in bytes; none if it does not report it.
    pub fn usage(&self, node: &str, claim: &str) -> Result<Option<u64>> {
        let path = format!("/api/v1/nodes/{node}/proxy/stats/summary");
        let summary: Value = serde_json::from_str(&output(&mut self.target.kubectl(["get", "--raw", &path]))?)?;
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let volumes = list(&summary["pods"]).into_iter().flat_map(|pod| list(&pod["volume"]));
        let mut found = volumes.filter(|volume| {
            volume["pvcRef"]["name"] == claim && volume["pvcRef"]["namespace"] == self.namespace.as_str()
        });
        Ok(found.next().and_then(|volume| volume["usedBytes"].as_u64()))
    }
}

/// Removes the mounters' ConfigMap unless another test has a key in it.
async fn remove_if_empty(configs: &Api<ConfigMap>) -> Result<()> {
    let Some(config) = configs.get_opt(MOUNTER_CONFIG).await? else {
        return Ok(());
    };
    if config.data.is_some_and(|data| !data.is_empty()) {
        return Ok(());
    }
    let unchanged = DeleteParams::default().preconditions(Preconditions {
        resource_version: config.metadata.resource_version,
        uid: None,
    });
    match configs.delete(MOUNTER_CONFIG, &unchanged).await {
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
        other => Ok(other.map(|_| ())?),
    }
}

/// Merges one object into another.
fn merge(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (base, more) => *base = more,
    }
}
