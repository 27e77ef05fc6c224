//! Notices a server that is silent for too long. Processes that wait for it wait in the kernel, where no signal reaches
//! them. So the agent reads from the volume itself, and kills its daemon if a read does not end: then all that wait get
//! an error. It does so earlier when the volume is given up, since its Pod is being deleted.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use tokio::sync::Notify;

/// Pause between an answer and the next read.
pub(super) const PERIOD: Duration = Duration::from_secs(15);

/// A server that is watched.
#[derive(Debug, Default)]
pub(super) struct WatchedServer {
    /// Since when it has been asked and has not answered.
    asked: Mutex<Option<Instant>>,
    given_up: Notify,
}

impl WatchedServer {
    /// Asks again and again; returns how long one answer has taken when that is longer than `limit`, or when the volume
    /// is given up. An error counts as an answer.
    pub(super) async fn silent<A: Future>(&self, limit: Duration, period: Duration, ask: impl Fn() -> A) -> Duration {
        let asks = async {
            loop {
                let asked = self.ask();
                if tokio::time::timeout(limit, ask()).await.is_err() {
                    return self.silence();
                }
                drop(asked);
                tokio::time::sleep(period).await;
            }
        };
        let given_up = async {
            self.given_up.notified().await;
            self.silence()
        };
        let silence = tokio::select! {
            silence = asks => silence,
            silence = given_up => silence,
        };
        silence.unwrap_or_default()
    }

    /// How long it has not answered.
    pub(super) fn silence(&self) -> Option<Duration> {
        self.asked().map(|asked| asked.elapsed())
    }

    /// Has [`Self::silent`] return.
    pub(super) fn give_up(&self) {
        self.given_up.notify_one();
    }

    fn ask(&self) -> Asked<'_> {
        *self.asked() = Some(Instant::now());
        Asked(self)
    }

    fn asked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks a server as asked until it is dropped: also when its daemons have ended, and nobody waits for an answer.
struct Asked<'a>(&'a WatchedServer);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        *self.0.asked() = None;
    }
}

/// A block, aligned for direct reads.
#[repr(align(4096))]
struct Block([u8; 4096]);

/// Reads the first block of a file, bypassing the kernel's cache.
pub(super) fn read_block(file: &Path) -> io::Result<usize> {
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_DIRECT.bits())
        .open(file)?;
    file.read(&mut Box::new(Block([0; 4096])).0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn a_server_that_answers_in_time_is_asked_again_and_one_that_does_not_is_silent() {
        let limit = Duration::from_millis(600);
        let slow = Duration::from_millis(100);
        let period = Duration::from_millis(50);
        let asked = Cell::new(0);
        let start = Instant::now();
        let server = WatchedServer::default();
        let ask = || {
            asked.set(asked.get() + 1);
            let answers = asked.get() <= 2;
            async move {
                tokio::time::sleep(slow).await;
                if !answers {
                    pending::<()>().await;
                }
            }
        };
        let silence = server.silent(limit, period, ask).await;
        assert!(silence >= limit, "{silence:?}");
        assert_eq!(server.silence(), None, "it is not asked any more");
        assert_eq!(asked.get(), 3);
        assert!(start.elapsed() >= (slow + period) * 2 + limit);
    }

    #[tokio::test]
    async fn a_server_that_is_given_up_is_waited_for_no_longer_and_its_silence_shows_before() {
        let server = WatchedServer::default();
        assert_eq!(server.silence(), None);
        let limit = Duration::from_mins(10);
        let gives_up = async {
            while server.silence().is_none() {
                tokio::task::yield_now().await;
            }
            server.give_up();
        };
        let (silence, ()) = tokio::join!(server.silent(limit, limit, pending::<()>), gives_up);
        assert!(silence < limit, "{silence:?}");
    }

    #[test]
    fn a_block_is_read_and_a_missing_file_is_an_error_and_not_silence() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk");
        assert!(read_block(&file).is_err());
        std::fs::write(&file, [7; 8192]).unwrap();
        // Some file systems don't support direct reads.
        assert!(matches!(read_block(&file), Ok(4096) | Err(_)));
    }
}
