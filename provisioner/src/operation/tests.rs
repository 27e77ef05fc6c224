//! A world for plans to look at: what tests of all modules build upon.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::operation::Operation;
use serde_json::{Value, json};

use super::content::ObservedSource;
use super::decision::{ClaimDecision, Decision, ForClaim};
use super::limits::Limits;
use super::observed::ObservedClaim;
use super::record::Record;
use super::waits::assert_told;
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::config::trust::Trust;
use crate::run::Run;
use crate::run::carrier::Carrier;
use crate::run::departed::Departed;
use crate::volume::acceptance;
use crate::volume::topology::Node;

pub(crate) fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

pub(crate) fn ago(seconds: i64) -> String {
    Timestamp::from_second(now().as_second() - seconds).unwrap().to_string()
}

/// The silver ConfigMap of the original design, and more keys.
pub(crate) fn try_config(extra: &[(&str, &str)]) -> Option<ProvisionerConfig> {
    let mut data = json!({
        "plugin-name": "kubernetes.io/flex-provisioner", "image": "custom/iscsi-provision",
        "service-account-name": "foo", "service-token": "23092390532lksf90kwelklfw",
        "use-nfs-server": "10.10.2.4", "zone": "west",
    });
    for (key, value) in extra {
        data[*key] = json!(value);
    }
    let config_map: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": "custom-isci-provisioner", "namespace": "admin", "uid": "c1", "resourceVersion": "1",
                     "labels": {"storage-class": "silver", "type": "provisioner-config"}},
        "data": data,
    }))
    .unwrap();
    ProvisionerConfig::parse(&config_map, &Trust::offline(None, None)).ok()
}

pub(crate) fn config(extra: &[(&str, &str)]) -> ProvisionerConfig {
    try_config(extra).unwrap()
}

pub(crate) fn class(change: &Value) -> StorageClass {
    let mut value = json!({
        "metadata": {"name": "silver"}, "provisioner": "mooring.dev/flex-provisioner",
        "volumeBindingMode": "Immediate", "reclaimPolicy": "Delete",
    });
    for (key, new) in change.as_object().unwrap() {
        value[key] = new.clone();
    }
    serde_json::from_value(value).unwrap()
}

/// A run as an attempt made it, `age` seconds ago.
pub(crate) fn run(operation: &str, attempt: u32, age: i64, status: &Value) -> Run {
    run_with(operation, attempt, age, status, &Value::Null)
}

/// The same, with what the image was asked.
pub(crate) fn run_with(operation: &str, attempt: u32, age: i64, status: &Value, request: &Value) -> Run {
    let mut annotations = json!({});
    if !request.is_null() {
        annotations["mooring.dev/request"] = request.to_string().into();
    }
    let carrier: Carrier = serde_json::from_value(json!({
        "metadata": {"name": format!("{operation}-u1"), "namespace": "admin", "uid": "p1", "resourceVersion": "5",
                     "creationTimestamp": ago(age), "labels": {"mooring.dev/attempt": attempt.to_string()},
                     "annotations": annotations},
        "spec": {"nodeName": "node-a", "activeDeadlineSeconds": 300, "containers": []},
        "status": status,
    }))
    .unwrap();
    Run::of(carrier)
}

pub(crate) fn ended(code: i32, message: &str) -> Value {
    json!({"phase": if code == 0 { "Succeeded" } else { "Failed" }, "startTime": ago(10), "containerStatuses": [
        {"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
         "state": {"terminated": {"exitCode": code, "message": message, "startedAt": ago(9)}}}]})
}

pub(crate) fn running() -> Value {
    json!({"phase": "Running", "startTime": ago(10), "containerStatuses": [
        {"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
         "state": {"running": {"startedAt": ago(9)}}}]})
}

pub(crate) fn no_image() -> Value {
    json!({"phase": "Pending", "startTime": ago(10), "containerStatuses": [
        {"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
         "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]})
}

/// As a kubelet leaves a run that was ended while its image was being pulled.
pub(crate) fn never_made() -> Value {
    json!({"phase": "Failed", "startTime": ago(10), "containerStatuses": [
        {"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
         "state": {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}}]})
}

pub(crate) fn leaving(run: Run) -> Run {
    run.changed(|carrier| carrier.metadata.deletion_timestamp = serde_json::from_value(json!(ago(5))).unwrap())
}

pub(crate) fn record(change: &Value) -> Record {
    let mut value = json!({
        "operation": "provision", "attempt": 1, "pod": "admin/provision-u1", "since": ago(60),
        "config": "admin/custom-isci-provisioner", "config-uid": "c1",
    });
    for (key, new) in change.as_object().unwrap() {
        value[key] = new.clone();
    }
    serde_json::from_value(value).unwrap()
}

/// All that a plan sees of a claim, to be changed by each test.
pub(crate) struct World {
    pub(crate) claim: Value,
    pub(crate) record: Option<Record>,
    pub(crate) class: Option<StorageClass>,
    pub(crate) config: Result<Arc<ProvisionerConfig>, NoConfig>,
    pub(crate) unserved_since: Timestamp,
    pub(crate) provision_run: Option<Run>,
    pub(crate) delete_run: Option<Run>,
    pub(crate) expand_run: Option<Run>,
    pub(crate) modify_run: Option<Run>,
    pub(crate) attributes: Vec<Value>,
    pub(crate) departed: Option<Departed>,
    pub(crate) volumes: Vec<Value>,
    pub(crate) looked_up: bool,
    pub(crate) nodes: Vec<&'static str>,
    pub(crate) source: ObservedSource,
    pub(crate) copied_by: Option<&'static str>,
    /// That of them which can't mount local volumes.
    pub(crate) unable: &'static str,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut claim = json!(acceptance::tests::claim());
        claim["metadata"]["annotations"] =
            json!({"volume.kubernetes.io/storage-provisioner": "mooring.dev/flex-provisioner"});
        Self {
            claim,
            record: None,
            class: Some(class(&json!({}))),
            config: Ok(Arc::new(config(&[]))),
            unserved_since: now(),
            provision_run: None,
            delete_run: None,
            expand_run: None,
            modify_run: None,
            attributes: vec![],
            departed: None,
            volumes: vec![],
            looked_up: false,
            nodes: vec!["node-a", "node-b"],
            source: ObservedSource::default(),
            copied_by: None,
            unable: "",
        }
    }

    /// With a record of a first attempt, changed so.
    pub(crate) fn with_record(change: &Value) -> Self {
        let mut world = Self::new();
        world.record = Some(record(change));
        world.claim["metadata"]["finalizers"] = json!(["mooring.dev/provisioning"]);
        world
    }

    pub(crate) fn with_config(mut self, extra: &[(&str, &str)]) -> Self {
        self.config = Ok(Arc::new(config(extra)));
        self
    }

    pub(crate) fn able_to(mut self, operations: &[Operation]) -> Self {
        let mut config = config(&[]);
        config.operations = operations.iter().copied().collect();
        self.config = Ok(Arc::new(config));
        self
    }

    pub(crate) fn selected(mut self, node: &str) -> Self {
        self.class = Some(class(&json!({"volumeBindingMode": "WaitForFirstConsumer"})));
        self.claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!(node);
        self
    }

    pub(crate) fn deleted(mut self) -> Self {
        self.claim["metadata"]["deletionTimestamp"] = json!(ago(1));
        self
    }

    /// What is decided; there is nothing to do before.
    pub(crate) fn plan(&self) -> ClaimDecision {
        let decision = self.try_plan();
        assert!(!matches!(decision, Decision::Own(ForClaim::LookUp)));
        decision
    }

    pub(crate) fn try_plan(&self) -> ClaimDecision {
        assert_told(|at| self.plan_at(at).silent_wait());
        self.plan_at(now())
    }

    /// What is decided at this moment, though it may be a wait in silence.
    pub(crate) fn plan_at(&self, now: Timestamp) -> ClaimDecision {
        let claim: PersistentVolumeClaim = serde_json::from_value(self.claim.clone()).unwrap();
        let volumes: Vec<Arc<PersistentVolume>> = self
            .volumes
            .iter()
            .map(|volume| Arc::new(serde_json::from_value(volume.clone()).unwrap()))
            .collect();
        let nodes = |name: &str| {
            let local = if name == self.unable { "not-ready" } else { "ready" };
            self.nodes.contains(&name).then(|| Node {
                name: name.to_owned(),
                labels: [("kubernetes.io/hostname", name), ("client.mooring.dev/local", local)]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
            })
        };
        let attributes = |name: &str| {
            let found = self.attributes.iter().find(|class| class["metadata"]["name"] == name);
            found.map(|class| Arc::new(serde_json::from_value(class.clone()).unwrap()))
        };
        let changes = [
            (Operation::Expand, &self.expand_run),
            (Operation::Modify, &self.modify_run),
        ];
        let changes = changes.into_iter().filter_map(|(of, run)| Some((of, run.clone()?)));
        let changes: BTreeMap<_, _> = changes.collect();
        super::plan_claim(
            &ObservedClaim {
                claim: &claim,
                record: self.record.as_ref(),
                class: self.class.as_ref(),
                config: &self.config,
                unserved_since: self.unserved_since,
                provision_run: self.provision_run.as_ref(),
                delete_run: self.delete_run.as_ref(),
                changes: &changes,
                attributes: &attributes,
                departed: self.departed.as_ref(),
                volumes: &volumes,
                looked_up: self.looked_up,
                nodes: &nodes,
                by_host: &nodes,
                source: &self.source,
                copied_by: self.copied_by,
                kube_api: "https://10.96.0.1:443",
                limits: &Limits::default(),
            },
            now,
        )
    }
}
