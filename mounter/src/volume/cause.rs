//! Why something failed: the error itself, while it stays in its process.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use mooring_program::error::chain;
use serde::{Deserialize, Serialize};

/// An error with its sources. Only its text goes from a worker to the daemon, where the cause has no sources any more.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl Cause {
    pub fn of(error: impl Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain(&*self.0))
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

impl From<String> for Cause {
    fn from(text: String) -> Self {
        Self(Box::<dyn Error + Send + Sync>::from(text).into())
    }
}

impl From<&str> for Cause {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<Cause> for String {
    fn from(cause: Cause) -> Self {
        cause.to_string()
    }
}

/// Two causes with the same text are equal: one of them may have come from a worker.
impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Cause {}

#[cfg(test)]
mod tests {
    use std::io;

    use super::Cause;

    #[derive(Debug, thiserror::Error)]
    #[error("failed to read the pool")]
    struct Outer(#[source] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("no pool: {0}")]
    struct Inlined(#[source] io::Error);

    fn gone() -> io::Error {
        io::Error::from(io::ErrorKind::NotFound)
    }

    #[test]
    fn a_cause_says_every_source_once() {
        let expected = format!("failed to read the pool: {}", gone());
        assert_eq!(Cause::of(Outer(gone())).to_string(), expected);
        let expected = format!("no pool: {}", gone());
        assert_eq!(Cause::of(Inlined(gone())).to_string(), expected);
    }

    #[test]
    fn a_cause_keeps_its_error_until_it_is_sent_and_its_text_after_that() {
        let cause = Cause::of(Outer(gone()));
        assert!(cause.0.is::<Outer>());
        let wire = serde_json::to_string(&cause).unwrap();
        let read: Cause = serde_json::from_str(&wire).unwrap();
        assert_eq!(read, cause);
        assert!(!read.0.is::<Outer>());
    }
}
