//! Where this node's kubelets have their directories, by their own command lines and configuration: a mounter that was given others
//! says which ones to give it.

use std::path::{Path, PathBuf};

use super::clients::Verdict;
use crate::args::NodeArgs;

/// The kubelet's own defaults.
const ROOT: &str = "/var/lib/kubelet";
const PLUGINS: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";

/// The plugin directory in a kubelet's configuration.
const PLUGINS_KEY: &str = "volumePluginDir";

/// Directories of one kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Directories {
    root: PathBuf,
    plugins: PathBuf,
}

/// Whether one of these kubelets, by their folders in `/proc`, has the directories that the mounter was given.
pub(super) fn check(kubelets: &[PathBuf], given: &NodeArgs) -> Result<String, String> {
    let found: Vec<_> = kubelets.iter().filter_map(|process| of(process)).collect();
    let given = Directories {
        root: clean(&given.kubelet_root),
        plugins: clean(&given.plugin_dir),
    };
    compare(&found, &given).map(|()| {
        format!(
            "the kubelet has {}, and its plugins in {}",
            given.root.display(),
            given.plugins.display()
        )
    })
}

fn compare(found: &[Directories], given: &Directories) -> Verdict {
    if found.contains(given) {
        return Ok(());
    }
    let Some(first) = found.first() else {
        return Err("no process named kubelet is seen that would say where it has its directories".to_owned());
    };
    let pairs = [
        ("root", "--kubelet-root", "kubelet", &first.root, &given.root),
        ("plugin", "--plugin-dir", "plugins", &first.plugins, &given.plugins),
    ];
    let differ = pairs.into_iter().filter(|(.., found, given)| found != given);
    let words = differ.map(|(what, flag, volume, found, given)| {
        let (found, given) = (found.display(), given.display());
        format!(
            "the kubelet's {what} directory is {found} and not {given}: start the mounter with {flag}={found}, and make that \
             the path of volume {volume} in its Pod"
        )
    });
    Err(words.collect::<Vec<_>>().join("; "))
}

/// The directories of a kubelet, unless it ends meanwhile.
fn of(process: &Path) -> Option<Directories> {
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
fn clean(path: &Path) -> PathBuf {
    path.components().collect()
}

#[cfg(test)]
mod tests {
    use super::{Directories, compare, flag, of, plugins_in};

    fn directories(root: &str, plugins: &str) -> Directories {
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
        let usual = directories(
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
        assert_eq!(of(process), Some(directories("/data/kubelet", "/one")));
        write("root/etc/kubelet.d/10.conf", "volumePluginDir: /two\n");
        write("root/etc/kubelet.d/20.conf", "{\"maxPods\": 9}\n");
        write("root/etc/kubelet.d/30.yaml", "volumePluginDir: /not-read\n");
        assert_eq!(of(process), Some(directories("/data/kubelet", "/two")));

        write(
            "cmdline",
            "kubelet\0--config=kubelet.json\0--volume-plugin-dir=/three//x\0",
        );
        write("cwd/kubelet.json", "{\"volumePluginDir\":\"/four\"}");
        assert_eq!(of(process), Some(directories("/var/lib/kubelet", "/three/x")));
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
    fn a_mounter_that_looks_elsewhere_is_told_where() {
        let given = directories("/var/lib/kubelet", "/usr/libexec/x");
        let other = directories("/var/lib/kubelet", "/var/lib/kubelet/volumeplugins");
        assert_eq!(compare(&[other.clone(), given.clone()], &given), Ok(()));
        let words = compare(&[other], &given).unwrap_err();
        assert!(
            words.contains("--plugin-dir=/var/lib/kubelet/volumeplugins") && !words.contains("root"),
            "{words}"
        );
        let words = compare(&[directories("/data", "/data/x")], &given).unwrap_err();
        assert!(
            words.contains("--kubelet-root=/data") && words.contains("; "),
            "{words}"
        );
        assert!(compare(&[], &given).unwrap_err().contains("no process named kubelet"));
    }
}
