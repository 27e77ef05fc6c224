//! What a failed test leaves: one folder with all information, and a few lines on standard error.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_contract::names::NAMESPACE;
use mooring_testbed::cluster::Cluster;
use mooring_testbed::command::{command, last_lines, output};
use mooring_testbed::layout::{repository, write_file};
use mooring_testbed::progress::note;
use mooring_testbed::target::Target;

use super::census::Census;
use super::names::CONFIG_NAMESPACE;
use super::random::{Random, SEED_VARIABLE};
use super::scope::Scope;
use super::skip::test_name;

/// Environment variable: the folder for what failed tests leave, in place of `target/testbed-results`.
pub const RESULTS_VARIABLE: &str = "MOORING_TESTBED_RESULTS";

/// How many lines of each of the testbed's logs to keep.
const LOG_LINES: usize = 2000;

/// How many bytes of a log's end to read: more than that many lines take, and enough of an audit log.
const LOG_BYTES: u64 = 4 << 20;

/// How many of the namespace's Events to print, and how many of these, in how many characters each, beside the failure
/// itself: of a run elsewhere, that may be all there is to read.
const EVENTS: usize = 15;
const EVENTS_BESIDE: usize = 4;
const EVENT_LENGTH: usize = 240;

/// How long all requests to the cluster may take together: it may not answer any more.
const ASK_LIMIT: Duration = Duration::from_mins(2);

/// A test that may fail, and what to look at then.
#[derive(Clone)]
pub(super) struct Failed {
    test: String,
    folder: PathBuf,
    target: Target,
    namespace: String,
    /// The last Events, once they were shown.
    events: Arc<Mutex<String>>,
}

impl Failed {
    /// The test of this thread, which has this namespace. `name` is used outside of a test, as in the bench.
    pub(super) fn of(scope: &Scope, name: &str) -> Self {
        let of_libtest = Some(test_name()).filter(|test| test.contains("::"));
        let test = of_libtest.unwrap_or_else(|| name.to_owned());
        let root = std::env::var_os(RESULTS_VARIABLE)
            .map_or_else(|| repository().join("target/testbed-results"), PathBuf::from);
        Self {
            folder: root.join(folder_name(&group(), &test)),
            test,
            target: scope.target.clone(),
            namespace: scope.namespace.clone(),
            events: Arc::default(),
        }
    }

    pub(super) fn test(&self) -> &str {
        &self.test
    }

    /// Where all there is can be found, and how to have the same run again.
    pub(super) fn where_to_look(&self) -> String {
        format!(
            "all there is in {}, {SEED_VARIABLE}={}{}",
            self.folder.display(),
            Random::seed(),
            self.events.lock().unwrap_or_else(PoisonError::into_inner)
        )
    }

    /// Writes all information into the folder, and prints the few lines that explain most failures. It never fails: the
    /// test has done that.
    pub(super) fn show(&self, error: &anyhow::Error) {
        let head = format!(
            "{} failed: {error:#}\n  {SEED_VARIABLE}={}, namespace {}",
            self.test,
            Random::seed(),
            self.namespace
        );
        note(format!("{head}\n  all there is goes to {}", self.folder.display()));
        // Files of an earlier run would look like this one's.
        let _ = std::fs::remove_dir_all(&self.folder);
        let written = Written {
            folder: &self.folder,
            until: Instant::now() + ASK_LIMIT,
        };
        written.add("failure.txt", Ok(format!("{head}\n")));
        if let Some(cluster) = self.target.own_cluster() {
            written.machine(cluster);
            written.nodes(cluster);
        }
        self.ask(&written);
        let events = output(&mut self.target.kubectl([
            "-n",
            &self.namespace,
            "--request-timeout=20s",
            "get",
            "events",
            "--sort-by=.metadata.creationTimestamp",
        ]));
        let events = events.map_or_else(|error| error.to_string(), |events| last_lines(&events, EVENTS));
        note(format!("the last Events of {}:\n{events}", self.namespace));
        let beside = last_lines(&events, EVENTS_BESIDE);
        let beside = beside
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let beside: Vec<String> = beside.map(|line| line.chars().take(EVENT_LENGTH).collect()).collect();
        *self.events.lock().unwrap_or_else(PoisonError::into_inner) =
            format!("; the last Events: {}", beside.join(" | "));
    }

    /// What the API server knows.
    fn ask(&self, written: &Written<'_>) {
        let own = self.namespace.as_str();
        let sorted = "--sort-by=.metadata.creationTimestamp";
        written.kubectl(
            &self.target,
            "events.txt",
            &["get", "events", "-A", "-o", "wide", sorted],
        );
        let all = "persistentvolumes,storageclasses,nodes,namespaces";
        written.kubectl(&self.target, "cluster.txt", &["get", all, "-o", "wide"]);
        let described = "pods,persistentvolumeclaims";
        written.kubectl(
            &self.target,
            &format!("{own}/described.txt"),
            &["-n", own, "describe", described],
        );
        for namespace in [own, CONFIG_NAMESPACE, NAMESPACE] {
            let listed = "pods,configmaps,persistentvolumeclaims";
            written.kubectl(
                &self.target,
                &format!("{namespace}/objects.txt"),
                &["-n", namespace, "get", listed, "-o", "wide"],
            );
            written.kubectl(
                &self.target,
                &format!("{namespace}/objects.yaml"),
                &["-n", namespace, "get", listed, "-o", "yaml"],
            );
            let pods = self
                .target
                .kubectl(["-n", namespace, "--request-timeout=20s", "get", "pods", "-o", "name"]);
            for pod in output(&mut { pods }).unwrap_or_default().lines() {
                let name = pod.trim_start_matches("pod/");
                let logs = [
                    "-n",
                    namespace,
                    "logs",
                    "--all-containers",
                    "--prefix",
                    "--tail=5000",
                    pod,
                ];
                written.kubectl(&self.target, &format!("{namespace}/{name}.log"), &logs);
                if namespace == NAMESPACE {
                    let logs = [&logs[..], &["--previous"]].concat();
                    written.kubectl(&self.target, &format!("{namespace}/{name}.previous.log"), &logs);
                }
            }
        }
    }
}

/// A test's name as a folder's name: a slash would make another folder, and a colon needs quotes in a shell.
fn folder_name(group: &str, test: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    format!("{group}-{}", test.replace("::", "-"))
        .chars()
        .map(plain)
        .collect()
}

/// The name of the test's program, without the hash that cargo appends.
fn group() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let name = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match name.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 && hash.chars().all(|c| c.is_ascii_hexdigit()) => name.to_owned(),
        _ => name,
    }
}

/// The folder while it is written. If something can't be read, its file says why.
struct Written<'a> {
    folder: &'a Path,
    until: Instant,
}

impl Written<'_> {
    fn add(&self, file: &str, content: Result<String>) {
        let content = content.unwrap_or_else(|error| format!("unable to read this: {error:#}\n"));
        if let Err(error) = write_file(&self.folder.join(file), content) {
            note(format!("{error:#}"));
        }
    }

    fn kubectl(&self, target: &Target, file: &str, args: &[&str]) {
        if Instant::now() > self.until {
            self.add(file, Err(anyhow::anyhow!("the cluster took too long to answer")));
            return;
        }
        let said = output(target.kubectl(["--request-timeout=20s"]).args(args));
        // Most containers have no earlier run.
        if said.is_ok() || !args.contains(&"--previous") {
            self.add(file, said.map_err(Into::into));
        }
    }

    /// What the machine knows of all nodes together.
    fn machine(&self, cluster: &Cluster) {
        self.add(
            "loop-devices.txt",
            output(&mut command("losetup", ["--list"])).map_err(Into::into),
        );
        let census = match Census::of(cluster) {
            Ok(census) => census,
            Err(error) => return self.add("processes.txt", Err(error)),
        };
        self.add("processes.txt", Ok(census.table()));
        for (role, init) in &census.inits {
            self.add(&format!("{role}/mountinfo.txt"), mount_table(*init));
        }
        // One process for each mount namespace of Mooring's Pods: mounters and clients.
        for (pod, uid) in mooring_pods(cluster) {
            let mut seen = Vec::new();
            let own = |process: &&super::census::Process| process.pod.as_ref() == Some(&uid);
            for process in census.processes.iter().filter(own) {
                if !seen.contains(&process.mounts) {
                    seen.push(process.mounts);
                    let file = format!("{}/{pod}-{}-{}.mountinfo.txt", process.role, process.name, process.pid);
                    self.add(&file, mount_table(process.pid));
                }
            }
        }
    }

    /// The ends of the logs of each node and of the control plane, the API server's audit log among them.
    fn nodes(&self, cluster: &Cluster) {
        for role in std::fs::read_dir(cluster.layout.logs(""))
            .into_iter()
            .flatten()
            .flatten()
        {
            for log in std::fs::read_dir(role.path()).into_iter().flatten().flatten() {
                let file = Path::new(&role.file_name()).join(log.file_name());
                self.add(&file.to_string_lossy(), end_of(&log.path()));
            }
        }
    }
}

/// Names and uids of Mooring's Pods.
fn mooring_pods(cluster: &Cluster) -> Vec<(String, String)> {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{\"\\n\"}{end}";
    let args = ["-n", NAMESPACE, "--request-timeout=20s", "get", "pods", "-o", path];
    let listed = output(&mut cluster.kubectl(args)).unwrap_or_default();
    let words = listed.lines().filter_map(|line| line.split_once(' '));
    words.map(|(name, uid)| (name.to_owned(), uid.to_owned())).collect()
}

fn mount_table(pid: i32) -> Result<String> {
    let path = format!("/proc/{pid}/mountinfo");
    std::fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))
}

/// The last lines of a file that may be long.
fn end_of(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("failed to open {}", path.display()))?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(last_lines(&String::from_utf8_lossy(&bytes), LOG_LINES))
}

#[cfg(test)]
mod tests {
    use super::{LOG_BYTES, LOG_LINES, end_of, folder_name, group};

    #[test]
    fn a_folder_is_named_after_the_test_s_program_module_and_name() {
        assert_eq!(folder_name("mount", "local::it_grows"), "mount-local-it_grows");
        assert_eq!(folder_name("x", "../a b"), "x----a-b");
        assert_eq!(group(), "mooring_harness");
    }

    #[test]
    fn the_end_of_a_long_log_is_kept() {
        let path = std::env::temp_dir().join(format!("mooring-results-{}", std::process::id()));
        let line = "x".repeat(99);
        let lines = 2 * usize::try_from(LOG_BYTES).unwrap() / 100;
        std::fs::write(&path, format!("{line}\n").repeat(lines) + "the last\n").unwrap();
        let end = end_of(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(end.lines().count(), LOG_LINES);
        assert_eq!(end.lines().last(), Some("the last"));
    }
}
