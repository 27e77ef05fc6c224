//! What is tried of each operation. The contract (`docs/vendors.md`) has the rule behind each.

mod attachment;
mod discovery;
mod snapshot;
mod subjects;
mod trial;
mod verdicts;
mod volume;
mod worker;

use std::pin::pin;
use std::time::{Duration, Instant};

use flex_provisioner::run::outcome::Finish;
use flex_provisioner::volume::acceptance::{Expected, check};
use flex_provisioner::volume::persistent_volume::{self, Printed};
use flex_provisioner::volume::snapshot::Form;
use futures::future::LocalBoxFuture;
use futures::stream::{self, StreamExt};
use mooring_contract::operation::Operation;
use mooring_contract::worker::SERVE;
use tokio_util::sync::CancellationToken;

use self::verdicts::done;
use super::error::{KitError, fault};
use super::report::ConformReport;
use super::runs::{Ask, MadeVolume, Runs, Setup};

type Passed = Result<(), KitError>;

/// What a vendor can do to have an image tried as a worker.
const NO_STATEMENT: &str =
    "the image does not state that it can be a worker: have it run \"pv serve\", and set MOORING_WORKERS=true in it";

/// How many things are tried at once, each with volumes of its own.
const AT_ONCE: usize = 4;

/// One thing to be tried.
struct Check<'k> {
    of: &'static str,
    what: String,
    outcome: LocalBoxFuture<'k, Passed>,
}

impl<'k> Check<'k> {
    fn new(of: Operation, what: impl Into<String>, outcome: LocalBoxFuture<'k, Passed>) -> Self {
        Self::named(of.as_str(), what, outcome)
    }

    fn named(of: &'static str, what: impl Into<String>, outcome: LocalBoxFuture<'k, Passed>) -> Self {
        Self {
            of,
            what: what.into(),
            outcome,
        }
    }

    async fn timed(self) -> (&'static str, String, Passed, Duration) {
        let begin = Instant::now();
        let result = self.outcome.await;
        (self.of, self.what, result, begin.elapsed())
    }
}

/// An image to be tried.
pub(super) struct Kit<'r, R> {
    rig: &'r R,
    /// How long its first run took.
    usual: Duration,
}

impl<'r, R: Runs> Kit<'r, R> {
    pub(super) fn new(rig: &'r R) -> Self {
        Self {
            rig,
            usual: Duration::ZERO,
        }
    }

    /// Tries all that the ConfigMap promises. Once `stop` is cancelled, only what has begun is tried to its end.
    pub(super) async fn try_all(&mut self, report: &mut ConformReport, stop: &CancellationToken) {
        self.try_until(report, stop).await;
        if stop.is_cancelled() {
            report.interrupted();
        }
    }

    async fn try_until(&mut self, report: &mut ConformReport, stop: &CancellationToken) {
        let setup = self.rig.setup();
        let begin = Instant::now();
        let first = self.makes_a_volume().await;
        self.usual = begin.elapsed();
        let can_be_worker = first.as_ref().ok().copied();
        report.tried(
            Operation::Provision.as_str(),
            "makes a volume that Mooring takes",
            first.map(drop),
            self.usual,
        );
        let Some(can_be_worker) = can_be_worker else {
            // Nothing else can be tried without a volume.
            return;
        };
        let mut checks = self.of_provision();
        for operation in setup.config.operations.iter().copied() {
            checks.extend(match operation {
                Operation::Provision => Vec::new(),
                Operation::Delete => self.of_delete(),
                Operation::Clone => self.of_clone(),
                Operation::Snapshot => self.of_taking(Form::Snapshot),
                Operation::DeleteSnapshot => self.of_deleting(Form::Snapshot),
                Operation::SnapshotGroup => self.of_taking(Form::Group),
                Operation::DeleteGroup => self.of_deleting(Form::Group),
                Operation::Backup => self.of_taking(Form::Backup),
                Operation::DeleteBackup => self.of_deleting(Form::Backup),
                Operation::Restore => self.of_restore(),
                Operation::Discover => self.of_discover(),
                Operation::Attach => self.of_attach(),
                Operation::Detach => self.of_detach(),
                other => self.of_existing(other),
            });
        }
        if self.rig.can_be_unreachable() {
            checks.extend(self.of_unreachable());
        }
        if setup.config.workers(can_be_worker) > 0 && !stop.is_cancelled() {
            let (of, what, result, took) = self.serves().timed().await;
            let serves = result.is_ok();
            report.tried(of, &what, result, took);
            // Nothing else can be tried on a worker that can be given nothing.
            if serves {
                checks.extend(self.of_worker());
            }
        }
        let to_begin = stream::iter(checks).take_until(stop.cancelled());
        let mut running = pin!(to_begin.map(Check::timed).buffered(AT_ONCE));
        while let Some((of, what, result, took)) = running.next().await {
            report.tried(of, &what, result, took);
        }
        if setup.promises(Operation::Modify) && setup.attributes.is_empty() {
            let why = "say with --attribute KEY=VALUE which attributes the image can give a volume";
            report.skipped(Operation::Modify.as_str(), why);
        }
        if setup.config.workers.is_none() && !can_be_worker {
            report.skipped(SERVE, NO_STATEMENT);
        }
        if !self.rig.can_be_unreachable() {
            let why = "say with --unreachable KEY=VALUE how the image can't reach its storage";
            report.skipped(Operation::Provision.as_str(), why);
        }
    }

    /// Reads the volume that a run has made; an error if the controller would not take it.
    fn volume(&self, ask: &Ask<'_>, finish: &Finish) -> Result<MadeVolume, KitError> {
        done(finish)?;
        let request = self.rig.asked(ask)?;
        let Setup { config, node, .. } = self.rig.setup();
        let Some(source) = config.volume_source else {
            return Err(fault(
                "the ConfigMap has no volume-source, so the image has to make PersistentVolumes itself, which this kit \
                 can't try: have it print the volume's options, and set volume-source",
            ));
        };
        let printed = Printed::parse(&finish.message).map_err(|error| fault(error.to_string()))?;
        let volume = persistent_volume::build(&request, config, source, printed, node.as_ref(), &[]);
        let expected = Expected {
            claim: ask.claim,
            pv_name: &request.pv_name,
            config_namespace: &config.reference.namespace,
            node: node.as_ref(),
            class_options: &[],
            client_image: config.client_image.as_deref(),
            attaches: config.operations.contains(&Operation::Attach),
        };
        let refusals: Vec<_> = check(&volume, &expected).iter().map(ToString::to_string).collect();
        if refusals.is_empty() {
            Ok(MadeVolume {
                claim: ask.claim.clone(),
                options: persistent_volume::options(&volume),
                request,
                can_be_worker: finish.can_be_worker,
            })
        } else {
            Err(fault(format!("the volume would be refused: {}", refusals.join("; "))))
        }
    }

    async fn made_by(&self, ask: &Ask<'_>) -> Result<MadeVolume, KitError> {
        self.volume(ask, &self.rig.run(ask).await?)
    }

    /// A volume of a new claim.
    async fn new_volume(&self) -> Result<MadeVolume, KitError> {
        let claim = self.rig.claim().await?;
        self.made_by(&Ask::of(Operation::Provision, &claim)).await
    }

    async fn must_be_done(&self, ask: &Ask<'_>) -> Passed {
        done(&self.rig.run(ask).await?)
    }

    async fn remove(&self, made: &MadeVolume) -> Passed {
        if !self.rig.setup().promises(Operation::Delete) {
            return Ok(());
        }
        let gone = self.must_be_done(&Ask::on(Operation::Delete, made)).await;
        gone.map_err(|error| error.reworded(|text| format!("the volume could not be removed afterwards: {text}")))
    }

    async fn remove_all(&self, volumes: &[MadeVolume]) -> Passed {
        for made in volumes {
            self.remove(made).await?;
        }
        Ok(())
    }

    /// Returns whether the image states that its containers can be workers.
    async fn makes_a_volume(&self) -> Result<bool, KitError> {
        let made = self.new_volume().await?;
        self.remove(&made).await?;
        Ok(made.can_be_worker)
    }

    /// Both runs of an ask at once, the second to the name of a claim of its own.
    async fn both(&self, ask: &Ask<'_>) -> Result<[Finish; 2], KitError> {
        let other = self.rig.claim().await?;
        let beside = Ask {
            beside: Some(&other),
            ..ask.clone()
        };
        let (first, second) = futures::join!(self.rig.run(ask), self.rig.run(&beside));
        Ok([first?, second?])
    }
}

#[cfg(test)]
mod tests;
