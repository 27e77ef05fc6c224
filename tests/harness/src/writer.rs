//! A Pod that writes to a volume all the time and records every failure.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::scope::Scope;
use super::waits::wait_until;

/// Longest wait for a writer to stop.
const LIMIT: Duration = Duration::from_secs(90);

/// Writes files of random bytes again and again, each with its checksum beside it once it is complete, until it is told
/// to stop.
const SCRIPT: &str = "touch /tmp/failed; rm -f /data/count; i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); n=$((i%8)); {
    rm -f /data/sum-$n && dd if=/dev/urandom of=/data/file-$n bs=16k count=4 2>/dev/null \\
    && sha256sum /data/file-$n >/tmp/sum && cp /tmp/sum /data/new && mv /data/new /data/sum-$n \\
    && echo $i >/data/count.new && mv /data/count.new /data/count; } 2>>/tmp/failed || echo $i >>/tmp/failed; sleep 0.05; done
    touch /tmp/stopped; sleep 1000000";

impl Scope {
    /// Starts a Pod with a claim that writes all the time.
    pub fn writer(&self, name: &str, node: &str, claim: &str) -> Result<()> {
        let main = json!([{
            "name": "main", "image": "busybox:1", "command": ["sh", "-c", SCRIPT],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }]);
        self.pod(name, node, claim, json!({"containers": main}))
    }

    /// How many files a writer has written. An error if a write failed.
    pub fn written(&self, writer: &str) -> Result<usize> {
        let failed = self.exec(writer, ["cat", "/tmp/failed"])?;
        ensure!(failed.is_empty(), "{writer} could not write: {failed}");
        let count = self.exec(writer, ["cat", "/data/count"])?;
        count
            .trim()
            .parse()
            .with_context(|| format!("{writer} has written {count:?}"))
    }

    /// Checks the checksums of all complete files of a volume, in a Pod that has it.
    pub fn intact(&self, pod: &str) -> Result<()> {
        let checked = self.exec(pod, ["sh", "-c", "cat /data/sum-* | sha256sum -c"])?;
        let good = checked.lines().filter(|line| line.ends_with(": OK")).count();
        ensure!(good >= 6 && good == checked.lines().count(), "{pod}: {checked}");
        Ok(())
    }

    /// Waits until a writer has stopped, and checks everything it wrote.
    pub async fn stopped_and_intact(&self, writer: &str) -> Result<()> {
        self.exec(writer, ["touch", "/tmp/stop"])?;
        wait_until("the writer to stop", LIMIT, async || {
            self.exec(writer, ["test", "-e", "/tmp/stopped"])?;
            Ok(Some(()))
        })
        .await?;
        self.written(writer)?;
        self.intact(writer)
    }
}
