//! Which loop devices were mounted on the cluster's nodes while tests ran.
//!
//! When a client container is killed, a loop device over one of its files loses the path, and all clusters of the
//! machine share one kernel. Only earlier mounts tell which cluster the device belongs to.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use mooring_testbed::cluster::Cluster;
use mooring_testbed::namespaces::find_inits;

/// How often to read the mount tables: a test's volume whose client is killed stays mounted for longer.
const PERIOD: Duration = Duration::from_secs(3);

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
