//! Which end-to-end files a change can affect, for `--changed`.

use std::collections::BTreeSet;

use anyhow::Result;
use mooring_e2e::File;
use mooring_testbed::command::{command, output};
use mooring_testbed::layout::repository;
use mooring_testbed::progress::say;

/// Places of changes, and the files that each can affect, by the prefixes of their names. The first match counts. A
/// place that is missing here, such as most of the docs, affects no end-to-end test. The whole suite still runs after
/// each day's work.
const REACH: &[(&str, &[&str])] = &[
    ("images/client-sshfs/", &["mount_sshfs", "chaos_revive"]),
    ("images/client-glusterfs/", &["mount_glusterfs"]),
    ("images/client-s3/", &["mount_s3"]),
    ("images/client-cephfs/", &["mount_ceph", "vm_ceph"]),
    ("images/client-block/node-disk", &["vm_disk"]),
    (
        "images/client-block/",
        &["mount_block", "mount_ceph", "vm_ceph", "vm_disk"],
    ),
    ("images/client-iscsi/", &["vm_daemons"]),
    ("images/nfs-locks/", &["vm_daemons"]),
    (
        "images/lib/run.sh",
        &["provision_local", "provision_smb", "provision_attach", "mount_"],
    ),
    ("images/lib/ssh.sh", &["mount_", "provision_attach"]),
    ("images/lib/serial.sh", &["vm_disk"]),
    ("images/lib/", &["mount_", "vm_ceph", "vm_daemons", "vm_disk"]),
    ("images/provisioner-smb/", &["provision_smb"]),
    ("images/provisioner-ceph/", &["mount_ceph"]),
    ("images/provisioner-tgt/", &["mount_block", "provision_attach"]),
    (
        "images/provisioner-local/",
        &[
            "provision_local",
            "provision_lost",
            "provision_backup",
            "provision_clone",
            "provision_group",
        ],
    ),
    ("images/provisioner-sshfs/", &["mount_sshfs"]),
    (
        "images/provisioner-base/",
        &["provision_contract", "provision_outcomes", "provision_local"],
    ),
    ("images/mounter/", &["mount_local", "mount_served", "mount_shim"]),
    // Only `cargo testbed openstack` uses them.
    ("images/openstack-", &[]),
    ("images/provisioner-openstack", &[]),
    ("tests/openstack/", &[]),
    ("tests/images/cinder-servers/", &[]),
    ("tests/images/manila-servers/", &[]),
    ("tests/images/nova/", &[]),
    ("images/", &["mount_", "provision_"]),
    (
        "configmaps/install/",
        &["admission_", "security_", "chaos_installation", "chaos_rbac", "smoke_"],
    ),
    ("configmaps/openstack-services/", &[]),
    ("configmaps/nfs-locks/", &["vm_daemons"]),
    ("configmaps/examples/cephfs", &["mount_ceph", "vm_ceph"]),
    ("configmaps/examples/glusterfs", &["mount_glusterfs"]),
    (
        "configmaps/examples/iscsi",
        &["mount_block", "provision_attach", "vm_daemons"],
    ),
    ("configmaps/examples/nfs", &["vm_node"]),
    ("configmaps/examples/rbd", &["mount_ceph", "vm_ceph"]),
    ("configmaps/examples/s3", &["mount_s3"]),
    ("configmaps/examples/smb", &["provision_smb"]),
    ("configmaps/examples/sshfs", &["provision_conform", "mount_sshfs"]),
    (
        "configmaps/",
        &["admission_drop_in", "provision_contract", "provision_local"],
    ),
    ("mounter/shim/", &["mount_shim", "mount_served", "chaos_kubelet"]),
    ("mounter/csi-proto/", &["mount_csi"]),
    (
        "mounter/src/drivers/csi",
        &["mount_csi", "mount_health", "chaos_installation"],
    ),
    ("mounter/src/recovery/revive", &["chaos_revive", "mount_sshfs"]),
    ("mounter/src/node/attachments", &["provision_attach"]),
    ("mounter/src/node/readiness", &["chaos_readiness", "mount_lacking"]),
    ("mounter/src/worker/clients/smb", &["vm_smb"]),
    ("mounter/src/worker/clients/nfs", &["vm_nfs"]),
    ("mounter/src/worker/clients/local", &["mount_local", "provision_local"]),
    (
        "mounter/",
        &["mount_", "security_mounts", "chaos_mount", "chaos_revive"],
    ),
    ("provisioner/src/operation/attach", &["provision_attach", "chaos_rbac"]),
    (
        "provisioner/src/operation/snapshot/",
        &["provision_snapshot", "provision_group", "provision_backup"],
    ),
    ("provisioner/src/cache/group", &["provision_group", "chaos_rbac"]),
    ("provisioner/src/volume/group", &["provision_group"]),
    ("provisioner/src/cache/grant", &["provision_grant", "chaos_rbac"]),
    ("provisioner/src/volume/grant", &["provision_grant"]),
    ("images/provisioner-base/pv/src/serve", &["provision_workers"]),
    ("provisioner/contract/src/worker", &["provision_workers"]),
    ("provisioner/seal/", &["provision_attach", "provision_workers"]),
    ("provisioner/src/controllers/workers", &["provision_workers"]),
    ("provisioner/src/config/lint", &[]),
    ("provisioner/src/migrate", &["provision_migrate"]),
    (
        "provisioner/src/config/storage_class",
        &["provision_", "security_config", "chaos_provision"],
    ),
    (
        "provisioner/src/config/trust",
        &["provision_", "security_config", "chaos_provision"],
    ),
    ("provisioner/src/config", &["provision_config", "security_config"]),
    (
        "provisioner/src/controllers/config.rs",
        &["provision_config", "security_config"],
    ),
    (
        "provisioner/src/controllers/config/verdict",
        &["provision_config", "security_config"],
    ),
    (
        "provisioner/src/operation/record",
        &[
            "provision_",
            "security_config",
            "chaos_provision",
            "chaos_upgrade_controller",
        ],
    ),
    ("provisioner/", &["provision_", "security_config", "chaos_provision"]),
    (
        "program/src/reasons.rs",
        &["provision_", "mount_", "chaos_", "vm_silent"],
    ),
    ("program/", &["smoke_", "mount_local", "provision_local", "chaos_rbac"]),
    ("tests/images/acme/", &["mount_vendor"]),
    ("tests/images/ceph/", &["mount_ceph", "vm_ceph"]),
    ("tests/images/opentelemetry-collector/", &[]),
    ("tests/images/samba/", &["provision_smb", "vm_smb"]),
    ("tests/images/", &["mount_", "provision_"]),
    ("tests/testbed/src/earlier.rs", &["chaos_upgrade"]),
    ("tests/openstack-trials/", &[]),
    ("tests/testbed/src/virtual_machine", &["vm_"]),
    ("tests/testbed/src/node/guest", &["vm_"]),
    ("tests/testbed/src/cluster/guest.rs", &["vm_"]),
    ("tests/testbed/", &["smoke_", "mount_local", "provision_local"]),
    (
        "tests/harness/src/guest_node.rs",
        &["vm_node", "vm_daemons", "vm_disk", "vm_silent", "vm_ceph"],
    ),
    ("tests/harness/src/bare_machine", &["vm_nfs", "vm_smb"]),
    (
        "tests/harness/",
        &["smoke_", "mount_local", "provision_local", "chaos_kube_proxy"],
    ),
    ("tests/bench/", &["scale_bench"]),
    ("tests/go/", &["smoke_", "mount_local", "provision_local"]),
    ("tests/install/", &["smoke_", "provision_config"]),
    // That file follows the page to the letter.
    ("docs/administrators.md", &["chaos_installation"]),
    // That file builds the page's example.
    ("docs/vendors.md", &["mount_vendor"]),
    ("Cargo.toml", &["smoke_", "mount_local", "provision_local"]),
    ("rust-toolchain.toml", &["smoke_", "mount_local", "provision_local"]),
    ("Cargo.lock", &["smoke_", "mount_local", "provision_local"]),
];

/// The end-to-end tests' own files.
const TESTS: &str = "tests/e2e/tests/";

/// The changes, as far as they affect end-to-end tests.
#[derive(Debug)]
pub(super) struct Changed {
    /// Prefixes of the titles of the files that they affect.
    prefixes: BTreeSet<String>,
}

impl Changed {
    /// Asks git for the changes.
    pub(super) fn look() -> Result<Self> {
        let git = |arguments: &[&str]| output(command("git", arguments).current_dir(repository()));
        let head = git(&["rev-parse", "HEAD"])?;
        // On `main` itself, the commits that have not been pushed.
        let base = ["main", "origin/main"]
            .into_iter()
            .filter_map(|branch| git(&["merge-base", "HEAD", branch]).ok())
            .find(|base| *base != head)
            .unwrap_or(head);
        let base = base.trim();
        let changed = git(&["diff", "--name-only", base])?;
        let added = git(&["ls-files", "--others", "--exclude-standard"])?;
        let paths: BTreeSet<_> = changed.lines().chain(added.lines()).collect();
        say(format!(
            "{} files were changed since {}",
            paths.len(),
            base.get(..12).unwrap_or(base)
        ));
        Ok(Self::of(paths))
    }

    fn of<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        let prefixes = paths.into_iter().flat_map(reach).collect();
        Self { prefixes }
    }

    /// Whether the changes can affect a file of tests.
    pub(super) fn touches(&self, file: &File) -> bool {
        self.prefixes.iter().any(|prefix| file.title().starts_with(prefix))
    }
}

/// The files that a change of this file can affect.
fn reach(path: &str) -> Vec<String> {
    if let Some((group, file)) = path.strip_prefix(TESTS).and_then(|rest| rest.split_once('/')) {
        let name = file.split(['.', '/']).next().unwrap_or_default();
        return vec![if name == "main" {
            format!("{group}_")
        } else {
            format!("{group}_{name}")
        }];
    }
    let reached = REACH.iter().find(|(place, _)| path.starts_with(place));
    reached.map_or_else(Vec::new, |(_, files)| {
        files.iter().map(|&file| file.to_owned()).collect()
    })
}

#[cfg(test)]
mod tests {
    use mooring_e2e::FILES;
    use mooring_testbed::layout::repository;

    use super::{Changed, REACH};

    fn titles(path: &str) -> Vec<String> {
        let changed = Changed::of([path]);
        FILES
            .iter()
            .filter(|file| changed.touches(file))
            .map(mooring_e2e::File::title)
            .collect()
    }

    /// Whether the repository has a file or folder with this prefix; a place that ends with a slash is a folder.
    fn is_there(place: &str) -> bool {
        let (folder, beginning) = place.rsplit_once('/').unwrap_or(("", place));
        let mut entries = std::fs::read_dir(repository().join(folder))
            .into_iter()
            .flatten()
            .flatten();
        entries.any(|entry| entry.file_name().to_string_lossy().starts_with(beginning))
    }

    #[test]
    fn a_change_affects_what_it_can_reach() {
        assert_eq!(titles("tests/e2e/tests/mount/s3.rs"), ["mount_s3"]);
        assert_eq!(titles("images/client-glusterfs/glusterfs"), ["mount_glusterfs"]);
        assert!(titles("mounter/src/core.rs").contains(&"mount_hung".to_owned()));
        assert!(titles("docs/nodes.md").is_empty());
        assert_eq!(titles("docs/administrators.md"), ["chaos_installation"]);
        assert!(titles("configmaps/install/mounter.yaml").contains(&"chaos_installation".to_owned()));
        assert_eq!(
            titles("tests/testbed/src/earlier.rs"),
            ["chaos_upgrade", "chaos_upgrade_controller"]
        );
        assert_eq!(titles("tests/harness/src/bare_machine/hung.rs"), ["vm_nfs", "vm_smb"]);
        for machine in [
            "virtual_machine/kernel.rs",
            "node/guest/import.rs",
            "node/guest.rs",
            "cluster/guest.rs",
        ] {
            let touched = titles(&format!("tests/testbed/src/{machine}"));
            assert!(
                touched.len() > 3 && touched.iter().all(|title| title.starts_with("vm_")),
                "{touched:?}"
            );
        }
    }

    #[test]
    fn places_and_files_exist() {
        for (place, files) in REACH {
            assert!(is_there(place), "there is nothing at {place}");
            for prefix in *files {
                assert!(
                    FILES.iter().any(|file| file.title().starts_with(prefix)),
                    "{place}: {prefix}"
                );
            }
        }
    }
}
