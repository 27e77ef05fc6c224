//! The directory that a volume is mounted on, and the only way to it.
//!
//! Nothing outside the kubelet's volume directories is ever touched. A target is checked twice: its text has exactly the
//! form that the kubelet gives it, and it is opened beneath a handle of the kubelet's root with no symbolic link on the way.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use mooring_contract::names;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Why a directory can't be a target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Not under the kubelet's root.
    #[error(
        "{path:?} is not under the kubelet's root {root:?}: start the mounter with --kubelet-root as the kubelet's --root-dir says"
    )]
    OutsideRoot {
        /// What was asked.
        path: PathBuf,
        /// The root that the mounter knows.
        root: PathBuf,
    },
    /// Not a volume's directory.
    #[error("{0:?} is not a directory of one of Mooring's volumes (pods/<uid>/volumes/{driver}/<name>): nothing was done", driver = names::FLEX_DRIVER_DIR)]
    NotAVolume(PathBuf),
    /// The directory is not there.
    #[error("volume directory {0:?} does not exist: the kubelet makes it again by itself")]
    Missing(PathBuf),
    /// A symbolic link or the like stands in its way.
    #[error(
        "{path:?} can't be reached from the kubelet's root without following a link: nothing was done; see who put it there"
    )]
    Link {
        /// The directory.
        path: PathBuf,
    },
    /// The system said no.
    #[error("failed to open volume directory {path:?}: {source}")]
    Open {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: Errno,
    },
}

/// A volume's directory, in the form that the kubelet gives it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Target {
    root: PathBuf,
    pod_uid: String,
    plugin: String,
    name: String,
}

impl Target {
    /// Reads the directory that the kubelet names; `root` is the kubelet's root.
    ///
    /// # Errors
    /// Anything that is not literally `<root>/pods/<uid>/volumes/mooring.dev~vcs/<name>`.
    pub fn parse(root: &Path, directory: &str) -> Result<Self, TargetError> {
        let path = Path::new(directory);
        let relative = path.strip_prefix(root).map_err(|_| TargetError::OutsideRoot {
            path: path.to_owned(),
            root: root.to_owned(),
        })?;
        let not_a_volume = || TargetError::NotAVolume(path.to_owned());
        let names: Vec<&str> = relative
            .components()
            .map(|component| match component {
                Component::Normal(name) => name.to_str().filter(|name| is_plain(name)),
                _ => None,
            })
            .collect::<Option<_>>()
            .ok_or_else(not_a_volume)?;
        match names.as_slice() {
            ["pods", uid, "volumes", plugin, name] if *plugin == names::FLEX_DRIVER_DIR => Ok(Self {
                root: root.to_owned(),
                pod_uid: (*uid).to_owned(),
                plugin: (*plugin).to_owned(),
                name: (*name).to_owned(),
            }),
            _ => Err(not_a_volume()),
        }
    }

    /// The Pod's uid, as it stands in the path.
    pub fn pod_uid(&self) -> &str {
        &self.pod_uid
    }

    /// The directory's own name: the PV's name, or that of an inline volume.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kubelet's directory of all Pods.
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// The path beneath the kubelet's root.
    pub fn relative(&self) -> PathBuf {
        self.parent_relative().join(&self.name)
    }

    /// The whole path, for messages and for comparing with the mount table; open it by [`Self::open`] only.
    pub fn path(&self) -> PathBuf {
        self.root.join(self.relative())
    }

    /// Opens the directory (`O_PATH`), or the root of what is mounted on it.
    ///
    /// May block for as long as a dead server pleases, so it is for workers only.
    pub fn open(&self) -> Result<OwnedFd, TargetError> {
        self.open_beneath(&self.relative())
    }

    /// Opens the directory that the target lies in (`O_PATH`): to unmount through it, since a handle of the target
    /// itself would keep the mount busy. No server is asked.
    pub fn open_parent(&self) -> Result<OwnedFd, TargetError> {
        self.open_beneath(&self.parent_relative())
    }

    /// The target's name in its parent.
    pub fn file_name(&self) -> &OsStr {
        OsStr::new(&self.name)
    }

    fn parent_relative(&self) -> PathBuf {
        ["pods", &self.pod_uid, "volumes", &self.plugin].iter().collect()
    }

    fn open_beneath(&self, relative: &Path) -> Result<OwnedFd, TargetError> {
        let path = self.root.join(relative);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |source| match source {
            Errno::NOENT => TargetError::Missing(path.clone()),
            // XDEV: a way out of the root; LOOP, NOTDIR: a link or a file on the way.
            Errno::XDEV | Errno::LOOP | Errno::NOTDIR => TargetError::Link { path: path.clone() },
            source => TargetError::Open {
                path: path.clone(),
                source,
            },
        };
        let root = rustix::fs::open(
            &self.root,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(failed)?;
        let confined = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(&root, relative, flags, Mode::empty(), confined).map_err(failed)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path().display().fmt(f)
    }
}

/// A name as the kubelet makes them: it stands in `/proc/self/mountinfo` and in messages.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != ".." && name != "." && !name.chars().any(|c| c.is_control() || c == '/')
}

#[cfg(test)]
mod tests {
    use super::{Target, TargetError};
    use std::path::Path;

    const ROOT: &str = "/var/lib/kubelet";

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

        let gone = Target::parse(root.path(), &text("gone")).unwrap();
        assert!(matches!(gone.open(), Err(TargetError::Missing(_))));
    }
}
