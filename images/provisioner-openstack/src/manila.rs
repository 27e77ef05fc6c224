//! Shares of Manila, by CephFS, NFS and CIFS: what they have beyond [`crate::storage`].

use mooring_contract::operation::Operation;
use serde_json::json;

use crate::answer::AnswerWriter;
use crate::error::OpenstackError;
use crate::given::GivenRun;
use crate::keystone::Session;
use crate::kube_secret::KubeSecrets;
use crate::service::{Kind, Microversion};
use crate::storage::{SNAPSHOT, Storage, Words};
use crate::wait::Pace;

mod access;
mod attach;
mod copy;
mod discover;
mod export;
mod protocol;
mod provision;

static WORDS: Words = Words {
    service: Kind {
        name: "Manila",
        types: &["shared-file-system", "sharev2"],
        api: "v2",
        header: ("x-openstack-manila-api-version", ""),
        newest: Microversion(2, 78),
        // Access rules with a resource of their own.
        oldest: Microversion(2, 45),
    },
    one: "share",
    all: "shares",
    passing: &[
        "awaiting_transfer",
        "backup_creating",
        "backup_restoring",
        "creating",
        "creating_from_snapshot",
        "deferred_deleting",
        "deleting",
        "ensuring",
        "extending",
        "migrating",
        "migrating_to",
        "replication_change",
        "restoring",
        "reverting",
        "server_migrating",
        "server_migrating_to",
        "shrinking",
    ],
    deletable: &["error"],
    extend: "extend",
    force_delete: "force_delete",
    of: "share_id",
    messages: ("resource_id=", "&sort_key=created_at&sort_dir=desc"),
};

const KNOWN: &str = "provision, delete, expand, clone, snapshot, delete-snapshot, restore, attach, detach and discover \
                     with service: manila";

/// Manila, and what this run is to do there.
#[derive(Debug)]
pub struct Manila<'a> {
    storage: Storage<'a>,
}

impl<'a> Manila<'a> {
    pub fn open(
        session: &'a Session,
        given: &'a GivenRun,
        answer: AnswerWriter<'a>,
        pace: Pace,
    ) -> Result<Self, OpenstackError> {
        Ok(Self {
            storage: Storage::open(session, &WORDS, given, answer, pace)?,
        })
    }

    /// Carries out the run's operation; returns what to print.
    pub fn run(&self) -> Result<String, OpenstackError> {
        let storage = &self.storage;
        match storage.given.request.operation {
            Operation::Provision => self.provision(),
            Operation::Clone => self.clone_share(),
            Operation::Restore => self.restore(),
            Operation::Delete => self.delete(),
            Operation::Expand => storage.expand(&self.this_share()?),
            Operation::Snapshot => storage.save(&SNAPSHOT, || self.this_share(), &json!({})),
            Operation::DeleteSnapshot => storage.delete_saved(&SNAPSHOT),
            Operation::Attach => self.attach(),
            Operation::Detach => self.detach(),
            Operation::Discover => self.discover(),
            other => Err(OpenstackError::Operation(other.to_string(), KNOWN)),
        }
    }

    /// The id of the share that this run is about.
    fn this_share(&self) -> Result<String, OpenstackError> {
        let name = &self.storage.given.request.pv_name;
        let found = self.storage.standing(name, None)?;
        Ok(found.ok_or_else(|| self.storage.gone(name))?.id)
    }

    /// Deletes the share, then what was made for it: the snapshot that it may be a copy of, and the Secret with its
    /// key. The share's client in Ceph goes with the share.
    fn delete(&self) -> Result<String, OpenstackError> {
        let given = self.storage.given;
        let done = self.storage.delete(None)?;
        self.storage.delete_copied(&self.copied())?;
        if let Some(namespace) = given.property(access::NAMESPACE)? {
            let name = access::secret_name(&given.request.pv_name);
            KubeSecrets::of(given, namespace, self.storage.pace)?.delete(&name)?;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests;
