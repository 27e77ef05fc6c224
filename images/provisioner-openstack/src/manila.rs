//! Shares of Manila: CephFS and NFS. A share is named after its PersistentVolume and has that in its metadata, as
//! [`crate::cinder`]'s volumes have.

use mooring_contract::operation::Operation;

use crate::answer::Answer;
use crate::error::Error;
use crate::given::Given;
use crate::keystone::Session;
use crate::service::{Kind, Service, Version};
use crate::wait::Pace;

mod access;
mod delete;
mod discover;
mod expand;
mod export;
mod protocol;
mod provision;
mod share;
mod snapshot;

/// As messages call it.
const MANILA: &str = "Manila";

static KIND: Kind = Kind {
    name: MANILA,
    types: &["shared-file-system", "sharev2"],
    api: "v2",
    header: ("x-openstack-manila-api-version", ""),
    newest: Version(2, 78),
    // Access rules with a resource of their own.
    oldest: Version(2, 45),
};

const KNOWN: &str = "provision, delete, expand, snapshot, delete-snapshot, restore and discover with service: manila";

/// Manila, and what this run is to do there.
#[derive(Debug)]
pub struct Manila<'a> {
    service: Service<'a>,
    given: &'a Given,
    answer: Answer<'a>,
    pace: Pace,
}

impl<'a> Manila<'a> {
    /// Finds Manila in the cloud.
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
            Operation::Restore => self.restore(),
            Operation::Delete => self.delete(),
            Operation::Expand => self.expand(),
            Operation::Snapshot => self.snapshot(),
            Operation::DeleteSnapshot => self.delete_snapshot(),
            Operation::Discover => self.discover(),
            other @ (Operation::Clone
            | Operation::Modify
            | Operation::Backup
            | Operation::DeleteBackup
            | Operation::Attach
            | Operation::Detach
            | Operation::SnapshotGroup
            | Operation::DeleteGroup) => Err(Error::Operation(other.to_string(), KNOWN)),
        }
    }
}

#[cfg(test)]
mod tests;
