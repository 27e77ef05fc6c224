//! Mount options of SMB: those that a volume can have, and what the kernel gets.

use crate::volume::mount_options::{self, MountFlags};
use crate::worker::clients::remote::options::{
    Asked, Choices, Numbers, RemoteOptionError, check_number, text_of, words_of,
};

/// The default version: the newest, which a man in the middle can't downgrade.
const VERSION: &str = "3.1.1";

/// How a version may be written, and what the kernel calls it.
const VERSIONS: &[(&str, &str)] = &[
    ("3.1.1", VERSION),
    ("3.11", VERSION),
    ("3.0.2", "3.0.2"),
    ("3.02", "3.0.2"),
    ("3.0", "3.0"),
];

const PORT: u16 = 445;

/// Options without a value that go to the kernel as they are.
const WORDS: &[&str] = &[
    "seal",
    "hard",
    "soft",
    "nosharesock",
    "mfsymlinks",
    "perm",
    "noperm",
    "brl",
    "nobrl",
    "forcemand",
    "forcemandatorylock",
    "serverino",
    "noserverino",
    "mapposix",
    "nomapposix",
    "mapchars",
    "nomapchars",
    "handlecache",
    "nohandlecache",
    "strictsync",
    "nostrictsync",
    "user_xattr",
    "nouser_xattr",
    "persistenthandles",
    "nopersistenthandles",
    "resilienthandles",
    "noresilienthandles",
    "forceuid",
    "noforceuid",
    "forcegid",
    "noforcegid",
    "nocase",
];

/// What is the default anyway, and what only older versions know.
const DROPPED: &[&str] = &["intr", "nointr", "nodfs", "nounix"];

/// Options with a number, and which.
const NUMBERS: &Numbers = &[
    ("uid", 0..=u32::MAX - 1),
    ("gid", 0..=u32::MAX - 1),
    ("port", 1..=65535),
    ("rsize", 1..=u32::MAX),
    ("wsize", 1..=u32::MAX),
    ("actimeo", 0..=86_400),
    ("acregmax", 0..=86_400),
    ("acdirmax", 0..=86_400),
    ("closetimeo", 0..=86_400),
    ("echo_interval", 1..=600),
    ("handletimeout", 0..=960_000),
    ("max_credits", 20..=60_000),
];

/// Options with a choice of words, and which.
const CHOICES: &Choices = &[
    ("cache", &["strict", "none", "loose"]),
    ("sec", &["ntlmssp", "ntlmsspi", "none"]),
];

/// Modes of all files and of all directories.
const MODES: [&str; 2] = ["file_mode", "dir_mode"];

/// The default modes. The server decides who may do what, by a user that is the same for all Pods.
const OPEN: [&str; 2] = ["0777", "0777"];

/// The same for a Pod with a group of its own.
const OF_GROUP: [&str; 2] = ["0770", "02770"];

const LOGIN: &[&str] = &[
    "user",
    "username",
    "pass",
    "password",
    "password2",
    "domain",
    "dom",
    "workgroup",
    "credentials",
    "cred",
];

/// Options that name the server, or this node.
const SERVER: &[&str] = &[
    "ip",
    "addr",
    "unc",
    "target",
    "path",
    "prefixpath",
    "servern",
    "srcaddr",
    "netbiosname",
    "source",
];

/// What needs a program on the node, by its option, and by the value of `sec`.
const PROGRAMS: &[(&str, &str)] = &[
    ("krb5", "cifs.upcall and a Kerberos ticket"),
    ("krb5i", "cifs.upcall and a Kerberos ticket"),
    ("cruid", "cifs.upcall and a Kerberos ticket"),
    ("multiuser", "a login of each of its users"),
    ("cifsacl", "cifs.idmap"),
    ("idsfromsid", "cifs.idmap"),
    ("dfs", "cifs.upcall for DNS"),
    ("witness", "a witness daemon"),
    ("fsc", "cachefilesd"),
];

/// What is wrong with a mount option; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SmbOptionError {
    #[error(transparent)]
    Common(#[from] RemoteOptionError),
    // Its value may be a password.
    #[error(
        "mount option {0}= is for a login, which does not belong there: write it into a Secret of type mooring.dev/vcs \
         (keys username, password and domain) and name that in the volume's secretRef"
    )]
    Login(String),
    #[error(
        "mount option {0:?} asks for a version of SMB that is no longer safe: write vers=3.1.1, 3.0.2 or 3.0, or leave \
         it out, and enable that version on the server"
    )]
    OldVersion(String),
    #[error("mount option {0:?} names no known version of SMB: write vers=3.1.1, 3.0.2 or 3.0, or leave it out")]
    NoVersion(String),
}

/// Mount options of SMB, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SmbOptions {
    pub(super) flags: MountFlags,
    pub(super) version: &'static str,
    pub(super) port: u16,
    /// Whether nobody logs in.
    pub(super) anonymous: bool,
    /// What goes to the kernel beside version, address and port.
    pub(super) rest: Vec<(String, Option<String>)>,
}

impl SmbOptions {
    /// Reads mount options. Only those that are known pass: a new kernel may have one that leads elsewhere. `fs_group`
    /// is the Pod's.
    pub(super) fn read(options: &[String], read_only: bool, fs_group: Option<u32>) -> Result<Self, SmbOptionError> {
        // First, since any other error repeats the whole option, which may have a password in it.
        let name = |option: &'_ String| {
            option
                .split_once('=')
                .map_or(option.clone(), |(name, _)| name.to_owned())
        };
        if let Some(login) = options.iter().map(name).find(|name| LOGIN.contains(&name.as_str())) {
            return Err(SmbOptionError::Login(login));
        }
        let sorted = mount_options::sort(options, read_only).map_err(RemoteOptionError::from)?;
        let mut read = Self {
            flags: sorted.flags,
            version: VERSION,
            port: PORT,
            anonymous: false,
            rest: Vec::new(),
        };
        for (key, value) in sorted.file_system {
            let text = text_of(&key, value.as_deref());
            match (key.as_str(), value.as_deref()) {
                ("vers", Some(asked)) => read.version = version(&text, asked)?,
                ("port", value) => {
                    check_value(&text, "port", value)?;
                    read.port = value.and_then(|port| port.parse().ok()).unwrap_or(PORT);
                }
                (name, _) if SERVER.contains(&name) => return Err(RemoteOptionError::Server(text).into()),
                (name, None) if DROPPED.contains(&name) => {}
                (name, None) if WORDS.contains(&name) => read.rest.push((key, None)),
                (name, value) => {
                    check_value(&text, name, value)?;
                    read.anonymous |= (name, value) == ("sec", Some("none"));
                    read.rest.push((key, value.map(str::to_owned)));
                }
            }
        }
        read.fill_in(fs_group);
        Ok(read)
    }

    /// Adds owner and modes of files where the options have none.
    fn fill_in(&mut self, fs_group: Option<u32>) {
        let has = |rest: &[(String, Option<String>)], name: &str| rest.iter().any(|(key, _)| key == name);
        let group = fs_group.filter(|_| !has(&self.rest, "gid"));
        if let Some(group) = group {
            self.rest.push(("gid".to_owned(), Some(group.to_string())));
        }
        let modes = if group.is_some() { OF_GROUP } else { OPEN };
        for (name, mode) in MODES.into_iter().zip(modes) {
            if !has(&self.rest, name) {
                self.rest.push((name.to_owned(), Some(mode.to_owned())));
            }
        }
    }
}

fn version(text: &str, asked: &str) -> Result<&'static str, SmbOptionError> {
    if let Some((_, version)) = VERSIONS.iter().find(|(written, _)| *written == asked) {
        return Ok(version);
    }
    Err(match asked {
        "1.0" | "1" | "2.0" | "2" | "2.1" | "default" => SmbOptionError::OldVersion(text.to_owned()),
        _ => SmbOptionError::NoVersion(text.to_owned()),
    })
}

/// Checks an option with a value.
fn check_value(text: &str, key: &str, value: Option<&str>) -> Result<(), RemoteOptionError> {
    let asked = Asked {
        kind: "SMB",
        option: text,
    };
    let program = |name: &str| PROGRAMS.iter().find(|(known, _)| *known == name);
    if let Some(checked) = check_number(NUMBERS, key, value) {
        return checked.map_err(|wanted| asked.wrong(key, wanted));
    }
    let value = value.unwrap_or_default();
    if MODES.contains(&key) {
        let is_octal = (1..=5).contains(&value.len()) && value.bytes().all(|b| (b'0'..=b'7').contains(&b));
        let mode = u32::from_str_radix(value, 8)
            .ok()
            .filter(|mode| is_octal && *mode <= 0o7777);
        return mode
            .map(drop)
            .ok_or_else(|| asked.wrong(key, "an octal mode, such as 0770".to_owned()));
    }
    match (words_of(CHOICES, key), program(key), program(value)) {
        (Some(words), ..) if words.contains(&value) => Ok(()),
        (_, Some((_, program)), _) => Err(asked.needs(program)),
        (Some(_), _, Some((_, program))) if key == "sec" => Err(asked.needs(program)),
        (Some(words), ..) => Err(asked.wrong(key, words.join(", "))),
        _ => Err(asked.unknown()),
    }
}

#[cfg(test)]
mod tests {
    use super::{RemoteOptionError, SmbOptionError, SmbOptions};
    use crate::volume::mount_options::MountFlags;
    use crate::worker::clients::remote::options::tests::{assert_refused, joined};
    use mooring_contract::volume::split_list;

    fn read(options: &str) -> Result<SmbOptions, SmbOptionError> {
        SmbOptions::read(&split_list(options), false, None)
    }

    fn rest(options: &str, fs_group: Option<u32>) -> String {
        joined(&SmbOptions::read(&split_list(options), false, fs_group).unwrap().rest)
    }

    #[test]
    fn the_newest_version_is_used_unless_an_older_one_is_asked_for() {
        for (options, version) in [
            ("", "3.1.1"),
            ("vers=3.1.1", "3.1.1"),
            ("vers=3.11", "3.1.1"),
            ("vers=3.0", "3.0"),
            ("vers=3.02", "3.0.2"),
        ] {
            assert_eq!(read(options).unwrap().version, version, "{options}");
        }
    }

    #[test]
    fn what_the_kernel_knows_goes_to_it() {
        assert_eq!(
            rest(
                "seal,cache=none,uid=7,gid=8,file_mode=0640,dir_mode=750,actimeo=5,sec=ntlmsspi,nodfs,_netdev,nobrl",
                None
            ),
            "seal,cache=none,uid=7,gid=8,file_mode=0640,dir_mode=750,actimeo=5,sec=ntlmsspi,nobrl"
        );
        assert_eq!(read("port=1445").unwrap().port, 1445);
        assert!(read("sec=none").unwrap().anonymous);
        let flags = SmbOptions::read(&[], true, None).unwrap().flags;
        assert_eq!(flags, MountFlags::safe().read_only(true));
    }

    #[test]
    fn files_are_for_everybody_or_for_the_pod_s_group_unless_the_volume_says_for_whom() {
        for (options, fs_group, expected) in [
            ("", None, "file_mode=0777,dir_mode=0777"),
            ("", Some(2000), "gid=2000,file_mode=0770,dir_mode=02770"),
            ("dir_mode=0700", Some(2000), "dir_mode=0700,gid=2000,file_mode=0770"),
            ("gid=5", Some(2000), "gid=5,file_mode=0777,dir_mode=0777"),
            ("file_mode=0600,dir_mode=0700", None, "file_mode=0600,dir_mode=0700"),
        ] {
            assert_eq!(rest(options, fs_group), expected, "{options} {fs_group:?}");
        }
    }

    #[test]
    fn a_bad_option_gets_a_message_with_its_cure() {
        let refused = [
            ("vers=1.0", "no longer safe"),
            ("vers=2.0", "no longer safe"),
            ("vers=2.1", "no longer safe"),
            ("vers=default", "no longer safe"),
            ("vers=3", "names no known version"),
            ("vers=4", "names no known version"),
            ("vers", "is not one that"),
            ("ip=10.0.0.9", "would replace the server"),
            ("addr=10.0.0.9", "would replace the server"),
            ("unc=//other/share", "would replace the server"),
            ("prefixpath=other", "would replace the server"),
            ("source=//other/share", "would replace the server"),
            ("sec=krb5", "cifs.upcall"),
            ("sec=krb5i", "cifs.upcall"),
            ("sec=ntlm", "must be ntlmssp, ntlmsspi, none"),
            ("sec", "must be ntlmssp"),
            ("cache=krb5", "must be strict"),
            ("multiuser", "a login of each"),
            ("cifsacl", "cifs.idmap"),
            ("fsc", "cachefilesd"),
            ("cache=singleclient", "must be strict"),
            ("uid=tom", "a number from 0"),
            ("gid=-1", "a number from 0"),
            ("gid=4294967295", "a number from 0"),
            ("port=0", "from 1 to 65535"),
            ("port", "from 1 to 65535"),
            ("file_mode=999", "octal mode"),
            ("file_mode=0o777", "octal mode"),
            ("dir_mode=17777", "octal mode"),
            ("dir_mode", "octal mode"),
            ("rdma", "is not one that"),
            ("sloppy", "is not one that"),
            ("seal=1", "is not one that"),
            ("remount", "is not one that a volume can have"),
        ];
        assert_refused(read, &refused);
        let error = SmbOptions::read(&["seal,ip=10.0.0.9".to_owned()], false, None).unwrap_err();
        let forbidden = matches!(error, SmbOptionError::Common(RemoteOptionError::Forbidden(_)));
        assert!(forbidden, "{error}");
    }

    #[test]
    fn a_password_among_the_options_is_refused_and_not_repeated() {
        for option in [
            "password=hunter2",
            "pass=hunter2",
            "user=tom%hunter2",
            "credentials=/hunter2",
            "username=hunter2",
        ] {
            let error = read(option).unwrap_err().to_string();
            assert!(error.contains("Secret") && !error.contains("hunter2"), "{error}");
        }
        let error = SmbOptions::read(&["password=a,hunter2".to_owned()], false, None).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
