//! What clusters leave on the machine after they were removed: nothing, or something is at fault.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::down::{is_lost, loop_devices};
use crate::layout::Layout;
use crate::{cgroup, namespaces, network, node};

/// How long processes that were just killed, and what the kernel holds for them, may take to go.
const LIMIT: Duration = Duration::from_secs(20);

/// How often to look.
const PERIOD: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub struct Before {
    /// The numbers of loop devices.
    loops: BTreeSet<u32>,
}

impl Before {
    pub fn look() -> Result<Self> {
        let all = loop_devices(Path::new("/nowhere"))?;
        Ok(Self {
            loops: all.into_iter().map(|device| device.number).collect(),
        })
    }
}

/// What is left of these clusters, which were removed, and of programs in whose environment there is `mark`. Waits a
/// moment for the kernel.
pub fn remains(layouts: &[Layout], before: &Before, mark: &str) -> Result<Vec<String>> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let left = now(layouts, before, mark)?;
        if left.is_empty() || Instant::now() > deadline {
            return Ok(left);
        }
        std::thread::sleep(PERIOD);
    }
}

fn now(layouts: &[Layout], before: &Before, mark: &str) -> Result<Vec<String>> {
    let mut left = Vec::new();
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("failed to read the mount table")?;
    for layout in layouts {
        let inits = namespaces::find_inits(layout)?;
        left.extend(inits.iter().map(|(role, pid)| format!("process {pid}, {role}")));
        let links = network::leftovers(layout, node::ALL_NODES);
        left.extend(links.iter().map(|link| format!("link {link}")));
        let rules = network::rules_of(layout);
        left.extend(rules.iter().map(|rule| format!("rule of the packet filter {rule}")));
        let groups = cgroup::folders(&layout.cgroup());
        left.extend(groups.iter().map(|group| format!("control group {}", group.display())));
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        let below = points.filter(|point| Path::new(point).starts_with(&layout.state));
        left.extend(below.map(|point| format!("mount at {point}")));
        if layout.state.exists() {
            left.push(format!("folder {}", layout.state.display()));
        }
        left.extend(lost(layout, before)?);
    }
    left.extend(processes_with(mark)?);
    left.sort();
    left.dedup();
    Ok(left)
}

/// Loop devices whose file went with a cluster. While another cluster runs, they may be that one's.
fn lost(layout: &Layout, before: &Before) -> Result<Vec<String>> {
    let of_others = namespaces::any_init()?;
    let left = loop_devices(&layout.state)?.into_iter().filter(|device| {
        let fresh = !before.loops.contains(&device.number);
        device.is_below || (fresh && !of_others && is_lost(&device.file))
    });
    Ok(left
        .map(|device| format!("loop device {} over {:?}", device.number, device.file))
        .collect())
}

/// Processes, other than this one, with this text in their environment.
fn processes_with(mark: &str) -> Result<Vec<String>> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")
        .context("failed to list processes")?
        .flatten()
    {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if pid == own || !pid.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // It may end meanwhile.
        let read = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
        let environment = read("environ");
        if environment.split(|byte| *byte == 0).any(|one| one == mark.as_bytes()) {
            let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            found.push(format!("process {pid}, {}", command.trim_end()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::{Before, processes_with, remains};
    use crate::layout::Layout;

    #[test]
    fn a_process_is_found_by_its_environment() {
        let mark = format!("MOORING_TEST_MARK=remains-{}", std::process::id());
        assert!(processes_with(&mark).unwrap().is_empty());
        let (name, value) = mark.split_once('=').unwrap();
        let mut left = Command::new("cat")
            .env(name, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The kernel says that a program was started before it shows the new environment. One that answers has it.
        left.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        left.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let found = processes_with(&mark).unwrap();
        left.kill().unwrap();
        left.wait().unwrap();
        assert_eq!(found, [format!("process {}, cat", left.id())]);
    }

    #[test]
    fn a_cluster_s_folder_is_left_until_it_is_removed() {
        let folder = std::env::temp_dir().join(format!("mooring-remains-{}", std::process::id()));
        let look = || super::now(&[Layout::of(folder.clone())], &Before::default(), "NO=SUCH").unwrap();
        std::fs::create_dir(&folder).unwrap();
        let found = look();
        std::fs::remove_dir(&folder).unwrap();
        assert!(found.contains(&format!("folder {}", folder.display())), "{found:?}");
        assert!(!look().iter().any(|left| left.starts_with("folder ")));
        assert!(remains(&[], &Before::default(), "NO=SUCH").unwrap().is_empty());
    }
}
