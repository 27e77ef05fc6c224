//! Volumes of Cinder: what they have beyond [`crate::storage`].

use mooring_contract::operation::Operation;
use mooring_contract::volume::keys;
use serde_json::json;

use crate::answer::AnswerWriter;
use crate::error::OpenstackError;
use crate::given::GivenRun;
use crate::keystone::Session;
use crate::service::{Kind, Microversion};
use crate::storage::{BACKUP, Item, SNAPSHOT, Storage, Way, Words};
use crate::wait::Pace;

mod attach;
mod connection;
mod discover;
mod fence;
mod modify;
mod nova;
mod place;
mod provision;

static WORDS: Words = Words {
    service: Kind {
        name: "Cinder",
        types: &["block-storage", "volumev3", "volume"],
        api: "v3",
        header: ("openstack-api-version", "volume "),
        newest: Microversion(3, 59),
        // Attachments without Nova.
        oldest: Microversion(3, 44),
    },
    one: "volume",
    all: "volumes",
    passing: &[
        "attaching",
        "awaiting-transfer",
        "backing-up",
        "creating",
        "deleting",
        "detaching",
        "downloading",
        "extending",
        "maintenance",
        "reserved",
        "restoring-backup",
        "retyping",
        "uploading",
    ],
    deletable: &["error", "error_extending", "error_managing", "error_restoring"],
    extend: "os-extend",
    force_delete: "os-force_delete",
    of: "volume_id",
    messages: ("resource_uuid=", "&sort=created_at:desc"),
};

const KNOWN: &str = "provision, delete, expand, modify, clone, snapshot, delete-snapshot, restore, backup, \
                     delete-backup, attach, detach and discover with service: cinder";

/// Cinder, and what this run is to do there.
#[derive(Debug)]
pub struct Cinder<'a> {
    storage: Storage<'a>,
    session: &'a Session,
}

impl<'a> Cinder<'a> {
    pub fn open(
        session: &'a Session,
        given: &'a GivenRun,
        answer: AnswerWriter<'a>,
        pace: Pace,
    ) -> Result<Self, OpenstackError> {
        Ok(Self {
            session,
            storage: Storage::open(session, &WORDS, given, answer, pace)?,
        })
    }

    /// Carries out the run's operation; returns what to print.
    pub fn run(&self) -> Result<String, OpenstackError> {
        let storage = &self.storage;
        match storage.given.request.operation {
            Operation::Provision => self.provision(),
            Operation::Clone => self.clone_volume(),
            Operation::Restore => self.restore(),
            Operation::Delete => storage.delete(self.id()),
            Operation::Expand => self.expand(),
            Operation::Modify => self.modify(),
            Operation::Snapshot => self.save(&SNAPSHOT),
            Operation::DeleteSnapshot => storage.delete_saved(&SNAPSHOT),
            Operation::Backup => self.save(&BACKUP),
            Operation::DeleteBackup => storage.delete_saved(&BACKUP),
            Operation::Attach => self.attach(),
            Operation::Detach => self.detach(),
            Operation::Discover => self.discover(),
            other => Err(OpenstackError::Operation(other.to_string(), KNOWN)),
        }
    }

    /// Has the volume enlarged, also while a node uses it, unless that would leave it in error.
    fn expand(&self) -> Result<String, OpenstackError> {
        let given = self.storage.given;
        let volume = self.this_volume()?;
        if volume.size < given.gib()
            && let Some(held) = volume.attachments.first()
            && self
                .connection_of(held)?
                .is_some_and(|info| info["driver_volume_type"] == "nfs")
        {
            return Err(OpenstackError::NotNow(format!(
                "Cinder can't enlarge a file of an NFS export while a node has it: volume {} grows when no Pod uses it",
                given.request.pv_name
            )));
        }
        self.storage.expand(&volume.id)
    }

    /// Saves the volume, also while a node uses it.
    fn save(&self, way: &Way) -> Result<String, OpenstackError> {
        self.storage
            .save(way, || Ok(self.this_volume()?.id), &json!({"force": true}))
    }

    /// The id of the volume that this run is about, if its PersistentVolume says one.
    fn id(&self) -> Option<&str> {
        place::id(self.storage.given.option(keys::SOURCE))
    }

    fn this_volume(&self) -> Result<Item, OpenstackError> {
        let name = &self.storage.given.request.pv_name;
        let found = self.storage.standing(name, self.id())?;
        found.ok_or_else(|| self.storage.gone(name))
    }
}

#[cfg(test)]
mod cut_off;
#[cfg(test)]
mod tests;
