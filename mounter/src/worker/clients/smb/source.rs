//! Where an SMB volume is: `//server/share`, `//server/share/directory`.

use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::worker::clients::remote::{LONGEST, is_host_name};

/// What is wrong with a source; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SmbSourceError {
    #[error("option source={0:?} is none of SMB: write //server/share or //server/share/directory")]
    Form(String),
    #[error(
        "option source={0:?} has no server's name or address after its two slashes: write //server/share; a port is said by \
         mount option port="
    )]
    BadHost(String),
    #[error("option source={0:?} has a backslash in it: write slashes")]
    Backslash(String),
    #[error("option source={0:?} has a part \".\" or \"..\" in its path: write the path without it")]
    Dots(String),
    #[error("option source={0:?} is longer than the {LONGEST} bytes that the kernel takes: shorten the path")]
    TooLong(String),
}

/// A server, a share and a directory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SmbSource {
    /// The server's name or address.
    pub(super) host: String,
    /// The share and the directory in it, without needless slashes.
    pub(super) path: String,
    /// Both, as the kernel gets them and the mount table shows them.
    pub(super) text: String,
}

impl FromStr for SmbSource {
    type Err = SmbSourceError;

    fn from_str(text: &str) -> Result<Self, SmbSourceError> {
        let whole = || text.to_owned();
        // To a server it separates the parts of a path as well.
        if text.contains('\\') {
            return Err(SmbSourceError::Backslash(whole()));
        }
        let rest = text.strip_prefix("//").ok_or_else(|| SmbSourceError::Form(whole()))?;
        let (host, path) = rest.split_once('/').ok_or_else(|| SmbSourceError::Form(whole()))?;
        if !is_host_name(host) && host.parse::<Ipv6Addr>().is_err() {
            return Err(SmbSourceError::BadHost(whole()));
        }
        let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
        if parts.is_empty() {
            return Err(SmbSourceError::Form(whole()));
        }
        if parts.iter().any(|part| [".", ".."].contains(part)) {
            return Err(SmbSourceError::Dots(whole()));
        }
        let path = parts.join("/");
        let read = Self {
            host: host.to_owned(),
            text: format!("//{host}/{path}"),
            path,
        };
        if read.text.len() > LONGEST {
            return Err(SmbSourceError::TooLong(whole()));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::{SmbSource, SmbSourceError};

    #[test]
    fn a_server_a_share_and_a_directory_are_read_and_needless_slashes_go() {
        for (text, host, shown) in [
            ("//10.0.0.4/volumes", "10.0.0.4", "//10.0.0.4/volumes"),
            (
                "//nas.example.com/volumes//a b/",
                "nas.example.com",
                "//nas.example.com/volumes/a b",
            ),
            ("//2001:db8::4/volumes/ä", "2001:db8::4", "//2001:db8::4/volumes/ä"),
        ] {
            let source: SmbSource = text.parse().unwrap();
            assert_eq!((source.host.as_str(), source.text.as_str()), (host, shown), "{text}");
        }
    }

    #[test]
    fn what_is_no_source_says_how_to_write_one() {
        let longer = format!("//nas/{}", "a".repeat(250));
        for (text, error) in [
            ("", SmbSourceError::Form as fn(String) -> SmbSourceError),
            ("nas:/volumes", SmbSourceError::Form),
            ("smb://nas/volumes", SmbSourceError::Form),
            ("/nas/volumes", SmbSourceError::Form),
            ("//nas", SmbSourceError::Form),
            ("//nas/", SmbSourceError::Form),
            ("///volumes", SmbSourceError::BadHost),
            ("//nas:445/volumes", SmbSourceError::BadHost),
            ("//tom@nas/volumes", SmbSourceError::BadHost),
            ("//[2001:db8::4]/volumes", SmbSourceError::BadHost),
            ("//nas/volumes\\..\\other", SmbSourceError::Backslash),
            ("\\\\nas\\volumes", SmbSourceError::Backslash),
            ("//nas/volumes/../other", SmbSourceError::Dots),
            ("//nas/./volumes", SmbSourceError::Dots),
            (longer.as_str(), SmbSourceError::TooLong),
        ] {
            assert_eq!(text.parse::<SmbSource>(), Err(error(text.to_owned())), "{text}");
        }
    }
}
