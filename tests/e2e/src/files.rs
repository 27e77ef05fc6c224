//! The files of end-to-end tests.

/// What a file needs besides a cluster.
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
    /// The module.
    pub name: &'static str,
    /// What it needs.
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
    file("admission", "drop_in", Needs::Cluster, 50),
    file("admission", "generated", Needs::Cluster, 40),
    file("admission", "rules", Needs::Cluster, 20),
    file("chaos", "api", Needs::Quiet, 235),
    file("chaos", "bounds", Needs::Quiet, 75),
    file("chaos", "client_cycles", Needs::Quiet, 56),
    file("chaos", "control_plane", Needs::Quiet, 45),
    file("chaos", "full", Needs::Quiet, 120),
    file("chaos", "installation", Needs::Plain, 79),
    file("chaos", "kube_proxy", Needs::Quiet, 20),
    file("chaos", "kubelet", Needs::Quiet, 32),
    file("chaos", "lost", Needs::Quiet, 90),
    file("chaos", "mount", Needs::Quiet, 234),
    file("chaos", "mount_cycles", Needs::Quiet, 30),
    file("chaos", "pod", Needs::Quiet, 86),
    file("chaos", "provision", Needs::Quiet, 40),
    file("chaos", "rbac", Needs::Quiet, 180),
    file("chaos", "rbac_mounter", Needs::Quiet, 142),
    file("chaos", "readiness", Needs::Quiet, 105),
    file("chaos", "reboot", Needs::Plain, 20),
    file("chaos", "revive", Needs::Quiet, 100),
    file("chaos", "uninstall", Needs::Quiet, 40),
    file("chaos", "upgrade", Needs::Quiet, 106),
    file("mount", "block", Needs::Cluster, 82),
    file("mount", "ceph", Needs::Cluster, 93),
    file("mount", "csi", Needs::Quiet, 90),
    file("mount", "glusterfs", Needs::Cluster, 67),
    file("mount", "hung", Needs::Cluster, 176),
    file("mount", "junk", Needs::Cluster, 35),
    file("mount", "lacking", Needs::Cluster, 40),
    file("mount", "local", Needs::Cluster, 40),
    file("mount", "s3", Needs::Cluster, 73),
    file("mount", "served", Needs::Cluster, 40),
    file("mount", "shim", Needs::Cluster, 40),
    file("mount", "sshfs", Needs::Cluster, 40),
    file("mount", "vendor", Needs::Cluster, 40),
    file("provision", "clone", Needs::Cluster, 15),
    file("provision", "config", Needs::Cluster, 40),
    file("provision", "conform", Needs::Cluster, 150),
    file("provision", "contract", Needs::Cluster, 40),
    file("provision", "deleted", Needs::Cluster, 40),
    file("provision", "expand", Needs::Cluster, 60),
    file("provision", "local", Needs::Cluster, 40),
    file("provision", "lost", Needs::Cluster, 40),
    file("provision", "modify", Needs::Cluster, 35),
    file("provision", "outcomes", Needs::Cluster, 60),
    file("provision", "populate", Needs::Cluster, 25),
    file("provision", "refusals", Needs::Cluster, 100),
    file("provision", "smb", Needs::Cluster, 40),
    file("provision", "snapshot", Needs::Cluster, 30),
    file("scale", "bench", Needs::Plain, 200),
    file("scale", "claims", Needs::Quiet, 182),
    file("security", "boundaries", Needs::Cluster, 40),
    file("security", "config", Needs::Cluster, 40),
    file("security", "credentials", Needs::Cluster, 30),
    file("security", "mounts", Needs::Cluster, 40),
    file("security", "secrets", Needs::Cluster, 61),
    file("smoke", "cluster", Needs::Immutable, 20),
    file("smoke", "images", Needs::Cluster, 5),
    file("vm", "ceph", Needs::Machine, 428),
    file("vm", "daemons", Needs::Machine, 389),
    file("vm", "nfs", Needs::Machine, 95),
    file("vm", "node", Needs::Machine, 245),
    file("vm", "silent", Needs::Machine, 140),
    file("vm", "smb", Needs::Machine, 100),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::FILES;

    #[test]
    fn every_test_file_is_listed_once_and_is_a_module_of_its_group() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
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
