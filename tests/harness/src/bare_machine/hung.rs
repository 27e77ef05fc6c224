//! What a hanging server may do to a machine's volumes and what not, for every protocol.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::Machine;
use crate::{Scope, wait_until};
use mooring_testbed::progress::note;

/// How long the mounter lets the kubelet wait here: less than usual, since the server hangs on purpose.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// Longest wait until a server that answers again is tried again: the mounter refuses its mounts for 30 s.
const HEAL_LIMIT: Duration = Duration::from_mins(2);

/// Longest wait until what was being written is on a server that answers again: the kernel may wait a minute to retry.
const WRITTEN_LIMIT: Duration = Duration::from_mins(3);

impl Machine {
    /// Makes the server in Pod `pod` with address `server` hang while something writes to `used`, which is mounted.
    /// Meanwhile, the volume `other` of another server of the same kind is mounted and written before the mounter has
    /// given up on another `volume` of the hung one, which is refused with a message, and `used` can be unmounted. Once
    /// the server answers again, the write and `volume` succeed. `first` is `volume` in a form that makes the kernel
    /// talk to the server when it mounts. Returns the message that `first` was refused with.
    pub async fn hang(
        &mut self,
        scope: &Scope,
        (pod, server): (&str, &str),
        used: &str,
        first: &Value,
        volume: &Value,
        other: &Value,
    ) -> Result<String> {
        let late = "late";
        let writes = Self::path(used, "");
        self.sh(&format!(
            "(cd {writes}; while [ ! -e /run/enough ]; do dd if=/dev/zero of=file bs=16k count=4 conv=fsync || break; \
             done; echo ended >/run/writer) >/run/dd.log 2>&1 &"
        ))?;
        self.sh(&format!("until [ -s {writes}file ]; do sleep 0.1; done"))?;

        let stopped = scope.stop(pod).await?;
        self.begin_mount(late, first)?;
        wait_until("a worker to wait for the hung server", HEAL_LIMIT, async || {
            Ok((self.busy_workers()? > 0).then_some(()))
        })
        .await?;
        self.mounted("other", other)?;
        self.sh(&format!("echo kept >{}", Self::path("other", "kept")))?;
        ensure!(self.is_mounting()?, "the mount from the hung server was answered first");
        let answer = self.end_mount()?;
        answer.refused(&[server, "did not answer"])?;
        let told = answer.message().to_owned();
        note(format!("a hung server is reported: {told}"));
        self.unmounted("other")?;
        self.mount(late, volume)?.refused(&[server, "is not tried again"])?;
        // Its user hangs in the middle of a write; the volume can still be unmounted.
        self.unmounted(used)?;
        ensure!(self.mounts(used)?.is_empty(), "{used} is still mounted");
        let log = self.mounter_log()?;
        for words in ["unmounted lazily", "did not answer in time"] {
            ensure!(log.contains(words), "{words:?} is not in the mounter's log: {log}");
        }

        drop(stopped);
        // What was being written gets there.
        let written = "touch /run/enough; until [ -e /run/writer ]; do sleep 0.2; done";
        let written = self.run(written, WRITTEN_LIMIT)?;
        ensure!(written.code == 0, "{}", written.output);
        let written = self.sh("cat /run/dd.log")?;
        ensure!(!written.to_lowercase().contains("error"), "{written}");
        wait_until("a volume of the server to be mounted again", HEAL_LIMIT, async || {
            self.mounted(late, volume).map(Some)
        })
        .await?;
        let size = self.sh(&format!("wc -c <{}", Self::path(late, "file")))?;
        ensure!(size.trim() == "65536", "the file has {size} bytes");
        self.unmounted(late)?;
        ensure!(self.busy_workers()? == 0, "a worker is left behind");
        Ok(told)
    }
}
