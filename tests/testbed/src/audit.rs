//! The API server's audit log: one line for each request, with who, what and when, but without the request's body.

use std::fs::{File, read_dir};
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Prefix of the log's files in the control plane's folder of logs.
pub const AUDIT_LOG: &str = "audit";

/// Calls `take` with each line of the log in a folder, the oldest first. The last line may be half written.
pub fn each_line(folder: &Path, mut take: impl FnMut(&str)) -> Result<()> {
    let mut files: Vec<_> = read_dir(folder)
        .with_context(|| format!("failed to list {}", folder.display()))?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(AUDIT_LOG))
        .map(|entry| entry.path())
        .collect();
    ensure!(
        !files.is_empty(),
        "the cluster's API server keeps no audit log, since it was started by an earlier testbed: take the cluster \
         down with `cargo testbed down`"
    );
    // The name of a rotated file has its time in it, and sorts before the file in use.
    files.sort();
    for path in files {
        let file = File::open(&path).with_context(|| format!("failed to open {}", path.display()))?;
        for line in BufReader::new(file).lines() {
            take(&line.with_context(|| format!("failed to read {}", path.display()))?);
        }
    }
    Ok(())
}
