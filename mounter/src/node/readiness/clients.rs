//! Which clients' volumes this node can mount: from what was looked at, and from who serves each.

use std::collections::BTreeMap;

use mooring_contract::names::labels::FLEX_VOLUME;
use mooring_contract::volume::clients::{Need, Needs, record};

use super::check::{Check, ClientVerdict, FUSE, HOST_NAMESPACE, ISCSID, LOOP_DEVICES, PLUGIN_DIRECTORY, POOL};
use super::kernel_modules::NodeKernel;
use crate::volume::registry::Serving;

/// The kernel's file systems without a client of their own, which `self` serves as types.
const OTHER_FILE_SYSTEMS: [&str; 2] = ["ceph", "9p"];

/// What is published of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// Whether anything can be mounted at all.
    pub node: ClientVerdict,
    /// By client: all that have a rule, and those that need none. And of [`FLEX_VOLUME`].
    pub clients: BTreeMap<String, ClientVerdict>,
}

impl Readiness {
    /// Judges what was looked at.
    pub fn of(checks: &[Check], kernel: &NodeKernel, servings: &BTreeMap<String, Serving>) -> Self {
        let mut required = checks.iter().filter(|check| check.required);
        let node = required.try_for_each(Check::verdict);
        let judge = |(client, serving): (&String, &Serving)| {
            let verdict = node.clone().and_then(|()| judge(client, serving, checks, kernel));
            (client.clone(), verdict)
        };
        let flex_volume = node.clone().and_then(|()| check(PLUGIN_DIRECTORY, checks));
        let mut clients: BTreeMap<_, _> = servings.iter().map(judge).collect();
        clients.insert(FLEX_VOLUME.to_owned(), flex_volume);
        Self { node, clients }
    }

    /// The clients that can't be mounted, and what to do.
    pub fn unable(&self) -> BTreeMap<String, String> {
        let unable = |(client, verdict): (&String, &ClientVerdict)| Some((client.clone(), verdict.clone().err()?));
        self.clients.iter().filter_map(unable).collect()
    }
}

fn judge(client: &str, serving: &Serving, checks: &[Check], kernel: &NodeKernel) -> ClientVerdict {
    let has = |need: &Need| is_there(need, checks, kernel);
    let record = record(client, "");
    match (serving, record) {
        (Serving::Host, _) => has(&Need::HostNamespace),
        (Serving::Kernel | Serving::Local | Serving::Pool, Some(record)) => all_of(record.kernel_needs, has),
        (Serving::Container(_), Some(record)) => all_of(record.image_needs, has),
        (Serving::Kernel, None) if OTHER_FILE_SYSTEMS.contains(&client) => kernel.can_have(client, client),
        // Nobody knows beforehand which file system a volume names, or what a vendor's image needs.
        (_, None) => Ok(()),
    }
}

/// `None` if each line has one alternative that exists; else how to get the first one that is missing.
fn all_of(needs: Needs, has: impl Fn(&Need) -> ClientVerdict) -> ClientVerdict {
    needs.iter().try_for_each(|alternatives| {
        let verdicts: Vec<_> = alternatives.iter().map(&has).collect();
        if verdicts.iter().any(ClientVerdict::is_ok) {
            return Ok(());
        }
        verdicts.into_iter().next().unwrap_or(Ok(()))
    })
}

fn check(name: &str, checks: &[Check]) -> ClientVerdict {
    let named = checks.iter().find(|check| check.name == name);
    named.map_or(Ok(()), Check::verdict)
}

fn is_there(need: &Need, checks: &[Check], kernel: &NodeKernel) -> ClientVerdict {
    let check = |name: &str| check(name, checks);
    match *need {
        Need::Pool => check(POOL),
        Need::LoopDevices => check(LOOP_DEVICES),
        Need::Fuse => check(FUSE),
        Need::HostNamespace => check(HOST_NAMESPACE),
        Need::NoIscsid => check(ISCSID),
        Need::FileSystem { name, module } => kernel.can_have(name, module),
        Need::Module(module) => kernel.can_load(module),
    }
}

#[cfg(test)]
mod tests {
    use super::{Readiness, Serving};
    use crate::node::readiness::check::{Check, FUSE, HOST_NAMESPACE, ISCSID, LOOP_DEVICES, PLUGIN_DIRECTORY, POOL};
    use crate::node::readiness::kernel_modules::NodeKernel;

    const ALL: [&str; 7] = [
        "propagation",
        PLUGIN_DIRECTORY,
        FUSE,
        LOOP_DEVICES,
        POOL,
        HOST_NAMESPACE,
        ISCSID,
    ];

    /// The clients that a node can mount if this of it is missing.
    fn able_without(missing: &[&str], kernel: &NodeKernel) -> Vec<String> {
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
        assert_eq!(unable.len() == readiness.clients.len(), readiness.node.is_err());
        readiness
            .clients
            .into_keys()
            .filter(|client| !unable.contains_key(client))
            .collect()
    }

    #[test]
    fn a_client_is_ready_where_what_it_is_served_by_is_there() {
        let all = [
            "FlexVolume",
            "block",
            "cephfs",
            "iscsi",
            "local",
            "nfs",
            "pool",
            "rbd",
            "smb",
            "sshfs",
            "tmpfs",
            "vendor",
            "zfs",
        ];
        let kernel = NodeKernel::with_modules("ext4\n", &["nfsv4", "cifs", "iscsi_tcp"]);
        assert_eq!(able_without(&[], &kernel), all);
        assert!(able_without(&["propagation"], &kernel).is_empty());
        let but = |left_out: &[&str]| -> Vec<_> { all.into_iter().filter(|name| !left_out.contains(name)).collect() };
        for (missing, unable) in [
            (PLUGIN_DIRECTORY, &["FlexVolume"][..]),
            (FUSE, &["block", "cephfs", "rbd", "sshfs"]),
            (LOOP_DEVICES, &["block", "local", "rbd"]),
            (POOL, &["local", "pool"]),
            (HOST_NAMESPACE, &["nfs", "smb", "zfs"]),
            (ISCSID, &["iscsi"]),
        ] {
            assert_eq!(able_without(&[missing], &kernel), but(unable), "without {missing}");
        }
        let ceph = NodeKernel::with_modules("ext4\n", &["nfsv4", "cifs", "iscsi_tcp", "ceph"]);
        assert_eq!(able_without(&[FUSE], &ceph), but(&["block", "rbd", "sshfs"]));
        let rbd = NodeKernel::with_modules("ext4\n", &["nfsv4", "cifs", "iscsi_tcp", "rbd"]);
        assert_eq!(able_without(&[FUSE], &rbd), but(&["block", "cephfs", "sshfs"]));
        assert_eq!(
            able_without(&[], &NodeKernel::with_modules("xfs\n", &[])),
            but(&["iscsi", "nfs", "smb"])
        );
        assert_eq!(
            able_without(&[], &NodeKernel::with_modules("nfs4\ncifs\n", &[])),
            but(&["iscsi", "local"])
        );
    }
}
