//! The leak sweep: after the tests, the testbed's own cluster must hold the same things as before them.
//!
//! Several tests of a program run at once on one cluster, and things that one test uses are not another's leak. So the
//! sweep takes a picture when no test runs, and compares when none runs again. If something is left, the test that
//! ended last fails, and its message names all tests that ran. In addition, `Scope::close` looks after each test for
//! what carries that test's own name.

mod collect;
mod mounted;
mod objects;
mod picture;

use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_testbed::cluster::Cluster;
use mooring_testbed::progress::note;
use mooring_testbed::target::Target;

use super::waiting::wait_for;
use super::waits::Limit;
use collect::Ours;
use picture::Picture;

/// How long an unused client Pod stays in the tests' installation, and how long all may take to go, on a node in a
/// virtual machine too.
const IDLE: Duration = Duration::from_secs(4);
const LEFT_LIMIT: Duration = Duration::from_mins(3);

/// How long the first picture may take: the test before may have restarted the API server.
const FIRST_LIMIT: Duration = Duration::from_secs(30);

/// How often to look at it.
const PERIOD: Duration = Duration::from_secs(1);

/// A file in the cluster's state folder, locked while another program runs tests there.
const LOCK: &str = "tests.lock";

/// The tests of this program.
struct Tests {
    running: usize,
    /// The names of those that began since the picture.
    names: Vec<String>,
    /// What the names of their volumes' files contain.
    words: Vec<String>,
    /// Whether one of them failed: it may have left anything.
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

/// The caller that looks at the cluster holds this lock, so tests that begin or end meanwhile wait.
fn tests() -> MutexGuard<'static, Tests> {
    TESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running test on the testbed's own cluster.
pub(super) struct Counted {
    cluster: Cluster,
    over: bool,
}

/// Counts a test that begins. The first one takes the picture. On a cluster other than the testbed's own there is
/// nothing to look at.
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
    let limit = Limit::of(FIRST_LIMIT);
    loop {
        match collect::picture(cluster, &Ours::default()) {
            Ok(picture) => return Ok(picture),
            Err(error) if limit.is_over() => {
                return Err(error.context("failed to see what the cluster holds before the test"));
            }
            Err(_) => std::thread::sleep(PERIOD),
        }
    }
}

/// Remembers what the names of this test's volumes' files contain: its namespace, and its claims' uids.
pub(super) fn remember(words: impl IntoIterator<Item = String>) {
    tests().words.extend(words);
}

impl Counted {
    /// Ends a test after everything with its name is gone. The last of the running tests compares.
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
            // A failed test fails the run already, and this test did not cause the leak.
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

/// What is there now and was not before, after it had time to go.
fn left(cluster: &Cluster, before: &Picture, ours: &Ours) -> Result<Vec<String>> {
    let limit = Limit::of(IDLE + LEFT_LIMIT);
    loop {
        let left = collect::picture(cluster, ours).map(|after| after.more_than(before));
        match left {
            Ok(left) if left.is_empty() => return Ok(left),
            left if limit.is_over() => return left.context("failed to see what the tests left"),
            _ => std::thread::sleep(PERIOD),
        }
    }
}
