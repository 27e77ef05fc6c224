//! Volumes of Cinder. A volume is named after its PersistentVolume, and has that in its metadata too: by both it is
//! found again, and by the latter it is known to be Mooring's.

use mooring_contract::operation::Operation;

use crate::answer::Answer;
use crate::error::Error;
use crate::given::Given;
use crate::keystone::Session;
use crate::service::{Kind, Service, Version};
use crate::wait::Pace;

mod attach;
mod backup;
mod connection;
mod delete;
mod discover;
mod expand;
mod modify;
mod place;
mod provision;
mod snapshot;
mod volume;

/// As messages call it.
const CINDER: &str = "Cinder";

static KIND: Kind = Kind {
    name: CINDER,
    types: &["block-storage", "volumev3", "volume"],
    api: "v3",
    header: ("openstack-api-version", "volume "),
    newest: Version(3, 59),
    // Attachments without Nova.
    oldest: Version(3, 44),
};

const KNOWN: &str = "provision, delete, expand, modify, clone, snapshot, delete-snapshot, restore, backup, \
                     delete-backup, attach, detach and discover with service: cinder";

/// Cinder, and what this run is to do there.
#[derive(Debug)]
pub struct Cinder<'a> {
    service: Service<'a>,
    given: &'a Given,
    answer: Answer<'a>,
    pace: Pace,
}

impl<'a> Cinder<'a> {
    /// Finds Cinder in the cloud.
    pub fn open(session: &'a Session, given: &'a Given, answer: Answer<'a>, pace: Pace) -> Result<Self, Error> {
        Ok(Self {
            service: Service::open(session, &KIND)?,
            given,
            answer,
            pace,
        })
    }

    /// Carries out the run's operation; returns what to print.
    pub fn run(&self) -> Result<String, Error> {
        match self.given.request.operation {
            Operation::Provision => self.provision(),
            Operation::Clone => self.clone_volume(),
            Operation::Restore => self.restore(),
            Operation::Delete => self.delete(),
            Operation::Expand => self.expand(),
            Operation::Modify => self.modify(),
            Operation::Snapshot => self.snapshot(),
            Operation::DeleteSnapshot => self.delete_snapshot(),
            Operation::Backup => self.backup(),
            Operation::DeleteBackup => self.delete_backup(),
            Operation::Attach => self.attach(),
            Operation::Detach => self.detach(),
            Operation::Discover => self.discover(),
            other @ (Operation::SnapshotGroup | Operation::DeleteGroup) => {
                Err(Error::Operation(other.to_string(), KNOWN))
            }
        }
    }
}

#[cfg(test)]
mod tests;
