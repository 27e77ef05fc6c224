//! A node as seen from outside: its folders, its certificates, its link, its init process.

mod config;
pub mod guest;
mod numbering;
mod root;

pub use config::{CONTAINERD_SOCKET, PAUSE_IMAGE, REGISTRIES};
pub use numbering::{ALL_NODES, MACHINE, MAX_NODES, name, zone};
pub use root::programs as programs_of_an_immutable;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sched::CloneFlags;
use serde::{Deserialize, Serialize};

use crate::binaries::Binaries;
use crate::command::find_program;
use crate::layout::{Layout, MADE_FOLDERS, make_folder, write_file};
use crate::namespaces::{Waiting, start_init};
use crate::network::{Block, connect_node};
use crate::node_folders::{IMMUTABLE_PLUGINS, MEMORY_FOLDERS, OWN_FOLDERS};
use crate::pki::Authority;
use crate::spec::{InitSpec, NodeSpec, ProcessSpec, RootSpec, environment};
use crate::{cgroup, namespaces, progress};

/// The kind of host that a node is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Flavour {
    /// The machine's own file system, without storage clients.
    #[default]
    Plain,
    /// A read-only root that contains only what runs containers: no shell, no mount helper.
    Immutable,
}

impl Flavour {
    /// The kubelet's plugin directory. On an immutable node, no Pod of the installation has a host path to it.
    pub fn plugin_dir(self) -> &'static str {
        match self {
            Self::Plain => "/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
            Self::Immutable => IMMUTABLE_PLUGINS,
        }
    }
}

/// Storage clients that a node must not have: Mooring promises to work without any.
const HIDDEN_PROGRAMS: &[&str] = &[
    "ceph-fuse",
    "cryptsetup",
    "glusterfs",
    "iscsiadm",
    "mount.ceph",
    "mount.cifs",
    "mount.fuse.sshfs",
    "mount.glusterfs",
    "mount.nfs",
    "mount.nfs4",
    "mount.sshfs",
    "qemu-storage-daemon",
    "rbd",
    "rclone",
    "s3fs",
    "sshfs",
];

/// The control group of a node's Pods.
pub fn cgroup_of(layout: &Layout, index: u8) -> String {
    format!("{}/{}", layout.cgroup(), name(index))
}

/// Makes a node and starts it; it is not ready yet.
pub fn start(
    layout: &Layout,
    binaries: &Binaries,
    authority: &Authority,
    block: Block,
    index: u8,
    flavour: Flavour,
) -> Result<()> {
    let node = name(index);
    cgroup::make(&cgroup_of(layout, index)).with_context(|| format!("failed to make the control groups of {node}"))?;
    make_mount_points()?;
    write_files(
        layout,
        binaries,
        authority,
        block,
        index,
        &cgroup_of(layout, index),
        flavour,
    )?;
    let root = match flavour {
        Flavour::Plain => None,
        Flavour::Immutable => Some(root_of(layout, binaries, &node)?),
    };
    let search_path = match flavour {
        Flavour::Plain => binaries.search_path(),
        Flavour::Immutable => "/usr/sbin:/usr/bin".to_owned(),
    };
    let spec = InitSpec {
        logs: layout.logs(&node),
        environment: environment(&search_path),
        node: Some(NodeSpec {
            block,
            index,
            nodes: ALL_NODES,
            hostname: node.clone(),
            binds: binds(layout, &node),
            memory: MEMORY_FOLDERS.iter().map(PathBuf::from).collect(),
            hidden: hidden_programs(),
            root,
        }),
        before_others: false,
        processes: processes(binaries, block, index, flavour),
    };
    spec.save(layout, &node)?;
    let waiting: Waiting = start_init(
        layout,
        &node,
        CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWIPC,
    )?;
    connect_node(layout, block, index, waiting.pid)?;
    waiting.go()
}

/// Lets a node pull from a registry whose certificate is of the cluster's own authority.
pub fn trust_registry(layout: &Layout, node: &str, host: &str) -> Result<()> {
    let folder = own(layout, node, REGISTRIES).join(host);
    write_file(&folder.join("hosts.toml"), config::registry(host))
}

/// Makes mount points that the machine lacks, and records them so that `down` removes them.
fn make_mount_points() -> Result<()> {
    let mut missing = Vec::new();
    for folder in OWN_FOLDERS.iter().chain(MEMORY_FOLDERS) {
        let ancestors: Vec<_> = Path::new(folder)
            .ancestors()
            .take_while(|path| !path.exists())
            .collect();
        missing.extend(ancestors.into_iter().rev().map(Path::to_owned));
    }
    if missing.is_empty() {
        return Ok(());
    }
    let mut list = std::fs::read_to_string(MADE_FOLDERS).unwrap_or_default();
    for folder in &missing {
        list.push_str(&folder.to_string_lossy());
        list.push('\n');
    }
    // Recorded first: after a crash in between, a record without a folder does less harm than a folder without a
    // record.
    write_file(Path::new(MADE_FOLDERS), list)?;
    missing.iter().try_for_each(|folder| make_folder(folder))
}

/// Removes the folders that [`start`] made on the machine, if they are empty, unless another cluster has nodes on them:
/// removing a folder also removes what is mounted on it, in any namespace.
pub fn remove_mount_points() -> Result<()> {
    if namespaces::any_init()? {
        return Ok(());
    }
    let list = std::fs::read_to_string(MADE_FOLDERS).unwrap_or_default();
    for folder in list.lines().rev() {
        if let Err(error) = std::fs::remove_dir(folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            progress::note(format!("left {folder}, which the testbed made: {error}"));
        }
    }
    // None was made, or they are gone now.
    let _ = std::fs::remove_file(MADE_FOLDERS);
    Ok(())
}

fn own(layout: &Layout, node: &str, path: &str) -> PathBuf {
    layout.node(node).join(path.trim_start_matches('/'))
}

fn binds(layout: &Layout, node: &str) -> Vec<(PathBuf, PathBuf)> {
    OWN_FOLDERS
        .iter()
        .chain(&["/etc/hosts", "/etc/resolv.conf"])
        // The machine's may be a link into a folder that the node does not have.
        .filter_map(|path| Some((own(layout, node, path), std::fs::canonicalize(path).ok()?)))
        .filter(|(_, target)| !MEMORY_FOLDERS.iter().any(|memory| target.starts_with(memory)))
        .collect()
}

/// An immutable node's root, and the folders that it can write to.
fn root_of(layout: &Layout, binaries: &Binaries, node: &str) -> Result<RootSpec> {
    let own_file = |path: &str| (own(layout, node, path), PathBuf::from(path));
    let binds = [own_file("/var"), own_file("/etc/hosts"), own_file("/etc/resolv.conf")];
    let in_var = own(layout, node, "/var");
    make_folder(&in_var.join("tmp"))?;
    let in_root = |path: &&&str| !path.starts_with("/usr/");
    let shared = ["/proc", "/sys", "/dev"];
    Ok(RootSpec {
        folder: root::make(layout, binaries)?,
        binds: binds.into_iter().chain(root::modules()).collect(),
        memory: vec!["/tmp".into()],
        shared: shared
            .iter()
            .chain(MEMORY_FOLDERS)
            .chain(OWN_FOLDERS.iter().filter(in_root))
            .map(PathBuf::from)
            .collect(),
    })
}

fn hidden_programs() -> Vec<PathBuf> {
    let mut found: Vec<_> = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
        .iter()
        .flat_map(|folder| {
            HIDDEN_PROGRAMS
                .iter()
                .map(move |program| Path::new(folder).join(program))
        })
        // Links (/bin, mount.nfs4) lead to programs that are hidden under their own names.
        .filter_map(|path| std::fs::canonicalize(path).ok())
        .collect();
    found.sort();
    found.dedup();
    found
}

fn write_files(
    layout: &Layout,
    binaries: &Binaries,
    authority: &Authority,
    block: Block,
    index: u8,
    cgroup: &str,
    flavour: Flavour,
) -> Result<()> {
    let node = name(index);
    for folder in OWN_FOLDERS {
        make_folder(&own(layout, &node, folder))?;
    }
    let put = |path: &str, content: String| write_file(&own(layout, &node, path), content);
    let json = |value: &serde_json::Value| format!("{value:#}\n");
    let (runc, plugins) = match flavour {
        Flavour::Plain => (find_program("runc").unwrap_or_else(|| binaries.path("runc")), None),
        Flavour::Immutable => (root::program("runc"), Some(flavour.plugin_dir())),
    };
    put(config::CONTAINERD_FILE, config::containerd(&runc))?;
    put(config::CNI_FILE, json(&config::cni(block, index)))?;
    put(
        config::KUBELET_FILE,
        json(&config::kubelet(block, cgroup, plugins, binaries.releases.nodes)),
    )?;
    put(config::PROXY_FILE, json(&config::proxy(block, &node)))?;
    put("/etc/hosts", config::hosts(block, ALL_NODES))?;
    put("/etc/resolv.conf", String::new())?;
    put(
        config::CA_FILE,
        std::fs::read_to_string(authority.certificate()).context("failed to read the authority")?,
    )?;

    let serving = authority.server(&format!("{node}-kubelet"), &[&node], &[block.node(index)])?;
    for (from, to) in [
        (&serving.certificate, config::KUBELET_CERTIFICATE),
        (&serving.key, config::KUBELET_KEY),
    ] {
        let to = own(layout, &node, to);
        std::fs::copy(from, &to).with_context(|| format!("failed to copy {} to {}", from.display(), to.display()))?;
    }
    let kubelet = authority.client(&node, &format!("system:node:{node}"), Some("system:nodes"))?;
    authority.kubeconfig(
        &own(layout, &node, config::KUBELET_KUBECONFIG),
        &block.api_server(),
        &kubelet,
    )?;
    let proxy = authority.client(&format!("{node}-kube-proxy"), "system:kube-proxy", None)?;
    authority.kubeconfig(
        &own(layout, &node, config::PROXY_KUBECONFIG),
        &block.api_server(),
        &proxy,
    )
}

fn processes(binaries: &Binaries, block: Block, index: u8, flavour: Flavour) -> Vec<ProcessSpec> {
    let process = |name: &str, args: Vec<String>| ProcessSpec {
        name: name.to_owned(),
        program: match flavour {
            Flavour::Plain => binaries.path(name),
            Flavour::Immutable => root::program(name),
        },
        args,
        needs: (name == "kubelet").then(|| CONTAINERD_SOCKET.into()),
    };
    vec![
        process("containerd", vec![format!("--config={}", config::CONTAINERD_FILE)]),
        process(
            "kubelet",
            vec![
                format!("--config={}", config::KUBELET_FILE),
                format!("--kubeconfig={}", config::KUBELET_KUBECONFIG),
                format!("--hostname-override={}", name(index)),
                format!("--node-ip={}", block.node(index)),
                // The API server copies these labels to each Pod of the node (PodTopologyLabels), as in any cloud.
                format!(
                    "--node-labels=topology.kubernetes.io/region=testbed,topology.kubernetes.io/zone={}",
                    zone(index)
                ),
                "--v=2".into(),
            ],
        ),
        process("kube-proxy", vec![format!("--config={}", config::PROXY_FILE)]),
    ]
}
