//! What is tried of an image as a worker, if its ConfigMap asks for workers: whether runs there are as those in Pods of
//! their own.

use futures::future::FutureExt;
use mooring_contract::operation::Operation;
use mooring_contract::worker::SERVE;

use super::trial::Trial;
use super::volume::MOMENTS;
use super::{Check, Kit, Passed};
use crate::conform::error::{KitError, fault};
use crate::conform::runs::{Ask, MadeVolume, Runs};

/// What a fault is that only a run on a worker has shown.
fn on_worker(error: KitError) -> KitError {
    error.reworded(|text| format!("on a worker: {text}"))
}

/// Whether a worker gave the volume that the run's own Pod gives.
fn as_in_own_pod(worker: &MadeVolume, own: &MadeVolume) -> Passed {
    if worker.options == own.options {
        return Ok(());
    }
    Err(fault(format!(
        "a worker gave volume {:?}, and a Pod of the run's own {:?}: have each run use its own variables and files \
         only, and keep nothing for the next; name a volume after pv-name, and look for it first",
        worker.options, own.options
    )))
}

impl<R: Runs> Kit<'_, R> {
    /// To be tried before [`Self::of_worker`].
    pub(super) fn serves(&self) -> Check<'_> {
        let what = "gives the volume that a Pod of the run's own gives, also when it is run again";
        Check::named(SERVE, what, self.worker_twice().boxed_local())
    }

    pub(super) fn of_worker(&self) -> Vec<Check<'_>> {
        let check = |what: &str, check| Check::named(SERVE, what, check);
        let mut checks = vec![check(
            "gives each run its own properties",
            self.worker_one_after_another().boxed_local(),
        )];
        if self.others_on_worker().next().is_some() {
            checks.push(check(
                "does the other operations that workers are given",
                self.worker_others().boxed_local(),
            ));
        }
        for (moment, share) in MOMENTS.into_iter().enumerate() {
            let what = format!("gives a volume after its worker was killed (moment {})", moment + 1);
            checks.push(check(&what, self.worker_cut_off(share).boxed_local()));
        }
        checks
    }

    async fn worker_twice(&self) -> Passed {
        let claim = self.rig.claim().await?;
        let ask = Ask::of(Operation::Provision, &claim);
        let finishes = self.rig.on_worker(&[ask.clone(), ask.clone()]).await?;
        let volumes = finishes
            .iter()
            .map(|finish| self.volume(&ask, finish).map_err(on_worker))
            .collect::<Result<Vec<_>, _>>()?;
        let own = self.made_by(&ask).await?;
        for made in &volumes {
            as_in_own_pod(made, &own)?;
        }
        self.remove(&own).await
    }

    async fn worker_one_after_another(&self) -> Passed {
        let (first, second) = (self.rig.claim().await?, self.rig.claim().await?);
        let asks = [&first, &second].map(|claim| Ask::of(Operation::Provision, claim));
        let finishes = self.rig.on_worker(&asks).await?;
        for (ask, finish) in asks.iter().zip(&finishes) {
            let made = self.volume(ask, finish);
            let own = self.made_by(ask).await?;
            as_in_own_pod(&made.map_err(on_worker)?, &own)?;
            self.remove(&own).await?;
        }
        Ok(())
    }

    /// What is tried on one volume beside `provision`, as far as it is promised and workers are given it.
    fn others_on_worker(&self) -> impl Iterator<Item = Operation> {
        let can_modify = !self.rig.setup().attributes.is_empty();
        let can_back_up = self.rig.setup().config.backup_volume.is_none();
        [
            Operation::Expand,
            Operation::Modify,
            Operation::Snapshot,
            Operation::DeleteSnapshot,
            Operation::Backup,
            Operation::DeleteBackup,
            Operation::Attach,
            Operation::Detach,
            Operation::Delete,
        ]
        .into_iter()
        .filter(move |operation| {
            let can = match operation {
                Operation::Modify => can_modify,
                Operation::Backup | Operation::DeleteBackup => can_back_up,
                _ => true,
            };
            can && self.rig.setup().promises(*operation)
        })
    }

    async fn worker_others(&self) -> Passed {
        let subject = self.prepared(Trial::on(Operation::Delete)).await?;
        let asks: Vec<_> = self
            .others_on_worker()
            .map(|operation| self.ask(operation, &subject))
            .collect();
        let finishes = self.rig.on_worker(&asks).await?;
        for (ask, finish) in asks.iter().zip(&finishes) {
            let on_worker = |text: &str| format!("on a worker, {}: {text}", ask.operation);
            self.read(ask, finish).map_err(|error| error.reworded(on_worker))?;
        }
        self.remove_all(&subject.volumes).await
    }

    async fn worker_cut_off(&self, share: f64) -> Passed {
        let (first, second) = (self.rig.claim().await?, self.rig.claim().await?);
        let [first, second] = [&first, &second].map(|claim| Ask::of(Operation::Provision, claim));
        let finish = self.rig.cut_off_on_worker(&first, &second, share).await?;
        let before = self.volume(&first, &finish);
        let made = self.made_by(&second).await?;
        self.remove(&made).await?;
        self.remove(&before.map_err(on_worker)?).await
    }
}
