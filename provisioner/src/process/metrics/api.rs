//! Counting requests to the API server, as a layer of the client.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Method, Request, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tower::{Layer, Service};

use super::{Histograms, new, register};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    resource: Cow<'static, str>,
    code: u16,
}

/// Requests to the API server by verb, resource and code (0 when there was no answer).
#[derive(Debug, Clone)]
pub struct ApiMetrics {
    requests: Family<RequestLabels, Counter>,
    durations: Histograms,
}

impl ApiMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let durations: Histograms = Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 4.0, 8)));
        let took = "Time to the response headers; for a watch, to its start";
        Self {
            requests: new(registry, "api_requests", "Requests to the API server"),
            durations: register(registry, "api_request_duration_seconds", took, durations),
        }
    }

    /// Counts one request. `resource` is a kind's plural, with the subresource behind a slash.
    pub fn count(&self, verb: &'static str, resource: impl Into<Cow<'static, str>>, code: u16) {
        self.requests
            .get_or_create(&RequestLabels {
                verb,
                resource: resource.into(),
                code,
            })
            .inc();
    }
}

impl<S> Layer<S> for ApiMetrics {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Counted {
            inner,
            metrics: self.clone(),
        }
    }
}

/// A client's service that counts.
#[derive(Debug, Clone)]
pub struct Counted<S> {
    inner: S,
    metrics: ApiMetrics,
}

impl<S, B, R> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (verb, resource) = name(
            request.method(),
            request.uri().path(),
            request.uri().query().unwrap_or_default(),
        );
        let metrics = self.metrics.clone();
        let start = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().map_or(0, |response| response.status().as_u16());
            metrics.count(verb, resource, code);
            metrics
                .durations
                .get_or_create(&[("verb", verb)])
                .observe(start.elapsed().as_secs_f64());
            answer
        })
    }
}

/// Verb and resource of a request, as RBAC would call them, without any object's name.
fn name(method: &Method, path: &str, query: &str) -> (&'static str, String) {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    // /api/v1/… or /apis/<group>/<version>/…
    let prefix = match parts.next() {
        Some("api") => 1,
        Some("apis") => 2,
        _ => return (verb(method, false, false), "other".to_owned()),
    };
    let rest: Vec<_> = parts.skip(prefix).collect();
    let (resource, name, sub) = match rest[..] {
        ["namespaces", _, resource] | [resource] => (resource, false, None),
        ["namespaces", _, resource, _] | [resource, _] => (resource, true, None),
        ["namespaces", _, resource, _, sub, ..] | [resource, _, sub] => (resource, true, Some(sub)),
        _ => ("other", false, None),
    };
    let watch = query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1");
    let resource = match sub {
        Some(sub) => format!("{resource}/{sub}"),
        None => resource.to_owned(),
    };
    (verb(method, name, watch), resource)
}

fn verb(method: &Method, name: bool, watch: bool) -> &'static str {
    match *method {
        _ if watch => "watch",
        Method::GET if name => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if name => "delete",
        Method::DELETE => "deletecollection",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::name;

    #[test]
    fn requests_are_named_without_their_object() {
        for (method, path, query, verb, resource) in [
            (Method::GET, "/api/v1/namespaces/a/pods/x", "", "get", "pods"),
            (Method::GET, "/api/v1/namespaces/a/pods", "limit=50", "list", "pods"),
            (
                Method::GET,
                "/api/v1/persistentvolumes",
                "watch=true&x=y",
                "watch",
                "persistentvolumes",
            ),
            (Method::GET, "/api/v1/namespaces/a/pods/x/log", "", "get", "pods/log"),
            (
                Method::POST,
                "/api/v1/namespaces/a/serviceaccounts/x/token",
                "",
                "create",
                "serviceaccounts/token",
            ),
            (
                Method::PATCH,
                "/apis/storage.k8s.io/v1/storageclasses/x",
                "",
                "patch",
                "storageclasses",
            ),
            (
                Method::DELETE,
                "/api/v1/persistentvolumes/x",
                "",
                "delete",
                "persistentvolumes",
            ),
            (
                Method::PATCH,
                "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/x/status",
                "",
                "patch",
                "volumesnapshotcontents/status",
            ),
            (Method::GET, "/api/v1/namespaces/a", "", "get", "namespaces"),
            (Method::GET, "/version", "", "list", "other"),
        ] {
            assert_eq!(
                name(&method, path, query),
                (verb, resource.to_owned()),
                "{method} {path}"
            );
        }
    }
}
