//! Control groups: a folder for each node's Pods, in every version 1 hierarchy, or in the one of version 2.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The machine's hierarchies.
#[derive(Debug, PartialEq, Eq)]
pub enum Hierarchies {
    /// Version 1: several, with one folder each.
    V1(Vec<PathBuf>),
    /// Version 2.
    V2(PathBuf),
}

/// Reads the hierarchies from the mount table, `/proc/self/mounts`.
pub fn hierarchies() -> Result<Hierarchies> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("failed to read the mount table")?;
    parse(&mounts).context("no control groups are mounted below /sys/fs/cgroup: the kubelet can't run without them")
}

fn parse(mounts: &str) -> Option<Hierarchies> {
    let mut v1 = Vec::new();
    let mut v2 = None;
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        match (words.next(), words.next()) {
            (Some(path), Some("cgroup")) => v1.push(PathBuf::from(path)),
            // A version 2 hierarchy in another place belongs to a version 1 machine, and has no usable controllers.
            (Some("/sys/fs/cgroup"), Some("cgroup2")) => v2 = Some(PathBuf::from("/sys/fs/cgroup")),
            _ => {}
        }
    }
    v1.sort();
    v1.dedup();
    match (v2, v1.is_empty()) {
        (Some(root), _) => Some(Hierarchies::V2(root)),
        (None, false) => Some(Hierarchies::V1(v1)),
        (None, true) => None,
    }
}

/// Makes `group` (such as `mooring-testbed/node-1`) in every hierarchy, ready for a kubelet to make groups below it.
pub fn make(group: &str) -> Result<()> {
    match hierarchies()? {
        Hierarchies::V1(roots) => {
            for root in roots {
                let mut folder = root.clone();
                for part in Path::new(group) {
                    let parent = folder.clone();
                    folder.push(part);
                    make_folder(&folder)?;
                    // A cpuset without processors accepts no process.
                    for file in ["cpuset.cpus", "cpuset.mems"] {
                        inherit(&parent.join(file), &folder.join(file))?;
                    }
                }
            }
        }
        Hierarchies::V2(root) => {
            let mut folder = root;
            for part in Path::new(group) {
                enable_controllers(&folder)?;
                folder.push(part);
                make_folder(&folder)?;
            }
            enable_controllers(&folder)?;
        }
    }
    Ok(())
}

fn make_folder(folder: &Path) -> Result<()> {
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("failed to make the control group {}", folder.display()))
        }
        _ => Ok(()),
    }
}

fn inherit(from: &Path, to: &Path) -> Result<()> {
    let Ok(value) = std::fs::read_to_string(from) else {
        return Ok(()); // not the cpuset hierarchy
    };
    if std::fs::read_to_string(to).is_ok_and(|own| own.trim().is_empty()) {
        std::fs::write(to, value.trim()).with_context(|| format!("failed to fill {}", to.display()))?;
    }
    Ok(())
}

fn enable_controllers(folder: &Path) -> Result<()> {
    let file = folder.join("cgroup.controllers");
    let available = std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
    for controller in available
        .split_whitespace()
        .filter(|name| ["cpu", "cpuset", "io", "memory", "pids", "hugetlb"].contains(name))
    {
        let file = folder.join("cgroup.subtree_control");
        std::fs::write(&file, format!("+{controller}"))
            .with_context(|| format!("failed to pass the controller {controller} on in {}", file.display()))?;
    }
    Ok(())
}

/// Removes `group` and everything below it in every hierarchy; its processes must have ended. Waits up to 10 s for the
/// kernel to release them.
pub fn remove(group: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    for folder in folders(group) {
        loop {
            remove_tree(&folder);
            if !folder.exists() {
                break;
            }
            if Instant::now() > deadline {
                bail!(
                    "the control group {} does not go: see its cgroup.procs for the processes that are still in it",
                    folder.display()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

/// The existing folders of `group`; also in a version 2 hierarchy beside those of version 1, where runc makes one.
pub fn folders(group: &str) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let path = words.next()?;
            words.next()?.starts_with("cgroup").then(|| Path::new(path).join(group))
        })
        .filter(|folder| folder.exists())
        .collect()
}

fn remove_tree(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    // The files of a control group disappear with its folder.
    let _ = std::fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::{Hierarchies, parse};
    use std::path::PathBuf;

    #[test]
    fn both_versions_are_told_apart() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(
            parse(hybrid),
            Some(Hierarchies::V1(
                ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/pids"]
                    .map(PathBuf::from)
                    .to_vec()
            ))
        );
        assert_eq!(
            parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"),
            Some(Hierarchies::V2("/sys/fs/cgroup".into()))
        );
        assert_eq!(parse("proc /proc proc rw 0 0\n"), None);
    }
}
