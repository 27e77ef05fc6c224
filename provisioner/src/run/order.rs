//! A run to be begun: what is asked of which image, and where.

use k8s_openapi::api::core::v1::TopologySelectorTerm;
use mooring_contract::request::Request;
use mooring_contract::volume::Volume;

use super::identity::RunId;
use super::input_state::InputState;
use super::worker_set::WorkerSet;
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
    /// The workers that can carry it out; none if it needs a Pod of its own.
    pub fn worker_set(&self) -> Option<WorkerSet> {
        let config = self.config;
        // The scheduler is to choose where its volume will be, and each time anew.
        let chooses_node = self.node.is_none() && (config.is_node_local() || !self.allowed.is_empty());
        // Other runs must not reach the volume with backups.
        let needs_own_pod = config.workers == Some(0) || chooses_node || self.backup_volume().is_some();
        (!needs_own_pod).then(|| WorkerSet {
            config: config.reference.to_string(),
            node: self.node.map(str::to_owned),
        })
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

#[cfg(test)]
mod tests {
    use mooring_contract::operation::Operation;
    use mooring_contract::request::{Request, Snapshot};

    use super::Order;
    use crate::config::ProvisionerConfig;
    use crate::operation::tests::config;
    use crate::run::identity::RunId;
    use crate::run::input_state::InputState;
    use crate::run::properties::tests::silver;
    use crate::run::worker_set::WorkerSet;

    #[test]
    fn a_run_has_a_worker_of_its_node_if_it_has_to_be_on_one_and_reaches_no_backups() {
        let node = Some("node-a");
        let (pool, backups) = (
            ("backend-volume", "client=pool"),
            ("backup-volume", "client=nfs,source=h:/backups"),
        );
        for (extra, workers, node, about_backup, wanted) in [
            (&[][..], None, None, false, Some(None)),
            (&[], Some(3), None, false, Some(None)),
            (&[], Some(0), None, false, None),
            (
                &[("backend-volume", "client=nfs,source=h:/x")],
                None,
                None,
                false,
                Some(None),
            ),
            (&[pool], None, node, false, Some(node)),
            (&[pool], Some(0), node, false, None),
            // The scheduler chooses where its volume will be.
            (&[pool], None, None, false, None),
            (&[], None, None, true, Some(None)),
            (&[backups], None, None, false, Some(None)),
            (&[backups], None, None, true, None),
            (&[pool, backups], None, node, true, None),
        ] {
            let config = ProvisionerConfig {
                workers,
                ..config(extra)
            };
            let snapshot = about_backup.then(|| Snapshot {
                name: "b".into(),
                content_name: "c".into(),
                content_uid: "s1".into(),
                backup: true,
                members: None,
            });
            let request = Request { snapshot, ..silver() };
            let order = Order {
                id: &RunId::new(Operation::Provision, "u1"),
                request: &request,
                config: &config,
                attempt: 1,
                state: &InputState::Unknown,
                node,
                allowed: &[],
                owner: None,
                seals: false,
                backups_read_only: false,
            };
            let wanted = wanted.map(|node| WorkerSet {
                config: config.reference.to_string(),
                node: node.map(str::to_owned),
            });
            assert_eq!(
                order.worker_set(),
                wanted,
                "{extra:?} {workers:?} {node:?} {about_backup}"
            );
        }
    }
}
