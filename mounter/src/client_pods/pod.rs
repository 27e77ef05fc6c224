//! The skeleton of a client Pod. Only the image and the resources can be chosen.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, HostPathVolumeSource, LocalObjectReference, Pod, PodSpec, ResourceRequirements,
    SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use mooring_contract::names::{annotations, labels};
use sha2::{Digest as _, Sha256};

use super::plan::Wanted;
use super::resources::ResourceArgs;
use crate::agent::install::PROGRAM;
use crate::agent::mounts::MOST_MEMORY;
use crate::agent::store::hex;

/// Name of the emptyDir with the agent's program, socket and files.
pub const AGENT_VOLUME: &str = "mooring";

/// Where that is mounted in the Pod's containers.
const AGENT_DIR: &str = "/run/mooring";

/// Name of the emptyDir with the secrets and the records of its mounts. It is in memory, as the kubelet keeps Secrets,
/// and it belongs to the Pod: when its container restarts, the agent mounts again what died with it.
const SECRETS_VOLUME: &str = "secrets";

/// Where that is mounted in the client container.
const SECRETS_DIR: &str = "/run/mooring/secrets";

/// As many volumes of one client Pod have room there, however much each takes: no volume then makes another fail. The
/// Pods of a node have far fewer of one client (a kubelet has 110 Pods unless told otherwise). `MOORING_MAX_VOLUMES` is
/// no measure: it counts CSI volumes only. What is not used takes no memory.
const MOST_VOLUMES: usize = 2048;

/// Most that these may take, in MiB.
const SECRETS_SIZE: usize = (MOST_MEMORY * MOST_VOLUMES) >> 20;

pub const CLIENT_CONTAINER: &str = "client";

const KUBELET_VOLUME: &str = "kubelet";

/// What all client Pods of a mounter have in common.
#[derive(Debug, Clone)]
pub struct Template {
    /// The namespace, the mounter's own.
    pub namespace: String,
    pub kubelet_root: String,
    /// The owner: Kubernetes deletes the Pods with it.
    pub owner: OwnerReference,
    pub service_account: String,
    /// Their priority class; empty for none.
    pub priority_class: String,
    /// What their client containers request and may use.
    pub resources: ResourceArgs,
    /// Seconds that a Pod told to end may stay for its mounts.
    pub grace_seconds: i64,
}

/// The owner of all client Pods: the mounter's service account.
///
/// They must outlive the mounter's own Pod and every version of its DaemonSet's Pods, and go when Mooring is
/// uninstalled. The DaemonSet itself can't own them: as a controlling owner it would release Pods that its selector
/// does not match, and without a controller `kubectl drain` refuses to go on at all. Only an uninstallation deletes the
/// service account.
pub fn owner(service_account: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "ServiceAccount".into(),
        name: service_account.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// The value of the label [`labels::NODE`]: the node's name, or a digest where it is longer than a label's value.
pub fn node_label(node: &str) -> String {
    if node.len() <= 63 {
        node.to_owned()
    } else {
        hex(&Sha256::digest(node.as_bytes())[..20])
    }
}

/// A Pod of this name, which pulls its images with the logins in these Secrets.
pub fn build(template: &Template, wanted: &Wanted, name: &str, pull_secrets: Vec<String>) -> Pod {
    let Template {
        namespace,
        kubelet_root,
        owner,
        service_account,
        priority_class,
        resources,
        grace_seconds,
    } = template;
    let resources = resources.of(&wanted.client);
    Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.clone()),
            labels: Some(labels_of(wanted)),
            annotations: Some(annotations_of(wanted)),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            node_name: Some(wanted.node.clone()),
            // A Pod that names none has those of its service account.
            image_pull_secrets: (!pull_secrets.is_empty()).then(|| {
                let secrets = pull_secrets.into_iter();
                secrets.map(|name| LocalObjectReference { name }).collect()
            }),
            init_containers: Some(vec![installer(wanted, resources.clone())]),
            containers: vec![client(wanted, kubelet_root, resources)],
            // A storage client reaches servers as the host would: a Pod network may not be up yet, or be masked.
            host_network: Some(true),
            dns_policy: Some("ClusterFirstWithHostNet".into()),
            restart_policy: Some("Always".into()),
            service_account_name: Some(service_account.clone()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            priority_class_name: (!priority_class.is_empty()).then(|| priority_class.clone()),
            termination_grace_period_seconds: Some(*grace_seconds),
            tolerations: Some(vec![Toleration {
                operator: Some("Exists".into()),
                ..Toleration::default()
            }]),
            volumes: Some(volumes(kubelet_root)),
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

fn labels_of(wanted: &Wanted) -> BTreeMap<String, String> {
    let node = node_label(&wanted.node);
    [
        (labels::COMPONENT, labels::COMPONENT_CLIENT),
        (labels::CLIENT, wanted.client.as_str()),
        (labels::NODE, node.as_str()),
        (labels::MANAGED_BY, labels::MANAGED_BY_MOORING),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn annotations_of(wanted: &Wanted) -> BTreeMap<String, String> {
    let image_by = wanted
        .by_volume
        .then_some((annotations::IMAGE_BY, annotations::IMAGE_BY_VOLUME));
    let volume = wanted.volume.as_ref();
    let volume = volume.map(|volume| (annotations::VOLUME, volume.name.as_str()));
    [Some((annotations::SAFE_TO_EVICT, "true")), image_by, volume]
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Copies the agent into the Pod.
fn installer(wanted: &Wanted, resources: ResourceRequirements) -> Container {
    Container {
        name: "agent".into(),
        image: Some(wanted.mounter_image.clone()),
        image_pull_policy: Some("IfNotPresent".into()),
        // The mounter's program is the image's entrypoint.
        args: Some(vec!["install-agent".into(), AGENT_DIR.into()]),
        resources: Some(resources),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_user: Some(0),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![mount_of(AGENT_VOLUME, AGENT_DIR)]),
        ..Container::default()
    }
}

/// Runs the agent in the client image.
fn client(wanted: &Wanted, kubelet_root: &str, resources: ResourceRequirements) -> Container {
    Container {
        name: CLIENT_CONTAINER.into(),
        image: Some(wanted.image.clone()),
        image_pull_policy: Some("IfNotPresent".into()),
        command: Some(vec![
            format!("{AGENT_DIR}/{PROGRAM}"),
            "agent".into(),
            format!("--dir={AGENT_DIR}"),
            format!("--kubelet-root={kubelet_root}"),
        ]),
        resources: Some(resources),
        security_context: Some(SecurityContext {
            privileged: Some(true),
            run_as_user: Some(0),
            ..SecurityContext::default()
        }),
        // If the Pod does not start, its last log lines say why.
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        volume_mounts: Some(vec![
            mount_of(AGENT_VOLUME, AGENT_DIR),
            mount_of(SECRETS_VOLUME, SECRETS_DIR),
            VolumeMount {
                mount_propagation: Some("Bidirectional".into()),
                ..mount_of(KUBELET_VOLUME, kubelet_root)
            },
        ]),
        ..Container::default()
    }
}

fn mount_of(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        ..VolumeMount::default()
    }
}

fn volumes(kubelet_root: &str) -> Vec<Volume> {
    vec![
        Volume {
            name: AGENT_VOLUME.into(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Volume::default()
        },
        Volume {
            name: SECRETS_VOLUME.into(),
            empty_dir: Some(EmptyDirVolumeSource {
                medium: Some("Memory".into()),
                size_limit: Some(Quantity(format!("{SECRETS_SIZE}Mi"))),
                ..EmptyDirVolumeSource::default()
            }),
            ..Volume::default()
        },
        Volume {
            name: KUBELET_VOLUME.into(),
            host_path: Some(HostPathVolumeSource {
                path: kubelet_root.to_owned(),
                type_: Some("Directory".into()),
            }),
            ..Volume::default()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(pull_secrets: Vec<String>) -> serde_json::Value {
        let wanted = Wanted {
            client: "sshfs".into(),
            node: "node-1".into(),
            image: "mooring.dev/client-sshfs:0.1.0".into(),
            mounter_image: "mooring.dev/mounter:0.1.0".into(),
            by_volume: true,
            volume: None,
        };
        let template = Template {
            namespace: "mooring".into(),
            kubelet_root: "/var/lib/kubelet".into(),
            owner: owner("mounter", "uid"),
            service_account: "client".into(),
            priority_class: String::new(),
            resources: ResourceArgs::default(),
            grace_seconds: 3600,
        };
        serde_json::to_value(build(&template, &wanted, "client-sshfs-0", pull_secrets)).unwrap()
    }

    #[test]
    fn a_client_pod_is_on_its_node_and_has_the_kubelet_s_root_and_nothing_else_of_the_host() {
        let pod = pod(vec![]);
        assert_eq!(pod["spec"]["nodeName"], "node-1");
        assert_eq!(pod["metadata"]["labels"]["mooring.dev/component"], "client");
        assert_eq!(pod["metadata"]["annotations"]["mooring.dev/image-by"], "volume");
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let host: Vec<_> = volumes
            .iter()
            .filter_map(|volume| volume["hostPath"]["path"].as_str())
            .collect();
        assert_eq!(host, ["/var/lib/kubelet"]);
        assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
        let client = &pod["spec"]["containers"][0];
        assert_eq!(client["command"][0], "/run/mooring/mounter");
        assert_eq!(client["volumeMounts"][2]["mountPropagation"], "Bidirectional");
        assert_eq!(volumes[1]["emptyDir"]["medium"], "Memory");
        assert_eq!(volumes[1]["emptyDir"]["sizeLimit"], "512Mi");
        // The program that is copied in sees no secret.
        assert_eq!(
            pod["spec"]["initContainers"][0]["volumeMounts"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        assert!(pod["spec"].get("priorityClassName").is_none());
    }

    #[test]
    fn a_client_pod_names_the_secrets_of_the_settings_or_has_those_of_its_service_account() {
        let pod_with = |secrets: &[&str]| pod(secrets.iter().map(ToString::to_string).collect());
        assert!(pod_with(&[])["spec"].get("imagePullSecrets").is_none());
        let expected = serde_json::json!([{"name": "a"}, {"name": "b"}]);
        assert_eq!(pod_with(&["a", "b"])["spec"]["imagePullSecrets"], expected);
    }

    #[test]
    fn a_node_s_name_that_is_no_label_value_becomes_one() {
        assert_eq!(node_label("node-1"), "node-1");
        assert_eq!(node_label(&"n".repeat(253)).len(), 40);
    }
}
