//! The provisioning Pod: its whole skeleton, fixed here.
//!
//! A ConfigMap chooses the image, a service account of its own namespace, where the Pod may be scheduled and how long
//! it may take. Nothing in it can ask for a host path, a host namespace, privilege or a capability: there is no
//! template.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    Affinity, CSIVolumeSource, Capabilities, Container, EmptyDirVolumeSource, EnvVar, KeyToPath, LocalObjectReference,
    NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSecurityContext, PodSpec,
    ResourceRequirements, SELinuxOptions, SeccompProfile, Secret, SecretVolumeSource, SecurityContext, Toleration,
    TopologySelectorTerm, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::{CSI_DRIVER, annotations, labels, paths};
use mooring_contract::volume::{self, ClientName, clients, keys};
use mooring_contract::worker::ASKED_VARIABLE;

use crate::config::{ProvisionerConfig, VolumeSourceKind};
use crate::run::carrier;
use crate::run::order::Order;
use crate::run::properties::{REQUEST_KEY, variables};
use crate::text::owned;
use crate::volume::topology;

/// Name of the Secret of a Pod of this name that is made at `now`: no two Pods share one. A kubelet keeps what it has
/// read of an immutable Secret for as long as any Pod there uses one of its name, so a Pod made while the one before it
/// is still being stopped would be given the other's properties.
pub(super) fn new_secret_name(pod: &str, now: Timestamp) -> String {
    format!("{pod}-{:x}", now.as_millisecond())
}

/// Name of a Pod's Secret; empty for a Pod that is not one of ours.
pub(super) fn secret_name(pod: &Pod) -> &str {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    volumes
        .into_iter()
        .flatten()
        .find(|volume| volume.name == PROPERTIES_VOLUME)
        .and_then(|volume| volume.secret.as_ref()?.secret_name.as_deref())
        .unwrap_or_default()
}

/// The volume in which a Pod has its properties as files.
const PROPERTIES_VOLUME: &str = "properties";

/// What decides how a Pod looks.
#[derive(Debug, Clone, Copy)]
pub struct Skeleton<'a> {
    /// The run that it carries out.
    pub order: Order<'a>,
    /// Name of its Secret, see `new_secret_name`.
    pub secret: &'a str,
    /// Names of its properties.
    pub properties: &'a BTreeSet<String>,
}

pub fn build(run: &Skeleton<'_>) -> Pod {
    let config = run.order.config;
    let clients: Vec<_> = run_volumes(&run.order)
        .map(|given| given.volume.client.as_str())
        .collect();
    let service_account = config.service_account.clone();
    Pod {
        metadata: ObjectMeta {
            name: Some(run.order.id.name()),
            namespace: Some(config.reference.namespace.clone()),
            labels: Some(own_labels(config).into_iter().chain(run_labels(&run.order)).collect()),
            annotations: Some(
                own_annotations(config)
                    .into_iter()
                    .chain(run_annotations(&run.order))
                    .collect(),
            ),
            owner_references: run
                .order
                .owner
                .map(|of| vec![carrier::owner(of.kind, of.name, of.uid, None)]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![container(run)],
            volumes: Some(volumes(run)),
            active_deadline_seconds: Some(seconds(config.timeout)),
            automount_service_account_token: Some(service_account.is_some()),
            service_account_name: service_account,
            affinity: affinity(run.order.node, run.order.allowed, &clients),
            ..bare_spec(config, run.order.node)
        }),
        status: None,
    }
}

/// What every Pod of the image has: it runs once, without a token, where the ConfigMap says. `node` is the only one that
/// it can be on.
pub(super) fn bare_spec(config: &ProvisionerConfig, node: Option<&str>) -> PodSpec {
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        image_pull_secrets: pull_secrets(config),
        node_selector: Some(config.node_selector.clone()).filter(|selector| !selector.is_empty()),
        tolerations: tolerations(config, node),
        security_context: Some(PodSecurityContext {
            run_as_non_root: config.run_as_non_root.then_some(true),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            }),
            // Where a node has SELinux, its runtime labels the files of the pool. Each Pod of a run has them, one beside
            // the other, so the label has no category; and they are never mounted with one, as `seLinuxMount` would.
            se_linux_options: config.is_node_local().then(|| SELinuxOptions {
                level: Some("s0".to_owned()),
                ..SELinuxOptions::default()
            }),
            se_linux_change_policy: config.is_node_local().then(|| "Recursive".to_owned()),
            ..PodSecurityContext::default()
        }),
        ..PodSpec::default()
    }
}

/// A Pod that names none has those of its service account.
fn pull_secrets(config: &ProvisionerConfig) -> Option<Vec<LocalObjectReference>> {
    let names = config.pull_secrets.iter();
    let secrets: Vec<_> = names.map(|name| LocalObjectReference { name: name.clone() }).collect();
    Some(secrets).filter(|secrets| !secrets.is_empty())
}

/// The ConfigMap's tolerations and, for a Pod that can be on one node only, that of a cordon. It does not tolerate the
/// taints of a node that is lost: a Pod that never gets there can be deleted at once, and one that did can't.
fn tolerations(config: &ProvisionerConfig, node: Option<&str>) -> Option<Vec<Toleration>> {
    let cordon = node.map(|_| Toleration {
        key: Some("node.kubernetes.io/unschedulable".to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    });
    let all: Vec<_> = config.tolerations.iter().cloned().chain(cordon).collect();
    Some(all).filter(|all| !all.is_empty())
}

/// The Secret of a run, owned by its Pod: it goes when the Pod goes.
pub(super) fn secret(pod: &Pod, data: BTreeMap<String, ByteString>) -> Secret {
    secret_named(secret_name(pod), pod, data)
}

/// A Secret of this name that goes when the Pod goes.
pub(super) fn secret_named(name: &str, pod: &Pod, data: BTreeMap<String, ByteString>) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: pod.metadata.namespace.clone(),
            labels: Some(owned([
                (labels::COMPONENT, labels::COMPONENT_PROVISIONING),
                (labels::MANAGED_BY, labels::MANAGED_BY_MOORING),
            ])),
            owner_references: Some(vec![carrier::owner(
                "Pod",
                pod.metadata.name.as_deref().unwrap_or_default(),
                pod.metadata.uid.as_deref().unwrap_or_default(),
                Some(true),
            )]),
            ..ObjectMeta::default()
        },
        data: Some(data),
        immutable: Some(true),
        ..Secret::default()
    }
}

/// The labels of every Pod of the image.
pub(super) fn own_labels(config: &ProvisionerConfig) -> BTreeMap<String, String> {
    owned([
        (labels::COMPONENT, labels::COMPONENT_PROVISIONING.to_owned()),
        (labels::MANAGED_BY, labels::MANAGED_BY_MOORING.to_owned()),
        (labels::CONFIG_NAME, as_label(&config.reference.name)),
    ])
}

/// The annotations of every Pod of the image.
pub(super) fn own_annotations(config: &ProvisionerConfig) -> BTreeMap<String, String> {
    owned([
        (annotations::CONFIG, config.reference.to_string()),
        (annotations::FINGERPRINT, config.fingerprint.clone()),
    ])
}

/// The labels that say which run a Pod carries out.
pub(super) fn run_labels(order: &Order<'_>) -> BTreeMap<String, String> {
    let Order { request, .. } = *order;
    owned([
        (labels::OPERATION, order.id.operation.as_str().to_owned()),
        (labels::ATTEMPT, order.attempt.to_string()),
        (labels::CLAIM_UID, as_label(&order.id.uid)),
        (labels::CLAIM_NAMESPACE, as_label(&request.pvc_namespace)),
        (labels::CLAIM_NAME, as_label(&request.pvc_name)),
    ])
}

/// The annotations that say so.
pub(super) fn run_annotations(order: &Order<'_>) -> BTreeMap<String, String> {
    let Order { request, .. } = *order;
    owned([
        (
            annotations::CLAIM,
            format!("{}/{}", request.pvc_namespace, request.pvc_name),
        ),
        (annotations::REQUEST, serde_json::json!(request).to_string()),
        (annotations::INPUT_STATE, order.state.clone().into()),
    ])
}

/// An object's name cut to the 63 characters that a label holds, ending in a letter or digit.
fn as_label(name: &str) -> String {
    let cut: String = name.chars().take(63).collect();
    cut.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// A volume of the ConfigMap's that a run gets.
pub(super) struct RunVolume<'a> {
    name: &'static str,
    /// Where the image has it.
    path: &'static str,
    read_only: bool,
    /// Whether the ConfigMap's client image mounts it, unless the volume names another.
    by_client_image: bool,
    pub(super) volume: &'a volume::Volume,
}

impl RunVolume<'_> {
    /// Whether its client may read a Secret: the ConfigMap's may be the image's own login.
    fn reads_secret(&self) -> bool {
        let keys = clients::secret_keys(self.volume.client.as_str(), &self.volume.fs_type, || None);
        keys.is_none_or(|keys| !keys.is_empty())
    }

    /// Where the container has it.
    pub(super) fn mount(&self) -> VolumeMount {
        mount(self.name, self.path, self.read_only)
    }

    /// It as a volume of the Pod, which Mooring mounts, with the ConfigMap's Secret if its client reads one.
    pub(super) fn mounted(&self, config: &ProvisionerConfig) -> Volume {
        let mut options = self.volume.to_options();
        if let Some(image) = config.client_image.as_ref().filter(|_| self.by_client_image) {
            options
                .entry(keys::CLIENT_IMAGE.to_owned())
                .or_insert_with(|| image.clone());
        }
        options.retain(|_, value| !value.is_empty());
        let secret = config.secret_name.clone().filter(|_| self.reads_secret());
        Volume {
            name: self.name.to_owned(),
            csi: Some(CSIVolumeSource {
                driver: CSI_DRIVER.to_owned(),
                volume_attributes: Some(options),
                node_publish_secret_ref: secret.map(|name| LocalObjectReference { name }),
                ..CSIVolumeSource::default()
            }),
            ..Volume::default()
        }
    }
}

/// The backend's volume, if the ConfigMap has one.
pub(super) fn backend(config: &ProvisionerConfig) -> Option<RunVolume<'_>> {
    config.backend_volume.as_ref().map(|volume| RunVolume {
        name: "backend",
        path: paths::BACKEND,
        read_only: false,
        // What mounts the volumes mounts their server's export too.
        by_client_image: volume.client.as_str() != ClientName::POOL,
        volume,
    })
}

/// The volumes of the ConfigMap that a run gets: the backend's, and that with backups if the run is about one.
fn run_volumes<'a>(order: &Order<'a>) -> impl Iterator<Item = RunVolume<'a>> {
    let backend = backend(order.config);
    let backup = order.backup_volume().map(|volume| RunVolume {
        name: "backup",
        path: paths::BACKUP,
        read_only: order.backups_read_only,
        by_client_image: false,
        volume,
    });
    backend.into_iter().chain(backup)
}

fn container(run: &Skeleton<'_>) -> Container {
    let mut mounts = vec![
        mount(PROPERTIES_VOLUME, paths::PROPERTIES, true),
        VolumeMount {
            sub_path: Some(REQUEST_KEY.to_owned()),
            ..mount("request", paths::REQUEST, true)
        },
        mount("tmp", "/tmp", false),
    ];
    mounts.extend(run_volumes(&run.order).map(|given| given.mount()));
    Container {
        name: run.order.id.operation.as_str().to_owned(),
        env: Some([variables(run.properties, run.secret), vec![asks_of_workers()]].concat()),
        volume_mounts: Some(mounts),
        ..bare_container(run.order.config, run_volumes(&run.order).next().is_some())
    }
}

/// Lets the image state in its answer that its containers can be workers.
pub(super) fn asks_of_workers() -> EnvVar {
    EnvVar {
        name: ASKED_VARIABLE.to_owned(),
        value: Some("true".to_owned()),
        ..EnvVar::default()
    }
}

/// The image's container without what it is given. With volumes of the ConfigMap, it may do what their owner may.
pub(super) fn bare_container(config: &ProvisionerConfig, has_volumes: bool) -> Container {
    // An image that works on files of many owners needs to be root over them, in these volumes alone.
    let files = ["CHOWN", "DAC_OVERRIDE", "FOWNER"].map(str::to_owned).to_vec();
    Container {
        image: Some(config.image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        resources: Some(ResourceRequirements {
            requests: Some(
                [("cpu", "10m"), ("memory", "16Mi")]
                    .map(|(key, value)| (key.to_owned(), Quantity(value.to_owned())))
                    .into(),
            ),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                add: has_volumes.then_some(files),
                drop: Some(vec!["ALL".to_owned()]),
            }),
            privileged: Some(false),
            read_only_root_filesystem: Some(true),
            ..SecurityContext::default()
        }),
        termination_message_path: Some(paths::TERMINATION_LOG.to_owned()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

pub(super) fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only),
        ..VolumeMount::default()
    }
}

fn volumes(run: &Skeleton<'_>) -> Vec<Volume> {
    let from_secret = |name: &str, keys: Vec<String>| Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(run.secret.to_owned()),
            // Images run as any user; the Pod is the Secret's only reader.
            default_mode: Some(0o444),
            items: Some(
                keys.into_iter()
                    .map(|key| KeyToPath {
                        path: key.clone(),
                        key,
                        ..KeyToPath::default()
                    })
                    .collect(),
            ),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    };
    let mut volumes = vec![
        from_secret(PROPERTIES_VOLUME, run.properties.iter().cloned().collect()),
        from_secret("request", vec![REQUEST_KEY.to_owned()]),
        Volume {
            name: "tmp".to_owned(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Volume::default()
        },
    ];
    volumes.extend(run_volumes(&run.order).map(|given| given.mounted(run.order.config)));
    volumes
}

/// The node that [`affinity`] holds a Pod to.
pub(super) fn only_node(pod: &Pod) -> Option<&str> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = required.node_selector_terms.first()?.match_fields.as_ref()?;
    Some(fields.first()?.values.as_ref()?.first()?)
}

/// What keeps it off nodes that can't mount what the image works on, which a Pod has by CSI.
fn able_to_mount(client: &str) -> Vec<NodeSelectorRequirement> {
    topology::able(client, VolumeSourceKind::Csi)
}

/// Where it may run: on this node, if one is given, in one of these topologies, if there are any, and on no node that
/// can't mount what the image works on, by these clients.
pub(crate) fn affinity(node: Option<&str>, allowed: &[TopologySelectorTerm], clients: &[&str]) -> Option<Affinity> {
    let here = node.map(|node| {
        vec![NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.to_owned()]),
        }]
    });
    let mut able: Vec<NodeSelectorRequirement> = Vec::new();
    for requirement in clients.iter().flat_map(|client| able_to_mount(client)) {
        if !able.contains(&requirement) {
            able.push(requirement);
        }
    }
    if here.is_none() && able.is_empty() && allowed.is_empty() {
        return None;
    }
    let term = |within: Vec<NodeSelectorRequirement>| {
        let expressions: Vec<_> = within.into_iter().chain(able.clone()).collect();
        NodeSelectorTerm {
            match_expressions: Some(expressions).filter(|all| !all.is_empty()),
            match_fields: here.clone(),
        }
    };
    let terms = if allowed.is_empty() {
        vec![term(Vec::new())]
    } else {
        allowed.iter().map(|within| term(topology::within(within))).collect()
    };
    Some(Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: terms,
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    })
}

fn seconds(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::{BTreeMap, BTreeSet};

    use k8s_openapi::api::core::v1::{Pod, TopologySelectorTerm};
    use mooring_contract::operation::Operation;
    use mooring_contract::request::{Request, Snapshot};
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use proptest::sample::select;
    use proptest::test_runner::{Config, TestRunner};
    use serde_json::{Value, json};

    use super::{Skeleton, able_to_mount, affinity, as_label, bare_spec, build, secret};
    use crate::config::{ProvisionerConfig, keys};
    use crate::operation::tests::{config, try_config};
    use crate::run::identity::RunId;
    use crate::run::input_state::InputState;
    use crate::run::order::Order;
    use crate::run::properties::Properties;
    use crate::run::properties::tests::silver;
    use crate::run::worker_pod;

    fn pod(extra: &[(&str, &str)], node: Option<&str>) -> Pod {
        let mut request = silver();
        let config = config(extra);
        request.parameters.clone_from(&config.pass_through);
        let properties = Properties::new(&request, &BTreeMap::new(), None).unwrap();
        build(&Skeleton {
            order: Order {
                id: &RunId::new(Operation::Provision, &request.pvc_uid),
                request: &request,
                config: &config,
                attempt: 2,
                state: &InputState::Unknown,
                node,
                allowed: &[],
                owner: None,
                seals: false,
                backups_read_only: request.operation == Operation::Restore,
            },
            secret: "secret-of-the-pod",
            properties: &properties.names(),
        })
    }

    #[test]
    fn a_run_names_the_secrets_of_the_settings_or_has_those_of_its_service_account() {
        let mut config = config(&[]);
        assert_eq!(bare_spec(&config, None).image_pull_secrets, None);
        config.pull_secrets = vec!["a".to_owned(), "b".to_owned()];
        let secrets = bare_spec(&config, None).image_pull_secrets.unwrap();
        let names: Vec<_> = secrets.iter().map(|secret| secret.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
    }

    /// A node that is lost has taints for both effects, and a Pod that tolerates them is bound to it for as long as it
    /// is lost.
    #[test]
    fn a_run_that_must_be_on_one_node_goes_there_though_the_node_is_cordoned_but_not_to_one_that_is_lost() {
        let tolerates = |pod: &Pod, key: &str| {
            let tolerations = pod.spec.as_ref().unwrap().tolerations.clone().unwrap_or_default();
            tolerations.into_iter().any(|has| has.key.is_none_or(|has| has == key))
        };
        let on_node = pod(&[], Some("node-a"));
        assert!(tolerates(&on_node, "node.kubernetes.io/unschedulable"));
        assert!(!tolerates(&pod(&[], None), "node.kubernetes.io/unschedulable"));
        for lost in ["not-ready", "unreachable", "out-of-service"] {
            assert!(!tolerates(&on_node, &format!("node.kubernetes.io/{lost}")), "{lost}");
        }
    }

    #[test]
    fn each_allowed_topology_is_a_term_with_all_that_holds_anyway() {
        let allowed: Vec<TopologySelectorTerm> = ["a", "b"]
            .map(|zone| serde_json::from_value(json!({"matchLabelExpressions": [{"key": "zone", "values": [zone]}]})))
            .map(Result::unwrap)
            .into();
        let found = json!(affinity(None, &allowed, &["pool"]).unwrap());
        let terms = &found["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        for (term, zone) in terms.as_array().unwrap().iter().zip(["a", "b"]) {
            let expressions = term["matchExpressions"].as_array().unwrap();
            assert_eq!(
                expressions[0],
                json!({"key": "zone", "operator": "In", "values": [zone]})
            );
            assert_eq!(expressions.len(), 1 + able_to_mount("pool").len());
        }
        assert_eq!(affinity(None, &[], &[]), None);
    }

    #[test]
    fn the_skeleton_is_as_it_was() {
        let mut pod = pod(
            &[("backend-volume", "client=pool"), ("node-selector", "disk=ssd")],
            Some("node-a"),
        );
        // The list of variables is tested with the properties.
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        container.env.as_mut().unwrap().truncate(1);
        for volume in pod.spec.as_mut().unwrap().volumes.as_mut().unwrap() {
            if let Some(items) = volume.secret.as_mut().and_then(|secret| secret.items.as_mut()) {
                items.truncate(1);
            }
        }
        pod.metadata.annotations = None;
        insta::assert_snapshot!(crate::yaml::to_string(&pod).unwrap());
    }

    #[test]
    fn the_client_image_of_the_volumes_mounts_their_server_s_export_too() {
        let image = |extra: &[(&str, &str)]| {
            let mut data = vec![("client-image", "mooring.dev/client-x:1")];
            data.extend(extra);
            let volumes = pod(&data, None).spec.unwrap().volumes.unwrap();
            let options = volumes.into_iter().find_map(|volume| volume.csi?.volume_attributes);
            options.unwrap().remove("client-image")
        };
        assert_eq!(
            image(&[("backend-volume", "client=x,source=h:/v")]).as_deref(),
            Some("mooring.dev/client-x:1")
        );
        assert_eq!(
            image(&[("backend-volume", "client=x,source=h:/v,client-image=y:2")]).as_deref(),
            Some("y:2")
        );
        assert_eq!(image(&[("backend-volume", "client=pool")]), None);
    }

    #[test]
    fn only_a_run_about_a_backup_gets_the_volume_with_backups() {
        let config = config(&[
            ("backend-volume", "client=pool"),
            ("backup-volume", "client=nfs,source=h:/backups"),
        ]);
        let mounted = |operation: Operation, backup: Option<bool>| {
            let snapshot = backup.map(|backup| Snapshot {
                name: "b".into(),
                content_name: "c".into(),
                content_uid: "s1".into(),
                backup,
                members: None,
            });
            let request = Request {
                operation,
                snapshot,
                ..silver()
            };
            let pod = build(&Skeleton {
                order: Order {
                    id: &RunId::new(operation, "s1"),
                    request: &request,
                    config: &config,
                    attempt: 1,
                    state: &InputState::Unknown,
                    node: None,
                    allowed: &[],
                    owner: None,
                    seals: false,
                    backups_read_only: request.operation == Operation::Restore,
                },
                secret: "secret-of-the-pod",
                properties: &[].into(),
            });
            let pod = json!(pod.spec.unwrap());
            let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
            let mount = mounts.iter().find(|mount| mount["name"] == "backup")?.clone();
            let volumes = pod["volumes"].as_array().unwrap();
            assert!(
                volumes
                    .iter()
                    .any(|volume| volume["name"] == "backup" && volume["csi"]["volumeAttributes"]["client"] == "nfs"),
                "{pod}"
            );
            let keys = pod["affinity"].to_string();
            assert!(
                keys.contains("client.mooring.dev/pool") && keys.contains("client.mooring.dev/nfs"),
                "{keys}"
            );
            assert_eq!(mount["mountPath"], "/run/mooring/backup");
            mount["readOnly"].as_bool()
        };
        assert_eq!(mounted(Operation::Backup, Some(true)), Some(false));
        assert_eq!(mounted(Operation::DeleteBackup, Some(true)), Some(false));
        assert_eq!(mounted(Operation::Restore, Some(true)), Some(true));
        assert_eq!(mounted(Operation::Restore, Some(false)), None);
        assert_eq!(mounted(Operation::Snapshot, Some(false)), None);
        assert_eq!(mounted(Operation::Provision, None), None);
    }

    /// Proves: P6
    #[test]
    fn the_secret_belongs_to_its_pod_alone() {
        let mut pod = pod(&[], None);
        pod.metadata.uid = Some("pod-uid".into());
        let secret = secret(&pod, BTreeMap::new());
        let owner = &secret.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Pod", "pod-uid"));
        assert_eq!(secret.metadata.name.as_deref(), Some("secret-of-the-pod"));
    }

    #[test]
    fn a_long_name_makes_a_label() {
        let long = format!("{}-{}", "a".repeat(62), "b".repeat(100));
        assert_eq!(as_label(&long), "a".repeat(62));
        assert_eq!(as_label("data"), "data");
    }

    /// Pairs that a ConfigMap may hold: between them they have each key that Mooring reads itself.
    const VALID: &[(&str, &str)] = &[
        ("plugin-name", "vcs.mooring.dev"),
        ("plugin-name", "mooring.dev/flex-provisioner"),
        ("image", "example.com/storage:1"),
        ("service-account-name", "storage"),
        ("service-token", "of-the-configmap"),
        ("node-selector", "disk=ssd,zone=west"),
        ("node-selector", "{disk: ssd}"),
        ("tolerations", "[{key: storage, operator: Exists, effect: NoSchedule}]"),
        ("tolerations", "[{operator: Exists}]"),
        ("secret-name", "storage-login"),
        ("timeout", "5m"),
        ("bytes-per-inode", "8192"),
        ("max-parallel", "2"),
        ("workers", "2"),
        ("workers", "0"),
        ("operations", "provision,delete,expand"),
        (
            "operations",
            "provision,delete,snapshot,delete-snapshot,restore,backup,delete-backup",
        ),
        ("multi-attach", "true"),
        ("run-as-non-root", "true"),
        ("discover-interval", "1h"),
        ("workers-idle", "1h"),
        ("volume-source", "csi"),
        ("volume-source", "flexVolume"),
        ("backend-volume", "client=nfs,source=h:/x"),
        ("backend-volume", "client=pool"),
        (
            "backend-volume",
            "client=vendor,source=h:/x,client-image=example.com/client:1",
        ),
        ("backup-volume", "client=nfs,source=h:/backups"),
        ("client-image", "example.com/client:2"),
        ("reclaim-policy", "Retain"),
        ("volume-binding-mode", "WaitForFirstConsumer"),
        ("allow-volume-expansion", "true"),
        ("allow-volume-expansion", "false"),
        ("mount-options", "noatime,hard"),
    ];

    /// Keys that some field of a Pod is called by, or that one might hope to reach it by.
    const HOPED_FOR: &[&str] = &[
        "hostPath",
        "hostNetwork",
        "host-network",
        "host-pid",
        "hostUsers",
        "privileged",
        "pod-template",
        "command",
        "args",
        "capabilities",
        "security-context",
        "run-as-user",
        "runtime-class-name",
        "node-name",
        "affinity",
        "volumes",
        "init-containers",
        "env",
        "ports",
    ];

    fn pairs() -> impl Strategy<Value = Vec<(String, String)>> {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let key = prop_oneof![
            2 => select(keys::KNOWN).prop_map(str::to_owned),
            2 => select(HOPED_FOR).prop_map(str::to_owned),
            1 => "[a-z][a-z-]{0,12}",
        ];
        let value = prop_oneof![
            1 => select(VALID).prop_map(|(_, value)| value.to_owned()),
            2 => "\\PC{0,40}",
        ];
        let valid = select(VALID).prop_map(move |pair| own(&pair));
        vec(prop_oneof![5 => valid, 2 => (key, value)], 0..6)
    }

    fn fields(of: &Value) -> BTreeSet<&str> {
        of.as_object().unwrap().keys().map(String::as_str).collect()
    }

    fn known(fields: &[&'static str]) -> BTreeSet<&'static str> {
        fields.iter().copied().collect()
    }

    /// Whatever a ConfigMap holds, the Pod has nothing of the host and no more rights than the skeleton's. What is not
    /// named here must not be in it.
    fn assert_harmless(pod: &Pod, config: &ProvisionerConfig, node: Option<&str>) {
        let spec = json!(pod.spec);
        let skeleton = known(&[
            "activeDeadlineSeconds",
            "affinity",
            "automountServiceAccountToken",
            "containers",
            "enableServiceLinks",
            "nodeSelector",
            "restartPolicy",
            "securityContext",
            "serviceAccountName",
            "terminationGracePeriodSeconds",
            "tolerations",
            "volumes",
        ]);
        assert!(fields(&spec).is_subset(&skeleton), "{spec:#}");
        assert_eq!(spec["restartPolicy"], "Never");
        assert_eq!(spec["enableServiceLinks"], false);
        let mut security = json!({"seccompProfile": {"type": "RuntimeDefault"}});
        if config.run_as_non_root {
            security["runAsNonRoot"] = json!(true);
        }
        if config.is_node_local() {
            security["seLinuxOptions"] = json!({"level": "s0"});
            security["seLinuxChangePolicy"] = json!("Recursive");
        }
        assert_eq!(spec["securityContext"], security);

        // A worker has no account: what it carries out has its token from the controller.
        let account = config.service_account.as_deref().filter(|_| !is_worker(pod));
        assert_eq!(spec["serviceAccountName"].as_str(), account);
        assert_eq!(spec["automountServiceAccountToken"], account.is_some());

        let selector = json!(config.node_selector);
        assert!(spec["nodeSelector"] == selector || config.node_selector.is_empty() && spec["nodeSelector"].is_null());
        let mut tolerations: Vec<Value> = config.tolerations.iter().map(|toleration| json!(toleration)).collect();
        tolerations.extend(
            node.map(
                |_| json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}),
            ),
        );
        assert_eq!(spec["tolerations"].as_array().cloned().unwrap_or_default(), tolerations);

        let mut given = Vec::new();
        for volume in spec["volumes"].as_array().unwrap() {
            match fields(volume)
                .into_iter()
                .filter(|field| *field != "name")
                .collect::<Vec<_>>()[..]
            {
                ["secret" | "emptyDir"] => {}
                ["csi"] => {
                    let csi = &volume["csi"];
                    assert_eq!(csi["driver"], "vcs.mooring.dev");
                    let client = csi["volumeAttributes"]["client"].as_str().unwrap();
                    // Of those that `VALID` has, they read no Secret.
                    let login = config
                        .secret_name
                        .as_deref()
                        .filter(|_| !["pool", "nfs"].contains(&client));
                    assert_eq!(csi["nodePublishSecretRef"]["name"].as_str(), login, "{csi}");
                    given.push(client.to_owned());
                }
                _ => panic!("{volume}"),
            }
        }
        assert_affinity(&spec["affinity"], node, &given);
        let containers = spec["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 1);
        assert_container(&containers[0], config, !given.is_empty(), is_worker(pod));
    }

    fn is_worker(pod: &Pod) -> bool {
        pod.metadata.labels.as_ref().unwrap().contains_key("mooring.dev/worker")
    }

    /// It keeps the Pod on one node, or off those that can't mount what it is given. It draws it to nothing else.
    fn assert_affinity(affinity: &Value, node: Option<&str>, given: &[String]) {
        if affinity.is_null() {
            assert!(node.is_none());
            return;
        }
        assert_eq!(fields(affinity), known(&["nodeAffinity"]));
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        assert_eq!(fields(&affinity["nodeAffinity"]), known(&[required]));
        let terms = affinity["nodeAffinity"][required]["nodeSelectorTerms"]
            .as_array()
            .unwrap();
        assert_eq!(terms.len(), 1);
        let here = node.map(|node| json!([{"key": "metadata.name", "operator": "In", "values": [node]}]));
        assert_eq!(terms[0]["matchFields"], json!(here));
        let able: Vec<Value> = given
            .iter()
            .flat_map(|client| able_to_mount(client))
            .map(|requirement| json!(requirement))
            .collect();
        for requirement in terms[0]["matchExpressions"].as_array().into_iter().flatten() {
            assert!(able.contains(requirement), "{requirement}");
        }
    }

    fn assert_container(container: &Value, config: &ProvisionerConfig, has_volumes: bool, is_worker: bool) {
        let mut skeleton = known(&[
            "env",
            "image",
            "imagePullPolicy",
            "name",
            "resources",
            "securityContext",
            "terminationMessagePath",
            "terminationMessagePolicy",
            "volumeMounts",
        ]);
        skeleton.extend(is_worker.then_some("ports"));
        assert_eq!(fields(container), skeleton);
        assert_eq!(container["image"], config.image.as_str());
        let mut capabilities = json!({"drop": ["ALL"]});
        if has_volumes {
            capabilities["add"] = json!(["CHOWN", "DAC_OVERRIDE", "FOWNER"]);
        }
        let security = json!({
            "allowPrivilegeEscalation": false, "capabilities": capabilities, "privileged": false,
            "readOnlyRootFilesystem": true,
        });
        assert_eq!(container["securityContext"], security);
        for variable in container["env"].as_array().unwrap() {
            let fixed = is_worker && *variable == json!({"name": "OPERATION", "value": "serve"})
                || *variable == json!({"name": "MOORING_WORKERS_ASKED", "value": "true"});
            let from = variable["valueFrom"]
                .as_object()
                .map(|from| from.keys().collect::<Vec<_>>());
            assert!(fixed || from.is_some_and(|from| from == ["secretKeyRef"]), "{variable}");
        }
        for mount in container["volumeMounts"].as_array().unwrap() {
            let path = mount["mountPath"].as_str().unwrap();
            assert!(path == "/tmp" || path.starts_with("/run/mooring"), "{mount}");
            assert!(mount["mountPropagation"].is_null(), "{mount}");
        }
    }

    /// The Pod of a run, and a worker.
    fn pods_of(config: &ProvisionerConfig, node: Option<&str>, about_backup: bool) -> Option<[Pod; 2]> {
        let snapshot = Snapshot {
            name: "b".into(),
            content_name: "c".into(),
            content_uid: "s1".into(),
            backup: true,
            members: None,
        };
        let request = Request {
            parameters: config.pass_through.clone(),
            snapshot: Some(snapshot).filter(|_| about_backup),
            ..silver()
        };
        let properties = Properties::new(&request, &BTreeMap::new(), None).ok()?;
        let run = build(&Skeleton {
            order: Order {
                id: &RunId::new(Operation::Provision, &request.pvc_uid),
                request: &request,
                config,
                attempt: 1,
                state: &InputState::Unknown,
                node,
                allowed: &[],
                owner: None,
                seals: false,
                backups_read_only: false,
            },
            secret: "secret-of-the-pod",
            properties: &properties.names(),
        });
        Some([run, worker_pod::build(config, node, "worker-x")])
    }

    /// ConfigMaps that are tried, and how many of them at least must be in order, so that there is a Pod to look at.
    const TRIED: u32 = 600;
    const IN_ORDER: usize = 200;

    /// Proves: P5
    #[test]
    fn no_config_map_shapes_anything_dangerous() {
        let mut runner = TestRunner::new(Config {
            failure_persistence: None,
            ..Config::with_cases(TRIED)
        });
        let (in_order, keys_seen) = (Cell::new(0), RefCell::new(BTreeSet::new()));
        let all = (pairs(), option::of(Just("node-a")), any::<bool>());
        let tried = runner.run(&all, |(pairs, node, about_backup)| {
            let extra: Vec<_> = pairs
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_str()))
                .collect();
            let pods = try_config(&extra).and_then(|config| {
                let pods = pods_of(&config, node, about_backup)?;
                Some((config, pods))
            });
            if let Some((config, [run, worker])) = pods {
                in_order.set(in_order.get() + 1);
                keys_seen.borrow_mut().extend(pairs.into_iter().map(|(key, _)| key));
                assert_harmless(&run, &config, node);
                assert_harmless(&worker, &config, node);
            }
            Ok(())
        });
        tried.unwrap_or_else(|error| panic!("{error}"));
        assert!(
            in_order.get() >= IN_ORDER,
            "only {} ConfigMaps were in order",
            in_order.get()
        );
        let missing: Vec<_> = keys::KNOWN
            .iter()
            .filter(|key| !keys_seen.borrow().contains(**key))
            .collect();
        assert!(missing.is_empty(), "no ConfigMap in order had {missing:?}");
    }
}
