//! Mount options of NFS: those that a volume can have, and what the kernel gets.

use std::net::SocketAddr;

use crate::volume::mount_options::{self, MountFlags};
use crate::worker::clients::remote::options::{
    Asked, Choices, Numbers, RemoteOptionError, check_number, text_of, words_of,
};

/// Versions that are tried where none is asked for, newest first.
const VERSIONS: [&str; 3] = ["4.2", "4.1", "4.0"];

/// The version that is mounted only where it is asked for: its locks take a daemon.
pub(super) const VERSION_3: &str = "3";

const PORT: u16 = 2049;

/// Options without a value that go to the kernel as they are.
const WORDS: &[&str] = &[
    "hard",
    "soft",
    "softerr",
    "softreval",
    "ac",
    "noac",
    "cto",
    "nocto",
    "lock",
    "nolock",
    "rdirplus",
    "nordirplus",
    "sharecache",
    "nosharecache",
    "resvport",
    "noresvport",
    "migration",
    "nomigration",
    "trunkdiscovery",
    "notrunkdiscovery",
    "acl",
    "noacl",
];

/// What `mount` would do rather than the kernel: the kubelet tries again by itself, and TCP is all there is.
const DROPPED: &[&str] = &["bg", "fg", "intr", "nointr", "retry", "tcp"];

/// Options with a number, and which.
const NUMBERS: &Numbers = &[
    ("rsize", 1..=u32::MAX),
    ("wsize", 1..=u32::MAX),
    ("timeo", 1..=i32::MAX.cast_unsigned()),
    ("retrans", 0..=i32::MAX.cast_unsigned()),
    ("acregmin", 0..=u32::MAX),
    ("acregmax", 0..=u32::MAX),
    ("acdirmin", 0..=u32::MAX),
    ("acdirmax", 0..=u32::MAX),
    ("actimeo", 0..=u32::MAX),
    ("nconnect", 1..=16),
    ("max_connect", 1..=16),
    ("port", 1..=65535),
    ("mountport", 1..=65535),
];

/// Options with a choice of words, and which.
const CHOICES: &Choices = &[
    ("lookupcache", &["all", "none", "pos", "positive"]),
    ("write", &["lazy", "eager", "wait"]),
    ("local_lock", &["none", "all", "flock", "posix"]),
    ("mountproto", &["tcp", "tcp6"]),
    ("mountvers", &["3"]),
    ("sec", &["sys", "none", "null"]),
    ("xprtsec", &["none"]),
];

/// What needs a daemon on the node, by its option.
const DAEMONS: &[(&str, &str)] = &[
    ("sec", "rpc.gssd and a Kerberos ticket"),
    ("xprtsec", "tlshd and its certificates"),
    ("fsc", "cachefilesd"),
];

/// What is wrong with a mount option; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NfsOptionError {
    #[error(transparent)]
    Common(#[from] RemoteOptionError),
    #[error(
        "mount option {0:?} asks for NFS version 2, which Linux no longer has: ask for version 3 or 4 (vers=4.2, 4.1, \
         4.0, 3, or leave it out)"
    )]
    OldVersion(String),
    #[error("mount option {0:?} names no known version of NFS: write vers=4.2, 4.1, 4.0 or 3, or leave it out")]
    NoVersion(String),
    #[error("mount option {0:?} and another one name different versions of NFS: keep one")]
    TwoVersions(String),
    #[error("mount option {0:?}: the mounter uses NFS over TCP only: write proto=tcp or tcp6, or leave it out")]
    Transport(String),
}

/// Which addresses of a server are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Any,
    /// IPv4, by `proto=tcp`.
    Four,
    /// IPv6, by `proto=tcp6`.
    Six,
}

impl Family {
    /// The addresses that are meant, in their order.
    pub(super) fn of(self, mut found: Vec<SocketAddr>) -> Vec<SocketAddr> {
        found.retain(|address| match self {
            Self::Any => true,
            Self::Four => address.is_ipv4(),
            Self::Six => address.is_ipv6(),
        });
        found
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Any => "proto",
            Self::Four => "proto=tcp",
            Self::Six => "proto=tcp6",
        })
    }
}

/// Mount options of NFS, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NfsOptions {
    pub(super) flags: MountFlags,
    /// The versions to try, in their order.
    pub(super) versions: Vec<&'static str>,
    /// Which addresses of the server are meant.
    pub(super) family: Family,
    pub(super) port: u16,
    /// What goes to the kernel beside version and address.
    pub(super) rest: Vec<(String, Option<String>)>,
}

impl NfsOptions {
    /// Reads mount options. Only those that are known pass: a new kernel may have one that leads elsewhere.
    pub(super) fn read(options: &[String], read_only: bool) -> Result<Self, NfsOptionError> {
        let sorted = mount_options::sort(options, read_only).map_err(RemoteOptionError::from)?;
        let mut read = Self {
            flags: sorted.flags,
            versions: Vec::new(),
            family: Family::Any,
            port: PORT,
            rest: Vec::new(),
        };
        let mut minor = None;
        for (key, value) in sorted.file_system {
            let text = text_of(&key, value.as_deref());
            match (key.as_str(), value.as_deref()) {
                ("vers" | "nfsvers", Some(version)) => read.version(&text, version)?,
                ("v2" | "v3" | "v4" | "v4.0" | "v4.1" | "v4.2", None) => read.version(&text, &key[1..])?,
                ("minorversion", Some(number)) => minor = Some((text, format!("4.{number}"))),
                ("proto", Some("tcp")) => read.family = Family::Four,
                ("proto", Some("tcp6")) => read.family = Family::Six,
                ("proto", Some(_)) | ("udp" | "rdma", None) => return Err(NfsOptionError::Transport(text)),
                ("addr" | "clientaddr" | "mountaddr" | "mounthost", _) => {
                    return Err(RemoteOptionError::Server(text).into());
                }
                (name, _) if DROPPED.contains(&name) => {}
                (name, None) if WORDS.contains(&name) => read.rest.push((key, None)),
                (_, value) => {
                    check_value(&text, &key, value)?;
                    if key == "port" {
                        read.port = value.and_then(|port| port.parse().ok()).unwrap_or(PORT);
                    }
                    read.rest.push((key, value.map(str::to_owned)));
                }
            }
        }
        if let Some((text, version)) = minor {
            // It says more than `vers=4`.
            if read.versions.len() > 1 {
                read.versions.clear();
            }
            read.version(&text, &version)?;
        }
        if read.versions.is_empty() {
            read.versions = VERSIONS.into();
        }
        Ok(read)
    }

    /// Whether locks are the server's, and a daemon on the node has to tell it who has them: version 4 keeps them
    /// itself.
    pub(super) fn locks_by_daemon(&self) -> bool {
        let is_local = |(key, value): &(String, Option<String>)| match (key.as_str(), value.as_deref()) {
            ("nolock", _) | ("local_lock", Some("all")) => Some(true),
            ("lock" | "local_lock", _) => Some(false),
            _ => None,
        };
        // As for the kernel, the last one counts.
        self.versions == [VERSION_3] && !self.rest.iter().rev().find_map(is_local).unwrap_or(false)
    }

    fn version(&mut self, text: &str, asked: &str) -> Result<(), NfsOptionError> {
        let asked = match asked {
            "4" => VERSIONS.to_vec(),
            "3" => vec![VERSION_3],
            "2" => return Err(NfsOptionError::OldVersion(text.to_owned())),
            other => match VERSIONS.iter().find(|version| **version == other) {
                Some(version) => vec![*version],
                None => return Err(NfsOptionError::NoVersion(text.to_owned())),
            },
        };
        if !self.versions.is_empty() && self.versions != asked {
            return Err(NfsOptionError::TwoVersions(text.to_owned()));
        }
        self.versions = asked;
        Ok(())
    }
}

/// Checks an option with a value.
fn check_value(text: &str, key: &str, value: Option<&str>) -> Result<(), RemoteOptionError> {
    let asked = Asked {
        kind: "NFS",
        option: text,
    };
    let daemon = DAEMONS.iter().find(|(name, _)| *name == key).map(|(_, daemon)| *daemon);
    if let Some(checked) = check_number(NUMBERS, key, value) {
        return checked.map_err(|wanted| asked.wrong(key, wanted));
    }
    if let Some(words) = words_of(CHOICES, key) {
        // `sec` may have several, separated by colons.
        let given: Vec<_> = value.unwrap_or_default().split(':').collect();
        if given.iter().all(|word| words.contains(word)) {
            return Ok(());
        }
        let by_daemon = given
            .iter()
            .any(|word| ["krb5", "krb5i", "krb5p", "tls", "mtls"].contains(word));
        return Err(match daemon {
            Some(daemon) if by_daemon => asked.needs(daemon),
            _ => asked.wrong(key, words.join(", ")),
        });
    }
    Err(daemon.map_or_else(|| asked.unknown(), |daemon| asked.needs(daemon)))
}

#[cfg(test)]
mod tests {
    use super::{Family, NfsOptionError, NfsOptions, RemoteOptionError, VERSIONS};
    use crate::volume::mount_options::MountFlags;
    use crate::worker::clients::remote::options::tests::{assert_refused, joined};
    use mooring_contract::volume::split_list;

    fn read(options: &str) -> Result<NfsOptions, NfsOptionError> {
        NfsOptions::read(&split_list(options), false)
    }

    fn rest(options: &str) -> String {
        joined(&read(options).unwrap().rest)
    }

    #[test]
    fn the_newest_version_is_tried_first_unless_one_is_asked_for() {
        for (options, versions) in [
            ("", &VERSIONS[..]),
            ("vers=4", &VERSIONS),
            ("v4", &VERSIONS),
            ("vers=4.2", &["4.2"]),
            ("nfsvers=4.1", &["4.1"]),
            ("v4.0", &["4.0"]),
            ("vers=4,minorversion=1", &["4.1"]),
            ("minorversion=1,vers=4.1", &["4.1"]),
            ("vers=3", &["3"]),
            ("v3,nolock", &["3"]),
        ] {
            assert_eq!(read(options).unwrap().versions, versions, "{options}");
        }
    }

    #[test]
    fn what_the_kernel_knows_goes_to_it_and_what_mount_would_do_does_not() {
        assert_eq!(
            rest("soft,timeo=30,retrans=2,nconnect=4,rsize=65536,sec=sys,bg,retry=2,tcp,_netdev,intr,lookupcache=none"),
            "soft,timeo=30,retrans=2,nconnect=4,rsize=65536,sec=sys,lookupcache=none"
        );
        let options = read("port=20490,proto=tcp6").unwrap();
        assert_eq!((options.port, options.family), (20490, Family::Six));
        let flags = NfsOptions::read(&[], true).unwrap().flags;
        assert_eq!(flags, MountFlags::safe().read_only(true));
    }

    #[test]
    fn only_addresses_of_the_wanted_kind_are_left() {
        let found: Vec<_> = ["[2001:db8::4]:0", "10.0.0.4:0"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(Family::Any.of(found.clone()), found);
        assert_eq!(Family::Four.of(found.clone()), found[1..2]);
        assert_eq!(Family::Six.of(found.clone()), found[..1]);
    }

    #[test]
    fn locks_need_a_daemon_with_version_3_alone_unless_they_are_the_node_s_own() {
        for (options, need) in [
            ("", false),
            ("vers=4.0,lock", false),
            ("vers=3", true),
            ("vers=3,nolock", false),
            ("nolock,vers=3,lock", true),
            ("vers=3,local_lock=all", false),
            ("vers=3,local_lock=flock", true),
            ("vers=3,nolock,local_lock=none", true),
        ] {
            assert_eq!(read(options).unwrap().locks_by_daemon(), need, "{options}");
        }
    }

    #[test]
    fn a_bad_option_gets_a_message_with_its_cure() {
        let refused = [
            ("nfsvers=2", "version 2"),
            ("vers=3,v4", "keep one"),
            ("vers=3,minorversion=1", "keep one"),
            ("vers=5", "names no known version"),
            ("vers=4.9", "names no known version"),
            ("minorversion=7", "names no known version"),
            ("vers=4.2,v4.1", "keep one"),
            ("addr=10.0.0.9", "would replace the server"),
            ("clientaddr=10.0.0.9", "would replace the server"),
            ("mounthost=other", "would replace the server"),
            ("sec=krb5p", "rpc.gssd"),
            ("sec=sys:krb5", "rpc.gssd"),
            ("sec=foo", "must be sys, none, null"),
            ("sec", "must be sys"),
            ("xprtsec=tls", "tlshd"),
            ("fsc", "cachefilesd"),
            ("nconnect=0", "from 1 to 16"),
            ("nconnect=17", "from 1 to 16"),
            ("nconnect=+4", "from 1 to 16"),
            ("nconnect", "from 1 to 16"),
            ("port=0", "from 1 to 65535"),
            ("port=2049;x", "from 1 to 65535"),
            ("rsize=0x1000", "a number"),
            ("proto=udp", "TCP only"),
            ("proto=rdma", "TCP only"),
            ("udp", "TCP only"),
            ("sloppy", "is not one that"),
            ("hard=1", "is not one that"),
            ("mountport=0", "from 1 to 65535"),
            ("mountproto=udp", "must be tcp"),
            ("context=x", "is not one that"),
            ("remount", "is not one that a volume can have"),
            ("x-systemd.automount", "is not one that a volume can have"),
        ];
        assert_refused(read, &refused);
        let error = NfsOptions::read(&["soft,addr=10.0.0.9".to_owned()], false).unwrap_err();
        let forbidden = matches!(error, NfsOptionError::Common(RemoteOptionError::Forbidden(_)));
        assert!(forbidden, "{error}");
    }
}
