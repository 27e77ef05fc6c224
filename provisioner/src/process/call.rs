//! One call to the Kubernetes API: how it failed, and what a refusal means.

use std::borrow::Cow;

use kube::Resource;
use kube::api::Api;
use serde::de::DeserializeOwned;

/// A call that failed: what was attempted on what.
#[derive(Debug, thiserror::Error)]
#[error("failed to {verb} {what} {name}")]
pub struct CallError {
    verb: &'static str,
    what: Cow<'static, str>,
    name: String,
    source: Box<kube::Error>,
}

impl CallError {
    /// `verb` and `what` as in "failed to create Pod x".
    pub fn new(verb: &'static str, what: impl Into<Cow<'static, str>>, name: &str, source: kube::Error) -> Self {
        Self {
            verb,
            what: what.into(),
            name: name.to_owned(),
            source: Box::new(source),
        }
    }

    /// The HTTP status of the answer; 0 if there was none.
    pub(crate) fn code(&self) -> u16 {
        code(&self.source)
    }

    /// Whether the API refused it since the object has changed, or since its name is taken.
    pub fn is_conflict(&self) -> bool {
        is_conflict(&self.source)
    }

    /// Whether the caller has no right to that, or an admission policy or the API's rules allow nobody to. A JSON patch
    /// whose test fails is answered in the same way.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.code(), 403 | 422)
    }

    /// Whether the API refused it since the caller has no right to that.
    pub fn lacks_right(&self) -> bool {
        self.category() == "forbidden"
    }

    /// What the API server answered, if it did.
    pub fn answer(&self) -> Option<&str> {
        match self.source.as_ref() {
            kube::Error::Api(status) => Some(&status.message),
            _ => None,
        }
    }

    /// Bounded name for metrics.
    pub fn category(&self) -> &'static str {
        match self.source.as_ref() {
            kube::Error::Api(status) => match status.code {
                403 => "forbidden",
                404 => "not-found",
                409 => "conflict",
                422 | 400 => "invalid",
                429 => "throttled",
                _ => "api",
            },
            _ => "unreachable",
        }
    }
}

/// The answer to a call, whose failure does not say yet what was attempted.
pub trait Answer<T> {
    /// `verb` and `what` as in [`CallError::new`].
    fn or_failed_to(self, verb: &'static str, what: &'static str, name: &str) -> Result<T, CallError>;
}

impl<T> Answer<T> for Result<T, kube::Error> {
    fn or_failed_to(self, verb: &'static str, what: &'static str, name: &str) -> Result<T, CallError> {
        self.map_err(|source| CallError::new(verb, what, name, source))
    }
}

/// The object is gone, which is as well.
pub(crate) const GONE: &[u16] = &[404];
/// An object of the name is there, which is as well.
pub(crate) const TAKEN: &[u16] = &[409];
/// The object has changed or is gone: somebody was quicker.
pub(crate) const CHANGED: &[u16] = &[404, 409];

/// The result of a call, some of whose failures are no failures.
pub(crate) trait Tolerant<T> {
    /// `None` if the API answered with one of these codes.
    fn unless(self, codes: &[u16]) -> Result<Option<T>, CallError>;
}

impl<T> Tolerant<T> for Result<T, CallError> {
    fn unless(self, codes: &[u16]) -> Result<Option<T>, CallError> {
        match self {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if codes.contains(&error.code()) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The HTTP status of an answer; 0 if there was none.
fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// Whether there is no such object.
pub fn is_not_found(error: &kube::Error) -> bool {
    code(error) == 404
}

/// Whether the object has changed, or its name is taken.
pub fn is_conflict(error: &kube::Error) -> bool {
    code(error) == 409
}

/// Whether the same call may be answered otherwise later: the API server had no answer, or not now.
pub fn may_pass(error: &kube::Error) -> bool {
    matches!(code(error), 0 | 401 | 408 | 409 | 429 | 500..)
}

/// Whether the object of this name and uid is there, read from the API.
pub async fn is_there<K>(api: &Api<K>, name: &str, uid: &str) -> Result<bool, CallError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let live = api.get_metadata_opt(name).await;
    let live = live.map_err(|source| CallError::new("read", "object", name, source))?;
    Ok(live.is_some_and(|live| live.metadata.uid.as_deref() == Some(uid)))
}
