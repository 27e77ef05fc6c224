//! Calls by HTTP: one request, one answer, and a pause where the server asks for one.

use std::time::Duration;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, http};

use crate::error::OpenstackError;
use crate::wait::Pace;

pub use ureq::http::Method;

/// Time limit of one call. Cinder answers the call that attaches a volume only when that is done.
const CALL_LIMIT: Duration = Duration::from_mins(3);

const CONNECT_LIMIT: Duration = Duration::from_secs(15);

/// The pause, if a busy server does not say for how long it is busy.
const USUAL_PAUSE: Duration = Duration::from_secs(2);

/// A client of one certificate authority.
#[derive(Debug)]
pub struct Http {
    agent: Agent,
    pauses: Duration,
}

#[derive(Debug)]
pub struct HttpCall<'a> {
    /// What it does, as in "failed to …".
    pub what: &'a str,
    /// Whom it asks.
    pub server: &'static str,
    pub method: Method,
    pub url: &'a str,
    pub headers: Vec<(&'static str, String)>,
    /// JSON, or another type if the headers say one.
    pub body: Option<String>,
}

/// The answer to a call, whatever its status.
#[derive(Debug, Default)]
pub struct Response {
    pub status: u16,
    pub text: String,
    /// Keystone's token.
    pub token: Option<String>,
    /// The request's id in the service's log.
    pub request: Option<String>,
    retry_after: Option<String>,
}

impl Http {
    /// With the public authorities, or with those of a PEM text, which property `from` has.
    pub fn new(authorities: Option<(&str, &str)>, pace: Pace) -> Result<Self, OpenstackError> {
        let roots = match authorities {
            None => RootCerts::WebPki,
            Some((from, pem)) => {
                let bad = |error| OpenstackError::Certificates(from.to_owned(), Box::new(error));
                let mut roots = Vec::new();
                for item in parse_pem(pem.as_bytes()) {
                    if let PemItem::Certificate(certificate) = item.map_err(bad)? {
                        roots.push(certificate);
                    }
                }
                if roots.is_empty() {
                    roots.push(Certificate::from_pem(pem.as_bytes()).map_err(bad)?);
                }
                RootCerts::new_with_certs(&roots)
            }
        };
        let config = Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .http_status_as_error(false)
            // A token must not follow a redirection, nor go through a proxy of the image's environment.
            .max_redirects(0)
            .proxy(None)
            .timeout_global(Some(CALL_LIMIT))
            .timeout_connect(Some(CONNECT_LIMIT))
            .user_agent(concat!("mooring-provisioner-openstack/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: config.new_agent(),
            pauses: pace.pauses,
        })
    }

    /// Makes the call, again and again while the server says that it is busy and until when.
    pub fn send(&self, call: &HttpCall<'_>) -> Result<Response, OpenstackError> {
        let mut left = self.pauses;
        loop {
            let answer = self.once(call)?;
            match answer.pause() {
                Some(pause) if pause <= left => {
                    left = left.saturating_sub(pause.max(Duration::from_millis(1)));
                    std::thread::sleep(pause);
                }
                _ => return Ok(answer),
            }
        }
    }

    fn once(&self, call: &HttpCall<'_>) -> Result<Response, OpenstackError> {
        let unreachable = |source| OpenstackError::Unreachable {
            what: call.what.to_owned(),
            server: call.server,
            url: call.url.to_owned(),
            source: Box::new(source),
        };
        let mut request = http::Request::builder().method(&call.method).uri(call.url);
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        let built = |error: http::Error| unreachable(error.into());
        let sent = match &call.body {
            Some(body) => {
                let has_type = call.headers.iter().any(|(name, _)| *name == "content-type");
                if !has_type {
                    request = request.header("content-type", "application/json");
                }
                self.agent.run(request.body(body.as_str()).map_err(built)?)
            }
            None => self.agent.run(request.body(()).map_err(built)?),
        };
        let mut response = sent.map_err(unreachable)?;
        let header = |name: &str| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let (token, retry_after) = (header("x-subject-token"), header("retry-after"));
        let request = header("x-openstack-request-id").or_else(|| header("x-compute-request-id"));
        let status = response.status().as_u16();
        let text = response.body_mut().read_to_string().map_err(unreachable)?;
        Ok(Response {
            status,
            text,
            token,
            request,
            retry_after,
        })
    }
}

impl Response {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// How long to wait before the same call is made again: a server that is busy has not done it.
    fn pause(&self) -> Option<Duration> {
        let said = self.retry_after.as_deref();
        let seconds = said.and_then(|text| text.trim().parse::<u64>().ok());
        match self.status {
            429 => Some(seconds.map_or(USUAL_PAUSE, Duration::from_secs)),
            // Without a time it is an error like any other. A time of 0 is Cinder's answer when a quota is used up.
            413 | 503 => seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs),
            _ => None,
        }
    }
}

/// A value as part of a query.
pub fn encoded(value: &str) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Http, Response, encoded};
    use crate::test_server::{PACE, call, reply, serve};
    use std::time::Duration;

    #[test]
    fn a_busy_server_is_asked_again_when_it_says() {
        let busy = reply(429, "{}").with("retry-after", "0");
        let (url, seen) = serve(vec![busy.clone(), busy, reply(200, "{}")]);
        let http = Http::new(None, PACE).unwrap();
        assert_eq!(http.send(&call(&url)).unwrap().status, 200);
        assert_eq!(seen.join().unwrap().len(), 3);
    }

    #[test]
    fn a_server_that_is_busy_for_long_has_its_answer_passed_on() {
        let (url, seen) = serve(vec![reply(429, "{}").with("retry-after", "3600")]);
        let http = Http::new(None, PACE).unwrap();
        assert_eq!(http.send(&call(&url)).unwrap().status, 429);
        seen.join().unwrap();
    }

    #[test]
    fn what_is_no_wish_for_a_pause_is_none() {
        let pause = |status, after: Option<&str>| {
            let answer = Response {
                status,
                retry_after: after.map(str::to_owned),
                ..Response::default()
            };
            answer.pause()
        };
        assert_eq!(pause(413, Some("0")), None, "a quota");
        assert_eq!(pause(413, Some("2")), Some(Duration::from_secs(2)));
        assert_eq!(pause(503, None), None);
        assert_eq!(
            pause(429, Some("Fri, 31 Dec 1999 23:59:59 GMT")),
            Some(super::USUAL_PAUSE)
        );
        assert_eq!(pause(500, Some("1")), None);
    }

    #[test]
    fn a_server_that_is_not_there_is_named() {
        let http = Http::new(None, PACE).unwrap();
        let error = http.send(&call("http://127.0.0.1:1/v3")).unwrap_err();
        assert_eq!(error.exit_code(), 75);
        assert!(error.to_string().contains("http://127.0.0.1:1/v3"), "{error}");
    }

    #[test]
    fn certificates_that_are_none_are_refused() {
        let error = Http::new(Some(("cacert", "hello")), PACE).unwrap_err();
        assert_eq!(error.exit_code(), 78);
        assert!(error.to_string().contains("cacert"), "{error}");
    }

    #[test]
    fn a_query_is_encoded() {
        assert_eq!(encoded("a b&c=ü/~-_.9"), "a%20b%26c%3D%C3%BC%2F~-_.9");
    }
}
