//! Whether the mounter was given the directories that this node's kubelet has: if not, it says which ones to give it.

use std::path::{Path, PathBuf};

use crate::node::args::NodeArgs;
use crate::node::kubelet::{self, Directories, clean};

/// Whether the kubelet's root is the one that the mounter was given: Pods see no mount elsewhere. `kubelets` are those
/// of this node.
pub(super) fn root(kubelets: &[PathBuf], given: &Path) -> Result<String, String> {
    let found: Vec<_> = kubelets
        .iter()
        .filter_map(|process| kubelet::directories(process))
        .collect();
    judge_root(&found, &clean(given), has_pods(given))
}

/// Whether a kubelet has Pods there, of which the mounter's own would be one.
fn has_pods(root: &Path) -> bool {
    std::fs::read_dir(root.join("pods")).is_ok_and(|mut pods| pods.next().is_some())
}

fn judge_root(found: &[Directories], given: &Path, has_pods: bool) -> Result<String, String> {
    if found.iter().any(|found| found.root == given) {
        return Ok(format!("the kubelet has {}", given.display()));
    }
    if let Some(first) = found.first() {
        return Err(format!(
            "the kubelet's root directory is {} and not {}, so no volume can be mounted: see that DaemonSet mounter \
             has no env MOORING_KUBELET_ROOT, and delete this mounter's Pod: the next one finds it",
            first.root.display(),
            given.display(),
        ));
    }
    if has_pods {
        return Ok(format!("a kubelet has its Pods in {}", given.display()));
    }
    Err(format!(
        "{} is not the kubelet's root directory: this Pod's own directory is not in it. Find out where the kubelet has \
         it (its --root-dir), and write that at env MOORING_KUBELET_ROOT of DaemonSet mounter and in variable \
         kubeletRoots of ValidatingAdmissionPolicy mooring-mounter",
        given.display(),
    ))
}

/// Whether the kubelet has the plugin directory that the mounter was given.
pub(super) fn check(kubelets: &[PathBuf], given: &NodeArgs) -> Result<String, String> {
    let found: Vec<_> = kubelets
        .iter()
        .filter_map(|process| kubelet::directories(process))
        .collect();
    compare(&found, given)
}

fn compare(found: &[Directories], given: &NodeArgs) -> Result<String, String> {
    let plugins = given.plugin_dir.as_deref().map(clean);
    let fits = |found: &Directories| plugins.as_ref().is_none_or(|plugins| found.plugins == *plugins);
    if let Some(found) = found.iter().find(|found| fits(found)) {
        return Ok(format!(
            "the kubelet has {}, and its plugins in {}",
            found.root.display(),
            found.plugins.display()
        ));
    }
    let (Some(first), Some(plugins)) = (found.first(), plugins) else {
        return Err(
            "the mounter sees no process named kubelet that shares its root with it, so it does not know where the \
             kubelet has its directories"
                .to_owned(),
        );
    };
    Err(format!(
        "the kubelet's plugin directory is {} and not {}: start the mounter without --plugin-dir, and it finds the \
         directory",
        first.plugins.display(),
        plugins.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::{compare, has_pods, judge_root};
    use crate::node::args::NodeArgs;
    use crate::node::kubelet::Directories;
    use std::path::Path;

    fn directories(root: &str, plugins: &str) -> Directories {
        Directories {
            root: root.into(),
            plugins: plugins.into(),
        }
    }

    #[test]
    fn a_root_that_is_not_the_kubelet_s_is_named_with_what_to_change() {
        let usual = Path::new("/var/lib/kubelet");
        let found = [
            directories("/data/kubelet", "/p"),
            directories("/var/lib/kubelet", "/p"),
        ];
        assert!(judge_root(&found, usual, false).is_ok());
        let words = judge_root(&found[..1], usual, true).unwrap_err();
        for word in [
            "is /data/kubelet and not /var/lib/kubelet",
            "has no env MOORING_KUBELET_ROOT",
        ] {
            assert!(words.contains(word), "{word} is not in {words}");
        }
        // One that goes by another name, whose Pod this is.
        assert!(judge_root(&[], usual, true).is_ok());
        let words = judge_root(&[], usual, false).unwrap_err();
        assert!(
            words.contains("write that at env") && words.contains("kubeletRoots") && words.len() < 1000,
            "{words}"
        );
    }

    #[test]
    fn a_kubelet_s_root_has_pods() {
        let root = tempfile::tempdir().unwrap();
        assert!(!has_pods(root.path()));
        std::fs::create_dir(root.path().join("pods")).unwrap();
        assert!(!has_pods(root.path()));
        std::fs::create_dir(root.path().join("pods/u")).unwrap();
        assert!(has_pods(root.path()));
    }

    #[test]
    fn a_mounter_that_looks_elsewhere_for_plugins_is_told_where() {
        let given = |plugin_dir: Option<&str>| NodeArgs {
            kubelet_root: None,
            plugin_dir: plugin_dir.map(Into::into),
        };
        let usual = directories("/var/lib/kubelet", "/usr/libexec/x");
        let other = directories("/var/lib/kubelet", "/var/lib/kubelet/volumeplugins");
        assert!(compare(&[other.clone(), usual], &given(Some("/usr/libexec/x"))).is_ok());
        assert!(compare(std::slice::from_ref(&other), &given(None)).is_ok());
        let words = compare(&[other], &given(Some("/usr/libexec/x"))).unwrap_err();
        assert!(words.contains("without --plugin-dir"), "{words}");
        let none = compare(&[], &given(None)).unwrap_err();
        assert!(none.contains("no process named kubelet"));
    }
}
