//! The servers that a volume's source names. Only this file decides where in a source they stand. An IPv6 address may be
//! written with brackets or without them; whoever reads a [`Volume`](super::Volume) finds one form.

use std::net::Ipv6Addr;
use std::ops::Range;

/// The source with each IPv6 address in brackets, which separate it from a port. In `//server/share` no port can follow,
/// and the kernel expects no brackets.
pub(super) fn uniform(source: &str) -> String {
    let Some(place) = place(source) else {
        return source.to_owned();
    };
    let (before, after) = (&source[..place.start], &source[place.end..]);
    let servers = &source[place];
    if source.starts_with("//") {
        return format!("{before}{}{after}", ipv6(servers).unwrap_or(servers));
    }
    let servers: Vec<_> = servers.split(',').map(in_brackets).collect();
    format!("{before}{}{after}", servers.join(","))
}

/// The first server's name or address, without brackets and port; none if the source names no server.
pub(super) fn first_host(source: &str) -> Option<&str> {
    let servers = &source[place(source)?];
    let server = servers.split(',').next().unwrap_or(servers);
    let end = if server.starts_with('[') {
        server.find(']').map(|at| at + 1)
    } else {
        server.find(':').filter(|_| ipv6(server).is_none())
    };
    let host = &server[..end.unwrap_or(server.len())];
    Some(ipv6(host).unwrap_or(host))
}

/// A server's name or address, ready for a port behind it: an IPv6 address gets brackets.
pub fn in_brackets(host: &str) -> String {
    ipv6(host).map_or_else(|| host.to_owned(), |address| format!("[{address}]"))
}

/// The IPv6 address that `host` is, without brackets. An interface may follow the address (`fe80::1%eth0`).
pub fn ipv6(host: &str) -> Option<&str> {
    let inside = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let text = inside.unwrap_or(host);
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    address.parse::<Ipv6Addr>().is_ok().then_some(text)
}

/// Where a source has its servers: before the path of a URL or of `//server/share`, or before `:` and a path, in both
/// cases without a user.
fn place(source: &str) -> Option<Range<usize>> {
    let is_word = |text: &str| !text.contains(['/', ':', '@']);
    let is_url = |at: &usize| *at == 0 || source[..*at].strip_suffix(':').is_some_and(is_word);
    let url = source.find("//").filter(is_url);
    let start = url.map_or(0, |at| at + 2);
    let user = source[start..].split_once('@').filter(|(user, _)| is_word(user));
    let start = start + user.map_or(0, |(user, _)| user.len() + 1);
    // What follows a path is a part of it, whatever it looks like.
    let rest = source[start..].split('/').next().unwrap_or_default();
    let length = match (url, rest.strip_suffix(':'), rest.find("]:")) {
        (Some(_), ..) => rest.len(),
        (None, Some(servers), _) => servers.len(),
        // A path that is relative.
        (None, None, Some(bracket)) => bracket + 1,
        (None, None, None) => rest.find(':')?,
    };
    (length > 0).then(|| start..start + length)
}

#[cfg(test)]
mod tests {
    use super::{first_host, in_brackets, uniform};

    #[test]
    fn an_ipv6_address_reads_the_same_with_brackets_and_without_them() {
        for (written, read) in [
            ("fd00::10:/exports", "[fd00::10]:/exports"),
            ("::1:/", "[::1]:/"),
            ("fe80::1%eth0:/exports", "[fe80::1%eth0]:/exports"),
            ("tom@fd00::10:/srv", "tom@[fd00::10]:/srv"),
            (
                "fd00::10,[fd00::11]:6789,mon:/dir",
                "[fd00::10],[fd00::11]:6789,mon:/dir",
            ),
            (
                "iscsi://fd00::10,[fd00::11]:3261/iqn.x:t/1",
                "iscsi://[fd00::10],[fd00::11]:3261/iqn.x:t/1",
            ),
            ("nbd://fd00::10/export", "nbd://[fd00::10]/export"),
            ("rbd://fd00::10/pool/image", "rbd://[fd00::10]/pool/image"),
            ("https://fd00::10/bucket", "https://[fd00::10]/bucket"),
            ("//[fd00::10]/share", "//fd00::10/share"),
        ] {
            assert_eq!(uniform(written), read, "{written}");
            assert_eq!(uniform(read), read, "{written}");
        }
    }

    #[test]
    fn what_is_no_ipv6_address_stays_as_it_is() {
        for source in [
            "10.0.0.4:/exports",
            "nas:/exports/fd00::10:/x",
            "nas://exports//a",
            "tom@nas:data",
            "tom@[fd00::10]:data",
            "mon1:6789,mon2:/dir",
            "https://nas:9000/bucket/a,b",
            "[nas]:/x",
            "a:b:c:/x",
            "//nas/share",
            "serial://1",
            "disk.img",
            ":/x",
            "",
        ] {
            assert_eq!(uniform(source), source);
        }
    }

    #[test]
    fn the_first_server_of_a_list_is_found_without_its_port() {
        for (source, host) in [
            ("fd00::10:/exports", Some("fd00::10")),
            ("[fd00::10]:6789,mon:/dir", Some("fd00::10")),
            ("mon1:6789,mon2:/dir", Some("mon1")),
            ("iscsi://10.0.0.4:3261,10.0.0.5/iqn/1", Some("10.0.0.4")),
            ("disk.img", None),
        ] {
            assert_eq!(first_host(source), host, "{source}");
        }
        assert_eq!(
            (in_brackets("fd00::1"), in_brackets("nas")),
            ("[fd00::1]".into(), "nas".into())
        );
    }
}
