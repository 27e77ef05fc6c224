//! What is tried of `snapshot`, `backup`, their deletions and `restore`.

use std::time::Duration;

use flex_provisioner::volume::snapshot::Form;
use futures::future::FutureExt;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use mooring_contract::operation::Operation;
use mooring_contract::request::Snapshot;

use super::{Check, Kit, Passed, must_fail, same};
use crate::conform::error::KitError;
use crate::conform::runs::{Ask, MadeVolume, Runs};

impl<R: Runs> Kit<'_, R> {
    pub(super) fn of_taking(&self, form: Form) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(form.take(), what, check);
        vec![
            check(
                "succeeds again on what it has taken",
                self.take_twice(form).boxed_local(),
            ),
            check("is done after it was killed", self.take_cut_off(form).boxed_local()),
            check(
                "fails on a volume that is gone",
                self.take_of_nothing(form).boxed_local(),
            ),
        ]
    }

    pub(super) fn of_deleting(&self, form: Form) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(form.delete(), what, check);
        vec![
            check(
                "succeeds again on what it has removed",
                self.delete_taken_twice(form).boxed_local(),
            ),
            check(
                "succeeds on what was never taken",
                self.delete_not_taken(form).boxed_local(),
            ),
        ]
    }

    /// Of each that the image takes.
    pub(super) fn of_restore(&self, promised: &[Operation]) -> Vec<Check<'_>> {
        let backups = promised.contains(&Operation::Backup);
        let snapshots = promised.contains(&Operation::Snapshot) || !backups;
        let forms = [(Form::Snapshot, snapshots), (Form::Backup, backups)];
        let forms = forms.into_iter().filter(|(_, taken)| *taken);
        forms.flat_map(|(form, _)| self.of_restoring(form)).collect()
    }

    fn of_restoring(&self, form: Form) -> Vec<Check<'_>> {
        let noun = form.noun();
        let check = |what: String, check| Check::new(Operation::Restore, what, check);
        vec![
            check(
                format!("gives the same volume when it is run again on a {noun}"),
                self.restore_twice(form).boxed_local(),
            ),
            check(
                format!("gives a volume of a {noun} after it was killed"),
                self.restore_cut_off(form).boxed_local(),
            ),
            check(
                format!("outlives the volume that the {noun} is of"),
                self.restore_without_volume(form).boxed_local(),
            ),
            check(
                format!("fails on a {noun} that is gone"),
                self.restore_of_nothing(form).boxed_local(),
            ),
        ]
    }

    /// The snapshot or backup of a volume that the contract has one name for.
    fn taken_of(form: Form, made: &MadeVolume) -> Snapshot {
        let uid = made.claim.uid().unwrap_or_default();
        Snapshot {
            name: format!("{}-{uid}", form.noun()),
            content_name: format!("snapcontent-{uid}"),
            content_uid: uid,
            backup: form == Form::Backup,
            members: None,
        }
    }

    pub(super) fn take(form: Form, made: &MadeVolume) -> Ask<'_> {
        Ask {
            snapshot: Some(Self::taken_of(form, made)),
            ..Ask::on(form.take(), made)
        }
    }

    pub(super) fn delete_taken(form: Form, made: &MadeVolume) -> Ask<'_> {
        Ask {
            snapshot: Some(Self::taken_of(form, made)),
            ..Ask::on(form.delete(), made)
        }
    }

    fn restore<'m>(form: Form, claim: &'m PersistentVolumeClaim, source: &'m MadeVolume) -> Ask<'m> {
        Ask {
            source: Some(source),
            snapshot: Some(Self::taken_of(form, source)),
            ..Ask::of(Operation::Restore, claim)
        }
    }

    async fn new_taken(&self, form: Form) -> Result<MadeVolume, KitError> {
        let made = self.new_volume().await?;
        self.must_be_done(&Self::take(form, &made)).await?;
        Ok(made)
    }

    async fn remove_taken(&self, form: Form, made: &MadeVolume) -> Passed {
        if !self.rig.promised().contains(&form.delete()) {
            return Ok(());
        }
        self.must_be_done(&Self::delete_taken(form, made)).await
    }

    async fn take_twice(&self, form: Form) -> Passed {
        let made = self.new_taken(form).await?;
        self.must_be_done(&Self::take(form, &made)).await?;
        self.remove_taken(form, &made).await?;
        self.remove(&made).await
    }

    async fn take_cut_off(&self, form: Form) -> Passed {
        let made = self.new_volume().await?;
        let ask = Self::take(form, &made);
        self.rig.cut_off(&ask, Duration::ZERO).await?;
        self.must_be_done(&ask).await?;
        self.remove_taken(form, &made).await?;
        self.remove(&made).await
    }

    async fn take_of_nothing(&self, form: Form) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await?;
        let finish = self.rig.run(&Self::take(form, &made)).await?;
        must_fail(&finish, "the volume is gone")
    }

    async fn delete_taken_twice(&self, form: Form) -> Passed {
        let made = self.new_taken(form).await?;
        let ask = Self::delete_taken(form, &made);
        self.must_be_done(&ask).await?;
        self.must_be_done(&ask).await?;
        self.remove(&made).await
    }

    async fn delete_not_taken(&self, form: Form) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Self::delete_taken(form, &made)).await?;
        self.remove(&made).await
    }

    async fn restore_twice(&self, form: Form) -> Passed {
        let source = self.new_taken(form).await?;
        let claim = self.rig.claim().await?;
        let ask = Self::restore(form, &claim, &source);
        let restored = self.made_by(&ask).await?;
        same(&restored, &self.made_by(&ask).await?)?;
        self.remove(&restored).await?;
        self.remove_taken(form, &source).await?;
        self.remove(&source).await
    }

    async fn restore_cut_off(&self, form: Form) -> Passed {
        let source = self.new_taken(form).await?;
        let claim = self.rig.claim().await?;
        let ask = Self::restore(form, &claim, &source);
        self.rig.cut_off(&ask, Duration::ZERO).await?;
        let restored = self.made_by(&ask).await?;
        self.remove(&restored).await?;
        self.remove_taken(form, &source).await?;
        self.remove(&source).await
    }

    async fn restore_without_volume(&self, form: Form) -> Passed {
        let source = self.new_taken(form).await?;
        self.must_be_done(&Ask::on(Operation::Delete, &source)).await?;
        let claim = self.rig.claim().await?;
        let restored = self.made_by(&Self::restore(form, &claim, &source)).await?;
        self.remove_taken(form, &source).await?;
        self.remove(&restored).await
    }

    async fn restore_of_nothing(&self, form: Form) -> Passed {
        let source = self.new_volume().await?;
        let claim = self.rig.claim().await?;
        let finish = self.rig.run(&Self::restore(form, &claim, &source)).await?;
        must_fail(&finish, &format!("the {} is gone", form.noun()))?;
        self.remove(&source).await
    }
}
