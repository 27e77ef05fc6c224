//! `pv lock`: runs a command that only one run may execute at a time.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};

use crate::args::Lock;
use crate::error::Error;

/// Replaces this process with the command, which holds the lock until it and all its children have ended; returns only
/// an error.
pub fn run(args: &Lock) -> Error {
    let Lock { path, command, args } = args;
    let locked = File::open(path).and_then(|file| {
        file.lock()?;
        // The open file is the lock: the command inherits it.
        fcntl_setfd(&file, FdFlags::empty())?;
        Ok(file)
    });
    let _held = match locked {
        Ok(file) => file,
        Err(source) => {
            let path = path.clone();
            return Error::Lock { path, source };
        }
    };
    Error::Run {
        command: command.display().to_string(),
        source: Command::new(command).args(args).exec(),
    }
}
