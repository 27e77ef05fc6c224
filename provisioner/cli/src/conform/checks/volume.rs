//! What is tried of `provision`, `delete` and `clone`, of `expand` and `modify`, and of any other operation that has no
//! checks of its own.

use futures::future::FutureExt;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;

use super::trial::{Trial, Way};
use super::verdicts::failed_with_reason;
use super::{Check, Kit, Passed};
use crate::conform::runs::{Ask, Runs};

/// More than any storage has, in bytes.
const TOO_MUCH: u64 = 1 << 62;

/// An attribute that no image knows.
const NO_ATTRIBUTE: &str = "mooring-conform-none";

/// At which parts of its usual time a run is cut off.
pub(super) const MOMENTS: [f64; 3] = [0.0, 0.3, 0.7];

impl<R: Runs> Kit<'_, R> {
    pub(super) fn of_provision(&self) -> Vec<Check<'_>> {
        let trial = Trial::on_none(Operation::Provision);
        let mut checks = vec![
            self.check(trial, "gives the same volume when it is run again", Way::Again),
            self.check(trial, "gives one volume to two runs at once", Way::AtOnce),
            Check::new(
                trial.operation,
                "ends with a reason where it can't have the size",
                self.provision_too_much().boxed_local(),
            ),
        ];
        for (moment, share) in MOMENTS.into_iter().enumerate() {
            let what = format!("gives a volume after it was killed (moment {})", moment + 1);
            checks.push(self.check(trial, what, Way::CutOff(share)));
        }
        checks
    }

    pub(super) fn of_delete(&self) -> Vec<Check<'_>> {
        let trial = Trial::on(Operation::Delete);
        let nothing = Trial::on_none(Operation::Delete);
        vec![
            self.check(trial, "succeeds again on what it has removed", Way::Again),
            self.check(nothing, "succeeds on what was never made", Way::Once),
            self.check(trial, "is done by two runs at once", Way::AtOnce),
            self.check(trial, "is done after it was killed", Way::CutOff(0.0)),
            Check::new(
                trial.operation,
                "leaves room for a volume of the same name",
                self.provision_after_delete().boxed_local(),
            ),
        ]
    }

    pub(super) fn of_unreachable(&self) -> Vec<Check<'_>> {
        let trials = [Trial::on_none(Operation::Provision), Trial::on(Operation::Delete)];
        let checks = trials.map(|trial| {
            let unreachable = Trial {
                told: |ask| ask.unreachable = true,
                ..trial
            };
            let what = "fails with a reason while its storage can't be reached";
            self.check(unreachable, what, Way::Fails("its storage can't be reached".to_owned()))
        });
        checks.into()
    }

    pub(super) fn of_clone(&self) -> Vec<Check<'_>> {
        let trial = Trial::on(Operation::Clone);
        let gone = Way::Gone("the volume to copy is gone");
        vec![
            self.check(trial, "gives the same copy when it is run again", Way::Again),
            self.check(trial, "gives a copy after it was killed", Way::CutOff(0.0)),
            self.check(trial, "fails on a source that is gone", gone),
        ]
    }

    /// Of an operation on a volume that is there.
    pub(super) fn of_existing(&self, operation: Operation) -> Vec<Check<'_>> {
        let trial = Trial::on(operation);
        let is_modify = operation == Operation::Modify;
        if is_modify && self.rig.setup().attributes.is_empty() {
            return Vec::new();
        }
        let mut checks = vec![
            self.check(trial, "succeeds when it is run again", Way::Again),
            self.check(trial, "is done by two runs at once", Way::AtOnce),
            self.check(trial, "is done after it was killed", Way::CutOff(0.0)),
            self.check(trial, "fails on a volume that is gone", Way::Gone("the volume is gone")),
        ];
        if is_modify {
            let unknown = Trial {
                told: |ask| {
                    if let Some(attributes) = &mut ask.attributes {
                        attributes.parameters = [(NO_ATTRIBUTE.to_owned(), "1".to_owned())].into();
                    }
                },
                ..trial
            };
            let since = format!("no image knows attribute {NO_ATTRIBUTE}");
            checks.push(self.check(unknown, "refuses an attribute that it does not know", Way::Fails(since)));
        }
        checks
    }

    async fn provision_too_much(&self) -> Passed {
        let claim = self.rig.claim().await?;
        let ask = Ask {
            size: Some(TOO_MUCH),
            ..Ask::of(Operation::Provision, &claim)
        };
        let finish = self.rig.run(&ask).await?;
        if finish.outcome == Outcome::Done {
            // Storage without a limit, or one that promises more than it has.
            return self.remove(&self.volume(&ask, &finish)?).await;
        }
        failed_with_reason(&finish)?;
        // What may be left of it goes, as the controller has it go.
        if self.rig.setup().promises(Operation::Delete) {
            self.must_be_done(&Ask::of(Operation::Delete, &claim)).await
        } else {
            Ok(())
        }
    }

    async fn provision_after_delete(&self) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await?;
        let anew = self.made_by(&Ask::of(Operation::Provision, &made.claim)).await?;
        self.remove(&anew).await
    }
}
