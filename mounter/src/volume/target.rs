//! The directory that a volume is mounted on, or the file that its device is shown at, and the only way to it.
//!
//! Nothing outside the kubelet's volume directories is ever touched. A target is checked twice: its text has exactly
//! the form that the kubelet gives it, and it is opened beneath a handle of the kubelet's root with no symbolic link on
//! the way.
//!
//! | driver | directory or file beneath the kubelet's root | who makes it |
//! | --- | --- | --- |
//! | `FlexVolume` | `pods/<uid>/volumes/mooring.dev~vcs/<name>` | the kubelet |
//! | CSI | `pods/<uid>/volumes/kubernetes.io~csi/<name>/mount` | the driver; its parent is the kubelet's |
//! | CSI, raw block | `plugins/kubernetes.io/csi/volumeDevices/publish/<name>/<uid>`, a file | as above |
//!
//! The last is as `pkg/volume/csi/csi_block.go` of Kubernetes has it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use mooring_contract::names;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};

use crate::volume::mount_table::DeviceNumber;

/// How a path is opened beneath a directory: never out of it, and through no link.
pub const CONFINED: ResolveFlag = ResolveFlag::RESOLVE_BENEATH
    .union(ResolveFlag::RESOLVE_NO_SYMLINKS)
    .union(ResolveFlag::RESOLVE_NO_MAGICLINKS);

/// The type in a file's mode.
pub fn file_type(file: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(file.st_mode) & SFlag::S_IFMT
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error(
        "{path:?} is not under the kubelet's root {root:?}: start the mounter with --kubelet-root as the kubelet's \
         --root-dir says"
    )]
    OutsideRoot {
        path: PathBuf,
        /// The root that the mounter knows.
        root: PathBuf,
    },
    #[error("{path:?} is not a directory of one of Mooring's volumes ({wanted}): nothing was done")]
    NotAVolume {
        path: PathBuf,
        /// The form of such a path.
        wanted: &'static str,
    },
    #[error("volume directory {0:?} does not exist: the kubelet creates it again")]
    Missing(PathBuf),
    /// A symbolic link or the like is in its way.
    #[error(
        "{path:?} can't be reached from the kubelet's root without following a link: nothing was done; see who put it \
         there"
    )]
    Link { path: PathBuf },
    #[error("failed to open volume directory {path:?}: {}", io::Error::from(*source))]
    Open { path: PathBuf, source: Errno },
    #[error("failed to make volume directory {path:?}: {}", io::Error::from(*source))]
    Make { path: PathBuf, source: Errno },
    #[error("failed to remove volume directory {path:?}: {}", io::Error::from(*source))]
    Remove { path: PathBuf, source: Errno },
}

/// By which driver the kubelet has a volume mounted: that gives its directory the form that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    FlexVolume,
    Csi,
    /// CSI, for a raw block volume: the target is a file, on which its device is put.
    CsiDevice,
}

impl Driver {
    /// The form, in words.
    fn form(self) -> &'static str {
        match self {
            Self::FlexVolume => "pods/<uid>/volumes/mooring.dev~vcs/<name>",
            Self::Csi => "pods/<uid>/volumes/kubernetes.io~csi/<name>/mount",
            Self::CsiDevice => "plugins/kubernetes.io/csi/volumeDevices/publish/<name>/<uid>",
        }
    }
}

/// The directory of [`names::CSI_DEVICES_DIR`] with a file for each Pod that has a volume.
const PUBLISHED: &str = "publish";

/// A volume's directory, or its file, in the form that the kubelet gives it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Target {
    root: PathBuf,
    pod_uid: String,
    driver: Driver,
    name: String,
}

impl Target {
    /// Reads the directory that a volume is mounted on, whichever driver mounts it; `root` is the kubelet's root.
    ///
    /// # Errors
    /// Anything that is not literally of the form that one of the drivers has. The file of a raw block volume: nothing
    /// is mounted on it that could be revived.
    pub fn parse(root: &Path, directory: &str) -> Result<Self, TargetError> {
        match Self::parse_as(Driver::Csi, root, directory) {
            Err(TargetError::NotAVolume { .. }) => Self::parse_as(Driver::FlexVolume, root, directory),
            parsed => parsed,
        }
    }

    /// Reads any target: the directory of a volume, or the file of a raw block volume; `root` is the kubelet's root.
    ///
    /// # Errors
    /// Anything that is not literally of the form that one of the drivers has.
    pub fn parse_any(root: &Path, path: &str) -> Result<Self, TargetError> {
        match Self::parse_as(Driver::CsiDevice, root, path) {
            Err(TargetError::NotAVolume { .. }) => Self::parse(root, path),
            parsed => parsed,
        }
    }

    /// Reads the directory that the kubelet names to one driver; `root` is the kubelet's root.
    ///
    /// # Errors
    /// Anything that is not literally of the form that this driver has.
    pub fn parse_as(driver: Driver, root: &Path, directory: &str) -> Result<Self, TargetError> {
        let path = Path::new(directory);
        let relative = path.strip_prefix(root).map_err(|_| TargetError::OutsideRoot {
            path: path.to_owned(),
            root: root.to_owned(),
        })?;
        let not_a_volume = || TargetError::NotAVolume {
            path: path.to_owned(),
            wanted: driver.form(),
        };
        let names: Vec<&str> = relative
            .components()
            .map(|component| match component {
                Component::Normal(name) => name.to_str().filter(|name| is_plain(name)),
                _ => None,
            })
            .collect::<Option<_>>()
            .ok_or_else(not_a_volume)?;
        let (uid, name) = match (driver, names.as_slice()) {
            (Driver::FlexVolume, ["pods", uid, "volumes", names::FLEX_DRIVER_DIR, name])
            | (Driver::Csi, ["pods", uid, "volumes", names::CSI_VOLUMES_DIR, name, names::CSI_TARGET]) => (uid, name),
            (Driver::CsiDevice, [devices @ .., PUBLISHED, name, uid]) if devices == names::CSI_DEVICES_DIR => {
                (uid, name)
            }
            _ => return Err(not_a_volume()),
        };
        Ok(Self {
            root: root.to_owned(),
            pod_uid: (*uid).to_owned(),
            driver,
            name: (*name).to_owned(),
        })
    }

    /// Reads what the kubelet names to the CSI driver: a directory, or the file of a raw block volume.
    ///
    /// # Errors
    /// Anything that is not literally of one of the two forms.
    pub fn parse_csi(root: &Path, path: &str) -> Result<Self, TargetError> {
        match Self::parse_as(Driver::CsiDevice, root, path) {
            Err(TargetError::NotAVolume { .. }) => Self::parse_as(Driver::Csi, root, path),
            parsed => parsed,
        }
    }

    /// Where the kubelet's CSI plugin has the same device for itself, in place of the target: it asks for a raw block
    /// volume's statistics by that path.
    ///
    /// # Errors
    /// Anything that is not literally of that form.
    pub fn parse_device_map(root: &Path, path: &str) -> Result<Self, TargetError> {
        let map = root.join(names::CSI_DEVICES_DIR.iter().collect::<PathBuf>());
        let names = Path::new(path)
            .strip_prefix(map)
            .ok()
            .map(|rest| rest.iter().collect::<Vec<_>>());
        let target = match names.as_deref() {
            Some([name, dev, uid]) if *dev == "dev" => published(root).join(name).join(uid),
            _ => PathBuf::from(path),
        };
        Self::parse_as(Driver::CsiDevice, root, &target.to_string_lossy())
    }

    /// By which driver the kubelet has it mounted.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Whether it is the file of a raw block volume.
    pub fn is_device(&self) -> bool {
        self.driver == Driver::CsiDevice
    }

    /// The Pod's uid, as in the path.
    pub fn pod_uid(&self) -> &str {
        &self.pod_uid
    }

    /// The target of the same volume for another Pod.
    #[must_use]
    pub fn of_pod(&self, uid: &str) -> Self {
        Self {
            pod_uid: uid.to_owned(),
            ..self.clone()
        }
    }

    /// The PV's name, or that of an inline volume.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kubelet's directory of all Pods.
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// Where the kubelet mounts parts of the volume (`subPath`) for containers, each on `<container>/<number>`.
    pub fn parts(&self) -> PathBuf {
        self.pods().join(&self.pod_uid).join("volume-subpaths").join(&self.name)
    }

    /// The directory with the files of all raw block volumes.
    pub fn devices(&self) -> PathBuf {
        published(&self.root)
    }

    /// The path beneath the kubelet's root.
    pub fn relative(&self) -> PathBuf {
        self.parent_relative().join(self.file_name())
    }

    /// The whole path, for messages and for comparing with the mount table; open it by [`Self::open`] only.
    pub fn path(&self) -> PathBuf {
        self.root.join(self.relative())
    }

    /// Opens the directory or the file (`O_PATH`), or the root of what is mounted on it. A device itself is not opened.
    ///
    /// May block for as long as a dead server pleases, so it is for workers only.
    pub fn open(&self) -> Result<OwnedFd, TargetError> {
        if !self.is_device() {
            return self.open_beneath(&self.relative(), OFlag::O_DIRECTORY);
        }
        let path = || self.path();
        let file = self.open_beneath(&self.relative(), OFlag::empty())?;
        let found = fstat(&file).map_err(|source| TargetError::Open { path: path(), source })?;
        match file_type(&found) {
            SFlag::S_IFREG | SFlag::S_IFBLK => Ok(file),
            // A link is opened itself, and not followed.
            _ => Err(TargetError::Link { path: path() }),
        }
    }

    /// The numbers of the device that is shown at the file of a raw block volume; none if there is a mere file.
    pub fn device(&self) -> Result<Option<DeviceNumber>, TargetError> {
        let found = fstat(self.open()?).map_err(|source| TargetError::Open {
            path: self.path(),
            source,
        })?;
        let is_device = file_type(&found) == SFlag::S_IFBLK;
        Ok(is_device.then(|| DeviceNumber::of(found.st_rdev)))
    }

    /// Opens the directory that the target lies in (`O_PATH`): to unmount through it, since a handle of the target
    /// itself would keep the mount busy. No server is asked.
    pub fn open_parent(&self) -> Result<OwnedFd, TargetError> {
        self.open_beneath(&self.parent_relative(), OFlag::O_DIRECTORY)
    }

    /// Opens the directory that a mount lies in, as [`Self::open_parent`] does, and gives the mount's name there. The
    /// mount is the target itself or another one in the directory of its Pod, such as a part of the volume, or one
    /// within it: then the volume's server may be asked.
    pub fn open_parent_of<'a>(&self, place: &'a Path) -> Result<(OwnedFd, &'a OsStr), TargetError> {
        let is_of_pod = place == self.path() || place.starts_with(self.pods().join(&self.pod_uid));
        let relative = place.strip_prefix(&self.root).ok().filter(|_| is_of_pod);
        let (parent, name) = relative
            .and_then(|relative| relative.parent().zip(relative.file_name()))
            .ok_or_else(|| TargetError::NotAVolume {
                path: place.to_owned(),
                wanted: self.driver.form(),
            })?;
        Ok((self.open_beneath(parent, OFlag::O_DIRECTORY)?, name))
    }

    /// The target's name in its parent.
    pub fn file_name(&self) -> &OsStr {
        OsStr::new(match self.driver {
            Driver::FlexVolume => self.name.as_str(),
            Driver::Csi => names::CSI_TARGET,
            Driver::CsiDevice => self.pod_uid.as_str(),
        })
    }

    /// Makes the directory or the file, where that is the driver's to do. Its parent has to be there.
    pub fn make(&self) -> Result<(), TargetError> {
        let parent = self.open_parent()?;
        let made = if self.is_device() {
            let new = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            openat(&parent, self.file_name(), new, Mode::from_bits_truncate(0o600)).map(drop)
        } else {
            mkdirat(&parent, self.file_name(), Mode::from_bits_truncate(0o750))
        };
        match made {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(source) => Err(TargetError::Make {
                path: self.path(),
                source,
            }),
        }
    }

    /// Takes the directory or the file away, where that is the driver's to do. Nothing there is success.
    pub fn remove(&self) -> Result<(), TargetError> {
        let parent = match self.open_parent() {
            Err(TargetError::Missing(_)) => return Ok(()),
            parent => parent?,
        };
        let kind = if self.is_device() {
            UnlinkatFlags::NoRemoveDir
        } else {
            UnlinkatFlags::RemoveDir
        };
        match unlinkat(&parent, self.file_name(), kind) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(source) => Err(TargetError::Remove {
                path: self.path(),
                source,
            }),
        }
    }

    fn parent_relative(&self) -> PathBuf {
        let volumes = |directory: &str| {
            ["pods", &self.pod_uid, "volumes", directory]
                .iter()
                .collect::<PathBuf>()
        };
        match self.driver {
            Driver::FlexVolume => volumes(names::FLEX_DRIVER_DIR),
            Driver::Csi => volumes(names::CSI_VOLUMES_DIR).join(&self.name),
            Driver::CsiDevice => published(Path::new("")).join(&self.name),
        }
    }

    fn open_beneath(&self, relative: &Path, kind: OFlag) -> Result<OwnedFd, TargetError> {
        let path = self.root.join(relative);
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | kind;
        let failed = |source| match source {
            Errno::ENOENT => TargetError::Missing(path.clone()),
            // XDEV: a way out of the root; LOOP, NOTDIR: a link or a file on the way.
            Errno::EXDEV | Errno::ELOOP | Errno::ENOTDIR => TargetError::Link { path: path.clone() },
            source => TargetError::Open {
                path: path.clone(),
                source,
            },
        };
        let root = open(
            &self.root,
            OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .map_err(failed)?;
        openat2(&root, relative, OpenHow::new().flags(flags).resolve(CONFINED)).map_err(failed)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path().display().fmt(f)
    }
}

/// Where each Pod's file of a raw block volume is: in a directory of the volume's name, by the Pod's uid.
fn published(root: &Path) -> PathBuf {
    let mut path = root.to_owned();
    path.extend(names::CSI_DEVICES_DIR);
    path.join(PUBLISHED)
}

/// A name as the kubelet makes them: it is in `/proc/self/mountinfo` and in messages.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != ".." && name != "." && !name.chars().any(|c| c.is_control() || c == '/')
}

#[cfg(test)]
mod tests {
    use super::{Driver, Target, TargetError};
    use std::path::Path;

    const ROOT: &str = "/var/lib/kubelet";
    const DEVICE: &str = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv-1/u";

    /// Proves: M3
    #[test]
    fn a_raw_block_volume_s_file_is_a_target_and_what_the_kubelet_made_of_it_means_the_same() {
        let root = Path::new(ROOT);
        let target = Target::parse_csi(root, DEVICE).unwrap();
        assert!(target.is_device());
        assert_eq!((target.name(), target.pod_uid()), ("pv-1", "u"));
        assert_eq!(target.path(), Path::new(DEVICE));
        assert!(target.path().starts_with(target.devices()));
        let map = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/pv-1/dev/u";
        assert_eq!(Target::parse_device_map(root, map).unwrap(), target);
        assert_eq!(Target::parse_device_map(root, DEVICE).unwrap(), target);
        for bad in ["/etc", &map.replace("/dev/", "/data/"), &map.replace("pv-1", "..")] {
            assert!(Target::parse_device_map(root, bad).is_err(), "{bad}");
        }
        assert!(Target::parse(root, DEVICE).is_err(), "nothing is revived there");
        assert_eq!(Target::parse_any(root, DEVICE).unwrap(), target);
        let directory = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv-1/mount";
        assert!(!Target::parse_any(root, directory).unwrap().is_device());
        assert!(Target::parse_any(root, "/etc").is_err());
        assert_eq!(target.of_pod("w").path(), Path::new(DEVICE).with_file_name("w"));
    }

    /// Proves: M3
    #[test]
    fn a_raw_block_volume_s_file_is_made_and_removed_and_nothing_in_its_place_is_used() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("plugins/kubernetes.io/csi/volumeDevices/publish/v");
        std::fs::create_dir_all(&volume).unwrap();
        let target = |uid: &str| Target::parse_csi(root.path(), volume.join(uid).to_str().unwrap()).unwrap();
        for _ in 0..2 {
            target("u").make().unwrap();
        }
        assert_eq!(target("u").device(), Ok(None));
        for _ in 0..2 {
            target("u").remove().unwrap();
        }
        assert!(matches!(target("u").open(), Err(TargetError::Missing(_))));
        std::os::unix::fs::symlink("/dev/null", volume.join("link")).unwrap();
        std::fs::create_dir(volume.join("directory")).unwrap();
        for uid in ["link", "directory"] {
            target(uid).make().unwrap();
            assert!(matches!(target(uid).device(), Err(TargetError::Link { .. })), "{uid}");
        }
        target("link").remove().unwrap();
        target("directory").remove().unwrap_err();
    }

    /// Proves: M3
    #[test]
    fn each_driver_has_its_own_form_of_directory_and_no_other_s() {
        let root = Path::new(ROOT);
        let csi = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv-1/mount";
        let flex = "/var/lib/kubelet/pods/u/volumes/mooring.dev~vcs/pv-1";
        let target = Target::parse(root, csi).unwrap();
        assert_eq!(
            (target.driver(), target.name(), target.pod_uid()),
            (Driver::Csi, "pv-1", "u")
        );
        assert_eq!(target.path(), Path::new(csi));
        assert_eq!(Target::parse(root, flex).unwrap().driver(), Driver::FlexVolume);
        for (driver, bad) in [
            (Driver::FlexVolume, csi),
            (Driver::Csi, flex),
            (Driver::Csi, "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv-1"),
            (
                Driver::Csi,
                "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/../mount",
            ),
            (
                Driver::Csi,
                "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv-1/mount/x",
            ),
            (
                Driver::Csi,
                "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv-1/vol_data.json",
            ),
            (
                Driver::Csi,
                "/var/lib/kubelet/plugins/kubernetes.io/csi/pv/pv-1/globalmount",
            ),
            (Driver::Csi, "/etc"),
            (Driver::Csi, DEVICE),
            (Driver::CsiDevice, csi),
            (
                Driver::CsiDevice,
                "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv-1",
            ),
            (
                Driver::CsiDevice,
                "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/../u",
            ),
            (
                Driver::CsiDevice,
                "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/staging/pv-1/u",
            ),
            (Driver::CsiDevice, "/var/lib/kubelet/publish/pv-1/u"),
        ] {
            assert!(Target::parse_as(driver, root, bad).is_err(), "{bad}");
        }
    }

    /// Proves: M3
    #[test]
    fn a_directory_of_csi_s_is_made_and_removed_where_the_kubelet_wants_it_and_through_no_link() {
        let root = tempfile::tempdir().unwrap();
        let volumes = root.path().join("pods/u/volumes/kubernetes.io~csi");
        std::fs::create_dir_all(volumes.join("v")).unwrap();
        let target = |name: &str| {
            let text = volumes.join(name).join("mount");
            Target::parse_as(Driver::Csi, root.path(), text.to_str().unwrap()).unwrap()
        };
        for _ in 0..2 {
            target("v").make().unwrap();
        }
        target("v").open().unwrap();
        for _ in 0..2 {
            target("v").remove().unwrap();
        }
        assert!(!volumes.join("v/mount").exists() && volumes.join("v").exists());
        assert!(matches!(target("gone").make(), Err(TargetError::Missing(_))));
        target("gone").remove().unwrap();

        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), volumes.join("linked")).unwrap();
        assert!(matches!(target("linked").make(), Err(TargetError::Link { .. })));
        assert!(target("linked").remove().is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    /// Proves: M3
    #[test]
    fn only_a_directory_of_one_of_our_volumes_is_a_target() {
        let good = "/var/lib/kubelet/pods/123-abc/volumes/mooring.dev~vcs/pvc-1";
        let target = Target::parse(Path::new(ROOT), good).unwrap();
        assert_eq!(target.path(), Path::new(good));
        assert_eq!((target.pod_uid(), target.name()), ("123-abc", "pvc-1"));

        for bad in [
            "/",
            "/etc",
            "",
            "pods/u/volumes/mooring.dev~vcs/v",
            "/var/lib/kubelet",
            "/var/lib/kubelet2/pods/u/volumes/mooring.dev~vcs/v",
            "/var/lib/kubelet/pods/u/volumes/mooring.dev~vcs",
            "/var/lib/kubelet/pods/u/volumes/mooring.dev~vcs/v/deeper",
            "/var/lib/kubelet/pods/u/volumes/mooring.dev~vcs/..",
            "/var/lib/kubelet/pods/../volumes/mooring.dev~vcs/v",
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~secret/v",
            "/var/lib/kubelet/pods/u/volumes/mooring.dev~vcs/v\n",
        ] {
            assert!(Target::parse(Path::new(ROOT), bad).is_err(), "{bad:?}");
        }
    }

    /// Proves: M3
    #[test]
    fn a_link_on_the_way_is_refused_and_a_missing_directory_is_said() {
        let root = tempfile::tempdir().unwrap();
        let text = |uid: &str| format!("{}/pods/{uid}/volumes/mooring.dev~vcs/v", root.path().display());
        std::fs::create_dir_all(text("u")).unwrap();
        Target::parse(root.path(), &text("u")).unwrap().open().unwrap();

        std::os::unix::fs::symlink("u", root.path().join("pods/linked")).unwrap();
        let linked = Target::parse(root.path(), &text("linked")).unwrap();
        assert!(matches!(linked.open(), Err(TargetError::Link { .. })));

        let target = Target::parse(root.path(), &text("u")).unwrap();
        let part = target.parts().join("main/0");
        std::fs::create_dir_all(&part).unwrap();
        for place in [&target.path(), &target.path().join("inner"), &part] {
            assert_eq!(Some(target.open_parent_of(place).unwrap().1), place.file_name());
        }
        std::os::unix::fs::symlink("main", target.parts().join("linked")).unwrap();
        let linked = target.parts().join("linked/0");
        let refused = target.open_parent_of(&linked);
        assert!(matches!(refused, Err(TargetError::Link { .. })), "{refused:?}");
        for outside in ["/etc/passwd", &text("w")] {
            let refused = target.open_parent_of(Path::new(outside));
            assert!(matches!(refused, Err(TargetError::NotAVolume { .. })), "{refused:?}");
        }

        let gone = Target::parse(root.path(), &text("gone")).unwrap();
        assert!(matches!(gone.open(), Err(TargetError::Missing(_))));
    }
}
