//! Client Pods of an earlier version: they get no new mounts, and end with their last one.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use mooring_contract::image::ImageRef;
use mooring_contract::names::{annotations, labels};

use crate::agent::protocol::MountState;
use crate::volume::registry::Serving;

/// Most Pods that are named as the users of an old client Pod's volumes.
const NAMED: usize = 3;

/// What a client Pod was made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    client: String,
    /// Its image, the name in full.
    image: String,
    /// The image that its agent was copied from, the name in full.
    agent_image: String,
    /// Whether volumes name its image: who serves the client doesn't matter then.
    by_volume: bool,
}

impl Origin {
    /// Reads it from a Pod; `None` if no mounter made that Pod.
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let by_volume = pod.annotations().get(annotations::IMAGE_BY);
        Some(Self {
            client: pod.labels().get(labels::CLIENT)?.clone(),
            image: spec.containers.first()?.image.clone()?,
            agent_image: spec.init_containers.as_ref()?.first()?.image.clone()?,
            by_volume: by_volume.is_some_and(|by| by == annotations::IMAGE_BY_VOLUME),
        })
    }

    pub(super) fn image(&self) -> &str {
        &self.image
    }

    /// Whether volumes name its image.
    pub(super) fn is_by_volume(&self) -> bool {
        self.by_volume
    }

    /// Whether a Pod of this origin gets no new mounts any more.
    pub(super) fn is_old(&self, agent_image: &str, servings: &BTreeMap<String, Serving>) -> bool {
        if self.agent_image != agent_image {
            return true;
        }
        !self.by_volume
            && match servings.get(&self.client) {
                Some(Serving::Container(image)) => full_name(image) != self.image,
                // Another image or mode serves the client by now, or none does.
                _ => true,
            }
    }
}

/// The image's name in full, as Pods have it.
fn full_name(image: &str) -> String {
    let parsed: Result<ImageRef, _> = image.parse();
    parsed.map_or_else(|_| image.to_owned(), |image| image.to_string())
}

/// An old client Pod, as the status shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldPod {
    pub name: String,
    pub image: String,
    /// The image that its agent was copied from.
    pub agent_image: String,
    /// The Pods that use its volumes, one for each volume; nothing if its agent does not say.
    pub users: Option<Vec<String>>,
}

impl OldPod {
    pub(super) fn new(name: String, origin: Origin, mounts: Option<&[MountState]>) -> Self {
        let Origin { image, agent_image, .. } = origin;
        let user = |mount: &MountState| format!("{}/{}", mount.pod.namespace, mount.pod.name);
        let users = mounts.map(|mounts| {
            let mut users: Vec<_> = mounts.iter().filter(|mount| !mount.is_lost()).map(user).collect();
            users.sort();
            users
        });
        Self {
            name,
            image,
            agent_image,
            users,
        }
    }

    pub fn text(&self) -> String {
        let Self {
            name,
            image,
            agent_image,
            users,
        } = self;
        let users = match users.as_deref() {
            None => "does not say what it serves".to_owned(),
            Some([]) => "serves nothing and is about to be deleted".to_owned(),
            Some(users) => {
                let mut named = users.to_vec();
                named.dedup();
                let more = match named.len().saturating_sub(NAMED) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                named.truncate(NAMED);
                format!("serves {} volumes: Pods {}{more}", users.len(), named.join(", "))
            }
        };
        format!("{name} ({image}, agent of {agent_image}) {users}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::{MountHealth, Reviving};
    use crate::volume::job::PodRef;

    const AGENT: &str = "mooring.dev/mounter:2";

    fn origin(client: &str, image: &str, agent_image: &str) -> Origin {
        Origin {
            client: client.into(),
            image: image.into(),
            agent_image: agent_image.into(),
            by_volume: false,
        }
    }

    #[test]
    fn a_pod_is_old_when_no_new_mount_can_come_to_it() {
        let container = |image: &str| Serving::Container(image.to_owned());
        let servings = [
            ("sshfs", container("mooring.dev/client-sshfs:2")),
            ("short", container("short:1")),
            ("nfs", Serving::Kernel),
        ];
        let servings = servings.map(|(client, serving)| (client.to_owned(), serving)).into();
        for (origin, is_old) in [
            (origin("sshfs", "mooring.dev/client-sshfs:2", AGENT), false),
            (origin("sshfs", "mooring.dev/client-sshfs:1", AGENT), true),
            (
                origin("sshfs", "mooring.dev/client-sshfs:2", "mooring.dev/mounter:1"),
                true,
            ),
            (origin("short", "docker.io/library/short:1", AGENT), false),
            (origin("nfs", "mooring.dev/client-nfs:1", AGENT), true),
            (origin("gone", "mooring.dev/client-gone:1", AGENT), true),
        ] {
            assert_eq!(origin.is_old(AGENT, &servings), is_old, "{origin:?}");
            let by_volume = Origin {
                by_volume: true,
                ..origin
            };
            assert_eq!(
                by_volume.is_old(AGENT, &servings),
                by_volume.agent_image != AGENT,
                "{by_volume:?}"
            );
        }
    }

    #[test]
    fn what_a_pod_was_made_of_is_read_from_it() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"labels": {"mooring.dev/client": "sshfs"}, "annotations": {"mooring.dev/image-by": "volume"}},
            "spec": {"containers": [{"name": "client", "image": "a:1"}], "initContainers": [{"name": "agent", "image": AGENT}]},
        }))
        .unwrap();
        let expected = Origin {
            by_volume: true,
            ..origin("sshfs", "a:1", AGENT)
        };
        assert_eq!(Origin::of(&pod), Some(expected));
        assert_eq!(Origin::of(&Pod::default()), None);
    }

    #[test]
    fn the_status_names_who_uses_it_and_leaves_out_lost_volumes() {
        let mount = |name: &str, health| MountState {
            target: String::new(),
            client: "sshfs".into(),
            source: String::new(),
            pod: PodRef {
                name: name.into(),
                namespace: "team".into(),
                uid: String::new(),
            },
            health,
            dead: None,
            reviving: None,
            silent_ms: None,
            on_device: false,
            clean_up_failure: None,
            by_owner: None,
        };
        let mut reviving = mount("e", MountHealth::Dead);
        reviving.reviving = Some(Reviving::default());
        let mounts = [
            mount("b", MountHealth::Mounted),
            mount("a", MountHealth::Mounted),
            mount("a", MountHealth::Busy),
            mount("lost", MountHealth::Dead),
            mount("c", MountHealth::Mounted),
            reviving,
        ];
        let old = |mounts| OldPod::new("p".into(), origin("sshfs", "i:1", "m:1"), mounts).text();
        assert_eq!(
            old(Some(&mounts)),
            "p (i:1, agent of m:1) serves 5 volumes: Pods team/a, team/b, team/c and 1 more"
        );
        assert!(old(Some(&mounts[3..4])).contains("about to be deleted"));
        assert!(old(None).contains("does not say"));
    }
}
