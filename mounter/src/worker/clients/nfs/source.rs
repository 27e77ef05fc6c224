//! Where an NFS volume is: `server:/path`, `[address]:/path`.

use mooring_contract::volume::address::ipv6;

use crate::worker::clients::remote::source::{RemotePathError, RemoteSource, is_host_name};

/// What is wrong with a source; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NfsSourceError {
    #[error("option source={0:?} is not an NFS source: write server:/path")]
    Form(String),
    #[error("option source={0:?} has no IPv6 address in its brackets: write [address]:/path")]
    BadAddress(String),
    #[error("option source={0:?} has no server's name before the colon: write server:/path, with one server")]
    BadHost(String),
    #[error(transparent)]
    Path(#[from] RemotePathError),
}

pub(super) fn read(text: &str) -> Result<RemoteSource, NfsSourceError> {
    let whole = || text.to_owned();
    let (host, path) = text.split_once(":/").ok_or_else(|| NfsSourceError::Form(whole()))?;
    let (host, start) = match ipv6(host) {
        Some(address) => (address, format!("[{address}]:/")),
        None if host.starts_with('[') => return Err(NfsSourceError::BadAddress(whole())),
        // The kernel takes the first of several, separated by commas, and says nothing.
        None if !is_host_name(host) => return Err(NfsSourceError::BadHost(whole())),
        None => (host, format!("{host}:/")),
    };
    Ok(RemoteSource::new(text, host, &start, path)?)
}

#[cfg(test)]
mod tests {
    use crate::worker::clients::remote::tests::assert_read;

    use super::{NfsSourceError, RemotePathError, read};

    #[test]
    fn a_server_and_a_path_are_read_and_needless_slashes_go() {
        let sources = [
            ("10.0.0.4:/exports/a", "10.0.0.4", "10.0.0.4:/exports/a"),
            (
                "nas.example.com://exports//a/",
                "nas.example.com",
                "nas.example.com:/exports/a",
            ),
            ("nas:/", "nas", "nas:/"),
            ("[fe80::1%eth0]:/x y", "fe80::1%eth0", "[fe80::1%eth0]:/x y"),
            ("[2001:db8::4]:/a:b", "2001:db8::4", "[2001:db8::4]:/a:b"),
            ("2001:db8::4:/a", "2001:db8::4", "[2001:db8::4]:/a"),
            ("nas:/a:b", "nas", "nas:/a:b"),
        ];
        assert_read(read, &sources);
    }

    #[test]
    fn a_malformed_source_is_refused_with_the_right_form() {
        for (text, error) in [
            ("", NfsSourceError::Form as fn(String) -> NfsSourceError),
            ("nas", NfsSourceError::Form),
            ("nas:exports", NfsSourceError::Form),
            ("[fe80::1]/x", NfsSourceError::Form),
            ("nas:2049:/x", NfsSourceError::BadHost),
            ("[10.0.0.4]:/x", NfsSourceError::BadAddress),
            ("[nas]:/x", NfsSourceError::BadAddress),
            (":/x", NfsSourceError::BadHost),
            ("a,b:/x", NfsSourceError::BadHost),
            ("tom@nas:/x", NfsSourceError::BadHost),
            ("-o:/x", NfsSourceError::BadHost),
            ("a b:/x", NfsSourceError::BadHost),
            ("nas:/x/../y", |text| RemotePathError::Dots(text).into()),
        ] {
            assert_eq!(read(text), Err(error(text.to_owned())), "{text}");
        }
    }
}
