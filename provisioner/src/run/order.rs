//! A run to be begun: what is asked of which image, and where.

use k8s_openapi::api::core::v1::TopologySelectorTerm;
use mooring_contract::request::Request;
use mooring_contract::volume::Volume;

use super::identity::RunId;
use super::input_state::InputState;
use crate::config::ProvisionerConfig;

/// A run to be begun.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    pub id: &'a RunId,
    /// What the image is asked. It has no secrets, so it may stand where everybody can read it.
    pub request: &'a Request,
    pub config: &'a ProvisionerConfig,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// All that decided it.
    pub state: &'a InputState,
    /// The only node that it may run on.
    pub node: Option<&'a str>,
    /// Where else it may run; empty: anywhere.
    pub allowed: &'a [TopologySelectorTerm],
    /// The object that it belongs to: Kubernetes removes the run when that is gone.
    pub owner: Option<Owner<'a>>,
    /// The image is handed a key to seal its answer with.
    pub seals: bool,
    /// It may only read the volume of backups.
    pub backups_read_only: bool,
}

impl<'a> Order<'a> {
    /// Whether a worker has all that the run needs: it is on any node, and has no volume with backups.
    pub fn fits_worker(&self) -> bool {
        self.node.is_none() && self.allowed.is_empty() && self.backup_volume().is_none()
    }

    /// The ConfigMap's volume with backups, if the run is about one.
    pub(super) fn backup_volume(&self) -> Option<&'a Volume> {
        let about_backup = self.request.snapshot.as_ref().is_some_and(|snapshot| snapshot.backup);
        self.config.backup_volume.as_ref().filter(|_| about_backup)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    /// Its kind, of API version `v1`.
    pub kind: &'static str,
    pub name: &'a str,
    pub uid: &'a str,
}
