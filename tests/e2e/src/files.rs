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
    file("admission", "drop_in", Needs::Cluster, 20),
    file("admission", "generated", Needs::Cluster, 5),
    file("admission", "rules", Needs::Cluster, 10),
    file("chaos", "api", Needs::Quiet, 410),
    file("chaos", "bounds", Needs::Quiet, 35),
    file("chaos", "client_cycles", Needs::Quiet, 20),
    file("chaos", "control_plane", Needs::Quiet, 45),
    file("chaos", "full", Needs::Quiet, 65),
    file("chaos", "installation", Needs::Plain, 90),
    file("chaos", "kube_proxy", Needs::Quiet, 20),
    file("chaos", "kubelet", Needs::Quiet, 30),
    file("chaos", "lost", Needs::Quiet, 45),
    file("chaos", "mount", Needs::Quiet, 280),
    file("chaos", "mount_cycles", Needs::Quiet, 10),
    file("chaos", "pod", Needs::Quiet, 85),
    file("chaos", "provision", Needs::Quiet, 50),
    file("chaos", "rbac", Needs::Quiet, 280),
    file("chaos", "rbac_connections", Needs::Quiet, 150),
    file("chaos", "rbac_mounter", Needs::Quiet, 140),
    file("chaos", "readiness", Needs::Quiet, 85),
    file("chaos", "reboot", Needs::Plain, 15),
    file("chaos", "revive", Needs::Quiet, 110),
    file("chaos", "uninstall", Needs::Quiet, 25),
    file("chaos", "upgrade", Needs::Quiet, 115),
    file("chaos", "upgrade_controller", Needs::Quiet, 40),
    file("mount", "block", Needs::Cluster, 155),
    file("mount", "ceph", Needs::Cluster, 120),
    file("mount", "csi", Needs::Quiet, 90),
    file("mount", "glusterfs", Needs::Cluster, 75),
    file("mount", "health", Needs::Cluster, 85),
    file("mount", "hung", Needs::Cluster, 175),
    file("mount", "junk", Needs::Cluster, 25),
    file("mount", "lacking", Needs::Cluster, 25),
    file("mount", "local", Needs::Cluster, 25),
    file("mount", "s3", Needs::Cluster, 145),
    file("mount", "sanity", Needs::Cluster, 10),
    file("mount", "served", Needs::Cluster, 10),
    file("mount", "shim", Needs::Cluster, 5),
    file("mount", "sshfs", Needs::Cluster, 45),
    file("mount", "vendor", Needs::Cluster, 40),
    file("provision", "attach", Needs::Quiet, 115),
    file("provision", "backup", Needs::Cluster, 75),
    file("provision", "clone", Needs::Cluster, 15),
    file("provision", "config", Needs::Cluster, 15),
    file("provision", "conform", Needs::Cluster, 385),
    file("provision", "contract", Needs::Cluster, 30),
    file("provision", "deleted", Needs::Cluster, 40),
    file("provision", "discover", Needs::Cluster, 30),
    file("provision", "expand", Needs::Cluster, 40),
    file("provision", "grant", Needs::Cluster, 25),
    file("provision", "group", Needs::Cluster, 30),
    file("provision", "local", Needs::Cluster, 55),
    file("provision", "lost", Needs::Cluster, 20),
    file("provision", "migrate", Needs::Cluster, 40),
    file("provision", "modify", Needs::Cluster, 25),
    file("provision", "outcomes", Needs::Cluster, 50),
    file("provision", "populate", Needs::Cluster, 10),
    file("provision", "refusals", Needs::Cluster, 125),
    file("provision", "smb", Needs::Cluster, 30),
    file("provision", "snapshot", Needs::Cluster, 25),
    file("provision", "workers", Needs::Quiet, 60),
    file("scale", "bench", Needs::Plain, 220),
    file("scale", "claims", Needs::Quiet, 225),
    file("security", "boundaries", Needs::Cluster, 15),
    file("security", "config", Needs::Cluster, 40),
    file("security", "credentials", Needs::Cluster, 15),
    file("security", "mounts", Needs::Cluster, 25),
    file("security", "secrets", Needs::Cluster, 60),
    file("smoke", "cluster", Needs::Immutable, 15),
    file("smoke", "builds", Needs::Cluster, 5),
    file("vm", "ceph", Needs::Machine, 500),
    file("vm", "daemons", Needs::Machine, 275),
    file("vm", "disk", Needs::Machine, 180),
    file("vm", "nfs", Needs::Machine, 80),
    file("vm", "node", Needs::Machine, 110),
    file("vm", "silent", Needs::Machine, 235),
    file("vm", "smb", Needs::Machine, 75),
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
