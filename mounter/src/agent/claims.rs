//! Which volume has a device on this node. Nothing else decides whether a device that is there may serve a mount: the
//! agent asks before a program makes or shares a device, and an image's program by `mounter claim-device` once it knows
//! which of the kernel's devices it would use.
//!
//! A claim is a file in the kubelet's root, which all client containers of the node have: a device, its owner, and the
//! target that has it. It counts while the target exists: the kubelet removes the target also where no client
//! container is left to withdraw the claim. See `docs/decisions/kernel-device-owners.md`.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::protocol::MountCall;
use super::store::{self, StoreError, hex};
use crate::volume::device_owner::DeviceOwner;
use crate::volume::target::{Target, TargetError};

/// Below the kubelet's root.
const CLAIMS: &str = "plugins/mooring.dev/claims";

/// Says which start of the kernel this is: its devices get their names anew each time.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why a volume does not get a device.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error(
        "{owner} has {device} on this node, and a device is one volume's only: delete the Pods that use {owner}, or \
         correct source in one of the two volumes"
    )]
    Taken { device: String, owner: DeviceOwner },
    #[error(
        "{0} is in use on this node by something else than a volume of Mooring, so it is not used: see what has it \
         (\"lsblk\" on the node), and end that"
    )]
    Foreign(String),
    #[error("failed to {attempted} {path}, which has the owners of this node's devices")]
    Files {
        attempted: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Target(#[from] TargetError),
}

#[derive(Debug, Serialize, Deserialize)]
struct Claim {
    boot: String,
    device: String,
    owner: DeviceOwner,
    target: PathBuf,
}

/// The claims of a node, in whichever container they are made.
#[derive(Debug)]
pub(super) struct Claims {
    kubelet_root: PathBuf,
    boot_id: PathBuf,
}

impl Claims {
    pub(super) fn new(kubelet_root: &Path) -> Self {
        Self {
            kubelet_root: kubelet_root.to_owned(),
            boot_id: BOOT_ID.into(),
        }
    }

    /// Notes that a call's volume has the device that its source names, unless another volume has it.
    pub(super) fn claim_source(&self, call: &MountCall) -> Result<(), ClaimError> {
        self.claim(&names_of_source(call), call, false)
    }

    /// Notes that a call's volume has a device, by all its names, unless another volume has it by one of them. If the
    /// device is `in_use`, a volume has to have it already.
    fn claim(&self, names: &[String], call: &MountCall, in_use: bool) -> Result<(), ClaimError> {
        let _lock = self.lock()?;
        let boot = fs::read_to_string(&self.boot_id).map_err(at("read", &self.boot_id))?;
        let owner = self.owner(call)?;
        for device in names {
            self.check(device, &boot, &owner, in_use)?;
        }
        for device in names {
            let name = format!("{}-{}.json", digest(device), store::id(&call.target));
            let claim = Claim {
                boot: boot.clone(),
                device: device.clone(),
                owner: owner.clone(),
                target: (&call.target).into(),
            };
            store::write(&self.dir().join(name), &claim)?;
        }
        Ok(())
    }

    /// Fails if a device is not an owner's to have. Removes the claims of it that count no more.
    fn check(&self, device: &str, boot: &str, owner: &DeviceOwner, in_use: bool) -> Result<(), ClaimError> {
        let mut is_ours = false;
        for path in self.files(|name| name.starts_with(&digest(device)))? {
            let claim: Claim = store::read(&path)?;
            if claim.boot != boot || !in_use && !exists(&claim.target) {
                fs::remove_file(&path).map_err(at("remove", &path))?;
            } else if claim.owner == *owner {
                is_ours = true;
            } else {
                let (device, owner) = (claim.device, claim.owner);
                return Err(ClaimError::Taken { device, owner });
            }
        }
        if in_use && !is_ours {
            return Err(ClaimError::Foreign(device.to_owned()));
        }
        Ok(())
    }

    /// Withdraws all claims of a target.
    pub(super) fn withdraw(&self, target: &str) -> Result<(), ClaimError> {
        if !self.dir().exists() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let of_target = format!("-{}.json", store::id(target));
        for path in self.files(|name| name.ends_with(&of_target))? {
            fs::remove_file(&path).map_err(at("remove", &path))?;
        }
        Ok(())
    }

    /// A mounter of an earlier release does not say whose a volume is. Nearly all are `PersistentVolumes`.
    fn owner(&self, call: &MountCall) -> Result<DeviceOwner, TargetError> {
        let of_target = || Target::parse_any(&self.kubelet_root, &call.target);
        let named = call.owner.clone().map(Ok);
        named.unwrap_or_else(|| of_target().map(|target| DeviceOwner::persistent_volume(target.name())))
    }

    fn dir(&self) -> PathBuf {
        self.kubelet_root.join(CLAIMS)
    }

    /// Until it is dropped, nobody else on the node reads or changes claims.
    fn lock(&self) -> Result<File, ClaimError> {
        let dir = self.dir();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(at("make", &dir))?;
        let path = dir.join("lock");
        let lock = File::create(&path).map_err(at("make", &path))?;
        lock.lock().map_err(at("lock", &path))?;
        Ok(lock)
    }

    fn files(&self, is_it: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, StoreError> {
        let mut paths = store::list(&self.dir())?;
        let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        paths.retain(|path| path.extension().is_some_and(|end| end == "json") && is_it(&name(path)));
        Ok(paths)
    }
}

/// The names of the device that a call's source names: one for each server that it can be reached by, the same for all
/// clients where the source says what it is of.
fn names_of_source(call: &MountCall) -> Vec<String> {
    let Some((kind, rest)) = call.source.split_once("://") else {
        return vec![format!("{} {}", call.client, call.source)];
    };
    let port = match kind {
        "iscsi" => ":3260",
        "nbd" => ":10809",
        "rbd" => ":6789",
        _ => return vec![call.source.clone()],
    };
    let (servers, path) = rest.split_once('/').unwrap_or((rest, ""));
    let name = |server: &str| format!("{kind}://{}/{path}", server.strip_suffix(port).unwrap_or(server));
    servers.to_ascii_lowercase().split(',').map(name).collect()
}

/// Flags of `mounter claim-device`.
#[derive(Debug, Clone, clap::Args)]
pub struct ClaimArgs {
    /// The agent's record of the volume.
    #[arg(long)]
    record: PathBuf,
    #[arg(long, env = "MOORING_KUBELET_ROOT")]
    kubelet_root: PathBuf,
    /// The file that names this start of the kernel.
    #[arg(long, default_value = BOOT_ID)]
    boot_id: PathBuf,
    /// The device is in use, so a volume has to have it already.
    #[arg(long)]
    in_use: bool,
    /// A name that this device alone has on the node, such as "disk sda".
    device: String,
}

pub fn run(args: ClaimArgs) -> Result<(), ClaimError> {
    let (kubelet_root, boot_id) = (args.kubelet_root, args.boot_id);
    let call = store::read(&args.record)?;
    Claims { kubelet_root, boot_id }.claim(&[args.device], &call, args.in_use)
}

fn digest(device: &str) -> String {
    hex(&Sha256::digest(device)[..10])
}

/// Whether a target is there, by its directory: the target itself may be on a server that does not answer.
fn exists(target: &Path) -> bool {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return false;
    };
    match fs::read_dir(parent) {
        Ok(mut entries) => entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() == name)),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

fn at(attempted: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ClaimError {
    let path = path.to_owned();
    move |source| ClaimError::Files {
        attempted,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{ClaimError, Claims};
    use crate::agent::protocol::MountCall;
    use crate::agent::store;
    use crate::volume::device_owner::DeviceOwner;

    /// A call for a volume's target, which is made.
    fn call(root: &Path, pod: &str, name: &str, owner: Option<&DeviceOwner>) -> MountCall {
        let target = root.join(format!("pods/{pod}/volumes/mooring.dev~vcs/{name}"));
        fs::create_dir_all(&target).unwrap();
        let json = serde_json::json!({
            "target": target, "client": "block", "source": "nbd://h/e", "owner": owner, "limit_ms": 1
        });
        serde_json::from_value(json).unwrap()
    }

    fn owner(claims: &Claims, call: &MountCall, in_use: bool) -> Option<String> {
        match claims.claim(&["disk sda".to_owned()], call, in_use) {
            Ok(()) => None,
            Err(ClaimError::Taken { owner, .. }) => Some(owner.to_string()),
            Err(ClaimError::Foreign(_)) => Some("foreign".to_owned()),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_device_is_one_volume_s_until_the_last_of_its_pods_has_left_the_node() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let claims = Claims::new(root);
        let of = |pod: &str, name: &str| call(root, pod, name, Some(&DeviceOwner::persistent_volume(name)));
        let (first, second, other) = (of("u", "pv-1"), of("w", "pv-1"), of("x", "pv-2"));
        for ours in [&first, &second, &first] {
            assert_eq!(owner(&claims, ours, false), None);
        }
        claims.claim(&["disk sdb".to_owned()], &other, false).unwrap();
        claims.withdraw(&first.target).unwrap();
        assert_eq!(owner(&claims, &other, false).as_deref(), Some("PersistentVolume pv-1"));
        // The kubelet has removed it, and no client container was left.
        fs::remove_dir(&second.target).unwrap();
        for in_use in [true, false] {
            let expected = in_use.then_some("PersistentVolume pv-1");
            assert_eq!(owner(&claims, &other, in_use).as_deref(), expected);
        }
        claims.withdraw(&other.target).unwrap();
        assert_eq!(owner(&claims, &first, true).as_deref(), Some("foreign"));
    }

    #[test]
    fn a_volume_in_pods_is_none_of_another_namespace_and_no_persistent_volume_of_its_name() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let claims = Claims::new(root);
        let inline = |pod: &str, namespace: &str| call(root, pod, "v", Some(&DeviceOwner::inline(namespace, "v")));
        assert_eq!(owner(&claims, &inline("u", "shop"), false), None);
        assert_eq!(owner(&claims, &inline("w", "shop"), false), None);
        let persistent = call(root, "y", "v", Some(&DeviceOwner::persistent_volume("v")));
        // A mounter of an earlier release.
        let unsaid = call(root, "y", "v", None);
        for other in [&inline("x", "rival"), &persistent, &unsaid] {
            let said = owner(&claims, other, false);
            assert_eq!(said.as_deref(), Some("volume v of Pods in namespace shop"));
        }
        for pod in ["u", "w"] {
            claims.withdraw(&inline(pod, "shop").target).unwrap();
        }
        assert_eq!(owner(&claims, &persistent, false), None);
        assert_eq!(owner(&claims, &unsaid, false), None);
    }

    #[test]
    fn claims_of_before_the_kernel_started_count_for_nothing() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let boot_id = root.join("boot_id");
        let claims = Claims {
            kubelet_root: root.to_owned(),
            boot_id: boot_id.clone(),
        };
        fs::write(&boot_id, "1").unwrap();
        assert_eq!(owner(&claims, &call(root, "u", "pv-1", None), false), None);
        fs::write(&boot_id, "2").unwrap();
        assert_eq!(owner(&claims, &call(root, "w", "pv-2", None), false), None);
    }

    #[test]
    fn a_device_is_known_by_each_of_its_servers_however_the_source_is_written() {
        for (ours, theirs, is_same) in [
            ("iscsi://10.0.0.1/iqn.x:t/1", "iscsi://10.0.0.1:3260/iqn.x:t/1", true),
            ("iscsi://A:1,b/iqn.x:t/1", "iscsi://B:3260,c/iqn.x:t/1", true),
            ("iscsi://[fd00::4]/iqn.x:t/1", "iscsi://[fd00::4]:3260/iqn.x:t/1", true),
            ("iscsi://a/iqn.x:t/1", "iscsi://b/iqn.x:t/1", false),
            ("iscsi://a/iqn.x:t/1", "iscsi://a/iqn.x:t/2", false),
            ("iscsi://a/iqn.x:t/1", "iscsi://a:3261/iqn.x:t/1", false),
            ("nbd://h/e", "nbd://h:10809/e", true),
            ("nbd://h/e", "nbd://h/E", false),
            ("rbd://m,n/p/i", "rbd://n:6789/p/i", true),
            ("acme://a,b/x", "acme://b/x", false),
            ("disk-1", "disk-1", true),
        ] {
            let root = tempfile::tempdir().unwrap();
            let root = root.path();
            let claims = Claims::new(root);
            let mut of = ["pv-1", "pv-2"].map(|name| call(root, "u", name, None));
            (of[0].source, of[1].source) = (ours.to_owned(), theirs.to_owned());
            claims.claim_source(&of[0]).unwrap();
            let said = claims.claim_source(&of[1]);
            let is_taken = matches!(said, Err(ClaimError::Taken { .. }));
            assert_eq!(is_taken, is_same, "{ours} {theirs}: {said:?}");
            // What is refused by one of its names is noted by none.
            let noted = claims.files(|name| name.contains(&store::id(&of[1].target))).unwrap();
            assert_eq!(noted.is_empty(), is_taken, "{noted:?}");
        }
        // Another kind of client may mean another device by a plain name.
        let root = tempfile::tempdir().unwrap();
        let claims = Claims::new(root.path());
        let mut of = ["pv-1", "pv-2"].map(|name| call(root.path(), "u", name, None));
        for (call, client) in of.iter_mut().zip(["acme", "other"]) {
            (call.source, call.client) = ("disk-1".to_owned(), client.to_owned());
            claims.claim_source(call).unwrap();
        }
    }
}
