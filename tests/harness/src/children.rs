//! Starts programs that end when the test ends, however it ends.
//!
//! The kernel sends a program its parent-death signal when the thread that started it ends. Threads of tests and of
//! their runtimes end long before the test's process does. So one thread that stays starts them all.

use std::ffi::OsStr;
use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result};
use mooring_testbed::command::find_program;

/// What to start, and where to send the result.
type Order = (Command, Sender<io::Result<Child>>);

/// A command for [`start`] that the kernel kills when this program ends.
pub fn tied(program: impl AsRef<OsStr>) -> Result<Command> {
    let setpriv = find_program("setpriv").context("setpriv is not on the PATH: install util-linux")?;
    let mut tied = Command::new(setpriv);
    tied.args(["--pdeathsig", "KILL", "--"]).arg(program);
    Ok(tied)
}

/// Starts a command of [`tied`]. The child outlives the calling thread.
pub fn start(command: Command) -> io::Result<Child> {
    static STARTER: OnceLock<Sender<Order>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, told) in orders {
                // The caller waits for it.
                let _ = told.send(command.spawn());
            }
        });
        sender
    });
    let gone = || io::Error::other("the thread that starts programs is gone");
    let (told, became) = channel();
    starter.send((command, told)).map_err(|_| gone())?;
    became.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::{start, tied};
    use crate::processes::has_ended;

    /// Set for the program that this test starts: itself, to be killed. The value is the path of a file, into which it
    /// writes the process id of what it started.
    const INNER: &str = "MOORING_TEST_CHILDREN";

    fn be_killed(file: &std::ffi::OsStr) {
        let begin = || {
            let mut nap = tied("sleep").unwrap();
            nap.arg("600")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            start(nap).unwrap()
        };
        let mut child = std::thread::spawn(begin).join().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(child.try_wait().unwrap().is_none(), "it ended with the thread");
        std::fs::write(file, child.id().to_string()).unwrap();
        kill(Pid::this(), Signal::SIGKILL).unwrap();
    }

    #[test]
    fn a_child_outlives_its_thread_and_ends_with_a_program_that_is_killed() {
        if let Some(file) = std::env::var_os(INNER) {
            return be_killed(&file);
        }
        let file = std::env::temp_dir().join(format!("mooring-children-{}", std::process::id()));
        let name = "children::tests::a_child_outlives_its_thread_and_ends_with_a_program_that_is_killed";
        let inner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(INNER, &file)
            .output()
            .unwrap();
        assert_eq!(inner.status.signal(), Some(Signal::SIGKILL as i32), "{inner:?}");
        let pid: i32 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        std::fs::remove_file(&file).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !has_ended(pid) {
            assert!(Instant::now() < deadline, "{pid} still runs");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
