//! A call-out of the kubelet's `FlexVolume` plugin, read from its arguments (`pkg/volume/flexvolume` of Kubernetes).

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mooring_contract::volume::{Volume, VolumeError};

use crate::grant::request::{MountRequest, Told};
use crate::volume::job::{Access, PodRef, Secrets};
use crate::volume::kubelet_options::{self, FLEX_PREFIX};
use crate::volume::pod_group::PodGroup;
use crate::volume::target::{Driver, Target, TargetError};

#[derive(Debug)]
pub enum FlexVolumeCall {
    /// What can you do?
    Init,
    /// What is this volume called?
    GetVolumeName {
        /// From the option `kubernetes.io/pvOrVolumeName`; empty if the kubelet gave none.
        name: String,
    },
    Mount(Box<MountRequest>),
    /// Unmount whatever is there.
    Unmount {
        target: Target,
    },
    /// Let the file system grow.
    ExpandFs {
        volume: Volume,
        target: Target,
        /// Its new size in bytes.
        size: u64,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum CallOutError {
    /// A call-out that the kubelet is to do by its default.
    #[error("call-out {0:?} is not supported")]
    NotSupported(String),
    #[error("the shim was run without a call-out: it is for the kubelet, not for people")]
    Empty,
    #[error("call-out {call} has {given} arguments instead of {wanted}")]
    Count {
        call: &'static str,
        given: usize,
        wanted: &'static str,
    },
    /// Options that are no JSON object of strings.
    #[error("the volume's options are not a JSON object of strings: {0}")]
    Json(#[source] serde_json::Error),
    #[error("{0}")]
    Volume(#[from] VolumeError),
    #[error("{0}")]
    Target(#[from] TargetError),
    /// A secret that is not base64.
    #[error("secret {0:?} is not base64: create the Secret again")]
    Secret(String),
    #[error("{0:?} is not a size in bytes")]
    Size(String),
}

impl FlexVolumeCall {
    /// Reads a call-out's arguments; `root` is the kubelet's root.
    pub fn parse(args: &[String], root: &Path) -> Result<Self, CallOutError> {
        let (name, rest) = args.split_first().ok_or(CallOutError::Empty)?;
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        match (name.as_str(), rest.as_slice()) {
            // Any argument that a later kubelet might add does not matter.
            ("init", _) => Ok(Self::Init),
            ("getvolumename", [json, ..]) => Ok(Self::GetVolumeName {
                name: Options::parse(json)?.take("pvOrVolumeName"),
            }),
            ("mount", [directory, json]) => Ok(Self::Mount(Box::new(mount_request(directory, json, root)?))),
            ("unmount", [directory]) => Ok(Self::Unmount {
                target: Target::parse_as(Driver::FlexVolume, root, directory)?,
            }),
            // Options, device, directory, new size, old size.
            ("expandfs", [json, _, directory, size, _]) => Ok(Self::ExpandFs {
                volume: Options::parse(json)?.into_volume()?,
                target: Target::parse_as(Driver::FlexVolume, root, directory)?,
                size: size.parse().map_err(|_| CallOutError::Size((*size).to_owned()))?,
            }),
            ("getvolumename", rest) => Err(count("getvolumename", rest, "1")),
            ("mount", rest) => Err(count("mount", rest, "2")),
            ("unmount", rest) => Err(count("unmount", rest, "1")),
            ("expandfs", rest) => Err(count("expandfs", rest, "5")),
            // attach, waitforattach, isattached, detach, mountdevice, unmountdevice: nothing is attached, so the
            // kubelet does not ask; expandvolume: the control plane's, and the provisioner's work.
            (other, _) => Err(CallOutError::NotSupported(other.to_owned())),
        }
    }
}

fn count(call: &'static str, given: &[&str], wanted: &'static str) -> CallOutError {
    CallOutError::Count {
        call,
        given: given.len(),
        wanted,
    }
}

fn mount_request(directory: &str, json: &str, root: &Path) -> Result<MountRequest, CallOutError> {
    let target = Target::parse_as(Driver::FlexVolume, root, directory)?;
    let mut options = Options::parse(json)?;
    let secrets = options.take_secrets()?;
    // A volume's own options go before those that the kubelet adds, so the writer of an inline volume can forge these.
    // The uid comes from the directory.
    let pod = PodRef {
        name: options.take("pod.name"),
        namespace: options.take("pod.namespace"),
        uid: target.pod_uid().to_owned(),
    };
    let read_only = options.take("readwrite") == "ro";
    let fs_group = options.take("mounterArgs.FsGroup").parse().ok().map(PodGroup::always);
    Ok(MountRequest {
        told: Told::Nothing,
        volume: options.into_volume()?,
        secrets,
        target,
        access: Access::FileSystem,
        sole: false,
        read_only,
        only_read: false,
        fs_group,
        label: None,
        pod,
    })
}

/// The volume's options and the kubelet's among them.
struct Options(BTreeMap<String, String>);

impl Options {
    fn parse(json: &str) -> Result<Self, CallOutError> {
        serde_json::from_str(json).map(Self).map_err(CallOutError::Json)
    }

    /// One of the kubelet's; empty if it is not there.
    fn take(&mut self, name: &str) -> String {
        self.0.remove(&format!("{FLEX_PREFIX}{name}")).unwrap_or_default()
    }

    fn take_secrets(&mut self) -> Result<Secrets, CallOutError> {
        const SECRET: &str = "kubernetes.io/secret/";
        let secrets: Vec<String> = self.0.keys().filter(|key| key.starts_with(SECRET)).cloned().collect();
        secrets
            .into_iter()
            .map(|key| {
                let name = key[SECRET.len()..].to_owned();
                let value = self.0.remove(&key).unwrap_or_default();
                match STANDARD.decode(value) {
                    Ok(value) => Ok((name, value)),
                    Err(_) => Err(CallOutError::Secret(name)),
                }
            })
            .collect::<Result<_, _>>()
            .map(Secrets)
    }

    /// The volume; the kubelet's `fsType` (`fsType` of the PV) counts where the options have no `fs-type`.
    fn into_volume(mut self) -> Result<Volume, CallOutError> {
        let fs_type = self.take("fsType");
        Ok(kubelet_options::volume(self.0, FLEX_PREFIX, &fs_type, &[])?)
    }
}

#[cfg(test)]
mod tests {
    use super::{CallOutError, FlexVolumeCall, PodGroup, Told};
    use std::path::Path;

    const DIR: &str = "/var/lib/kubelet/pods/u-1/volumes/mooring.dev~vcs/pvc-1";

    fn parse(args: &[&str]) -> Result<FlexVolumeCall, CallOutError> {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        FlexVolumeCall::parse(&args, Path::new("/var/lib/kubelet"))
    }

    #[test]
    fn a_mount_is_read_as_the_kubelet_writes_it() {
        let json = r#"{"client":"sshfs","source":"tom@h:/x","mount-options":"noatime","port":"22",
            "kubernetes.io/fsType":"ext4","kubernetes.io/readwrite":"ro","kubernetes.io/pvOrVolumeName":"pvc-1",
            "kubernetes.io/pod.name":"web-0","kubernetes.io/pod.namespace":"shop","kubernetes.io/pod.uid":"forged",
            "kubernetes.io/serviceAccount.name":"default","kubernetes.io/mounterArgs.FsGroup":"2000",
            "kubernetes.io/secret/key":"aHVudGVyMg=="}"#;
        let FlexVolumeCall::Mount(call) = parse(&["mount", DIR, json]).unwrap() else {
            panic!("not a mount");
        };
        assert_eq!(call.volume.fs_type, "ext4");
        assert_eq!(call.volume.rest.keys().collect::<Vec<_>>(), ["port"]);
        assert_eq!(call.secrets.0["key"], b"hunter2");
        assert_eq!((call.read_only, call.fs_group), (true, Some(PodGroup::always(2000))));
        assert_eq!((call.pod.namespace.as_str(), call.pod.uid.as_str()), ("shop", "u-1"));
        assert_eq!((&call.told, call.target.name()), (&Told::Nothing, "pvc-1"));
    }

    #[test]
    fn an_expansion_is_read_as_the_kubelet_writes_it() {
        let call = parse(&[
            "expandfs",
            r#"{"client":"local","source":"a"}"#,
            "",
            DIR,
            "2048",
            "1024",
        ])
        .unwrap();
        assert!(matches!(call, FlexVolumeCall::ExpandFs { size: 2048, .. }));
    }

    #[test]
    fn the_name_of_a_volume_is_that_of_its_pv() {
        let call = parse(&["getvolumename", r#"{"kubernetes.io/pvOrVolumeName":"pvc-1"}"#]).unwrap();
        assert!(matches!(call, FlexVolumeCall::GetVolumeName { name } if name == "pvc-1"));
    }

    #[test]
    fn what_the_kubelet_is_to_do_itself_is_not_supported() {
        for call in [
            "attach",
            "detach",
            "waitforattach",
            "isattached",
            "mountdevice",
            "unmountdevice",
            "expandvolume",
            "new",
        ] {
            assert!(
                matches!(parse(&[call, "{}", "x"]), Err(CallOutError::NotSupported(_))),
                "{call}"
            );
        }
    }

    #[test]
    fn malformed_call_outs_are_told_what_is_wrong() {
        for (args, words) in [
            (&[][..], "without a call-out"),
            (&["mount", DIR], "1 arguments instead of 2"),
            (&["mount", DIR, "{"], "not a JSON object"),
            (&["mount", DIR, "[]"], "not a JSON object"),
            (&["mount", DIR, r#"{"client":1}"#], "not a JSON object"),
            (&["mount", DIR, "{}"], "\"client\" is missing"),
            (
                &["mount", "/etc", r#"{"client":"local"}"#],
                "not under the kubelet's root",
            ),
            (&["unmount", "/var/lib/kubelet"], "not a directory of one of"),
            (&["unmount"], "0 arguments instead of 1"),
            (
                &["mount", DIR, r#"{"client":"x","kubernetes.io/secret/k":"?"}"#],
                "not base64",
            ),
            (
                &["expandfs", r#"{"client":"local"}"#, "", DIR, "big", "0"],
                "not a size",
            ),
        ] {
            let error = parse(args).unwrap_err().to_string();
            assert!(error.contains(words), "{args:?}: {error}");
        }
    }
}
