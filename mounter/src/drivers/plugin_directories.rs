//! The kubelet's plugin directory. The running kubelet shows where it is, and the mounter reaches it through `/proc`,
//! as the kubelet sees it. So no host path has to be guessed, and what is read-only on the host is read-only here.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, mkdirat};

use crate::node::args::NodeArgs;
use crate::node::kubelet::{self, Directories, FIRST, PLUGINS, clean};
use crate::volume::mount_table::Table;

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

#[derive(Debug, thiserror::Error)]
pub enum PluginsError {
    /// It is not known where it is.
    #[error(
        "the mounter sees no process named kubelet that shares its root, so it does not know where the kubelet looks \
         for drivers: give the mounter's Pod hostPID and mountPropagation Bidirectional; or give it the kubelet's \
         plugin directory as a volume, and its path by --plugin-dir"
    )]
    NoKubelet,
    #[error("failed to read the mount table, which shows who shares the kubelet's root: {0}")]
    Table(#[source] io::Error),
    /// It can't be made on the kubelet's host.
    #[error(
        "the kubelet's plugin directory {0:?} can't be made: have the kubelet use another one, which its host can \
         write (volumePluginDir in its configuration, such as /var/lib/kubelet/volumeplugins); the mounter finds it. \
         Only FlexVolume needs it"
    )]
    ReadOnly(PathBuf),
    #[error(
        "failed to open the kubelet's plugin directory {path:?}{through}: {source}",
        through = seen(.process.as_deref())
    )]
    Io {
        path: PathBuf,
        process: Option<PathBuf>,
        source: io::Error,
    },
}

fn seen(process: Option<&Path>) -> String {
    process.map_or_else(String::new, |process| format!(" as {} sees it", process.display()))
}

/// Where to look, and in the root of which process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// A process by its folder in `/proc`; none: this one.
    process: Option<PathBuf>,
    /// The directory, by the name that the process has for it.
    path: PathBuf,
}

#[derive(Debug)]
pub struct PluginDirectory {
    handle: File,
    /// By the name that the kubelet has for it.
    name: PathBuf,
    /// Who said so.
    witness: Option<Witness>,
}

/// A process, told from a later one of the same number.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Witness {
    process: PathBuf,
    /// In ticks since the machine's start.
    started: String,
}

impl Witness {
    fn of(process: &Path) -> Option<Self> {
        let stat = std::fs::read_to_string(process.join("stat")).ok()?;
        // The name before it may have anything in it; see proc_pid_stat(5).
        let started = stat.rsplit(')').next()?.split_whitespace().nth(19)?.to_owned();
        Some(Self {
            process: process.to_owned(),
            started,
        })
    }
}

impl PluginDirectory {
    /// Finds the directory and opens it, and makes it if it is missing. If there are several kubelets, this stays with
    /// the one that looks into `before`.
    pub fn find(node: &NodeArgs, before: Option<&Self>) -> Result<Self, PluginsError> {
        let ours = Table::read().map_err(PluginsError::Table)?;
        let kubelets = kubelet::kubelets_of(&ours, node.kubelet_root()).into_iter();
        let kubelets: Vec<_> = kubelets
            .filter_map(|process| kubelet::directories(&process).map(|found| (process, found)))
            .collect();
        let first = kubelet::first_shares(&ours, node.kubelet_root());
        let before = before.map(|before| before.name.as_path());
        choose(node.plugin_dir.as_deref(), &kubelets, first, before)
            .ok_or(PluginsError::NoKubelet)
            .and_then(open)
    }

    /// A path by which this process reaches it, for as long as this lives.
    pub fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.handle.as_raw_fd().to_string())
    }

    /// By the name that the kubelet has for it.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Notes who named it last.
    pub(crate) fn witness_of(&mut self, found: &Self) {
        self.witness.clone_from(&found.witness);
    }

    /// Whether the kubelet that used this directory when it was found still runs. A kubelet reads its configuration
    /// only once.
    pub fn is_looked_into(&self) -> bool {
        self.witness
            .as_ref()
            .is_some_and(|witness| Witness::of(&witness.process).as_ref() == Some(witness))
    }

    /// A directory that this process has by this name.
    #[cfg(test)]
    pub(crate) fn here(path: &Path) -> Self {
        open(Place {
            process: None,
            path: path.to_owned(),
        })
        .unwrap()
    }

    /// Whether it is the very same directory.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let identity = |directory: &Self| directory.handle.metadata().map(|found| (found.dev(), found.ino())).ok();
        identity(self).is_some() && identity(self) == identity(other)
    }
}

/// Where the directory is: what was `given` goes before what the kubelets say. `first` is whether process 1 is the
/// node's: where a distribution calls its kubelet otherwise, it has the same files, and the usual directory is tried.
fn choose(
    given: Option<&Path>,
    kubelets: &[(PathBuf, Directories)],
    first: bool,
    before: Option<&Path>,
) -> Option<Place> {
    let stay = kubelets
        .iter()
        .find(|(_, found)| Some(found.plugins.as_path()) == before);
    let (process, usual) = match stay.or(kubelets.first()) {
        Some((process, found)) => (Some(process.clone()), found.plugins.as_path()),
        // Without a kubelet that says otherwise, it is where it was.
        None if first && before.is_none() => (Some(FIRST.into()), Path::new(PLUGINS)),
        None if given.is_some() => (None, Path::new(PLUGINS)),
        None => return None,
    };
    let path = clean(given.unwrap_or(usual));
    Some(Place { process, path })
}

fn open(Place { process, path }: Place) -> Result<PluginDirectory, PluginsError> {
    let root = process
        .as_ref()
        .map_or_else(|| PathBuf::from("/"), |process| process.join("root"));
    // Process 1 names no directory.
    let kubelet = process.as_deref().filter(|process| *process != Path::new(FIRST));
    let witness = kubelet.and_then(Witness::of);
    let opened = openat(AT_FDCWD, &root, DIRECTORY, Mode::empty()).and_then(|root| open_in(&root, &path));
    match opened {
        Ok(handle) => Ok(PluginDirectory {
            handle: handle.into(),
            name: path,
            witness,
        }),
        Err(Errno::EROFS | Errno::EACCES | Errno::EPERM) => Err(PluginsError::ReadOnly(path)),
        Err(errno) => Err(PluginsError::Io {
            path,
            process,
            source: errno.into(),
        }),
    }
}

/// Opens a directory, and makes the parts of it that are missing. Links in it are resolved within this root.
fn open_in(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let within = |path: &Path| {
        openat2(
            root,
            path,
            OpenHow::new().flags(DIRECTORY).resolve(ResolveFlag::RESOLVE_IN_ROOT),
        )
    };
    let mut so_far = PathBuf::from(".");
    let mut at = within(&so_far)?;
    for name in path.components() {
        let Component::Normal(name) = name else { continue };
        so_far.push(name);
        at = match within(&so_far) {
            Err(Errno::ENOENT) => {
                match mkdirat(&at, name, Mode::from_bits_truncate(0o755)) {
                    Err(Errno::EEXIST) | Ok(()) => {}
                    Err(errno) => return Err(errno),
                }
                within(&so_far)?
            }
            other => other?,
        };
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::{PLUGINS, Place, PluginDirectory, PluginsError, choose, open};
    use crate::node::kubelet::Directories;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};

    fn kubelet(process: &str, plugins: &str) -> (PathBuf, Directories) {
        let root = "/var/lib/kubelet".into();
        let plugins = plugins.into();
        (process.into(), Directories { root, plugins })
    }

    fn place(process: Option<&str>, path: &str) -> Place {
        Place {
            process: process.map(Into::into),
            path: path.into(),
        }
    }

    #[test]
    fn the_running_kubelet_says_where_unless_it_was_given() {
        let two = [kubelet("/proc/7", "/a"), kubelet("/proc/8", "/b")];
        let path = Path::new;
        assert_eq!(choose(None, &two, true, None), Some(place(Some("/proc/7"), "/a")));
        assert_eq!(
            choose(Some(path("/c/")), &two, true, None),
            Some(place(Some("/proc/7"), "/c"))
        );
        // If there are two, the one that was used before.
        assert_eq!(
            choose(None, &two, true, Some(path("/b"))),
            Some(place(Some("/proc/8"), "/b"))
        );
        assert_eq!(
            choose(None, &two, true, Some(path("/x"))),
            Some(place(Some("/proc/7"), "/a"))
        );
    }

    #[test]
    fn without_a_kubelet_it_is_the_usual_directory_of_the_node_s_or_that_which_was_given() {
        let path = Path::new;
        assert_eq!(choose(None, &[], true, None), Some(place(Some("/proc/1"), PLUGINS)));
        assert_eq!(
            choose(Some(path("/c")), &[], true, None),
            Some(place(Some("/proc/1"), "/c"))
        );
        assert_eq!(choose(Some(path("/c")), &[], false, None), Some(place(None, "/c")));
        assert_eq!(choose(None, &[], false, None), None);
        // A kubelet that is starting again has not moved.
        assert_eq!(choose(None, &[], true, Some(path("/b"))), None);
    }

    /// As if a process had this folder for its root.
    fn through(process: &Path, path: &str) -> Result<PluginDirectory, PluginsError> {
        open(Place {
            process: Some(process.to_owned()),
            path: path.into(),
        })
    }

    #[test]
    fn it_is_made_where_it_is_missing_and_links_lead_where_they_lead_for_the_kubelet() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("data")).unwrap();
        fs::create_dir_all(root.join("var")).unwrap();
        symlink("/data", root.join("var/lib")).unwrap();
        symlink("../../../../..", root.join("up")).unwrap();
        let made = through(folder.path(), "/var/lib/kubelet/plugins").unwrap();
        fs::write(made.path().join("file"), "").unwrap();
        assert!(root.join("data/kubelet/plugins/file").exists());
        assert_eq!(made.name(), Path::new("/var/lib/kubelet/plugins"));
        through(folder.path(), "/up/here").unwrap();
        assert!(root.join("here").is_dir());

        let same = through(folder.path(), "/data/kubelet/plugins").unwrap();
        assert!(same.is(&made));
        fs::remove_dir_all(root.join("data/kubelet/plugins")).unwrap();
        let again = through(folder.path(), "/data/kubelet/plugins").unwrap();
        assert!(!again.is(&made));
        fs::write(root.join("data/f"), "").unwrap();
        let error = through(folder.path(), "/data/f/x").unwrap_err().to_string();
        assert!(error.contains("/data/f/x") && error.contains("sees it"), "{error}");
    }

    #[test]
    fn a_process_is_distinguished_from_a_later_one_with_its_pid() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        let runs = |since: u32| {
            let zeros = "0 ".repeat(18);
            fs::write(folder.path().join("stat"), format!("7 (a) b) S {zeros}{since} 0\n")).unwrap();
        };
        runs(40);
        let found = through(folder.path(), "/plugins").unwrap();
        assert!(found.is_looked_into());
        runs(41);
        assert!(!found.is_looked_into());
        fs::remove_file(folder.path().join("stat")).unwrap();
        assert!(!found.is_looked_into());
    }
}
