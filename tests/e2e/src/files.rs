//! The files of end-to-end tests.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: its tests run several at once.
    Cluster,
    /// Immutable nodes: it checks what they have. Its tests run several at once.
    Immutable,
    /// A cluster on which nothing else happens: its tests run one at a time.
    Quiet,
    /// The same on plain nodes, like those of the demo and the bench.
    Plain,
    /// The oldest Kubernetes that Mooring supports.
    Oldest,
    /// Plain nodes, once of the oldest Kubernetes that Mooring supports, and once of the newest.
    OldestAndNewest,
    /// A virtual machine beside a quiet cluster. This machine can run only one at a time.
    Machine,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// In every run of the suite. Its files prove every guarantee.
    Default,
    /// With `--all` only: virtual machines, long repetition, and whole matrices.
    All,
}

/// One file of tests: a module of its group's test binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// The test binary.
    pub group: &'static str,
    pub name: &'static str,
    pub needs: Needs,
    pub tier: Tier,
    /// How long it took last, in seconds, beside another cluster on two processors. A test that has a longer form with
    /// `--all` counts with its short one.
    pub seconds: u32,
    /// The same with `--all`. The longest start first.
    pub seconds_with_all: u32,
}

impl File {
    /// Its name on a command line: `mount_local`.
    pub fn title(&self) -> String {
        format!("{}_{}", self.group, self.name)
    }
}

const fn file(group: &'static str, name: &'static str, needs: Needs, seconds: u32) -> File {
    File {
        group,
        name,
        needs,
        tier: Tier::Default,
        seconds,
        seconds_with_all: seconds,
    }
}

/// A file with tests that have a longer form with `--all`.
const fn longer(group: &'static str, name: &'static str, needs: Needs, seconds: [u32; 2]) -> File {
    File {
        seconds_with_all: seconds[1],
        ..file(group, name, needs, seconds[0])
    }
}

const fn long(group: &'static str, name: &'static str, needs: Needs, seconds: u32) -> File {
    File {
        tier: Tier::All,
        ..file(group, name, needs, seconds)
    }
}

/// All files. A unit test keeps the list complete.
pub const FILES: &[File] = &[
    file("admission", "drop_in", Needs::Cluster, 29),
    file("admission", "generated", Needs::Cluster, 9),
    file("admission", "rules", Needs::Cluster, 10),
    longer("chaos", "api", Needs::Quiet, [179, 651]),
    long("chaos", "bounds", Needs::Quiet, 50),
    long("chaos", "client_cycles", Needs::Quiet, 21),
    file("chaos", "control_plane", Needs::Quiet, 30),
    long("chaos", "full", Needs::Quiet, 61),
    long("chaos", "kube_proxy", Needs::Quiet, 12),
    longer("chaos", "kubelet", Needs::Quiet, [47, 130]),
    file("chaos", "lost", Needs::Quiet, 36),
    file("chaos", "mount", Needs::Quiet, 80),
    long("chaos", "mount_cycles", Needs::Quiet, 10),
    long("chaos", "pod", Needs::Quiet, 205),
    file("chaos", "provision", Needs::Quiet, 52),
    long("chaos", "readiness", Needs::Quiet, 86),
    long("chaos", "reboot", Needs::Plain, 11),
    file("chaos", "revive", Needs::Quiet, 89),
    long("chaos", "settings", Needs::Quiet, 340),
    longer("chaos", "swap", Needs::Quiet, [51, 645]),
    long("chaos", "uninstall", Needs::Quiet, 15),
    long("chaos", "unrestricted", Needs::Quiet, 300),
    long("chaos", "upgrade", Needs::Quiet, 106),
    long("chaos", "upgrade_controller", Needs::Quiet, 41),
    longer("mount", "block", Needs::Cluster, [162, 322]),
    file("mount", "ceph", Needs::Cluster, 153),
    file("mount", "csi", Needs::Quiet, 121),
    file("mount", "glusterfs", Needs::Cluster, 74),
    long("mount", "health", Needs::Cluster, 55),
    file("mount", "hung", Needs::Cluster, 152),
    file("mount", "junk", Needs::Cluster, 21),
    file("mount", "lacking", Needs::Cluster, 46),
    file("mount", "local", Needs::Cluster, 44),
    file("mount", "s3", Needs::Cluster, 107),
    file("mount", "sanity", Needs::Cluster, 8),
    file("mount", "served", Needs::Cluster, 12),
    file("mount", "shim", Needs::Cluster, 6),
    file("mount", "sshfs", Needs::Cluster, 49),
    long("mount", "vendor", Needs::Cluster, 54),
    file("provision", "attach", Needs::Quiet, 128),
    file("provision", "backup", Needs::Cluster, 96),
    file("provision", "clone", Needs::Cluster, 21),
    file("provision", "config", Needs::Cluster, 13),
    longer("provision", "conform", Needs::Cluster, [155, 430]),
    file("provision", "contract", Needs::Cluster, 24),
    file("provision", "deleted", Needs::Cluster, 37),
    file("provision", "discover", Needs::Cluster, 26),
    file("provision", "expand", Needs::Cluster, 39),
    file("provision", "grant", Needs::Cluster, 29),
    file("provision", "group", Needs::Cluster, 29),
    long("provision", "kits", Needs::Cluster, 817),
    file("provision", "local", Needs::Cluster, 57),
    file("provision", "lost", Needs::Cluster, 38),
    long("provision", "migrate", Needs::Cluster, 32),
    file("provision", "modify", Needs::Cluster, 24),
    file("provision", "outcomes", Needs::Cluster, 46),
    file("provision", "populate", Needs::Cluster, 9),
    file("provision", "refusals", Needs::Cluster, 66),
    file("provision", "smb", Needs::Cluster, 29),
    file("provision", "snapshot", Needs::Cluster, 30),
    long("provision", "worker_faults", Needs::Quiet, 560),
    longer("provision", "workers", Needs::Quiet, [115, 210]),
    long("scale", "bench", Needs::Plain, 214),
    long("scale", "claims", Needs::Quiet, 290),
    file("security", "boundaries", Needs::Cluster, 30),
    long("security", "break_out", Needs::Cluster, 150),
    file("security", "config", Needs::Cluster, 28),
    file("security", "credentials", Needs::Cluster, 18),
    file("security", "mounts", Needs::Cluster, 28),
    long("security", "secrets", Needs::Cluster, 91),
    long("smoke", "install", Needs::OldestAndNewest, 330),
    long("smoke", "oldest", Needs::Oldest, 60),
    file("smoke", "cluster", Needs::Immutable, 14),
    file("smoke", "builds", Needs::Cluster, 1),
    long("smoke", "manifests", Needs::Cluster, 3),
    long("smoke", "release", Needs::Quiet, 500),
    long("vm", "ceph", Needs::Machine, 542),
    long("vm", "daemons", Needs::Machine, 365),
    long("vm", "disk", Needs::Machine, 304),
    long("vm", "nfs", Needs::Machine, 86),
    long("vm", "node", Needs::Machine, 95),
    long("vm", "silent", Needs::Machine, 185),
    long("vm", "smb", Needs::Machine, 83),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::{FILES, Tier};

    /// What the files of the default tier may take together, so that three lanes end within a quarter of an hour.
    const MOST_SECONDS: u32 = 2_700;

    #[test]
    fn the_default_tier_takes_at_most_45_minutes_of_one_lane() {
        let files = FILES.iter().filter(|file| file.tier == Tier::Default);
        let seconds: u32 = files.map(|file| file.seconds).sum();
        assert!(
            seconds <= MOST_SECONDS,
            "{seconds} s: move files to `--all`, or make them faster"
        );
    }

    #[test]
    fn every_test_file_is_listed_once_and_is_a_module_of_its_group() {
        let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("tests");
        let mut there = BTreeSet::new();
        for group in std::fs::read_dir(&folder).unwrap() {
            let group = group.unwrap().path();
            let main = std::fs::read_to_string(group.join("main.rs")).unwrap();
            for file in std::fs::read_dir(&group).unwrap() {
                let path = file.unwrap().path();
                let name = path.file_stem().unwrap().to_str().unwrap();
                if name == "main" || path.is_dir() {
                    continue;
                }
                assert!(
                    main.contains(&format!("mod {name};\n")),
                    "{} is not compiled",
                    path.display()
                );
                there.insert(format!("{}_{name}", group.file_name().unwrap().to_str().unwrap()));
            }
        }
        let listed: BTreeSet<_> = FILES.iter().map(super::File::title).collect();
        assert_eq!(listed, there);
        assert_eq!(listed.len(), FILES.len());
    }
}
