//! The endpoint that the kubelet calls, the shim and the socket in its plugin directory: retried until it is open, and
//! moved when the kubelet looks elsewhere.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mooring_program::error::chain;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::core::Core;
use crate::drivers::flexvolume::socket::Socket;
use crate::drivers::install::{ShimInstallError, driver_directory, install, is_whole, make, uninstall};
use crate::drivers::plugin_directories::{PluginDirectory, PluginsError};
use crate::drivers::socket::SocketError;
use crate::node::args::NodeArgs;

/// How often the kubelet's directory is looked at, and one that could not be used is tried again.
const PERIOD: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error(transparent)]
    Plugins(#[from] PluginsError),
    #[error(transparent)]
    Install(#[from] ShimInstallError),
    #[error(transparent)]
    Socket(#[from] SocketError),
}

struct Endpoint {
    directory: PluginDirectory,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Endpoints {
    /// Where the kubelet looks, by what is known now.
    now: Option<Endpoint>,
    /// Where a kubelet looks that has not read its configuration since that was changed. The next one finds the shim in
    /// the new directory from its start, and so all that is mounted.
    before: Vec<Endpoint>,
}

pub(crate) struct EndpointSettings {
    pub(crate) node: NodeArgs,
    pub(crate) shim: PathBuf,
    pub(crate) call_timeout: Duration,
}

/// Keeps the endpoint open and answers until told to stop; gives the directories in which the shim was at the end.
/// `installed` is called with where the shim is, or what keeps it from being installed, and with whether it was
/// installed just now.
pub(crate) async fn keep(
    settings: EndpointSettings,
    core: Arc<Core>,
    installed: impl Fn(Result<String, Arc<EndpointError>>, bool),
    stop: CancellationToken,
) -> Vec<PluginDirectory> {
    let mut endpoints = Endpoints::default();
    let mut said = None;
    loop {
        match endpoints.look(&settings, &core, &stop) {
            Ok(is_new) => {
                if let Some(endpoint) = &endpoints.now {
                    let directory = endpoint.directory.name().display();
                    installed(Ok(format!("the shim is in {directory}")), is_new);
                }
                said = None;
            }
            Err(error) => {
                let why = chain(&error);
                if said.as_ref() != Some(&why) {
                    error!("the kubelet can't reach the mounter by FlexVolume: {why}");
                    said = Some(why);
                }
                installed(Err(Arc::new(error)), false);
            }
        }
        if stop.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_none() {
            break;
        }
    }
    let mut directories = Vec::new();
    for endpoint in endpoints.now.into_iter().chain(endpoints.before) {
        if let Err(error) = endpoint.serving.await {
            error!(error = %chain(&error), "the socket's task broke");
        }
        directories.push(endpoint.directory);
    }
    directories
}

impl Endpoints {
    /// Opens an endpoint where the kubelet looks, if there is none, and closes those that it is through with; whether
    /// one was opened.
    fn look(
        &mut self,
        settings: &EndpointSettings,
        core: &Arc<Core>,
        stop: &CancellationToken,
    ) -> Result<bool, EndpointError> {
        let now = self.now.as_ref().map(|endpoint| &endpoint.directory);
        let found = match PluginDirectory::find(&settings.node, now) {
            // It may be starting again.
            Err(PluginsError::NoKubelet) if now.is_some() => return Ok(false),
            found => found?,
        };
        // The shim and socket of another mounter are as good.
        let is_open = now.is_some_and(|now| now.is(&found)) && is_whole(&found);
        if is_open {
            if let Some(endpoint) = &mut self.now {
                endpoint.directory.witness_of(&found);
            }
        } else {
            let opened = open(settings, core, found, stop)?;
            self.before.extend(self.now.replace(opened));
        }
        let (stay, go): (Vec<_>, Vec<_>) = std::mem::take(&mut self.before).into_iter().partition(|endpoint| {
            let is_now = self
                .now
                .as_ref()
                .is_some_and(|now| now.directory.is(&endpoint.directory));
            !is_now && endpoint.directory.is_looked_into()
        });
        self.before = stay;
        for endpoint in go {
            let others = self.now.iter().chain(&self.before);
            let is_other = others.into_iter().all(|other| !other.directory.is(&endpoint.directory));
            endpoint.close(is_other);
        }
        Ok(!is_open)
    }
}

fn open(
    settings: &EndpointSettings,
    core: &Arc<Core>,
    directory: PluginDirectory,
    stop: &CancellationToken,
) -> Result<Endpoint, EndpointError> {
    let socket = put(settings, &directory)?;
    let stop = stop.child_token();
    let serving = socket.serve(Arc::clone(core), settings.call_timeout, stop.clone());
    Ok(Endpoint {
        directory,
        stop,
        serving: tokio::spawn(serving),
    })
}

impl Endpoint {
    /// Takes no more calls here, and finishes those in progress. `clear`: nothing stays, since no kubelet looks here
    /// any more.
    fn close(self, clear: bool) {
        self.stop.cancel();
        if clear {
            let name = self.directory.name();
            match uninstall(&self.directory) {
                Ok(()) => {
                    info!(directory = %name.display(), "the kubelet looks in another directory: removed the shim");
                }
                Err(error) => {
                    warn!(
                        "the kubelet looks in another directory; failed to remove the shim from {name:?}: {}",
                        chain(&error)
                    );
                }
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
fn put(settings: &EndpointSettings, plugins: &PluginDirectory) -> Result<Socket, EndpointError> {
    let driver = make(plugins)?;
    let socket = Socket::bind(&driver).map_err(|error| error.of(&driver_directory(plugins.name())))?;
    let installed = install(&settings.shim, plugins)?;
    info!(?installed, directory = %driver_directory(plugins.name()).display(), "shim");
    Ok(socket)
}
