//! The kit finds each fault that an image can have, and none in an image without.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flex_provisioner::config::ProvisionerConfig;
use flex_provisioner::config::trust::Trust;
use flex_provisioner::operation::observed::Surroundings;
use flex_provisioner::operation::request::for_claim;
use flex_provisioner::run::outcome::{Category, Finish};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use mooring_contract::attachment::is_for_many;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::Request;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Kit;
use crate::conform::error::{KitError, RigError};
use crate::conform::report::ConformReport;
use crate::conform::runs::{Ask, Runs, Setup};

/// What is wrong with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planted {
    Nothing,
    AnotherVolumeEachTime,
    FailsWhenThere,
    FailsAfterAKill,
    GivesUpAtOnce,
    DeleteFailsOnNothing,
    DeleteLiesWhenAway,
    ProvisionLiesWhenAway,
    ExpandLies,
    ExpandFailsTwice,
    ModifyLies,
    ModifyFailsTwice,
    ModifyTakesAll,
    CloneLies,
    SnapshotFailsTwice,
    SnapshotLies,
    SnapshotGoesWithItsVolume,
    RestoreLies,
    BackupFailsTwice,
    BackupGoesWithItsVolume,
    GroupFailsTwice,
    GroupLies,
    GroupLosesOne,
    GroupDeleteFailsOnNothing,
    AttachFailsTwice,
    SecondNodeKeptOut,
    AttachLies,
    AttachPrintsNonsense,
    DetachFailsOnNothing,
    DetachLeavesIt,
    DiscoverListsNonsense,
    DiscoverChanges,
    DiscoverListsWhatItHasNot,
    Silent,
    Hangs,
    PrintsNothing,
    GivesOutTheNode,
    ServesNot,
    StatesNothing,
    WorkerGivesAnother,
    WorkerKeepsWhatItWasGiven,
    WorkerCannotExpand,
    WorkerCannotAttach,
    FailsAfterItsWorkerWasKilled,
    /// No faults of the image.
    EachRunIsLostOnce,
    AllRunsAreLost,
}

struct Fake {
    setup: Setup,
    planted: Planted,
    made: RefCell<BTreeSet<String>>,
    killed: RefCell<BTreeSet<String>>,
    killed_on_worker: RefCell<BTreeSet<String>>,
    sizes: RefCell<BTreeMap<String, u64>>,
    snapshots: RefCell<BTreeSet<String>>,
    modified: RefCell<BTreeSet<String>>,
    /// Which nodes have the volume of a claim.
    attached: RefCell<BTreeMap<String, BTreeSet<String>>>,
    count: Cell<u32>,
    /// The runs that were lost and are to be repeated.
    lost: RefCell<BTreeSet<(Operation, String)>>,
}

impl Fake {
    fn new(planted: Planted) -> Self {
        let map = json!({
            "metadata": {"name": "a", "namespace": "mooring", "labels": {"type": "provisioner-config"}},
            "data": {
                "plugin-name": "mooring.dev/flex-provisioner", "image": "example.com/a:1",
                "operations": "provision, delete, expand, modify, clone, snapshot, delete-snapshot, restore, backup, \
                               delete-backup, snapshot-group, delete-group, discover, attach, detach",
                "multi-attach": "true", "volume-source": "csi", "workers": "1",
            },
        });
        let map = serde_json::from_value(map).unwrap();
        Self {
            setup: Setup {
                config: ProvisionerConfig::parse(&map, &Trust::offline(None, None)).unwrap(),
                node: None,
                attributes: [("tier".to_owned(), "gold".to_owned())].into(),
                size: 16 << 20,
            },
            planted,
            made: RefCell::default(),
            killed: RefCell::default(),
            killed_on_worker: RefCell::default(),
            sizes: RefCell::default(),
            snapshots: RefCell::default(),
            modified: RefCell::default(),
            attached: RefCell::default(),
            count: Cell::default(),
            lost: RefCell::default(),
        }
    }

    fn is(&self, planted: Planted) -> bool {
        self.planted == planted
    }

    fn next(&self) -> u32 {
        self.count.set(self.count.get() + 1);
        self.count.get()
    }

    /// Whether the cluster ends this run.
    fn is_lost(&self, ask: &Ask<'_>) -> bool {
        let run = (ask.operation, ask.in_name_of().uid().unwrap());
        let mut lost = self.lost.borrow_mut();
        self.is(Planted::AllRunsAreLost)
            || self.is(Planted::EachRunIsLostOnce) && (!lost.remove(&run) && lost.insert(run))
    }

    fn failed(&self, outcome: Outcome, words: &str) -> Finish {
        let words = if self.is(Planted::Silent) { "" } else { words };
        let category = if self.is(Planted::Hangs) {
            Category::Timeout
        } else {
            Category::Failed
        };
        finish(outcome, category, words)
    }

    fn made(&self, uid: &str) -> Finish {
        let fresh = self.made.borrow_mut().insert(uid.to_owned());
        if !fresh && self.is(Planted::FailsWhenThere) {
            return self.failed(Outcome::Retry, "there is one already");
        }
        let name = if self.is(Planted::AnotherVolumeEachTime) {
            format!("{uid}-{}", self.next())
        } else {
            uid.to_owned()
        };
        let printed = match self.planted {
            Planted::PrintsNothing => String::new(),
            Planted::GivesOutTheNode => json!({"client": "pool"}).to_string(),
            _ => json!({"client": "nfs", "source": format!("10.0.0.1:/{name}")}).to_string(),
        };
        Finish {
            can_be_worker: !self.is(Planted::StatesNothing),
            ..finish(Outcome::Done, Category::Done, &printed)
        }
    }
}

impl Fake {
    fn taken_together(&self, ask: &Ask<'_>) -> Finish {
        let group = ask.snapshot.clone().unwrap().members.unwrap();
        let all_there = group.iter().all(|member| self.made.borrow().contains(&member.pvc_uid));
        if !all_there && !self.is(Planted::GroupLies) {
            return self.failed(Outcome::GiveUp, "no such volume");
        }
        let mut fresh = false;
        for (index, member) in group.into_iter().enumerate() {
            if index == 0 || !self.is(Planted::GroupLosesOne) {
                fresh |= self.snapshots.borrow_mut().insert(member.snapshot_name);
            }
        }
        if !fresh && self.is(Planted::GroupFailsTwice) {
            return self.failed(Outcome::Retry, "they were taken before");
        }
        finish(Outcome::Done, Category::Done, "")
    }

    fn removed_together(&self, ask: &Ask<'_>) -> Finish {
        let mut there = false;
        for member in ask.snapshot.clone().unwrap().members.unwrap() {
            there |= self.snapshots.borrow_mut().remove(&member.snapshot_name);
        }
        if !there && self.is(Planted::GroupDeleteFailsOnNothing) {
            return self.failed(Outcome::Retry, "no such group");
        }
        finish(Outcome::Done, Category::Done, "")
    }

    fn attach(&self, uid: String, node: String, for_many: bool) -> Finish {
        let mut attached = self.attached.borrow_mut();
        let nodes = attached.entry(uid).or_default();
        let has_other = nodes.iter().any(|has| *has != node);
        if has_other && (!for_many || self.is(Planted::SecondNodeKeptOut)) {
            return self.failed(Outcome::Retry, "another node has it");
        }
        if !nodes.insert(node) && self.is(Planted::AttachFailsTwice) {
            return self.failed(Outcome::Retry, "it is attached");
        }
        let said = if self.is(Planted::AttachPrintsNonsense) {
            "target 1"
        } else {
            ""
        };
        finish(Outcome::Done, Category::Done, said)
    }

    fn detach(&self, uid: &str, node: &str) -> Finish {
        if self.is(Planted::DetachLeavesIt) {
            return finish(Outcome::Done, Category::Done, "");
        }
        let mut attached = self.attached.borrow_mut();
        let had = attached.get_mut(uid).is_some_and(|nodes| nodes.remove(node));
        if !had && self.is(Planted::DetachFailsOnNothing) {
            return self.failed(Outcome::Retry, "no node has it");
        }
        finish(Outcome::Done, Category::Done, "")
    }

    fn delete(&self, uid: &str) -> Finish {
        self.made.borrow_mut().remove(uid);
        if self.is(Planted::SnapshotGoesWithItsVolume) {
            self.snapshots.borrow_mut().remove(&format!("snapshot-{uid}"));
        }
        if self.is(Planted::BackupGoesWithItsVolume) {
            self.snapshots.borrow_mut().remove(&format!("backup-{uid}"));
        }
        finish(Outcome::Done, Category::Done, "")
    }

    fn modify(&self, uid: String, ask: &Ask<'_>) -> Finish {
        let known = ask.attributes.as_ref().unwrap().parameters.contains_key("tier");
        if !known && !self.is(Planted::ModifyTakesAll) {
            return self.failed(Outcome::GiveUp, "no such attribute");
        }
        let fresh = self.modified.borrow_mut().insert(uid);
        if !fresh && self.is(Planted::ModifyFailsTwice) {
            self.failed(Outcome::Retry, "it has that tier")
        } else {
            finish(Outcome::Done, Category::Done, "")
        }
    }

    fn discover(&self) -> Finish {
        let pool = match self.planted {
            Planted::DiscoverListsNonsense => return finish(Outcome::Done, Category::Done, "pools: ssd"),
            Planted::DiscoverChanges => format!("pool-{}", self.next()),
            _ => "ssd".to_owned(),
        };
        let printed = json!({"parameter": "pool", "classes": [pool]});
        finish(Outcome::Done, Category::Done, &printed.to_string())
    }
}

fn finish(outcome: Outcome, category: Category, message: &str) -> Finish {
    Finish {
        outcome,
        category,
        why: message.to_owned(),
        may_have_run: true,
        started: true,
        message: message.to_owned(),
        can_be_worker: false,
    }
}

impl Runs for Fake {
    fn setup(&self) -> &Setup {
        &self.setup
    }

    fn can_be_unreachable(&self) -> bool {
        true
    }

    async fn claim(&self) -> Result<PersistentVolumeClaim, RigError> {
        let number = self.next();
        let claim = json!({
            "metadata": {"name": format!("claim-{number}"), "namespace": "default", "uid": format!("uid-{number}")},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                     "resources": {"requests": {"storage": "16Mi"}}},
        });
        Ok(serde_json::from_value(claim).unwrap())
    }

    fn asked(&self, ask: &Ask<'_>) -> Result<Request, RigError> {
        let around = Surroundings {
            class: None,
            config: &self.setup.config,
            kube_api: "https://10.96.0.1:443",
        };
        Ok(for_claim(ask.operation, ask.claim, None, ask.volume.clone(), around)?)
    }

    async fn run_once(&self, ask: &Ask<'_>) -> Result<Finish, RigError> {
        if self.is_lost(ask) {
            return Ok(finish(Outcome::Retry, Category::Node, "lost with its node (Evicted)"));
        }
        let uid = ask.claim.uid().unwrap();
        if self.killed.borrow().contains(&uid) && self.is(Planted::FailsAfterAKill) {
            return Ok(self.failed(Outcome::Retry, "half of it is there"));
        }
        if self.killed_on_worker.borrow().contains(&uid) && self.is(Planted::FailsAfterItsWorkerWasKilled) {
            return Ok(self.failed(Outcome::Retry, "what the worker made is in the way"));
        }
        if ask.beside.is_some() && self.is(Planted::GivesUpAtOnce) {
            return Ok(self.failed(Outcome::GiveUp, "another run is at it"));
        }
        let lies = match ask.operation {
            Operation::Provision => Planted::ProvisionLiesWhenAway,
            _ => Planted::DeleteLiesWhenAway,
        };
        if ask.unreachable && !self.is(lies) {
            return Ok(self.failed(Outcome::Retry, "no answer"));
        }
        let there = self.made.borrow().contains(&uid);
        Ok(match ask.operation {
            Operation::Attach if !there && !self.is(Planted::AttachLies) => {
                self.failed(Outcome::GiveUp, "no such volume")
            }
            Operation::Attach => {
                let for_many = is_for_many(&self.asked(ask)?.access_modes);
                self.attach(uid, ask.node.clone().unwrap().name, for_many)
            }
            Operation::Detach => self.detach(&uid, &ask.node.clone().unwrap().name),
            Operation::Provision if ask.size.is_some() => self.failed(Outcome::GiveUp, "too large"),
            Operation::Provision
                if ask.parameters.contains_key("pool") && self.is(Planted::DiscoverListsWhatItHasNot) =>
            {
                self.failed(Outcome::GiveUp, "no such pool")
            }
            Operation::Provision => self.made(&uid),
            Operation::Delete if !there && self.is(Planted::DeleteFailsOnNothing) => {
                self.failed(Outcome::Retry, "no such volume")
            }
            Operation::Delete => self.delete(&uid),
            Operation::Expand if !there && !self.is(Planted::ExpandLies) => {
                self.failed(Outcome::GiveUp, "no such volume")
            }
            Operation::Expand => {
                let before = self.sizes.borrow_mut().insert(uid, ask.size.unwrap());
                if before == ask.size && self.is(Planted::ExpandFailsTwice) {
                    self.failed(Outcome::Retry, "it has that size")
                } else {
                    finish(Outcome::Done, Category::Done, "")
                }
            }
            Operation::Modify if !there && !self.is(Planted::ModifyLies) => {
                self.failed(Outcome::GiveUp, "no such volume")
            }
            Operation::Modify => self.modify(uid, ask),
            Operation::Snapshot | Operation::Backup if !there && !self.is(Planted::SnapshotLies) => {
                self.failed(Outcome::GiveUp, "no such volume")
            }
            Operation::Snapshot | Operation::Backup => {
                let twice = match ask.operation {
                    Operation::Backup => Planted::BackupFailsTwice,
                    _ => Planted::SnapshotFailsTwice,
                };
                let fresh = self.snapshots.borrow_mut().insert(ask.snapshot.clone().unwrap().name);
                if !fresh && self.is(twice) {
                    self.failed(Outcome::Retry, "it was taken before")
                } else {
                    finish(Outcome::Done, Category::Done, "")
                }
            }
            Operation::DeleteSnapshot | Operation::DeleteBackup => {
                self.snapshots.borrow_mut().remove(&ask.snapshot.clone().unwrap().name);
                finish(Outcome::Done, Category::Done, "")
            }
            Operation::SnapshotGroup => self.taken_together(ask),
            Operation::DeleteGroup => self.removed_together(ask),
            Operation::Restore => {
                let taken = self.snapshots.borrow().contains(&ask.snapshot.clone().unwrap().name);
                if taken || self.is(Planted::RestoreLies) {
                    self.made(&uid)
                } else {
                    self.failed(Outcome::GiveUp, "no such snapshot")
                }
            }
            Operation::Discover => self.discover(),
            Operation::Clone => {
                let source = ask.source.unwrap().claim.uid().unwrap();
                if self.made.borrow().contains(&source) || self.is(Planted::CloneLies) {
                    self.made(&uid)
                } else {
                    self.failed(Outcome::GiveUp, "no such source")
                }
            }
        })
    }

    async fn cut_off(&self, ask: &Ask<'_>, _: Duration) -> Result<(), RigError> {
        self.killed.borrow_mut().insert(ask.claim.uid().unwrap());
        Ok(())
    }

    async fn on_worker(&self, asks: &[Ask<'_>]) -> Result<Vec<Finish>, KitError> {
        let mut finishes = Vec::new();
        for ask in asks {
            let ask = if self.is(Planted::WorkerKeepsWhatItWasGiven) {
                &asks[0]
            } else {
                ask
            };
            finishes.push(match (self.planted, ask.operation) {
                (Planted::ServesNot, _) => return Err(KitError::Image("it ended at its start".to_owned())),
                (Planted::WorkerGivesAnother, Operation::Provision) => {
                    let printed = json!({"client": "nfs", "source": "10.0.0.1:/of-the-worker"});
                    finish(Outcome::Done, Category::Done, &printed.to_string())
                }
                (Planted::WorkerCannotExpand, Operation::Expand) => self.failed(Outcome::Retry, "no room in here"),
                (Planted::WorkerCannotAttach, Operation::Attach) => finish(Outcome::Done, Category::Done, "target 1"),
                _ => self.run(ask).await?,
            });
        }
        Ok(finishes)
    }

    async fn cut_off_on_worker(&self, first: &Ask<'_>, second: &Ask<'_>, _: f64) -> Result<Finish, KitError> {
        self.killed_on_worker.borrow_mut().insert(second.claim.uid().unwrap());
        Ok(self.run(first).await?)
    }
}

async fn judged(planted: Planted) -> ConformReport {
    let fake = Fake::new(planted);
    let mut report = ConformReport::new();
    Kit::new(&fake).try_all(&mut report, &CancellationToken::new()).await;
    report
}

#[tokio::test]
async fn an_image_without_a_fault_passes_and_leaves_nothing() {
    let fake = Fake::new(Planted::Nothing);
    let mut report = ConformReport::new();
    Kit::new(&fake).try_all(&mut report, &CancellationToken::new()).await;
    assert!(report.passed(), "{}", report.junit());
    assert!(fake.made.borrow().is_empty(), "{:?}", fake.made);
    assert!(fake.snapshots.borrow().is_empty(), "{:?}", fake.snapshots);
}

#[tokio::test]
async fn a_kit_that_is_told_to_stop_begins_nothing_leaves_nothing_and_has_not_passed() {
    let fake = Fake::new(Planted::Nothing);
    let mut report = ConformReport::new();
    let stop = CancellationToken::new();
    stop.cancel();
    Kit::new(&fake).try_all(&mut report, &stop).await;
    let xml = report.junit();
    assert!(
        !report.passed() && xml.contains("failures=\"1\"") && xml.contains("interrupted"),
        "{xml}"
    );
    assert_eq!(xml.matches("classname=\"provision\"").count(), 1, "{xml}");
    assert!(fake.made.borrow().is_empty(), "{:?}", fake.made);
}

#[tokio::test]
async fn an_image_is_tried_as_a_worker_if_it_is_promised_or_says_so_and_no_further_if_it_is_none() {
    let tried = |report: &ConformReport| report.junit().matches("classname=\"serve\"").count();
    assert_eq!(tried(&judged(Planted::Nothing).await), 6);
    assert_eq!(tried(&judged(Planted::ServesNot).await), 1);
    for (planted, workers, times, skipped) in [
        (Planted::ServesNot, Some(0), 0, 0),
        (Planted::Nothing, None, 6, 0),
        (Planted::StatesNothing, Some(1), 6, 0),
        (Planted::StatesNothing, None, 1, 1),
    ] {
        let mut fake = Fake::new(planted);
        fake.setup.config.workers = workers;
        let mut report = ConformReport::new();
        Kit::new(&fake).try_all(&mut report, &CancellationToken::new()).await;
        let xml = report.junit();
        assert!(report.passed(), "{planted:?} {workers:?}: {xml}");
        assert_eq!(tried(&report), times, "{planted:?} {workers:?}: {xml}");
        assert_eq!(xml.matches("set MOORING_WORKERS=true").count(), skipped, "{xml}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_cluster_ends_is_run_again_and_is_no_fault_of_the_image() {
    let report = judged(Planted::EachRunIsLostOnce).await;
    assert!(report.passed(), "{}", report.junit());
    let xml = judged(Planted::AllRunsAreLost).await.junit();
    let not_tried = xml
        .matches("it could not be tried: the cluster, and not the image, ended")
        .count();
    assert!(not_tried > 0 && xml.matches("<failure").count() == not_tried, "{xml}");
}

#[tokio::test]
async fn every_planted_fault_is_found_and_named() {
    for (planted, words) in [
        (Planted::AnotherVolumeEachTime, "name a volume after pv-name"),
        (Planted::FailsWhenThere, "there is one already"),
        (Planted::FailsAfterAKill, "half of it is there"),
        (Planted::GivesUpAtOnce, "gave up for good"),
        (Planted::DeleteFailsOnNothing, "no such volume"),
        (Planted::DeleteLiesWhenAway, "can&apos;t be reached"),
        (Planted::ProvisionLiesWhenAway, "can&apos;t be reached"),
        (Planted::ExpandLies, "the volume is gone"),
        (Planted::ExpandFailsTwice, "it has that size"),
        (Planted::ModifyLies, "the volume is gone"),
        (Planted::ModifyFailsTwice, "it has that tier"),
        (Planted::ModifyTakesAll, "no image knows attribute"),
        (Planted::CloneLies, "the volume to copy is gone"),
        (Planted::SnapshotFailsTwice, "it was taken before"),
        (Planted::SnapshotLies, "the volume is gone"),
        (Planted::SnapshotGoesWithItsVolume, "no such snapshot"),
        (Planted::RestoreLies, "the snapshot is gone"),
        (Planted::BackupFailsTwice, "it was taken before"),
        (Planted::BackupGoesWithItsVolume, "no such snapshot"),
        (Planted::GroupFailsTwice, "they were taken before"),
        (Planted::GroupLies, "one of the volumes is gone"),
        (Planted::GroupLosesOne, "no such snapshot"),
        (Planted::GroupDeleteFailsOnNothing, "no such group"),
        (Planted::AttachFailsTwice, "it is attached"),
        (Planted::SecondNodeKeptOut, "another node has it"),
        (Planted::AttachLies, "the volume is gone"),
        (Planted::AttachPrintsNonsense, "the connection would be refused"),
        (Planted::DetachFailsOnNothing, "no node has it"),
        (Planted::DetachLeavesIt, "another node has it"),
        (Planted::DiscoverListsNonsense, "is not {&quot;classes&quot;"),
        (Planted::DiscoverChanges, "two runs listed different classes"),
        (Planted::DiscoverListsWhatItHasNot, "is listed, but"),
        (Planted::Silent, "said nothing"),
        (Planted::Hangs, "end before that"),
        (Planted::PrintsNothing, "no termination message"),
        (Planted::GivesOutTheNode, "refused"),
        (Planted::ServesNot, "it ended at its start"),
        (Planted::WorkerGivesAnother, "keep nothing for the next"),
        (Planted::WorkerKeepsWhatItWasGiven, "keep nothing for the next"),
        (
            Planted::WorkerCannotExpand,
            "on a worker, expand: the run failed: no room in here",
        ),
        (
            Planted::WorkerCannotAttach,
            "on a worker, attach: the connection would be refused",
        ),
        (
            Planted::FailsAfterItsWorkerWasKilled,
            "what the worker made is in the way",
        ),
    ] {
        let report = judged(planted).await;
        assert!(!report.passed(), "{planted:?}");
        let xml = report.junit().replace('\'', "&apos;");
        assert!(xml.contains(words), "{planted:?}: {xml}");
    }
}
