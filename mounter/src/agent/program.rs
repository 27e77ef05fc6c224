//! Which program mounts, and what it gets: the contract of a client image.
//!
//! # The contract of a client image
//!
//! Any image that contains `mount.<type>` can be a client image. If it has nothing of Mooring in it, the agent runs
//! what the host would have run:
//!
//! ```text
//! mount -t <fs-type, or else the client's name> -o <mount-options> <source> <directory>
//! ```
//!
//! `mount.<type>` shows that the image was made for that type. Without it, `mount` would have the node's kernel mount
//! any file system that the volume names, so the agent refuses such a volume. Use serving mode `self` for a file system
//! that needs no program.
//!
//! If the image has an executable `/usr/libexec/mooring/<client>`, the agent runs that instead, and it decides for
//! itself:
//!
//! | it gets | |
//! | --- | --- |
//! | arguments | `mount <source> <directory>`, or `unmount <directory>` |
//! | | for a raw block volume (`volumeMode: Block`) `device <source> <directory>` in place of `mount` |
//! | `MOORING_OPTION_<NAME>` | one of the volume's own options: name in upper case, others than `A-Z 0-9` as `_` |
//! | `MOORING_MOUNT_OPTIONS` | the mount options with commas, `nosuid,nodev` unless the volume says `suid`, `dev` |
//! | `MOORING_FS_TYPE` | the volume's `fs-type`, or nothing |
//! | `MOORING_FS_GROUP` | the Pod's `fsGroup` or nothing, for FUSE file systems that can't change owners |
//! | `MOORING_SELINUX_LABEL` | the label for the mount to give to all files (option `context`), or nothing; for `mount` |
//! | `MOORING_SECRETS` | a directory with one file per key of the volume's Secret; for `mount` |
//! | `MOORING_VOLUME` | the volume's name: letters and digits, the same at every retry |
//! | `MOORING_VOLUME_ID` | for `mount`: what a FUSE program is to give as the source of its mount (option `fsname`) |
//! | `MOORING_STATE` | for `mount` and `expand`: the volume's own directory, in memory, removed with the volume |
//! | `MOORING_AGENT` | for `mount`: asks for [services](super::services), `"$MOORING_AGENT" service --help` |
//!
//! If the image has an executable `/usr/libexec/mooring/<client>.expand`, the agent runs it as `<client>.expand
//! <directory> <size>` when the storage of a mounted volume was enlarged, with the volume's options in its environment
//! as for `unmount`. It has the volume use `<size>` bytes at least, and exits 0 if it does so already, and 78 if the
//! volume keeps its size for as long as it is mounted: the kubelet does not wait for it then, and the user gets an Event
//! with the program's words. It may be run at any time, and again. Without it, volumes grow whose file system is the server's; those on a block device are
//! refused.
//!
//! A file `/usr/libexec/mooring/<client>.json` may say what the client needs of a node and which options it has. Then a
//! volume that says something else is refused before any program is run, and so is one on a node that lacks something
//! ([`super::record`]).
//!
//! - `mount` puts the file system on `<directory>`, an empty directory of the agent's own, and exits 0 once it can be
//!   used. The agent then moves it to where the kubelet wants it, so no program ever follows a path that a user could
//!   have changed. Programs that it starts for that, such as a FUSE daemon, keep running in the background.
//! - `device` does what `mount` does for a device, but mounts nothing: it names the device to the agent by `service
//!   give-device`, and formats nothing. The mounter shows the device to the Pod, and the agent keeps it open until the
//!   Pod has it no more. Only a client whose record says so is asked for that. `<client>.expand` gets the device's node
//!   in place of a directory then.
//! - The agent runs `unmount` after the file system has left `<directory>` and the kubelet's. It undoes everything else
//!   that `mount` did (log out of a target, unmap a device), and must succeed if there is nothing to undo. It has the
//!   same environment but no secrets. Services have ended by then, and it can't ask for new ones.
//! - If there is an executable `/usr/libexec/mooring-start`, the agent runs it when the container starts, before any
//!   volume is mounted, and once more after a restart of the agent alone. What it starts keeps running. A daemon that
//!   all volumes of the image need is described in `/usr/libexec/mooring-daemon.json`, and the agent keeps it running
//!   (`image_daemon`).
//! - `MOORING_KUBELET_ROOT` tells each of them where the kubelet's root is. What must exist once per node, such as a
//!   lock, can be kept in `plugins/mooring.dev` there; what must outlive the container but not the Pod, in
//!   `/run/mooring/secrets`, in memory.
//! - The secrets are in memory, with mode 0700 and owned by root. They stay until the volume is unmounted, even while
//!   the container restarts, since a daemon may have to log in again. After a `mount -t` they are removed at once.
//! - When a FUSE file system has lost its daemon, the agent runs `unmount` and then `mount` again, both as before. A
//!   program that removed a secret would fail then.
//! - Exit 0 is success. After any other exit code, the last lines of standard error (and output) are shown to the user
//!   in an Event, so they should say what to do, and must not contain a secret. What a daemon writes later goes to the
//!   Pod's log.
//! - A run has a time limit, after which its whole process group is killed. A daemon that is to keep running must be a
//!   service, or must have left the group by then (`setsid`), as FUSE daemons do.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use mooring_contract::names::paths::{CLIENT_OVERRIDES, CLIENT_START};
use mooring_contract::volume::{ClientName, ForbiddenOption, NodeAccess, VolumeError, check_kind};

use super::protocol::MountCall;
use crate::volume::mount_options::{self, is_plain_type};
use crate::volume::selinux_label::SelinuxLabel;

/// Where programs run, except [`MOUNT`].
pub const WORKING_DIRECTORY: &str = "/";

/// What mounts where the image brings only a helper. It runs where a relative source leads nowhere
/// ([`crate::sys::nowhere`]).
pub const MOUNT: &str = "mount";

/// A program to run: its arguments and additions to its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// The executable; a bare name is looked up in `PATH`.
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Added to the environment.
    pub env: BTreeMap<String, OsString>,
}

/// Why the options of a volume can't be passed on; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVolume {
    #[error("option \"source\" is missing: say what to mount, such as source=server:/path")]
    NoSource,
    /// A source that a program would take for an option.
    #[error("option source={0:?} begins with a dash: a program would take it for one of its own options")]
    DashedSource(String),
    /// A name that would lead out of the directory of the image's own programs.
    #[error(transparent)]
    Client(#[from] VolumeError),
    /// Two options that share one environment variable.
    #[error("options {0:?} and {1:?} would share one environment variable: rename one of them")]
    Collision(String, String),
    /// A mount option that changes what `mount` does.
    #[error(transparent)]
    MountOption(#[from] ForbiddenOption),
    /// A type that makes `mount` run a command of the volume's choice.
    #[error(
        "fs-type {0:?} can't be used by a client container: give a plain file system type, or have the client image \
         bring its own {CLIENT_OVERRIDES}/<client>"
    )]
    FsType(String),
    /// A source that is not storage.
    #[error(transparent)]
    NodeAccess(#[from] NodeAccess),
    /// A type that the image has no program for.
    #[error(
        "this client image is not made for {client} volumes of type {fs_type}: it has neither mount.{fs_type} nor \
         {CLIENT_OVERRIDES}/{client}. Use an image that has one of these, or leave out fs-type"
    )]
    NotMadeFor { fs_type: String, client: String },
    /// A raw block volume, and only `mount`.
    #[error(
        "this client image has no {CLIENT_OVERRIDES}/{0}, so it can't give a Pod a raw block volume: leave out \
         volumeMode (the default is Filesystem)"
    )]
    NoDevice(String),
    #[error(
        "option source={0:?} is the name of a file of the machine that mounts: write its whole path if you mean that \
         file"
    )]
    Here(String),
}

/// What an image has for a volume, which shows what the image was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Brings {
    /// A program of its own for the client.
    Program,
    /// `mount.<type>`, which `mount` runs.
    Helper,
    /// Neither: `mount` would leave it to the node's kernel, whatever the image was made for.
    Nothing,
}

/// Where `mount` looks for the helper of a type.
const HELPERS: &[&str] = &["sbin", "usr/sbin", "usr/local/sbin", "sbin/fs.d", "sbin/fs"];

impl Brings {
    /// Looks for what this image has for a volume.
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

/// The type for `mount -t`.
fn type_of(call: &MountCall) -> &str {
    if call.fs_type.is_empty() {
        &call.client
    } else {
        &call.fs_type
    }
}

/// Path of the image's own program for a client, which may not exist.
pub fn override_path(client: &str) -> PathBuf {
    Path::new(CLIENT_OVERRIDES).join(client)
}

/// The image's own program for the start of its container, which may not exist.
pub fn start() -> Invocation {
    Invocation {
        program: CLIENT_START.into(),
        args: Vec::new(),
        env: BTreeMap::new(),
    }
}

/// The image's own program for a volume. The sender has checked the client's name; this checks it again, since it
/// decides what runs here.
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
    let options = mount_options::join_for(type_of(call), &call.mount_options, false)?;
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
    // `mount` finds no such file, since its working directory is empty: this says so.
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
    let options = match &call.label {
        Some(label) => format!("{options},{}", label.for_fuse()),
        None => options,
    };
    Ok(Invocation {
        program: MOUNT.into(),
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

/// How to have a volume as a device of the node. Only an image's own program can do that.
pub fn device(call: &MountCall, brings: Brings, dir: &Path, secrets: &Path) -> Result<Invocation, InvalidVolume> {
    if brings != Brings::Program {
        return Err(InvalidVolume::NoDevice(call.client.clone()));
    }
    let mut invocation = mount(call, brings, dir, secrets)?;
    invocation.args[0] = "device".into();
    Ok(invocation)
}

/// How to undo what the image's own program did besides mounting.
pub fn unmount(call: &MountCall, dir: &Path) -> Result<Invocation, InvalidVolume> {
    Ok(Invocation {
        program: program_of(call)?,
        args: vec!["unmount".into(), dir.into()],
        env: environment(call)?,
    })
}

/// How to have a volume grow that is mounted on `dir`. Few images have that program.
pub fn expand(call: &MountCall, dir: &Path, size: u64) -> Result<Invocation, InvalidVolume> {
    Ok(Invocation {
        program: program_of(call)?.with_extension("expand"),
        args: vec![dir.into(), size.to_string().into()],
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
    let label = call.label.as_ref().map(SelinuxLabel::as_str).unwrap_or_default();
    env.insert("MOORING_SELINUX_LABEL".into(), label.into());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::MountFields;

    fn call(mount_options: &[&str], options: &[(&str, &str)]) -> MountCall {
        MountCall::from(MountFields {
            target: "pods/u/volumes/mooring.dev~vcs/v".into(),
            client: "nfs".into(),
            source: "10.10.2.4:/exports".into(),
            owner: None,
            fs_type: String::new(),
            mount_options: mount_options.iter().map(|&o| o.to_owned()).collect(),
            options: options.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect(),
            secrets: BTreeMap::new(),
            secrets_at: None,
            fs_group: Some(2000),
            label: None,
            pod: crate::volume::job::PodRef::default(),
            limit_ms: 1,
        })
    }

    fn plan(call: &MountCall, overridden: bool) -> Result<Invocation, InvalidVolume> {
        let brings = if overridden { Brings::Program } else { Brings::Helper };
        mount(call, brings, Path::new("/staging"), Path::new("/secrets"))
    }

    /// Otherwise, an image for one kind of storage would mount the node's own devices with the kernel's other file
    /// systems.
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
    fn the_label_of_the_pod_goes_to_the_program() {
        let mut labelled = call(&["ro"], &[]);
        labelled.label = SelinuxLabel::of("context=\"u:r:t:s0:c1,c2\"");
        assert_eq!(
            line(&plan(&labelled, false).unwrap()),
            "mount -t nfs -o ro,nosuid,nodev,context=\"u:r:t:s0:c1\\,c2\" -- 10.10.2.4:/exports /staging"
        );
        let env = plan(&labelled, true).unwrap().env;
        assert_eq!(env["MOORING_SELINUX_LABEL"], "u:r:t:s0:c1,c2");
        assert_eq!(env["MOORING_MOUNT_OPTIONS"], "ro,nosuid,nodev");
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
                "MOORING_SELINUX_LABEL=",
            ]
        );
        assert_eq!(
            line(&expand(&call(&[], &[]), Path::new("/volume"), 7).unwrap()),
            "/usr/libexec/mooring/nfs.expand /volume 7"
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
            assert!(expand(&call, Path::new("/volume"), 7).is_err(), "{client}");
        }
        let device = |brings| device(&call(&[], &[]), brings, Path::new("/staging"), Path::new("/secrets"));
        let args = device(Brings::Program).unwrap().args;
        assert_eq!(args, ["device", "10.10.2.4:/exports", "/staging"]);
        for brings in [Brings::Helper, Brings::Nothing] {
            assert_eq!(device(brings), Err(InvalidVolume::NoDevice("nfs".into())));
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
