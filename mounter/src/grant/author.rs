//! Who wrote a volume, and so what it may say.

use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use mooring_contract::names::{annotations, labels};
use mooring_contract::volume::clients::NODE_CLIENTS;
use mooring_contract::volume::{ClientName, Speaker, Volume};
use serde::{Deserialize, Serialize};

use crate::volume::job::MountError;

/// Who wrote a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Author {
    /// Someone who may write `PersistentVolumes`.
    Administrator,
    /// A provisioner image: the PersistentVolume was made for a claim.
    Image,
    /// Mooring's controller, in the Pod of a run, from a ConfigMap's `backend-volume` or `backup-volume`.
    Run,
    /// The author of a Pod.
    Tenant,
}

impl Author {
    /// Of a PersistentVolume. Those that were made for a claim are all named after the claim's uid, to which admission
    /// policies hold the controller and the images (`mooring-controller-volumes`, `mooring-volume-makers`).
    pub(super) fn of_persistent_volume(found: &PersistentVolume) -> Self {
        let noted = found.metadata.annotations.as_ref();
        let is_noted = |key: &str| noted.is_some_and(|all| all.contains_key(key));
        let was_provisioned = [annotations::PROVISIONED_BY, annotations::CONFIG, annotations::REQUEST]
            .into_iter()
            .any(is_noted)
            || found.metadata.name.as_deref().is_none_or(is_of_a_claim);
        if was_provisioned {
            Self::Image
        } else {
            Self::Administrator
        }
    }

    fn speaker(self) -> Speaker {
        match self {
            Self::Administrator => Speaker::Administrator,
            Self::Image | Self::Run => Speaker::Image,
            Self::Tenant => Speaker::Tenant,
        }
    }

    /// Those of the [`NODE_CLIENTS`] that it may name.
    fn node_clients(self) -> &'static [&'static str] {
        match self {
            Self::Administrator => &NODE_CLIENTS,
            Self::Image => &[ClientName::LOCAL],
            // A local volume is a claim's.
            Self::Run => &[ClientName::POOL],
            Self::Tenant => &[],
        }
    }

    /// Judges a volume of this author's.
    pub(super) fn judge(self, volume: &Volume) -> Result<(), Misfit> {
        let client = volume.client.as_str();
        if NODE_CLIENTS.contains(&client) && !self.node_clients().contains(&client) {
            return Err(Misfit::NodeClient {
                client: client.to_owned(),
                author: self,
            });
        }
        // A class may have asked for mount options of a provisioned volume: the controller saw to that.
        let granted = match self {
            Self::Image => volume.mount_options.as_slice(),
            Self::Administrator | Self::Run | Self::Tenant => &[],
        };
        check(volume, self.speaker(), granted)
    }
}

/// Checks all that a volume says.
pub(super) fn check(volume: &Volume, speaker: Speaker, granted: &[String]) -> Result<(), Misfit> {
    let checked = volume.check(speaker, granted);
    checked.map_err(|error| Misfit::Options(MountError::bad_options(error)))
}

/// A volume says what its author may not say.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    #[error("{}", node_client(client, *author))]
    NodeClient { client: String, author: Author },
    #[error(transparent)]
    Options(MountError),
}

fn node_client(client: &str, author: Author) -> String {
    let (place, cure) = match author {
        Author::Tenant => ("a Pod's own volume", "use a PersistentVolumeClaim"),
        Author::Run => (
            "backend-volume or backup-volume of a ConfigMap",
            "name the node's pool or storage elsewhere",
        ),
        Author::Image | Author::Administrator => (
            "a volume that was provisioned",
            "have the image print the client that reaches its storage",
        ),
    };
    format!("client {client} gives out the node's own storage, and is not allowed in {place}: {cure}")
}

/// Whether a PersistentVolume has the name of one that is made for a claim: `pvc-<uid>`.
pub(super) fn is_of_a_claim(name: &str) -> bool {
    name.strip_prefix("pvc-")
        .is_some_and(|uid| uid.len() == 36 && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'))
}

/// Whether a Pod has the label of a run's. An admission policy (`mooring-run-pods`) lets nobody but the controller give
/// it to a Pod with volumes of Mooring's.
pub(super) fn looks_like_a_run(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|all| all.get(labels::COMPONENT)).map(String::as_str) == Some(labels::COMPONENT_PROVISIONING)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolume;
    use mooring_contract::volume::Volume;
    use serde_json::json;

    use super::Author::{self, Administrator, Image, Run, Tenant};

    #[test]
    fn a_persistent_volume_is_an_administrator_s_unless_it_was_provisioned() {
        let author = |name: &str, annotation: &str| {
            let volume = json!({"metadata": {"name": name, "annotations": {annotation: "x"}}});
            let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
            Author::of_persistent_volume(&volume)
        };
        for name in ["disk", "pvc-mine"] {
            assert_eq!(author(name, "a"), Administrator, "{name}");
        }
        assert_eq!(author("pvc-1b4e28ba-2fa1-11d2-883f-0016d3cca427", "a"), Image);
        for key in [
            "pv.kubernetes.io/provisioned-by",
            "mooring.dev/config",
            "mooring.dev/request",
        ] {
            assert_eq!(author("disk", key), Image, "{key}");
        }
        assert_eq!(Author::of_persistent_volume(&PersistentVolume::default()), Image);
    }

    /// Proves: M5
    #[test]
    fn each_author_may_say_what_the_client_s_record_lets_them_say() {
        let all = [Administrator, Image, Run, Tenant];
        for (line, wanted) in [
            ("client=nfs,source=h:/x", &all[..]),
            ("client=local,source=a.img", &[Administrator, Image]),
            ("client=pool,source=", &[Administrator, Run]),
            ("client=host,source=h:/x,fs-type=nfs", &[Administrator]),
            ("client=disk,source=/dev/sda", &[Administrator]),
            ("client=disk,source=UUID=1-2", &[Administrator]),
            ("client=node-disk,source=serial://1", &[Administrator]),
            ("client=nfs,source=h:/x/../y", &[Administrator]),
            (
                "client=nfs,source=h:/x,client-image=a/b:1",
                &[Administrator, Image, Run],
            ),
            ("client=sshfs,source=a:/b,port=23", &[Administrator, Image, Run]),
            (
                "client=nfs,source=h:/x,mount-options=vers=4.1",
                &[Administrator, Image, Run],
            ),
            // A class may have asked for it.
            ("client=nfs,source=h:/x,mount-options=suid", &[Administrator, Image]),
            ("client=nfs,source=h:/x,mount-options=bind", &[]),
            ("client=nfs,source=//dev/loop1", &[]),
            ("client=nfs,source=h:/x,server=dead", &[]),
            ("client=nfs,source=h:/x,fs-type=ext4", &[]),
            ("client=x,source=h:/x,fs-type=overlay", &[]),
        ] {
            let volume = Volume::from_line(line).unwrap();
            let may: Vec<_> = all.into_iter().filter(|author| author.judge(&volume).is_ok()).collect();
            assert_eq!(may, wanted, "{line}");
        }
    }
}
