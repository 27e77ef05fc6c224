//! Whether the mounter was given the directories that this node's kubelet has: if not, it says which ones to give it.

use crate::args::NodeArgs;
use crate::kubelet::{self, Directories, clean};
use crate::mount_table::Table;

/// Whether the kubelet has the directories that the mounter was given.
pub(super) fn check(ours: &Table, given: &NodeArgs) -> Result<String, String> {
    let kubelets = kubelet::kubelets().unwrap_or_default();
    let on_node = |process: &&std::path::PathBuf| kubelet::shares(process, ours, &given.kubelet_root);
    let found: Vec<_> = kubelets
        .iter()
        .filter(on_node)
        .filter_map(|process| kubelet::directories(process))
        .collect();
    compare(&found, given)
}

fn compare(found: &[Directories], given: &NodeArgs) -> Result<String, String> {
    let root = clean(&given.kubelet_root);
    let plugins = given.plugin_dir.as_deref().map(clean);
    let fits =
        |found: &Directories| found.root == root && plugins.as_ref().is_none_or(|plugins| found.plugins == *plugins);
    if let Some(found) = found.iter().find(|found| fits(found)) {
        return Ok(format!(
            "the kubelet has {}, and its plugins in {}",
            found.root.display(),
            found.plugins.display()
        ));
    }
    let Some(first) = found.first() else {
        return Err(
            "no process named kubelet that shares its root with the mounter is seen, which would say where it has its \
                    directories"
                .to_owned(),
        );
    };
    let mut words = Vec::new();
    if first.root != root {
        words.push(format!(
            "the kubelet's root directory is {0} and not {1}: start the mounter with --kubelet-root={0}, and make that the path of \
             volume kubelet in its Pod",
            first.root.display(),
            root.display()
        ));
    }
    if let Some(plugins) = plugins.filter(|plugins| *plugins != first.plugins) {
        words.push(format!(
            "the kubelet's plugin directory is {} and not {}: start the mounter without --plugin-dir, and it finds it by itself",
            first.plugins.display(),
            plugins.display()
        ));
    }
    Err(words.join("; "))
}

#[cfg(test)]
mod tests {
    use super::compare;
    use crate::args::NodeArgs;
    use crate::kubelet::Directories;

    fn directories(root: &str, plugins: &str) -> Directories {
        Directories {
            root: root.into(),
            plugins: plugins.into(),
        }
    }

    #[test]
    fn a_mounter_that_looks_elsewhere_is_told_where() {
        let given = |plugin_dir: Option<&str>| NodeArgs {
            kubelet_root: "/var/lib/kubelet/".into(),
            plugin_dir: plugin_dir.map(Into::into),
        };
        let usual = directories("/var/lib/kubelet", "/usr/libexec/x");
        let other = directories("/var/lib/kubelet", "/var/lib/kubelet/volumeplugins");
        assert!(compare(&[other.clone(), usual], &given(Some("/usr/libexec/x"))).is_ok());
        assert!(compare(std::slice::from_ref(&other), &given(None)).is_ok());
        let words = compare(&[other], &given(Some("/usr/libexec/x"))).unwrap_err();
        assert!(
            words.contains("without --plugin-dir") && !words.contains("root"),
            "{words}"
        );
        let words = compare(&[directories("/data", "/data/x")], &given(Some("/y"))).unwrap_err();
        assert!(
            words.contains("--kubelet-root=/data") && words.contains("; "),
            "{words}"
        );
        assert!(
            compare(&[], &given(None))
                .unwrap_err()
                .contains("no process named kubelet")
        );
    }
}
