//! The end of a volume's services.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooring_program::error::chain;
use tracing::warn;

use super::process::GRACE;
use super::volume::{Live, ServiceRecord};
use super::{ServiceError, Services, directory};
use crate::sys::{loop_device, thread};

/// How long to wait for a loop device that is in use: the kernel may still be writing what a file system had in memory.
const LOOP_LIMIT: Duration = Duration::from_secs(15);

/// How often to check it.
const LOOP_PERIOD: Duration = Duration::from_millis(100);

/// How long unmounting a file system on the way may take, before its daemon is ended all the same.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(10);

impl Services {
    /// Ends a volume's services, the last one first, and removes its own directory. The caller repeats it until it
    /// succeeds; success if there are none.
    pub async fn release(self: &Arc<Self>, volume: &str) -> Result<(), ServiceError> {
        let released = self.release_all(volume).await;
        if let Some(volume) = self.lock().get_mut(volume) {
            volume.ending = false;
        }
        released
    }

    async fn release_all(self: &Arc<Self>, volume: &str) -> Result<(), ServiceError> {
        let mut unmounted = false;
        loop {
            let (record, process) = {
                let mut volumes = self.lock();
                let Some(volume) = volumes.get_mut(volume) else {
                    break;
                };
                volume.ending = true;
                let Some(last) = volume.kept.last_mut() else {
                    break;
                };
                let process = match &mut last.live {
                    Live::Daemon { process, .. } => Some(Arc::clone(process)),
                    Live::Loop(handle) => {
                        handle.take();
                        None
                    }
                    Live::Watch { .. } | Live::Gone => None,
                };
                (last.record.clone(), process)
            };
            match (&record, process) {
                (ServiceRecord::Daemon { program, .. }, Some(process)) => {
                    if !unmounted {
                        // What it has in memory is written through the daemon.
                        self.unmount_on_the_way(volume).await;
                        unmounted = true;
                    }
                    let ended = process.end(GRACE).await;
                    ended.map_err(|_| ServiceError::NotEnded(program.clone()))?;
                }
                (ServiceRecord::Loop { device, file }, _) => loop_is_gone(device, file).await?,
                _ => {}
            }
            if let ServiceRecord::Daemon { output: Some(pipe), .. } = &record {
                let _ = fs::remove_file(pipe);
            }
            let mut volumes = self.lock();
            if let Some(known) = volumes.get_mut(volume) {
                known.kept.pop();
                self.write(volume, known)?;
            }
        }
        self.unmount_on_the_way(volume).await;
        let path = self.state(volume);
        directory::remove(&path).map_err(|source| ServiceError::Directory {
            attempted: "remove directory",
            path,
            source,
        })?;
        self.lock().remove(volume);
        Ok(())
    }

    /// Unmounts the mounts in a volume's own directory. If a server does not accept the data, the mount is left until
    /// its daemon ends.
    async fn unmount_on_the_way(&self, volume: &str) {
        let path = self.state(volume);
        let unmounted = thread::run({
            let path = path.clone();
            move || directory::unmount_all(&path)
        });
        match tokio::time::timeout(UNMOUNT_LIMIT, unmounted).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error)) | Err(error)) => {
                warn!(path = %path.display(), error = %chain(&error), "failed to unmount what is in it");
            }
            Err(_) => warn!(path = %path.display(), "what is mounted in it does not answer"),
        }
    }
}

/// Waits until a loop device has released a file. By then, it may be attached to another file.
async fn loop_is_gone(device: &Path, file: &str) -> Result<(), ServiceError> {
    let is_ours = || loop_device::file_behind(device).is_some_and(|now| !file.is_empty() && now.starts_with(file));
    let until = Instant::now() + LOOP_LIMIT;
    while is_ours() {
        if Instant::now() >= until {
            return Err(ServiceError::InUse(device.to_owned()));
        }
        tokio::time::sleep(LOOP_PERIOD).await;
    }
    Ok(())
}
