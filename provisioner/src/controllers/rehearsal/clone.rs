//! The life of a claim that is a copy, rehearsed like that of any other, with its source deleted at every moment. It
//! ends with one volume that has the source's content or with none, and a source is never deleted while it is copied.

use std::sync::Arc;

use serde_json::json;

use super::fake_api::key_of;
use super::{By, Going, MADE_BY_POD, MADE_BY_WORKER, Offers, PV, Script, Theatre, with_every_fault};
use crate::apply::Shared;
use crate::cache::limiter::Limiter;
use crate::run::properties::tests::silver;

const SOURCE_PV: &str = "pvc-u0";

/// How many turns it takes to copy.
const TURNS: usize = 4;

/// What the image and the user do.
#[derive(Debug, Clone, Copy, Default)]
struct Copying {
    /// The first attempt makes the copy and then fails.
    first_fails: bool,
    /// The user deletes the source's claim after so many turns.
    source_deleted_after: Option<usize>,
    /// The user deletes the copy's claim after so many turns.
    deleted_after: Option<usize>,
    /// The source is in another namespace, which lets the copy's in.
    elsewhere: Option<Granted>,
}

/// When a namespace lets another one in.
#[derive(Debug, Clone, Copy)]
struct Granted {
    /// After so many turns.
    after: usize,
    /// It takes that back after so many turns.
    until: Option<usize>,
}

impl Copying {
    fn namespace(self) -> &'static str {
        if self.elsewhere.is_some() { "prod" } else { "default" }
    }

    fn source(self) -> String {
        format!("{}/old", self.namespace())
    }
}

/// A stage with a bound claim, and another one that copies it.
struct Stage {
    theatre: Theatre,
    copying: Copying,
    by: By,
    runs: usize,
    /// For how many turns the present copying has gone on.
    going: usize,
}

impl Stage {
    async fn open(copying: Copying, by: By) -> Self {
        let mut theatre = Theatre::open(Script::plain(Offers::Changes));
        theatre.carried_out(by).await;
        let mut made_by = silver();
        (made_by.pv_name, made_by.pvc_uid) = (SOURCE_PV.into(), "u0".into());
        let mut volume = crate::volume::acceptance::tests::volume();
        volume["metadata"] = json!({"name": SOURCE_PV, "finalizers": ["mooring.dev/volume"], "annotations": {
            "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
            "mooring.dev/config": "admin/custom-isci-provisioner",
            "mooring.dev/request": json!(made_by).to_string(),
        }});
        volume["spec"]["claimRef"]["namespace"] = json!(copying.namespace());
        volume["spec"]["claimRef"]["name"] = json!("old");
        volume["spec"]["claimRef"]["uid"] = json!("u0");
        volume["status"] = json!({"phase": "Bound"});
        {
            let mut api = theatre.api.lock();
            api.put("volumes", volume);
            api.put(
                "claims",
                json!({
                    "metadata": {"name": "old", "namespace": copying.namespace(), "uid": "u0"},
                    "spec": {"storageClassName": "silver", "accessModes": ["ReadWriteOnce"], "volumeName": SOURCE_PV,
                             "resources": {"requests": {"storage": "1Gi"}}},
                }),
            );
            let mut copy = api.get("claims", "default/data").unwrap();
            copy["spec"]["dataSourceRef"] = json!({"kind": "PersistentVolumeClaim", "name": "old"});
            if copying.elsewhere.is_some() {
                copy["spec"]["dataSourceRef"]["namespace"] = json!(copying.namespace());
            } else {
                copy["spec"]["dataSource"] = copy["spec"]["dataSourceRef"].clone();
            }
            api.put("claims", copy);
        }
        several_at_once(&mut theatre.shared);
        let mut stage = Self {
            theatre,
            copying,
            by,
            runs: 0,
            going: 0,
        };
        stage.theatre.storage.insert(SOURCE_PV.to_owned());
        stage
    }

    async fn turn(&mut self) {
        // What was killed has started again.
        several_at_once(&mut self.theatre.shared);
        self.theatre.turn_of_controllers().await;
        self.kubelet();
        self.theatre.garbage_collector();
        self.theatre.binder();
    }

    /// Has all runs go on. To copy takes long enough for everybody else to go on meanwhile.
    fn kubelet(&mut self) {
        let all = self.theatre.runs();
        let copies = all.iter().any(|going| going.operation() == "clone" && !going.is_new);
        for going in all {
            let is_copy = going.operation() == "clone";
            let deletes_source = going.operation() == "delete" && going.uid() == "u0";
            if going.is_new {
                self.going = if is_copy { 0 } else { self.going };
                assert!(!(deletes_source && copies), "the source is deleted while it is copied");
                assert!(
                    !is_copy || self.theatre.storage.contains(SOURCE_PV),
                    "a copy of nothing is begun"
                );
                self.theatre.goes_on(going);
                continue;
            }
            if is_copy && self.going < TURNS {
                self.going += 1;
                self.theatre.goes_on(going);
                continue;
            }
            let (mut code, mut message) = (0, String::new());
            if is_copy {
                self.going = 0;
                self.runs += 1;
                assert!(
                    self.theatre.storage.contains(SOURCE_PV),
                    "the source went while it was copied"
                );
                self.theatre.storage.insert(PV.to_owned());
                message = json!({"client": "nfs", "source": "h:/x"}).to_string();
                if self.copying.first_fails && self.runs == 1 {
                    (code, message) = (75, "busy".to_owned());
                }
            } else {
                assert_eq!(going.operation(), "delete");
                self.theatre.storage.remove(if deletes_source { SOURCE_PV } else { PV });
            }
            self.theatre.ends(going, code, &message);
        }
    }

    /// A copy that the worker is at is made all the same.
    fn kill_worker(&mut self) {
        let is_copied = |going: &Going| going.is_on_worker() && going.operation() == "clone";
        if self.theatre.runs().iter().any(is_copied) {
            self.theatre.storage.insert(PV.to_owned());
        }
        self.theatre.kill_worker();
    }

    /// What the source's namespace lets others do.
    fn grants(&self, turn: usize) {
        let Some(Granted { after, until }) = self.copying.elsewhere else {
            return;
        };
        let mut api = self.theatre.api.lock();
        if turn == after {
            let all = json!({"group": "", "kind": "PersistentVolumeClaim"});
            api.put("grants", json!(crate::volume::grant::tests::grant(&all)));
        }
        if until == Some(turn) {
            api.delete("grants", "prod/g");
        }
    }

    /// Plays until nothing changes any more.
    async fn play(&mut self) {
        let Copying {
            source_deleted_after,
            deleted_after,
            ..
        } = self.copying;
        let mut quiet = 0;
        for turn in 0..120 {
            if self.by == By::Killed(turn) {
                self.kill_worker();
            }
            if source_deleted_after == Some(turn) {
                self.theatre.api.lock().delete("claims", &self.copying.source());
            }
            if deleted_after == Some(turn) {
                self.theatre.api.lock().delete("claims", "default/data");
            }
            self.grants(turn);
            let before = self.theatre.api.lock().version;
            self.turn().await;
            quiet = if self.theatre.api.lock().version == before {
                quiet + 1
            } else {
                0
            };
            let over = |at: Option<usize>| at.is_none_or(|at| turn > at);
            let granted = self
                .copying
                .elsewhere
                .map(|granted| granted.until.unwrap_or(granted.after));
            if quiet > 1 && over(source_deleted_after) && over(deleted_after) && over(granted) {
                return;
            }
        }
        panic!("it does not come to rest: {:#?}", self.theatre.api.lock());
    }

    fn check(&self, what: &str) {
        assert_eq!(self.theatre.pods_left(), [""; 0], "{what}: Pods left");
        let state = self.theatre.api.lock();
        let names = |kind: &str| state.each(kind).map(key_of).collect::<Vec<_>>();
        let storage = &self.theatre.storage;
        assert_eq!(names("secrets"), [""; 0], "{what}: Secrets left");
        let source_stands = self.copying.source_deleted_after.is_none();
        assert_eq!(storage.contains(SOURCE_PV), source_stands, "{what}: the source");
        let source_pv = state.get("volumes", &format!("/{SOURCE_PV}"));
        assert_eq!(source_pv.is_some(), source_stands, "{what}: the source's PV");
        if self.copying.deleted_after.is_some() {
            assert_eq!(state.get("claims", "default/data"), None, "{what}: the claim hangs");
            assert_eq!(state.get("volumes", &format!("/{PV}")), None, "{what}: the PV hangs");
            assert!(!storage.contains(PV), "{what}: a volume without a claim");
            return;
        }
        let claim = state.get("claims", "default/data").unwrap();
        if claim["spec"]["volumeName"] == PV {
            assert!(storage.contains(PV), "{what}: no volume");
            assert_eq!(claim["metadata"]["finalizers"], json!([]), "{what}: still held");
        } else {
            let granted = self.copying.elsewhere.is_none_or(|granted| granted.until.is_none());
            assert!(!source_stands || !granted, "{what}: not bound");
            assert_eq!(
                state.get("volumes", &format!("/{PV}")),
                None,
                "{what}: a PV of a claim that has none"
            );
        }
    }
}

/// With places for several runs, of which one ConfigMap gets a share only, so that they could contradict each other.
fn several_at_once(shared: &mut Shared) {
    shared.limiter = Arc::new(Limiter::new(8));
}

/// Plays without a fault, then with each call going wrong in every way, until there are no more calls to fail.
async fn rehearse(copying: Copying) {
    for by in By::each(&copying) {
        with_every_fault(&(copying, by), async |fault, what| {
            let mut stage = Stage::open(copying, by).await;
            stage.theatre.fail(fault);
            stage.play().await;
            stage.check(what);
            stage.theatre.calls()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_copy_ends_with_one_volume_whatever_fails() {
    for first_fails in [false, true] {
        rehearse(Copying {
            first_fails,
            ..Copying::default()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_source_that_is_deleted_goes_but_never_while_it_is_copied() {
    for turn in 0..6 {
        rehearse(Copying {
            first_fails: turn % 2 == 1,
            source_deleted_after: Some(turn),
            ..Copying::default()
        })
        .await;
    }
}

/// Proves: P1, P3
#[tokio::test]
async fn a_copy_that_is_deleted_ends_with_none_and_lets_its_source_go() {
    for turn in 0..6 {
        rehearse(Copying {
            first_fails: turn % 2 == 1,
            source_deleted_after: Some(turn),
            deleted_after: Some(turn + 1),
            elsewhere: None,
        })
        .await;
        rehearse(Copying {
            deleted_after: Some(turn),
            ..Copying::default()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_copy_from_another_namespace_ends_with_one_volume_whatever_fails() {
    for after in [0, 3] {
        rehearse(Copying {
            elsewhere: Some(Granted { after, until: None }),
            ..Copying::default()
        })
        .await;
    }
    // Nothing is begun before.
    let copying = Copying {
        elsewhere: Some(Granted {
            after: 200,
            until: None,
        }),
        ..Copying::default()
    };
    let mut stage = Stage::open(copying, By::Pods).await;
    for _ in 0..4 {
        stage.turn().await;
    }
    let log = stage.theatre.api.lock().log.clone();
    assert_eq!(log, [""; 0], "without a grant something was written");
}

/// Proves: P1
#[tokio::test]
async fn a_source_in_another_namespace_that_is_deleted_goes_but_never_while_it_is_copied() {
    for turn in 1..6 {
        rehearse(Copying {
            source_deleted_after: Some(turn),
            elsewhere: Some(Granted { after: 0, until: None }),
            ..Copying::default()
        })
        .await;
    }
}

/// Proves: P1, P3
#[tokio::test]
async fn a_grant_that_is_taken_back_leaves_nothing_behind() {
    for turn in 1..6 {
        rehearse(Copying {
            first_fails: true,
            deleted_after: Some(turn + 3),
            elsewhere: Some(Granted {
                after: 0,
                until: Some(turn),
            }),
            ..Copying::default()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_source_that_goes_after_it_was_looked_at_is_not_copied() {
    // A controller that saw it go may have deleted its volume before this process wrote its record.
    let mut begun = vec![];
    for nth in 1..8 {
        let copying = Copying {
            source_deleted_after: Some(0),
            ..Copying::default()
        };
        let mut stage = Stage::open(copying, By::Pods).await;
        stage.copying.source_deleted_after = None;
        stage.theatre.api.lock().meanwhile = Some((nth, "claims", "default/old"));
        stage.play().await;
        stage.copying = copying;
        stage.check(&format!("gone before call {nth}"));
        begun.push(stage.runs);
    }
    assert_eq!(
        begun[0], 0,
        "{begun:?}: its claim was gone before the record was written"
    );
    assert!(begun.is_sorted() && begun.last() == Some(&1), "{begun:?}");
}

/// Proves: P7
#[tokio::test]
async fn a_copy_costs_the_writes_of_any_other_volume() {
    for (by, writes) in [(By::Pods, &MADE_BY_POD[..]), (By::Worker, &MADE_BY_WORKER)] {
        let mut stage = Stage::open(Copying::default(), by).await;
        stage.play().await;
        stage.check("its budget");
        assert_eq!(stage.theatre.api.lock().writes(), writes);
    }
}
