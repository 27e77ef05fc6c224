//! Which program mounts, and what it is told: the contract of a client image.
//!
//! # The contract of a client image
//!
//! Any image with `mount.<type>` in it can be a client image. With nothing of Mooring in it, the agent runs what the host would have run:
//!
//! ```text
//! mount -t <fs-type, or else the client's name> -o <mount-options> <source> <directory>
//! ```
//!
//! The image shows by `mount.<type>` that it was made for that type. Without it, `mount` would have the node's kernel mount whatever file system
//! the volume names, so such a volume is refused; a file system that needs no program is one for serving mode `self`.
//!
//! An executable `/usr/libexec/mooring/<client>` in the image is run instead, and decides for itself:
//!
//! | it is given | |
//! | --- | --- |
//! | arguments | `mount <source> <directory>`, or `unmount <directory>` |
//! | `MOORING_OPTION_<NAME>` | each of the volume's own options: name upper-cased, every other character than `A-Z 0-9` as `_` |
//! | `MOORING_MOUNT_OPTIONS` | the mount options, comma-separated, `nosuid,nodev` among them unless the volume says `suid` or `dev` |
//! | `MOORING_FS_TYPE` | the volume's `fs-type`, or nothing |
//! | `MOORING_FS_GROUP` | the group id that the Pod's files should belong to (its `fsGroup`), or nothing; of use to a FUSE file system that can't change owners |
//! | `MOORING_SECRETS` | a directory of one file per key of the volume's Secret; for `mount` |
//! | `MOORING_VOLUME` | the volume's name: letters and digits, the same at every retry |
//! | `MOORING_STATE` | a directory of the volume's own, for `mount`: in memory, empty at first, and removed with the volume |
//! | `MOORING_AGENT` | a command by which `mount` has services of the agent ([`super::services`]): `"$MOORING_AGENT" service --help` |
//!
//! - `mount` puts the file system on `<directory>`, an empty directory of the agent's own, and exits 0 once it can be
//!   used. The agent then moves it to where the kubelet wants it, so that no program ever walks a path that a user could
//!   have changed. What it starts for that, such as a FUSE daemon, stays behind in the background.
//! - `unmount` is run after the file system has left `<directory>` and the kubelet's; it undoes whatever else `mount` did
//!   (log out of a target, unmap a device), and it must succeed if there is nothing to undo. It has the same environment but no secrets.
//!   Services have ended by then, and it can't have new ones.
//! - An executable `/usr/libexec/mooring-start` is run when the container starts, before any volume is mounted, and once more
//!   when the agent alone was started again: for a daemon that all volumes of the image need. What it starts stays behind.
//! - Each is told by `MOORING_KUBELET_ROOT` where the kubelet's root is. What has to be one for the whole node, such as a lock, can be
//!   kept in `plugins/mooring.dev` there; what has to outlive the container and not the Pod in `/run/mooring/secrets`, in memory.
//! - The secrets lie in memory, mode 0700, owned by root. They stay until the volume is unmounted, also while the container
//!   is started again, since a daemon may have to log in again. After a `mount -t` they are removed at once.
//! - When a FUSE file system has lost its daemon, `unmount` is run, and then `mount` once more, both as the first time. A
//!   program that removed a secret could not do that.
//! - Exit 0 is success. After anything else the last lines of standard error (and output) are shown to the user in an
//!   Event, so they should say what to do, and they must hold no secret. What a daemon writes later goes to the Pod's log.
//! - A run has a time limit, after which its whole process group is killed. A daemon that is to stay is a service, or must have
//!   left the group by then (`setsid`), as FUSE daemons do.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use mooring_contract::names::paths::{CLIENT_OVERRIDES, CLIENT_START};
use mooring_contract::volume::{ClientName, NodeAccess, VolumeError, check_kind};

use super::protocol::MountCall;
use crate::volume::mount_options::{self, ForbiddenOption};

/// Where programs are run.
pub const WORKING_DIRECTORY: &str = "/";

/// A program to run: its arguments and what it gets in its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// The executable; a bare name is searched in `PATH`.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Added to the environment.
    pub env: BTreeMap<String, OsString>,
}

/// Options of a volume that cannot be passed on; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVolume {
    /// No `source`.
    #[error("option \"source\" is missing: say what to mount, such as source=server:/path")]
    NoSource,
    /// A source that a program would take for an option.
    #[error("option source={0:?} begins with a dash: a program would take it for one of its own options")]
    DashedSource(String),
    /// A name that would lead out of the directory of the image's own programs.
    #[error(transparent)]
    Client(#[from] VolumeError),
    /// Two options in one environment variable.
    #[error("options {0:?} and {1:?} would share one environment variable: rename one of them")]
    Collision(String, String),
    /// A mount option that changes what `mount` does.
    #[error(transparent)]
    MountOption(#[from] ForbiddenOption),
    /// A type by which `mount` would run a command of the volume's choice.
    #[error(
        "fs-type {0:?} can't be used by a client container: give a plain file system type, or have the client image \
         bring its own {CLIENT_OVERRIDES}/<client>"
    )]
    FsType(String),
    /// What is no storage.
    #[error(transparent)]
    NodeAccess(#[from] NodeAccess),
    /// A type that the image has nothing for.
    #[error(
        "this client image is not made for {client} volumes of type {fs_type}: it has neither mount.{fs_type} nor \
         {CLIENT_OVERRIDES}/{client}. Use an image that has one of these, or leave out fs-type"
    )]
    NotMadeFor {
        /// The type.
        fs_type: String,
        /// The client.
        client: String,
    },
    /// A relative name of a file.
    #[error(
        "option source={0:?} is the name of a file of the machine that mounts: write its whole path if that is what is meant"
    )]
    Here(String),
}

/// What an image brings for a volume: by it is known what the image was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Brings {
    /// A program of its own for the client.
    Program,
    /// `mount.<type>`, which `mount` runs.
    Helper,
    /// Neither: `mount` would leave it to the node's kernel, whatever the image is for.
    Nothing,
}

/// Where `mount` looks for the helper of a type.
const HELPERS: &[&str] = &["sbin", "usr/sbin", "usr/local/sbin", "sbin/fs.d", "sbin/fs"];

impl Brings {
    /// Looks at what this image has for a volume.
    pub fn of(call: &MountCall) -> Self {
        Self::below(Path::new("/"), call)
    }

    fn below(root: &Path, call: &MountCall) -> Self {
        let own = override_path(&call.client);
        if call.client.parse::<ClientName>().is_ok() && root.join(own.strip_prefix("/").unwrap_or(&own)).exists() {
            return Self::Program;
        }
        let helper = format!("mount.{}", type_of(call));
        let is_there = |folder: &&&str| is_plain_type(type_of(call)) && root.join(folder).join(&helper).exists();
        match HELPERS.iter().find(is_there) {
            Some(_) => Self::Helper,
            None => Self::Nothing,
        }
    }
}

/// What `mount -t` is given.
fn type_of(call: &MountCall) -> &str {
    if call.fs_type.is_empty() {
        &call.client
    } else {
        &call.fs_type
    }
}

/// The image's own program for a client, if it would bring one.
pub fn override_path(client: &str) -> PathBuf {
    Path::new(CLIENT_OVERRIDES).join(client)
}

/// The image's own program that is run when its container starts, if it would bring one.
pub fn start() -> Invocation {
    Invocation {
        program: CLIENT_START.into(),
        args: Vec::new(),
        env: BTreeMap::new(),
    }
}

/// The image's own program for a volume. Whoever sends a client's name has checked it, but what is run here goes by it.
fn program_of(call: &MountCall) -> Result<PathBuf, InvalidVolume> {
    let client: ClientName = call.client.parse()?;
    Ok(override_path(client.as_str()))
}

/// How to mount a volume on `dir`.
pub fn mount(call: &MountCall, brings: Brings, dir: &Path, secrets: &Path) -> Result<Invocation, InvalidVolume> {
    if call.source.is_empty() {
        return Err(InvalidVolume::NoSource);
    }
    if call.source.starts_with('-') {
        return Err(InvalidVolume::DashedSource(call.source.clone()));
    }
    let options = mount_options::join(&call.mount_options, false)?;
    if brings == Brings::Program {
        let program = program_of(call)?;
        let mut env = environment(call)?;
        env.insert("MOORING_SECRETS".into(), secrets.into());
        return Ok(Invocation {
            program,
            args: vec!["mount".into(), call.source.clone().into(), dir.into()],
            env,
        });
    }
    let fs_type = type_of(call);
    if !is_plain_type(fs_type) {
        return Err(InvalidVolume::FsType(fs_type.to_owned()));
    }
    check_kind(fs_type, &call.mount_options)?;
    // `mount` would take a relative name for a device if there is a file of that name where it runs.
    if !call.source.starts_with('/')
        && Path::new(WORKING_DIRECTORY)
            .join(&call.source)
            .symlink_metadata()
            .is_ok()
    {
        return Err(InvalidVolume::Here(call.source.clone()));
    }
    if brings == Brings::Nothing {
        return Err(InvalidVolume::NotMadeFor {
            fs_type: fs_type.to_owned(),
            client: call.client.clone(),
        });
    }
    Ok(Invocation {
        program: "mount".into(),
        args: vec![
            "-t".into(),
            fs_type.into(),
            "-o".into(),
            options.into(),
            "--".into(),
            call.source.clone().into(),
            dir.into(),
        ],
        env: BTreeMap::new(),
    })
}

/// How to undo what the image's own program did beside mounting.
pub fn unmount(call: &MountCall, dir: &Path) -> Result<Invocation, InvalidVolume> {
    Ok(Invocation {
        program: program_of(call)?,
        args: vec!["unmount".into(), dir.into()],
        env: environment(call)?,
    })
}

fn environment(call: &MountCall) -> Result<BTreeMap<String, OsString>, InvalidVolume> {
    let mut from = BTreeMap::<String, &str>::new();
    let mut env = BTreeMap::new();
    for (key, value) in &call.options {
        let name = format!("MOORING_OPTION_{}", variable(key));
        if let Some(other) = from.insert(name.clone(), key) {
            return Err(InvalidVolume::Collision(other.to_owned(), key.clone()));
        }
        env.insert(name, value.into());
    }
    let options = mount_options::join(&call.mount_options, false)?;
    env.insert("MOORING_MOUNT_OPTIONS".into(), options.into());
    env.insert("MOORING_FS_TYPE".into(), call.fs_type.clone().into());
    let group = call.fs_group.map(|group| group.to_string()).unwrap_or_default();
    env.insert("MOORING_FS_GROUP".into(), group.into());
    Ok(env)
}

fn variable(key: &str) -> String {
    key.chars()
        .map(|c| match c.to_ascii_uppercase() {
            c @ ('A'..='Z' | '0'..='9') => c,
            _ => '_',
        })
        .collect()
}

/// `fuse.NAME` and its like run any program of that name, `fuse` alone the one that the source names.
fn is_plain_type(fs_type: &str) -> bool {
    !fs_type.starts_with("fuse")
        && !fs_type.is_empty()
        && !fs_type.starts_with('-')
        && fs_type
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(mount_options: &[&str], options: &[(&str, &str)]) -> MountCall {
        MountCall {
            target: "pods/u/volumes/mooring.dev~vcs/v".into(),
            client: "nfs".into(),
            source: "10.10.2.4:/exports".into(),
            fs_type: String::new(),
            mount_options: mount_options.iter().map(|&o| o.to_owned()).collect(),
            options: options.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect(),
            secrets: BTreeMap::new(),
            fs_group: Some(2000),
            pod: crate::volume::job::PodRef::default(),
            limit_ms: 1,
        }
    }

    fn plan(call: &MountCall, overridden: bool) -> Result<Invocation, InvalidVolume> {
        let brings = if overridden { Brings::Program } else { Brings::Helper };
        mount(call, brings, Path::new("/staging"), Path::new("/secrets"))
    }

    /// An image for one kind of storage would else mount the node's own devices with the kernel's other file systems.
    #[test]
    fn an_image_serves_the_types_that_it_was_made_for() {
        let root = tempfile::tempdir().unwrap();
        for file in ["usr/libexec/mooring/sshfs", "sbin/mount.davfs"] {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "").unwrap();
        }
        for (client, fs_type, brings) in [
            ("sshfs", "", Brings::Program),
            ("sshfs", "ext4", Brings::Program),
            ("davfs", "", Brings::Helper),
            ("acme", "davfs", Brings::Helper),
            ("ext4", "", Brings::Nothing),
            ("davfs", "xfs", Brings::Nothing),
            ("davfs", "x/../../sbin/mount.davfs", Brings::Nothing),
            ("../mooring/sshfs", "", Brings::Nothing),
        ] {
            let mut call = call(&[], &[]);
            call.client = client.into();
            call.fs_type = fs_type.into();
            assert_eq!(Brings::below(root.path(), &call), brings, "{client} {fs_type}");
        }
        let mut device = call(&[], &[]);
        device.client = "ext4".into();
        device.source = "/dev/loop1".into();
        let refused = mount(&device, Brings::Nothing, Path::new("/staging"), Path::new("/secrets"));
        assert!(matches!(refused, Err(InvalidVolume::NotMadeFor { .. })), "{refused:?}");
    }

    fn line(invocation: &Invocation) -> String {
        let args = invocation.args.iter().map(|arg| arg.to_string_lossy().into_owned());
        format!(
            "{} {}",
            invocation.program.display(),
            args.collect::<Vec<_>>().join(" ")
        )
    }

    /// Proves: M4
    #[test]
    fn an_image_of_no_special_kind_runs_what_the_host_would_have_run() {
        let invocation = plan(&call(&["ro", "vers=4.1"], &[("zone", "west")]), false).unwrap();
        assert_eq!(
            line(&invocation),
            "mount -t nfs -o ro,vers=4.1,nosuid,nodev -- 10.10.2.4:/exports /staging"
        );
        assert!(invocation.env.is_empty());
        let mut typed = call(&["suid", "nodev"], &[]);
        typed.fs_type = "nfs4".into();
        assert_eq!(
            line(&plan(&typed, false).unwrap()),
            "mount -t nfs4 -o suid,nodev -- 10.10.2.4:/exports /staging"
        );
    }

    #[test]
    fn an_override_gets_options_by_environment_and_no_secret_by_value() {
        let invocation = plan(
            &call(&["ro"], &[("host-key.check", "accept-new"), ("port", "22")]),
            true,
        )
        .unwrap();
        assert_eq!(
            line(&invocation),
            "/usr/libexec/mooring/nfs mount 10.10.2.4:/exports /staging"
        );
        let env: Vec<_> = invocation
            .env
            .iter()
            .map(|(k, v)| format!("{k}={}", v.to_string_lossy()))
            .collect();
        assert_eq!(
            env,
            [
                "MOORING_FS_GROUP=2000",
                "MOORING_FS_TYPE=",
                "MOORING_MOUNT_OPTIONS=ro,nosuid,nodev",
                "MOORING_OPTION_HOST_KEY_CHECK=accept-new",
                "MOORING_OPTION_PORT=22",
                "MOORING_SECRETS=/secrets",
            ]
        );
        assert_eq!(
            line(&unmount(&call(&[], &[]), Path::new("/staging")).unwrap()),
            "/usr/libexec/mooring/nfs unmount /staging"
        );
    }

    #[test]
    fn what_would_turn_a_mount_into_something_else_is_refused() {
        for option in [
            "bind",
            "loop=/dev/loop0",
            "X-mount.mkdir",
            "x-systemd.automount",
            "helper=sh",
            "remount",
        ] {
            for overridden in [false, true] {
                let refused = plan(&call(&[option], &[]), overridden);
                assert!(matches!(refused, Err(InvalidVolume::MountOption(_))), "{option}");
            }
        }
        for fs_type in ["fuse", "fuse.sh", "fuse3", "../x", "-a", "nfs,ext4"] {
            let mut call = call(&[], &[]);
            call.fs_type = fs_type.into();
            assert_eq!(plan(&call, false), Err(InvalidVolume::FsType(fs_type.into())));
        }
        for (fs_type, option, source) in [
            ("overlay", "lowerdir=/var/lib/kubelet", "x"),
            ("cgroup", "memory", "x"),
            ("ext4", "source=/dev/vda1", "x"),
            ("ext4", "ro", "dev/null"),
        ] {
            let mut call = call(&[option], &[]);
            call.fs_type = fs_type.into();
            call.source = source.into();
            assert!(plan(&call, false).is_err(), "{fs_type} {option} {source}");
        }
        for client in ["../../../bin/sh", "/bin/sh", ""] {
            let mut call = call(&[], &[]);
            call.client = client.into();
            assert!(matches!(plan(&call, true), Err(InvalidVolume::Client(_))), "{client}");
            assert!(unmount(&call, Path::new("/staging")).is_err(), "{client}");
        }
        let mut dashed = call(&[], &[]);
        dashed.source = "-oProxyCommand=sh".into();
        assert!(matches!(plan(&dashed, true), Err(InvalidVolume::DashedSource(_))));
        dashed.source = String::new();
        assert_eq!(plan(&dashed, true), Err(InvalidVolume::NoSource));
        assert_eq!(
            plan(&call(&[], &[("a-b", "1"), ("a.b", "2")]), true),
            Err(InvalidVolume::Collision("a-b".into(), "a.b".into()))
        );
    }
}
