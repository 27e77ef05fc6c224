//! Pods that count in a file of their volume all the time: whether they can still write is read on the server.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{Scope, wait_until};

/// What such a Pod runs, with its volume at `/data`: it appends a number to `/data/counted` every second, and notes
/// each write that failed. In a virtual machine, each process that it starts is costly.
pub const COUNTS: &str = "i=0; while :; do i=$((i+1)); echo $i >>/data/counted || echo $i >>/tmp/failed; sleep 1; done";

impl Scope {
    /// The number that a Pod has counted to in a directory of a server's disk: 0 before its first write.
    fn counted(&self, server: &str, directory: &str) -> Result<usize> {
        // A Pod runs before it has written.
        let count = format!("! [ -e {directory}/counted ] || wc -l <{directory}/counted");
        let count = self.exec(server, ["sh", "-euc", &count])?;
        Ok(if count.is_empty() { 0 } else { count.trim().parse()? })
    }

    /// Waits until a Pod counts on in a directory of a server's disk. Fails if a write has failed since the Pod began.
    pub async fn counts_on(&self, pod: &str, server: &str, directory: &str, limit: Duration) -> Result<()> {
        let before = self.counted(server, directory)?;
        wait_until(&format!("{pod} to write on"), limit, async || {
            Ok((self.counted(server, directory)? > before + 3).then_some(()))
        })
        .await?;
        let failed = self.exec(pod, ["sh", "-euc", "! [ -e /tmp/failed ] || cat /tmp/failed"])?;
        ensure!(failed.is_empty(), "{pod} could not write: {failed}");
        Ok(())
    }
}
