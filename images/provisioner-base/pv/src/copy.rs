//! `pv copy`: copies a file as large as a volume.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::{SeekFrom as Place, ioctl_ficlone, seek};
use rustix::io::Errno;

use crate::args::Copy;
use crate::error::Error;

/// Copies a file. Where the file system can, both share their blocks until one is written; else the holes of one stay
/// holes of the other. The copy appears under its name only when all of it is on the disk.
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

fn copy(from: &std::path::Path, to: &std::path::Path) -> io::Result<()> {
    let mut from = File::open(from)?;
    // What an earlier try left is begun anew.
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
            copy_data(&mut from, &mut to)?;
        }
        Err(error) => return Err(error.into()),
    }
    to.sync_all()
}

/// Copies what is not a hole.
fn copy_data(from: &mut File, to: &mut File) -> io::Result<()> {
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let mut end = 0;
    loop {
        let start = match seek(&*from, Place::Data(end)) {
            Ok(start) => start,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        end = seek(&*from, Place::Hole(start))?;
        from.seek(SeekFrom::Start(start))?;
        to.seek(SeekFrom::Start(start))?;
        io::copy(&mut (&*from).take(end.saturating_sub(start)), to)?;
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
        copy_data(&mut File::open(&from).unwrap(), &mut new).unwrap();
        assert!(fs::read(&from).unwrap() == fs::read(&by_data).unwrap());
        let blocks = |path| fs::metadata(path).unwrap().blocks();
        assert!(blocks(&by_data) <= blocks(&from) + 2048, "{} blocks", blocks(&by_data));
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
