//! What is tried of `attach` and `detach`. The nodes are made up: the storage lets in and keeps out whatever it is
//! told.

use std::time::Duration;

use flex_provisioner::config::VolumeSourceKind;
use flex_provisioner::run::outcome::Finish;
use flex_provisioner::volume::persistent_volume::Answered;
use futures::future::FutureExt;
use kube::ResourceExt;
use mooring_contract::attachment::initiator;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::Attachment;

use super::{Check, Kit, Passed, done, done_or_later, fault, must_fail};
use crate::conform::error::KitError;
use crate::conform::runs::{Ask, MadeVolume, NodeOfRun, Runs};

/// Two nodes: their names and addresses, which nobody has (RFC 5737).
pub(super) const FIRST: (&str, &str) = ("mooring-conform-1", "192.0.2.11");
const SECOND: (&str, &str) = ("mooring-conform-2", "192.0.2.12");

fn to<'m>(operation: Operation, made: &'m MadeVolume, node: (&str, &str), gone: bool) -> Ask<'m> {
    let (name, address) = node;
    Ask {
        node: Some(NodeOfRun {
            name: name.to_owned(),
            attachment: Attachment {
                addresses: vec![address.to_owned()],
                initiator: initiator(name, &made.claim.uid().unwrap_or_default()),
                provider_id: String::new(),
                gone,
            },
        }),
        ..Ask::on(operation, made)
    }
}

pub(super) fn attach<'m>(made: &'m MadeVolume, node: (&str, &str)) -> Ask<'m> {
    to(Operation::Attach, made, node, false)
}

pub(super) fn detach<'m>(made: &'m MadeVolume, node: (&str, &str)) -> Ask<'m> {
    to(Operation::Detach, made, node, false)
}

/// Whether a run let the node in, and printed what Mooring can read.
pub(super) fn connected(finish: &Finish) -> Passed {
    done(finish)?;
    Answered::parse(&finish.message)
        .map(drop)
        .map_err(|error| fault(format!("the connection would be refused: {error}")))
}

impl<R: Runs> Kit<'_, R> {
    pub(super) fn of_attach(&self) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(Operation::Attach, what, check);
        let mut checks = vec![
            check("succeeds again on what the node has", self.attach_twice().boxed_local()),
            check("is done by two runs at once", self.attach_at_once().boxed_local()),
            check("is done after it was killed", self.attach_cut_off().boxed_local()),
            check("fails on a volume that is gone", self.attach_nothing().boxed_local()),
        ];
        if self.rig.config().multi_attach {
            checks.push(check(
                "lets two nodes have it at once",
                self.attach_to_two().boxed_local(),
            ));
        }
        checks
    }

    pub(super) fn of_detach(&self) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(Operation::Detach, what, check);
        vec![
            check("succeeds again on what no node has", self.detach_twice().boxed_local()),
            check(
                "succeeds on what was never attached",
                self.detach_nothing().boxed_local(),
            ),
            check("is done by two runs at once", self.detach_at_once().boxed_local()),
            check("is done after it was killed", self.detach_cut_off().boxed_local()),
            check("lets another node have it", self.another_node(false).boxed_local()),
            check(
                "lets another node have it when the first is gone",
                self.another_node(true).boxed_local(),
            ),
        ]
    }

    async fn must_connect(&self, ask: &Ask<'_>) -> Passed {
        connected(&self.rig.run(ask).await?)
    }

    /// A volume that the first node has.
    async fn new_attached(&self) -> Result<MadeVolume, KitError> {
        let made = self.new_volume().await?;
        self.must_connect(&attach(&made, FIRST)).await?;
        Ok(made)
    }

    /// Takes it from that node, and removes it.
    async fn remove_attached(&self, made: &MadeVolume) -> Passed {
        self.must_be_done(&detach(made, FIRST)).await?;
        self.remove(made).await
    }

    async fn attach_twice(&self) -> Passed {
        let made = self.new_attached().await?;
        self.must_connect(&attach(&made, FIRST)).await?;
        self.remove_attached(&made).await
    }

    async fn attach_at_once(&self) -> Passed {
        let made = self.new_volume().await?;
        let (first, second) = self.both(&attach(&made, FIRST)).await?;
        for finish in [&first, &second] {
            match finish.outcome {
                Outcome::Done => connected(finish)?,
                Outcome::Retry | Outcome::GiveUp => done_or_later(finish)?,
            }
        }
        self.must_connect(&attach(&made, FIRST)).await?;
        self.remove_attached(&made).await
    }

    async fn attach_cut_off(&self) -> Passed {
        let made = self.new_volume().await?;
        self.rig.cut_off(&attach(&made, FIRST), Duration::ZERO).await?;
        self.must_connect(&attach(&made, FIRST)).await?;
        self.remove_attached(&made).await
    }

    async fn attach_nothing(&self) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await?;
        must_fail(&self.rig.run(&attach(&made, FIRST)).await?, "the volume is gone")
    }

    async fn attach_to_two(&self) -> Passed {
        let made = self.new_for_many().await?;
        for node in [FIRST, SECOND, FIRST] {
            self.must_connect(&attach(&made, node)).await?;
        }
        self.must_be_done(&detach(&made, SECOND)).await?;
        self.must_connect(&attach(&made, FIRST)).await?;
        self.remove_attached(&made).await
    }

    /// A volume for several nodes: with a file system or, if the image refuses that, as a device.
    async fn new_for_many(&self) -> Result<MadeVolume, KitError> {
        let mut claim = self.rig.claim().await?;
        let by_csi = self.rig.config().volume_source == Some(VolumeSourceKind::Csi);
        let spec = claim.spec.get_or_insert_default();
        spec.access_modes = Some(vec!["ReadWriteMany".to_owned()]);
        let ask = Ask::of(Operation::Provision, &claim);
        let finish = self.rig.run(&ask).await?;
        if finish.outcome != Outcome::GiveUp || !by_csi {
            return self.volume(&claim, self.rig.asked(&ask)?, &finish);
        }
        claim.spec.get_or_insert_default().volume_mode = Some("Block".to_owned());
        self.made_by(&Ask::of(Operation::Provision, &claim)).await
    }

    async fn detach_twice(&self) -> Passed {
        let made = self.new_attached().await?;
        self.must_be_done(&detach(&made, FIRST)).await?;
        self.remove_attached(&made).await
    }

    async fn detach_nothing(&self) -> Passed {
        let made = self.new_volume().await?;
        self.remove_attached(&made).await
    }

    async fn detach_at_once(&self) -> Passed {
        let made = self.new_attached().await?;
        let (first, second) = self.both(&detach(&made, FIRST)).await?;
        done_or_later(&first)?;
        done_or_later(&second)?;
        self.remove_attached(&made).await
    }

    async fn detach_cut_off(&self) -> Passed {
        let made = self.new_attached().await?;
        self.rig.cut_off(&detach(&made, FIRST), Duration::ZERO).await?;
        self.remove_attached(&made).await
    }

    async fn another_node(&self, is_first_gone: bool) -> Passed {
        let made = self.new_attached().await?;
        self.must_be_done(&to(Operation::Detach, &made, FIRST, is_first_gone))
            .await?;
        self.must_connect(&attach(&made, SECOND)).await?;
        self.must_be_done(&detach(&made, SECOND)).await?;
        self.remove(&made).await
    }
}
