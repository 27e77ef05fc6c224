//! The specification of an init process, which `up` writes for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::layout::{Layout, write_file};
use crate::network::Block;

/// A process to keep running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// Its name; its log is `<name>.log`.
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<String>,
    /// A socket that must exist before it starts: without the socket, it would end and be restarted a second later.
    pub needs: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// The cluster's addresses.
    pub block: Block,
    /// The node's number, from 1.
    pub index: u8,
    /// Most nodes that there may be.
    pub nodes: u8,
    pub hostname: String,
    /// What to mount and where (folder on folder, file on file), in this order.
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// Folders that get an empty file system in memory.
    pub memory: Vec<PathBuf>,
    /// Programs to hide, so that the node is a host without storage clients.
    pub hidden: Vec<PathBuf>,
    /// What an immutable node's programs see instead of all this.
    pub root: Option<RootSpec>,
}

/// The root file system of an immutable node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootSpec {
    /// The folder with its files, read-only.
    pub folder: PathBuf,
    /// What to mount in it and where (folder on folder, file on file), in this order.
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// Folders of it that get an empty file system in memory.
    pub memory: Vec<PathBuf>,
    /// Folders that it shares with the node's other view under the same names, with all mounts there, now and later.
    pub shared: Vec<PathBuf>,
}

/// Everything that an init process needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitSpec {
    pub logs: PathBuf,
    /// The complete environment of every process.
    pub environment: BTreeMap<String, String>,
    /// Set on a node, not on the control plane.
    pub node: Option<NodeSpec>,
    /// Give its processes processors before those of all others.
    pub before_others: bool,
    /// The processes, in the order in which to start them.
    pub processes: Vec<ProcessSpec>,
}

impl InitSpec {
    fn path(layout: &Layout, role: &str) -> PathBuf {
        layout.state.join("init").join(format!("{role}.json"))
    }

    /// Writes it for `role`.
    pub fn save(&self, layout: &Layout, role: &str) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("failed to write a specification as JSON")?;
        write_file(&Self::path(layout, role), text)
    }

    /// Reads what was written for `role`.
    pub fn load(layout: &Layout, role: &str) -> Result<Self> {
        read_json(&Self::path(layout, role))
    }
}

pub fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("failed to understand {}", path.display()))
}

/// How far the heaps of the cluster's programs may grow between collections, in percent: processors are scarce here,
/// memory is not.
const COLLECT_SELDOM: &str = "400";

/// The environment of the cluster's processes, without the caller's.
pub fn environment(search_path: &str) -> BTreeMap<String, String> {
    [
        ("PATH", search_path),
        ("HOME", "/root"),
        ("LANG", "C.UTF-8"),
        ("GOGC", COLLECT_SELDOM),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}
