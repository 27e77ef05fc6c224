//! Daemons of the node itself: those that conflict with a client container, and those that a volume needs.

use std::path::{Path, PathBuf};

use crate::node::kubelet::processes_named;
use crate::node::unix_sockets::named;

/// The socket of every iscsid, one a network: by this name iscsiadm finds it.
const ISCSID_SOCKET: &str = "@ISCSIADM_ABSTRACT_NAMESPACE";

/// The program that holds it.
const ISCSID: &str = "iscsid";

/// What the client image for iSCSI makes in its container before it starts its own.
const OF_A_CLIENT: &str = "root/run/mooring/iscsi";

/// The daemon that remembers which servers this node has NFS locks on, and the port of the one that finds it.
const STATD: &str = "rpc.statd";
const RPCBIND_PORT: u16 = 111;

/// State of a TCP socket that is listened on, in the kernel's tables.
const LISTENS: &str = "0A";

/// Whether an iscsid of the node itself conflicts with that of a client container. `node` is a process in the node's
/// network, if one is seen.
pub(super) fn iscsid(proc: &Path, node: Option<&PathBuf>) -> Result<String, String> {
    let Some(node) = node else {
        return Ok("the mounter sees no kubelet, so it does not know whether the node runs an iscsid".to_owned());
    };
    let free = Ok("the node runs no iscsid of its own".to_owned());
    let table = || std::fs::read_to_string(node.join("net/unix")).unwrap_or_default();
    let open = named(&table(), ISCSID_SOCKET);
    if open.is_empty() {
        return free;
    }
    let holders = processes_named(proc, ISCSID).unwrap_or_default();
    let is_a_client_s = |socket: &u64| {
        let mut holders = holders.iter().filter(|holder| has_socket(holder, *socket));
        holders.any(|holder| holder.join(OF_A_CLIENT).is_dir())
    };
    let foreign: Vec<_> = open.into_iter().filter(|socket| !is_a_client_s(socket)).collect();
    // That of a client container may just have started or ended.
    let there = named(&table(), ISCSID_SOCKET);
    if foreign.iter().any(|socket| there.contains(socket)) {
        return Err(
            "the node runs an iscsid of its own, and two can't hold one node's iSCSI sessions: on the node, systemctl \
             disable --now iscsid.socket iscsid.service; or have type iscsi served by host"
                .to_owned(),
        );
    }
    free
}

/// Whether the node keeps locks of NFS version 3.
pub(super) fn nfs_locks(proc: &Path, node: Option<&PathBuf>) -> Result<String, String> {
    let Some(node) = node else {
        return Ok("the mounter sees no kubelet, so it does not know whether the node runs rpc.statd".to_owned());
    };
    let network = |process: &Path| std::fs::read_link(process.join("ns/net")).ok();
    let statds = processes_named(proc, STATD).unwrap_or_default();
    let has_statd = statds.iter().any(|process| network(process) == network(node));
    // Only with that: to read these tables takes the kernel milliseconds, however few sockets there are.
    let has_rpcbind = || {
        ["net/tcp", "net/tcp6"].iter().any(|table| {
            is_listened_on(
                &std::fs::read_to_string(node.join(table)).unwrap_or_default(),
                RPCBIND_PORT,
            )
        })
    };
    let missing = match (has_statd, has_statd && has_rpcbind()) {
        (true, true) => return Ok("rpcbind and rpc.statd run, so NFS volumes of version 3 have locks".to_owned()),
        (true, false) => "rpcbind",
        (false, _) => STATD,
    };
    Err(format!(
        "the node runs no {missing}, so NFS volumes of version 3 are mounted with option nolock only: apply \
         configmaps/nfs-locks. Version 4 needs neither"
    ))
}

fn has_socket(process: &Path, inode: u64) -> bool {
    let name = format!("socket:[{inode}]");
    let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let mut open = open.filter_map(|file| std::fs::read_link(file.path()).ok());
    open.any(|file| file == Path::new(&name))
}

/// Whether a process listens on a port, by a table of TCP sockets; see `proc_net_tcp(5)`.
fn is_listened_on(table: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    table.lines().any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        matches!(fields.as_slice(), [_, local, _, state, ..] if local.ends_with(&port) && *state == LISTENS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    const TABLE: &str = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01  4711 @ISCSIADM_ABSTRACT_NAMESPACE
0000000000000000: 00000002 00000000 00010000 0001 01  4712 @ISCSIADM_ABSTRACT_NAMESPACE_2
0000000000000000: 00000002 00000000 00010000 0001 01  4713 /run/ISCSIADM_ABSTRACT_NAMESPACE
0000000000000000: 00000003 00000000 00000000 0001 03  4714
";

    #[test]
    fn an_iscsid_is_in_the_way_unless_it_is_a_client_container_s() {
        let proc = tempfile::tempdir().unwrap();
        let node = proc.path().join("7");
        create_dir_all(node.join("net")).unwrap();
        let found = || iscsid(proc.path(), Some(&node));
        assert!(found().unwrap().contains("no iscsid"));
        write(node.join("net/unix"), TABLE).unwrap();
        // Also one that systemd would start.
        assert!(found().unwrap_err().contains("systemctl disable"));

        let holder = proc.path().join("40");
        create_dir_all(holder.join("fd")).unwrap();
        write(holder.join("comm"), "iscsid\n").unwrap();
        symlink("socket:[4711]", holder.join("fd/3")).unwrap();
        assert!(found().is_err());
        create_dir_all(holder.join(OF_A_CLIENT)).unwrap();
        assert!(found().is_ok());
        // It has another one.
        std::fs::remove_file(holder.join("fd/3")).unwrap();
        symlink("socket:[4712]", holder.join("fd/3")).unwrap();
        assert!(found().is_err());
        assert!(iscsid(proc.path(), None).is_ok());
    }

    #[test]
    fn locks_of_nfs_version_3_take_rpcbind_and_rpc_statd_in_the_node_s_network() {
        let proc = tempfile::tempdir().unwrap();
        let node = proc.path().join("7");
        for folder in ["net", "ns"] {
            create_dir_all(node.join(folder)).unwrap();
        }
        symlink("net:[1]", node.join("ns/net")).unwrap();
        let found = || nfs_locks(proc.path(), Some(&node));
        let words = found().unwrap_err();
        assert!(words.contains("no rpc.statd") && words.contains("nolock"), "{words}");
        let listening = "  0: 00000000000000000000000000000000:006F 00000000:0000 0A 00000000:00000000\n";
        write(node.join("net/tcp6"), listening).unwrap();
        assert!(found().unwrap_err().contains("no rpc.statd"));

        let statd = proc.path().join("40");
        create_dir_all(statd.join("ns")).unwrap();
        write(statd.join("comm"), "rpc.statd\n").unwrap();
        symlink("net:[2]", statd.join("ns/net")).unwrap();
        assert!(found().is_err());
        std::fs::remove_file(statd.join("ns/net")).unwrap();
        symlink("net:[1]", statd.join("ns/net")).unwrap();
        assert!(found().is_ok());
        // Connected to, or another port.
        for other in [listening.replace(" 0A ", " 01 "), listening.replace(":006F", ":016F")] {
            write(node.join("net/tcp6"), other).unwrap();
            assert!(found().unwrap_err().contains("no rpcbind,"));
        }
    }
}
