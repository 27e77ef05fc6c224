//! A request to mount a volume (`NodePublishVolume`), read as the kubelet writes it (`pkg/volume/csi` of Kubernetes).

use std::path::Path;

use mooring_contract::volume::VolumeError;
use mooring_csi_proto::csi::NodePublishVolumeRequest;
use mooring_csi_proto::csi::volume_capability::access_mode::Mode;
use mooring_csi_proto::csi::volume_capability::{AccessType, MountVolume};

use crate::grant::request::{MountRequest, Told};
use crate::volume::job::{Access, PodRef, Secrets};
use crate::volume::kubelet_options::{self, CSI_PREFIX};
use crate::volume::pod_group::PodGroup;
use crate::volume::selinux_label::SelinuxLabel;
use crate::volume::target::{Target, TargetError};

#[derive(Debug, thiserror::Error)]
pub(super) enum CsiRequestError {
    /// A field that every such request has.
    #[error("the request has no {0}")]
    Missing(&'static str),
    #[error("the request has an access mode that CSI does not know: use one of a PersistentVolume's")]
    AccessMode,
    /// A directory for a device, or a file for a file system.
    #[error("{0:?} is not a path for a volume of this volumeMode: Mooring did nothing")]
    OtherAccess(String),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("{0:?} is not the number of a group")]
    Group(String),
    #[error("{0} is not a size in bytes")]
    Size(i64),
    #[error("no volume has at least {required} and at most {limit} bytes")]
    Range {
        /// The least number of bytes that was asked for.
        required: u64,
        /// The most bytes that are allowed.
        limit: u64,
    },
}

/// The directory, or the file of a raw block volume, that a request names.
pub(super) fn target(root: &Path, path: &str) -> Result<Target, CsiRequestError> {
    if path.is_empty() {
        return Err(CsiRequestError::Missing("target path"));
    }
    Ok(Target::parse_csi(root, path)?)
}

/// The same, in a request about a volume that is mounted: for a raw block volume, the kubelet may name its own mount of
/// it.
pub(super) fn mounted(root: &Path, path: &str) -> Result<Target, CsiRequestError> {
    match Target::parse_device_map(root, path) {
        Err(_) => target(root, path),
        device => Ok(device?),
    }
}

/// Fails if a request says of no volume that it is about it.
pub(super) fn named(volume_id: &str) -> Result<(), CsiRequestError> {
    if volume_id.is_empty() {
        return Err(CsiRequestError::Missing("volume id"));
    }
    Ok(())
}

/// The mount that is asked for; `root` is the kubelet's root.
pub(super) fn mount(request: NodePublishVolumeRequest, root: &Path) -> Result<MountRequest, CsiRequestError> {
    named(&request.volume_id)?;
    let target = target(root, &request.target_path)?;
    let capability = request.volume_capability.unwrap_or_default();
    let (sole, only_read) = match capability.access_mode.map(|mode| Mode::try_from(mode.mode)) {
        Some(Ok(Mode::Unknown) | Err(_)) => return Err(CsiRequestError::AccessMode),
        Some(Ok(Mode::SingleNodeSingleWriter)) => (true, false),
        // How many nodes may have it, nobody on one of them can tell.
        Some(Ok(Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)) => (false, true),
        None
        | Some(Ok(
            Mode::SingleNodeWriter
            | Mode::SingleNodeMultiWriter
            | Mode::MultiNodeSingleWriter
            | Mode::MultiNodeMultiWriter,
        )) => (false, false),
    };
    let (access, mount) = match capability.access_type {
        Some(AccessType::Mount(mount)) => (Access::FileSystem, mount),
        Some(AccessType::Block(_)) => (Access::Device, MountVolume::default()),
        None => return Err(CsiRequestError::Missing("volume capability")),
    };
    if target.is_device() != (access == Access::Device) {
        return Err(CsiRequestError::OtherAccess(request.target_path));
    }
    let mut options: std::collections::BTreeMap<_, _> = request.volume_context.into_iter().collect();
    // The kubelet's own go before those of the volume. The uid comes from the directory.
    let mut take = |name: &str| options.remove(&format!("{CSI_PREFIX}{name}")).unwrap_or_default();
    let pod = PodRef {
        name: take("pod.name"),
        namespace: take("pod.namespace"),
        uid: target.pod_uid().to_owned(),
    };
    let ephemeral = match take("ephemeral").as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    };
    let volume = kubelet_options::volume(options, CSI_PREFIX, &mount.fs_type, &mount.mount_flags)?;
    // A claim says that a file system is only to be read by readOnly; a device has no mount options.
    let read_only = request.readonly || (only_read && access == Access::Device);
    // The kubelet's comes after what `mountOptions` of the PersistentVolume has.
    let label = mount.mount_flags.iter().rev().find_map(|flag| SelinuxLabel::of(flag));
    let fs_group = match mount.volume_mount_group.as_str() {
        "" => None,
        group => {
            let group = group.parse().map_err(|_| CsiRequestError::Group(group.to_owned()))?;
            Some(PodGroup::always(group))
        }
    };
    let secrets = request.secrets.into_iter();
    Ok(MountRequest {
        told: Told::Csi {
            ephemeral,
            volume_id: request.volume_id,
        },
        volume,
        secrets: Secrets(secrets.map(|(key, value)| (key, value.into_bytes())).collect()),
        target,
        access,
        sole,
        read_only,
        only_read,
        fs_group,
        label,
        pod,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mooring_csi_proto::csi::volume_capability::access_mode::Mode;
    use mooring_csi_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
    use mooring_csi_proto::csi::{NodePublishVolumeRequest, VolumeCapability};

    use super::{CsiRequestError, mount};
    use crate::grant::request::{MountRequest, Told};
    use crate::volume::job::Access;
    use crate::volume::pod_group::PodGroup;

    const TARGET: &str = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pv-1/mount";
    const DEVICE: &str = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv-1/u-1";

    fn capability(access_type: AccessType) -> VolumeCapability {
        VolumeCapability {
            access_type: Some(access_type),
            ..VolumeCapability::default()
        }
    }

    fn request(options: &[(&str, &str)]) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: "handle".into(),
            target_path: TARGET.into(),
            volume_capability: Some(capability(AccessType::Mount(MountVolume {
                fs_type: "ext4".into(),
                mount_flags: vec!["noatime".into(), "context=\"u:r:t:s0:c1,c2\"".into()],
                volume_mount_group: "2000".into(),
            }))),
            secrets: [("key".to_owned(), "hunter2".to_owned())].into(),
            volume_context: options
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            ..NodePublishVolumeRequest::default()
        }
    }

    fn read(request: NodePublishVolumeRequest) -> Result<MountRequest, CsiRequestError> {
        mount(request, Path::new("/var/lib/kubelet"))
    }

    #[test]
    fn a_request_is_read_as_the_kubelet_writes_it() {
        let options = [
            ("client", "sshfs"),
            ("source", "tom@h:/x"),
            ("port", "22"),
            ("csi.storage.k8s.io/pod.name", "web-0"),
            ("csi.storage.k8s.io/pod.namespace", "shop"),
            ("csi.storage.k8s.io/pod.uid", "forged"),
            ("csi.storage.k8s.io/serviceAccount.name", "default"),
            ("csi.storage.k8s.io/ephemeral", "false"),
        ];
        let job = read(request(&options)).unwrap();
        assert_eq!(job.volume.client.as_str(), "sshfs");
        assert_eq!(job.volume.fs_type, "ext4");
        assert_eq!(job.volume.mount_options, ["noatime"]);
        assert_eq!(job.fs_group, Some(PodGroup::always(2000)));
        assert_eq!(job.label.unwrap().as_str(), "u:r:t:s0:c1,c2");
        assert_eq!(job.volume.rest.keys().collect::<Vec<_>>(), ["port"]);
        assert_eq!(job.secrets.0["key"], b"hunter2");
        assert_eq!((job.pod.namespace.as_str(), job.pod.uid.as_str()), ("shop", "u-1"));
        assert_eq!((job.target.name(), job.read_only), ("pv-1", false));
    }

    /// Only the kubelet's own word counts.
    #[test]
    fn the_kubelet_says_whether_a_pod_has_the_volume_in_its_own_spec() {
        for (said, wanted) in [
            (Some("true"), Some(true)),
            (Some("false"), Some(false)),
            (Some(""), None),
            (Some("TRUE"), None),
            (None, None),
        ] {
            let mut options = vec![("client", "nfs"), ("source", "h:/x")];
            options.extend(said.map(|said| ("csi.storage.k8s.io/ephemeral", said)));
            let told = Told::Csi {
                ephemeral: wanted,
                volume_id: "handle".into(),
            };
            assert_eq!(read(request(&options)).unwrap().told, told, "{said:?}");
        }
    }

    #[test]
    fn a_volume_is_read_only_by_the_request() {
        let mut readonly = request(&[("client", "nfs"), ("source", "h:/x")]);
        readonly.readonly = true;
        assert!(read(readonly).unwrap().read_only);
    }

    #[test]
    fn a_raw_block_volume_is_the_same_volume_at_another_place() {
        let mut request = request(&[("client", "local"), ("source", "a")]);
        request.target_path = DEVICE.into();
        request.volume_capability = Some(capability(AccessType::Block(BlockVolume {})));
        let mut for_readers = request.clone();
        let job = read(request).unwrap();
        assert_eq!(
            (job.access, job.read_only, job.only_read),
            (Access::Device, false, false)
        );
        assert_eq!((job.target.name(), job.pod.uid.as_str()), ("pv-1", "u-1"));
        assert!(job.volume.fs_type.is_empty() && job.volume.mount_options.is_empty());

        let mode = Some(AccessMode {
            mode: Mode::MultiNodeReaderOnly.into(),
        });
        for_readers.volume_capability.as_mut().unwrap().access_mode = mode;
        let job = read(for_readers).unwrap();
        assert!(job.read_only && job.only_read);
    }

    /// The kubelet says so once it has seen the capability `SINGLE_NODE_MULTI_WRITER`.
    #[test]
    fn a_volume_is_for_one_pod_by_its_access_mode() {
        let with = |mode: i32| {
            let mut request = request(&[("client", "local"), ("source", "a")]);
            request.volume_capability.as_mut().unwrap().access_mode = Some(AccessMode { mode });
            read(request).map(|job| job.sole)
        };
        assert!(with(Mode::SingleNodeSingleWriter.into()).unwrap());
        for shared in [
            Mode::SingleNodeMultiWriter,
            Mode::SingleNodeWriter,
            Mode::MultiNodeMultiWriter,
        ] {
            assert!(!with(shared.into()).unwrap(), "{shared:?}");
        }
        for unknown in [0, 99] {
            assert!(matches!(with(unknown), Err(CsiRequestError::AccessMode)), "{unknown}");
        }
    }

    #[test]
    fn malformed_requests_are_told_what_is_wrong() {
        let options = [("client", "nfs"), ("source", "h:/x")];
        let with = |change: &dyn Fn(&mut NodePublishVolumeRequest)| {
            let mut request = request(&options);
            change(&mut request);
            read(request).unwrap_err().to_string()
        };
        for (found, words) in [
            (with(&|request| request.volume_id.clear()), "no volume id"),
            (with(&|request| request.target_path.clear()), "no target path"),
            (
                with(&|request| request.target_path = "/etc".into()),
                "not under the kubelet's root",
            ),
            (
                with(&|request| request.target_path = TARGET.replace("/mount", "")),
                "not a directory of one of",
            ),
            (
                with(&|request| request.volume_capability = None),
                "no volume capability",
            ),
            (
                with(&|request| request.volume_capability = Some(capability(AccessType::Block(BlockVolume {})))),
                "of this volumeMode",
            ),
            (
                with(&|request| request.target_path = DEVICE.into()),
                "of this volumeMode",
            ),
            (
                with(&|request| request.target_path = DEVICE.replace("/publish/", "/")),
                "not a directory of one of",
            ),
            (with(&|request| request.volume_context.clear()), "\"client\" is missing"),
        ] {
            assert!(found.contains(words), "{found}");
        }
    }
}
