//! Whether a volume may be as its options say, given who says it.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;

use super::address::first_host;
use super::clients::{
    ClientRecord, NODE_CLIENTS, NODE_DISK, OptionRule, RECORDS, Speaker, TENANT_MOUNT_OPTIONS, UNKNOWN_OPTION,
    alternatives, record,
};
use super::{ForbiddenOption, NodeAccess, Volume, check_kind, check_mount_options, check_options, keys};

/// Why a volume is refused; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The volume reaches for something of the node's own.
    #[error(transparent)]
    Node(#[from] NodeAccess),
    #[error(transparent)]
    MountOption(#[from] ForbiddenOption),
    #[error(
        "client {0} is not allowed in the answer of attach, since it gives out the node's own storage: print the client \
         by which nodes reach the volume"
    )]
    NodeClient(String),
    /// The client has no such option.
    #[error("client {client} has no option {option:?}: it has {known}; remove it, or correct its name")]
    Unknown {
        option: String,
        client: String,
        known: String,
    },
    #[error("option {option:?} of client {client} can't be set in a Pod's own volume: use a PersistentVolumeClaim")]
    NotATenants { option: String, client: String },
    #[error("mount option {0:?} can't be set in a Pod's own volume: use a PersistentVolumeClaim")]
    NotATenantsMountOption(String),
    /// The option can't have this value.
    #[error("option {option} of client {client} can't be {value:?}: write {wanted}")]
    Value {
        option: String,
        value: String,
        client: String,
        wanted: String,
    },
    /// The client can't have this source.
    #[error("option source={found:?} {words}")]
    Source {
        found: String,
        /// What is wrong with it, and what to do.
        words: &'static str,
    },
    /// The client does not have this file system.
    #[error("client {client} can't have fs-type={found:?}: use {wanted}, or leave it out")]
    FsType {
        found: String,
        client: String,
        wanted: String,
    },
}

/// Options that every client has.
pub(super) const COMMON_OPTIONS: [&str; 4] = [keys::SOURCE, keys::MOUNT_OPTIONS, keys::FS_TYPE, keys::CLIENT_IMAGE];

impl Volume {
    /// Checks that `speaker` may say of a volume what its options say; `granted` are mount options that an
    /// administrator asked for (the `StorageClass`'s).
    ///
    /// An administrator may name a path or a device of the node with a client that has no record: see
    /// [`Volume::is_of_the_node`].
    pub fn check(&self, speaker: Speaker, granted: &[String]) -> Result<(), CheckError> {
        let record = record(self.client.as_str(), &self.fs_type);
        check_mount_options(&self.mount_options)?;
        // Without `fs-type` a client's name is the type.
        for fs_type in [self.fs_type.as_str(), self.client.as_str()] {
            check_kind(fs_type, &self.mount_options)?;
        }
        if speaker == Speaker::Attach && NODE_CLIENTS.contains(&self.client.as_str()) {
            return Err(CheckError::NodeClient(self.client.to_string()));
        }
        if speaker < Speaker::Administrator {
            check_options(&self.mount_options, granted)?;
            if !(speaker == Speaker::Attach && self.client.as_str() == NODE_DISK) {
                self.check_elsewhere()?;
            }
        }
        if speaker == Speaker::Tenant {
            self.check_tenant(record)?;
        }
        for (option, value) in &self.rest {
            match record {
                Some(record) => self.check_option(record, option, value, speaker)?,
                None if speaker == Speaker::Tenant => return Err(self.not_a_tenants(option)),
                None if !matches(UNKNOWN_OPTION, option) => {
                    return Err(self.unknown(
                        option,
                        "options of letters, digits, dots, dashes and underscores".to_owned(),
                    ));
                }
                None => {}
            }
        }
        let Some(record) = record else { return Ok(()) };
        let known = record.fs_types.is_empty() || self.fs_type.is_empty();
        if !known && !record.fs_types.contains(&self.fs_type.as_str()) {
            return Err(CheckError::FsType {
                found: self.fs_type.clone(),
                client: self.client.to_string(),
                wanted: alternatives(record.fs_types),
            });
        }
        if !matches(record.source.pattern, &self.source) {
            return Err(CheckError::Source {
                found: self.source.clone(),
                words: record.source.wanted,
            });
        }
        Ok(())
    }

    /// The server that the volume is mounted from, or the first of several, without brackets and port; the whole source
    /// if that names none.
    pub fn server(&self) -> &str {
        first_host(&self.source).unwrap_or(&self.source)
    }

    fn check_tenant(&self, record: Option<&ClientRecord>) -> Result<(), CheckError> {
        if self.client_image.is_some() {
            return Err(self.not_a_tenants(keys::CLIENT_IMAGE));
        }
        let theirs = record.map_or(&[][..], |record| record.tenant_fs_types);
        if !self.fs_type.is_empty() && !theirs.contains(&self.fs_type.as_str()) {
            return Err(self.not_a_tenants(keys::FS_TYPE));
        }
        let others = |option: &&String| !TENANT_MOUNT_OPTIONS.contains(&option.as_str());
        match self.mount_options.iter().find(others) {
            Some(option) => Err(CheckError::NotATenantsMountOption(option.clone())),
            None => Ok(()),
        }
    }

    fn check_option(
        &self,
        record: &ClientRecord,
        option: &str,
        value: &str,
        speaker: Speaker,
    ) -> Result<(), CheckError> {
        let rule: &OptionRule = record.options.iter().find(|rule| rule.name == option).ok_or_else(|| {
            let own = record.options.iter().map(|rule| rule.name);
            self.unknown(
                option,
                COMMON_OPTIONS.into_iter().chain(own).collect::<Vec<_>>().join(", "),
            )
        })?;
        if speaker < rule.by {
            return Err(self.not_a_tenants(option));
        }
        if rule.accepts(value) {
            return Ok(());
        }
        Err(CheckError::Value {
            option: option.to_owned(),
            value: value.to_owned(),
            client: self.client.to_string(),
            wanted: rule.value.wanted.to_owned(),
        })
    }

    fn unknown(&self, option: &str, known: String) -> CheckError {
        CheckError::Unknown {
            option: option.to_owned(),
            client: self.client.to_string(),
            known,
        }
    }

    fn not_a_tenants(&self, option: &str) -> CheckError {
        CheckError::NotATenants {
            option: option.to_owned(),
            client: self.client.to_string(),
        }
    }
}

/// Every pattern of the clients' records, compiled.
static PATTERNS: LazyLock<HashMap<&'static str, Regex>> = LazyLock::new(|| {
    let options = RECORDS.iter().flat_map(|record| record.options);
    let patterns = options.map(|option| option.value.pattern);
    patterns
        .chain(RECORDS.iter().map(|record| record.source.pattern))
        .chain([UNKNOWN_OPTION])
        .filter_map(|pattern| Some((pattern, Regex::new(pattern).ok()?)))
        .collect()
});

/// Whether a pattern of the clients' records matches. A text that no pattern can judge is refused.
pub(super) fn matches(pattern: &'static str, text: &str) -> bool {
    PATTERNS.get(pattern).is_some_and(|regex| regex.is_match(text))
}

#[cfg(test)]
mod tests;
