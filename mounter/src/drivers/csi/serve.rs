//! gRPC over a socket, limited in every direction: HTTP/2 by the crate that the API's client has as well, and what is
//! generated from the protos on top of it.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::{BoxFuture, ready};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use mooring_csi_proto::csi::identity_server::{self, IdentityServer};
use mooring_csi_proto::csi::node_server::{self, NodeServer};
use mooring_csi_proto::registration::registration_server::{self, RegistrationServer};
use mooring_program::error::chain;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::body::Body;
use tower::Service;
use tracing::{debug, warn};

use super::identity::IdentityService;
use super::node::NodeService;
use super::registration::Registration;
use crate::drivers::socket::PrivateSocket;

/// Most connections at a time. The kubelet makes one for each call.
const MOST: usize = 256;

/// Most calls at a time on one connection.
const MOST_STREAMS: u32 = 32;

/// Longest message in bytes: a Secret's megabyte and the options beside it.
const MAX_MESSAGE: usize = 2 << 20;

/// All services; each socket has them all.
#[derive(Clone)]
pub(super) struct CsiServices {
    identity: IdentityServer<IdentityService>,
    node: NodeServer<NodeService>,
    registration: RegistrationServer<Registration>,
}

impl CsiServices {
    pub(super) fn new(node: NodeService, registration: Registration) -> Self {
        Self {
            identity: IdentityServer::new(IdentityService).max_decoding_message_size(MAX_MESSAGE),
            node: NodeServer::new(node).max_decoding_message_size(MAX_MESSAGE),
            registration: RegistrationServer::new(registration).max_decoding_message_size(MAX_MESSAGE),
        }
    }
}

impl Service<Request<Incoming>> for CsiServices {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        // `/package.Service/Method`.
        let service = request.uri().path().split('/').nth(1).unwrap_or_default();
        match service {
            identity_server::SERVICE_NAME => self.identity.call(request),
            node_server::SERVICE_NAME => self.node.call(request),
            registration_server::SERVICE_NAME => self.registration.call(request),
            other => {
                let status = Status::unimplemented(format!("service {other:?} is not served here"));
                Box::pin(ready(Ok(status.into_http())))
            }
        }
    }
}

/// Answers calls until told to stop. Connections that are open then are finished in `connections`.
pub(super) async fn serve(
    socket: PrivateSocket,
    services: CsiServices,
    connections: TaskTracker,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(MOST));
    while let Some(stream) = stop.run_until_cancelled(socket.accept()).await {
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            warn!("{MOST} connections are open: another one is refused");
            continue;
        };
        let (services, stop) = (services.clone(), stop.clone());
        connections.spawn(async move {
            converse(stream, services, stop).await;
            drop(place);
        });
    }
}

async fn converse(stream: UnixStream, services: CsiServices, stop: CancellationToken) {
    let connection = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(MOST_STREAMS)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(services));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(error = %chain(&error), "a connection ended badly");
    }
}

#[cfg(test)]
mod tests;
