//! Gives all files of a mount to a group, with the result that the kubelet would have (`pkg/volume/volume_linux.go` of
//! Kubernetes): each file is the group's, who may read and write it, and new files in a directory are the group's too.
//!
//! Each file is reached by a handle of its directory, through no link and out of no mount: other Pods may change the
//! volume meanwhile. What is right is not written. A directory is changed after what is in it, so that one that is right
//! shows that the rest is (`fsGroupChangePolicy: OnRootMismatch`). Names go in order, so that a walk whose time is up can
//! be continued by another one.

use std::collections::BinaryHeap;
use std::ffi::CString;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::Instant;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmodat, fstat, fstatat};
use nix::unistd::{Gid, fchownat};
use serde::{Deserialize, Serialize};

use super::{Result, SysError};
use crate::volume::pod_group::PodGroup;
use crate::volume::target::{CONFINED, file_type};

/// What the group may do with a file, and with a directory, whose new files are the group's.
const FILE: u32 = 0o0660;
const DIRECTORY: u32 = 0o2770;

/// Of these, what a client gives its files by a mount option.
const SHOWN: u32 = 0o0770;

/// The bits of a mode that a program can set.
const SETTABLE: u32 = 0o7777;

/// What the kernel takes away when the group changes.
const SET_IDS: u32 = 0o6000;

/// How a file is opened: what other file systems lie in this one is not the volume's.
const WITHIN: ResolveFlag = CONFINED.union(ResolveFlag::RESOLVE_NO_XDEV);

/// How a directory is opened to be listed.
const HERE: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// The most names in memory: whoever has a volume decides how many there are, and the mounter's memory is everybody's.
const MOST: usize = if cfg!(test) { 4 } else { 8192 };

/// How many names are read between two looks at the clock.
const OFTEN: usize = 1024;

/// The most files that can't be read before the walk fails: then it is the file system.
const MOST_BROKEN: u32 = 64;

/// Names from the mount's root down to a file.
pub type Place = Vec<Vec<u8>>;

/// The longest [`Place`] that is noted, in bytes.
const LONGEST: usize = 4096;

/// What came of a walk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walked {
    /// Where to go on, if the time was up.
    pub next: Option<Place>,
    /// How many files it has looked at.
    pub files: u64,
    /// How many it was not let change, or look into.
    pub refused: u64,
    /// Why the first of them was refused.
    pub refusal: String,
}

/// Whether the directory that is the root of a mount is the group's already, with all that a walk gives it.
pub fn is_given(root: &OwnedFd, group: PodGroup) -> Result<bool> {
    Ok(is_right(&look_at(root)?, group.gid))
}

/// Whether it is shown as the group's, who may write it, by a mount option: a walk would have given it more than that.
pub fn is_shown_as(root: &OwnedFd, group: PodGroup) -> Result<bool> {
    let found = look_at(root)?;
    Ok(found.st_gid == group.gid && found.st_mode & DIRECTORY == SHOWN)
}

fn look_at(root: &OwnedFd) -> Result<FileStat> {
    fstat(root).map_err(|errno| SysError::call("look at the volume's directory", errno))
}

/// Gives away what is in `root` and the directory itself, from a place on, until a time.
pub fn give(root: &OwnedFd, group: PodGroup, from: &Place, until: Instant) -> Result<Walked> {
    let mut walk = Walk {
        gid: group.gid,
        until,
        broken: 0,
        done: Walked::default(),
    };
    let mut levels = match openat(root, c".", HERE, Mode::empty()) {
        Ok(directory) => vec![Level::new(directory, c".".to_owned(), Some(from.as_slice()))],
        Err(errno) => {
            walk.pass("list", c".", errno)?;
            walk.change(root, c".")?;
            Vec::new()
        }
    };
    while let Some(level) = levels.last_mut() {
        if level.names.len() == 0 && level.has_more {
            if !walk.list(level)? {
                let is_before = level.last.is_none() && level.begin.is_some();
                let last = level.last.clone();
                walk.done.next = Some(if is_before { from.clone() } else { place(&levels, last) });
                break;
            }
            forget_above(&mut levels);
        } else if let Some(name) = level.names.next() {
            let begin = level
                .begin
                .take_if(|begin| begin.first().is_some_and(|first| *first == name.as_bytes()));
            if Instant::now() >= until {
                // On the way to where it begins, nothing is done.
                walk.done.next = Some(begin.map_or_else(|| place(&levels, Some(name)), |_| from.clone()));
                break;
            }
            level.last = Some(name.clone());
            if let Some(directory) = walk.enter(&level.directory, &name)? {
                levels.push(Level::new(directory, name, begin.map(|begin| &begin[1..])));
            }
        } else if let Some(level) = levels.pop() {
            walk.change(&level.directory, &level.name)?;
        }
    }
    Ok(walk.done)
}

/// A directory that the walk is in.
struct Level<'a> {
    directory: OwnedFd,
    name: CString,
    /// What comes next in it.
    names: std::vec::IntoIter<CString>,
    /// Whether there may be more than that.
    has_more: bool,
    /// The file that came last.
    last: Option<CString>,
    /// Where the walk begins in it, if not at its first file.
    begin: Option<&'a [Vec<u8>]>,
}

impl<'a> Level<'a> {
    fn new(directory: OwnedFd, name: CString, begin: Option<&'a [Vec<u8>]>) -> Self {
        Self {
            directory,
            name,
            names: Vec::new().into_iter(),
            has_more: true,
            last: None,
            begin,
        }
    }
}

/// Keeps the names of the last level alone if there are too many in memory: the others are read again.
fn forget_above(levels: &mut [Level<'_>]) {
    if levels.iter().map(|level| level.names.len()).sum::<usize>() <= MOST {
        return;
    }
    for level in levels.iter_mut().rev().skip(1) {
        level.has_more |= level.names.len() > 0;
        level.names = Vec::new().into_iter();
    }
}

/// The place of a file of the last level, or of that directory. One that is too long is that of a directory that it is
/// in, which is begun anew.
fn place(levels: &[Level<'_>], name: Option<CString>) -> Place {
    let above = levels.iter().skip(1).map(|level| level.name.clone());
    let mut room = LONGEST;
    let fits = |name: &CString| {
        let fits = name.as_bytes().len() <= room;
        room = room.saturating_sub(name.as_bytes().len());
        fits
    };
    above.chain(name).take_while(fits).map(CString::into_bytes).collect()
}

struct Walk {
    gid: u32,
    until: Instant,
    /// How many files could not be read.
    broken: u32,
    done: Walked,
}

impl Walk {
    /// Reads which files come next in a directory; `false` if the time was up.
    fn list(&mut self, level: &mut Level<'_>) -> Result<bool> {
        let first = level.begin.and_then(|begin| begin.first());
        let is_due = |name: &[u8]| match (&level.last, first) {
            (Some(last), _) => name > last.as_bytes(),
            (None, first) => first.is_none_or(|first| name >= first.as_slice()),
        };
        let mut names = BinaryHeap::new();
        let mut has_more = false;
        // A description of its own, which begins at the beginning.
        let opened = openat(&level.directory, c".", HERE, Mode::empty()).and_then(Dir::from_fd);
        let read = opened.and_then(|mut directory| {
            for (count, entry) in directory.iter().enumerate() {
                if count % OFTEN == OFTEN - 1 && Instant::now() >= self.until {
                    return Ok(false);
                }
                let entry = entry?;
                let name = entry.file_name();
                if matches!(name.to_bytes(), b"." | b"..") || !is_due(name.to_bytes()) {
                    continue;
                }
                names.push(name.to_owned());
                if names.len() > MOST {
                    names.pop();
                    has_more = true;
                }
            }
            Ok(true)
        });
        match read {
            Ok(false) => return Ok(false),
            Ok(true) => {}
            Err(errno) => self.pass("list", &level.name, errno)?,
        }
        level.names = names.into_sorted_vec().into_iter();
        level.has_more = has_more;
        Ok(true)
    }

    /// Changes a file, and opens what is a directory: that is changed when the walk leaves it.
    fn enter(&mut self, directory: &OwnedFd, name: &CString) -> Result<Option<OwnedFd>> {
        self.done.files += 1;
        let found = fstatat(
            directory,
            name.as_c_str(),
            AtFlags::AT_SYMLINK_NOFOLLOW | AtFlags::AT_NO_AUTOMOUNT,
        );
        let found = match found {
            Ok(found) => found,
            Err(errno) => return self.pass("look at", name, errno).map(|()| None),
        };
        let open = |flags: OFlag| openat2(directory, name.as_c_str(), OpenHow::new().flags(flags).resolve(WITHIN));
        if file_type(&found) == SFlag::S_IFDIR {
            match open(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC) {
                Ok(directory) => return Ok(Some(directory)),
                Err(Errno::EXDEV) => return Ok(None),
                Err(errno) => self.pass("list", name, errno)?,
            }
        }
        if is_right(&found, self.gid) {
            return Ok(None);
        }
        match open(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC) {
            Ok(file) => self.change(&file, name),
            Err(Errno::EXDEV) => Ok(()),
            Err(errno) => self.pass("open", name, errno),
        }?;
        Ok(None)
    }

    /// Changes what is open. The mode stays where the group can't be changed: it would be for another group.
    fn change(&mut self, file: &OwnedFd, name: &std::ffi::CStr) -> Result<()> {
        let found = match fstat(file) {
            Ok(found) => found,
            Err(errno) => return self.pass("look at", name, errno),
        };
        let is_other = found.st_gid != self.gid;
        if is_other && let Err(errno) = fchownat(file, c"", None, Some(Gid::from_raw(self.gid)), AtFlags::AT_EMPTY_PATH)
        {
            return self.pass("change the group of", name, errno);
        }
        let had = found.st_mode & SETTABLE;
        let wanted = had | rights(&found);
        if wanted == had && !(is_other && had & SET_IDS != 0) {
            return Ok(());
        }
        // A handle that was opened to be no more than a place takes no other call.
        let by_handle = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        match fchmodat(
            AT_FDCWD,
            by_handle.as_str(),
            Mode::from_bits_truncate(wanted),
            FchmodatFlags::FollowSymlink,
        ) {
            Ok(()) => Ok(()),
            Err(errno) => self.pass("change the mode of", name, errno),
        }
    }

    /// Passes over a file that is gone, and over one that the server or the file system does not let be changed. Fails
    /// where nothing more can be done with any file.
    fn pass(&mut self, attempted: &str, name: &std::ffi::CStr, errno: Errno) -> Result<()> {
        let error = SysError::call(format!("{attempted} {name:?}"), errno);
        match errno {
            Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR | Errno::ELOOP => {}
            // One file alone may be damaged.
            Errno::EIO if self.broken < MOST_BROKEN => {
                self.broken += 1;
                self.refused(&error);
            }
            Errno::EIO
            | Errno::ENODEV
            | Errno::ENOTCONN
            | Errno::ECONNABORTED
            | Errno::ECONNRESET
            | Errno::ESHUTDOWN
            | Errno::ETIMEDOUT
            | Errno::ENFILE
            | Errno::ENOMEM => return Err(error),
            _ => self.refused(&error),
        }
        Ok(())
    }

    fn refused(&mut self, error: &SysError) {
        if self.done.refused == 0 {
            self.done.refusal = error.to_string();
        }
        self.done.refused += 1;
    }
}

/// What the group may do with such a file. The mode of a link means nothing.
fn rights(file: &FileStat) -> u32 {
    match file_type(file) {
        SFlag::S_IFLNK => 0,
        SFlag::S_IFDIR => DIRECTORY,
        _ => FILE,
    }
}

fn is_right(file: &FileStat, gid: u32) -> bool {
    file.st_gid == gid && file.st_mode & rights(file) == rights(file)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::path::Path;
    use std::time::{Duration, Instant};

    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    use nix::unistd::getuid;
    use tempfile::TempDir;

    use super::{MOST, Place, Walked, give, is_given};
    use crate::volume::pod_group::PodGroup;

    const GROUP: u32 = 2000;

    fn open(root: &Path) -> OwnedFd {
        File::open(root).unwrap().into()
    }

    fn walk(root: &Path, from: &Place, limit: Duration) -> Walked {
        give(&open(root), PodGroup::always(GROUP), from, Instant::now() + limit).unwrap()
    }

    /// A walk that has time.
    fn whole(root: &Path) -> Walked {
        walk(root, &Place::default(), Duration::from_mins(1))
    }

    /// Owner, group and mode of a file.
    fn of(root: &Path, path: &str) -> (u32, u32, u32) {
        let found = fs::symlink_metadata(root.join(path)).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o7777)
    }

    /// Files that are another's. Only root can make them.
    fn tree() -> Option<TempDir> {
        if !getuid().is_root() {
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("a/b")).unwrap();
        for (path, mode) in [
            ("", 0o700),
            ("a/b/letter", 0o600),
            ("a/program", 0o4775),
            ("z", 0o644),
            ("a/b", 0o700),
        ] {
            if !at(path).exists() {
                fs::write(at(path), "x").unwrap();
            }
            std::os::unix::fs::chown(at(path), Some(1000), Some(1000)).unwrap();
            fs::set_permissions(at(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        Some(root)
    }

    #[test]
    fn all_files_are_the_group_s_as_the_kubelet_would_have_it() {
        let Some(tree) = tree() else { return };
        let root = tree.path();
        let outside = tempfile::NamedTempFile::new().unwrap();
        fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o600)).unwrap();
        symlink(outside.path(), root.join("link")).unwrap();
        let handle = open(root);
        assert!(!is_given(&handle, PodGroup::always(GROUP)).unwrap());

        let walked = whole(root);
        assert_eq!(
            walked,
            Walked {
                files: 6,
                ..Walked::default()
            }
        );
        assert!(is_given(&handle, PodGroup::always(GROUP)).unwrap());
        for (path, expected) in [
            ("", (1000, GROUP, 0o2770)),
            ("a/b", (1000, GROUP, 0o2770)),
            ("a/b/letter", (1000, GROUP, 0o660)),
            // The kernel takes these bits away when the group changes.
            ("a/program", (1000, GROUP, 0o4775)),
            ("z", (1000, GROUP, 0o664)),
        ] {
            assert_eq!(of(root, path), expected, "{path}");
        }
        // A link is no way out.
        assert_eq!(of(root, "link").1, GROUP);
        let outside = fs::metadata(outside.path()).unwrap();
        assert_eq!((outside.gid(), outside.mode() & 0o777), (0, 0o600));
    }

    #[test]
    fn what_is_right_is_not_written() {
        let Some(tree) = tree() else { return };
        whole(tree.path());
        let changed =
            |path: &str| fs::metadata(tree.path().join(path)).map(|found| (found.ctime(), found.ctime_nsec()));
        let before = ["", "a", "a/b/letter"].map(|path| changed(path).unwrap());
        whole(tree.path());
        assert_eq!(["", "a", "a/b/letter"].map(|path| changed(path).unwrap()), before);
    }

    #[test]
    fn a_walk_whose_time_is_up_goes_on_where_it_ended_and_ends_with_the_root() {
        let Some(tree) = tree() else { return };
        let root = tree.path();
        let names = |place: &[&str]| -> Place { place.iter().map(|name| name.as_bytes().to_vec()).collect() };
        let no_time = |from: &Place| walk(root, from, Duration::ZERO);
        assert_eq!(no_time(&Place::default()).next, Some(names(&["a"])));
        let inner = names(&["a", "b", "letter"]);
        assert_eq!(no_time(&inner).next, Some(inner.clone()), "it begins elsewhere");
        assert!(!is_given(&open(root), PodGroup::always(GROUP)).unwrap());
        // A file that is gone by then is as good as any.
        let gone = names(&["a", "b", "lost"]);
        assert_eq!(walk(root, &gone, Duration::from_mins(1)).next, None);
        assert_eq!(of(root, "a/b/letter").1, 1000, "it is before the place");
        for later in ["", "a", "a/b", "a/program", "z"] {
            assert_eq!(of(root, later).1, GROUP, "{later}");
        }
        assert_eq!(whole(root).next, None);
        assert_eq!(of(root, "a/b/letter").1, GROUP);
    }

    /// Whoever has the volume decides how many names there are.
    #[test]
    fn more_files_than_there_is_memory_for_are_given_away_one_lot_after_the_other() {
        let Some(tree) = tree() else { return };
        let root = tree.path();
        let mut all = Vec::new();
        for directory in 0..3 * MOST {
            for file in 0..3 * MOST {
                all.push(format!("many/{directory}/{file}"));
            }
            fs::create_dir_all(root.join(format!("many/{directory}"))).unwrap();
        }
        for path in &all {
            fs::write(root.join(path), "").unwrap();
        }
        let (some, rest) = (3 * MOST + 1, (3 * MOST) * (3 * MOST));
        let walked = whole(root);
        assert_eq!((walked.next, walked.refused), (None, 0));
        assert_eq!(usize::try_from(walked.files).unwrap(), 5 + some + rest);
        for path in &all {
            assert_eq!(of(root, path).1, GROUP, "{path}");
        }
    }

    #[test]
    fn what_is_mounted_within_is_left_alone_and_what_can_t_be_written_is_counted() {
        let Some(tree) = tree() else { return };
        let inner = tree.path().join("a/b");
        let none = None::<&str>;
        if mount(Some("inner"), &inner, Some("tmpfs"), MsFlags::empty(), Some("mode=700")).is_err() {
            return;
        }
        fs::write(inner.join("file"), "x").unwrap();
        let outer = whole(tree.path());
        let untouched = of(&inner, "file");
        mount(none, &inner, none, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, none).unwrap();
        let read_only = whole(&inner);
        umount2(&inner, MntFlags::MNT_DETACH).unwrap();
        assert_eq!((untouched.0, untouched.1), (0, 0));
        assert_eq!((outer.next, outer.refused), (None, 0));
        assert_eq!((read_only.next, read_only.refused), (None, 2));
        assert!(
            read_only.refusal.contains("Read-only file system"),
            "{}",
            read_only.refusal
        );
    }
}
