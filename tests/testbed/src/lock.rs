//! Locks between testbed commands that run at the same time.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::command::is_stopped;
use crate::layout::{Layout, cache, make_folder};
use crate::progress::{PLAIN_PERIOD, say, spoken};

/// How often to try a lock.
const POLL: Duration = Duration::from_millis(100);

/// A lock, held until this is dropped.
pub struct Lock {
    path: PathBuf,
    file: Flock<File>,
}

impl Lock {
    /// Waits for the lock of a cluster: one command at a time changes it.
    pub fn cluster(layout: &Layout) -> Result<Self> {
        // Beside the state folder, which `down` removes.
        // Also when told to stop: the cluster has to be removed.
        Self::take(&layout.state.with_extension("lock"), "this cluster", || false)
    }

    /// Waits for the lock of the images: one command at a time builds them, for any cluster.
    pub fn images() -> Result<Self> {
        Self::take(&cache()?.join("images.lock"), "the images", is_stopped)
    }

    /// Waits for the lock of the virtual machines' files: one command at a time fetches them.
    pub fn machine() -> Result<Self> {
        Self::take(
            &cache()?.join("machine.lock"),
            "the kernel of virtual machines",
            is_stopped,
        )
    }

    /// Waits until `is_off`, if need be.
    fn take(path: &Path, what: &str, is_off: impl Fn() -> bool) -> Result<Self> {
        make_folder(path.parent().unwrap_or(path))?;
        loop {
            let mut file = wait_for(path, what, &is_off)?;
            // The last holder may have removed the file, and another command may have made a new one.
            let ours = file
                .metadata()
                .with_context(|| format!("failed to look at {}", path.display()))?;
            if std::fs::metadata(path).is_ok_and(|there| there.ino() == ours.ino()) {
                // Only for the messages of those who wait; the lock works without it.
                let _ = file.set_len(0);
                let _ = file.write_all(Holder::this().to_string().as_bytes());
                return Ok(Self {
                    path: path.to_owned(),
                    file,
                });
            }
        }
    }

    /// Removes the file, and releases the lock.
    pub fn remove(self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A waiting command must not name a holder that has ended.
        let _ = self.file.set_len(0);
    }
}

/// Locks the file. If it has to wait, it says which command it waits for.
fn wait_for(path: &Path, what: &str, is_off: impl Fn() -> bool) -> Result<Flock<File>> {
    let mut file = open(path)?;
    let mut said: Option<Instant> = None;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((file, Errno::EWOULDBLOCK)) => file,
            Err((_, errno)) => return Err(errno).with_context(|| format!("failed to lock {}", path.display())),
        };
        if said.is_none_or(|at| at.elapsed() >= PLAIN_PERIOD) {
            let content = std::fs::read_to_string(path).unwrap_or_default();
            say(waiting(Holder::read(&content).as_ref(), what, unix_now()));
            said = Some(Instant::now());
        }
        if is_off() {
            bail!("stopped while it waited for {what}");
        }
        std::thread::sleep(POLL);
    }
}

/// The holder of a lock, from the lock's file.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    /// The start time, in seconds of Unix time.
    since: u64,
    /// Program and arguments.
    command: String,
}

impl Holder {
    fn this() -> Self {
        let mut words = std::env::args();
        let program = words.next().unwrap_or_default();
        let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
        Self {
            pid: std::process::id(),
            since: unix_now(),
            command: std::iter::once(name.into_owned())
                .chain(words)
                .collect::<Vec<_>>()
                .join(" "),
        }
    }

    /// Reads what [`Holder::fmt`] wrote; none if the file is empty or has something else.
    fn read(content: &str) -> Option<Self> {
        let mut parts = content.trim_end().splitn(3, ' ');
        Some(Self {
            pid: parts.next()?.parse().ok()?,
            since: parts.next()?.parse().ok()?,
            command: parts.next()?.to_owned(),
        })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} {}", self.pid, self.since, self.command)
    }
}

fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

fn waiting(holder: Option<&Holder>, what: &str, now: u64) -> String {
    let Some(Holder { pid, since, command }) = holder else {
        return format!("  .. another testbed command is at work on {what}: waiting for it");
    };
    let (hour, minute, second) = (since / 3600 % 24, since / 60 % 60, since % 60);
    let elapsed = spoken(Duration::from_secs(now.saturating_sub(*since)));
    format!(
        "  .. process {pid} ({command}) has been at work on {what} since {hour:02}:{minute:02}:{second:02} UTC, for \
         {elapsed}: waiting for it"
    )
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
    use super::{Holder, Lock, waiting};

    #[test]
    fn a_waiting_command_names_the_holder_and_its_start_time() {
        let holder = Holder {
            pid: 7,
            since: 86400 + 3600 + 62,
            command: "testbed test mount".into(),
        };
        assert_eq!(Holder::read(&holder.to_string()).as_ref(), Some(&holder));
        assert_eq!(
            waiting(Some(&holder), "the images", holder.since + 200),
            "  .. process 7 (testbed test mount) has been at work on the images since 01:01:02 UTC, for 3 min 20 s: \
             waiting for it"
        );
        for content in ["", "x y z", "7 8"] {
            assert_eq!(Holder::read(content), None);
        }
        assert!(waiting(None, "the images", 0).contains("another testbed command"));
    }

    #[test]
    fn a_lock_s_file_names_its_holder_for_as_long_as_it_is_held() {
        let path = std::env::temp_dir().join(format!("mooring-holder-{}", std::process::id()));
        let lock = Lock::take(&path, "a test", || false).unwrap();
        let holder = Holder::read(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(holder.pid, std::process::id());
        let error = Lock::take(&path, "a test", || true).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "stopped while it waited for a test");
        drop(lock);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_lock_whose_file_was_removed_is_taken_on_a_new_file() {
        let path = std::env::temp_dir().join(format!("mooring-lock-{}", std::process::id()));
        let first = Lock::take(&path, "a test", || false).unwrap();
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || Lock::take(&path, "a test", || false).unwrap()
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        first.remove();
        let second = waiting.join().unwrap();
        assert!(path.exists());
        second.remove();
        assert!(!path.exists());
    }
}
