//! Which loop devices belonged to the cluster while tests ran: those mounted on its nodes, and those over files that
//! only its containers see.
//!
//! When a client container is killed, a loop device over one of its files loses the path, and all clusters of the
//! machine share one kernel. Only earlier mounts tell which cluster the device belongs to.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use super::super::census::Census;
use mooring_testbed::cluster::{Cluster, loop_devices_anywhere};
use mooring_testbed::namespaces::find_inits;

/// How often to read the mount tables: a test's volume whose client is killed stays mounted for longer.
const PERIOD: Duration = Duration::from_secs(3);

/// The beginning of the numbers of file systems that are on no disk, such as FUSE.
const NO_DISK: &str = "0:";

/// The kernel's number of loop devices.
const LOOP: &str = "7:";

static SEEN: Mutex<Option<(Cluster, BTreeSet<u32>)>> = Mutex::new(None);

fn seen() -> MutexGuard<'static, Option<(Cluster, BTreeSet<u32>)>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets all numbers, and starts to look.
pub(super) fn look(cluster: &Cluster) {
    static STARTED: Once = Once::new();
    *seen() = Some((cluster.clone(), BTreeSet::new()));
    STARTED.call_once(|| {
        std::thread::spawn(|| {
            loop {
                if let Some((cluster, devices)) = &mut *seen() {
                    devices.extend(now(cluster));
                    let unknown = over_files_of(cluster, devices);
                    devices.extend(unknown);
                }
                std::thread::sleep(PERIOD);
            }
        });
    });
}

/// Stops looking; returns the numbers that were seen.
pub(super) fn stop() -> BTreeSet<u32> {
    seen().take().map(|(_, devices)| devices).unwrap_or_default()
}

fn now(cluster: &Cluster) -> BTreeSet<u32> {
    // A node may be without power just now.
    let inits = find_inits(&cluster.layout).unwrap_or_default();
    let tables = inits
        .iter()
        .filter_map(|(_, init)| std::fs::read_to_string(format!("/proc/{init}/mountinfo")).ok());
    tables.flat_map(|table| in_table(&table)).collect()
}

/// The devices over files that only this cluster's processes see, besides those that are known.
fn over_files_of(cluster: &Cluster, known: &BTreeSet<u32>) -> BTreeSet<u32> {
    // Listing all processes takes longer, and mostly there is no such device.
    let devices = loop_devices_anywhere().unwrap_or_default();
    let unknown: Vec<_> = devices
        .into_iter()
        .filter(|(number, file_system)| !known.contains(number) && file_system.starts_with(NO_DISK))
        .collect();
    if unknown.is_empty() {
        return BTreeSet::new();
    }
    let shown = Census::of(cluster)
        .map(|census| census.file_systems())
        .unwrap_or_default();
    let ours = unknown
        .into_iter()
        .filter(|(_, file_system)| shown.contains(file_system));
    ours.map(|(number, _)| number).collect()
}

fn in_table(table: &str) -> Vec<u32> {
    let device = |line: &str| line.split(' ').nth(2)?.strip_prefix(LOOP)?.parse().ok();
    table.lines().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn loop_devices_are_recognized_by_their_number() {
        let table = "36 35 7:12 / /a rw shared:1 - ext4 /dev/loop12 rw\n37 35 254:0 / /b rw - xfs /dev/loop3 rw\n";
        assert_eq!(super::in_table(table), [12]);
    }
}
