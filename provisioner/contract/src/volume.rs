//! A volume: flat string options, the same in a PV's `flexVolume.options` and `csi.volumeAttributes`.

pub mod address;
mod check;
pub mod clients;
pub mod file_system;
mod mount_options;
mod node;

use std::collections::BTreeMap;

use serde::Serialize;

pub use check::CheckError;
pub use clients::Speaker;
pub use mount_options::{FORBIDDEN_OPTIONS, ForbiddenOption, check_mount_options};
pub use node::{FILE_OPTIONS, NodeAccess, VIEWS, check_kind, check_options};

/// Names of the options that every client has. A client's own options go by any other name.
pub mod keys {
    /// Which client serves the volume: see [`super::ClientName`].
    pub const CLIENT: &str = "client";
    /// What `mount` would be given as its source.
    pub const SOURCE: &str = "source";
    /// Comma-separated mount options.
    pub const MOUNT_OPTIONS: &str = "mount-options";
    /// The file system, where the client needs to be told.
    pub const FS_TYPE: &str = "fs-type";
    /// Of clients with devices: for how many bytes of its device an ext4 gets an inode.
    pub const BYTES_PER_INODE: &str = "bytes-per-inode";
    /// The client image, where the ConfigMap names one (`client-image`); an administrator must have allowed it.
    pub const CLIENT_IMAGE: &str = "client-image";
    /// In an image's termination message only: the Secret that the mount needs. It becomes the PV's `secretRef`.
    pub const SECRET_NAME: &str = "secret-name";
    /// In the termination message of an `attach` only: the secrets of the connection, sealed with property
    /// `answer-key`.
    pub const SEALED: &str = "sealed";
    /// In an image's termination message only: the namespace of [`SECRET_NAME`]; the claim's if not said.
    pub const SECRET_NAMESPACE: &str = "secret-namespace";
}

/// A client's name: a DNS label, since Pods and labels carry it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ClientName(String);

impl ClientName {
    /// The node's own storage pool: what `backend-volume: client=pool` gives to a provisioning Pod, never a tenant.
    pub const POOL: &str = "pool";
    /// An image file of the node's own pool.
    pub const LOCAL: &str = "local";

    /// Longest name: it must fit a label beside a suffix.
    pub const MAX_LEN: usize = 40;

    /// The name as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for ClientName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for ClientName {
    type Err = VolumeError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let valid = !s.is_empty()
            && s.len() <= Self::MAX_LEN
            && s.bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !s.starts_with('-')
            && !s.ends_with('-');
        if valid {
            Ok(Self(s.to_owned()))
        } else {
            Err(VolumeError::BadClient(s.to_owned()))
        }
    }
}

/// What is wrong with a volume's options; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    #[error("option \"client\" is missing: name the client that mounts the volume, such as client=nfs")]
    NoClient,
    /// The option `client` can't be a client's name.
    #[error(
        "option client={0:?} is not a client's name: use at most {max} lower-case letters, digits and inner dashes",
        max = ClientName::MAX_LEN
    )]
    BadClient(String),
    /// A value has a character that no mount can take.
    #[error("option {key:?} has a control character (such as a newline or NUL) in its value: remove it")]
    ControlCharacter { key: String },
    /// A part of `backend-volume` has no `=`.
    #[error("{0:?} is not an option: write key=value, options separated by commas")]
    NoEquals(String),
    #[error("option {0:?} is given twice: keep one")]
    Twice(String),
}

/// A volume as its options describe it. Secrets are never among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub client: ClientName,
    /// The source for `mount`; empty if the volume has none. For a client with a record, IPv6 addresses are in the form
    /// that the client reads.
    pub source: String,
    /// Mount options, in their order.
    pub mount_options: Vec<String>,
    /// The file system; empty if not said.
    pub fs_type: String,
    /// The client image that the provisioner's ConfigMap names.
    pub client_image: Option<String>,
    /// All other options: the client's own.
    pub rest: BTreeMap<String, String>,
}

impl Volume {
    pub fn from_options(options: &BTreeMap<String, String>) -> Result<Self, VolumeError> {
        for (key, value) in options {
            if value.chars().any(char::is_control) || key.chars().any(char::is_control) {
                return Err(VolumeError::ControlCharacter { key: key.clone() });
            }
        }
        let mut rest = options.clone();
        let client: ClientName = rest.remove(keys::CLIENT).ok_or(VolumeError::NoClient)?.parse()?;
        let mut source = rest.remove(keys::SOURCE).unwrap_or_default();
        let mount_options = split_list(&rest.remove(keys::MOUNT_OPTIONS).unwrap_or_default());
        let fs_type = rest.remove(keys::FS_TYPE).unwrap_or_default();
        if clients::record(client.as_str(), &fs_type).is_some() {
            source = address::uniform(&source);
        }
        let client_image = rest.remove(keys::CLIENT_IMAGE).filter(|image| !image.is_empty());
        Ok(Self {
            client,
            source,
            mount_options,
            fs_type,
            client_image,
            rest,
        })
    }

    /// The volume as flat options; reads back to the same volume.
    pub fn to_options(&self) -> BTreeMap<String, String> {
        let mut options = self.rest.clone();
        let mut put = |key: &str, value: String| {
            if !value.is_empty() {
                options.insert(key.to_owned(), value);
            }
        };
        put(keys::CLIENT, self.client.to_string());
        put(keys::SOURCE, self.source.clone());
        put(keys::MOUNT_OPTIONS, self.mount_options.join(","));
        put(keys::FS_TYPE, self.fs_type.clone());
        put(keys::CLIENT_IMAGE, self.client_image.clone().unwrap_or_default());
        options
    }

    /// The volume as a node has it that it is attached to: with what the storage said of the connection. If that names
    /// another client, the volume's own image is not for it, nor are options that the two do not have alike.
    pub fn connected(&self, said: BTreeMap<String, String>) -> Result<Self, VolumeError> {
        let mut volume = self.clone();
        if let Some(client) = said.get(keys::CLIENT).filter(|client| *client != self.client.as_str()) {
            let fs_type = said.get(keys::FS_TYPE).unwrap_or(&self.fs_type);
            volume.client_image = None;
            volume.rest.retain(|option, _| {
                let own = clients::option_rule(self.client.as_str(), &self.fs_type, option);
                own.is_some() && own == clients::option_rule(client, fs_type, option)
            });
        }
        let mut options = volume.to_options();
        options.extend(said);
        Self::from_options(&options)
    }

    /// Reads the one-line form of `backend-volume`: `client=nfs,source=10.10.2.4:/exports`.
    ///
    /// A piece without `=` after `mount-options=` goes on with that list (`mount-options=ro,noatime`).
    pub fn from_line(line: &str) -> Result<Self, VolumeError> {
        let mut options = BTreeMap::<String, String>::new();
        let mut previous = String::new();
        for piece in line.split(',').map(str::trim).filter(|piece| !piece.is_empty()) {
            match piece.split_once('=') {
                Some((key, value)) if previous != keys::MOUNT_OPTIONS || is_option_key(key) => {
                    key.clone_into(&mut previous);
                    if options.insert(key.to_owned(), value.to_owned()).is_some() {
                        return Err(VolumeError::Twice(key.to_owned()));
                    }
                }
                _ if previous == keys::MOUNT_OPTIONS => {
                    let list = options.entry(previous.clone()).or_default();
                    list.push(',');
                    list.push_str(piece);
                }
                _ => return Err(VolumeError::NoEquals(piece.to_owned())),
            }
        }
        Self::from_options(&options)
    }
}

fn is_option_key(key: &str) -> bool {
    [
        keys::CLIENT,
        keys::SOURCE,
        keys::MOUNT_OPTIONS,
        keys::FS_TYPE,
        keys::CLIENT_IMAGE,
    ]
    .contains(&key)
}

/// Splits a comma-separated list; blanks around and between its items do not count.
pub fn split_list(list: &str) -> Vec<String> {
    list.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Volume, VolumeError};

    #[test]
    fn the_one_line_form_reads_like_the_options() {
        let volume =
            Volume::from_line("client=nfs, source=10.10.2.4:/exports,mount-options=ro,vers=4.1,fs-type=nfs4").unwrap();
        assert_eq!(volume.client.as_str(), "nfs");
        assert_eq!(volume.source, "10.10.2.4:/exports");
        assert_eq!(volume.mount_options, ["ro", "vers=4.1"]);
        assert_eq!(volume.fs_type, "nfs4");
        assert_eq!(Volume::from_options(&volume.to_options()).unwrap(), volume);
    }

    #[test]
    fn the_source_of_a_known_client_has_ipv6_addresses_in_one_form() {
        for (line, source) in [
            ("client=sshfs,source=tom@fd00::10:/srv", "tom@[fd00::10]:/srv"),
            ("client=host,fs-type=nfs4,source=fd00::10:/srv", "[fd00::10]:/srv"),
            ("client=acme,source=fd00::10:/srv", "fd00::10:/srv"),
        ] {
            assert_eq!(Volume::from_line(line).unwrap().source, source);
        }
    }

    #[test]
    fn a_connection_by_another_client_has_of_the_volume_s_own_options_those_of_both() {
        let line = "client=rbd,source=rbd://later/p/i,driver=kernel,bytes-per-inode=4096,client-image=a/b:1,\
                    fs-type=ext4,mount-options=ro";
        let volume = Volume::from_line(line).unwrap();
        let said = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            volume
                .connected(pairs.map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
                .unwrap()
        };
        let disk = said(&[("client", "node-disk"), ("source", "serial://1")]);
        let line = "client=node-disk,source=serial://1,bytes-per-inode=4096,fs-type=ext4,mount-options=ro";
        assert_eq!(disk, Volume::from_line(line).unwrap());
        let same = said(&[("client", "rbd"), ("source", "rbd://h/p/i")]);
        assert_eq!((same.rest.len(), same.client_image.is_some()), (2, true));
        let vendors = said(&[("client", "acme"), ("source", "x")]);
        assert_eq!(vendors.rest.len(), 0);
    }

    #[test]
    fn a_bad_line_says_what_to_do() {
        assert_eq!(Volume::from_line("source=x"), Err(VolumeError::NoClient));
        assert_eq!(
            Volume::from_line("client=nfs,exports"),
            Err(VolumeError::NoEquals("exports".into()))
        );
        assert_eq!(
            Volume::from_line("client=nfs,client=smb"),
            Err(VolumeError::Twice("client".into()))
        );
        assert!(matches!(
            Volume::from_line("client=../x"),
            Err(VolumeError::BadClient(_))
        ));
        assert!(matches!(
            Volume::from_line("client=nfs,source=a\nb"),
            Err(VolumeError::ControlCharacter { .. })
        ));
    }
}
