//! `pv copy`: copies a file as large as a volume.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags, SeekFrom as Place, ioctl_ficlone, openat, seek};
use rustix::io::Errno;

use crate::args::Copy;
use crate::error::Error;

/// How much is read at once.
const CHUNK: usize = 1 << 20;

/// Copies a file. Where the file system can, both share their blocks until one is written; else the holes of one, and
/// what else is zero, become holes of the other. The copy appears under its name only when all of it is on the disk.
pub fn run(args: &Copy) -> Result<(), Error> {
    let Copy { from, to } = args;
    let mut new = to.clone().into_os_string();
    new.push(".new");
    copy(from.as_ref(), new.as_ref())
        .and_then(|()| fs::rename(&new, to))
        .map_err(|source| Error::Copy {
            from: from.clone(),
            to: to.clone(),
            source,
        })
}

fn copy(path: &Path, to: &Path) -> io::Result<()> {
    let from = File::open(path)?;
    // Replaces what an earlier try left.
    let mut to = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(to)?;
    match ioctl_ficlone(&to, &from) {
        Ok(()) => {}
        // Not on this file system, or not from one to the other.
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::INVAL | Errno::NOSYS) => {
            // What is written to the file meanwhile is not to be half in its copy.
            copy_data(still(path, &from).as_ref().unwrap_or(&from), &mut to)?;
        }
        Err(error) => return Err(error.into()),
    }
    to.sync_all()
}

/// The file as it is now, without a name, so that it goes with this process; `None` where the file system can't have
/// two share their blocks.
fn still(path: &Path, from: &File) -> Option<File> {
    let folder = File::open(path.parent()?).ok()?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let still = openat(folder, ".", flags, Mode::RUSR | Mode::WUSR).ok()?;
    ioctl_ficlone(&still, from).ok()?;
    Some(still.into())
}

/// Copies what is not a hole.
fn copy_data(mut from: &File, to: &mut File) -> io::Result<()> {
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let mut chunk = vec![0; CHUNK];
    let mut end = 0;
    loop {
        let mut start = match seek(from, Place::Data(end)) {
            Ok(start) => start,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => return Ok(()),
            // A file system of a server may not know where its holes are.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => end,
            Err(error) => return Err(error.into()),
        };
        end = seek(from, Place::Hole(start)).unwrap_or(size);
        from.seek(SeekFrom::Start(start))?;
        while start < end {
            let most = chunk.len().min(usize::try_from(end - start).unwrap_or(usize::MAX));
            let read = match from.read(&mut chunk[..most]) {
                // It has become shorter.
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if chunk[..read].iter().any(|byte| *byte != 0) {
                to.write_all_at(&chunk[..read], start)?;
            }
            start += read as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    use super::{copy_data, run};
    use crate::args::Copy;

    const SIZE: u64 = 64 << 20;

    #[test]
    fn a_copy_is_the_same_to_the_byte_and_its_holes_stay_holes() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let file = File::create(&from).unwrap();
        file.set_len(SIZE).unwrap();
        file.write_all_at(b"first", 4096).unwrap();
        file.write_all_at(b"last", SIZE - 4).unwrap();
        // An earlier try was ended half-way.
        fs::write(folder.path().join("to.new"), vec![1; 1 << 20]).unwrap();
        run(&Copy {
            from: from.clone(),
            to: to.clone(),
        })
        .unwrap();
        assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
        assert!(!folder.path().join("to.new").exists());

        let by_data = folder.path().join("by-data");
        let mut new = File::create(&by_data).unwrap();
        copy_data(&File::open(&from).unwrap(), &mut new).unwrap();
        assert!(fs::read(&from).unwrap() == fs::read(&by_data).unwrap());
        let blocks = |path| fs::metadata(path).unwrap().blocks();
        assert!(blocks(&by_data) <= blocks(&from) + 2048, "{} blocks", blocks(&by_data));
    }

    #[test]
    fn what_is_zero_takes_no_room_even_where_holes_are_not_known() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let mut content = vec![0; 8 << 20];
        content[5 << 20] = 1;
        fs::write(&from, &content).unwrap();
        let mut new = File::create(&to).unwrap();
        copy_data(&File::open(&from).unwrap(), &mut new).unwrap();
        assert!(fs::read(&to).unwrap() == content);
        let blocks = fs::metadata(&to).unwrap().blocks();
        assert!(blocks * 512 <= 2 << 20, "{blocks} blocks");
    }

    #[test]
    fn what_can_t_be_copied_gets_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let error = run(&Copy { from, to: to.clone() }).unwrap_err();
        assert!(error.to_string().contains("failed to copy"), "{error}");
        assert!(!to.exists());
    }
}
