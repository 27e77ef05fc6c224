//! What mounter and agent send to each other, and what an agent would run for it.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::Path;

use mooring_mounter::agent::program::{self, Brings, Invocation};
use mooring_mounter::agent::protocol::{AgentAnswer, AgentRequest, Call, MountCall, WireError, receive, send};
use serde::Serialize;
use serde::de::DeserializeOwned;

const STAGE: &str = "/stage";
const SECRETS: &str = "/secrets";
const OVERRIDES: &str = "/usr/libexec/mooring";

/// Runs an input; panics if an invariant is broken.
///
/// # Panics
/// If an invariant is broken.
pub fn run(bytes: &[u8]) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else {
        return;
    };
    let length = u32::try_from(bytes.len()).unwrap_or_default();
    let framed = [&length.to_le_bytes()[..], bytes].concat();
    runtime.block_on(async {
        for wire in [bytes, &framed] {
            round::<AgentAnswer>(wire).await;
            if let Some(AgentRequest {
                call: Call::Mount(call),
                ..
            }) = round::<AgentRequest>(wire).await
            {
                for brings in [Brings::Helper, Brings::Program] {
                    if let Ok(it) = program::mount(&call, brings, Path::new(STAGE), Path::new(SECRETS)) {
                        mounts(&it, &call, brings == Brings::Program);
                    }
                }
                assert!(
                    program::mount(&call, Brings::Nothing, Path::new(STAGE), Path::new(SECRETS)).is_err(),
                    "mounted by an image that is not made for it"
                );
                if let Ok(it) = program::unmount(&call, Path::new(STAGE)) {
                    is_of_the_image(&it, &call);
                    assert_eq!(it.args, ["unmount", STAGE]);
                    assert!(!it.env.contains_key("MOORING_SECRETS"));
                }
            }
        }
    });
}

/// A message that was read means the same when it is written again; a message that is cut off can't be read.
async fn round<T: Serialize + DeserializeOwned + Debug>(wire: &[u8]) -> Option<T> {
    let got = receive::<T>(&mut &*wire).await.ok()?;
    let mut said = Vec::new();
    match send(&mut said, &got).await {
        Ok(()) => {}
        // Defaults that were left out take space when they are written.
        Err(WireError::TooLong(_)) => return Some(got),
        Err(error) => panic!("{error}: {got:?}"),
    }
    let mut again = Vec::new();
    let heard = receive::<T>(&mut &*said).await.expect("what was said");
    send(&mut again, &heard).await.expect("what was heard");
    assert_eq!(said, again);
    for cut in [said.len() - 1, said.len() / 2, 3] {
        assert!(receive::<T>(&mut &said[..cut]).await.is_err(), "cut at {cut}");
    }
    Some(got)
}

/// The program that mounts is the system's or the image's own, and gets only what the volume says.
fn mounts(it: &Invocation, call: &MountCall, overridden: bool) {
    if overridden {
        is_of_the_image(it, call);
        assert_eq!(it.args, ["mount", &call.source, STAGE]);
        assert_eq!(it.env["MOORING_SECRETS"], SECRETS);
        options(&it.env["MOORING_MOUNT_OPTIONS"], call);
    } else {
        assert_eq!((it.program.as_path(), it.env.is_empty()), (Path::new("mount"), true));
        let [t, kind, o, list, dashes, source, stage] = &it.args[..] else {
            panic!("{it:?}");
        };
        assert!(t == "-t" && o == "-o" && dashes == "--" && source == call.source.as_str() && stage == STAGE);
        let kind = kind.to_str().expect("text");
        assert!(
            !kind.is_empty() && !kind.starts_with("fuse") && !kind.contains([',', '.', '/']),
            "{kind}"
        );
        assert!(!["overlay", "proc", "sysfs", "devtmpfs", "cgroup2"].contains(&kind));
        options(list, call);
    }
}

/// The program is in the one directory, and its environment has only our names.
fn is_of_the_image(it: &Invocation, call: &MountCall) {
    assert_eq!(
        it.program.parent(),
        Some(Path::new(OVERRIDES)),
        "{}",
        it.program.display()
    );
    assert_eq!(it.program.file_name(), Some(OsStr::new(&call.client)));
    for (name, value) in &it.env {
        assert!(name.starts_with("MOORING_"), "{name}");
        assert!(
            name.bytes()
                .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_'),
            "{name}"
        );
        let given = call.options.values().any(|option| value == option.as_str());
        assert!(given || !name.starts_with("MOORING_OPTION_"), "{name}");
    }
}

/// `mount` reads the list as intended: the volume's options, and those that forbid set-user-id and devices.
fn options(list: &OsStr, call: &MountCall) {
    let list = list.to_str().expect("text");
    let read = as_mount_reads(list);
    for (safe, unsafe_) in [("nosuid", "suid"), ("nodev", "dev")] {
        assert!(read.contains(&safe) || read.contains(&unsafe_), "{list}");
    }
    for option in &read {
        let name = option.split('=').next().unwrap_or_default();
        let moves = ["bind", "rbind", "move", "remount", "loop", "helper", "shared"].contains(&name);
        assert!(!moves && !name.to_ascii_lowercase().starts_with("x-"), "{list}");
        let given = call.mount_options.iter().any(|wanted| wanted == option);
        assert!(given || ["nosuid", "nodev", ""].contains(option), "{list}");
    }
}

/// As `mount(8)` does: a comma between quotation marks or after a backslash does not separate options.
fn as_mount_reads(list: &str) -> Vec<&str> {
    let (mut read, mut start, mut quoted, mut before) = (Vec::new(), 0, false, ' ');
    for (at, c) in list.char_indices() {
        quoted ^= c == '"';
        if c == ',' && !quoted && before != '\\' {
            read.push(&list[start..at]);
            start = at + 1;
        }
        before = c;
    }
    // `mount` does not read what follows an open quotation mark.
    if !quoted {
        read.push(&list[start..]);
    }
    read
}
