//! A way to a worker for a kit that runs outside of the cluster: through the API server and the worker's kubelet, as
//! `kubectl port-forward` has it. It begins at a port of this machine, so that what speaks with workers needs not know.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flex_provisioner::process::call::{Answer as _, CallError};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::Api;
use mooring_contract::worker::PORT;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// It is closed when this is dropped.
pub(super) struct Tunnel {
    port: u16,
    refused: Refused,
    _ends_with_it: JoinSet<()>,
}

/// Why the API did not let the last connection through.
type Refused = Arc<Mutex<Option<CallError>>>;

impl Tunnel {
    /// To a Pod of this namespace and name, which need not be there yet.
    pub(super) async fn open(client: &Client, namespace: &str, name: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let refused = Refused::default();
        let pods = Api::namespaced(client.clone(), namespace);
        let mut task = JoinSet::new();
        task.spawn(accept(listener, pods, name.to_owned(), refused.clone()));
        Ok(Self {
            port,
            refused,
            _ends_with_it: task,
        })
    }

    /// Where it begins, on this machine.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Why the API did not let the last connection through, if that is so.
    pub(super) fn refused(&self) -> Option<CallError> {
        lock(&self.refused).take()
    }
}

async fn accept(listener: TcpListener, pods: Api<Pod>, name: String, refused: Refused) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (pods, name, refused) = (pods.clone(), name.clone(), refused.clone());
        connections.spawn(async move {
            let passed = pass(&pods, &name, stream).await;
            *lock(&refused) = passed.err();
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Passes on what both sides of a connection say. That the worker's side breaks is the other side's to see.
async fn pass(pods: &Api<Pod>, name: &str, mut here: TcpStream) -> Result<(), CallError> {
    let forwarder = pods.portforward(name, &[PORT]).await;
    let mut forwarder = forwarder.or_failed_to("forward a port of", "Pod", name)?;
    if let Some(mut there) = forwarder.take_stream(PORT) {
        let _ = copy_bidirectional(&mut here, &mut there).await;
    }
    forwarder.abort();
    Ok(())
}

fn lock(refused: &Refused) -> MutexGuard<'_, Option<CallError>> {
    refused.lock().unwrap_or_else(PoisonError::into_inner)
}
