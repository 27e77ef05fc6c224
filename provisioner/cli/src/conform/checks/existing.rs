//! What is tried of an operation on a volume that is there: of `expand` and `modify`, and of any other that has no checks
//! of its own.

use std::time::Duration;

use flex_provisioner::volume::snapshot::Form;
use futures::future::FutureExt;
use mooring_contract::operation::Operation;
use mooring_contract::request::Attributes;

use super::attachment::{FIRST, attach, detach};
use super::{Check, Kit, Passed, done_or_later, must_fail};
use crate::conform::runs::{Ask, MadeVolume, Runs};

/// Name of the class of attributes; there is no object of that name.
const ATTRIBUTES_CLASS: &str = "mooring-conform";

/// An attribute that no image knows.
const NO_ATTRIBUTE: &str = "mooring-conform-none";

impl<R: Runs> Kit<'_, R> {
    pub(super) fn of_existing(&self, operation: Operation) -> Vec<Check<'_>> {
        let is_modify = operation == Operation::Modify;
        if is_modify && self.rig.attributes().is_empty() {
            return Vec::new();
        }
        let check = |what, check| Check::new(operation, what, check);
        let mut checks = vec![
            check("succeeds when it is run again", self.twice(operation).boxed_local()),
            check("is done by two runs at once", self.at_once(operation).boxed_local()),
            check("is done after it was killed", self.cut_off(operation).boxed_local()),
            check(
                "fails on a volume that is gone",
                self.on_nothing(operation).boxed_local(),
            ),
        ];
        if is_modify {
            checks.push(check(
                "refuses an attribute that it does not know",
                self.modify_unknown().boxed_local(),
            ));
        }
        checks
    }

    /// An operation on this volume, with all that it needs to be told.
    pub(super) fn on<'m>(&self, operation: Operation, made: &'m MadeVolume) -> Ask<'m> {
        match operation {
            Operation::Expand => Ask {
                size: Some(made.request.size * 2),
                ..Ask::on(operation, made)
            },
            Operation::Modify => Ask {
                attributes: Some(Attributes {
                    class: ATTRIBUTES_CLASS.to_owned(),
                    parameters: self.rig.attributes().clone(),
                }),
                ..Ask::on(operation, made)
            },
            Operation::Snapshot => Self::take(Form::Snapshot, made),
            Operation::DeleteSnapshot => Self::delete_taken(Form::Snapshot, made),
            Operation::Backup => Self::take(Form::Backup, made),
            Operation::DeleteBackup => Self::delete_taken(Form::Backup, made),
            Operation::Attach => attach(made, FIRST),
            Operation::Detach => detach(made, FIRST),
            other => Ask::on(other, made),
        }
    }

    async fn twice(&self, operation: Operation) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&self.on(operation, &made)).await?;
        self.must_be_done(&self.on(operation, &made)).await?;
        self.remove(&made).await
    }

    async fn at_once(&self, operation: Operation) -> Passed {
        let made = self.new_volume().await?;
        let (first, second) = self.both(&self.on(operation, &made)).await?;
        done_or_later(&first)?;
        done_or_later(&second)?;
        self.must_be_done(&self.on(operation, &made)).await?;
        self.remove(&made).await
    }

    async fn cut_off(&self, operation: Operation) -> Passed {
        let made = self.new_volume().await?;
        self.rig.cut_off(&self.on(operation, &made), Duration::ZERO).await?;
        self.must_be_done(&self.on(operation, &made)).await?;
        self.remove(&made).await
    }

    async fn on_nothing(&self, operation: Operation) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await?;
        must_fail(&self.rig.run(&self.on(operation, &made)).await?, "the volume is gone")
    }

    async fn modify_unknown(&self) -> Passed {
        let made = self.new_volume().await?;
        let mut ask = self.on(Operation::Modify, &made);
        if let Some(attributes) = &mut ask.attributes {
            attributes.parameters = [(NO_ATTRIBUTE.to_owned(), "1".to_owned())].into();
        }
        let verdict = must_fail(
            &self.rig.run(&ask).await?,
            "no image knows attribute mooring-conform-none",
        );
        self.remove(&made).await?;
        verdict
    }
}
