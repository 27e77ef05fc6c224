//! A worker does what may block. It runs the mounter's own program (`mounter worker`) in a process group of its own,
//! with one task and a deadline.
//!
//! The daemon itself never touches a volume's directory or device: a dead server can hold a process in the kernel where
//! no signal reaches it, and then only a worker hangs. The daemon leaves it behind, and reaps it when it ends at last.
//!
//! Files: [`task`] (what passes between the two), `process` (the daemon's side), `turns` (one question at a time), and what
//! a worker runs: [`clients`]
//! (mounts), [`unmount`], [`last_user`] (keeps an SMB volume until its server answers), [`force`] (ends what waits for
//! a server), [`usage`] (how full a volume is), [`pod_group`] (whose its files are), [`graft`] (puts a new mount where a dead one is; agents use it too).

pub mod clients;
pub mod force;
pub mod graft;
pub mod last_user;
pub mod pod_group;
mod process;
pub mod task;
mod turns;
pub mod unmount;
pub mod usage;

pub use process::{REAP, WorkerError, Workers};
pub use task::Task;

use std::ffi::CStr;
use std::io::{Read, Write};
use std::os::fd::AsFd as _;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::Signal;

use self::clients::{given, host, local, pool, self_mode};
use crate::sys::graft::DeviceNode;
use crate::sys::look::LookedAt;
use crate::sys::{Kernel, Sys};
use crate::volume::job::{Access, MountError};
use crate::volume::mount_table::Table;
use crate::volume::target::Target;
use last_user::LastUser;
use task::{END, WorkerReport};

/// A worker's name (`comm`) once it has its task. Until then it has its program's name.
pub const BUSY: &CStr = c"mounter-worker";

/// Runs the task that comes on standard input and puts the report on standard output.
///
/// # Errors
/// Only if one of the two can't be used: a task that fails is a report, too.
pub fn main() -> std::io::Result<()> {
    if !end_with_the_daemon() {
        return Ok(());
    }
    std::env::set_current_dir("/")?;
    // Nearly every task begins with this. To do it ahead loads its pages before a task waits for them.
    drop(Table::read());
    let mut text = Vec::with_capacity(4096);
    std::io::stdin().read_to_end(&mut text)?;
    if text.is_empty() {
        // It was started ahead, and not needed.
        return Ok(());
    }
    set_name(BUSY)?;
    let task: Task = serde_json::from_slice(&text)?;
    // Before the task: what is detached can't be opened any more.
    let last_user = match &task {
        Task::Unmount { target, detach: true } => LastUser::of(&Kernel, &Table::read()?, target),
        _ => None,
    };
    let report = perform(&Kernel, &task).unwrap_or_else(WorkerReport::Failed);
    let mut text = serde_json::to_vec(&report)?;
    text.push(END);
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&text)?;
    stdout.flush()?;
    // The daemon has its report, and waits no longer.
    if let Some(last_user) = last_user {
        last_user.stay(&Kernel);
    }
    Ok(())
}

/// Has the kernel end this process with the daemon; whether the daemon still runs. A mount that no one waits for must
/// not happen later, when the kubelet may have been told that the volume is unmounted.
fn end_with_the_daemon() -> bool {
    let bound = set_pdeathsig(Signal::SIGKILL).is_ok();
    // It may have ended before that call. Only the daemon has the other end of this pipe.
    let stdout = std::io::stdout();
    let mut report = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let polled = poll(&mut report, PollTimeout::ZERO).is_ok();
    bound
        && polled
        && !report[0]
            .revents()
            .is_some_and(|seen| seen.contains(PollFlags::POLLERR))
}

fn look(sys: &impl Sys, target: &Target) -> Result<LookedAt, MountError> {
    sys.look(target)
        .map_err(MountError::failed_to(format!("look at {target}")))
}

fn perform(sys: &impl Sys, task: &Task) -> Result<WorkerReport, MountError> {
    match task {
        Task::Look { target } => return look(sys, target).map(WorkerReport::Found),
        Task::Usage { target } => return usage::usage(target).map(WorkerReport::Usage),
        Task::Give(task) => return pod_group::give(sys, task).map(WorkerReport::Walked),
        Task::Graft(task) => graft::graft(&mut DeviceNode::default(), task),
        Task::Local { pool, grant } => match grant.access() {
            Access::FileSystem => local::mount(sys, pool, grant),
            Access::Device => local::show(sys, pool, grant),
        },
        Task::ShowGiven { device, grant } => given::show(sys, *device, grant),
        Task::Hide { pool, target } => local::hide(sys, pool, target),
        Task::Pool { pool, grant } => pool::mount(sys, pool, grant),
        Task::Kernel { namespace, grant } => self_mode::mount(sys, namespace.as_deref(), grant),
        Task::Host { namespace, grant } => host::mount(sys, namespace.as_deref(), grant),
        Task::Unmount { target, detach } => unmount::unmount(sys, target, *detach),
        Task::UnmountMissing { target } => unmount::unmount_missing(sys, target),
        Task::Force {
            namespace,
            target,
            over,
        } => force::force(sys, namespace.as_deref(), target, over),
        Task::ClearStage { namespace, target } => host::clear(sys, namespace.as_deref(), target),
        Task::Expand { pool, target, size } => local::expand(sys, pool, target, *size),
    }?;
    Ok(WorkerReport::Done)
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::{Task, WorkerReport, perform};
    use crate::sys::fake::{Fake, target};
    use crate::sys::look::LookedAt;

    #[test]
    fn a_look_tells_nothing_a_live_mount_and_a_dead_one_apart() {
        let mounted = || Fake::default().mounted(&target(), "h:/a", "fuse.sshfs");
        let look = Task::Look { target: target() };
        for (fake, expected) in [
            (Fake::default(), LookedAt::Nothing),
            (mounted(), LookedAt::Alive),
            (mounted().dead("h:/a"), LookedAt::Dead),
        ] {
            assert_eq!(perform(&fake, &look), Ok(WorkerReport::Found(expected)));
            assert_eq!(fake.calls(), ["look"], "it only looks");
        }
        let error = perform(&Fake::default().fail("look", 0, Errno::ENOENT), &look).unwrap_err();
        assert_eq!(error.category(), "failed");
    }

    #[test]
    fn a_dead_mount_is_taken_off_with_what_lies_on_it() {
        let fake = Fake::default()
            .mounted(&target(), "h:/a", "fuse.sshfs")
            .mounted(&target(), "h:/b", "fuse.sshfs")
            .dead("h:/b");
        let unmount = Task::Unmount {
            target: target(),
            detach: true,
        };
        assert_eq!(perform(&fake, &unmount), Ok(WorkerReport::Done));
        assert_eq!(fake.mounts_on(&target()), 0);
    }
}
