//! `cargo testbed logs`: the logs of the testbed's own processes by name, and those of Pods.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::cluster;
use crate::command::{last_lines, output};
use crate::layout::Layout;
use crate::progress::say;

/// Prints the last `lines` lines of a log, or lists the logs.
pub fn show(layout: &Layout, name: Option<&str>, lines: usize) -> Result<()> {
    let files = files(layout);
    let Some(name) = name else {
        say("Of the testbed:");
        for (name, path) in &files {
            say(format!("  {name}  {}", path.display()));
        }
        say("Of a Pod, in whichever namespace: cargo testbed logs POD");
        return Ok(());
    };
    let matching: Vec<_> = files.iter().filter(|(file, _)| matches(file, name)).collect();
    match matching.as_slice() {
        [] => pod(layout, name, lines),
        [(_, path)] => {
            let content = std::fs::read(path)?;
            say(last_lines(&String::from_utf8_lossy(&content), lines));
            Ok(())
        }
        several => {
            let names: Vec<_> = several.iter().map(|(name, _)| name.as_str()).collect();
            bail!("{name:?} is the log of several: say which of {}", names.join(", "))
        }
    }
}

/// `kubelet` and `node-1/kubelet` both name the kubelet of node-1.
fn matches(file: &str, name: &str) -> bool {
    file == name || file.split('/').next_back() == Some(name)
}

fn files(layout: &Layout) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for role in std::fs::read_dir(layout.logs("")).into_iter().flatten().flatten() {
        for log in std::fs::read_dir(role.path()).into_iter().flatten().flatten() {
            let path = log.path();
            if let (Some(role), Some(name)) = (
                role.file_name().to_str(),
                path.file_stem().and_then(|name| name.to_str()),
            ) {
                found.push((format!("{role}/{name}"), path));
            }
        }
    }
    found.sort();
    found
}

fn pod(layout: &Layout, name: &str, lines: usize) -> Result<()> {
    let cluster = cluster::connect(layout)?;
    let selector = format!("--field-selector=metadata.name={name}");
    let path = "jsonpath={range .items[*]}{.metadata.namespace}{\"\\n\"}{end}";
    let found = output(&mut cluster.kubectl(["get", "pods", "--all-namespaces", &selector, "-o", path]))?;
    let Some(namespace) = found.lines().next() else {
        bail!(
            "nothing of the testbed and no Pod is called {name:?}: `cargo testbed logs` lists the former, `cargo \
             testbed kubectl get pods -A` the latter"
        );
    };
    let tail = format!("--tail={lines}");
    let args = ["-n", namespace, "logs", name, "--all-containers", "--prefix", &tail];
    say(output(&mut cluster.kubectl(args))?.trim_end());
    Ok(())
}
