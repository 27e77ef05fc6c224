//! The kubelets that `/proc` shows: which of them are this node's, and where their directories are according to their
//! command lines and configuration.

use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};

use crate::volume::mount_table::Table;

/// The kubelet's own defaults.
pub(crate) const ROOT: &str = "/var/lib/kubelet";
pub(crate) const PLUGINS: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";

/// Where kubelets have their root: most, those of k0s, `MicroK8s`, IBM Cloud and TKGI. The admission policy
/// mooring-mounter (configmaps/install/admission.yaml) lets client Pods have these.
pub(crate) const KNOWN_ROOTS: [&str; 5] = [
    ROOT,
    "/var/lib/k0s/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
    "/var/data/kubelet",
    "/var/vcap/data/kubelet",
];

/// Process 1, which is the node's own if the mounter sees the node's processes.
pub(crate) const FIRST: &str = "/proc/1";

/// The plugin directory in a kubelet's configuration.
const PLUGINS_KEY: &str = "volumePluginDir";

/// Directories of one kubelet, by the names that it has for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directories {
    pub(crate) root: PathBuf,
    /// Where it looks for `FlexVolume` drivers.
    pub(crate) plugins: PathBuf,
}

/// The processes named kubelet, by their folders in `/proc`. Anybody's may have that name: see [`shares`].
pub(crate) fn kubelets() -> io::Result<Vec<PathBuf>> {
    processes_named(Path::new("/proc"), "kubelet")
}

/// The processes of a name, by their folders in `/proc`.
pub(crate) fn processes_named(proc: &Path, name: &str) -> io::Result<Vec<PathBuf>> {
    let is_it = |process: &PathBuf| std::fs::read_to_string(process.join("comm")).is_ok_and(|comm| comm.trim() == name);
    // Much of what is there is no process, and this is read at each look at readiness.
    let is_number = |entry: &DirEntry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let processes = std::fs::read_dir(proc)?.flatten().filter(is_number);
    Ok(processes.map(|process| process.path()).filter(is_it).collect())
}

/// The kubelets of this node: those that have `root` in a mount of the same peer group as we have.
pub(crate) fn kubelets_of(ours: &Table, root: &Path) -> Vec<PathBuf> {
    let all = kubelets().unwrap_or_default().into_iter();
    all.filter(|process| shares(process, ours, root)).collect()
}

/// A process in the namespaces of the kubelet that has `root` in a mount of the same peer group as we have: the kubelet
/// itself, or where no process has that name, since k3s and `MicroK8s` run it within a program of theirs, process 1 of
/// the node. `proc` is `/proc`.
pub(crate) fn beside(proc: &Path, ours: &Table, root: &Path) -> io::Result<Option<PathBuf>> {
    let named = processes_named(proc, "kubelet")?.into_iter();
    // Without the node's processes, process 1 is this one or another of this container.
    let first = (std::process::id() != 1).then(|| proc.join("1"));
    Ok(named.chain(first).find(|process| shares(process, ours, root)))
}

/// Whether a process is in the mount namespace of the node, or in one that the node trusts as much: it has a path in a
/// mount of the same peer group as we have. That is what `Bidirectional` propagation means, and only privileged
/// containers get it. Process 1 that is seen need not be the node's own, and of several kubelets some may be a tenant's
/// process of that name.
pub(crate) fn shares(process: &Path, ours: &Table, path: &Path) -> bool {
    // It may end meanwhile.
    let theirs = std::fs::read(process.join("mountinfo")).and_then(|theirs| Table::try_parse(&theirs));
    theirs.is_ok_and(|theirs| same_group(ours, &theirs, path))
}

/// Whether process 1 is the node's own, by [`shares`]: not if this Pod has a process namespace of its own.
pub(crate) fn first_shares(ours: &Table, path: &Path) -> bool {
    std::process::id() != 1 && shares(Path::new(FIRST), ours, path)
}

/// Whether both tables have the path in mounts of the same peer group.
fn same_group(ours: &Table, theirs: &Table, path: &Path) -> bool {
    let group = |table: &Table| table.holding(path).and_then(|entry| entry.shared);
    group(ours).is_some() && group(ours) == group(theirs)
}

/// The directories of a kubelet, unless it ends meanwhile.
pub(crate) fn directories(process: &Path) -> Option<Directories> {
    let line = std::fs::read(process.join("cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line);
    let args: Vec<&str> = line.split('\0').collect();
    let files = flag(&args, "config").map(|file| seen_through(process, file));
    let drop_ins = flag(&args, "config-dir").map(|folder| drop_ins(&seen_through(process, folder)));
    // What comes later counts, and the command line before all.
    let configured = files
        .into_iter()
        .chain(drop_ins.into_iter().flatten())
        .filter_map(|file| plugins_in(&std::fs::read_to_string(file).ok()?))
        .next_back();
    let plugins = flag(&args, "volume-plugin-dir").map(str::to_owned).or(configured);
    Some(Directories {
        root: clean(flag(&args, "root-dir").unwrap_or(ROOT).as_ref()),
        plugins: clean(plugins.as_deref().unwrap_or(PLUGINS).as_ref()),
    })
}

/// The value of a flag, `--flag=value` or `--flag value`; of several the last.
fn flag<'a>(args: &[&'a str], name: &str) -> Option<&'a str> {
    let value = |at: usize| {
        let rest = args[at].strip_prefix("--")?.strip_prefix(name)?;
        rest.strip_prefix('=')
            .or_else(|| rest.is_empty().then(|| args.get(at + 1).copied()).flatten())
    };
    (0..args.len()).rev().find_map(value).filter(|value| !value.is_empty())
}

/// A file of a process, by the name that it knows it by.
fn seen_through(process: &Path, file: &str) -> PathBuf {
    match file.strip_prefix('/') {
        Some(absolute) => process.join("root").join(absolute),
        None => process.join("cwd").join(file),
    }
}

/// The kubelet reads those that end in `.conf`, in the order of their names.
fn drop_ins(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "conf"))
        .collect();
    files.sort();
    files
}

/// The plugin directory in a configuration file, YAML or JSON, if it has one.
fn plugins_in(text: &str) -> Option<String> {
    let value = |line: &str| {
        // As one of the file's own keys: not indented, but in JSON.
        let at = line.find(PLUGINS_KEY)?;
        let is_key = line[..at].is_empty() || line[..at].ends_with('"');
        let rest = line[at + PLUGINS_KEY.len()..].trim_start_matches(['"', ' ']);
        let rest = rest.strip_prefix(':').filter(|_| is_key)?.trim();
        let value = match rest.chars().next()? {
            quote @ ('"' | '\'') => rest[1..].split(quote).next()?,
            _ => rest.split(" #").next()?.trim(),
        };
        (!value.is_empty()).then(|| value.to_owned())
    };
    text.lines().find_map(value)
}

/// Without a slash at the end, or two in a row.
pub(crate) fn clean(path: &Path) -> PathBuf {
    path.components().collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Directories, KNOWN_ROOTS, directories as of, flag, plugins_in, same_group};
    use crate::volume::mount_table::Table;

    fn has(root: &str, plugins: &str) -> Directories {
        Directories {
            root: root.into(),
            plugins: plugins.into(),
        }
    }

    #[test]
    fn a_kubelet_s_directories_are_found_by_its_command_line_and_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let process = folder.path();
        let write = |file: &str, text: &str| {
            let file = process.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        assert_eq!(of(process), None);
        write("cmdline", "/usr/bin/kubelet\0");
        let usual = has(
            "/var/lib/kubelet",
            "/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
        );
        assert_eq!(of(process), Some(usual));

        write(
            "cmdline",
            "kubelet\0--config=/etc/kubelet.yaml\0--config-dir\0/etc/kubelet.d\0--root-dir\0/data/kubelet/\0",
        );
        write(
            "root/etc/kubelet.yaml",
            "kind: KubeletConfiguration\nvolumePluginDir: /one\n",
        );
        assert_eq!(of(process), Some(has("/data/kubelet", "/one")));
        write("root/etc/kubelet.d/10.conf", "volumePluginDir: /two\n");
        write("root/etc/kubelet.d/20.conf", "{\"maxPods\": 9}\n");
        write("root/etc/kubelet.d/30.yaml", "volumePluginDir: /not-read\n");
        assert_eq!(of(process), Some(has("/data/kubelet", "/two")));

        write(
            "cmdline",
            "kubelet\0--config=kubelet.json\0--volume-plugin-dir=/three//x\0",
        );
        write("cwd/kubelet.json", "{\"volumePluginDir\":\"/four\"}");
        assert_eq!(of(process), Some(has("/var/lib/kubelet", "/three/x")));
    }

    #[test]
    fn client_pods_may_have_every_root_that_is_known() {
        let manifest = include_str!("../../../configmaps/install/admission.yaml");
        let (_, list) = manifest.split_once("- name: kubeletRoots").unwrap();
        let (list, _) = list.split_once(']').unwrap();
        let listed: Vec<_> = list.split('\'').skip(1).step_by(2).collect();
        assert_eq!(listed, KNOWN_ROOTS);
    }

    #[test]
    fn a_key_and_a_flag_are_read_however_they_are_written() {
        for text in [
            "volumePluginDir: /a\n",
            "maxPods: 9\nvolumePluginDir: \"/a\"  # not the usual one\n",
            "volumePluginDir: '/a'",
            "volumePluginDir: /a # not the usual one",
            "{\"maxPods\":9,\"volumePluginDir\":\"/a\",\"kind\":\"KubeletConfiguration\"}",
            "{\n  \"volumePluginDir\": \"/a\",\n}",
        ] {
            assert_eq!(plugins_in(text).as_deref(), Some("/a"), "{text}");
        }
        for text in [
            "",
            "volumePluginDir:\n",
            "# volumePluginDir: /a",
            "nested:\n  volumePluginDir: /a",
        ] {
            assert_eq!(plugins_in(text), None, "{text}");
        }
        assert_eq!(flag(&["kubelet", "--root-dir-x=/a", "--root-dir"], "root-dir"), None);
        assert_eq!(flag(&["--root-dir=/a", "--root-dir=/b"], "root-dir"), Some("/b"));
    }

    #[test]
    fn where_no_process_is_named_kubelet_the_node_s_first_is_as_good_if_it_is_the_node_s() {
        let proc = tempfile::tempdir().unwrap();
        let process = |pid: &str, comm: &str, group: u32| {
            let folder = proc.path().join(pid);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
            let table = format!("1 0 8:1 / / rw shared:{group} - ext4 /dev/root rw\n");
            std::fs::write(folder.join("mountinfo"), table).unwrap();
        };
        let ours = Table::parse(b"9 1 8:1 /var/lib/kubelet /var/lib/kubelet rw shared:5 - ext4 /dev/root rw\n");
        let found = || super::beside(proc.path(), &ours, Path::new("/var/lib/kubelet/pods/u")).unwrap();
        process("1", "systemd", 6);
        process("40", "k3s-server", 5);
        assert_eq!(found(), None);
        process("1", "systemd", 5);
        assert_eq!(found(), Some(proc.path().join("1")));
        // A tenant's of that name.
        process("50", "kubelet", 7);
        assert_eq!(found(), Some(proc.path().join("1")));
        process("60", "kubelet", 5);
        assert_eq!(found(), Some(proc.path().join("60")));
    }

    #[test]
    fn the_kubelet_is_known_by_the_peer_group_of_its_root() {
        let table = |text: &str| Table::parse(text.as_bytes());
        let ours = table("9 1 8:1 /var/lib/kubelet /var/lib/kubelet rw shared:5 - ext4 /dev/root rw\n");
        let theirs = table("1 0 8:1 / / rw shared:5 - ext4 /dev/root rw\n");
        let another = table("1 0 8:2 / / rw shared:6 - ext4 /dev/root rw\n");
        let private = table("1 0 8:1 / / rw - ext4 /dev/root rw\n");
        let path = Path::new("/var/lib/kubelet/pods/u");
        assert!(same_group(&ours, &theirs, path));
        assert!(!same_group(&ours, &another, path));
        assert!(!same_group(&private, &private, path));
    }
}
