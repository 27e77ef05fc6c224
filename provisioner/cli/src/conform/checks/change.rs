//! What is tried of `expand` and `modify`.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::FutureExt;
use mooring_contract::operation::Operation;
use mooring_contract::request::Attributes;

use super::{Check, Kit, Passed, done_or_later, must_fail};
use crate::conform::runs::{Ask, MadeVolume, Runs};

/// Name of the class of attributes; there is no object of that name.
const ATTRIBUTES_CLASS: &str = "mooring-conform";

/// An attribute that no image knows.
const NO_ATTRIBUTE: &str = "mooring-conform-none";

impl<R: Runs> Kit<'_, R> {
    pub(super) fn of_expand(&self) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(Operation::Expand, what, check);
        vec![
            check("succeeds again on what has the size", self.expand_twice().boxed_local()),
            check("is done by two runs at once", self.expand_at_once().boxed_local()),
            check("is done after it was killed", self.expand_cut_off().boxed_local()),
            check("fails on a volume that is gone", self.expand_nothing().boxed_local()),
        ]
    }

    pub(super) fn of_modify(&self) -> Vec<Check<'_>> {
        if self.rig.attributes().is_empty() {
            return Vec::new();
        }
        let check = |what, check| Check::new(Operation::Modify, what, check);
        vec![
            check(
                "succeeds again on what has the attributes",
                self.modify_twice().boxed_local(),
            ),
            check("is done by two runs at once", self.modify_at_once().boxed_local()),
            check("is done after it was killed", self.modify_cut_off().boxed_local()),
            check("fails on a volume that is gone", self.modify_nothing().boxed_local()),
            check(
                "refuses an attribute that it does not know",
                self.modify_unknown().boxed_local(),
            ),
        ]
    }

    pub(super) fn larger(made: &MadeVolume) -> Ask<'_> {
        Ask {
            size: Some(made.request.size * 2),
            ..Ask::on(Operation::Expand, made)
        }
    }

    async fn expand_twice(&self) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Self::larger(&made)).await?;
        self.must_be_done(&Self::larger(&made)).await?;
        self.remove(&made).await
    }

    async fn expand_at_once(&self) -> Passed {
        let made = self.new_volume().await?;
        let (first, second) = self.both(&Self::larger(&made)).await?;
        done_or_later(&first)?;
        done_or_later(&second)?;
        self.must_be_done(&Self::larger(&made)).await?;
        self.remove(&made).await
    }

    async fn expand_cut_off(&self) -> Passed {
        let made = self.new_volume().await?;
        self.rig.cut_off(&Self::larger(&made), Duration::ZERO).await?;
        self.must_be_done(&Self::larger(&made)).await?;
        self.remove(&made).await
    }

    async fn expand_nothing(&self) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await?;
        must_fail(&self.rig.run(&Self::larger(&made)).await?, "the volume is gone")
    }

    pub(super) fn modified<'a>(made: &'a MadeVolume, parameters: &BTreeMap<String, String>) -> Ask<'a> {
        Ask {
            attributes: Some(Attributes {
                class: ATTRIBUTES_CLASS.to_owned(),
                parameters: parameters.clone(),
            }),
            ..Ask::on(Operation::Modify, made)
        }
    }

    async fn modify_twice(&self) -> Passed {
        let made = self.new_volume().await?;
        let ask = Self::modified(&made, self.rig.attributes());
        self.must_be_done(&ask).await?;
        self.must_be_done(&ask).await?;
        self.remove(&made).await
    }

    async fn modify_at_once(&self) -> Passed {
        let made = self.new_volume().await?;
        let ask = Self::modified(&made, self.rig.attributes());
        let (first, second) = self.both(&ask).await?;
        done_or_later(&first)?;
        done_or_later(&second)?;
        self.must_be_done(&ask).await?;
        self.remove(&made).await
    }

    async fn modify_cut_off(&self) -> Passed {
        let made = self.new_volume().await?;
        let ask = Self::modified(&made, self.rig.attributes());
        self.rig.cut_off(&ask, Duration::ZERO).await?;
        self.must_be_done(&ask).await?;
        self.remove(&made).await
    }

    async fn modify_nothing(&self) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await?;
        let ask = Self::modified(&made, self.rig.attributes());
        must_fail(&self.rig.run(&ask).await?, "the volume is gone")
    }

    async fn modify_unknown(&self) -> Passed {
        let made = self.new_volume().await?;
        let unknown = [(NO_ATTRIBUTE.to_owned(), "1".to_owned())].into();
        let ask = Self::modified(&made, &unknown);
        let verdict = must_fail(
            &self.rig.run(&ask).await?,
            "no image knows attribute mooring-conform-none",
        );
        self.remove(&made).await?;
        verdict
    }
}
