//! Keeps a node that is gone from a volume on Ceph: whoever has the image open is put on the cluster's blocklist.
//!
//! That is done with Ceph's own commands, which image `provisioner-openstack-ceph` has and the small image has not.
//! What is on the list is one client with the number that it drew when it started (`10.0.0.7:0/1234`), so a node that
//! comes back can have the volume again by a new client, and nobody has to take anything off the list.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::connection::CephImage;
use crate::error::OpenstackError;

/// How long a client stays on the list, in seconds: a year. Ceph's usual hour is less than a node may be away.
const EXPIRES: &str = "31536000";

/// Longest that a command may wait for the cluster, in seconds.
const PATIENCE: u32 = 60;

/// What a run of one of Ceph's commands may say, at most, in an Event.
const SAID: usize = 300;

/// What `rbd` exits with where something is not there, and what it says where that is the image
/// (`src/tools/rbd/Utils.cc` of Ceph).
const ENOENT: i32 = 2;
const NO_IMAGE: &str = "error opening image";

/// Whether the storage was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fenced {
    /// Nobody of before can write to the image any more.
    Done,
    /// This image has no commands of Ceph, or Ceph does not know the node by its addresses.
    Unable,
}

#[derive(Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    watchers: Vec<Client>,
}

#[derive(Debug, Deserialize)]
struct Client {
    address: String,
}

/// Ceph's commands, and the folder for what they need.
pub(super) struct Fence<'a> {
    pub(super) rbd: &'a Path,
    pub(super) ceph: &'a Path,
    pub(super) folder: &'a Path,
}

impl Fence<'_> {
    /// Ends the access of all that have the image open or hold a lock on it; only of those at these addresses, if other
    /// nodes may have it too.
    pub(super) fn close(&self, image: &CephImage, at: Option<&[&str]>) -> Result<Fenced, OpenstackError> {
        let settings = self.write_settings(image)?;
        let status = match ask(self.rbd, &["status", &image.name, "--format", "json"], image, &settings) {
            Ok(status) => status,
            Err(Trouble::NoProgram) => return Ok(Fenced::Unable),
            Err(Trouble::Gone) => return Ok(Fenced::Done),
            Err(Trouble::Failed(error)) => return Err(error),
        };
        let locks = ask(
            self.rbd,
            &["lock", "list", &image.name, "--format", "json"],
            image,
            &settings,
        );
        let locks = locks.map_err(|trouble| trouble.of(image))?;
        let mut clients = clients(&status, &locks).map_err(|source| unclear(image, &source))?;
        if let Some(at) = at
            && !clients.is_empty()
        {
            clients.retain(|client| at.contains(&host_of(client)));
            if clients.is_empty() {
                return Ok(Fenced::Unable);
            }
        }
        for address in clients {
            let add = ["osd", "blocklist", "add", &address, EXPIRES];
            ask(self.ceph, &add, image, &settings).map_err(|trouble| trouble.of(image))?;
        }
        Ok(Fenced::Done)
    }

    /// In files that only this run can read: everyone on the node could see a command line.
    fn write_settings(&self, image: &CephImage) -> Result<PathBuf, OpenstackError> {
        let (keyring, settings) = (self.folder.join("fence.keyring"), self.folder.join("fence.conf"));
        let write = |path: &Path, text: String| {
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
            let written = file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
            written.map_err(|source| {
                OpenstackError::NotNow(format!(
                    "failed to write {} ({source}): it is tried again",
                    path.display()
                ))
            })
        };
        let CephImage {
            monitors, user, key, ..
        } = image;
        write(&keyring, format!("[client.{user}]\nkey = {key}\n"))?;
        let lines = format!(
            "[global]\nmon_host = {monitors}\nkeyring = {}\nclient_mount_timeout = {PATIENCE}\n\
             rados_mon_op_timeout = {PATIENCE}\nrados_osd_op_timeout = {PATIENCE}\n",
            keyring.display()
        );
        write(&settings, lines)?;
        Ok(settings)
    }
}

/// Runs one of Ceph's commands; its output.
fn ask(program: &Path, args: &[&str], image: &CephImage, settings: &Path) -> Result<Vec<u8>, Trouble> {
    let mut command = Command::new(program);
    command
        .args(args)
        .arg("--conf")
        .arg(settings)
        .args(["--name", &format!("client.{}", image.user)]);
    let ran = command.stdin(Stdio::null()).output();
    let ran = ran.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Trouble::NoProgram,
        _ => Trouble::failed(image, &error.to_string()),
    })?;
    if ran.status.success() {
        return Ok(ran.stdout);
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    // A cluster that can't be reached may have the same exit code: only these words are about the image.
    if said.contains(NO_IMAGE) && ran.status.code() == Some(ENOENT) {
        return Err(Trouble::Gone);
    }
    Err(Trouble::failed(image, last_words(&said)))
}

/// Why one of Ceph's commands did not do its work.
enum Trouble {
    NoProgram,
    Gone,
    Failed(OpenstackError),
}

impl Trouble {
    fn failed(image: &CephImage, said: &str) -> Self {
        Self::Failed(OpenstackError::NotNow(format!(
            "Ceph did not keep the node from image {}: {said}; it is tried again, see whether the monitors {} are up \
             and what client.{} may do (\"profile rbd\")",
            image.name, image.monitors, image.user
        )))
    }

    /// Of a command after the first one, which found program and image.
    fn of(self, image: &CephImage) -> OpenstackError {
        match self {
            Self::Failed(error) => error,
            Self::NoProgram => OpenstackError::NotNow("Ceph's commands are incomplete in this image".to_owned()),
            Self::Gone => OpenstackError::NotNow(format!("image {} has just gone: it is looked at again", image.name)),
        }
    }
}

fn unclear(image: &CephImage, source: &serde_json::Error) -> OpenstackError {
    OpenstackError::NotNow(format!(
        "Ceph's answer about image {} makes no sense ({source}): it is asked again",
        image.name
    ))
}

/// The addresses of all that have an image open, and of those that hold a lock on it.
fn clients(status: &[u8], locks: &[u8]) -> Result<BTreeSet<String>, serde_json::Error> {
    let status: Status = serde_json::from_slice(status)?;
    let locks: Vec<Client> = serde_json::from_slice(locks)?;
    let all = status.watchers.into_iter().chain(locks);
    Ok(all.map(|client| client.address).collect())
}

/// The host in `10.0.0.7:0/1234` or `[fd00::7]:0/1234`.
fn host_of(client: &str) -> &str {
    let host = client.rsplit_once(':').map_or(client, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// The last line of what a command said, which tells what failed.
fn last_words(said: &str) -> &str {
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    let last = last.unwrap_or("its command said nothing");
    last.char_indices().nth(SAID).map_or(last, |(end, _)| &last[..end])
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::{Fence, Fenced, clients, last_words};
    use crate::cinder::connection::CephImage;

    fn image() -> CephImage {
        CephImage {
            name: "volumes/volume-1".into(),
            monitors: "10.0.0.1:6789".into(),
            user: "cinder".into(),
            key: "K==".into(),
        }
    }

    /// As `rbd` of Ceph 18 prints them.
    const STATUS: &str = r#"{"watchers":[{"address":"10.0.0.7:0/11","client":4150,"cookie":1},
                                         {"address":"10.0.0.7:0/12","client":4151,"cookie":2}]}"#;
    const LOCKS: &str = r#"[{"id":"auto 1","locker":"client.4150","address":"10.0.0.7:0/11"}]"#;

    /// A folder with programs that write down what they are asked.
    fn with_programs(rbd: &str, ceph: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, does) in [("rbd", rbd), ("ceph", ceph)] {
            let path = folder.path().join(name);
            let asked = folder.path().join("asked");
            fs::write(
                &path,
                format!("#!/bin/sh\necho {name} $* >>{}\n{does}\n", asked.display()),
            )
            .unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        folder
    }

    fn close(folder: &Path) -> Result<Fenced, crate::error::OpenstackError> {
        close_to(folder, None)
    }

    fn close_to(folder: &Path, at: Option<&[&str]>) -> Result<Fenced, crate::error::OpenstackError> {
        let (rbd, ceph) = (folder.join("rbd"), folder.join("ceph"));
        let fence = Fence {
            rbd: &rbd,
            ceph: &ceph,
            folder,
        };
        fence.close(&image(), at)
    }

    #[test]
    fn all_that_have_the_image_open_or_locked_are_put_on_the_list_once() {
        let does = format!("case $1 in status) echo '{STATUS}' ;; *) echo '{LOCKS}' ;; esac");
        let folder = with_programs(&does, "");
        assert_eq!(close(folder.path()).unwrap(), Fenced::Done);
        let asked = fs::read_to_string(folder.path().join("asked")).unwrap();
        let listed: Vec<_> = asked.lines().filter(|line| line.starts_with("ceph ")).collect();
        assert_eq!(listed.len(), 2, "{asked}");
        assert!(
            listed[0].starts_with("ceph osd blocklist add 10.0.0.7:0/11 31536000 --conf"),
            "{asked}"
        );
        assert!(!asked.contains("K=="), "the key is on a command line");
        let keyring = fs::metadata(folder.path().join("fence.keyring")).unwrap();
        assert_eq!(keyring.permissions().mode() & 0o777, 0o600);
        assert!(clients(STATUS.as_bytes(), b"{}").is_err());
    }

    #[test]
    fn where_several_nodes_have_the_image_only_the_one_that_is_gone_is_put_on_the_list() {
        let locks = r#"[{"address":"10.0.0.70:0/13"},{"address":"[fd00::7]:0/14"}]"#;
        let does = format!("case $1 in status) echo '{STATUS}' ;; *) echo '{locks}' ;; esac");
        for (at, listed) in [(&["10.0.0.7", "node-a"][..], 2), (&["fd00::7"], 1), (&["10.0.0.8"], 0)] {
            let folder = with_programs(&does, "");
            let fenced = close_to(folder.path(), Some(at)).unwrap();
            assert_eq!(fenced == Fenced::Done, listed > 0, "{at:?}");
            let asked = fs::read_to_string(folder.path().join("asked")).unwrap();
            assert_eq!(asked.matches("blocklist add").count(), listed, "{asked}");
        }
        let nobody = with_programs("case $1 in status) echo '{}' ;; *) echo '[]' ;; esac", "");
        assert_eq!(close_to(nobody.path(), Some(&["10.0.0.8"])).unwrap(), Fenced::Done);
    }

    #[test]
    fn an_image_that_is_gone_needs_no_fence_and_without_commands_there_is_none() {
        let gone = with_programs(
            "echo 'rbd: error opening image volume-1: (2) No such file' >&2; exit 2",
            "",
        );
        assert_eq!(close(gone.path()).unwrap(), Fenced::Done);
        assert_eq!(close(tempfile::tempdir().unwrap().path()).unwrap(), Fenced::Unable);
    }

    #[test]
    fn a_cluster_that_refuses_leaves_the_node_with_the_volume() {
        let does = format!("case $1 in status) echo '{STATUS}' ;; *) echo '{LOCKS}' ;; esac");
        for (rbd, ceph) in [
            ("echo 'timed out' >&2; exit 110", ""),
            ("echo \"rbd: couldn't connect to the cluster!\" >&2; exit 2", ""),
            (does.as_str(), "echo Error EACCES: access denied >&2; exit 13"),
            ("echo no JSON", ""),
        ] {
            let error = close(with_programs(rbd, ceph).path()).unwrap_err();
            assert_eq!(error.exit_code(), 75, "{error}");
        }
        assert_eq!(last_words("one\n two \n\n"), "two");
        assert_eq!(last_words(&"x".repeat(400)).len(), 300);
    }
}
