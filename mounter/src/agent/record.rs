//! The record that an image may bring of its client: the agent reads it and checks the volume against it before the
//! image's program mounts.
//!
//! [`image_record`](mooring_contract::volume::clients::image_record) has what can be in it, and judges a volume's
//! options. What the node has, the agent asks the kernel, which loads a module when it is first asked for. The daemon
//! goes by the host's list of modules instead, which a client container does not see: so its texts (`node::readiness`)
//! are others.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use mooring_contract::volume::clients::image_record::{ImageNeed, ImageRecord};
use mooring_contract::volume::clients::{self, FsGroup};
use mooring_contract::volume::{CheckError, ClientName};
use nix::net::if_::if_nametoindex;
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsopen};

use super::program::override_path;
use super::protocol::{FailureCategory, MountCall, SecretBytes};
use crate::sys::{SysError, loop_device};

/// Why an image's record keeps a volume from being mounted.
#[derive(Debug, thiserror::Error)]
pub enum ImageRecordError {
    /// It is there and can't be read.
    #[error("failed to read the client image's record {path}: make it a plain file of the image")]
    Read { path: PathBuf, source: io::Error },
    #[error("the client image's record {path} has an error: correct it in the image")]
    Malformed {
        path: PathBuf,
        /// What is wrong, and in which line.
        source: serde_json::Error,
    },
    /// The volume says what it can't.
    #[error(transparent)]
    Volume(#[from] CheckError),
    /// A raw block volume of a client that has no devices.
    #[error(
        "the client image of {0} does not say that it can give a Pod a raw block volume: leave out volumeMode (the \
         default is Filesystem), or have its record say \"raw-block\": true"
    )]
    NoDevice(String),
    #[error("this node can't mount {client} volumes")]
    Lacking { client: String, source: Lack },
}

/// What a node lacks; the message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Lack {
    #[error("/dev/fuse can't be used: load the kernel module fuse on the host")]
    Fuse(#[source] io::Error),
    #[error("there are no loop devices: load the kernel module loop on the host")]
    LoopDevices(#[source] SysError),
    #[error(
        "the kernel has no {0} and finds no module for it: install your distribution's package that has it, or run a \
         kernel that has it"
    )]
    FileSystem(String),
    #[error(
        "the kernel has no module {0} and loads none: install your distribution's package that has it, and run \
         modprobe {0}"
    )]
    Module(String),
}

impl ImageRecordError {
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::Volume(_) | Self::NoDevice(_) => FailureCategory::Invalid,
            Self::Read { .. } | Self::Malformed { .. } | Self::Lacking { .. } => FailureCategory::System,
        }
    }
}

/// Checks a volume by the record of its client, if this image has one. May wait for the kernel to load a module.
pub fn check(call: &MountCall) -> Result<(), ImageRecordError> {
    check_below(Path::new("/"), call, is_there)
}

/// The same for a raw block volume.
pub fn check_device(call: &MountCall) -> Result<(), ImageRecordError> {
    fail_unless_it_gives_devices(Path::new("/"), call)?;
    check(call)
}

/// Whether all Pods of a node get one device of this volume.
pub fn has_one_device(call: &MountCall) -> bool {
    let gives = || matches!(read(Path::new("/"), &call.client), Ok(Some(record)) if record.raw_block);
    // As a file of a directory it is not on a device.
    call.fs_type != "raw" && clients::has_one_device(&call.client, &call.fs_type, gives)
}

/// The keys of a volume's Secret that its client reads; none if that is not known, and it may read all of them.
pub fn secret_keys(call: &MountCall) -> Option<Vec<String>> {
    secret_keys_below(Path::new("/"), call)
}

fn secret_keys_below(root: &Path, call: &MountCall) -> Option<Vec<String>> {
    let of_image = || read(root, &call.client).ok().flatten()?.secret_keys;
    clients::secret_keys(&call.client, &call.fs_type, of_image)
}

/// Those of a volume's secrets that its client reads.
pub fn read_by_client(call: &MountCall, secrets: &BTreeMap<String, SecretBytes>) -> BTreeMap<String, SecretBytes> {
    let keys = secret_keys(call);
    let mut secrets = secrets.clone();
    secrets.retain(|key, _| keys.as_ref().is_none_or(|keys| keys.contains(key)));
    secrets
}

/// A client of Mooring's own has a record that says so. Any other one has its image's.
fn gives_devices(root: &Path, call: &MountCall) -> Result<bool, ImageRecordError> {
    Ok(match clients::record(&call.client, &call.fs_type) {
        Some(record) => record.gives_devices,
        None => read(root, &call.client)?.is_some_and(|record| record.raw_block),
    })
}

/// Whether each file of this volume has a group that can be changed, if the image says so.
pub fn is_by_owner(call: &MountCall) -> Option<bool> {
    is_by_owner_below(Path::new("/"), call)
}

fn is_by_owner_below(root: &Path, call: &MountCall) -> Option<bool> {
    // Of one of Mooring's own the mounter knows it.
    if clients::fs_group(&call.client, &call.fs_type).is_some() {
        return None;
    }
    let said = read(root, &call.client).ok()??.fs_group?;
    Some(said == FsGroup::ByOwner)
}

/// Whether the volumes of a call's client are devices, which have to be claimed.
pub fn has_devices(call: &MountCall) -> Result<bool, ImageRecordError> {
    gives_devices(Path::new("/"), call)
}

fn fail_unless_it_gives_devices(root: &Path, call: &MountCall) -> Result<(), ImageRecordError> {
    if gives_devices(root, call)? {
        Ok(())
    } else {
        Err(ImageRecordError::NoDevice(call.client.clone()))
    }
}

fn check_below(
    root: &Path,
    call: &MountCall,
    is_there: impl Fn(&ImageNeed) -> Result<(), Lack>,
) -> Result<(), ImageRecordError> {
    let Some(record) = read(root, &call.client)? else {
        return Ok(());
    };
    record.check(&call.client, &call.fs_type, &call.options)?;
    record
        .needs
        .iter()
        .try_for_each(is_there)
        .map_err(|source| ImageRecordError::Lacking {
            client: call.client.clone(),
            source,
        })
}

/// The record of a client, if there is one in the image whose root this is.
fn read(root: &Path, client: &str) -> Result<Option<ImageRecord>, ImageRecordError> {
    // Anything but a name could lead out of the folder. No program of the image's own is run for it either.
    if client.parse::<ClientName>().is_err() {
        return Ok(None);
    }
    let path = override_path(client).with_extension("json");
    match fs::read(root.join(path.strip_prefix("/").unwrap_or(&path))) {
        Ok(json) => match ImageRecord::parse(&json) {
            Ok(record) => Ok(Some(record)),
            Err(source) => Err(ImageRecordError::Malformed { path, source }),
        },
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(ImageRecordError::Read { path, source }),
    }
}

/// Whether the node has this, perhaps only since the kernel was asked for it here.
fn is_there(need: &ImageNeed) -> Result<(), Lack> {
    match need {
        ImageNeed::Fuse => fuse(Path::new("/dev/fuse")),
        ImageNeed::LoopDevices => loop_device::open_control().map(drop).map_err(Lack::LoopDevices),
        ImageNeed::Module(name) => module(Path::new("/sys/module"), name.as_str()),
        ImageNeed::FileSystem(name) => file_system(name.as_str()),
    }
}

/// The kernel loads the module when the device is opened.
fn fuse(device: &Path) -> Result<(), Lack> {
    let opened = File::options().read(true).write(true).open(device);
    opened.map(drop).map_err(Lack::Fuse)
}

/// The kernel looks for the module of a file system when one is to be made ready for a mount.
fn file_system(name: &str) -> Result<(), Lack> {
    match fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC) {
        Err(Errno::NODEV) => Err(Lack::FileSystem(name.to_owned())),
        // Any other failure says nothing about the file system.
        _ => Ok(()),
    }
}

/// Whether a driver is among those that the kernel shows, if need be after it was asked for.
fn module(shown: &Path, name: &str) -> Result<(), Lack> {
    // The kernel shows names with underscores, whatever the module's file is called.
    let shown = shown.join(name.replace('-', "_"));
    if !shown.exists() {
        load(name);
    }
    if shown.exists() {
        Ok(())
    } else {
        Err(Lack::Module(name.to_owned()))
    }
}

/// Has the kernel run the node's own modprobe, which it does for the name of any network device that it does not know.
/// It does not say what came of that.
fn load(module: &str) {
    let _ = if_nametoindex(module);
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use clap::{Command, Subcommand};
    use mooring_contract::volume::clients::Service;
    use tempfile::TempDir;

    use super::*;
    use crate::agent::mounts::AgentError;
    use crate::agent::protocol::{AgentFailure, MountFields};
    use crate::agent::services::call;
    use crate::volume::job::PodRef;

    const ACME: &str = r#"{
        "needs": ["fuse", {"module": "acme_net"}],
        "options": {"tier": {"pattern": "fast|cheap", "wanted": "fast or cheap"}},
        "fs-types": ["acme", "ext4"]
    }"#;

    fn image(record: &str) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/libexec/mooring");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("acme.json"), record).unwrap();
        root
    }

    fn volume(fs_type: &str, options: &[(&str, &str)]) -> MountCall {
        MountCall::from(MountFields {
            target: "pods/u/volumes/mooring.dev~vcs/v".into(),
            client: "acme".into(),
            source: "pool/volume".into(),
            owner: None,
            fs_type: fs_type.into(),
            mount_options: Vec::new(),
            options: options.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect(),
            secrets: BTreeMap::new(),
            secrets_at: None,
            fs_group: None,
            label: None,
            pod: PodRef::default(),
            limit_ms: 1,
        })
    }

    /// What the user is told.
    fn refusal(
        image: &TempDir,
        call: &MountCall,
        is_there: impl Fn(&ImageNeed) -> Result<(), Lack>,
    ) -> (FailureCategory, String) {
        let error = check_below(image.path(), call, is_there).unwrap_err();
        let failure = AgentFailure::from(&AgentError::from(error));
        (failure.category, failure.message)
    }

    #[test]
    fn an_image_without_a_record_has_any_volume_mounted() {
        let nothing = |_: &ImageNeed| -> Result<(), Lack> { panic!("nothing is needed") };
        let empty = tempfile::tempdir().unwrap();
        let mut call = volume("zfs", &[("any", "thing")]);
        assert!(check_below(empty.path(), &call, nothing).is_ok());
        // That of another client is not this one's, and no name leads out of the folder.
        let image = image("junk");
        for client in ["sshfs", "../mooring/acme", "x/../acme", ""] {
            call.client = client.into();
            assert!(check_below(image.path(), &call, nothing).is_ok(), "{client}");
        }
    }

    #[test]
    fn a_volume_that_the_record_allows_is_mounted_where_the_node_has_what_is_needed() {
        let image = image(ACME);
        for call in [volume("", &[]), volume("ext4", &[("tier", "fast")])] {
            assert!(check_below(image.path(), &call, |_| Ok(())).is_ok());
        }
    }

    #[test]
    fn a_volume_that_says_what_the_record_does_not_have_is_refused() {
        let image = image(ACME);
        for (call, told) in [
            (volume("", &[("teir", "fast")]), "client acme has no option \"teir\""),
            (
                volume("", &[("tier", "slow")]),
                "option tier of client acme can't be \"slow\": write fast or cheap",
            ),
            (
                volume("zfs", &[]),
                "client acme can't have fs-type=\"zfs\": use acme or ext4",
            ),
        ] {
            let (category, message) = refusal(&image, &call, |_| Ok(()));
            assert_eq!(category, FailureCategory::Invalid);
            assert!(message.starts_with(told), "{message}");
        }
    }

    #[test]
    fn a_client_of_a_vendor_s_gives_devices_if_its_image_says_so() {
        let gives = |root: &TempDir, call: &MountCall| fail_unless_it_gives_devices(root.path(), call);
        let silent = image(ACME);
        let error = gives(&silent, &volume("", &[])).unwrap_err();
        assert_eq!(error.category(), FailureCategory::Invalid);
        assert!(error.to_string().contains("\"raw-block\": true"), "{error}");
        assert!(gives(&tempfile::tempdir().unwrap(), &volume("", &[])).is_err());
        assert!(gives(&image(r#"{"raw-block": true}"#), &volume("", &[])).is_ok());
        // One of Mooring's own brings no record.
        let mut own = volume("", &[]);
        own.client = "iscsi".into();
        assert!(gives(&silent, &own).is_ok());
        own.client = "sshfs".into();
        assert!(gives(&silent, &own).is_err());
    }

    #[test]
    fn a_client_reads_the_keys_of_a_secret_that_its_record_has() {
        let keys = |root: &TempDir, call: &MountCall| secret_keys_below(root.path(), call);
        let said = image(r#"{"secret-keys": ["token"]}"#);
        assert_eq!(keys(&said, &volume("", &[])), Some(vec!["token".to_owned()]));
        assert_eq!(keys(&image(ACME), &volume("", &[])), None);
        let mut own = volume("", &[]);
        own.client = "sshfs".into();
        let known = ["ssh-privatekey", "known_hosts"].map(str::to_owned);
        assert_eq!(keys(&said, &own), Some(known.into()));
    }

    #[test]
    fn an_image_may_say_how_files_come_to_belong_to_the_pod_s_group() {
        for (record, expected) in [
            (ACME, None),
            (r#"{"fs-group": "by-owner"}"#, Some(true)),
            (r#"{"fs-group": "by-mount-option"}"#, Some(false)),
            (r#"{"fs-group": "unable"}"#, Some(false)),
            ("junk", None),
        ] {
            assert_eq!(
                is_by_owner_below(image(record).path(), &volume("", &[])),
                expected,
                "{record}"
            );
        }
    }

    #[test]
    fn what_the_node_lacks_is_said_with_the_cure() {
        let image = image(ACME);
        let (category, message) = refusal(&image, &volume("", &[]), |need| match need {
            ImageNeed::Module(name) => Err(Lack::Module(name.as_str().to_owned())),
            _ => Ok(()),
        });
        assert_eq!(category, FailureCategory::System);
        assert_eq!(
            message,
            "this node can't mount acme volumes: the kernel has no module acme_net and loads none: install your \
             distribution's package that has it, and run modprobe acme_net"
        );
    }

    #[test]
    fn a_malformed_record_is_reported_by_name() {
        for (junk, told) in [
            ("", "EOF"),
            ("needs: [fuse]", "line 1"),
            (
                "{\"need\": [\"fuse\"]}",
                "unknown field `need`, expected one of `needs`, `options`, `fs-types`, `raw-block`, `secret-keys`, `fs-group`",
            ),
            ("{\"needs\": [\"disk\"]}", "unknown variant `disk`"),
        ] {
            let (category, message) = refusal(&image(junk), &volume("", &[]), |_| Ok(()));
            assert_eq!(category, FailureCategory::System);
            assert!(
                message.contains("/usr/libexec/mooring/acme.json has an error"),
                "{message}"
            );
            assert!(message.contains(told), "{message}");
        }
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/libexec/mooring/acme.json")).unwrap();
        let (_, message) = refusal(&root, &volume("", &[]), |_| Ok(()));
        assert!(
            message.starts_with("failed to read the client image's record /usr/libexec/mooring/acme.json"),
            "{message}"
        );
    }

    #[test]
    fn a_device_and_a_module_that_are_not_there_are_lacking() {
        assert!(matches!(fuse(Path::new("/nonexistent")), Err(Lack::Fuse(_))));
        assert!(fuse(Path::new("/dev/null")).is_ok());
        let shown = tempfile::tempdir().unwrap();
        fs::create_dir(shown.path().join("acme_net")).unwrap();
        assert!(module(shown.path(), "acme-net").is_ok());
        // Too long for the kernel to be asked for, so this loads nothing here.
        let other = module(shown.path(), "acme-of-another-kind");
        assert!(matches!(other, Err(Lack::Module(name)) if name == "acme-of-another-kind"));
    }

    #[test]
    fn the_services_in_records_are_those_of_the_agent() {
        let command = call::ServiceCall::augment_subcommands(Command::new("service"));
        let known: BTreeSet<_> = command.get_subcommands().map(Command::get_name).collect();
        assert_eq!(known, Service::ALL.map(Service::as_str).into());
    }
}
