//! What an agent stores: a private directory for staging, the secrets, and a record of each mount.
//!
//! The records (`<dir>/mounts/<id>.json`, no secrets) and secrets are in an emptyDir in memory (`<dir>/secrets`). They
//! belong to the Pod, so they outlive the container: after its restart, they tell which mounts died with it and how to
//! mount them again. Staging and the files of services (`<dir>/private`) are in a memory file system that only this
//! container has.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::protocol::{MountCall, SecretBytes};
use crate::sys::absent_is_fine;
use crate::sys::look::is_mount_point;

/// The directory in memory that belongs to the Pod.
const SECRETS: &str = "secrets";

/// The records in it. No target has this name.
const RECORDS_IN_MEMORY: &str = ".records";

/// Why a call on the agent's own files failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {attempted} {path:?}")]
pub struct StoreError {
    attempted: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// A record as it is written.
#[derive(Serialize)]
struct Record<'a> {
    #[serde(flatten)]
    call: &'a MountCall,
    volume: &'a str,
}

/// What a record says of its volume.
#[derive(Deserialize)]
struct RecordedVolume {
    /// None in one of an earlier release: each target had a volume of its own.
    volume: Option<String>,
}

#[derive(Debug, Default)]
pub struct Records {
    /// The calls that were recorded, without their secrets.
    pub calls: Vec<MountCall>,
    /// Why each of the other records can't be read. Its volume may be in use.
    pub unreadable: Vec<StoreError>,
}

/// The agent's own files.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// Opens or creates the agent's files in `dir`, and prepares the private directory.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let store = Self::at(dir);
        store.make_records()?;
        let private = store.private();
        make_dir(&private)?;
        // If only the agent restarted, it is mounted already.
        if !is_mount_point(AT_FDCWD, &private).map_err(at("look at", &private))? {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            mount(
                Some("mooring"),
                &private,
                Some("tmpfs"),
                flags,
                Some("mode=0700,size=64m"),
            )
            .map_err(at("mount memory on", &private))?;
        }
        // Mounts below it must not propagate to another container, wherever `dir` is.
        mount(None::<&str>, &private, None::<&str>, MsFlags::MS_PRIVATE, None::<&str>)
            .map_err(at("make private", &private))?;
        make_dir(&private.join("staging"))?;
        make_dir(&store.services())?;
        let secrets = dir.join(SECRETS);
        // The kubelet creates an emptyDir that everyone may access.
        fs::set_permissions(&secrets, Permissions::from_mode(0o700)).map_err(at("keep others from", &secrets))?;
        Ok(store)
    }

    fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The agent's files with the directory of records alone, which takes no rights.
    #[cfg(test)]
    pub(super) fn unprepared(dir: &Path) -> Self {
        let store = Self::at(dir);
        store.make_records().unwrap();
        store
    }

    /// Makes the directory of records in memory, where the secrets are, and a link to it. It outlives the container,
    /// and with the node it goes as the mounts do. If a container of an earlier release had it on the disk, it stays
    /// there.
    fn make_records(&self) -> Result<(), StoreError> {
        make_dir(&self.dir.join(SECRETS))?;
        let in_memory = Path::new(SECRETS).join(RECORDS_IN_MEMORY);
        make_dir(&self.dir.join(&in_memory))?;
        let link = self.records();
        match symlink(in_memory, &link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made.map_err(at("make link", &link)),
        }
    }

    /// Creates the staging directory of a target, empty and without a mount, and writes the secrets.
    pub fn prepare(&self, target: &str, secrets: &BTreeMap<String, SecretBytes>) -> Result<(), StoreError> {
        self.remove_secrets(target)?;
        self.restage(target)?;
        let dir = self.secrets(target);
        make_dir(&dir)?;
        for (key, value) in secrets {
            write_secret(&dir.join(key), value)?;
        }
        Ok(())
    }

    /// Replaces the secrets of a target by those of a call, of which the client reads these `keys`, or perhaps all.
    /// Whether any of them changes. What the program keeps beside them stays, and a program that reads one meanwhile
    /// gets all of the old or of the new one.
    pub fn renew(&self, call: &MountCall, keys: Option<&[String]>) -> Result<bool, StoreError> {
        let dir = self.secrets(&call.target);
        let kept = self.read_secrets(&call.target)?;
        let is_overtaken = |now: MountCall| now.secrets_at > call.secrets_at;
        if self.recorded(&call.target).is_some_and(is_overtaken) {
            return Ok(false);
        }
        let is_read = |key: &String| keys.is_none_or(|keys| keys.contains(key));
        let mut changed = call.secrets.clone();
        changed.retain(|key, value| is_read(key) && kept.get(key) != Some(value));
        let mut gone = keys.unwrap_or_default().to_owned();
        gone.retain(|key| kept.contains_key(key) && !call.secrets.contains_key(key));
        // Those of a plain mount helper are not kept.
        if !dir.exists() || changed.is_empty() && gone.is_empty() {
            return Ok(false);
        }
        let written = dir.with_extension("renewed");
        for (key, value) in &changed {
            absent_is_fine(fs::remove_file(&written)).map_err(at("remove", &written))?;
            write_secret(&written, value)?;
            let path = dir.join(key);
            fs::rename(&written, &path).map_err(at("write", &path))?;
        }
        for key in &gone {
            let path = dir.join(key);
            fs::remove_file(&path).map_err(at("remove", &path))?;
        }
        self.record(call, &self.volume(&call.target))?;
        Ok(true)
    }

    /// The secrets of a target; none if they are not kept. Other files that the image's program has put beside them,
    /// such as a pipe, are not included.
    pub fn read_secrets(&self, target: &str) -> Result<BTreeMap<String, SecretBytes>, StoreError> {
        let dir = self.secrets(target);
        let entries = match fs::read_dir(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            entries => entries.map_err(at("list", &dir))?,
        };
        let mut secrets = BTreeMap::new();
        for entry in entries {
            let path = entry.map_err(at("list", &dir))?.path();
            let Some(value) = read_file(&path).map_err(at("read", &path))? else {
                continue;
            };
            let key = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            secrets.insert(key, SecretBytes(value));
        }
        Ok(secrets)
    }

    /// Creates the staging directory of a target, empty and without a mount.
    pub fn restage(&self, target: &str) -> Result<(), StoreError> {
        self.unstage(target)?;
        make_dir(&self.staging(target))
    }

    /// Removes the staging mount, if there is one, with its directory. The file system stays mounted where it was moved
    /// to.
    pub fn unstage(&self, target: &str) -> Result<(), StoreError> {
        let staging = self.staging(target);
        // A retried program may have left several.
        while is_mount_point(AT_FDCWD, &staging).map_err(at("look at", &staging))? {
            umount2(&staging, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).map_err(at("unmount", &staging))?;
        }
        absent_is_fine(fs::remove_dir(&staging)).map_err(at("remove", &staging))
    }

    pub fn remove_secrets(&self, target: &str) -> Result<(), StoreError> {
        let secrets = self.secrets(target);
        absent_is_fine(fs::remove_dir_all(&secrets)).map_err(at("remove", &secrets))
    }

    /// Calls [`Self::unstage`] and [`Self::remove_secrets`].
    pub fn discard(&self, target: &str) -> Result<(), StoreError> {
        self.unstage(target)?;
        self.remove_secrets(target)
    }

    /// The directory on which a target's program mounts.
    pub fn staging(&self, target: &str) -> PathBuf {
        self.private().join("staging").join(id(target))
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn services(&self) -> PathBuf {
        self.private().join("services")
    }

    /// The directory with a target's secrets, for its program.
    pub fn secrets(&self, target: &str) -> PathBuf {
        self.dir.join(SECRETS).join(id(target))
    }

    /// Writes a target's record, without its secrets. `volume` is the name by which programs know its volume: [`id`],
    /// or the name of another target's volume whose device it shares.
    pub fn record(&self, call: &MountCall, volume: &str) -> Result<(), StoreError> {
        let call = &call.without_secrets();
        write(&self.record_path(&call.target), &Record { call, volume })
    }

    /// The name by which programs know a target's volume.
    pub fn volume(&self, target: &str) -> String {
        let recorded = fs::read(self.record_path(target)).ok();
        let recorded = recorded.and_then(|json| serde_json::from_slice::<RecordedVolume>(&json).ok());
        recorded
            .and_then(|recorded| recorded.volume)
            .unwrap_or_else(|| id(target))
    }

    /// Whether a volume is also another target's than this one.
    pub fn is_shared(&self, volume: &str, target: &str) -> Result<bool, StoreError> {
        let others = self.all()?.calls.into_iter().filter(|call| call.target != target);
        Ok(others.into_iter().any(|call| self.volume(&call.target) == volume))
    }

    /// Removes a target's record.
    pub fn forget(&self, target: &str) -> Result<(), StoreError> {
        let path = self.record_path(target);
        absent_is_fine(fs::remove_file(&path)).map_err(at("remove", &path))
    }

    pub fn recorded(&self, target: &str) -> Option<MountCall> {
        read_record(&self.record_path(target)).filter(|call| call.target == target)
    }

    pub fn all(&self) -> Result<Records, StoreError> {
        let mut records = Records::default();
        for path in list(&self.records())? {
            if path.extension().is_some_and(|extension| extension == "json") {
                match read(&path) {
                    Ok(call) => records.calls.push(call),
                    // Another thread may have removed it since.
                    Err(error) if error.source.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => records.unreadable.push(error),
                }
            }
        }
        records.calls.sort_by(|a, b| a.target.cmp(&b.target));
        Ok(records)
    }

    fn records(&self) -> PathBuf {
        self.dir.join("mounts")
    }

    fn private(&self) -> PathBuf {
        self.dir.join("private")
    }

    fn record_path(&self, target: &str) -> PathBuf {
        self.records().join(id(target)).with_extension("json")
    }
}

/// Writes a file that is not there yet, for root alone.
fn write_secret(path: &Path, SecretBytes(value): &SecretBytes) -> Result<(), StoreError> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(value))
        .map_err(at("write", path))
}

/// Writes a file atomically.
pub(super) fn write(path: &Path, content: &impl Serialize) -> Result<(), StoreError> {
    let new = path.with_extension("new");
    let json = serde_json::to_vec(content).map_err(at("write", path))?;
    let written = fs::write(&new, json).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // It may be half written, on a full disk.
        let _ = fs::remove_file(&new);
    }
    written.map_err(at("write", path))
}

/// The paths of a directory's entries.
pub(super) fn list(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = fs::read_dir(dir).map_err(at("list", dir))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    paths.collect::<io::Result<_>>().map_err(at("list", dir))
}

/// Reads a file that [`write`] wrote.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, StoreError> {
    let json = fs::read(path).map_err(at("read", path))?;
    serde_json::from_slice(&json).map_err(at("read", path))
}

/// How long the record of a call is.
pub(super) fn record_length(call: &MountCall) -> usize {
    let (call, volume) = (&call.without_secrets(), &*id(&call.target));
    serde_json::to_vec(&Record { call, volume }).map_or(0, |json| json.len())
}

/// A file name for a target: the same at every retry. Programs of the image get it as the volume's name.
pub(super) fn id(target: &str) -> String {
    hex(&Sha256::digest(target.as_bytes())[..10])
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn read_record(path: &Path) -> Option<MountCall> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn make_dir(path: &Path) -> Result<(), StoreError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(at("make directory", path)),
    }
}

fn at<E: Into<io::Error>>(attempted: &'static str, path: &Path) -> impl FnOnce(E) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError {
        attempted,
        path,
        source: source.into(),
    }
}

/// Reads a regular file, and nothing else.
fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Reading from a pipe without a writer would block.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let mut file = match open(path, flags, Mode::empty()) {
        Err(Errno::ELOOP) => return Ok(None),
        opened => fs::File::from(opened?),
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(Some(content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::{MountCall, MountFields};
    use crate::volume::job::PodRef;

    #[test]
    fn a_record_reads_back_without_its_secrets_and_rubbish_beside_it_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::unprepared(dir.path());
        let call = MountCall::from(MountFields {
            target: "/k/pods/u/volumes/mooring.dev~vcs/v".into(),
            client: "sshfs".into(),
            source: "h:/p".into(),
            owner: None,
            fs_type: String::new(),
            mount_options: Vec::new(),
            options: BTreeMap::new(),
            secrets: BTreeMap::from([("k".into(), SecretBytes(b"hush".to_vec()))]),
            secrets_at: None,
            fs_group: None,
            label: None,
            pod: PodRef::default(),
            limit_ms: 1,
        });
        let volume = id(&call.target);
        store.record(&call, &volume).unwrap();
        assert!(!store.is_shared(&volume, &call.target).unwrap());
        let mut other = call.clone();
        other.target = "/k/pods/w/volumes/mooring.dev~vcs/v".into();
        store.record(&other, &volume).unwrap();
        assert_eq!(store.volume(&other.target), volume);
        assert!(store.is_shared(&volume, &call.target).unwrap());
        store.forget(&other.target).unwrap();
        assert_eq!(store.volume(&other.target), id(&other.target));
        fs::write(store.records().join("x.json"), "{").unwrap();
        assert_eq!(store.recorded(&call.target), Some(call.without_secrets()));
        let all = store.all().unwrap();
        assert_eq!(all.calls, [call.without_secrets()]);
        assert_eq!(all.unreadable.len(), 1);
        assert!(all.unreadable[0].path.ends_with("x.json"), "{:?}", all.unreadable);
        store.forget(&call.target).unwrap();
        store.forget(&call.target).unwrap();
        assert_eq!(store.recorded(&call.target), None);
    }

    #[test]
    fn records_are_in_memory_unless_an_earlier_release_has_them_on_the_disk() {
        let call = serde_json::json!({"target": "/t", "client": "sshfs", "source": "h:/p", "limit_ms": 1});
        let call: MountCall = serde_json::from_value(call).unwrap();
        let place = |store: &Store| store.record_path("/t").canonicalize().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        for _ in 0..2 {
            let store = Store::unprepared(&dir);
            store.record(&call, &id("/t")).unwrap();
            assert!(place(&store).starts_with(dir.join("secrets")), "{:?}", place(&store));
            assert!(dir.join("mounts").join(id("/t")).with_extension("json").exists());
        }
        let old = tempfile::tempdir().unwrap();
        let old = old.path().canonicalize().unwrap();
        fs::create_dir(old.join("mounts")).unwrap();
        let store = Store::unprepared(&old);
        store.record(&call, &id("/t")).unwrap();
        assert!(place(&store).starts_with(old.join("mounts")));
        assert_eq!(store.recorded("/t"), Some(call));
    }

    #[test]
    fn the_secrets_of_a_volume_are_read_as_they_were_given() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::unprepared(dir.path());
        assert_eq!(store.read_secrets("t").unwrap(), BTreeMap::new());
        for part in ["private", "private/staging", "secrets"] {
            make_dir(&dir.path().join(part)).unwrap();
        }
        let secrets = BTreeMap::from([
            ("a".to_owned(), SecretBytes(b"hush\0\xff".to_vec())),
            ("b".to_owned(), SecretBytes(Vec::new())),
        ]);
        store.prepare("t", &secrets).unwrap();
        // Some clients do this to get their daemon's log.
        symlink("/proc/self/fd/0", store.secrets("t").join(".log")).unwrap();
        nix::unistd::mkfifo(&store.secrets("t").join("pipe"), Mode::S_IRUSR).unwrap();
        assert_eq!(store.read_secrets("t").unwrap(), secrets);
        assert_eq!(store.read_secrets("another").unwrap(), BTreeMap::new());
    }

    #[test]
    fn newer_secrets_take_the_place_of_those_that_the_client_reads() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::unprepared(dir.path());
        make_dir(&dir.path().join("private")).unwrap();
        make_dir(&dir.path().join("private/staging")).unwrap();
        let call = serde_json::json!({"target": "/t", "client": "sshfs", "source": "h:/p", "limit_ms": 1});
        let call: MountCall = serde_json::from_value(call).unwrap();
        let secrets = |pairs: &[(&str, &str)]| -> BTreeMap<_, _> {
            let pairs = pairs.iter();
            pairs
                .map(|&(key, value)| (key.to_owned(), SecretBytes(value.into())))
                .collect()
        };
        let first = secrets(&[("key", "old"), ("known", "h"), ("note", "a")]);
        store.record(&call, &id("/t")).unwrap();
        store.prepare("/t", &first).unwrap();
        fs::write(store.secrets("/t").join(".of-the-program"), "x").unwrap();
        let keys = ["key", "known"].map(str::to_owned);
        let renew = |pairs: &[(&str, &str)], keys: Option<&[String]>| {
            store.renew(&call.renewed(secrets(pairs), Some(7)), keys).unwrap()
        };
        // It reads nothing that has changed.
        assert!(!renew(&[("key", "old"), ("known", "h"), ("note", "b")], Some(&keys)));
        assert_eq!(store.recorded("/t").unwrap().secrets_at, None);
        assert!(renew(&[("key", "new"), ("note", "b")], Some(&keys)));
        let kept = [(".of-the-program", "x"), ("key", "new"), ("note", "a")];
        assert_eq!(store.read_secrets("/t").unwrap(), secrets(&kept));
        assert_eq!(store.recorded("/t").unwrap().secrets_at, Some(7));
        // One that was given before it comes late.
        let late = call.renewed(secrets(&[("key", "older")]), Some(6));
        assert!(!store.renew(&late, Some(&keys)).unwrap());
        assert_eq!(store.read_secrets("/t").unwrap(), secrets(&kept));
        // It may read all of them.
        assert!(renew(&[("key", "new"), ("note", "b")], None));
        assert!(!renew(&[("key", "new"), ("note", "b")], None));
        store.remove_secrets("/t").unwrap();
        assert!(!renew(&[("key", "newer")], None));
        assert_eq!(store.read_secrets("/t").unwrap(), secrets(&[]));
    }
}
