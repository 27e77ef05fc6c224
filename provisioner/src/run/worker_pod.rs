//! A worker's Pod: how it is made, and given a run.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource, Pod, PodSpec, Secret, SecretKeySelector,
    Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::Patch;
use kube::{Client, ResourceExt};
use mooring_contract::names::{annotations, labels, paths};
use mooring_contract::property::{env_name, keys};
use mooring_contract::worker::{KEY_VARIABLE, PORT, SERVE};
use mooring_seal::new_key;
use secrecy::SecretString;
use serde_json::{Value, json};

use super::config_secret::ConfigSecret;
use super::error::RunError;
use super::order::Order;
use super::pod;
use super::release::{CONFIG_MAP, owner};
use super::worker::{PREFIX, Worker};
use crate::config::ProvisionerConfig;
use crate::process::call::{CHANGED, TAKEN, Tolerant as _};
use crate::process::objects::Objects;

/// Letters of the ConfigMap's name in that of a worker.
const NAME_LETTERS: usize = 40;

/// How long a worker that is stopped may take: it has nothing to put in order.
const GRACE_SECONDS: i64 = 1;

/// Key of its Secret.
const SECRET_KEY: &str = "worker-key";

/// A name for another worker.
pub fn new_name(config: &ProvisionerConfig, now: Timestamp) -> String {
    let letters: String = config.reference.name.chars().take(NAME_LETTERS).collect();
    let letters = letters.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    format!("{PREFIX}{letters}-{:x}", now.as_microsecond())
}

/// Makes a worker of this name, and the Secret without which it does not start.
pub async fn make(client: &Client, config: &ProvisionerConfig, node: Option<&str>, name: &str) -> Result<(), RunError> {
    let secret = ConfigSecret::read(client, config).await?;
    let wanted = build(config, node, secret.for_driver, name);
    let made = create(client, &config.reference.namespace, &wanted).await?;
    give_key(client, &made).await.map(drop)
}

/// Makes a worker that has this run from its beginning, so that no controller takes it for one that waits. It does not
/// start before [`key_of`] has given it its Secret.
pub async fn make_with(client: &Client, order: &Order<'_>) -> Result<Pod, RunError> {
    let config = order.config;
    let secret = ConfigSecret::read(client, config).await?;
    let name = new_name(config, Timestamp::now());
    let mut wanted = build(config, order.node, secret.for_driver, &name);
    wanted.labels_mut().extend(pod::run_labels(order));
    wanted.annotations_mut().extend(loan(order, 1));
    create(client, &config.reference.namespace, &wanted).await
}

async fn create(client: &Client, namespace: &str, wanted: &Pod) -> Result<Pod, RunError> {
    Ok(Objects::within(client, namespace).create(wanted).await?)
}

/// The key of a worker's connections, from its Secret; one that has none gets it.
pub async fn key_of(client: &Client, worker: &Worker) -> Result<SecretString, RunError> {
    let secrets: Objects<Secret> = Objects::within(client, worker.namespace());
    let name = secret_name(worker.pod());
    let Some(found) = secrets.read(&name).await? else {
        return give_key(client, worker.pod()).await;
    };
    let own = found.owner_references().iter().any(|owner| owner.uid == worker.uid());
    let key = found.data.filter(|_| own).and_then(|mut data| data.remove(SECRET_KEY));
    let key = key.and_then(|key| String::from_utf8(key.0).ok());
    key.map(SecretString::from)
        .ok_or(RunError::Taken { what: "Secret", name })
}

async fn give_key(client: &Client, pod: &Pod) -> Result<SecretString, RunError> {
    let secrets: Objects<Secret> = Objects::within(client, &pod.namespace().unwrap_or_default());
    let name = secret_name(pod);
    let key = new_key()?;
    let data = [(SECRET_KEY.to_owned(), ByteString(key.clone().into_bytes()))].into();
    let made = secrets.create(&pod::secret_named(&name, pod, data)).await;
    match made.unless(TAKEN)? {
        Some(_) => Ok(SecretString::from(key)),
        // Another controller was quicker: its key counts.
        None => Err(RunError::Changed(name)),
    }
}

fn secret_name(pod: &Pod) -> String {
    format!("{}-key", pod.name_any())
}

/// `node` is the only one that it may be on.
pub(super) fn build(config: &ProvisionerConfig, node: Option<&str>, backend_secret: bool, name: &str) -> Pod {
    let backend = pod::backend(config);
    let clients: Vec<_> = backend.iter().map(|given| given.volume.client.as_str()).collect();
    let empty = |name: &str, medium: Option<&str>| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: medium.map(str::to_owned),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    };
    // What a run is given holds secrets, which must not get to a disk.
    let mut volumes = vec![empty("run", Some("Memory")), empty("tmp", None)];
    volumes.extend(backend.iter().map(|given| given.mounted(config, backend_secret)));
    let mut mounts = vec![pod::mount("run", paths::RUN, false), pod::mount("tmp", "/tmp", false)];
    mounts.extend(backend.iter().map(pod::RunVolume::mount));
    let mut own_labels = pod::own_labels(config);
    own_labels.insert(labels::WORKER.to_owned(), "true".to_owned());
    let mut notes = pod::own_annotations(config);
    notes.insert(annotations::SAFE_TO_EVICT.to_owned(), "true".to_owned());
    let container = Container {
        name: "worker".to_owned(),
        env: Some(variables(name)),
        volume_mounts: Some(mounts),
        ports: Some(vec![ContainerPort {
            container_port: PORT.into(),
            ..ContainerPort::default()
        }]),
        ..pod::bare_container(config, backend.is_some())
    };
    Pod {
        metadata: ObjectMeta {
            namespace: Some(config.reference.namespace.clone()),
            labels: Some(own_labels),
            annotations: Some(notes),
            owner_references: owner(&config.reference.name, &config.uid),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![container],
            volumes: Some(volumes),
            affinity: pod::affinity(node, &[], &clients),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            ..pod::bare_spec(config, node)
        }),
        status: None,
    }
}

fn variables(pod: &str) -> Vec<EnvVar> {
    vec![
        EnvVar {
            name: env_name(keys::OPERATION),
            value: Some(SERVE.to_owned()),
            ..EnvVar::default()
        },
        EnvVar {
            name: KEY_VARIABLE.to_owned(),
            value_from: Some(EnvVarSource {
                secret_key_ref: Some(SecretKeySelector {
                    name: format!("{pod}-key"),
                    key: SECRET_KEY.to_owned(),
                    optional: None,
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        },
        pod::asks_of_workers(),
    ]
}

/// Writes on a worker's Pod that it has this run, if nothing about it has changed since it was seen.
///
/// For as long as it has the run, it belongs to the ConfigMap only if the run does, as a Pod of the run's own would:
/// what is under way goes on to its end although its ConfigMap is deleted.
pub(super) async fn lend(client: &Client, worker: &Worker, order: &Order<'_>) -> Result<Pod, RunError> {
    let mut patch = json!({"metadata": {
        "resourceVersion": worker.pod().metadata.resource_version,
        "labels": pod::run_labels(order),
        "annotations": loan(order, worker.number() + 1),
    }});
    if order.owner.is_none_or(|owner| owner.kind != CONFIG_MAP) {
        patch["metadata"]["ownerReferences"] = Value::Null;
    }
    let pods: Objects<Pod> = Objects::within(client, worker.namespace());
    let name = worker.name();
    match pods.patch(name, &Patch::Merge(patch)).await.unless(CHANGED) {
        Ok(lent) => lent.ok_or_else(|| RunError::Changed(name.to_owned())),
        Err(error) if error.is_refusal() => Err(RunError::NoLoan(error)),
        Err(error) => Err(error.into()),
    }
}

/// The annotations of a worker that has this run, with this number.
fn loan(order: &Order<'_>, number: u64) -> BTreeMap<String, String> {
    let timeout = order.config.timeout.as_secs().max(1);
    let mut notes = pod::run_annotations(order);
    notes.insert(annotations::RUNS.to_owned(), number.to_string());
    notes.insert(annotations::BEGUN.to_owned(), Timestamp::now().to_string());
    notes.insert(annotations::TIMEOUT.to_owned(), timeout.to_string());
    let owner = order.owner.map_or("", |owner| owner.uid);
    notes.insert(annotations::OWNER.to_owned(), owner.to_owned());
    notes.insert(annotations::CONFIG_UID.to_owned(), order.config.uid.clone());
    notes
}

/// What a worker is asked to carry out, within whole seconds.
pub(super) fn order(
    number: u64,
    timeout: Duration,
    properties: BTreeMap<String, String>,
    request: String,
) -> mooring_contract::worker::Order {
    mooring_contract::worker::Order {
        number,
        timeout: timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0),
        properties,
        request,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::PodSpec;
    use kube::api::Patch;
    use mooring_contract::operation::Operation;
    use mooring_contract::request::Request;
    use serde_json::{Value, json};

    use super::{Worker, build, new_name, order};
    use crate::config::ProvisionerConfig;
    use crate::operation::tests::config;
    use crate::run::identity::RunId;
    use crate::run::input_state::InputState;
    use crate::run::order::Order;
    use crate::run::pod::{self, Skeleton};
    use crate::run::properties::tests::silver;
    use crate::run::release::Release;
    use crate::run::worker_set::WorkerSet;

    /// A worker of a ConfigMap that runs, with these labels and annotations beside its own.
    pub(crate) fn worker(config: &ProvisionerConfig, name: &str, labels: &Value, annotations: &Value) -> Worker {
        worker_on(None, config, name, labels, annotations)
    }

    /// The same that may be on this node only.
    pub(crate) fn worker_on(
        node: Option<&str>,
        config: &ProvisionerConfig,
        name: &str,
        labels: &Value,
        annotations: &Value,
    ) -> Worker {
        let mut pod = json!(build(config, node, false, name));
        pod["metadata"]["uid"] = format!("uid-of-{name}").into();
        for (part, more) in [("labels", labels), ("annotations", annotations)] {
            for (key, value) in more.as_object().into_iter().flatten() {
                pod["metadata"][part][key] = value.clone();
            }
        }
        pod["status"] = json!({"phase": "Running", "podIP": "10.0.0.7"});
        Worker::of(&Arc::new(serde_json::from_value(pod).unwrap())).unwrap()
    }

    /// The labels of a worker that has a run.
    pub(crate) fn busy() -> Value {
        json!({"mooring.dev/operation": "attach", "mooring.dev/claim-uid": "u1", "mooring.dev/attempt": "1"})
    }

    fn order_of<'a>(
        id: &'a RunId,
        request: &'a Request,
        config: &'a ProvisionerConfig,
        node: Option<&'a str>,
    ) -> Order<'a> {
        Order {
            id,
            request,
            config,
            attempt: 2,
            state: &InputState::Unknown,
            node,
            allowed: &[],
            owner: None,
            seals: false,
            backups_read_only: false,
        }
    }

    #[test]
    fn a_worker_is_made_of_its_configmap_and_goes_with_it() {
        let config = config(&[("volume-source", "csi"), ("secret-name", "s")]);
        let name = new_name(&config, "2026-11-26T00:00:00Z".parse().unwrap());
        assert!(name.starts_with("worker-custom-isci-provisioner-"), "{name}");
        let pod = json!(build(&config, None, false, &name));
        assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], config.uid.as_str());
        assert_eq!(pod["metadata"]["ownerReferences"][0]["controller"], true);
        let spec = &pod["spec"];
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert!(spec["activeDeadlineSeconds"].is_null());
        let container = &spec["containers"][0];
        assert_eq!(container["env"][0], json!({"name": "OPERATION", "value": "serve"}));
        let key = &container["env"][1]["valueFrom"]["secretKeyRef"];
        assert_eq!(*key, json!({"name": format!("{name}-key"), "key": "worker-key"}));
        assert_eq!(container["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(spec["volumes"][0]["emptyDir"], json!({"medium": "Memory"}));
        assert!(!pod.to_string().contains("hostPath"));
        assert_eq!(spec["tolerations"], Value::Null);
    }

    #[test]
    fn a_worker_of_a_node_goes_where_that_node_s_runs_go_and_its_set_says_so() {
        let config = config(&[
            ("volume-source", "csi"),
            ("backend-volume", "client=pool"),
            ("volume-binding-mode", "WaitForFirstConsumer"),
        ]);
        let worker = worker_on(Some("node-a"), &config, "w", &json!({}), &json!({}));
        let set = WorkerSet {
            config: config.reference.to_string(),
            node: Some("node-a".to_owned()),
        };
        assert_eq!(worker.set(), set);
        assert_eq!(
            super::tests::worker(&config, "w", &json!({}), &json!({})).set().node,
            None
        );
        let (request, id) = (silver(), RunId::new(Operation::Provision, "u1"));
        let own = pod::build(&Skeleton {
            order: order_of(&id, &request, &config, Some("node-a")),
            secret: "s",
            properties: &[].into(),
            backend_secret: false,
        });
        let (own, of_worker) = (own.spec.unwrap(), worker.pod().spec.clone().unwrap());
        assert_eq!(of_worker.affinity, own.affinity);
        assert_eq!(of_worker.tolerations, own.tolerations);
        let pool = |spec: &PodSpec| {
            spec.volumes
                .iter()
                .flatten()
                .find(|volume| volume.name == "backend")
                .cloned()
        };
        assert!(pool(&own).is_some());
        assert_eq!(pool(&of_worker), pool(&own));
    }

    #[test]
    fn what_a_run_writes_on_its_worker_is_what_its_end_takes_away() {
        let config = config(&[("volume-source", "csi")]);
        let (request, id) = (silver(), RunId::new(Operation::Provision, "u1"));
        let order = order_of(&id, &request, &config, None);
        let written: BTreeMap<String, String> = pod::run_labels(&order)
            .into_iter()
            .chain(pod::run_annotations(&order))
            .collect();
        let worker = json!({"metadata": {"annotations": {"mooring.dev/runs": "7"}}});
        let release = Release::of(&serde_json::from_value(worker).unwrap());
        let Patch::Json::<()>(patch) = release.patch() else {
            panic!("not a JSON patch")
        };
        let patch = serde_json::to_value(patch).unwrap();
        let end_of = |key: &str| format!("/{}", key.replace('/', "~1"));
        for key in written.keys() {
            let is_it =
                |step: &&Value| step["op"] == "remove" && step["path"].as_str().unwrap().ends_with(&end_of(key));
            assert_eq!(patch.as_array().unwrap().iter().filter(is_it).count(), 1, "{key} stays");
        }
        assert_eq!(
            patch[0],
            json!({"op": "test", "path": "/metadata/annotations/mooring.dev~1runs", "value": "7"})
        );
    }

    #[test]
    fn a_run_has_a_second_at_least() {
        let wanted = order(3, std::time::Duration::from_millis(1), [].into(), String::new());
        assert_eq!((wanted.number, wanted.timeout), (3, 1));
    }

    #[test]
    fn a_worker_is_its_configmap_s_only_at_the_version_that_made_it() {
        let before = config(&[("volume-source", "csi")]);
        let mut after = config(&[("volume-source", "csi")]);
        after.fingerprint = "another".to_owned();
        let worker = worker(&before, "w", &json!({}), &json!({"mooring.dev/runs": "4"}));
        assert!(worker.is_for(&before) && !worker.is_for(&after));
        assert_eq!((worker.number(), worker.has_run(), worker.is_over()), (4, false, false));
        assert_eq!(worker.address(), Some(("10.0.0.7".to_owned(), 9811)));
    }
}
