//! Starts a daemon and waits until it is ready.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::AT_FDCWD;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rustix::fs::{AtFlags, FileType, StatxFlags, statx};
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio_util::task::AbortOnDropHandle;

use super::error::ServiceError;
use super::process::Process;
use crate::agent::program::Invocation;
use crate::agent::run::{self, DAEMON_LINES, LastLines, OutputLines};
use crate::sys::look::is_mount_point;
use crate::sys::{absent_is_fine, thread};

/// How often to check whether a daemon is ready.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// How long a program that has gone to the background may take to write its process id.
const PID_FILE_LIMIT: Duration = Duration::from_secs(2);

pub(super) fn invocation(
    program: Vec<String>,
    environment: BTreeMap<String, String>,
) -> Result<Invocation, ServiceError> {
    let mut words = program.into_iter();
    let program = words.next().ok_or(ServiceError::NoProgram)?;
    Ok(Invocation {
        program: program.into(),
        args: words.map(Into::into).collect(),
        env: environment
            .into_iter()
            .map(|(key, value)| (key, value.into()))
            .collect(),
    })
}

/// Runs a program that goes to the background by itself, until it has done so.
pub(super) async fn to_the_background(
    invocation: &Invocation,
    pid_file: &Path,
    limit: Duration,
) -> Result<Process, ServiceError> {
    let failed = |source| ServiceError::PidFile {
        program: invocation.program.display().to_string(),
        path: pid_file.to_owned(),
        source,
    };
    // A file of an earlier run would be taken for this one's.
    absent_is_fine(fs::remove_file(pid_file)).map_err(failed)?;
    run::run_keeping(DAEMON_LINES, invocation, limit).await?;
    let until = Instant::now() + PID_FILE_LIMIT;
    loop {
        match read_pid(pid_file).and_then(Process::of) {
            Ok(process) => return Ok(process),
            Err(error) if Instant::now() >= until => return Err(failed(error)),
            Err(_) => tokio::time::sleep(LOOK_PERIOD).await,
        }
    }
}

fn read_pid(path: &Path) -> io::Result<i32> {
    let text = fs::read_to_string(path)?;
    text.trim()
        .parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

pub(super) struct Foreground {
    pub(super) child: Child,
    pub(super) process: Process,
    pub(super) output: OutputReader,
}

/// Starts a program that stays in the foreground. Its output goes through a named pipe, which the daemon itself keeps
/// open. So it does not notice a restart of the agent.
pub(super) fn in_the_foreground(invocation: &Invocation, pipe: &Path) -> Result<Foreground, ServiceError> {
    let program = invocation.program.display().to_string();
    let listen = |source| ServiceError::Listen {
        program: program.clone(),
        source,
    };
    mkfifo(pipe, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|errno| listen(errno.into()))?;
    let output = OutputReader::of(&program, pipe).map_err(listen)?;
    let (stdout, stderr) = open_for_output(pipe).map_err(listen)?;
    let child = run::start(invocation, stdout, stderr)?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
    let process = Process::of(pid).map_err(listen)?;
    Ok(Foreground { child, process, output })
}

/// The daemon's standard output and standard error. They are open for reading as well, so that writing goes on while no
/// agent reads.
fn open_for_output(pipe: &Path) -> io::Result<(File, File)> {
    let stdout = OpenOptions::new().read(true).write(true).open(pipe)?;
    let stderr = stdout.try_clone()?;
    Ok((stdout, stderr))
}

/// Reads a daemon's output and writes it to the log.
#[derive(Debug)]
pub(super) struct OutputReader {
    last_lines: LastLines,
    _task: AbortOnDropHandle<()>,
}

impl OutputReader {
    pub(super) fn of(program: &str, path: &Path) -> io::Result<Self> {
        // Opened for writing as well, so that there is no end of file when no other process has it open.
        let output = pipe::OpenOptions::new().read_write(true).open_receiver(path)?;
        let last_lines = LastLines::of(DAEMON_LINES);
        let task = tokio::spawn(last_lines.clone().keep(program.to_owned(), output));
        Ok(Self {
            last_lines,
            _task: AbortOnDropHandle::new(task),
        })
    }

    pub(super) fn last_lines(&self) -> OutputLines {
        self.last_lines.get()
    }
}

/// Waits until a path is ready: anything but a directory, or a directory with a file system mounted on it that answers.
pub(super) async fn is_there(path: PathBuf) {
    loop {
        let path = path.clone();
        // The look may go to the daemon itself.
        if let Ok(true) = thread::run(move || look(&path)).await {
            return;
        }
        tokio::time::sleep(LOOK_PERIOD).await;
    }
}

fn look(path: &Path) -> bool {
    // In this order, so that the file system itself is asked.
    let mounted = is_mount_point(AT_FDCWD, path) == Ok(true);
    let found = statx(AT_FDCWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
    found.is_ok_and(|found| mounted || FileType::from_raw_mode(found.stx_mode.into()) != FileType::Directory)
}
