//! Locks between testbed commands that run at the same time.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};

use crate::layout::{Layout, cache, make_folder};
use crate::progress::say;

/// Held for as long as it lives.
pub struct Lock {
    path: PathBuf,
    _file: Flock<File>,
}

impl Lock {
    /// Waits for the lock of a cluster: one command at a time changes it.
    pub fn cluster(layout: &Layout) -> Result<Self> {
        // Beside the state folder, which `down` removes.
        Self::take(&layout.state.with_extension("lock"), "this cluster")
    }

    /// Waits for the lock of the images: one command at a time builds them, for whichever cluster.
    pub fn images() -> Result<Self> {
        Self::take(&cache()?.join("images.lock"), "the images")
    }

    /// Waits for the lock of what virtual machines are started from: one command at a time fetches it.
    pub fn machine() -> Result<Self> {
        Self::take(&cache()?.join("machine.lock"), "the kernel of virtual machines")
    }

    fn take(path: &Path, what: &str) -> Result<Self> {
        make_folder(path.parent().unwrap_or(path))?;
        loop {
            let file = if let Ok(file) = Flock::lock(open(path)?, FlockArg::LockExclusiveNonblock) {
                file
            } else {
                say(format!(
                    "  .. another testbed command is at work on {what}: waiting for it"
                ));
                Flock::lock(open(path)?, FlockArg::LockExclusive)
                    .map_err(|(_, errno)| errno)
                    .with_context(|| format!("failed to lock {}", path.display()))?
            };
            // The one before may have removed the file, and somebody else made it anew.
            let ours = file
                .metadata()
                .with_context(|| format!("failed to look at {}", path.display()))?;
            if std::fs::metadata(path).is_ok_and(|there| there.ino() == ours.ino()) {
                return Ok(Self {
                    path: path.to_owned(),
                    _file: file,
                });
            }
        }
    }

    /// Removes the file, and lets go of the lock.
    pub fn remove(self) {
        // Gone already is what was wanted.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn open(path: &Path) -> Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("failed to open {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::Lock;

    #[test]
    fn a_lock_whose_file_was_removed_is_taken_anew() {
        let path = std::env::temp_dir().join(format!("mooring-lock-{}", std::process::id()));
        let first = Lock::take(&path, "a test").unwrap();
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || Lock::take(&path, "a test").unwrap()
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        first.remove();
        let second = waiting.join().unwrap();
        assert!(path.exists());
        second.remove();
        assert!(!path.exists());
    }
}
