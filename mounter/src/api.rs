//! The Kubernetes API as the mounter uses it: every call ends after [`LIMIT`]. Code that can't wait even for that long
//! leaves its calls to a task of their own, as with Events ([`recorder`]). Runs in the daemon.
//!
//! Files: [`own_node`] (labels and annotations), [`recorder`] (Events), [`volume_events`] (those that tell what became of a
//! volume).

pub(crate) mod own_node;
pub mod recorder;
pub mod volume_events;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Either, Full};
use kube::Client;
use kube::client::ClientBuilder;
use tower::{BoxError, Layer, Service};

/// Longest that a call may take, with all of its answer. A watch has no end.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Longest that a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);

/// Longest silence of a connection: a watch hears something at least every 290 s.
const SILENCE: Duration = Duration::from_secs(295);

const _: () = assert!(CONNECT.as_secs() < LIMIT.as_secs());

/// A client for this cluster whose calls take at most [`LIMIT`].
pub fn client(config: kube::Config) -> Result<Client, kube::Error> {
    client_within(config, LIMIT)
}

/// As [`client`], with another limit.
pub(crate) fn client_within(mut config: kube::Config, limit: Duration) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENCE);
    Ok(ClientBuilder::try_from(config)?.with_layer(&Limit(limit)).build())
}

/// The API server is silent.
#[derive(Debug, thiserror::Error)]
#[error("the Kubernetes API did not answer within {0:?}")]
struct Silent(Duration);

/// A layer that ends calls after a time.
#[derive(Debug, Clone, Copy)]
struct Limit(Duration);

impl<S> Layer<S> for Limit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Limited { inner, limit: self.0 }
    }
}

/// See [`Limit`].
#[derive(Debug, Clone)]
struct Limited<S> {
    inner: S,
    limit: Duration,
}

/// An answer: read whole, or a watch's that goes on.
type Answer<R> = Response<Either<Full<Bytes>, R>>;

impl<S, B, R> Service<Request<B>> for Limited<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError> + 'static,
    S::Future: Send + 'static,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Answer<R>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Answer<R>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let is_watch = is_watch(request.uri().query().unwrap_or_default());
        let limit = self.limit;
        // Nothing is sent before the future is polled.
        let answer = self.inner.call(request);
        Box::pin(async move {
            let all = async {
                let answer = answer.await.map_err(Into::into)?;
                if is_watch {
                    return Ok(answer.map(Either::Right));
                }
                let (head, body) = answer.into_parts();
                let body = body.collect().await.map_err(Into::into)?.to_bytes();
                Ok(Response::from_parts(head, Either::Left(Full::new(body))))
            };
            // A watch says at once that it has begun.
            let all = tokio::time::timeout(limit, all).await;
            all.unwrap_or_else(|_| Err(Silent(limit).into()))
        })
    }
}

fn is_watch(query: &str) -> bool {
    query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::Pod;
    use kube::api::{Api, DeleteParams, PostParams};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::{client_within, is_watch};

    /// Limit of the calls of [`silent_server`]'s client.
    const SHORT: Duration = Duration::from_millis(200);

    /// An API server that takes every call and begins each answer with `beginning`, and says nothing more; and its
    /// client.
    pub(crate) async fn silent_server(beginning: &'static str) -> kube::Client {
        silent_server_within(beginning, SHORT).await
    }

    /// [`silent_server`], with a limit of the client's calls.
    pub(crate) async fn silent_server_within(beginning: &'static str, limit: Duration) -> kube::Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut read = [0; 4096];
                    while stream.read(&mut read).await.is_ok_and(|read| read > 0) {
                        let _ = stream.write_all(beginning.as_bytes()).await;
                    }
                });
            }
        });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        client_within(config, limit).unwrap()
    }

    #[tokio::test]
    async fn every_call_to_an_api_that_hangs_ends_in_time_also_in_the_middle_of_its_answer() {
        for beginning in [
            "",
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n{",
        ] {
            let api: Api<Pod> = Api::namespaced(silent_server(beginning).await, "mooring");
            let calls = async {
                [
                    api.get("a").await.map(drop),
                    api.create(&PostParams::default(), &Pod::default()).await.map(drop),
                    api.delete("a", &DeleteParams::default()).await.map(drop),
                ]
            };
            let calls = tokio::time::timeout(Duration::from_mins(1), calls).await;
            for called in calls.expect("a call does not end") {
                let error = format!("{:?}", called.unwrap_err());
                assert!(error.contains("Silent"), "{error}");
            }
        }
    }

    #[test]
    fn a_watch_is_known_by_its_address() {
        assert!(is_watch("labelSelector=a&watch=true&timeoutSeconds=290"));
        assert!(!is_watch("labelSelector=watch%3Dtrue"));
        assert!(!is_watch(""));
    }
}
