//! Where a volume of a file server is.

/// Longest source that the kernel takes.
pub(in crate::worker::clients) const LONGEST: usize = 255;

/// A server and a path there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::worker::clients) struct RemoteSource {
    /// The server's name or address.
    pub(in crate::worker::clients) host: String,
    /// The path there, without needless slashes.
    pub(in crate::worker::clients) path: String,
    /// Both, as the kernel gets them and the mount table shows them.
    pub(in crate::worker::clients) text: String,
}

/// What is wrong with the path of a source; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::worker::clients) enum RemotePathError {
    #[error("option source={0:?} has a part \".\" or \"..\" in its path: write the path without it")]
    Dots(String),
    #[error("option source={0:?} is longer than the {LONGEST} bytes that the kernel takes: shorten the path")]
    TooLong(String),
}

impl RemoteSource {
    /// The source `given`, of a server's `host` and a `path` there. `start` is all that the kernel gets before the
    /// path.
    pub(in crate::worker::clients) fn new(
        given: &str,
        host: &str,
        start: &str,
        path: &str,
    ) -> Result<Self, RemotePathError> {
        let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
        if parts.iter().any(|part| [".", ".."].contains(part)) {
            return Err(RemotePathError::Dots(given.to_owned()));
        }
        let path = parts.join("/");
        let text = format!("{start}{path}");
        if text.len() > LONGEST {
            return Err(RemotePathError::TooLong(given.to_owned()));
        }
        let host = host.to_owned();
        Ok(Self { host, path, text })
    }

    /// The root of the server, as the kernel gets it.
    pub(in crate::worker::clients) fn root(&self) -> &str {
        self.text.strip_suffix(&self.path).unwrap_or(&self.text)
    }
}

/// Whether a text can be a server's name or an IPv4 address.
pub(in crate::worker::clients) fn is_host_name(host: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    !host.is_empty() && !host.starts_with('-') && host.chars().all(is_name)
}

#[cfg(test)]
mod tests {
    use super::{RemotePathError, RemoteSource};

    fn read(path: &str) -> Result<RemoteSource, RemotePathError> {
        RemoteSource::new("given", "nas", "nas:/", path)
    }

    #[test]
    fn needless_slashes_go() {
        for (path, plain) in [("a", "a"), ("/a//b/", "a/b"), ("", ""), ("a b/ä", "a b/ä")] {
            let source = read(path).unwrap();
            assert_eq!(source.root(), "nas:/");
            assert_eq!((source.path.as_str(), source.text), (plain, format!("nas:/{plain}")));
        }
    }

    #[test]
    fn a_path_that_leads_upwards_is_refused() {
        for path in ["..", "a/../b", "./a", "a/."] {
            assert_eq!(read(path), Err(RemotePathError::Dots("given".to_owned())), "{path}");
        }
        read("...").unwrap();
    }

    #[test]
    fn a_source_that_the_kernel_would_not_take_is_too_long() {
        let longest = "a".repeat(250);
        assert!(read(&longest).is_ok());
        let longer = format!("{longest}a");
        assert_eq!(read(&longer), Err(RemotePathError::TooLong("given".to_owned())));
    }
}
