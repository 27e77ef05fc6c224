//! The folders that each node has of its own, over those of the machine.

use std::path::Path;

/// The plugin directory of an immutable node's kubelet.
pub(crate) const IMMUTABLE_PLUGINS: &str = "/var/lib/volumeplugins";

/// Folders that each node has of its own, so that ordinary manifests with ordinary host paths work on each node.
pub(crate) const OWN_FOLDERS: &[&str] = &[
    "/etc/cni",
    "/etc/kubernetes",
    "/usr/libexec/kubernetes",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/lib/mooring",
    IMMUTABLE_PLUGINS,
    "/var/log/containers",
    "/var/log/pods",
];

/// Folders that each node has in memory.
pub(crate) const MEMORY_FOLDERS: &[&str] = &["/run"];

/// The node's own folder that contains a path, if there is one.
pub fn folder_of_its_own(path: &Path) -> Option<&'static Path> {
    let mut folders = OWN_FOLDERS.iter().chain(MEMORY_FOLDERS).map(Path::new);
    folders.find(|folder| path.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::folder_of_its_own;
    use std::path::Path;

    #[test]
    fn a_state_folder_under_a_node_s_own_folder_is_noticed() {
        let of = |path| folder_of_its_own(Path::new(path));
        assert_eq!(of("/var/lib/mooring"), Some(Path::new("/var/lib/mooring")));
        assert_eq!(of("/run/x"), Some(Path::new("/run")));
        assert_eq!(of("/var/lib/mooring-2"), None);
    }
}
