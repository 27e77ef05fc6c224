//! What is tried of `snapshot`, `snapshot-group`, `backup`, their deletions and `restore`. A group is one of two volumes.

use flex_provisioner::volume::snapshot::Form;
use futures::future::FutureExt;
use mooring_contract::operation::Operation;
use mooring_contract::request::Snapshot;

use super::subjects::taken;
use super::trial::{Given, Trial, Way};
use super::{Check, Kit, Passed};
use crate::conform::runs::{Ask, Runs};

/// A restore of what is taken first and removed afterwards.
fn restore(form: Form) -> Trial {
    Trial {
        volumes: if form == Form::Group { 2 } else { 1 },
        after: Some(form.take()),
        undone_by: Some(form.delete()),
        form,
        ..Trial::on(Operation::Restore)
    }
}

impl<R: Runs> Kit<'_, R> {
    pub(super) fn of_taking(&self, form: Form) -> Vec<Check<'_>> {
        let trial = Trial {
            operation: form.take(),
            after: None,
            ..restore(form)
        };
        let (what, since) = match form {
            Form::Snapshot | Form::Backup => ("fails on a volume that is gone", "the volume is gone"),
            Form::Group => ("fails if one of the volumes is gone", "one of the volumes is gone"),
        };
        let mut checks = vec![
            self.check(trial, "succeeds again on what it has taken", Way::Again),
            self.check(trial, "is done after it was killed", Way::CutOff(0.0)),
            self.check(trial, what, Way::Gone(since)),
        ];
        if form == Form::Group && self.rig.setup().promises(Operation::Restore) {
            checks.push(Check::new(
                trial.operation,
                "takes snapshots of which volumes can be made",
                self.group_restored().boxed_local(),
            ));
        }
        checks
    }

    pub(super) fn of_deleting(&self, form: Form) -> Vec<Check<'_>> {
        let trial = Trial {
            operation: form.delete(),
            undone_by: None,
            ..restore(form)
        };
        let nothing = Trial { after: None, ..trial };
        vec![
            self.check(trial, "succeeds again on what it has removed", Way::Again),
            self.check(nothing, "succeeds on what was never taken", Way::Once),
        ]
    }

    /// Of each that the image takes.
    pub(super) fn of_restore(&self) -> Vec<Check<'_>> {
        let backups = self.rig.setup().promises(Operation::Backup);
        let snapshots = self.rig.setup().promises(Operation::Snapshot) || !backups;
        let forms = [(Form::Snapshot, snapshots), (Form::Backup, backups)];
        let forms = forms.into_iter().filter(|(_, taken)| *taken);
        forms.flat_map(|(form, _)| self.of_restoring(form)).collect()
    }

    fn of_restoring(&self, form: Form) -> [Check<'_>; 4] {
        let noun = form.noun();
        let trial = restore(form);
        let nothing = Trial {
            after: None,
            undone_by: None,
            ..trial
        };
        let again = format!("gives the same volume when it is run again on a {noun}");
        let cut_off = format!("gives a volume of a {noun} after it was killed");
        let outlives = format!("outlives the volume that the {noun} is of");
        let gone = Way::Fails(format!("the {noun} is gone"));
        [
            self.check(trial, again, Way::Again),
            self.check(trial, cut_off, Way::CutOff(0.0)),
            self.check(trial, outlives, Way::Outlives),
            self.check(nothing, format!("fails on a {noun} that is gone"), gone),
        ]
    }

    /// Each of a group's snapshots, after its volume is gone.
    async fn group_restored(&self) -> Passed {
        let trial = Trial {
            operation: Operation::SnapshotGroup,
            ..restore(Form::Group)
        };
        let subject = self.prepared(trial).await?;
        let group = taken(Form::Group, &subject.volumes);
        let members = group.iter().flat_map(|group| group.members.iter().flatten());
        for (source, member) in subject.volumes.iter().zip(members) {
            self.remove(source).await?;
            let claim = self.rig.claim().await?;
            let ask = Ask {
                source: Some(source),
                snapshot: group.clone().map(|group| Snapshot {
                    name: member.snapshot_name.clone(),
                    members: None,
                    ..group
                }),
                ..Ask::of(Operation::Restore, &claim)
            };
            self.remove(&self.made_by(&ask).await?).await?;
        }
        self.undo(trial, &subject, Given::Nothing).await?;
        self.remove_all(&subject.volumes).await
    }
}
