//! What is tried of `snapshot-group` and `delete-group`: each with a group of two volumes.

use std::time::Duration;

use flex_provisioner::volume::snapshot::name_in_group;
use futures::future::FutureExt;
use kube::ResourceExt;
use mooring_contract::operation::Operation;
use mooring_contract::request::{Member, Snapshot};

use super::{Check, Kit, Passed, must_fail};
use crate::conform::error::KitError;
use crate::conform::runs::{Ask, MadeVolume, Runs};

/// A group of two volumes.
type Pair = [MadeVolume; 2];

impl<R: Runs> Kit<'_, R> {
    pub(super) fn of_snapshot_group(&self, promised: &[Operation]) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(Operation::SnapshotGroup, what, check);
        let mut checks = vec![
            check("succeeds again on what it has taken", self.group_twice().boxed_local()),
            check("is done after it was killed", self.group_cut_off().boxed_local()),
            check("fails if one of the volumes is gone", self.group_of_one().boxed_local()),
        ];
        if promised.contains(&Operation::Restore) {
            checks.push(check(
                "takes snapshots of which volumes can be made",
                self.group_restored().boxed_local(),
            ));
        }
        checks
    }

    pub(super) fn of_delete_group(&self) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(Operation::DeleteGroup, what, check);
        vec![
            check(
                "succeeds again on what it has removed",
                self.delete_group_twice().boxed_local(),
            ),
            check(
                "succeeds on what was never taken",
                self.delete_group_not_taken().boxed_local(),
            ),
        ]
    }

    /// The group of these volumes that the contract has one name for.
    fn group_of(pair: &Pair) -> Snapshot {
        let uid = pair[0].claim.uid().unwrap_or_default();
        let name = format!("groupsnapshot-{uid}");
        let member = |made: &MadeVolume| Member {
            snapshot_name: name_in_group(&name, &made.request.pv_name),
            pv_name: made.request.pv_name.clone(),
            volume_handle: made.request.pv_name.clone(),
            volume_mode: made.request.volume_mode.clone(),
            pvc_name: made.request.pvc_name.clone(),
            pvc_uid: made.request.pvc_uid.clone(),
            size: made.request.size,
            volume: made.options.clone(),
            parameters: [].into(),
        };
        Snapshot {
            content_name: format!("groupsnapcontent-{uid}"),
            content_uid: uid,
            backup: false,
            members: Some(pair.iter().map(member).collect()),
            name,
        }
    }

    fn group_ask(operation: Operation, pair: &Pair) -> Ask<'_> {
        Ask {
            snapshot: Some(Self::group_of(pair)),
            ..Ask::of(operation, &pair[0].claim)
        }
    }

    async fn new_pair(&self) -> Result<Pair, KitError> {
        Ok([self.new_volume().await?, self.new_volume().await?])
    }

    async fn new_group(&self) -> Result<Pair, KitError> {
        let pair = self.new_pair().await?;
        self.must_be_done(&Self::group_ask(Operation::SnapshotGroup, &pair))
            .await?;
        Ok(pair)
    }

    async fn remove_group(&self, pair: &Pair) -> Passed {
        if self.rig.promised().contains(&Operation::DeleteGroup) {
            self.must_be_done(&Self::group_ask(Operation::DeleteGroup, pair))
                .await?;
        }
        self.remove(&pair[0]).await?;
        self.remove(&pair[1]).await
    }

    async fn group_twice(&self) -> Passed {
        let pair = self.new_group().await?;
        self.must_be_done(&Self::group_ask(Operation::SnapshotGroup, &pair))
            .await?;
        self.remove_group(&pair).await
    }

    async fn group_cut_off(&self) -> Passed {
        let pair = self.new_pair().await?;
        let ask = Self::group_ask(Operation::SnapshotGroup, &pair);
        self.rig.cut_off(&ask, Duration::ZERO).await?;
        self.must_be_done(&ask).await?;
        self.remove_group(&pair).await
    }

    async fn group_of_one(&self) -> Passed {
        let pair = self.new_pair().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &pair[1])).await?;
        let finish = self.rig.run(&Self::group_ask(Operation::SnapshotGroup, &pair)).await?;
        must_fail(&finish, "one of the volumes is gone")?;
        self.remove_group(&pair).await
    }

    /// Each of them, after its volume is gone.
    async fn group_restored(&self) -> Passed {
        let pair = self.new_group().await?;
        let group = Self::group_of(&pair);
        for (source, member) in pair.iter().zip(group.members.iter().flatten()) {
            self.remove(source).await?;
            let claim = self.rig.claim().await?;
            let ask = Ask {
                source: Some(source),
                snapshot: Some(Snapshot {
                    name: member.snapshot_name.clone(),
                    members: None,
                    ..group.clone()
                }),
                ..Ask::of(Operation::Restore, &claim)
            };
            let restored = self.made_by(&ask).await?;
            self.remove(&restored).await?;
        }
        self.remove_group(&pair).await
    }

    async fn delete_group_twice(&self) -> Passed {
        let pair = self.new_group().await?;
        self.must_be_done(&Self::group_ask(Operation::DeleteGroup, &pair))
            .await?;
        self.remove_group(&pair).await
    }

    async fn delete_group_not_taken(&self) -> Passed {
        let pair = self.new_pair().await?;
        self.remove_group(&pair).await
    }
}
