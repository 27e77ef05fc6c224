//! The mount table, `/proc/self/mountinfo`: it alone says what is mounted.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use mooring_contract::names::{CSI_DEVICES_DIR, CSI_TARGET, CSI_VOLUMES_DIR, FLEX_DRIVER_DIR};
use mooring_program::error::chain;
use nix::libc::dev_t;
use nix::sys::stat::{major, minor};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::volume::volume_data;

/// How much of a line that can't be read an error shows.
const SHOWN_OF_A_LINE: usize = 300;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl DeviceNumber {
    /// From the kernel's number of a device.
    pub fn of(device: dev_t) -> Self {
        // Neither has more than 32 bits.
        let part = |number| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            major: part(major(device)),
            minor: part(minor(device)),
        }
    }

    /// Whether a block device has it. File systems without one have numbers that the kernel makes up, and no size of
    /// their own.
    pub fn is_of_a_device(self) -> bool {
        self.major != 0
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Its number; it is used again when the mount is gone.
    pub id: u64,
    /// The number of the mount that it lies on.
    pub parent: u64,
    pub device: DeviceNumber,
    /// The directory of the file system that is its root.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    /// Flags of the mount, such as `ro` and `nosuid`.
    pub flags: Vec<String>,
    /// Peer group, where it is shared.
    pub shared: Option<u32>,
    /// The peer group that it gets mounts from without giving any.
    pub master: Option<u32>,
    pub fs_type: String,
    pub source: String,
    /// Options of the file system, such as `rw` and `addr=10.0.0.4`.
    pub options: Vec<String>,
}

impl MountEntry {
    /// Whether it is of the kernel's SMB client.
    pub fn is_smb(&self) -> bool {
        matches!(self.fs_type.as_str(), "cifs" | "smb3")
    }

    /// Whether the kernel's driver for ext2, ext3 and ext4 has it.
    pub fn is_ext(&self) -> bool {
        matches!(self.fs_type.as_str(), "ext2" | "ext3" | "ext4")
    }

    /// Whether a program serves it.
    pub fn is_fuse(&self) -> bool {
        self.fs_type == "fuse" || self.fs_type == "fuseblk" || self.fs_type.starts_with("fuse.")
    }

    /// The value of an option of the file system.
    pub fn option(&self, key: &str) -> Option<&str> {
        let mut options = self.options.iter().filter_map(|option| option.split_once('='));
        options.find(|(name, _)| *name == key).map(|(_, value)| value)
    }
}

/// All mounts, in the kernel's order. Of several on one directory each lies on its parent, and the last in the table need
/// not be the uppermost: another may have been put beneath the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table(pub Vec<MountEntry>);

impl Table {
    /// The table of this process's mount namespace.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn read() -> io::Result<Self> {
        // The kernel gives at most a page at a time, and says nothing of the size before.
        let mut text = Vec::with_capacity(16 << 10);
        File::open("/proc/self/mountinfo")?.read_to_end(&mut text)?;
        Self::try_parse(&text)
    }

    /// Reads the text of a `mountinfo` file.
    ///
    /// # Errors
    /// A line can't be read. The volume that it may be about would count as not mounted. The kernel escapes blanks and
    /// line ends in what a tenant chooses, and leaves no field out (`proc_pid_mountinfo(5)`, `show_mountinfo` in
    /// `fs/proc_namespace.c`).
    pub fn try_parse(text: &[u8]) -> io::Result<Self> {
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let entries = lines.map(|line| parse_line(line).ok_or_else(|| unreadable(line)));
        entries.collect::<io::Result<_>>().map(Self)
    }

    /// The same for a text of a test.
    #[cfg(test)]
    pub(crate) fn parse(text: &[u8]) -> Self {
        Self::try_parse(text).unwrap()
    }

    /// What lies uppermost on a directory.
    pub fn top(&self, path: &Path) -> Option<&MountEntry> {
        let here: Vec<_> = self.0.iter().filter(|entry| entry.mount_point == path).collect();
        uppermost(&here)
    }

    /// What lies uppermost on each directory.
    pub fn tops(&self) -> HashMap<&Path, &MountEntry> {
        let mut all: HashMap<_, Vec<_>> = HashMap::new();
        for entry in &self.0 {
            all.entry(entry.mount_point.as_path()).or_default().push(entry);
        }
        let top = |(path, here): (_, Vec<_>)| Some((path, uppermost(&here)?));
        all.into_iter().filter_map(top).collect()
    }

    /// Which mount has to go first where `outer` is to be unmounted: one within it that has none within itself. `outer`
    /// where nothing is mounted within it.
    pub fn innermost<'a>(&'a self, outer: &'a MountEntry) -> &'a MountEntry {
        let within = |of: &MountEntry| {
            let mut all = self.0.iter();
            all.find(|entry| entry.parent == of.id && entry.id != of.id)
        };
        let mut found = outer;
        // A circle, which the kernel's table never has, ends too.
        for _ in &self.0 {
            match within(found) {
                Some(inner) => found = inner,
                None => break,
            }
        }
        found
    }

    /// What is mounted two levels beneath a directory, such as that of a volume's parts
    /// ([`super::target::Target::parts`]).
    pub fn parts(&self, directory: &Path) -> impl Iterator<Item = &MountEntry> {
        self.0.iter().filter(move |entry| {
            let rest = entry.mount_point.strip_prefix(directory);
            rest.is_ok_and(|rest| rest.iter().count() == 2)
        })
    }

    /// The mount that a directory lies in.
    pub fn holding(&self, path: &Path) -> Option<&MountEntry> {
        path.ancestors().find_map(|ancestor| self.top(ancestor))
    }

    /// Where a device's node is shown for Pods that have a raw block volume. `devices` is the directory of all such
    /// files.
    pub fn shows<'a>(&'a self, node: &'a Path, devices: &'a Path) -> impl Iterator<Item = &'a MountEntry> {
        let name = node.file_name();
        let shown = self
            .0
            .iter()
            .filter(move |entry| entry.mount_point.starts_with(devices));
        shown.filter(move |entry| entry.root.file_name() == name)
    }

    /// Mooring's mounts: those on volume directories beneath the kubelet's root, and devices that Pods have. Of CSI
    /// volumes the kubelet's notes say which are Mooring's; an error is a volume whose note can't be read.
    pub fn volumes<'a>(&'a self, kubelet_root: &'a Path) -> impl Iterator<Item = Result<&'a MountEntry, UnknownOwner>> {
        let pods = kubelet_root.join("pods");
        let mut devices = kubelet_root.to_owned();
        devices.extend(CSI_DEVICES_DIR);
        let is_ours = move |entry: &MountEntry| {
            if let Ok(device) = entry.mount_point.strip_prefix(&devices) {
                return match device.iter().collect::<Vec<_>>()[..] {
                    [publish, name, _] if publish == "publish" => volume_data::is_our_device(&devices, name),
                    _ => Ok(false),
                };
            }
            let names = entry
                .mount_point
                .strip_prefix(&pods)
                .map(|rest| rest.iter().collect::<Vec<_>>());
            match names.as_deref() {
                Ok([_, volumes, driver, _]) => Ok(*volumes == "volumes" && *driver == FLEX_DRIVER_DIR),
                Ok([_, volumes, csi, _, target])
                    if *volumes == "volumes" && *csi == CSI_VOLUMES_DIR && *target == CSI_TARGET =>
                {
                    volume_data::is_ours(&entry.mount_point)
                }
                _ => Ok(false),
            }
        };
        self.0.iter().filter_map(move |entry| match is_ours(entry) {
            Ok(ours) => ours.then_some(Ok(entry)),
            Err(source) => Some(Err(UnknownOwner {
                mount_point: entry.mount_point.clone(),
                source,
            })),
        })
    }

    /// [`Self::volumes`], where it does no harm to leave one out. A volume whose owner can't be read is left out, with a
    /// warning when it is first seen.
    pub fn known_volumes<'a>(&'a self, kubelet_root: &'a Path) -> impl Iterator<Item = &'a MountEntry> {
        let (known, unknown): (Vec<_>, Vec<_>) = self.volumes(kubelet_root).partition(Result::is_ok);
        for error in news(&UNKNOWN, unknown.into_iter().filter_map(Result::err).collect()) {
            warn!("Mooring leaves a volume alone: {}", chain(&error));
        }
        known.into_iter().flatten()
    }
}

/// A mounted CSI volume of which the kubelet's note can't be read: it may be Mooring's.
#[derive(Debug, thiserror::Error)]
#[error("failed to read which CSI driver has mounted {}", mount_point.display())]
pub struct UnknownOwner {
    pub mount_point: PathBuf,
    source: io::Error,
}

/// The volumes whose owner could not be read at the last look.
static UNKNOWN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Those that were not among the last ones.
fn news(last: &Mutex<BTreeSet<PathBuf>>, unknown: Vec<UnknownOwner>) -> Vec<UnknownOwner> {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let now = unknown.iter().map(|error| error.mount_point.clone()).collect();
    let before = std::mem::replace(&mut *last, now);
    unknown
        .into_iter()
        .filter(|error| !before.contains(&error.mount_point))
        .collect()
}

fn unreadable(line: &[u8]) -> io::Error {
    let line = String::from_utf8_lossy(&line[..line.len().min(SHOWN_OF_A_LINE)]);
    let message = format!("unable to read a line of the mount table: {line:?}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// The mount of one directory that no other there lies on.
fn uppermost<'a>(here: &[&'a MountEntry]) -> Option<&'a MountEntry> {
    let is_covered = |entry: &MountEntry| {
        let mut others = here.iter().filter(|other| other.id != entry.id);
        others.any(|other| other.parent == entry.id)
    };
    let uncovered = here.iter().rev().find(|entry| !is_covered(entry));
    uncovered.or(here.last()).copied()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`; see `proc_pid_mountinfo(5)`.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut next = || fields.next();
    let id = text(next()?).parse().ok()?;
    let parent = text(next()?).parse().ok()?;
    let device = text(next()?);
    let (major, minor) = device.split_once(':')?;
    let root = path(next()?);
    let mount_point = path(next()?);
    let flags = text(next()?).split(',').map(str::to_owned).collect();
    let (mut shared, mut master) = (None, None);
    loop {
        match next()? {
            b"-" => break,
            tag => match text(tag).split_once(':') {
                Some(("shared", group)) => shared = group.parse().ok(),
                Some(("master", group)) => master = group.parse().ok(),
                _ => {}
            },
        }
    }
    Some(MountEntry {
        id,
        parent,
        device: DeviceNumber {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        },
        root,
        mount_point,
        flags,
        shared,
        master,
        fs_type: text(next()?),
        source: text(&unescape(next()?)),
        options: next()
            .map(|options| text(options).split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
    })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

/// Undoes the kernel's `\ooo` for blanks, tabs, newlines, backslashes and number signs.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if byte == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => bytes.push(byte),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::{Table, news};
    use std::fmt::Write as _;
    use std::path::Path;
    use std::sync::Mutex;

    const TEXT: &[u8] = b"\
22 1 8:1 / / rw,relatime shared:1 master:7 - ext4 /dev/root rw,errors=continue
30 22 0:25 / /var/lib/kubelet/pods/u/volumes/mooring.dev~vcs/a rw,nosuid shared:9 - fuse.sshfs tom@h:/a\\040b rw
31 30 7:3 / /var/lib/kubelet/pods/u/volumes/mooring.dev~vcs/a rw - ext4 /dev/loop3 rw
32 22 0:26 / /var/lib/kubelet/pods/u/volumes/kubernetes.io~secret/s rw - tmpfs tmpfs rw
33 22 0:27 /x /odd\\134name rw unbindable - tmpfs none rw
34 22 0:28 / /of\\040nothing rw - tmpfs  rw
";

    #[test]
    fn the_last_mount_on_a_directory_is_the_uppermost() {
        let table = Table::parse(TEXT);
        assert_eq!(table.0.len(), 6);
        let a = Path::new("/var/lib/kubelet/pods/u/volumes/mooring.dev~vcs/a");
        assert_eq!(table.top(a).unwrap().source, "/dev/loop3");
        assert_eq!(table.top(a).unwrap().device.minor, 3);
        assert_eq!(table.top(Path::new("/nothing")), None);
        assert_eq!(table.holding(&a.join("deeper")).unwrap().fs_type, "ext4");
        let root = table.holding(Path::new("/etc")).unwrap();
        assert_eq!((root.shared, root.master), (Some(1), Some(7)));
        assert_eq!((root.id, root.parent), (22, 1));
        assert_eq!(table.0[1].flags, ["rw", "nosuid"]);
        assert_eq!(root.option("errors"), Some("continue"));
        assert_eq!(root.option("rw"), None);
    }

    /// It may be about a volume, which would count as not mounted.
    #[test]
    fn a_table_with_a_line_that_can_t_be_read_is_an_error_that_shows_the_line() {
        for broken in [
            "broken line",
            "22 1 8:1 / / rw",
            "22 1 8 / / rw - ext4 /dev/root rw",
            "x 1 8:1 / / rw - ext4 /dev/root rw",
            "22 1 8:1 / / rw - ext4",
        ] {
            let text = [TEXT, broken.as_bytes()].concat();
            let error = Table::try_parse(&text).expect_err(broken).to_string();
            assert!(error.contains(broken), "{error}");
        }
        assert_eq!(Table::try_parse(b"").unwrap(), Table::default());
    }

    /// What the kernel itself prints today is read, whatever is mounted.
    #[test]
    fn the_table_of_this_process_is_read() {
        assert!(!Table::read().unwrap().0.is_empty());
    }

    #[test]
    fn a_mount_that_was_put_beneath_another_is_not_the_uppermost() {
        const DEAD_ABOVE: &[u8] = b"\
22 1 8:1 / / rw - ext4 /dev/root rw
40 50 0:40 / /data rw - fuse.sshfs h:/a rw
50 22 0:50 / /data rw - fuse.sshfs h:/a rw
";
        let table = Table::parse(DEAD_ABOVE);
        let top = table.top(Path::new("/data")).unwrap();
        assert_eq!(top.id, 40, "the one beneath counts as uppermost");
        assert_eq!(table.tops()[Path::new("/data")].id, 40);
        assert_eq!(table.tops().len(), 2);
    }

    #[test]
    fn what_lies_within_a_mount_goes_first() {
        const NESTED: &[u8] = b"\
22 1 8:1 / / rw - ext4 /dev/root rw
30 22 7:3 / /data rw - ext4 /dev/loop3 rw
31 30 0:31 / /data/a rw - tmpfs a rw
32 31 0:32 / /data/a/deep rw - tmpfs deep rw
33 22 0:33 / /database rw - tmpfs other rw
";
        let mut table = Table::parse(NESTED);
        let mut gone = Vec::new();
        while let Some(outer) = table.top(Path::new("/data")) {
            let first = table.innermost(outer).clone();
            table.0.retain(|entry| *entry != first);
            gone.push(first.source);
        }
        assert_eq!(gone, ["deep", "a", "/dev/loop3"]);
    }

    #[test]
    fn escaped_bytes_are_read_and_only_our_volumes_counted() {
        let table = Table::parse(TEXT);
        assert_eq!(table.0[1].source, "tom@h:/a b");
        assert_eq!(table.0[4].mount_point, Path::new("/odd\\name"));
        let ours: Vec<_> = table
            .volumes(Path::new("/var/lib/kubelet"))
            .map(|entry| &entry.unwrap().fs_type)
            .collect();
        assert_eq!(ours, ["fuse.sshfs", "ext4"]);
    }

    #[test]
    fn of_csi_volumes_those_are_counted_that_the_kubelet_notes_as_ours() {
        let root = tempfile::tempdir().unwrap();
        let mut text = String::new();
        for (name, driver) in [("ours", "vcs.mooring.dev"), ("other", "ebs.csi.aws.com"), ("gone", "")] {
            let volume = root.path().join("pods/u/volumes/kubernetes.io~csi").join(name);
            std::fs::create_dir_all(&volume).unwrap();
            if !driver.is_empty() {
                let data = format!("{{\"driverName\":\"{driver}\",\"volumeHandle\":\"x\"}}");
                std::fs::write(volume.join("vol_data.json"), data).unwrap();
            }
            writeln!(text, "30 22 0:25 / {}/mount rw - {name} x rw", volume.display()).unwrap();
            let devices = root.path().join("plugins/kubernetes.io/csi/volumeDevices");
            let data = devices.join(name).join("data");
            std::fs::create_dir_all(&data).unwrap();
            std::fs::write(data.join("vol_data.json"), format!("{{\"driverName\":\"{driver}\"}}")).unwrap();
            for place in [format!("publish/{name}/u"), format!("{name}/dev/u")] {
                let place = devices.join(place);
                writeln!(text, "31 22 0:6 /loop1 {} rw - devtmpfs-{name} x rw", place.display()).unwrap();
            }
        }
        let table = Table::parse(text.as_bytes());
        let ours: Vec<_> = table
            .volumes(root.path())
            .map(|entry| &entry.unwrap().fs_type)
            .collect();
        assert_eq!(ours, ["ours", "devtmpfs-ours"]);
    }

    #[test]
    fn a_csi_volume_whose_owner_can_t_be_read_is_neither_ours_nor_another_s() {
        let root = tempfile::tempdir().unwrap();
        for broken in ["not read", "malformed"] {
            let volumes = root.path().join("pods/u/volumes/kubernetes.io~csi").join(broken);
            let devices = root.path().join("plugins/kubernetes.io/csi/volumeDevices");
            let data = devices.join(broken).join("data");
            let mut text = String::new();
            for (folder, place) in [
                (&volumes, volumes.join("mount")),
                (&data, devices.join("publish").join(broken).join("u")),
            ] {
                std::fs::create_dir_all(folder).unwrap();
                match broken {
                    "malformed" => std::fs::write(folder.join("vol_data.json"), "{").unwrap(),
                    _ => std::fs::create_dir(folder.join("vol_data.json")).unwrap(),
                }
                let place = place.display().to_string().replace(' ', "\\040");
                writeln!(text, "30 22 0:25 / {place} rw - ext4 x rw").unwrap();
            }
            let table = Table::parse(text.as_bytes());
            assert_eq!(table.known_volumes(root.path()).count(), 0);
            let last = Mutex::default();
            let told = || news(&last, table.volumes(root.path()).filter_map(Result::err).collect()).len();
            assert_eq!([told(), told()], [2, 0], "a warning at each look");
            let found: Vec<_> = table.volumes(root.path()).collect();
            assert_eq!(found.len(), 2, "{broken}: counts as another driver's");
            for (found, entry) in found.into_iter().zip(&table.0) {
                let unknown = found.unwrap_err();
                assert_eq!(unknown.mount_point, entry.mount_point);
            }
        }
    }
}
