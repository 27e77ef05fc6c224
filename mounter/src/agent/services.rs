//! What the agent does for a volume besides the mount itself, when a client image's program asks with `"$MOORING_AGENT"
//! service …`.
//!
//! Each service belongs to a volume and ends with it: after the volume was unmounted, or when its mount has failed, the
//! agent ends the volume's services in reverse order. That can be repeated, and a restarted agent continues where the
//! last one was: records of all services (`<volume>.json`), the pipes that daemons write to and the volumes' own
//! directories are in memory that ends with the container, as daemons do.
//!
//! Files: [`call`] (the services), [`command`] (how a program asks), [`hold`] (keeps a device), `daemon` (starting
//! one), `process` (ending one), `silence` (a server that does not answer), `directory` (a volume's own), `volume` (the
//! state of one volume), `release` (the end of its services).

pub mod call;
pub mod command;
mod daemon;
mod directory;
mod error;
pub mod hold;
mod process;
mod release;
mod silence;
mod volume;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use mooring_program::error::chain;
use tokio::process::Child;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use self::call::ServiceCall;
use self::command::{SOCKET, VOLUME};
use self::daemon::{Foreground, OutputReader};
pub use self::error::ServiceError;
use self::process::{GRACE, Process, ProcessIdentity};
use self::silence::WatchedServer;
pub use self::volume::ServiceRun;
use self::volume::{KeptService, Live, ServiceRecord, VolumeServices, end_apart};
use super::store::{self, StoreError};
use crate::sys::loop_device::LoopAccess;
use crate::sys::{loop_device, thread};
use crate::volume::mount_table::DeviceNumber;

/// Environment variable: the command for services.
const AGENT: &str = "MOORING_AGENT";

/// Environment variable: the volume's own directory.
const STATE: &str = "MOORING_STATE";

/// How long a daemon that shows a device may take to be ready.
const SHOW_LIMIT: Duration = Duration::from_secs(10);

/// How long to read a daemon's last output after its end.
const OUTPUT_GRACE: Duration = Duration::from_millis(100);

/// The services of all volumes.
#[derive(Debug)]
pub struct Services {
    /// The agent's own directory.
    agent: PathBuf,
    dir: PathBuf,
    volumes: Mutex<BTreeMap<String, VolumeServices>>,
    /// Signals that a daemon has ended by itself.
    ended: Notify,
}

/// A running program of the image that mounts a volume. When this is dropped, the volume gets no more services, and
/// only its mount holds its loop devices.
#[derive(Debug)]
pub struct Running {
    services: Arc<Services>,
    volume: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut volumes = self.services.lock();
        let Some(volume) = volumes.get_mut(&self.volume) else {
            return;
        };
        volume.run = None;
        for kept in &mut volume.kept {
            if let Live::Loop(handle) = &mut kept.live {
                handle.take();
            }
        }
    }
}

impl Services {
    /// The services of an agent whose own directory is `agent`; their files are in `dir`.
    pub fn new(agent: PathBuf, dir: PathBuf) -> Self {
        Self {
            agent,
            dir,
            volumes: Mutex::default(),
            ended: Notify::new(),
        }
    }

    /// Resumes the services that an earlier agent of this container has left.
    pub fn resume(self: &Arc<Self>) {
        for recorded in volume::recorded(&self.dir) {
            let (volume, records) = match recorded {
                Ok(recorded) => recorded,
                Err(error) => {
                    let error = ServiceError::from(error).report();
                    warn!(
                        error,
                        "failed to resume the services of a volume: nothing watches its daemons or ends them. Delete \
                         this client Pod: it ends after its last unmount, and its daemons with it"
                    );
                    continue;
                }
            };
            for record in records {
                let live = self.again(&volume, &record);
                let mut volumes = self.lock();
                let known = volumes.entry(volume.clone()).or_default();
                // If one has ended meanwhile, those that started after it end as well.
                if let (Live::Daemon { process, .. }, true) = (&live, known.has_lost_one()) {
                    end_apart(process);
                }
                known.kept.push(KeptService { record, live });
            }
        }
    }

    /// Waits until a daemon has ended by itself.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Notes that a program of the image is about to mount a volume.
    pub fn begin(self: &Arc<Self>, volume: &str, run: ServiceRun) -> Result<Running, ServiceError> {
        let path = self.state(volume);
        directory::make(&path).map_err(|source| ServiceError::Directory {
            attempted: "make directory",
            path,
            source,
        })?;
        self.lock().entry(volume.to_owned()).or_default().run = Some(run);
        Ok(Running {
            services: Arc::clone(self),
            volume: volume.to_owned(),
        })
    }

    /// Variables in the environment of such a program.
    pub fn environment(&self, volume: &str) -> [(String, OsString); 4] {
        let program = std::env::current_exe().unwrap_or_else(|_| "/proc/1/exe".into());
        [
            (AGENT, program.into()),
            (SOCKET, self.agent.join(super::protocol::SOCKET).into()),
            (VOLUME, volume.into()),
            (STATE, self.state(volume).into()),
        ]
        .map(|(key, value): (&str, OsString)| (key.to_owned(), value))
    }

    /// Runs a service that a program of the image asks for. Returns what the program prints.
    pub async fn serve(
        self: &Arc<Self>,
        volume: &str,
        service: ServiceCall,
        environment: BTreeMap<String, String>,
    ) -> Result<String, ServiceError> {
        let run = self.lock().get(volume).and_then(|volume| volume.run.clone());
        let run = run.ok_or_else(|| ServiceError::NotMounting(volume.to_owned()))?;
        let left = run.until.saturating_duration_since(Instant::now());
        match service {
            ServiceCall::Daemon {
                program,
                pid_file: Some(pid_file),
                ..
            } => {
                let invocation = daemon::invocation(program, environment)?;
                let process = daemon::to_the_background(&invocation, &pid_file, left).await?;
                let program = invocation.program.display().to_string();
                self.keep_daemon(volume, &program, process, None).await?;
            }
            ServiceCall::Daemon { program, ready, .. } => {
                self.start(volume, program, environment, ready.map(|ready| (ready, left)))
                    .await?;
            }
            ServiceCall::ShowDevice { socket, read_only } => {
                let (program, ready) =
                    call::shows(&socket, read_only, &run.volume_id, run.label.as_ref(), &run.directory);
                self.start(volume, program, environment, Some((ready, left.min(SHOW_LIMIT))))
                    .await?;
            }
            ServiceCall::Loop {
                file,
                read_only,
                direct,
            } => {
                let access = LoopAccess { read_only, direct };
                return self.attach(volume, file, access, left).await;
            }
            ServiceCall::GiveDevice { device } => self.give(volume, device, environment, left.min(SHOW_LIMIT)).await?,
            ServiceCall::WatchServer { limit, file } => {
                let record = ServiceRecord::Watch {
                    file,
                    limit: match limit {
                        0 => Duration::MAX,
                        limit => Duration::from_secs(limit),
                    },
                    source: run.source,
                };
                if self
                    .lock()
                    .get(volume)
                    .is_none_or(|volume| volume.daemons().next().is_none())
                {
                    return Err(ServiceError::NoDaemon);
                }
                let live = self.again(volume, &record);
                self.keep(volume, KeptService { record, live })?;
            }
        }
        Ok(String::new())
    }

    /// Starts a daemon in the foreground and waits until it is ready.
    async fn start(
        self: &Arc<Self>,
        volume: &str,
        program: Vec<String>,
        environment: BTreeMap<String, String>,
        ready: Option<(PathBuf, Duration)>,
    ) -> Result<(), ServiceError> {
        let invocation = daemon::invocation(program, environment)?;
        let program = invocation.program.display().to_string();
        let pipe = self.free_name(volume);
        let started = daemon::in_the_foreground(&invocation, &pipe).inspect_err(|_| drop(fs::remove_file(&pipe)));
        let Foreground { child, process, output } = started?;
        let output = Arc::new(output);
        let process = self
            .keep_daemon(volume, &program, process, Some((child, Arc::clone(&output), pipe)))
            .await?;
        let Some((ready, limit)) = ready else {
            return Ok(());
        };
        tokio::select! {
            () = daemon::is_there(ready) => Ok(()),
            _ = process.ended() => {
                tokio::time::sleep(OUTPUT_GRACE).await;
                self.forget(volume, &process)?;
                Err(ServiceError::Ended { program, last_lines: output.last_lines() })
            }
            () = tokio::time::sleep(limit) => {
                end_apart(&process);
                Err(ServiceError::NotReady { program, limit, last_lines: output.last_lines() })
            }
        }
    }

    /// A name for a pipe that is unique among the volume's daemons.
    fn free_name(&self, volume: &str) -> PathBuf {
        let mut number = 0;
        loop {
            let path = self.dir.join(format!("{volume}.{number}.output"));
            if !path.exists() {
                return path;
            }
            number += 1;
        }
    }

    /// Records a daemon and watches it. If it can't be recorded, it is ended.
    async fn keep_daemon(
        self: &Arc<Self>,
        volume: &str,
        program: &str,
        process: Process,
        foreground: Option<(Child, Arc<OutputReader>, PathBuf)>,
    ) -> Result<Arc<Process>, ServiceError> {
        let process = Arc::new(process);
        let (child, reader, output) = match foreground {
            Some((child, reader, pipe)) => (Some(child), Some(reader), Some(pipe)),
            None => (None, None, None),
        };
        let record = ServiceRecord::Daemon {
            program: program.to_owned(),
            process: process.identity,
            output,
        };
        let live = Live::Daemon {
            process: Arc::clone(&process),
            _watcher: self.watch(volume, program, &process, child, reader),
        };
        match self.keep(volume, KeptService { record, live }) {
            Ok(()) => Ok(process),
            Err(error) => {
                // The mount has failed meanwhile: nothing else would end the daemon.
                if process.end(GRACE).await.is_err() {
                    warn!(program, "the daemon does not end, and its mount has failed");
                }
                Err(error)
            }
        }
    }

    /// Records a service, if its volume is still being mounted.
    fn keep(&self, name: &str, kept: KeptService) -> Result<(), ServiceError> {
        let mut volumes = self.lock();
        let volume = volumes.get_mut(name).filter(|volume| volume.run.is_some());
        let volume = volume.ok_or_else(|| ServiceError::NotMounting(name.to_owned()))?;
        volume.kept.push(kept);
        let written = self.write(name, volume);
        if written.is_err() {
            volume.kept.pop();
        }
        Ok(written?)
    }

    /// Removes a daemon that has ended before it was ready: the image's program may start another one in its place.
    fn forget(&self, name: &str, ended: &Arc<Process>) -> Result<(), StoreError> {
        let mut volumes = self.lock();
        let Some(volume) = volumes.get_mut(name).filter(|volume| !volume.ending) else {
            return Ok(());
        };
        let is_it = |live: &Live| matches!(live, Live::Daemon { process, .. } if Arc::ptr_eq(process, ended));
        let Some(at) = volume.kept.iter().position(|kept| is_it(&kept.live)) else {
            return Ok(());
        };
        if let ServiceRecord::Daemon { output: Some(pipe), .. } = volume.kept.remove(at).record {
            let _ = fs::remove_file(pipe);
        }
        self.write(name, volume)
    }

    fn write(&self, name: &str, volume: &VolumeServices) -> Result<(), StoreError> {
        let path = self.dir.join(name).with_extension("json");
        let records: Vec<_> = volume.kept.iter().map(|kept| &kept.record).collect();
        if records.is_empty() {
            let _ = fs::remove_file(path);
            return Ok(());
        }
        store::write(&path, &records)
    }

    /// The live part of a recorded service, in this process.
    fn again(self: &Arc<Self>, volume: &str, record: &ServiceRecord) -> Live {
        match record {
            ServiceRecord::Daemon {
                program,
                process,
                output,
            } => match Process::again(*process) {
                Some(process) => {
                    let process = Arc::new(process);
                    let reader = output.as_deref().and_then(|pipe| OutputReader::of(program, pipe).ok());
                    Live::Daemon {
                        _watcher: self.watch(volume, program, &process, None, reader.map(Arc::new)),
                        process,
                    }
                }
                // It has ended: the services that came after it depended on it.
                None => Live::Gone,
            },
            // The mount held it already, or it is gone.
            ServiceRecord::Loop { .. } => Live::Loop(None),
            ServiceRecord::Watch { file, limit, source } => {
                let server = Arc::default();
                Live::Watch {
                    _task: self.watch_server(volume, file.clone(), *limit, source.clone(), Arc::clone(&server)),
                    server,
                }
            }
        }
    }

    /// Waits for a daemon's end.
    fn watch(
        self: &Arc<Self>,
        volume: &str,
        program: &str,
        process: &Arc<Process>,
        child: Option<Child>,
        reader: Option<Arc<OutputReader>>,
    ) -> AbortOnDropHandle<()> {
        let services = Arc::clone(self);
        let (volume, program, process) = (volume.to_owned(), program.to_owned(), Arc::clone(process));
        AbortOnDropHandle::new(tokio::spawn(async move {
            if let Err(error) = process.ended().await {
                warn!(program, error = %chain(&error), "the daemon is not watched");
                return;
            }
            if let Some(mut child) = child {
                process.end_group();
                let _ = child.wait().await;
            }
            services.ended_by_itself(&volume, &program, process.identity);
            tokio::time::sleep(OUTPUT_GRACE).await;
            drop(reader);
        }))
    }

    /// Ends the daemons of a volume that started after one that has ended. So its mount dies as a whole, and is made
    /// again.
    fn ended_by_itself(&self, name: &str, program: &str, ended: ProcessIdentity) {
        let volumes = self.lock();
        let Some(volume) = volumes.get(name).filter(|volume| !volume.ending) else {
            return;
        };
        info!(volume = name, program, "a daemon of a volume ended");
        let daemons = volume.daemons().skip_while(|process| process.identity != ended).skip(1);
        daemons.for_each(end_apart);
        self.ended.notify_one();
    }

    fn watch_server(
        self: &Arc<Self>,
        volume: &str,
        file: PathBuf,
        limit: Duration,
        source: String,
        server: Arc<WatchedServer>,
    ) -> AbortOnDropHandle<()> {
        let daemons: Vec<_> = self
            .lock()
            .get(volume)
            .map(|volume| volume.daemons().cloned().collect())
            .unwrap_or_default();
        AbortOnDropHandle::new(tokio::spawn(async move {
            let all_ended = async { drop(join_all(daemons.iter().map(|daemon| daemon.ended())).await) };
            // An error is an answer too. If the container has no thread left, nothing is known about the server.
            let ask = || {
                let file = file.clone();
                thread::run_apart(move || silence::read_block(&file))
            };
            let silence = tokio::select! {
                () = all_ended => return,
                silence = server.silent(limit, silence::PERIOD, ask) => silence,
            };
            warn!(
                "the server of {source} was silent for {} s: processes that wait for it get an error",
                silence.as_secs()
            );
            for daemon in &daemons {
                daemon.signal(nix::sys::signal::Signal::SIGKILL);
            }
        }))
    }

    /// How long the server that a volume has watched has not answered; none if it answers.
    pub fn silence(&self, volume: &str) -> Option<Duration> {
        let volumes = self.lock();
        volumes.get(volume)?.servers().filter_map(WatchedServer::silence).max()
    }

    /// Has the daemons of a volume killed whose server is watched, so that processes that wait for it get an error;
    /// whether one is watched.
    pub fn give_up(&self, volume: &str) -> bool {
        let volumes = self.lock();
        let servers = volumes.get(volume).into_iter().flat_map(VolumeServices::servers);
        servers.map(WatchedServer::give_up).count() > 0
    }

    async fn attach(
        &self,
        volume: &str,
        file: PathBuf,
        access: LoopAccess,
        limit: Duration,
    ) -> Result<String, ServiceError> {
        let path = file.clone();
        let attached = thread::run(move || {
            let opened = OpenOptions::new().read(true).write(!access.read_only).open(&file);
            let opened = opened.map_err(|source| ServiceError::Open {
                path: file.clone(),
                source,
            })?;
            Ok::<_, ServiceError>(loop_device::attach(&opened, &file, access)?)
        });
        let device = match tokio::time::timeout(limit, attached).await {
            Ok(Ok(attached)) => attached?,
            Ok(Err(source)) => return Err(ServiceError::Open { path, source }),
            Err(_) => return Err(ServiceError::LoopSilent(path)),
        };
        let record = ServiceRecord::Loop {
            file: loop_device::file_behind(&device.path).unwrap_or_default(),
            device: device.path.clone(),
        };
        let live = Live::Loop(Some(device.handle));
        self.keep(volume, KeptService { record, live })?;
        Ok(device.path.display().to_string())
    }

    /// Keeps a device open for a Pod, and notes which one it is.
    async fn give(
        self: &Arc<Self>,
        volume: &str,
        device: PathBuf,
        environment: BTreeMap<String, String>,
        limit: Duration,
    ) -> Result<(), ServiceError> {
        let found = fs::metadata(&device).map_err(|source| ServiceError::Open {
            path: device.clone(),
            source,
        })?;
        if !found.file_type().is_block_device() {
            return Err(ServiceError::NoDevice(device));
        }
        let agent = std::env::current_exe().unwrap_or_else(|_| "/proc/1/exe".into());
        let (program, ready) = call::holds(&agent, &device, &self.state(volume));
        self.start(volume, program, environment, Some((ready, limit))).await?;
        if let Some(volume) = self.lock().get_mut(volume) {
            volume.given = Some(DeviceNumber::of(found.rdev()));
        }
        Ok(())
    }

    /// The device that the program of a raw block volume gave.
    pub fn given(&self, volume: &str) -> Option<DeviceNumber> {
        self.lock().get(volume).and_then(|volume| volume.given)
    }

    /// Whether all daemons of a volume run; `None` if nothing is known of the volume.
    pub fn are_running(&self, volume: &str) -> Option<bool> {
        let volumes = self.lock();
        let volume = volumes.get(volume)?;
        Some(!volume.has_lost_one() && volume.daemons().all(|daemon| daemon.is_alive()))
    }

    fn state(&self, volume: &str) -> PathBuf {
        self.dir.join(volume)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, VolumeServices>> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
