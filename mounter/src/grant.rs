//! What a call of the kubelet may mount, decided once and carried as one value.
//!
//! A [`request::MountRequest`] is what the kubelet said, and proves nothing. The [`granter::Granter`] asks the API who
//! wrote the volume, judges the volume as its [`Author`]'s, and makes a [`Grant`]. Nothing else can make one, and
//! nothing past that point can change what a grant says. A volume that has to be attached is granted in two steps: a
//! [`ToAttach`] becomes a grant by the connection that the controller signed.
//!
//! Files: [`request`] (what is asked for), [`granter`] (the proof), [`author`] (who may say what), `attach` (the second
//! step). See `docs/decisions/grant.md`.

mod attach;
pub mod author;
pub mod granter;
pub mod request;

use mooring_contract::volume::Volume;
use serde::{Deserialize, Serialize};

use self::author::Author;
use self::request::MountRequest;
use crate::volume::device_owner::DeviceOwner;
use crate::volume::job::{Access, PodRef, Secrets};
use crate::volume::pod_group::PodGroup;
use crate::volume::selinux_label::SelinuxLabel;
use crate::volume::target::Target;

pub(crate) use self::attach::needs_attachment;
pub use self::attach::{ConnectionError, ToAttach};

/// One mount that may be made.
#[derive(Debug, Clone)]
pub struct Grant {
    author: Author,
    /// What was asked for, with the volume as it was judged, and the Pod's group, in place of what the kubelet said of
    /// them.
    asked: MountRequest,
}

/// A grant on its way from the daemon to a worker, by a pipe that nobody else has. A [`Grant`] itself can be read from
/// nothing.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Grant")]
pub(crate) struct GrantForWorker {
    author: Author,
    asked: MountRequest,
}

/// What came of a request that is granted.
#[derive(Debug)]
pub enum Granted {
    /// It can be mounted.
    Now(Box<Grant>),
    /// Its node has to have it first.
    ToAttach(Box<ToAttach>),
}

impl Grant {
    /// Of a volume that was judged as its author's.
    fn new(author: Author, volume: Volume, request: MountRequest) -> Self {
        let asked = MountRequest { volume, ..request };
        Self { author, asked }
    }

    /// Who wrote the volume.
    pub fn author(&self) -> Author {
        self.author
    }

    pub fn volume(&self) -> &Volume {
        &self.asked.volume
    }

    pub fn secrets(&self) -> &Secrets {
        &self.asked.secrets
    }

    pub fn target(&self) -> &Target {
        &self.asked.target
    }

    /// The volume, for whoever has to know whether two mounts are of one: all Pods that use it are granted the same
    /// owner.
    pub fn owner(&self) -> DeviceOwner {
        let name = self.target().name();
        match self.author {
            Author::Administrator | Author::Image => DeviceOwner::persistent_volume(name),
            Author::Run | Author::Tenant => DeviceOwner::inline(&self.pod().namespace, name),
        }
    }

    pub fn access(&self) -> Access {
        self.asked.access
    }

    /// Whether no other Pod may have it (`ReadWriteOncePod`). The kubelet and the scheduler see to that as well.
    pub fn is_sole(&self) -> bool {
        self.asked.sole
    }

    /// Whether the Pod can't write it.
    pub fn is_read_only(&self) -> bool {
        self.asked.read_only || self.asked.volume.mount_options.iter().any(|option| option == "ro")
    }

    /// Whether no Pod may write it, by its access mode: one device serves several Pods.
    pub fn is_only_read(&self) -> bool {
        self.asked.only_read
    }

    /// The group that the volume's files should belong to.
    pub fn fs_group(&self) -> Option<PodGroup> {
        self.asked.fs_group
    }

    /// The label that the mount is to give to all files.
    pub fn label(&self) -> Option<&SelinuxLabel> {
        self.asked.label.as_ref()
    }

    pub fn pod(&self) -> &PodRef {
        &self.asked.pod
    }

    /// Whether the volume itself names the client image.
    pub fn is_image_by_volume(&self) -> bool {
        self.asked.volume.client_image.is_some()
    }

    /// The server that the volume lives on, for the Event and for its circuit breaker; see [`Volume::server`].
    pub fn server(&self) -> String {
        self.asked.volume.server().to_owned()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use mooring_contract::volume::Volume;

    use super::Grant;
    use super::author::Author;
    use super::request::MountRequest;
    use super::request::tests::request;
    use crate::volume::target::Target;

    /// What an administrator's volume is granted.
    pub(crate) fn granted(request: MountRequest) -> Grant {
        Grant::new(Author::Administrator, request.volume.clone(), request)
    }

    /// An administrator's volume on a target.
    pub(crate) fn grant(line: &str, target: Target) -> Grant {
        granted(request(Volume::from_line(line).unwrap(), target))
    }

    #[test]
    fn all_pods_of_a_volume_have_one_owner_and_no_volume_has_that_of_another() {
        let of = |author, pod: &str, namespace: &str| {
            let target = crate::sys::fake::target().of_pod(pod);
            let mut grant = grant("client=block,source=nbd://h/e", target);
            grant.author = author;
            grant.asked.pod.namespace = namespace.to_owned();
            grant.owner()
        };
        let persistent = of(Author::Administrator, "u", "shop");
        assert_eq!(persistent, of(Author::Image, "w", "other"));
        let inline = of(Author::Tenant, "u", "shop");
        assert_eq!(inline, of(Author::Tenant, "w", "shop"));
        for other in [&persistent, &of(Author::Tenant, "u", "other")] {
            assert_ne!(*other, inline);
        }
    }

    #[test]
    fn a_volume_is_read_only_by_its_mount_options_too() {
        let target = crate::sys::fake::target;
        assert!(!grant("client=nfs,source=h:/x", target()).is_read_only());
        assert!(grant("client=nfs,source=h:/x,mount-options=ro", target()).is_read_only());
    }
}
