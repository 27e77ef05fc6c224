//! What is tried of each operation. The contract (`docs/vendors.md`) has the rule behind each.

mod attachment;
mod copy;
mod discovery;
mod existing;
mod group;
mod snapshot;
mod volume;
mod worker;

use std::pin::pin;
use std::time::{Duration, Instant};

use flex_provisioner::run::outcome::{Category, Finish};
use flex_provisioner::volume::acceptance::{Expected, check};
use flex_provisioner::volume::persistent_volume::{self, Printed};
use flex_provisioner::volume::snapshot::Form;
use futures::future::LocalBoxFuture;
use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::Request;
use mooring_contract::worker::SERVE;
use tokio_util::sync::CancellationToken;

use super::error::KitError;
use super::report::ConformReport;
use super::runs::{Ask, MadeVolume, Runs};

fn fault(text: impl Into<String>) -> KitError {
    KitError::Image(text.into())
}

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
        let promised = self.rig.promised();
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
        for operation in promised.iter().copied() {
            checks.extend(match operation {
                Operation::Provision => Vec::new(),
                Operation::Delete => self.of_delete(),
                Operation::Clone => self.of_clone(),
                Operation::Snapshot => self.of_taking(Form::Snapshot),
                Operation::DeleteSnapshot => self.of_deleting(Form::Snapshot),
                Operation::SnapshotGroup => self.of_snapshot_group(&promised),
                Operation::DeleteGroup => self.of_delete_group(),
                Operation::Backup => self.of_taking(Form::Backup),
                Operation::DeleteBackup => self.of_deleting(Form::Backup),
                Operation::Restore => self.of_restore(&promised),
                Operation::Discover => self.of_discover(),
                Operation::Attach => self.of_attach(),
                Operation::Detach => self.of_detach(),
                other => self.of_existing(other),
            });
        }
        if self.rig.can_be_unreachable() {
            checks.extend(self.of_unreachable());
        }
        if self.rig.config().workers(can_be_worker) > 0 && !stop.is_cancelled() {
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
        if promised.contains(&Operation::Modify) && self.rig.attributes().is_empty() {
            let why = "say with --attribute KEY=VALUE which attributes the image can give a volume";
            report.skipped(Operation::Modify.as_str(), why);
        }
        if self.rig.config().workers.is_none() && !can_be_worker {
            report.skipped(SERVE, NO_STATEMENT);
        }
        if !self.rig.can_be_unreachable() {
            let why = "say with --unreachable KEY=VALUE how the image can't reach its storage";
            report.skipped(Operation::Provision.as_str(), why);
        }
    }

    /// Reads the volume that a run has made; an error if the controller would not take it.
    fn volume(&self, claim: &PersistentVolumeClaim, request: Request, finish: &Finish) -> Result<MadeVolume, KitError> {
        done(finish)?;
        let config = self.rig.config();
        let Some(source) = config.volume_source else {
            return Err(fault(
                "the ConfigMap has no volume-source, so the image has to make PersistentVolumes itself, which this kit \
                 can't try: have it print the volume's options, and set volume-source",
            ));
        };
        let printed = Printed::parse(&finish.message).map_err(|error| fault(error.to_string()))?;
        let volume = persistent_volume::build(&request, config, source, printed, self.rig.node(), &[]);
        let expected = Expected {
            claim,
            pv_name: &request.pv_name,
            config_namespace: &config.reference.namespace,
            node: self.rig.node(),
            class_options: &[],
            client_image: config.client_image.as_deref(),
            attaches: config.operations.contains(&Operation::Attach),
        };
        let refusals: Vec<_> = check(&volume, &expected).iter().map(ToString::to_string).collect();
        if refusals.is_empty() {
            Ok(MadeVolume {
                claim: claim.clone(),
                options: persistent_volume::options(&volume),
                request,
                can_be_worker: finish.can_be_worker,
            })
        } else {
            Err(fault(format!("the volume would be refused: {}", refusals.join("; "))))
        }
    }

    async fn made_by(&self, ask: &Ask<'_>) -> Result<MadeVolume, KitError> {
        let request = self.rig.asked(ask)?;
        let finish = self.rig.run(ask).await?;
        self.volume(ask.claim, request, &finish)
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
        if !self.rig.promised().contains(&Operation::Delete) {
            return Ok(());
        }
        let gone = self.must_be_done(&Ask::on(Operation::Delete, made)).await;
        gone.map_err(|error| match error {
            KitError::Image(text) => fault(format!("the volume could not be removed afterwards: {text}")),
            rig @ KitError::Rig(_) => rig,
        })
    }

    /// Both runs of an ask at once, the second to the name of a claim of its own.
    async fn both(&self, ask: &Ask<'_>) -> Result<(Finish, Finish), KitError> {
        let other = self.rig.claim().await?;
        let beside = Ask {
            beside: Some(&other),
            ..ask.clone()
        };
        let (first, second) = futures::join!(self.rig.run(ask), self.rig.run(&beside));
        Ok((first?, second?))
    }
}

/// Whether a run is done.
fn done(finish: &Finish) -> Passed {
    match finish.outcome {
        Outcome::Done => Ok(()),
        Outcome::Retry | Outcome::GiveUp => Err(fault(format!("the run failed: {}", words(finish)))),
    }
}

/// Whether a run is done, or asks to be run again: one of two at once may find the other in its way.
fn done_or_later(finish: &Finish) -> Passed {
    match finish.outcome {
        Outcome::Done => Ok(()),
        Outcome::Retry => failed_with_reason(finish),
        Outcome::GiveUp => Err(fault(format!(
            "one of two simultaneous runs gave up for good (exit 78), but has to exit with 75 to be run again: {}",
            words(finish)
        ))),
    }
}

/// Whether a run failed, by itself, where it could not do what it was asked.
fn must_fail(finish: &Finish, since: &str) -> Passed {
    match finish.outcome {
        Outcome::Done => Err(fault(format!("the run says that it is done, though {since}"))),
        Outcome::Retry | Outcome::GiveUp => failed_with_reason(finish),
    }
}

/// Whether a run that failed ended by itself and said why.
fn failed_with_reason(finish: &Finish) -> Passed {
    match finish.category {
        Category::Timeout => Err(fault(
            "the run did not end until its timeout: have the image end before that, and say why",
        )),
        Category::Done
        | Category::Temporary
        | Category::Config
        | Category::Failed
        | Category::OutOfMemory
        | Category::Node
        | Category::NotStarted
        | Category::Refused
        | Category::Api => match finish.message.trim() {
            "" => Err(fault(
                "the run failed and said nothing: write why to standard error or /dev/termination-log",
            )),
            _ => Ok(()),
        },
    }
}

fn words(finish: &Finish) -> &str {
    match finish.why.trim() {
        "" => "it said nothing",
        words => words,
    }
}

/// Whether two runs gave the same volume.
fn same(first: &MadeVolume, second: &MadeVolume) -> Passed {
    if first.options == second.options {
        return Ok(());
    }
    Err(fault(format!(
        "two runs for claim {} gave two volumes, {:?} and {:?}: name a volume after pv-name, and look for it first",
        first.claim.name_any(),
        first.options,
        second.options
    )))
}

#[cfg(test)]
mod tests;
