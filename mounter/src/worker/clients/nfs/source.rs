//! Where an NFS volume is: `server:/path`, `[address]:/path`.

use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::worker::clients::remote::{LONGEST, is_host_name};

/// What is wrong with a source; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadSource {
    #[error("option source={0:?} is none of NFS: write server:/path")]
    Form(String),
    #[error("option source={0:?} has an IPv6 address without brackets: write [address]:/path")]
    NoBrackets(String),
    #[error("option source={0:?} has no IPv6 address in its brackets: write [address]:/path")]
    BadAddress(String),
    #[error("option source={0:?} has no server's name before the colon: write server:/path, with one server")]
    BadHost(String),
    #[error("option source={0:?} has a part \".\" or \"..\" in its path: write the path without it")]
    Dots(String),
    #[error("option source={0:?} is longer than the {LONGEST} bytes that the kernel takes: shorten the path")]
    TooLong(String),
}

/// A server and a path there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    /// The server's name or address.
    pub(super) host: String,
    /// The path there, without needless slashes.
    pub(super) path: String,
    /// Both, as the kernel gets them and the mount table shows them.
    pub(super) text: String,
}

impl FromStr for Source {
    type Err = BadSource;

    fn from_str(text: &str) -> Result<Self, BadSource> {
        let whole = || text.to_owned();
        let (host, shown, path) = if let Some(rest) = text.strip_prefix('[') {
            let (address, path) = rest.split_once("]:").ok_or_else(|| BadSource::Form(whole()))?;
            // Behind the address of a link is the interface that it is on.
            let plain = address.split_once('%').map_or(address, |(plain, _)| plain);
            let _: Ipv6Addr = plain.parse().map_err(|_| BadSource::BadAddress(whole()))?;
            (address, format!("[{address}]"), path)
        } else {
            let (host, path) = text.split_once(':').ok_or_else(|| BadSource::Form(whole()))?;
            let address = text.split_once('/').map_or(text, |(before, _)| before);
            if address.trim_end_matches(':').parse::<Ipv6Addr>().is_ok() || address.matches(':').count() > 1 {
                return Err(BadSource::NoBrackets(whole()));
            }
            // The kernel takes the first of several, separated by commas, and says nothing.
            if !is_host_name(host) {
                return Err(BadSource::BadHost(whole()));
            }
            (host, host.to_owned(), path)
        };
        if !path.starts_with('/') {
            return Err(BadSource::Form(whole()));
        }
        let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
        if parts.iter().any(|part| [".", ".."].contains(part)) {
            return Err(BadSource::Dots(whole()));
        }
        let path = format!("/{}", parts.join("/"));
        let read = Self {
            host: host.to_owned(),
            text: format!("{shown}:{path}"),
            path,
        };
        if read.text.len() > LONGEST {
            return Err(BadSource::TooLong(whole()));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::{BadSource, Source};

    #[test]
    fn a_server_and_a_path_are_read_and_needless_slashes_go() {
        for (text, host, shown) in [
            ("10.0.0.4:/exports/a", "10.0.0.4", "10.0.0.4:/exports/a"),
            (
                "nas.example.com://exports//a/",
                "nas.example.com",
                "nas.example.com:/exports/a",
            ),
            ("nas:/", "nas", "nas:/"),
            ("[fe80::1%eth0]:/x y", "fe80::1%eth0", "[fe80::1%eth0]:/x y"),
            ("[2001:db8::4]:/a:b", "2001:db8::4", "[2001:db8::4]:/a:b"),
            ("nas:/a:b", "nas", "nas:/a:b"),
        ] {
            let source: Source = text.parse().unwrap();
            assert_eq!((source.host.as_str(), source.text.as_str()), (host, shown), "{text}");
        }
    }

    #[test]
    fn a_source_that_the_kernel_would_not_take_is_too_long() {
        let longest = format!("nas:/{}", "a".repeat(250));
        assert!(longest.parse::<Source>().is_ok());
        let longer = format!("{longest}a");
        assert_eq!(longer.parse::<Source>(), Err(BadSource::TooLong(longer.clone())));
    }

    #[test]
    fn what_is_no_source_says_how_to_write_one() {
        for (text, error) in [
            ("", BadSource::Form as fn(String) -> BadSource),
            ("nas", BadSource::Form),
            ("nas:exports", BadSource::Form),
            ("[fe80::1]/x", BadSource::Form),
            ("fe80::1:/x", BadSource::NoBrackets),
            ("2001:db8::4:/x", BadSource::NoBrackets),
            ("[10.0.0.4]:/x", BadSource::BadAddress),
            ("[nas]:/x", BadSource::BadAddress),
            (":/x", BadSource::BadHost),
            ("a,b:/x", BadSource::BadHost),
            ("tom@nas:/x", BadSource::BadHost),
            ("-o:/x", BadSource::BadHost),
            ("a b:/x", BadSource::BadHost),
            ("nas:/x/../y", BadSource::Dots),
            ("nas:/./x", BadSource::Dots),
        ] {
            assert_eq!(text.parse::<Source>(), Err(error(text.to_owned())), "{text}");
        }
    }
}
