//! Notices a server that is silent for too long. Processes that wait for it wait in the kernel, where no signal reaches
//! them. So the agent reads from the volume itself, and kills its daemon if a read does not end: then all that wait get
//! an error.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;

/// Pause between an answer and the next read.
pub(super) const PERIOD: Duration = Duration::from_secs(15);

/// Asks again and again; returns when one answer has taken longer than `limit`. An error counts as an answer.
pub(super) async fn silent<A: Future>(limit: Duration, period: Duration, ask: impl Fn() -> A) {
    while tokio::time::timeout(limit, ask()).await.is_ok() {
        tokio::time::sleep(period).await;
    }
}

/// A block, aligned for direct reads.
#[repr(align(4096))]
struct Block([u8; 4096]);

/// Reads the first block of a file, bypassing the kernel's cache.
pub(super) fn read_block(file: &Path) -> io::Result<usize> {
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default();
    let mut file = OpenOptions::new().read(true).custom_flags(direct).open(file)?;
    file.read(&mut Box::new(Block([0; 4096])).0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_server_that_answers_in_time_is_asked_again_and_one_that_does_not_is_silent() {
        let limit = Duration::from_millis(600);
        let slow = Duration::from_millis(100);
        let period = Duration::from_millis(50);
        let asked = Cell::new(0);
        let start = Instant::now();
        silent(limit, period, || {
            asked.set(asked.get() + 1);
            let answers = asked.get() <= 2;
            async move {
                tokio::time::sleep(slow).await;
                if !answers {
                    pending::<()>().await;
                }
            }
        })
        .await;
        assert_eq!(asked.get(), 3);
        assert!(start.elapsed() >= (slow + period) * 2 + limit);
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
