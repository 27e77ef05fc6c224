//! The kubelet's door to the mounter, shim and socket in its plugin directory: opened as often as it takes, and moved when the kubelet
//! looks elsewhere.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::core::Core;
use crate::daemon::args::ServeArgs;
use crate::daemon::status::Status;
use crate::drivers::flexvolume::socket::{Socket, SocketError};
use crate::drivers::install::{InstallError, driver_directory, install, is_whole, make, uninstall};
use crate::drivers::plugin_directories::{PluginDirectory, PluginsError};

/// How often the kubelet's directory is looked at, and one that could not be used is tried again.
const PERIOD: Duration = Duration::from_secs(15);

/// Why the kubelet has no door to the mounter.
#[derive(Debug, thiserror::Error)]
enum DoorError {
    #[error(transparent)]
    Plugins(#[from] PluginsError),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// A door that is open.
struct Door {
    directory: PluginDirectory,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

/// The doors that are open.
#[derive(Default)]
struct Doors {
    /// Where the kubelet looks, by what is known now.
    now: Option<Door>,
    /// Where a kubelet looks that has not read its configuration since that was changed. The next one finds the shim in the new
    /// directory from its start, and so all that is mounted.
    before: Vec<Door>,
}

/// Keeps the door open and answers until told to stop; gives the directories in which the shim was at the end.
pub(crate) async fn keep(
    args: Arc<ServeArgs>,
    core: Arc<Core>,
    status: Status,
    stop: CancellationToken,
) -> Vec<PluginDirectory> {
    let mut doors = Doors::default();
    loop {
        match doors.look(&args, &core, &stop) {
            Ok(is_new) => {
                if let Some(door) = &doors.now {
                    status.installed(Ok(format!("the shim is in {}", door.directory.name().display())));
                }
                if is_new {
                    say_checks(&status);
                }
            }
            Err(error) => {
                error!("the kubelet can't reach the mounter: {error}");
                status.installed(Err(error.to_string()));
            }
        }
        if stop.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_none() {
            break;
        }
    }
    let mut directories = Vec::new();
    for door in doors.now.into_iter().chain(doors.before) {
        if let Err(error) = door.serving.await {
            error!(%error, "the socket's task broke");
        }
        directories.push(door.directory);
    }
    directories
}

impl Doors {
    /// Opens a door where the kubelet looks, if there is none, and closes those that it is through with; whether one was opened.
    fn look(&mut self, args: &ServeArgs, core: &Arc<Core>, stop: &CancellationToken) -> Result<bool, DoorError> {
        let now = self.now.as_ref().map(|door| &door.directory);
        let found = match PluginDirectory::find(&args.node, now) {
            // It may be starting again.
            Err(PluginsError::NoKubelet) if now.is_some() => return Ok(false),
            found => found?,
        };
        // Another mounter's shim and socket are as good.
        let is_open = now.is_some_and(|now| now.is(&found)) && is_whole(&found);
        if is_open {
            if let Some(door) = &mut self.now {
                door.directory.witness_of(&found);
            }
        } else {
            let opened = open(args, core, found, stop)?;
            self.before.extend(self.now.replace(opened));
        }
        let (stay, go): (Vec<_>, Vec<_>) = std::mem::take(&mut self.before).into_iter().partition(|door| {
            let is_now = self.now.as_ref().is_some_and(|now| now.directory.is(&door.directory));
            !is_now && door.directory.is_looked_into()
        });
        self.before = stay;
        for door in go {
            let others = self.now.iter().chain(&self.before);
            let is_other = others.into_iter().all(|other| !other.directory.is(&door.directory));
            door.close(is_other);
        }
        Ok(!is_open)
    }
}

fn open(
    args: &ServeArgs,
    core: &Arc<Core>,
    directory: PluginDirectory,
    stop: &CancellationToken,
) -> Result<Door, DoorError> {
    let socket = put(args, &directory)?;
    let stop = stop.child_token();
    let serving = socket.serve(Arc::clone(core), args.call_timeout, stop.clone());
    Ok(Door {
        directory,
        stop,
        serving: tokio::spawn(serving),
    })
}

impl Door {
    /// Takes no more calls here; those under way are finished. `clear`: nothing stays, since no kubelet looks here any more.
    fn close(self, clear: bool) {
        self.stop.cancel();
        if clear {
            let name = self.directory.name();
            match uninstall(&self.directory) {
                Ok(()) => info!(directory = %name.display(), "the kubelet looks elsewhere: the shim is taken out"),
                Err(error) => warn!("the kubelet looks elsewhere, but the shim stays in {name:?}: {error}"),
            }
        }
        // What its socket is removed by has to live as long.
        tokio::spawn(async move {
            let _ = self.serving.await;
            drop(self.directory);
        });
    }
}

/// The socket comes before the shim, so that the shim's first call-out finds it.
fn put(args: &ServeArgs, plugins: &PluginDirectory) -> Result<Socket, DoorError> {
    let driver = make(plugins)?;
    let socket = Socket::bind(&driver).map_err(|error| error.of(&driver_directory(plugins.name())))?;
    let installed = install(&args.shim, plugins)?;
    info!(?installed, directory = %driver_directory(plugins.name()).display(), "shim");
    Ok(socket)
}

fn say_checks(status: &Status) {
    for check in status.checks() {
        if check.ok {
            info!(check = check.name, "{}", check.message);
        } else {
            warn!(check = check.name, check.required, "{}", check.message);
        }
    }
}
