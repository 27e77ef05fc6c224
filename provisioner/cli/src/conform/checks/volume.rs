//! What is tried of `provision` and `delete`, also while the storage can't be reached.

use std::time::Duration;

use futures::future::FutureExt;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;

use super::{Check, Kit, Passed, done_or_later, failed_with_reason, must_fail, same};
use crate::conform::error::KitError;
use crate::conform::runs::{Ask, Runs};

/// More than any storage has, in bytes.
const TOO_MUCH: u64 = 1 << 62;

/// At which parts of its usual time a run is cut off.
pub(super) const MOMENTS: [f64; 3] = [0.0, 0.3, 0.7];

impl<R: Runs> Kit<'_, R> {
    pub(super) fn of_provision(&self) -> Vec<Check<'_>> {
        let check = |what: &str, check| Check::new(Operation::Provision, what, check);
        let mut checks = vec![
            check(
                "gives the same volume when it is run again",
                self.provision_twice().boxed_local(),
            ),
            check(
                "gives one volume to two runs at once",
                self.provision_at_once().boxed_local(),
            ),
            check(
                "ends with a reason where it can't have the size",
                self.provision_too_much().boxed_local(),
            ),
        ];
        for (moment, share) in MOMENTS.into_iter().enumerate() {
            let what = format!("gives a volume after it was killed (moment {})", moment + 1);
            checks.push(check(&what, self.provision_cut_off(share).boxed_local()));
        }
        checks
    }

    pub(super) fn of_delete(&self) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(Operation::Delete, what, check);
        vec![
            check(
                "succeeds again on what it has removed",
                self.delete_twice().boxed_local(),
            ),
            check("succeeds on what was never made", self.delete_nothing().boxed_local()),
            check("is done by two runs at once", self.delete_at_once().boxed_local()),
            check("is done after it was killed", self.delete_cut_off().boxed_local()),
            check(
                "leaves room for a volume of the same name",
                self.provision_after_delete().boxed_local(),
            ),
        ]
    }

    pub(super) fn of_unreachable(&self) -> Vec<Check<'_>> {
        const AWAY: &str = "fails with a reason while its storage can't be reached";
        vec![
            Check::new(Operation::Provision, AWAY, self.provision_unreachable().boxed_local()),
            Check::new(Operation::Delete, AWAY, self.delete_unreachable().boxed_local()),
        ]
    }

    /// Returns whether the image states that its containers can be workers.
    pub(super) async fn makes_a_volume(&self) -> Result<bool, KitError> {
        let made = self.new_volume().await?;
        self.remove(&made).await?;
        Ok(made.can_be_worker)
    }

    async fn provision_twice(&self) -> Passed {
        let made = self.new_volume().await?;
        let again = self.made_by(&Ask::of(Operation::Provision, &made.claim)).await?;
        same(&made, &again)?;
        self.remove(&made).await
    }

    async fn provision_at_once(&self) -> Passed {
        let claim = self.rig.claim().await?;
        let ask = Ask::of(Operation::Provision, &claim);
        let (first, second) = self.both(&ask).await?;
        for finish in [&first, &second] {
            done_or_later(finish)?;
        }
        let made = self.made_by(&ask).await?;
        for finish in [&first, &second] {
            if finish.outcome == Outcome::Done {
                same(&made, &self.volume(&claim, made.request.clone(), finish)?)?;
            }
        }
        self.remove(&made).await
    }

    async fn provision_cut_off(&self, share: f64) -> Passed {
        let claim = self.rig.claim().await?;
        let ask = Ask::of(Operation::Provision, &claim);
        self.rig.cut_off(&ask, self.usual.mul_f64(share)).await?;
        let made = self.made_by(&ask).await?;
        self.remove(&made).await
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
            let made = self.volume(&claim, self.rig.asked(&ask)?, &finish)?;
            return self.remove(&made).await;
        }
        failed_with_reason(&finish)?;
        // What may be left of it goes, as the controller has it go.
        if self.rig.promised().contains(&Operation::Delete) {
            self.must_be_done(&Ask::of(Operation::Delete, &claim)).await
        } else {
            Ok(())
        }
    }

    async fn delete_twice(&self) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await
    }

    async fn delete_nothing(&self) -> Passed {
        let claim = self.rig.claim().await?;
        self.must_be_done(&Ask::of(Operation::Delete, &claim)).await
    }

    async fn delete_at_once(&self) -> Passed {
        let made = self.new_volume().await?;
        let ask = Ask::on(Operation::Delete, &made);
        let (first, second) = self.both(&ask).await?;
        done_or_later(&first)?;
        done_or_later(&second)?;
        self.must_be_done(&ask).await
    }

    async fn delete_cut_off(&self) -> Passed {
        let made = self.new_volume().await?;
        let ask = Ask::on(Operation::Delete, &made);
        self.rig.cut_off(&ask, Duration::ZERO).await?;
        self.must_be_done(&ask).await
    }

    async fn provision_after_delete(&self) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await?;
        let anew = self.made_by(&Ask::of(Operation::Provision, &made.claim)).await?;
        self.remove(&anew).await
    }

    async fn provision_unreachable(&self) -> Passed {
        let claim = self.rig.claim().await?;
        let ask = Ask {
            unreachable: true,
            ..Ask::of(Operation::Provision, &claim)
        };
        must_fail(&self.rig.run(&ask).await?, "its storage can't be reached")
    }

    async fn delete_unreachable(&self) -> Passed {
        let made = self.new_volume().await?;
        let ask = Ask {
            unreachable: true,
            ..Ask::on(Operation::Delete, &made)
        };
        let verdict = must_fail(&self.rig.run(&ask).await?, "its storage can't be reached");
        self.remove(&made).await?;
        verdict
    }
}
