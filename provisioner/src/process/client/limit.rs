//! Holding requests to a rate and to a time, as a layer of the client.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

/// A limit; services made by one layer share it.
#[derive(Debug, Clone)]
pub struct Limit {
    bucket: Arc<Mutex<Bucket>>,
    answer: Duration,
}

impl Limit {
    /// At most `qps` requests a second in the long run and `burst` at once, each answered within `answer`. Watches take
    /// no part.
    pub fn new(qps: u32, burst: u32, answer: Duration) -> Self {
        Self {
            bucket: Arc::new(Mutex::new(Bucket::new(qps, burst))),
            answer,
        }
    }
}

impl<S> Layer<S> for Limit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Limited {
            inner,
            limit: self.clone(),
        }
    }
}

/// A client's service that keeps to a [`Limit`].
#[derive(Debug, Clone)]
pub struct Limited<S> {
    inner: S,
    limit: Limit,
}

impl<S, B> Service<Request<B>> for Limited<S>
where
    S: Service<Request<B>>,
    S::Response: 'static,
    S::Error: Into<BoxError> + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let query = request.uri().query().unwrap_or_default();
        let endless = query
            .split('&')
            .any(|pair| matches!(pair, "watch=true" | "watch=1" | "follow=true"));
        // Nothing is sent before the future is polled.
        let answer = self.inner.call(request);
        if endless {
            return Box::pin(async move { answer.await.map_err(Into::into) });
        }
        let wait = self
            .limit
            .bucket
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .reserve(Instant::now());
        let limit = self.limit.answer;
        Box::pin(async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            match tokio::time::timeout(limit, answer).await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err(NoAnswer(limit).into()),
            }
        })
    }
}

/// The API server is silent.
#[derive(Debug, thiserror::Error)]
#[error("no answer from the Kubernetes API within {} s", .0.as_secs())]
struct NoAnswer(Duration);

/// A leaky bucket: each request pushes on the time at which the bucket will be empty again.
#[derive(Debug)]
struct Bucket {
    each: Duration,
    depth: Duration,
    empty_at: Option<Instant>,
}

impl Bucket {
    fn new(qps: u32, burst: u32) -> Self {
        let each = Duration::from_secs(1) / qps.max(1);
        Self {
            each,
            depth: each * burst.saturating_sub(1),
            empty_at: None,
        }
    }

    /// How long the next request has to wait.
    fn reserve(&mut self, now: Instant) -> Duration {
        let empty_at = self.empty_at.map_or(now, |at| at.max(now));
        self.empty_at = Some(empty_at + self.each);
        empty_at.duration_since(now).saturating_sub(self.depth)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::Bucket;

    #[test]
    fn a_burst_goes_through_and_then_the_rate_holds() {
        let mut bucket = Bucket::new(10, 3);
        let now = Instant::now();
        let waits: Vec<_> = (0..6).map(|_| bucket.reserve(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200, 300]);
        let later = now + Duration::from_secs(10);
        assert_eq!(bucket.reserve(later).as_millis(), 0);
    }
}
