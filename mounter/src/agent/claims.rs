//! Which volume has a device on this node, and which client Pod serves it. Nothing else decides whether a device that
//! is there may serve a mount: the agent asks before a program makes or shares a device, and an image's program by
//! `mounter claim-device` once it knows which of the kernel's devices it would use.
//!
//! A claim is a file in the kubelet's root, which all client containers of the node have. It counts while its target
//! exists: the kubelet removes the target also where no client container is left to withdraw the claim. A device that
//! a client Pod makes itself may outlive the target, so its claim counts while the client Pod is on the node, too. See
//! `docs/decisions/kernel-device-owners.md`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use mooring_contract::volume::clients::INITIATOR_OPTION;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::protocol::MountCall;
use super::record;
use super::store::{self, StoreError, hex};
use crate::sys::absent_is_fine;
use crate::volume::device_owner::DeviceOwner;
use crate::volume::mount_table::Table;
use crate::volume::target::{Target, TargetError};

/// What the client containers of a node share, below the kubelet's root.
pub(super) const SHARED: &str = "plugins/mooring.dev";

/// The claims, in [`SHARED`].
const CLAIMS: &str = "claims";

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
        "{owner} has {device} on this node through {by}, and a second device of one storage destroys what is on it: \
         delete the Pods of this node that use {owner} that way; if there are none, delete that client Pod"
    )]
    Elsewhere {
        device: String,
        owner: DeviceOwner,
        by: Box<Holder>,
    },
    #[error(
        "{owner} may still have {device} on this node: delete the client Pods of this node, and wait until they are gone"
    )]
    Left { device: String, owner: DeviceOwner },
    /// Somebody else's may have the same name.
    #[error("{0} is no PersistentVolume, so its Secret alone shows whether it may use the device of another Pod")]
    NotPersistent(DeviceOwner),
    #[error(
        "{0} is in use on this node by something else than a volume of Mooring, so it is not used: see what has it \
         (\"lsblk\" on the node), and end that"
    )]
    Foreign(String),
    #[error("failed to {attempted} {path}, which has the owners of this node's devices")]
    Files {
        attempted: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Target(#[from] TargetError),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    boot: String,
    device: String,
    owner: DeviceOwner,
    target: PathBuf,
    /// None from an agent of an earlier release.
    by: Option<Holder>,
}

/// The client that has a device, and how its volume names the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    client: String,
    source: String,
    /// Targets of iSCSI may show each initiator other LUNs. The kernel's client compares the devices as well.
    initiator: Option<String>,
    /// The uid of the client Pod; none if it is not known.
    client_pod: Option<String>,
    /// Whether the client Pod has made the device, and it works: it is not the kernel's.
    is_own: bool,
}

impl Holder {
    /// Whether it has another device than a claim's by the same name.
    fn is_apart(&self, claim: &Claim) -> bool {
        let theirs = claim.by.as_ref().and_then(|by| by.initiator.as_ref());
        self.initiator
            .as_ref()
            .zip(theirs)
            .is_some_and(|(ours, theirs)| ours != theirs)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, source, .. } = self;
        write!(f, "client {client} with source={source}")?;
        self.client_pod
            .as_ref()
            .map_or(Ok(()), |uid| write!(f, " in the client Pod with uid {uid}"))
    }
}

/// The claims of a node, in whichever container they are made.
#[derive(Debug)]
pub(super) struct Claims {
    kubelet_root: PathBuf,
    boot_id: PathBuf,
    /// The uid of this client Pod.
    client_pod: Option<String>,
}

impl Claims {
    /// For the agent with a directory of its Pod.
    pub(super) fn new(kubelet_root: &Path, agent_dir: &Path) -> Self {
        Self {
            kubelet_root: kubelet_root.to_owned(),
            boot_id: BOOT_ID.into(),
            client_pod: Table::read().ok().and_then(|table| client_pod(&table, agent_dir)),
        }
    }

    /// Notes that a call's volume has the device that its source names, unless another volume or another client Pod
    /// has it.
    pub(super) fn claim_source(&self, call: &MountCall) -> Result<(), ClaimError> {
        let is_kernels = call.client == "iscsi";
        let by = Holder {
            initiator: call.options.get(INITIATOR_OPTION).filter(|_| is_kernels).cloned(),
            is_own: record::has_one_device(call),
            ..self.holder(call)
        };
        self.claim(&names_of_source(call), call, by, false)
    }

    fn holder(&self, call: &MountCall) -> Holder {
        Holder {
            client: call.client.clone(),
            source: call.source.clone(),
            initiator: None,
            client_pod: self.client_pod.clone(),
            is_own: false,
        }
    }

    /// Notes that a call's volume has a device, by all its names, unless somebody else has it by one of them. If the
    /// device is `in_use`, a volume has to have it already.
    fn claim(&self, names: &[String], call: &MountCall, by: Holder, in_use: bool) -> Result<(), ClaimError> {
        let _lock = self.lock()?;
        let mut claim = Claim {
            boot: self.boot()?,
            device: String::new(),
            owner: self.owner(call)?,
            target: (&call.target).into(),
            by: Some(by),
        };
        for device in names {
            device.clone_into(&mut claim.device);
            self.check(&claim, in_use)?;
        }
        for device in names {
            device.clone_into(&mut claim.device);
            let (of_device, of_boot) = (digest(device), digest(&claim.boot));
            let path = (self.dir()).join(format!("{of_device}-{of_boot}-{}.json", store::id(&call.target)));
            // On a full disk, what is claimed already can be mounted again.
            if store::read::<Claim>(&path).is_ok_and(|noted| noted == claim) {
                continue;
            }
            store::write(&path, &claim)?;
        }
        Ok(())
    }

    /// Fails if a device is not a claim's to have. Removes the claims of it that count no more.
    fn check(&self, ours: &Claim, in_use: bool) -> Result<(), ClaimError> {
        let mut is_ours = false;
        let of_device = digest(&ours.device);
        for path in self.files(|name| name.starts_with(&of_device))? {
            let claim = read_claim(&path, &ours.boot)?;
            let Some(claim) = claim.filter(|claim| in_use || self.counts(claim)) else {
                remove(&path)?;
                continue;
            };
            let Claim { device, owner, by, .. } = claim;
            if by.as_ref().is_some_and(|by| by.is_apart(ours)) {
                continue;
            }
            if owner != ours.owner {
                return Err(ClaimError::Taken { device, owner });
            }
            match by {
                Some(by) if self.makes_another(&by, ours) => {
                    let by = Box::new(by);
                    return Err(ClaimError::Elsewhere { device, owner, by });
                }
                _ => is_ours = true,
            }
        }
        if in_use && !is_ours {
            return Err(ClaimError::Foreign(ours.device.clone()));
        }
        Ok(())
    }

    /// Removes all that the client containers of this node share, unless a device may still be used for a claim.
    fn remove_all(&self) -> Result<(), ClaimError> {
        let shared = self.kubelet_root.join(SHARED);
        if self.dir().exists() {
            let _lock = self.lock()?;
            let boot = self.boot()?;
            for path in self.files(|_| true)? {
                if let Some(Claim { device, owner, .. }) = read_claim(&path, &boot)?.filter(|claim| self.counts(claim))
                {
                    return Err(ClaimError::Left { device, owner });
                }
            }
        }
        absent_is_fine(fs::remove_dir_all(&shared)).map_err(at("remove", &shared))
    }

    fn boot(&self) -> Result<String, ClaimError> {
        fs::read_to_string(&self.boot_id).map_err(at("read", &self.boot_id))
    }

    /// Whether a device may still be used for a claim.
    fn counts(&self, claim: &Claim) -> bool {
        exists(&claim.target) || claim.by.as_ref().is_some_and(|by| by.is_own && self.is_on_node(by))
    }

    /// Whether a device for a claim would be a second one of its volume, beside that of `by`.
    fn makes_another(&self, by: &Holder, claim: &Claim) -> bool {
        let Some(ours) = &claim.by else { return false };
        let is_in_another_pod = by.client_pod != ours.client_pod && self.is_on_node(by);
        let is_other = (&by.client, &by.source) != (&ours.client, &ours.source);
        by.is_own && is_in_another_pod || (by.is_own || ours.is_own) && is_other
    }

    /// Whether a client Pod is on the node: the kubelet removes its directory after its last process.
    fn is_on_node(&self, by: &Holder) -> bool {
        let dir = |uid| self.kubelet_root.join("pods").join(uid);
        by.client_pod.as_ref().is_some_and(|uid| exists(&dir(uid)))
    }

    /// Notes that what this client Pod made for a target has ended: nothing is written to it any more, so the volume may
    /// get another device.
    pub(super) fn device_ended(&self, target: &str) -> Result<(), ClaimError> {
        self.each(of_target(target), |path, mut claim| {
            if let Some(by) = claim.by.as_mut().filter(|by| by.is_own) {
                by.is_own = false;
                store::write(path, &claim)?;
            }
            Ok(())
        })
    }

    /// Withdraws this client Pod's claims of a target.
    pub(super) fn withdraw(&self, target: &str) -> Result<(), ClaimError> {
        self.each(of_target(target), |path, _| remove(path))
    }

    /// Withdraws this client Pod's claims of targets that are not among those that it has.
    pub(super) fn withdraw_all_but<'a>(&self, targets: impl Iterator<Item = &'a str>) -> Result<(), ClaimError> {
        if self.client_pod.is_none() {
            return Ok(());
        }
        let kept: BTreeSet<&Path> = targets.map(Path::new).collect();
        self.each(
            |_| true,
            |path, claim| match claim.by {
                Some(_) if !kept.contains(&*claim.target) => remove(path),
                _ => Ok(()),
            },
        )
    }

    /// Does something with those claims that are not another client Pod's.
    fn each(
        &self,
        named: impl Fn(&str) -> bool,
        act: impl Fn(&Path, Claim) -> Result<(), ClaimError>,
    ) -> Result<(), ClaimError> {
        if !self.dir().exists() {
            return Ok(());
        }
        let _lock = self.lock()?;
        for path in self.files(named)? {
            // Of one that can't be read, nobody knows whose it is.
            let Ok(claim) = store::read::<Claim>(&path) else {
                continue;
            };
            if claim.by.as_ref().is_none_or(|by| by.client_pod == self.client_pod) {
                act(&path, claim)?;
            }
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
        self.kubelet_root.join(SHARED).join(CLAIMS)
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

/// Takes a node's claims away, and what else its client containers share, once nothing is mounted there any more.
pub(crate) fn remove_all(kubelet_root: &Path) -> Result<(), ClaimError> {
    let claims = Claims {
        kubelet_root: kubelet_root.to_owned(),
        boot_id: BOOT_ID.into(),
        client_pod: None,
    };
    claims.remove_all()
}

/// A claim since this start of the kernel. One of before may be cut off: its name says so, unless an earlier release
/// gave it.
fn read_claim(path: &Path, boot: &str) -> Result<Option<Claim>, StoreError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.matches('-').count() > 1 && !name.contains(&format!("-{}-", digest(boot))) {
        return Ok(None);
    }
    let claim: Claim = store::read(path)?;
    Ok(Some(claim).filter(|claim| claim.boot == boot))
}

/// The names of the device that a call's source names: one for each server that it can be reached by, the same for all
/// clients where the source says what it is of.
fn names_of_source(call: &MountCall) -> Vec<String> {
    let Some((kind, rest)) = call.source.split_once("://") else {
        return vec![format!("{} {}", call.client, call.source)];
    };
    let port = match kind {
        "iscsi" => 3260,
        "nbd" => 10809,
        "rbd" => 6789,
        // No port can be written.
        "nfs" => 2049,
        _ => return vec![call.source.clone()],
    };
    let (servers, path) = rest.split_once('/').unwrap_or((rest, ""));
    // Names of iSCSI are the same in capitals.
    let path = if kind == "iscsi" {
        path.to_ascii_lowercase()
    } else {
        path.to_owned()
    };
    let name = |server: &str| {
        let with_port = server.rsplit_once(':');
        let with_port = with_port.and_then(|(host, port)| Some((host, port.parse::<u32>().ok()?)));
        match with_port {
            Some((host, number)) if number != port => format!("{kind}://{host}:{number}/{path}"),
            Some((host, _)) => format!("{kind}://{host}/{path}"),
            None => format!("{kind}://{server}/{path}"),
        }
    };
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
    /// The volume is to be a PersistentVolume, as the API showed when its mount was granted.
    #[arg(long)]
    persistent: bool,
    /// A name that this device alone has on the node, such as "disk sda".
    device: String,
}

pub fn run(args: ClaimArgs) -> Result<(), ClaimError> {
    let call: MountCall = store::read(&args.record)?;
    let claims = Claims {
        // The record is two folders below it.
        client_pod: Table::read()
            .ok()
            .zip(args.record.ancestors().nth(2))
            .and_then(|(table, dir)| client_pod(&table, dir)),
        kubelet_root: args.kubelet_root,
        boot_id: args.boot_id,
    };
    if args.persistent && !call.is_of_persistent_volume() {
        return Err(ClaimError::NotPersistent(claims.owner(&call)?));
    }
    let by = claims.holder(&call);
    claims.claim(&[args.device], &call, by, args.in_use)
}

/// The uid of the client Pod with an agent's directory, which is one of the Pod's volumes: the mount table says which.
fn client_pod(table: &Table, agent_dir: &Path) -> Option<String> {
    // The kubelet's root, or its folder of Pods, may be a file system of its own.
    let parts: Vec<&OsStr> = table.top(agent_dir)?.root.iter().collect();
    let is_volume = |at: &&[&OsStr]| at[1] == "volumes" && at[2] == "kubernetes.io~empty-dir";
    parts.windows(3).rfind(is_volume)?[0].to_str().map(str::to_owned)
}

/// Whether a claim's name is of this target.
fn of_target(target: &str) -> impl Fn(&str) -> bool {
    let end = format!("-{}.json", store::id(target));
    move |name| name.ends_with(&end)
}

fn remove(path: &Path) -> Result<(), ClaimError> {
    fs::remove_file(path).map_err(at("remove", path))
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
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    use super::{BOOT_ID, ClaimError, Claims, client_pod};
    use crate::agent::protocol::MountCall;
    use crate::agent::store;
    use crate::volume::device_owner::DeviceOwner;
    use crate::volume::mount_table::Table;

    /// A call for a volume's target, which is made.
    fn call(root: &Path, pod: &str, name: &str, owner: Option<&DeviceOwner>) -> MountCall {
        let target = root.join(format!("pods/{pod}/volumes/mooring.dev~vcs/{name}"));
        fs::create_dir_all(&target).unwrap();
        let json = serde_json::json!({
            "target": target, "client": "block", "source": "nbd://h/e", "owner": owner, "limit_ms": 1
        });
        serde_json::from_value(json).unwrap()
    }

    fn claims(root: &Path, client_pod: Option<&str>) -> Claims {
        Claims {
            kubelet_root: root.to_owned(),
            boot_id: BOOT_ID.into(),
            client_pod: client_pod.map(str::to_owned),
        }
    }

    fn owner(claims: &Claims, call: &MountCall, in_use: bool) -> Option<String> {
        match claims.claim(&["disk sda".to_owned()], call, claims.holder(call), in_use) {
            Ok(()) => None,
            Err(ClaimError::Taken { owner, .. }) => Some(owner.to_string()),
            Err(ClaimError::Foreign(_)) => Some("foreign".to_owned()),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn what_client_containers_share_goes_with_mooring_unless_a_device_may_still_be_used() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let claims = claims(root, Some("client"));
        claims.remove_all().unwrap();
        let call = call(root, "u", "pv-1", Some(&DeviceOwner::persistent_volume("pv-1")));
        assert_eq!(owner(&claims, &call, false), None);
        fs::write(root.join("plugins/mooring.dev/iscsi-0.lock"), "").unwrap();
        fs::write(root.join("plugins/mooring.dev/claims/a-b-c.json"), "cut off bef").unwrap();
        assert!(matches!(claims.remove_all(), Err(ClaimError::Left { .. })));
        assert!(root.join("plugins/mooring.dev/iscsi-0.lock").exists());
        fs::remove_dir(&call.target).unwrap();
        claims.remove_all().unwrap();
        assert_eq!(fs::read_dir(root.join("plugins")).unwrap().count(), 0);
    }

    #[test]
    fn a_device_is_one_volume_s_until_the_last_of_its_pods_has_left_the_node() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let claims = claims(root, None);
        let of = |pod: &str, name: &str| call(root, pod, name, Some(&DeviceOwner::persistent_volume(name)));
        let (first, second, other) = (of("u", "pv-1"), of("w", "pv-1"), of("x", "pv-2"));
        for ours in [&first, &second, &first] {
            assert_eq!(owner(&claims, ours, false), None);
        }
        claims
            .claim(&["disk sdb".to_owned()], &other, claims.holder(&other), false)
            .unwrap();
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
        let claims = claims(root, None);
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
    fn claims_of_before_the_kernel_started_count_for_nothing_also_where_they_were_cut_off() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let boot_id = root.join("boot_id");
        let claims = Claims {
            boot_id: boot_id.clone(),
            ..claims(root, None)
        };
        fs::write(&boot_id, "1").unwrap();
        assert_eq!(owner(&claims, &call(root, "u", "pv-1", None), false), None);
        assert_eq!(owner(&claims, &call(root, "x", "pv-1", None), false), None);
        let cut_off = claims.files(|_| true).unwrap();
        fs::write(&cut_off[0], "").unwrap();
        // Nobody knows whose it is.
        assert!(claims.claim_source(&call(root, "u", "pv-1", None)).is_ok());
        let said = claims.claim(
            &["disk sda".to_owned()],
            &call(root, "w", "pv-2", None),
            claims.holder(&call(root, "w", "pv-2", None)),
            false,
        );
        assert!(matches!(said, Err(ClaimError::Store(_))), "{said:?}");
        fs::write(&boot_id, "2").unwrap();
        assert_eq!(owner(&claims, &call(root, "w", "pv-2", None), false), None);
        assert!(cut_off.iter().all(|path| !path.exists()));
    }

    /// Each client Pod would make a device of its own, with a cache of its own.
    #[test]
    fn a_volume_has_no_second_device_by_another_client_pod_or_another_spelling() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let of = |pod: &str| call(root, pod, "pv-1", Some(&DeviceOwner::persistent_volume("pv-1")));
        for uid in ["old", "new"] {
            fs::create_dir_all(root.join("pods").join(uid)).unwrap();
        }
        let (old, new) = (claims(root, Some("old")), claims(root, Some("new")));
        let first = of("u");
        for _ in 0..2 {
            old.claim_source(&first).unwrap();
        }
        old.claim_source(&of("w")).unwrap();
        let refused = |call: &MountCall, by: &Claims| match by.claim_source(call) {
            Err(error @ ClaimError::Elsewhere { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        };
        // Of the same target, too: the old client Pod may still be making it.
        for call in [&of("x"), &first] {
            let text = refused(call, &new);
            assert!(
                text.contains("PersistentVolume pv-1 has nbd://h/e on this node through client block"),
                "{text}"
            );
            assert!(text.contains("in the client Pod with uid old"), "{text}");
        }
        let mut spelled = of("x");
        spelled.source = "nbd://H:10809/e".to_owned();
        assert!(refused(&spelled, &old).contains("source=nbd://h/e "));
        let mut served = of("x");
        (served.source, served.client) = ("nbd://h/e".to_owned(), "acme".to_owned());
        assert!(refused(&served, &old).contains("client block"));
        // What a client Pod made may outlive the targets. Another client Pod does not withdraw its claims.
        for pod in ["u", "w"] {
            let target = of(pod).target.clone();
            new.withdraw(&target).unwrap();
            fs::remove_dir(&target).unwrap();
        }
        refused(&of("x"), &new);
        let other = call(root, "x", "pv-2", None);
        assert!(matches!(new.claim_source(&other), Err(ClaimError::Taken { .. })));
        // One that does not know its uid withdraws nothing but its own.
        let unknown = claims(root, None);
        unknown.withdraw_all_but(std::iter::empty()).unwrap();
        unknown.withdraw(&first.target).unwrap();
        assert!(matches!(new.claim_source(&other), Err(ClaimError::Taken { .. })));
        // Its program has ended, and the next Pod gets a device of its own.
        let second = of("y");
        new.claim_source(&second).unwrap_err();
        old.device_ended(&first.target).unwrap();
        old.device_ended(&of("w").target).unwrap();
        for pod in ["u", "w"] {
            of(pod);
        }
        new.claim_source(&second).unwrap();
        new.withdraw(&second.target).unwrap();
        for pod in ["u", "w"] {
            old.claim_source(&of(pod)).unwrap();
        }
        // It forgets what it has no record of, when its container has started anew.
        old.withdraw_all_but([first.target.as_str()].into_iter()).unwrap();
        refused(&of("x"), &new);
        old.withdraw_all_but(std::iter::empty()).unwrap();
        new.claim_source(&of("x")).unwrap();
        // The volume of a client Pod that is gone is mounted again by the next.
        fs::remove_dir(root.join("pods/new")).unwrap();
        old.claim_source(&of("x")).unwrap();
        old.claim_source(&of("u")).unwrap();
    }

    #[test]
    fn the_mount_table_says_which_client_pod_it_is_in() {
        let line = |root: &str| {
            let table = format!("30 29 0:5 {root} /run/mooring rw shared:1 - ext4 /dev/sda1 rw\n");
            client_pod(&Table::parse(table.as_bytes()), Path::new("/run/mooring"))
        };
        let volume = "volumes/kubernetes.io~empty-dir/agent";
        for before in ["/var/lib/kubelet/pods", "/data/pods/kubelet/pods", "/pods", ""] {
            assert_eq!(
                line(&format!("{before}/u-1/{volume}")).as_deref(),
                Some("u-1"),
                "{before}"
            );
        }
        assert_eq!(line("/"), None);
        assert_eq!(line("/var/lib/docker/containers/x/mounts"), None);
    }

    #[test]
    fn a_claim_that_is_there_is_not_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let claims = claims(dir.path(), Some("u"));
        let call = call(dir.path(), "u", "pv-1", None);
        claims.claim_source(&call).unwrap();
        let inode = || fs::metadata(&claims.files(|_| true).unwrap()[0]).unwrap().ino();
        let before = inode();
        claims.claim_source(&call).unwrap();
        assert_eq!(inode(), before);
    }

    #[test]
    fn a_device_of_the_kernel_s_is_one_for_all_client_pods() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let of = |pod: &str| {
            let mut call = call(root, pod, "pv-1", None);
            (call.client, call.source) = ("iscsi".to_owned(), "iscsi://h/iqn.x:t/1".to_owned());
            call
        };
        for (uid, pod) in [("old", "u"), ("new", "w")] {
            fs::create_dir_all(root.join("pods").join(uid)).unwrap();
            let claims = claims(root, Some(uid));
            claims.claim_source(&of(pod)).unwrap();
            assert_eq!(owner(&claims, &of(pod), false), None);
        }
        // It is gone with the last target, whichever client Pod lives.
        for pod in ["u", "w"] {
            fs::remove_dir(&of(pod).target).unwrap();
        }
        let other = call(root, "x", "pv-2", None);
        assert_eq!(owner(&claims(root, Some("new")), &other, false), None);
    }

    /// A target may show each of them other devices as its LUN 1.
    #[test]
    fn two_initiators_of_the_kernel_have_two_devices_of_one_lun() {
        let lun = |root: &Path, client: &str, name: &str, initiator: Option<&str>| {
            let mut call = call(root, "u", name, None);
            (call.client, call.source) = (client.to_owned(), "iscsi://h/iqn.x:t/1".to_owned());
            call.options = initiator
                .map(|name| ("initiator".to_owned(), name.to_owned()))
                .into_iter()
                .collect();
            call
        };
        for (client, ours, theirs, are_two) in [
            ("iscsi", Some("iqn.x:a"), Some("iqn.x:b"), true),
            ("iscsi", Some("iqn.x:a"), Some("iqn.x:a"), false),
            ("iscsi", Some("iqn.x:a"), None, false),
            ("iscsi", None, Some("iqn.x:b"), false),
            ("block", Some("iqn.x:a"), Some("iqn.x:b"), false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path();
            let claims = claims(root, None);
            claims.claim_source(&lun(root, client, "pv-1", ours)).unwrap();
            let said = claims.claim_source(&lun(root, client, "pv-2", theirs));
            assert_eq!(said.is_ok(), are_two, "{client} {ours:?} {theirs:?}: {said:?}");
            // The kernel's disk is compared, too.
            if are_two {
                assert_eq!(owner(&claims, &lun(root, client, "pv-1", ours), false), None);
                let said = owner(&claims, &lun(root, client, "pv-2", theirs), false);
                assert_eq!(said.as_deref(), Some("PersistentVolume pv-1"));
            }
        }
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
            ("nfs://H/a/disk", "nfs://h/a/disk", true),
            ("nbd://h/e", "nbd://h/E", false),
            ("iscsi://a/iqn.x:t/1", "iscsi://a/IQN.X:T/1", true),
            ("rbd://m:06789/p/i", "rbd://m/p/i", true),
            ("rbd://m,n/p/i", "rbd://n:6789/p/i", true),
            ("acme://a,b/x", "acme://b/x", false),
            ("disk-1", "disk-1", true),
        ] {
            let root = tempfile::tempdir().unwrap();
            let root = root.path();
            let claims = claims(root, None);
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
        let claims = claims(root.path(), None);
        let mut of = ["pv-1", "pv-2"].map(|name| call(root.path(), "u", name, None));
        for (call, client) in of.iter_mut().zip(["acme", "other"]) {
            (call.source, call.client) = ("disk-1".to_owned(), client.to_owned());
            claims.claim_source(call).unwrap();
        }
    }
}
