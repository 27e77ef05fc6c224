//! The leak sweep: what the testbed's own cluster holds when no test runs any more is what it held before the first began.
//!
//! Several tests of a program run at once on one cluster, and what one of them uses is no leak of another's. So a picture is taken
//! when no test runs and compared when none runs again; what is left then fails the test that ended last, and the tests that ran
//! are named. What bears a test's own name is looked for after each test besides, in `Scope::close`.

mod collect;
mod mounted;
mod picture;

use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_testbed::cluster::Cluster;
use mooring_testbed::progress::note;
use mooring_testbed::target::Target;

use super::waiting::wait_for;
use collect::Ours;
use picture::Picture;

/// The label of tests' namespaces.
pub(super) const TESTS_LABEL: &str = "testbed.mooring.dev/test";

/// How long a client Pod that nobody uses stays in the tests' installation, and how long all may take to go, also on a node in a
/// virtual machine.
const IDLE: Duration = Duration::from_secs(4);
const LEFT_LIMIT: Duration = Duration::from_mins(1);

/// How long the cluster may take to be looked at before a test: the one before may have restarted the API server.
const FIRST_LIMIT: Duration = Duration::from_secs(30);

/// How often it is looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// The file in the cluster's state folder that says that another program runs tests there.
const LOCK: &str = "tests.lock";

/// The tests of this program.
struct Tests {
    running: usize,
    /// Those since the picture.
    names: Vec<String>,
    /// What is in the names of their volumes' files.
    words: Vec<String>,
    /// One of them failed, and may have left anything.
    failed: bool,
    before: Option<Picture>,
    lock: Option<File>,
}

static TESTS: Mutex<Tests> = Mutex::new(Tests {
    running: 0,
    names: Vec::new(),
    words: Vec::new(),
    failed: false,
    before: None,
    lock: None,
});

/// Others that begin or end wait for the one that looks at the cluster.
fn tests() -> MutexGuard<'static, Tests> {
    TESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A test under way on the testbed's own cluster.
pub(super) struct Counted {
    cluster: Cluster,
    over: bool,
}

/// A test begins. The first one takes the picture; on a cluster that is not the testbed's own there is nothing to look at.
pub(super) fn begin(target: &Target, name: &str) -> Result<Option<Counted>> {
    let Some(cluster) = target.own_cluster() else {
        return Ok(None);
    };
    let _waiting = wait_for("other tests' leak sweep, and a picture of the cluster");
    let mut tests = tests();
    if tests.running == 0 {
        tests.names.clear();
        tests.words.clear();
        tests.failed = false;
        let lock = open_lock(cluster)?;
        let alone = lock.try_lock().is_ok();
        tests.before = alone.then(|| first(cluster)).transpose()?;
        mounted::look(cluster);
        lock.lock_shared().context("failed to lock the cluster for tests")?;
        tests.lock = Some(lock);
    }
    tests.running += 1;
    tests.names.push(name.to_owned());
    Ok(Some(Counted {
        cluster: cluster.clone(),
        over: false,
    }))
}

fn open_lock(cluster: &Cluster) -> Result<File> {
    let path = cluster.layout.state.join(LOCK);
    let opened = File::options().create(true).append(true).open(&path);
    opened.with_context(|| format!("failed to open {}", path.display()))
}

fn first(cluster: &Cluster) -> Result<Picture> {
    let deadline = Instant::now() + FIRST_LIMIT;
    loop {
        match collect::picture(cluster, &Ours::default()) {
            Ok(picture) => return Ok(picture),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context("failed to see what the cluster holds before the test"));
            }
            Err(_) => std::thread::sleep(PERIOD),
        }
    }
}

/// What is in the names of this test's volumes' files: its namespace, its claims' uids.
pub(super) fn remember(words: impl IntoIterator<Item = String>) {
    tests().words.extend(words);
}

impl Counted {
    /// The test is over, and all that bears its name is gone. The last one of those that run compares.
    pub(super) fn end(mut self, failed: bool) -> Result<()> {
        let _waiting = wait_for("other tests' leak sweep, and for nothing to be left");
        let mut tests = tests();
        self.over = true;
        tests.failed |= failed;
        tests.running -= 1;
        if tests.running > 0 {
            return Ok(());
        }
        let ours = Ours {
            words: std::mem::take(&mut tests.words),
            devices: mounted::stop(),
        };
        let (before, lock) = (tests.before.take(), tests.lock.take());
        let (Some(before), Some(lock)) = (before, lock) else {
            note("no leak sweep: another program ran tests on this cluster");
            return Ok(());
        };
        if lock.try_lock().is_err() {
            note("no leak sweep: another program runs tests on this cluster");
            return Ok(());
        }
        let left = left(&self.cluster, &before, &ours)?;
        if left.is_empty() {
            return Ok(());
        }
        let words = format!(
            "left on the cluster after the tests {}:\n  {}",
            tests.names.join(", "),
            left.join("\n  ")
        );
        if tests.failed {
            // It fails the run already, and this test is not to blame.
            note(words);
            return Ok(());
        }
        bail!(words)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if !self.over {
            let mut tests = tests();
            tests.failed = true;
            tests.running -= 1;
            if tests.running == 0 {
                mounted::stop();
                tests.lock = None;
            }
        }
    }
}

/// What is there that was not, once it had time to go.
fn left(cluster: &Cluster, before: &Picture, ours: &Ours) -> Result<Vec<String>> {
    let deadline = Instant::now() + IDLE + LEFT_LIMIT;
    loop {
        let left = collect::picture(cluster, ours).map(|after| after.more_than(before));
        match left {
            Ok(left) if left.is_empty() => return Ok(left),
            left if Instant::now() > deadline => return left.context("failed to see what the tests left"),
            _ => std::thread::sleep(PERIOD),
        }
    }
}
