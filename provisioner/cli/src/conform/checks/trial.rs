//! The ways in which the runs of any operation are tried: again, two at once, after one that was killed, on what is
//! gone.

use flex_provisioner::run::outcome::Finish;
use flex_provisioner::volume::snapshot::Form;
use futures::future::FutureExt;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use mooring_contract::discovered::Discovered;
use mooring_contract::operation::Operation;
use mooring_contract::request::Attributes;

use super::subjects::{FIRST, node, taken};
use super::verdicts::{connected, done, done_or_later, listed, must_fail, same_list, same_volume};
use super::{Check, Kit, Passed};
use crate::conform::error::KitError;
use crate::conform::runs::{Ask, MadeVolume, Runs};

/// Name of the class of attributes; there is no object of that name.
const ATTRIBUTES_CLASS: &str = "mooring-conform";

/// An operation to be tried, what has to be there for it, and what removes its result.
#[derive(Clone, Copy)]
pub(super) struct Trial {
    pub(super) operation: Operation,
    /// How many volumes its runs are given.
    pub(super) volumes: usize,
    /// What is done on these volumes before.
    pub(super) after: Option<Operation>,
    /// What is done on them afterwards, if the image can.
    pub(super) undone_by: Option<Operation>,
    /// What a restore is of.
    pub(super) form: Form,
    /// Tells its runs something else than usual.
    pub(super) told: fn(&mut Ask<'_>),
}

impl Trial {
    /// An operation on one volume.
    pub(super) fn on(operation: Operation) -> Self {
        Self {
            operation,
            volumes: 1,
            after: None,
            undone_by: None,
            form: Form::default(),
            told: |_| (),
        }
    }

    /// An operation that is given no volume.
    pub(super) fn on_none(operation: Operation) -> Self {
        Self {
            volumes: 0,
            ..Self::on(operation)
        }
    }
}

/// How the runs of an operation are tried.
pub(super) enum Way {
    Once,
    /// Two runs, one after the other, give the same.
    Again,
    /// Two runs at once, and one after them, give the same.
    AtOnce,
    /// A run is done after one that was killed in this part of the usual time.
    CutOff(f64),
    /// A run fails, since its volume is gone; in these words.
    Gone(&'static str),
    /// A run is done though its volume is gone.
    Outlives,
    /// A run fails, in these words since when.
    Fails(String),
}

/// What the runs of a trial are given.
pub(super) struct Subject {
    /// The claim that a run makes a volume of, or in whose name it is.
    pub(super) claim: PersistentVolumeClaim,
    pub(super) volumes: Vec<MadeVolume>,
    form: Form,
}

/// What a run has given: the same whenever it is run again.
pub(super) enum Given {
    Nothing,
    Volume(Box<MadeVolume>),
    Classes(Discovered),
}

impl<R: Runs> Kit<'_, R> {
    pub(super) fn check(&self, trial: Trial, what: impl Into<String>, way: Way) -> Check<'_> {
        Check::new(trial.operation, what, self.carry_out(trial, way).boxed_local())
    }

    async fn carry_out(&self, trial: Trial, way: Way) -> Passed {
        let subject = self.prepared(trial).await?;
        let mut ask = self.ask(trial.operation, &subject);
        (trial.told)(&mut ask);
        let mut left = subject.volumes.as_slice();
        let given = match way {
            Way::Once => self.given(&ask).await?,
            Way::Again => {
                let first = self.given(&ask).await?;
                let again = self.given(&ask).await?;
                same(&first, &again)?;
                again
            }
            Way::AtOnce => {
                let both = self.both(&ask).await?;
                both.iter().try_for_each(done_or_later)?;
                let given = self.given(&ask).await?;
                for finish in both.iter().filter(|finish| done(finish).is_ok()) {
                    same(&given, &self.read(&ask, finish)?)?;
                }
                given
            }
            Way::CutOff(share) => {
                self.rig.cut_off(&ask, self.usual.mul_f64(share)).await?;
                self.given(&ask).await?
            }
            Way::Gone(since) => {
                left = self.without_last(left).await?;
                must_fail(&self.rig.run(&ask).await?, since)?;
                if left.is_empty() {
                    return Ok(());
                }
                Given::Nothing
            }
            Way::Outlives => {
                left = self.without_last(left).await?;
                self.given(&ask).await?
            }
            Way::Fails(since) => {
                let verdict = must_fail(&self.rig.run(&ask).await?, &since);
                self.remove_all(left).await?;
                return verdict;
            }
        };
        if trial.operation == Operation::Delete {
            left = &[];
        }
        self.undo(trial, &subject, given).await?;
        self.remove_all(left).await
    }

    /// Makes what has to be there for the runs of a trial.
    pub(super) async fn prepared(&self, trial: Trial) -> Result<Subject, KitError> {
        let mut volumes = Vec::new();
        for _ in 0..trial.volumes {
            volumes.push(self.new_volume().await?);
        }
        let claim = match volumes.first() {
            Some(made) if !matches!(trial.operation, Operation::Clone | Operation::Restore) => made.claim.clone(),
            _ => self.rig.claim().await?,
        };
        let form = trial.form;
        let subject = Subject { claim, volumes, form };
        if let Some(before) = trial.after {
            self.given(&self.ask(before, &subject)).await?;
        }
        Ok(subject)
    }

    /// Removes what a trial has given.
    pub(super) async fn undo(&self, trial: Trial, subject: &Subject, given: Given) -> Passed {
        if let Given::Volume(made) = given {
            self.remove(&made).await?;
        }
        match trial.undone_by {
            Some(undo) if self.rig.setup().promises(undo) => self.must_be_done(&self.ask(undo, subject)).await,
            _ => Ok(()),
        }
    }

    /// Deletes the last of these volumes, and returns the others.
    async fn without_last<'v>(&self, volumes: &'v [MadeVolume]) -> Result<&'v [MadeVolume], KitError> {
        let Some((last, others)) = volumes.split_last() else {
            return Ok(volumes);
        };
        self.must_be_done(&Ask::on(Operation::Delete, last)).await?;
        Ok(others)
    }

    /// An operation, with all that it needs to be told.
    pub(super) fn ask<'s>(&self, operation: Operation, subject: &'s Subject) -> Ask<'s> {
        let made = subject.volumes.first();
        let of_claim = Ask::of(operation, &subject.claim);
        let on = made.map_or_else(|| of_claim.clone(), |made| Ask::on(operation, made));
        let taken = |form| taken(form, &subject.volumes);
        match operation {
            Operation::Clone => Ask {
                source: made,
                ..of_claim
            },
            Operation::Restore => Ask {
                source: made,
                snapshot: taken(subject.form),
                ..of_claim
            },
            Operation::Expand => Ask {
                size: made.map(|made| made.request.size * 2),
                ..on
            },
            Operation::Modify => Ask {
                attributes: Some(Attributes {
                    class: ATTRIBUTES_CLASS.to_owned(),
                    parameters: self.rig.setup().attributes.clone(),
                }),
                ..on
            },
            Operation::Snapshot | Operation::DeleteSnapshot => Ask {
                snapshot: taken(Form::Snapshot),
                ..on
            },
            Operation::Backup | Operation::DeleteBackup => Ask {
                snapshot: taken(Form::Backup),
                ..on
            },
            Operation::SnapshotGroup | Operation::DeleteGroup => Ask {
                snapshot: taken(Form::Group),
                ..on
            },
            Operation::Attach | Operation::Detach => Ask {
                node: made.map(|made| node(made, FIRST, false)),
                ..on
            },
            _ => on,
        }
    }

    /// What a run gives, which has to be done.
    pub(super) async fn given(&self, ask: &Ask<'_>) -> Result<Given, KitError> {
        self.read(ask, &self.rig.run(ask).await?)
    }

    /// What a run has given; an error if it is not done, or the controller would not take it.
    pub(super) fn read(&self, ask: &Ask<'_>, finish: &Finish) -> Result<Given, KitError> {
        match ask.operation {
            Operation::Provision | Operation::Clone | Operation::Restore => {
                self.volume(ask, finish).map(|made| Given::Volume(Box::new(made)))
            }
            Operation::Discover => listed(finish).map(Given::Classes),
            Operation::Attach => connected(finish).map(|()| Given::Nothing),
            _ => done(finish).map(|()| Given::Nothing),
        }
    }
}

/// Whether two runs gave the same.
pub(super) fn same(first: &Given, second: &Given) -> Passed {
    match (first, second) {
        (Given::Volume(first), Given::Volume(second)) => same_volume(first, second),
        (Given::Classes(first), Given::Classes(second)) => same_list(first, second),
        _ => Ok(()),
    }
}
