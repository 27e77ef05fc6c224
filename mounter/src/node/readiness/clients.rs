//! Which clients' volumes this node can mount: from what was looked at, and from who serves each.

use std::collections::BTreeMap;

use super::kernel::Kernel;
use super::{Check, FUSE, HOST_NAMESPACE, ISCSID, LOOP_DEVICES, POOL};
use crate::volume::registry::Serving;

/// Nothing, or what to do.
pub type Verdict = Result<(), String>;

/// Clients whose images mount by FUSE. Of an image that Mooring does not know, nobody knows what it needs.
const BY_FUSE: [&str; 4] = ["sshfs", "glusterfs", "s3", "block"];

/// Clients whose images mount by the kernel's own file system (what it is called, and its module), or else by FUSE.
const BY_EITHER: [(&str, &str, &str); 1] = [("cephfs", "ceph", "ceph")];

/// Clients that need loop devices beside that.
const BY_LOOP: [&str; 1] = ["block"];

/// Clients whose images take a driver of the kernel where it can be had (its module), or else FUSE and loop devices.
const BY_DRIVER: [(&str, &str); 1] = [("rbd", "rbd")];

/// Clients whose images run a daemon of which a node can have one only, and the check of whether it has one.
const BY_DAEMON: [(&str, &str); 1] = [("iscsi", ISCSID)];

/// Clients whose images need a driver of the kernel, which the kernel loads when they ask for it.
const BY_MODULE: [(&str, &str); 1] = [("iscsi", "iscsi_tcp")];

/// Clients served by the kernel that name a file system of it, and the module that has it. By any other name a volume says its
/// file system itself.
const BY_KERNEL: [(&str, &str, &str); 7] = [
    ("nfs", "nfs4", "nfsv4"),
    ("nfs4", "nfs4", "nfsv4"),
    ("smb", "cifs", "cifs"),
    ("cifs", "cifs", "cifs"),
    ("smb3", "smb3", "cifs"),
    ("ceph", "ceph", "ceph"),
    ("9p", "9p", "9p"),
];

/// Those of them that are mounted in the node's network, and so need the kubelet's namespaces.
const IN_NETWORK: [&str; 5] = ["nfs", "nfs4", "smb", "cifs", "smb3"];

/// What is published of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// Whether anything can be mounted at all.
    pub node: Verdict,
    /// By client: all that have a rule, and those that need none.
    pub clients: BTreeMap<String, Verdict>,
}

impl Readiness {
    /// Judges what was looked at.
    pub fn of(checks: &[Check], kernel: &Kernel, servings: &BTreeMap<String, Serving>) -> Self {
        let mut required = checks.iter().filter(|check| check.required);
        let node = required.try_for_each(Check::verdict);
        let judge = |(client, serving): (&String, &Serving)| {
            let verdict = node.clone().and_then(|()| judge(client, serving, checks, kernel));
            (client.clone(), verdict)
        };
        Self {
            clients: servings.iter().map(judge).collect(),
            node,
        }
    }

    /// The clients that can't be mounted, and what to do.
    pub fn unable(&self) -> BTreeMap<String, String> {
        let unable = |(client, verdict): (&String, &Verdict)| Some((client.clone(), verdict.clone().err()?));
        self.clients.iter().filter_map(unable).collect()
    }
}

fn judge(client: &str, serving: &Serving, checks: &[Check], kernel: &Kernel) -> Verdict {
    let need = |name: &str| {
        checks
            .iter()
            .filter(|check| check.name == name)
            .try_for_each(Check::verdict)
    };
    match serving {
        Serving::Pool => need(POOL),
        Serving::Local => {
            need(POOL)?;
            need(LOOP_DEVICES)?;
            // A volume has one of them.
            kernel
                .can_have("ext4", "ext4")
                .or_else(|_| kernel.can_have("xfs", "xfs"))
        }
        Serving::Host => need(HOST_NAMESPACE),
        Serving::Kernel if IN_NETWORK.contains(&client) && need(HOST_NAMESPACE).is_err() => need(HOST_NAMESPACE),
        Serving::Kernel => match BY_KERNEL.iter().find(|(name, ..)| *name == client) {
            Some((_, fs_type, module)) => kernel.can_have(fs_type, module),
            None => Ok(()),
        },
        Serving::Container(_) => {
            if let Some((_, check)) = BY_DAEMON.iter().find(|(name, _)| *name == client) {
                need(check)?;
            }
            if let Some((_, module)) = BY_MODULE.iter().find(|(name, _)| *name == client) {
                kernel.can_load(module)?;
            }
            if BY_FUSE.contains(&client) {
                need(FUSE)?;
            }
            if let Some((_, fs_type, module)) = BY_EITHER.iter().find(|(name, ..)| *name == client) {
                // FUSE is the easier to come by.
                need(FUSE).or_else(|cure| kernel.can_have(fs_type, module).map_err(|_| cure))?;
            }
            if let Some((_, module)) = BY_DRIVER.iter().find(|(name, _)| *name == client) {
                let without = need(FUSE).and_then(|()| need(LOOP_DEVICES));
                without.or_else(|cure| kernel.can_load(module).map_err(|_| cure))?;
            }
            if BY_LOOP.contains(&client) {
                need(LOOP_DEVICES)?;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Readiness, Serving};
    use crate::node::readiness::kernel::Kernel;
    use crate::node::readiness::{Check, FUSE, HOST_NAMESPACE, ISCSID, LOOP_DEVICES, POOL};

    const ALL: [&str; 6] = ["propagation", FUSE, LOOP_DEVICES, POOL, HOST_NAMESPACE, ISCSID];

    /// The clients that a node can mount if this of it is missing.
    fn able_without(missing: &[&str], kernel: &Kernel) -> Vec<String> {
        let checks = ALL.map(|name| {
            let result = if missing.contains(&name) {
                Err("do something")
            } else {
                Ok("well")
            };
            Check::new(
                name,
                name == "propagation",
                result.map(str::to_owned).map_err(str::to_owned),
            )
        });
        let container = || Serving::Container("mooring.dev/x".into());
        let servings = [
            ("block", container()),
            ("cephfs", container()),
            ("iscsi", container()),
            ("local", Serving::Local),
            ("nfs", Serving::Kernel),
            ("pool", Serving::Pool),
            ("rbd", container()),
            ("smb", Serving::Kernel),
            ("sshfs", container()),
            ("tmpfs", Serving::Kernel),
            ("vendor", container()),
            ("zfs", Serving::Host),
        ];
        let servings = servings.map(|(client, serving)| (client.to_owned(), serving)).into();
        let readiness = Readiness::of(&checks, kernel, &servings);
        let unable = readiness.unable();
        assert_eq!(unable.len() == servings.len(), readiness.node.is_err());
        servings
            .into_keys()
            .filter(|client| !unable.contains_key(client))
            .collect()
    }

    #[test]
    fn a_client_is_ready_where_what_it_is_served_by_is_there() {
        let all = [
            "block", "cephfs", "iscsi", "local", "nfs", "pool", "rbd", "smb", "sshfs", "tmpfs", "vendor", "zfs",
        ];
        let kernel = Kernel::with_modules("ext4\n", &["nfsv4", "cifs", "iscsi_tcp"]);
        assert_eq!(able_without(&[], &kernel), all);
        assert!(able_without(&["propagation"], &kernel).is_empty());
        let but = |left_out: &[&str]| -> Vec<_> { all.into_iter().filter(|name| !left_out.contains(name)).collect() };
        for (missing, unable) in [
            (FUSE, &["block", "cephfs", "rbd", "sshfs"][..]),
            (LOOP_DEVICES, &["block", "local", "rbd"]),
            (POOL, &["local", "pool"]),
            (HOST_NAMESPACE, &["nfs", "smb", "zfs"]),
            (ISCSID, &["iscsi"]),
        ] {
            assert_eq!(able_without(&[missing], &kernel), but(unable), "without {missing}");
        }
        let ceph = Kernel::with_modules("ext4\n", &["nfsv4", "cifs", "iscsi_tcp", "ceph"]);
        assert_eq!(able_without(&[FUSE], &ceph), but(&["block", "rbd", "sshfs"]));
        let rbd = Kernel::with_modules("ext4\n", &["nfsv4", "cifs", "iscsi_tcp", "rbd"]);
        assert_eq!(able_without(&[FUSE], &rbd), but(&["block", "cephfs", "sshfs"]));
        assert_eq!(
            able_without(&[], &Kernel::with_modules("xfs\n", &[])),
            but(&["iscsi", "nfs", "smb"])
        );
        assert_eq!(
            able_without(&[], &Kernel::with_modules("nfs4\ncifs\n", &[])),
            but(&["iscsi", "local"])
        );
    }
}
