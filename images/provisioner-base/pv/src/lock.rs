//! `pv lock`: what of several runs only one may be at.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};

use crate::args::Lock;
use crate::error::Error;

/// Becomes the command, which holds the lock until it and all that it started have ended; comes back only with an
/// error.
pub fn run(args: &Lock) -> Error {
    let Lock { path, command, args } = args;
    let locked = File::open(path).and_then(|file| {
        file.lock()?;
        // An open file is the lock: the command gets it.
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
