//! Programs that a test starts and that end when it does, whatever ends it.
//!
//! The kernel takes the end of the thread that started a program for the end of its parent. Threads of tests and of their runtimes
//! end long before their program does, so one thread that stays starts them all.

use std::ffi::OsStr;
use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result};
use mooring_testbed::command::find_program;

/// What to start, and where to say what became of it.
type Order = (Command, Sender<io::Result<Child>>);

/// A command to be started by [`start`], which is killed when this program ends.
pub fn tied(program: impl AsRef<OsStr>) -> Result<Command> {
    let setpriv = find_program("setpriv").context("setpriv is not on the PATH: install util-linux")?;
    let mut tied = Command::new(setpriv);
    tied.args(["--pdeathsig", "KILL", "--"]).arg(program);
    Ok(tied)
}

/// Starts a command of [`tied`], whose life does not depend on this thread's.
pub fn start(command: Command) -> io::Result<Child> {
    static STARTER: OnceLock<Sender<Order>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, told) in orders {
                // Who asked waits for it.
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

    /// Set for the program that this test starts: itself, to be killed. Its value is a file for the number of what it started.
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
    fn what_was_started_outlives_its_thread_and_ends_with_a_program_that_is_killed() {
        if let Some(file) = std::env::var_os(INNER) {
            return be_killed(&file);
        }
        let file = std::env::temp_dir().join(format!("mooring-children-{}", std::process::id()));
        let name = "children::tests::what_was_started_outlives_its_thread_and_ends_with_a_program_that_is_killed";
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
