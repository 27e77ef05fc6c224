//! Who made a volume: what is of the node itself is mounted only if the API shows that an administrator gave it.
//!
//! The proof is the `PersistentVolume`: one of the name that the kubelet's directory has, with the very options that
//! the kubelet gave. It is no administrator's if it was provisioned: the controller's `PersistentVolumes`, and those
//! that provisioning images make, are all named after their claim's uid, to which admission policies hold both
//! (`mooring-controller-volumes`, `mooring-volume-makers`). An inline volume has no
//! PersistentVolume. A tenant could give it the name of an existing one, but not that one's options: the policies for
//! Pods let no path or device of the node through.

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use mooring_contract::names::annotations;
use mooring_contract::volume::Volume;

use crate::volume::job::MountJob;
use crate::volume::kubelet_options;

/// Longest that the API may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Where `PersistentVolumes` are asked for.
#[async_trait]
pub trait Volumes: Send + Sync {
    async fn get(&self, name: &str) -> Result<Option<PersistentVolume>, kube::Error>;
}

#[async_trait]
impl Volumes for Api<PersistentVolume> {
    async fn get(&self, name: &str) -> Result<Option<PersistentVolume>, kube::Error> {
        self.get_opt(name).await
    }
}

/// Why a volume is not known to be an administrator's; the message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum NotProven {
    #[error(
        "option source={0:?} is a path or a device of the node, which only an administrator's PersistentVolume may \
         name, and the mounter has no access to the Kubernetes API to see whether this is one: see its log"
    )]
    NoApi(String),
    #[error(
        "option source={0:?} is a path or a device of the node, which only an administrator's PersistentVolume may \
         name, and the Kubernetes API did not say whether this is one ({1}): the kubelet tries again"
    )]
    NoAnswer(String, #[source] Box<kube::Error>),
    #[error(
        "option source={0:?} is a path or a device of the node, which only an administrator's PersistentVolume may \
         name, and the Kubernetes API did not say whether this is one (no answer in time): the kubelet tries again"
    )]
    NoAnswerInTime(String),
    /// There is no such `PersistentVolume`, or it is another one.
    #[error(
        "option source={source_of:?} is a path or a device of the node, which only an administrator's PersistentVolume \
         may name, and {volume} {why}: for the node's own disk use client=local"
    )]
    NotTheirs {
        source_of: String,
        volume: String,
        /// What it is instead.
        why: &'static str,
    },
}

/// Has the API show that a volume is an administrator's.
pub async fn prove(volumes: Option<&dyn Volumes>, job: &MountJob) -> Result<(), NotProven> {
    let source = || job.volume.source.clone();
    let volumes = volumes.ok_or_else(|| NotProven::NoApi(source()))?;
    // By the directory, which the kubelet chose: the option of that meaning could be the volume's own.
    let name = job.target.name();
    let answer = tokio::time::timeout(LIMIT.min(job.remaining()), volumes.get(name)).await;
    let answer = answer.map_err(|_| NotProven::NoAnswerInTime(source()))?;
    let volume = answer.map_err(|error| NotProven::NoAnswer(source(), Box::new(error)))?;
    let judged = match &volume {
        None => Err("is none: it is written in a Pod"),
        Some(volume) => is_an_administrators(volume, &job.volume),
    };
    judged.map_err(|why| NotProven::NotTheirs {
        source_of: source(),
        volume: name.to_owned(),
        why,
    })
}

/// Whether a `PersistentVolume` is an administrator's and says what the kubelet said; else what it is instead.
fn is_an_administrators(found: &PersistentVolume, asked: &Volume) -> Result<(), &'static str> {
    let annotations = found.metadata.annotations.as_ref();
    let noted = |key: &str| annotations.is_some_and(|all| all.contains_key(key));
    if [annotations::PROVISIONED_BY, annotations::CONFIG, annotations::REQUEST]
        .into_iter()
        .any(noted)
        || found.metadata.name.as_deref().is_none_or(is_provisioned)
    {
        return Err("was provisioned");
    }
    match kubelet_options::of_persistent_volume(found) {
        None => Err("has another driver"),
        Some(Ok(volume)) if volume == *asked => Ok(()),
        Some(_) => Err("has other options"),
    }
}

/// Whether a `PersistentVolume` has the name of one that is made for a claim: `pvc-<uid>`.
fn is_provisioned(name: &str) -> bool {
    name.strip_prefix("pvc-")
        .is_some_and(|uid| uid.len() == 36 && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'))
}

#[cfg(test)]
mod tests {
    use super::is_an_administrators;
    use k8s_openapi::api::core::v1::PersistentVolume;
    use mooring_contract::volume::Volume;
    use serde_json::{Value, json};

    fn judged(change: impl FnOnce(&mut Value)) -> Result<(), &'static str> {
        let mut volume = json!({
            "metadata": {"name": "disk"},
            "spec": {"flexVolume": {"driver": "mooring.dev/vcs", "fsType": "ext4",
                                    "options": {"client": "disk", "source": "/dev/sdb"}}},
        });
        change(&mut volume);
        let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
        let asked = Volume::from_line("client=disk,source=/dev/sdb,fs-type=ext4").unwrap();
        is_an_administrators(&volume, &asked)
    }

    #[test]
    fn a_persistent_volume_written_by_hand_is_an_administrator_s() {
        assert_eq!(judged(|_| {}), Ok(()));
        assert_eq!(judged(|pv| pv["metadata"]["name"] = json!("pvc-mine")), Ok(()));
        assert_eq!(judged(|pv| pv["metadata"]["annotations"] = json!({"a": "b"})), Ok(()));
    }

    #[test]
    fn by_csi_it_is_the_same_volume_with_the_mount_options_that_stand_beside_it() {
        let csi = |options: Value, mount_options: Value| {
            move |pv: &mut Value| {
                pv["spec"] = json!({"mountOptions": mount_options, "csi": {
                    "driver": "vcs.mooring.dev", "volumeHandle": "x", "fsType": "ext4", "volumeAttributes": options,
                }});
            }
        };
        let options = json!({"client": "disk", "source": "/dev/sdb", "csi.storage.k8s.io/ephemeral": "false"});
        assert_eq!(judged(csi(options.clone(), json!(null))), Ok(()));
        assert_eq!(judged(csi(options.clone(), json!(["ro"]))), Err("has other options"));
        let other = json!({"client": "disk", "source": "/dev/sdc"});
        assert_eq!(judged(csi(other, json!(null))), Err("has other options"));
        let another = judged(|pv| {
            csi(options, json!(null))(pv);
            pv["spec"]["csi"]["driver"] = json!("other.example");
        });
        assert_eq!(another, Err("has another driver"));
    }

    #[test]
    fn one_that_was_provisioned_or_says_something_else_is_not() {
        let uid = "pvc-1b4e28ba-2fa1-11d2-883f-0016d3cca427";
        assert_eq!(judged(|pv| pv["metadata"]["name"] = json!(uid)), Err("was provisioned"));
        for key in [
            "pv.kubernetes.io/provisioned-by",
            "mooring.dev/config",
            "mooring.dev/request",
        ] {
            let refused = judged(|pv| pv["metadata"]["annotations"] = json!({key: "x"}));
            assert_eq!(refused, Err("was provisioned"), "{key}");
        }
        let other = judged(|pv| pv["spec"]["flexVolume"]["driver"] = json!("other/driver"));
        assert_eq!(other, Err("has another driver"));
        for (key, value) in [
            ("source", "/dev/sdc"),
            ("client-image", "a"),
            ("mount-options", "ro"),
            ("fs-type", "xfs"),
        ] {
            let refused = judged(|pv| pv["spec"]["flexVolume"]["options"][key] = json!(value));
            assert_eq!(refused, Err("has other options"), "{key}");
        }
    }
}
