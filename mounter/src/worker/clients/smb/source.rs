//! Where an SMB volume is: `//server/share`, `//server/share/directory`.

use mooring_contract::volume::address::ipv6;

use crate::worker::clients::remote::source::{RemotePathError, RemoteSource, is_host_name};

/// What is wrong with a source; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SmbSourceError {
    #[error("option source={0:?} is not an SMB source: write //server/share or //server/share/directory")]
    Form(String),
    #[error(
        "option source={0:?} has no server's name or address after its two slashes: write //server/share; give a port \
         by mount option port="
    )]
    BadHost(String),
    #[error("option source={0:?} has a backslash in it: write slashes")]
    Backslash(String),
    #[error(transparent)]
    Path(#[from] RemotePathError),
}

pub(super) fn read(text: &str) -> Result<RemoteSource, SmbSourceError> {
    let whole = || text.to_owned();
    // To a server it separates the parts of a path as well.
    if text.contains('\\') {
        return Err(SmbSourceError::Backslash(whole()));
    }
    let rest = text.strip_prefix("//").ok_or_else(|| SmbSourceError::Form(whole()))?;
    let (host, path) = rest.split_once('/').ok_or_else(|| SmbSourceError::Form(whole()))?;
    let host = match ipv6(host) {
        Some(address) => address,
        None if is_host_name(host) => host,
        None => return Err(SmbSourceError::BadHost(whole())),
    };
    if path.split('/').all(str::is_empty) {
        return Err(SmbSourceError::Form(whole()));
    }
    Ok(RemoteSource::new(text, host, &format!("//{host}/"), path)?)
}

#[cfg(test)]
mod tests {
    use crate::worker::clients::remote::tests::assert_read;

    use super::{RemotePathError, SmbSourceError, read};

    #[test]
    fn a_server_a_share_and_a_directory_are_read_and_needless_slashes_go() {
        let sources = [
            ("//10.0.0.4/volumes", "10.0.0.4", "//10.0.0.4/volumes"),
            (
                "//nas.example.com/volumes//a b/",
                "nas.example.com",
                "//nas.example.com/volumes/a b",
            ),
            ("//2001:db8::4/volumes/ä", "2001:db8::4", "//2001:db8::4/volumes/ä"),
            ("//[2001:db8::4]/volumes", "2001:db8::4", "//2001:db8::4/volumes"),
        ];
        assert_read(read, &sources);
    }

    #[test]
    fn a_malformed_source_is_refused_with_the_right_form() {
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
            ("//[nas]/volumes", SmbSourceError::BadHost),
            ("//nas/volumes\\..\\other", SmbSourceError::Backslash),
            ("\\\\nas\\volumes", SmbSourceError::Backslash),
            ("//nas/volumes/../other", |text| RemotePathError::Dots(text).into()),
        ] {
            assert_eq!(read(text), Err(error(text.to_owned())), "{text}");
        }
    }
}
