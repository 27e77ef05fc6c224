//! Watches the mount table for changes.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::watch;

/// Counts the changes of this process' mount table while a receiver exists.
///
/// A thread of its own waits for them: all it does is to sleep in the kernel.
pub fn mount_table() -> io::Result<watch::Receiver<u64>> {
    let table = File::open("/proc/self/mountinfo")?;
    let (sender, receiver) = watch::channel(0);
    std::thread::Builder::new()
        .name("mount-table".to_owned())
        .spawn(move || {
            loop {
                let mut polled = [PollFd::new(table.as_fd(), PollFlags::POLLPRI)];
                match poll(&mut polled, PollTimeout::NONE) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(_) => return,
                }
                if sender.is_closed() {
                    return;
                }
                sender.send_modify(|count: &mut u64| *count += 1);
            }
        })?;
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::mount_table;

    #[test]
    fn the_mount_table_can_be_listened_to() {
        assert!(mount_table().is_ok());
    }
}
