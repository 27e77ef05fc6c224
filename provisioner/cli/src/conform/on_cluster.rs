//! The runs of the kit on a cluster: in Pods of their own, or on a worker.

use std::time::Duration;

use flex_provisioner::process::call::Answer as _;
use flex_provisioner::run::outcome::{Finish, State};
use flex_provisioner::volume::capacity;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use mooring_contract::request::Request;
use tokio::time::sleep;

use super::error::{KitError, RigError};
use super::rig::Rig;
use super::runs::{Ask, Runs, Setup};
use super::worker::Hired;

/// The claims' class. No StorageClass has this name, so no controller touches them.
const NO_CLASS: &str = "mooring-conform";

impl Runs for Rig {
    fn setup(&self) -> &Setup {
        &self.setup
    }

    fn can_be_unreachable(&self) -> bool {
        self.unreachable.is_some()
    }

    async fn claim(&self) -> Result<PersistentVolumeClaim, RigError> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.user.clone(), &self.namespace);
        let name = format!("conform-{:x}", Timestamp::now().as_nanosecond());
        let wanted = PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(PersistentVolumeClaimSpec {
                access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
                storage_class_name: Some(NO_CLASS.to_owned()),
                resources: Some(VolumeResourceRequirements {
                    requests: Some([("storage".to_owned(), capacity::quantity(self.setup.size))].into()),
                    ..VolumeResourceRequirements::default()
                }),
                ..PersistentVolumeClaimSpec::default()
            }),
            ..PersistentVolumeClaim::default()
        };
        let made = claims.create(&PostParams::default(), &wanted).await;
        let made = made.or_failed_to("create", "claim", &name)?;
        self.claims.lock().await.push(name);
        Ok(made)
    }

    fn asked(&self, ask: &Ask<'_>) -> Result<Request, RigError> {
        self.request(ask)
    }

    async fn run_once(&self, ask: &Ask<'_>) -> Result<Finish, RigError> {
        let id = Self::id(ask);
        let run = self.begin(&id, ask).await?;
        let finish = self.finished(&id).await?;
        self.remove(&id, &run, None).await?;
        Ok(finish)
    }

    async fn cut_off(&self, ask: &Ask<'_>, after: Duration) -> Result<(), RigError> {
        let id = Self::id(ask);
        let run = self.begin(&id, ask).await?;
        self.until(&id, |state| match state {
            State::Running | State::Finished(_) => Some(()),
            State::Waiting { .. } | State::Leaving => None,
        })
        .await?;
        sleep(after).await;
        self.remove(&id, &run, Some(1)).await
    }

    async fn on_worker(&self, asks: &[Ask<'_>]) -> Result<Vec<Finish>, KitError> {
        let Some(first) = asks.first() else {
            return Ok(Vec::new());
        };
        let mut hired = Hired::make(self, first).await?;
        let carried_out = hired.carry_out(asks).await;
        let dismissed = hired.dismiss().await;
        let finishes = carried_out?;
        dismissed?;
        Ok(finishes)
    }

    async fn cut_off_on_worker(&self, first: &Ask<'_>, second: &Ask<'_>, share: f64) -> Result<Finish, KitError> {
        let mut hired = Hired::make(self, first).await?;
        let begun = hired.begin_second(first, second, share).await;
        let dismissed = hired.dismiss().await;
        let finish = begun?;
        dismissed?;
        Ok(finish)
    }
}
