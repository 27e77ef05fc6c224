//! The calls by which volumes were mounted through client containers, with their Secrets. If such a container's Pod
//! goes, another Pod mounts the volume again with the same call.
//!
//! They are in a memory file system of the mounter's Pod, as the kubelet keeps Secrets, so they outlive a mounter that
//! crashes. A new Pod of the mounter asks the agents for theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mooring_program::error::chain;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tracing::warn;

use crate::agent::protocol::MountCall;
use crate::agent::store::hex;

/// A volume that a client container has mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRecord {
    /// Uid of the container's Pod.
    pub by: String,
    pub image: String,
    /// Whether the volume names the image.
    pub by_volume: bool,
    pub call: MountCall,
}

/// What is remembered of the volumes that client containers have mounted.
#[derive(Debug, Default)]
pub struct KeptVolumes {
    /// None where there is no memory file system.
    dir: Option<PathBuf>,
    records: Mutex<Records>,
}

#[derive(Debug, Default)]
struct Records {
    /// Each with its number among all that were put.
    by_target: BTreeMap<String, (u64, KeptRecord)>,
    puts: u64,
}

impl Records {
    fn put(&mut self, record: KeptRecord) {
        self.puts += 1;
        (self.by_target).insert(record.call.target.clone(), (self.puts, record));
    }

    fn get(&self, target: &str) -> Option<&KeptRecord> {
        self.by_target.get(target).map(|(_, record)| record)
    }

    fn all(&self) -> impl Iterator<Item = &KeptRecord> {
        self.by_target.values().map(|(_, record)| record)
    }
}

/// A moment between two records.
#[derive(Debug, Clone, Copy)]
pub struct KeptUntil(u64);

impl KeptVolumes {
    /// Reads what an earlier mounter of this Pod left in `dir`, if that is in memory.
    pub fn open(dir: &Path) -> Self {
        let is_memory = statfs(dir).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC);
        if !is_memory {
            warn!(
                "{} is not a file system in memory: Mooring does not mount volumes again whose client Pod is deleted \
                 while no mounter runs",
                dir.display()
            );
            return Self::default();
        }
        Self::within(dir)
    }

    fn within(dir: &Path) -> Self {
        let files = fs::read_dir(dir).into_iter().flatten().flatten();
        let read = |path: PathBuf| serde_json::from_slice::<KeptRecord>(&fs::read(path).ok()?).ok();
        let mut records = Records::default();
        files
            .filter_map(|file| read(file.path()))
            .for_each(|record| records.put(record));
        Self {
            records: Mutex::new(records),
            dir: Some(dir.to_owned()),
        }
    }

    pub fn put(&self, record: KeptRecord) {
        let mut records = self.lock();
        if records.get(&record.call.target) != Some(&record)
            && let Some(path) = self.path(&record.call.target)
            && let Err(error) = write(&path, &record)
        {
            // It is known until this mounter ends.
            warn!(
                target.path = record.call.target,
                error = %chain(&error),
                "failed to keep how a volume was mounted"
            );
            let _ = fs::remove_file(&path);
        }
        records.put(record);
    }

    /// Notes a newer Secret of a volume, unless it is gone or has a newer one still.
    pub fn renew(&self, renewed: KeptRecord) {
        let now = self.get(&renewed.call.target);
        if now.is_some_and(|now| now.by == renewed.by && now.call.secrets_at <= renewed.call.secrets_at) {
            self.put(renewed);
        }
    }

    pub fn get(&self, target: &str) -> Option<KeptRecord> {
        self.lock().get(target).cloned()
    }

    /// Those whose Secret is another one than that of a later mount. A mount that took long may have an older one.
    pub fn older_than(&self, later: &MountCall) -> Vec<KeptRecord> {
        let is_older = |kept: &&KeptRecord| {
            let (theirs, ours) = (&kept.call, later);
            theirs.is_renewed_by(ours) && theirs.secrets != ours.secrets && theirs.secrets_at <= ours.secrets_at
        };
        self.lock().all().filter(is_older).cloned().collect()
    }

    /// The Pod that had mounted a volume.
    pub fn by(&self, target: &str) -> Option<String> {
        self.lock().get(target).map(|record| record.by.clone())
    }

    /// The uids of all Pods that have mounted a volume.
    pub fn pods(&self) -> BTreeSet<String> {
        self.lock().all().map(|record| record.by.clone()).collect()
    }

    pub fn remove(&self, target: &str) {
        self.remove_from(&mut self.lock(), target);
    }

    pub fn until_now(&self) -> KeptUntil {
        KeptUntil(self.lock().puts)
    }

    /// Forgets those that are not mounted, of those that were kept until then and not since.
    pub fn retain(&self, until: KeptUntil, is_mounted: impl Fn(&str) -> bool) {
        let mut records = self.lock();
        let kept = records.by_target.iter();
        let gone = kept.filter(|(target, (put, _))| *put <= until.0 && !is_mounted(target));
        let gone: Vec<_> = gone.map(|(target, _)| target.clone()).collect();
        for target in gone {
            self.remove_from(&mut records, &target);
        }
    }

    /// While the records are locked, none is put whose file this would remove.
    fn remove_from(&self, records: &mut Records, target: &str) {
        records.by_target.remove(target);
        if let Some(path) = self.path(target) {
            // Most volumes have none.
            let _ = fs::remove_file(path);
        }
    }

    fn path(&self, target: &str) -> Option<PathBuf> {
        let name = hex(&Sha256::digest(target.as_bytes())[..10]);
        Some(self.dir.as_ref()?.join(name).with_extension("json"))
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a file whole or not at all, for root alone.
fn write(path: &Path, record: &KeptRecord) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    fs::rename(&new, path)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt as _;

    use super::{KeptRecord, KeptVolumes};
    use crate::agent::protocol::{MountCall, MountFields, SecretBytes};
    use crate::volume::device_owner::DeviceOwner;
    use crate::volume::job::PodRef;

    pub(crate) fn record(target: &str, by: &str) -> KeptRecord {
        KeptRecord {
            by: by.into(),
            image: "mooring.dev/client-sshfs:1".into(),
            by_volume: false,
            call: MountCall::from(MountFields {
                target: target.into(),
                client: "sshfs".into(),
                source: "a@b:/c".into(),
                owner: None,
                fs_type: String::new(),
                mount_options: Vec::new(),
                options: BTreeMap::new(),
                secrets: BTreeMap::from([("k".into(), SecretBytes(b"hush".to_vec()))]),
                secrets_at: None,
                fs_group: None,
                label: None,
                pod: PodRef::default(),
                limit_ms: 0,
            }),
        }
    }

    #[test]
    fn what_a_mounter_kept_is_there_for_its_successor_and_readable_by_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let kept = KeptVolumes::within(dir.path());
        for target in ["a", "b", "c"] {
            kept.put(record(target, "one"));
        }
        kept.put(record("b", "two"));
        kept.remove("c");
        for file in std::fs::read_dir(dir.path()).unwrap() {
            let mode = file.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        std::fs::write(dir.path().join("x.json"), "{").unwrap();
        let next = KeptVolumes::within(dir.path());
        assert_eq!(next.get("a"), Some(record("a", "one")));
        assert_eq!(next.by("b").as_deref(), Some("two"));
        assert_eq!(next.get("c"), None);
        next.retain(next.until_now(), |target| target == "b");
        let left = KeptVolumes::within(dir.path());
        assert_eq!((left.by("a"), left.by("b").as_deref()), (None, Some("two")));
    }

    /// The mount table is read first, and then all agents are asked.
    #[test]
    fn a_volume_that_is_mounted_while_the_mounts_are_looked_at_stays() {
        let dir = tempfile::tempdir().unwrap();
        let kept = KeptVolumes::within(dir.path());
        for target in ["gone", "again", "by another"] {
            kept.put(record(target, "one"));
        }
        let until = kept.until_now();
        kept.put(record("new", "one"));
        kept.put(record("by another", "two"));
        kept.remove("again");
        kept.put(record("again", "one"));
        kept.retain(until, |_| false);
        for kept in [&kept, &KeptVolumes::within(dir.path())] {
            let by = ["gone", "again", "by another", "new"].map(|target| kept.by(target));
            assert_eq!(by, [None, Some("one".into()), Some("two".into()), Some("one".into())]);
        }
    }

    #[test]
    fn a_later_mount_of_a_persistent_volume_has_the_newer_secret_of_all_its_pods() {
        let of = |target: &str, owner: DeviceOwner, secret: &str| {
            let mut record = record(target, "one");
            record.call.owner = Some(owner);
            record.call.secrets = BTreeMap::from([("k".into(), SecretBytes(secret.into()))]);
            record
        };
        let (volume, other) = (DeviceOwner::persistent_volume("a"), DeviceOwner::persistent_volume("b"));
        let inline = || DeviceOwner::inline("shop", "a");
        let kept = KeptVolumes::default();
        for record in [
            of("t1", volume.clone(), "old"),
            of("t2", volume.clone(), "new"),
            of("t3", other, "old"),
            of("t4", inline(), "old"),
        ] {
            kept.put(record);
        }
        let older = |later: &KeptRecord| {
            let older = kept.older_than(&later.call).into_iter();
            older.map(|record| record.call.target.clone()).collect::<Vec<_>>()
        };
        assert_eq!(older(&of("t5", volume.clone(), "new")), ["t1"]);
        let mut elsewhere = of("t5", volume, "new");
        elsewhere.call.source = "a@elsewhere:/c".into();
        assert_eq!(older(&elsewhere), Vec::<String>::new());
        let mut slow = of("t6", DeviceOwner::persistent_volume("a"), "new");
        slow.call.secrets_at = Some(7);
        assert_eq!(older(&slow), ["t1"]);
        let mut renewed = of("t1", DeviceOwner::persistent_volume("a"), "newest");
        renewed.call.secrets_at = Some(8);
        kept.put(renewed);
        assert_eq!(older(&slow), Vec::<String>::new());
        // The Secrets of two Pods with volumes of their own have nothing to do with each other.
        assert_eq!(older(&of("t5", inline(), "new")), Vec::<String>::new());
        assert_eq!(older(&of("t4", inline(), "new")), ["t4"]);
    }

    #[test]
    fn of_two_newer_secrets_that_overtake_each_other_the_later_stays() {
        let at = |at: u64, by: &str, secret: &str| {
            let mut record = record("t", by);
            record.call = record
                .call
                .renewed([("k".into(), SecretBytes(secret.into()))].into(), Some(at));
            record
        };
        let kept = KeptVolumes::default();
        kept.renew(at(5, "one", "gone"));
        assert_eq!(kept.get("t"), None);
        kept.put(at(5, "one", "first"));
        for renewed in [at(9, "one", "third"), at(7, "one", "second"), at(9, "other", "theirs")] {
            kept.renew(renewed);
        }
        assert_eq!(kept.get("t"), Some(at(9, "one", "third")));
    }

    #[test]
    fn secrets_are_never_kept_on_a_disk() {
        // Neither is any directory that is not there.
        for dir in ["/proc/self", "/nonexistent"] {
            let kept = KeptVolumes::open(dir.as_ref());
            assert_eq!(kept.dir, None);
            kept.put(record("a", "one"));
            assert!(kept.get("a").is_some());
        }
    }
}
