//! What is tried of `clone`.

use std::time::Duration;

use futures::future::FutureExt;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use mooring_contract::operation::Operation;

use super::{Check, Kit, Passed, must_fail, same};
use crate::conform::runs::{Ask, MadeVolume, Runs};

impl<R: Runs> Kit<'_, R> {
    pub(super) fn of_clone(&self) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(Operation::Clone, what, check);
        vec![
            check(
                "gives the same copy when it is run again",
                self.clone_twice().boxed_local(),
            ),
            check("gives a copy after it was killed", self.clone_cut_off().boxed_local()),
            check("fails on a source that is gone", self.clone_of_nothing().boxed_local()),
        ]
    }

    fn copy<'a>(claim: &'a PersistentVolumeClaim, source: &'a MadeVolume) -> Ask<'a> {
        Ask {
            source: Some(source),
            ..Ask::of(Operation::Clone, claim)
        }
    }

    async fn clone_twice(&self) -> Passed {
        let source = self.new_volume().await?;
        let claim = self.rig.claim().await?;
        let copy = self.made_by(&Self::copy(&claim, &source)).await?;
        same(&copy, &self.made_by(&Self::copy(&claim, &source)).await?)?;
        self.remove(&copy).await?;
        self.remove(&source).await
    }

    async fn clone_cut_off(&self) -> Passed {
        let source = self.new_volume().await?;
        let claim = self.rig.claim().await?;
        self.rig.cut_off(&Self::copy(&claim, &source), Duration::ZERO).await?;
        let copy = self.made_by(&Self::copy(&claim, &source)).await?;
        self.remove(&copy).await?;
        self.remove(&source).await
    }

    async fn clone_of_nothing(&self) -> Passed {
        let source = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &source)).await?;
        let claim = self.rig.claim().await?;
        let finish = self.rig.run(&Self::copy(&claim, &source)).await?;
        must_fail(&finish, "the volume to copy is gone")
    }
}
