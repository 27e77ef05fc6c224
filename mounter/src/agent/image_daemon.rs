//! The daemon that all volumes of a client image share, such as iscsid. The agent keeps it running: in the container
//! that is the node's one for it, for as long as the container lives.
//!
//! An image has it in [`CLIENT_DAEMON`]:
//!
//! ```json
//! {"program": ["iscsid", "--foreground"], "lock": "iscsid.lock", "unless-listens": "@ISCSIADM_ABSTRACT_NAMESPACE"}
//! ```

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use mooring_contract::names::paths::CLIENT_DAEMON;
use mooring_program::error::chain;
use serde::Deserialize;
use tokio::process::Command;
use tracing::{info, warn};

use super::claims::SHARED;
use super::program::WORKING_DIRECTORY;
use crate::node::unix_sockets::named;
use crate::sys::absent_is_fine;

/// The unix sockets of the node's network, since a client container is in that.
const SOCKETS: &str = "/proc/net/unix";

/// The file that exists while the node has a daemon of its own in the way, in the agent's directory.
const REFUSED: &str = "daemon-refused";

/// How long to wait before the daemon is started again.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// How often to look whether another container's daemon, or the node's own, has ended.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub(super) enum ImageDaemonError {
    #[error("failed to read {path}: make it a plain file of the client image")]
    Read { path: PathBuf, source: io::Error },
    #[error("the client image's file {path} has an error: correct it in the image")]
    Malformed { path: PathBuf, source: serde_json::Error },
    #[error("failed to open the lock {path} of the client image's daemon")]
    Lock { path: PathBuf, source: io::Error },
    #[error("failed to run {program}, which all volumes of this client image need")]
    Run { program: String, source: io::Error },
}

/// What an image says of its daemon.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Described {
    /// The program, which stays in the foreground, and its arguments.
    program: Program,
    /// The name of the node's lock: of all containers on the node, only the holder of the lock runs the daemon.
    lock: Option<LockName>,
    /// The name of a unix socket: while another program listens on it, this daemon does not run.
    unless_listens: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
struct Program {
    path: String,
    arguments: Vec<String>,
}

impl TryFrom<Vec<String>> for Program {
    type Error = &'static str;

    fn try_from(words: Vec<String>) -> Result<Self, Self::Error> {
        let mut words = words.into_iter();
        let path = words.next().ok_or("program is an empty list")?;
        Ok(Self {
            path,
            arguments: words.collect(),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct LockName(String);

impl TryFrom<String> for LockName {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
            return Err("lock is not a name of letters, digits, dots, dashes and underscores");
        }
        Ok(Self(name))
    }
}

/// Keeps the image's daemon running, if it has one. `dir` is the agent's own directory.
pub(super) async fn keep(dir: &Path, kubelet_root: &Path) -> Result<(), ImageDaemonError> {
    let Some(described) = read(Path::new(CLIENT_DAEMON))? else {
        return Ok(());
    };
    let keeper = Keeper {
        described,
        locks: kubelet_root.join(SHARED),
        refused: dir.join(REFUSED),
        sockets: SOCKETS.into(),
        restart_delay: RESTART_DELAY,
    };
    keeper.keep().await
}

fn read(path: &Path) -> Result<Option<Described>, ImageDaemonError> {
    match fs::read(path) {
        Ok(json) => serde_json::from_slice(&json)
            .map(Some)
            .map_err(|source| ImageDaemonError::Malformed {
                path: path.to_owned(),
                source,
            }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ImageDaemonError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

struct Keeper {
    described: Described,
    locks: PathBuf,
    refused: PathBuf,
    sockets: PathBuf,
    restart_delay: Duration,
}

impl Keeper {
    async fn keep(&self) -> Result<(), ImageDaemonError> {
        let lock = match &self.described.lock {
            Some(name) => Some(self.lock(name).await?),
            None => None,
        };
        // A container of this Pod before this one may have left the file.
        let mut shown = None;
        loop {
            let is_refused = self.node_has_its_own();
            if shown.replace(is_refused) != Some(is_refused) {
                self.show(is_refused);
            }
            if is_refused {
                tokio::time::sleep(LOOK_PERIOD).await;
                continue;
            }
            match self.run(lock.as_ref()).await {
                Ok(ended) => warn!(
                    "{} has ended ({ended}) and is started again",
                    self.described.program.path
                ),
                Err(error) => warn!("{}; trying again", chain(&error)),
            }
            tokio::time::sleep(self.restart_delay).await;
        }
    }

    /// Waits until this container is the one that runs the daemon.
    async fn lock(&self, name: &LockName) -> Result<File, ImageDaemonError> {
        let path = self.locks.join(&name.0);
        let failed = |source| ImageDaemonError::Lock {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(&self.locks).map_err(failed)?;
        let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        let mut has_waited = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            if !std::mem::replace(&mut has_waited, true) {
                info!(
                    "{} runs in another client container of this node",
                    self.described.program.path
                );
            }
            tokio::time::sleep(LOOK_PERIOD).await;
        }
    }

    /// Whether another program listens where the daemon would: one of the node, since this container has the lock.
    fn node_has_its_own(&self) -> bool {
        let Some(name) = &self.described.unless_listens else {
            return false;
        };
        let table = fs::read_to_string(&self.sockets).unwrap_or_default();
        !named(&table, name).is_empty()
    }

    /// Shows the image's programs whether the node has a daemon of its own.
    fn show(&self, is_refused: bool) {
        let shown = if is_refused {
            warn!(
                "the node runs a {} of its own: this container runs none",
                self.described.program.path
            );
            fs::write(&self.refused, "")
        } else {
            absent_is_fine(fs::remove_file(&self.refused))
        };
        if let Err(error) = shown {
            warn!(error = %chain(&error), "failed to show that in {}", self.refused.display());
        }
    }

    /// Runs the daemon until it ends. It has the lock as its standard input, which is empty: so it keeps the lock if this
    /// agent ends, and the next agent waits for it. It writes to the container's log, which outlives the agent too.
    async fn run(&self, lock: Option<&File>) -> Result<std::process::ExitStatus, ImageDaemonError> {
        let Program { path, arguments } = &self.described.program;
        let failed = |source| ImageDaemonError::Run {
            program: path.clone(),
            source,
        };
        let stdin = match lock {
            Some(lock) => lock.try_clone().map_err(failed)?.into(),
            None => Stdio::null(),
        };
        let mut daemon = Command::new(path);
        daemon
            .args(arguments)
            .current_dir(WORKING_DIRECTORY)
            .stdin(stdin)
            .process_group(0);
        daemon.spawn().map_err(failed)?.wait().await.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(folder: &Path, described: &str) -> Keeper {
        Keeper {
            described: serde_json::from_str(described).unwrap(),
            locks: folder.to_owned(),
            refused: folder.join("refused"),
            sockets: folder.join("sockets"),
            restart_delay: Duration::from_millis(10),
        }
    }

    fn lines(file: &Path) -> usize {
        fs::read_to_string(file).unwrap_or_default().lines().count()
    }

    async fn until(what: impl Fn() -> bool) {
        let look = async {
            while !what() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), look).await.unwrap();
    }

    #[tokio::test]
    async fn a_daemon_that_ends_is_started_again_in_one_container_of_the_node() {
        let folder = tempfile::tempdir().unwrap();
        let ran = |name: &str| folder.path().join(name);
        let describe = |name: &str| {
            let script = format!("echo >>{}; sleep 0.1", ran(name).display());
            serde_json::json!({"program": ["/bin/sh", "-c", script], "lock": "x.lock"}).to_string()
        };
        let first = keeper(folder.path(), &describe("first"));
        let first = tokio::spawn(async move { first.keep().await });
        until(|| lines(&ran("first")) >= 2).await;
        let second = keeper(folder.path(), &describe("second"));
        let second = tokio::spawn(async move { second.keep().await });
        until(|| lines(&ran("first")) >= 4).await;
        assert_eq!(lines(&ran("second")), 0);
        // An agent that has ended leaves the lock to its daemon.
        first.abort();
        until(|| lines(&ran("second")) >= 1).await;
        second.abort();
    }

    #[tokio::test]
    async fn a_daemon_of_the_node_is_left_alone_and_the_image_s_programs_see_that() {
        let folder = tempfile::tempdir().unwrap();
        let ran = folder.path().join("ran");
        let described = serde_json::json!({
            "program": ["/bin/sh", "-c", format!("echo >>{}; sleep 0.1", ran.display())], "unless-listens": "@NAME",
        });
        let keeper = keeper(folder.path(), &described.to_string());
        let (sockets, refused) = (keeper.sockets.clone(), keeper.refused.clone());
        fs::write(&sockets, "0: 00000002 00000000 00010000 0001 01  4711 @NAME@@@\n").unwrap();
        let keeping = tokio::spawn(async move { keeper.keep().await });
        until(|| refused.exists()).await;
        assert_eq!(lines(&ran), 0);
        fs::write(&sockets, "0: 00000002 00000000 00010000 0001 01  4712 @NAME_2\n").unwrap();
        until(|| lines(&ran) > 0 && !refused.exists()).await;
        keeping.abort();
    }

    #[test]
    fn an_image_says_its_daemon_in_full_or_hears_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.json");
        assert!(read(&path).unwrap().is_none());
        fs::write(
            &path,
            r#"{"program": ["iscsid", "--foreground"], "lock": "iscsid.lock"}"#,
        )
        .unwrap();
        let described = read(&path).unwrap().unwrap();
        assert_eq!(described.program.arguments, ["--foreground"]);
        for wrong in [
            r#"{"program": []}"#,
            r#"{"program": ["a"], "lock": "../x"}"#,
            r#"{"program": ["a"], "restart": true}"#,
            "{}",
        ] {
            fs::write(&path, wrong).unwrap();
            assert!(
                matches!(read(&path), Err(ImageDaemonError::Malformed { .. })),
                "{wrong}"
            );
        }
    }
}
