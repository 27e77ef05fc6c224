//! What is tried of `attach` and `detach`. The nodes are made up: the storage lets in and keeps out whatever it is
//! told.

use flex_provisioner::config::VolumeSourceKind;
use futures::future::FutureExt;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;

use super::subjects::{FIRST, SECOND, node};
use super::trial::{Trial, Way};
use super::verdicts::connected;
use super::{Check, Kit, Passed};
use crate::conform::error::KitError;
use crate::conform::runs::{Ask, MadeVolume, Runs};

fn attach<'m>(made: &'m MadeVolume, to: (&str, &str)) -> Ask<'m> {
    Ask {
        node: Some(node(made, to, false)),
        ..Ask::on(Operation::Attach, made)
    }
}

fn detach<'m>(made: &'m MadeVolume, from: (&str, &str), gone: bool) -> Ask<'m> {
    Ask {
        node: Some(node(made, from, gone)),
        ..Ask::on(Operation::Detach, made)
    }
}

impl<R: Runs> Kit<'_, R> {
    pub(super) fn of_attach(&self) -> Vec<Check<'_>> {
        let trial = Trial {
            undone_by: Some(Operation::Detach),
            ..Trial::on(Operation::Attach)
        };
        let mut checks = vec![
            self.check(trial, "succeeds again on what the node has", Way::Again),
            self.check(trial, "is done by two runs at once", Way::AtOnce),
            self.check(trial, "is done after it was killed", Way::CutOff(0.0)),
            self.check(trial, "fails on a volume that is gone", Way::Gone("the volume is gone")),
        ];
        if self.rig.setup().config.multi_attach {
            let what = "lets two nodes have it at once";
            checks.push(Check::new(trial.operation, what, self.attach_to_two().boxed_local()));
        }
        checks
    }

    pub(super) fn of_detach(&self) -> Vec<Check<'_>> {
        let nothing = Trial::on(Operation::Detach);
        let trial = Trial {
            after: Some(Operation::Attach),
            ..nothing
        };
        let another = |what, gone| Check::new(trial.operation, what, self.another_node(gone).boxed_local());
        vec![
            self.check(trial, "succeeds again on what no node has", Way::Again),
            self.check(nothing, "succeeds on what was never attached", Way::Once),
            self.check(trial, "is done by two runs at once", Way::AtOnce),
            self.check(trial, "is done after it was killed", Way::CutOff(0.0)),
            another("lets another node have it", false),
            another("lets another node have it when the first is gone", true),
        ]
    }

    async fn must_connect(&self, ask: &Ask<'_>) -> Passed {
        connected(&self.rig.run(ask).await?)
    }

    async fn attach_to_two(&self) -> Passed {
        let made = self.new_for_many().await?;
        for node in [FIRST, SECOND, FIRST] {
            self.must_connect(&attach(&made, node)).await?;
        }
        self.must_be_done(&detach(&made, SECOND, false)).await?;
        self.must_connect(&attach(&made, FIRST)).await?;
        self.must_be_done(&detach(&made, FIRST, false)).await?;
        self.remove(&made).await
    }

    /// A volume for several nodes: with a file system or, if the image refuses that, as a device.
    async fn new_for_many(&self) -> Result<MadeVolume, KitError> {
        let mut claim = self.rig.claim().await?;
        let by_csi = self.rig.setup().config.volume_source == Some(VolumeSourceKind::Csi);
        let spec = claim.spec.get_or_insert_default();
        spec.access_modes = Some(vec!["ReadWriteMany".to_owned()]);
        let ask = Ask::of(Operation::Provision, &claim);
        let finish = self.rig.run(&ask).await?;
        if finish.outcome != Outcome::GiveUp || !by_csi {
            return self.volume(&ask, &finish);
        }
        claim.spec.get_or_insert_default().volume_mode = Some("Block".to_owned());
        self.made_by(&Ask::of(Operation::Provision, &claim)).await
    }

    async fn another_node(&self, is_first_gone: bool) -> Passed {
        let made = self.new_volume().await?;
        self.must_connect(&attach(&made, FIRST)).await?;
        self.must_be_done(&detach(&made, FIRST, is_first_gone)).await?;
        self.must_connect(&attach(&made, SECOND)).await?;
        self.must_be_done(&detach(&made, SECOND, false)).await?;
        self.remove(&made).await
    }
}
