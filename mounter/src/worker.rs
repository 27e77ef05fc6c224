//! Whatever may block is done by a worker: the mounter's own program once more (`mounter worker`), in a process group of
//! its own, with one task and a deadline.
//!
//! The daemon itself never touches a volume's directory or device: a dead server can hold a process in the kernel where
//! no signal reaches it, and then it is only a worker that hangs. It is left behind and reaped when the kernel lets go.

mod process;
pub mod task;

pub use process::{WorkerError, Workers};
pub use task::{MountTask, Task};

use std::io::{Read, Write};

use crate::client::MountError;
use crate::clients::{host, kernel, local, pool};
use crate::sys::{Kernel, Sys};
use crate::unmount;
use task::Report;

/// Runs the task that comes on standard input and puts the report on standard output.
///
/// # Errors
/// Only if one of the two can't be used: a task that fails is a report, too.
pub fn main() -> std::io::Result<()> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    let task: Task = serde_json::from_slice(&text)?;
    let report = match perform(&Kernel, &task) {
        Ok(()) => Report::Done,
        Err(error) => Report::Failed(error),
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&serde_json::to_vec(&report)?)?;
    stdout.flush()
}

fn perform(sys: &impl Sys, task: &Task) -> Result<(), MountError> {
    match task {
        Task::Local { pool, mount } => local::mount(sys, pool, mount),
        Task::Pool { pool, mount } => pool::mount(sys, pool, mount),
        Task::Kernel { mount } => kernel::mount(sys, mount),
        Task::Host { namespace, mount } => host::mount(sys, namespace.as_deref(), mount),
        Task::Unmount { target, detach } => unmount::unmount(sys, target, *detach),
        Task::ClearStage { namespace, target } => host::clear(sys, namespace.as_deref(), target),
        Task::Expand {
            pool,
            volume,
            target,
            size,
        } => local::expand(sys, pool, volume, target, *size),
    }
}
