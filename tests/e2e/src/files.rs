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
    /// A virtual machine beside a quiet cluster. This machine can run only one at a time.
    Machine,
}

/// One file of tests: a module of its group's test binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// The test binary.
    pub group: &'static str,
    pub name: &'static str,
    pub needs: Needs,
    /// How long it took last, in seconds, beside another cluster on two processors. The longest start first.
    pub seconds: u32,
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
        seconds,
    }
}

/// All files. A unit test keeps the list complete.
pub const FILES: &[File] = &[
    file("admission", "drop_in", Needs::Cluster, 31),
    file("admission", "generated", Needs::Cluster, 8),
    file("admission", "rules", Needs::Cluster, 10),
    file("chaos", "api", Needs::Quiet, 603),
    file("chaos", "bounds", Needs::Quiet, 47),
    file("chaos", "client_cycles", Needs::Quiet, 21),
    file("chaos", "control_plane", Needs::Quiet, 43),
    file("chaos", "full", Needs::Quiet, 61),
    file("chaos", "installation", Needs::Plain, 108),
    file("chaos", "kube_proxy", Needs::Quiet, 12),
    file("chaos", "kubelet", Needs::Quiet, 31),
    file("chaos", "lost", Needs::Quiet, 37),
    file("chaos", "mount", Needs::Quiet, 377),
    file("chaos", "mount_cycles", Needs::Quiet, 10),
    file("chaos", "pod", Needs::Quiet, 105),
    file("chaos", "provision", Needs::Quiet, 46),
    file("chaos", "rbac", Needs::Quiet, 171),
    file("chaos", "rbac_connections", Needs::Quiet, 162),
    file("chaos", "rbac_mounter", Needs::Quiet, 202),
    file("chaos", "readiness", Needs::Quiet, 86),
    file("chaos", "reboot", Needs::Plain, 11),
    file("chaos", "revive", Needs::Quiet, 93),
    file("chaos", "swap", Needs::Quiet, 60),
    file("chaos", "uninstall", Needs::Quiet, 15),
    file("chaos", "upgrade", Needs::Quiet, 106),
    file("chaos", "upgrade_controller", Needs::Quiet, 41),
    file("mount", "block", Needs::Cluster, 246),
    file("mount", "ceph", Needs::Cluster, 429),
    file("mount", "csi", Needs::Quiet, 105),
    file("mount", "glusterfs", Needs::Cluster, 67),
    file("mount", "health", Needs::Cluster, 66),
    file("mount", "hung", Needs::Cluster, 198),
    file("mount", "junk", Needs::Cluster, 13),
    file("mount", "lacking", Needs::Cluster, 24),
    file("mount", "local", Needs::Cluster, 42),
    file("mount", "s3", Needs::Cluster, 102),
    file("mount", "sanity", Needs::Cluster, 11),
    file("mount", "served", Needs::Cluster, 20),
    file("mount", "shim", Needs::Cluster, 8),
    file("mount", "sshfs", Needs::Cluster, 47),
    file("mount", "vendor", Needs::Cluster, 54),
    file("provision", "attach", Needs::Quiet, 184),
    file("provision", "backup", Needs::Cluster, 79),
    file("provision", "clone", Needs::Cluster, 16),
    file("provision", "config", Needs::Cluster, 12),
    file("provision", "conform", Needs::Cluster, 565),
    file("provision", "contract", Needs::Cluster, 25),
    file("provision", "deleted", Needs::Cluster, 39),
    file("provision", "discover", Needs::Cluster, 26),
    file("provision", "expand", Needs::Cluster, 53),
    file("provision", "grant", Needs::Cluster, 30),
    file("provision", "group", Needs::Cluster, 26),
    file("provision", "local", Needs::Cluster, 61),
    file("provision", "lost", Needs::Cluster, 39),
    file("provision", "migrate", Needs::Cluster, 25),
    file("provision", "modify", Needs::Cluster, 22),
    file("provision", "outcomes", Needs::Cluster, 51),
    file("provision", "populate", Needs::Cluster, 9),
    file("provision", "refusals", Needs::Cluster, 88),
    file("provision", "smb", Needs::Cluster, 26),
    file("provision", "snapshot", Needs::Cluster, 24),
    file("provision", "workers", Needs::Quiet, 70),
    file("scale", "bench", Needs::Plain, 214),
    file("scale", "claims", Needs::Quiet, 290),
    file("security", "boundaries", Needs::Cluster, 17),
    file("security", "config", Needs::Cluster, 33),
    file("security", "credentials", Needs::Cluster, 15),
    file("security", "mounts", Needs::Cluster, 21),
    file("security", "secrets", Needs::Cluster, 91),
    file("smoke", "cluster", Needs::Immutable, 16),
    file("smoke", "builds", Needs::Cluster, 2),
    file("vm", "ceph", Needs::Machine, 542),
    file("vm", "daemons", Needs::Machine, 365),
    file("vm", "disk", Needs::Machine, 304),
    file("vm", "nfs", Needs::Machine, 86),
    file("vm", "node", Needs::Machine, 95),
    file("vm", "silent", Needs::Machine, 185),
    file("vm", "smb", Needs::Machine, 83),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::FILES;

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
