//! The life of a group of snapshots, and of a claim that is made of one of them, rehearsed like that of a snapshot. It
//! ends with all of its snapshots on the storage for a content that exists, and none for one that is gone; and neither
//! a volume is deleted while its snapshot is taken, nor a group while a volume is made of one of its snapshots.

use std::sync::Arc;

use serde_json::{Value, json};

use super::fake_api::{Fault, key_of};
use super::{By, Going, Offers, PV, Script, Theatre, with_faults};
use crate::cache::limiter::Limiter;
use crate::run::properties::tests::silver;
use crate::volume::group_snapshot::tests::group_content;

/// The volumes of the group, by the ends of their names.
const SOURCES: [&str; 2] = ["u8", "u9"];
const GROUP: &str = "/groupsnapcontent-g1";
const NAME: &str = "groupsnapshot-v1";
const HANDLE: &str = "group:admin/custom-isci-provisioner/groupsnapshot-v1";

/// How many turns it takes to copy.
const TURNS: usize = 2;

/// What the image, the user and snapshot-controller do.
#[derive(Debug, Clone, Copy, Default)]
struct Taking {
    /// The first attempt takes one snapshot and then fails.
    first_fails: bool,
    /// The snapshots are to stay when their objects go.
    retain: bool,
    /// A claim is to be made of the second snapshot.
    restore: bool,
    /// The group is deleted after so many turns, whatever holds it.
    deleted_after: Option<usize>,
    /// The claim of the second volume is deleted after so many turns, whatever holds it.
    source_deleted_after: Option<usize>,
}

struct Stage {
    theatre: Theatre,
    taking: Taking,
    by: By,
    runs: usize,
    going: usize,
    was_ready: bool,
}

fn pv(end: &str) -> String {
    format!("pvc-{end}")
}

fn taken_of(end: &str) -> String {
    format!("{NAME}.{}", pv(end))
}

impl Stage {
    async fn open(taking: Taking, by: By) -> Self {
        let mut theatre = Theatre::open(Script::plain(Offers::Changes));
        theatre.carried_out(by).await;
        let mut stage = Self {
            theatre,
            taking,
            by,
            runs: 0,
            going: 0,
            was_ready: false,
        };
        for end in SOURCES {
            stage.source(end);
        }
        let policy = if taking.retain { "Retain" } else { "Delete" };
        let mut api = stage.theatre.api.lock();
        api.put(
            "groupclasses",
            json!({"metadata": {"name": "silver"}, "driver": "vcs.mooring.dev"}),
        );
        let handles = SOURCES.map(pv);
        // snapshot-controller holds it a moment after it was made.
        let change = json!({"metadata": {"finalizers": []},
                            "spec": {"deletionPolicy": policy, "source": {"volumeHandles": handles}}});
        api.put("groups", group_content(&change));
        if taking.restore {
            let mut claim = api.get("claims", "default/data").unwrap();
            let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "of-u9"});
            claim["spec"]["dataSource"] = snapshot.clone();
            claim["spec"]["dataSourceRef"] = snapshot;
            api.put("claims", claim);
        } else {
            api.delete("claims", "default/data");
        }
        drop(api);
        stage
    }

    /// A volume of the group, with its claim.
    fn source(&mut self, end: &str) {
        let (pv_name, claim) = (pv(end), format!("of-{end}"));
        let mut made_by = silver();
        (made_by.pv_name, made_by.pvc_uid) = (pv_name.clone(), end.into());
        (made_by.pvc_namespace, made_by.pvc_name) = ("default".into(), claim.clone());
        let mut volume = crate::volume::acceptance::tests::volume();
        volume["metadata"] = json!({"name": pv_name, "finalizers": ["mooring.dev/volume"], "annotations": {
            "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
            "mooring.dev/config": "admin/custom-isci-provisioner",
            "mooring.dev/request": json!(made_by).to_string(),
        }});
        volume["spec"].as_object_mut().unwrap().remove("flexVolume");
        volume["spec"]["csi"] = json!({"driver": "vcs.mooring.dev", "volumeHandle": pv_name,
                                       "volumeAttributes": {"client": "nfs", "source": format!("h:/{end}")}});
        volume["spec"]["claimRef"]["name"] = json!(claim);
        volume["spec"]["claimRef"]["uid"] = json!(end);
        volume["status"] = json!({"phase": "Bound"});
        let mut api = self.theatre.api.lock();
        api.put("volumes", volume);
        api.put(
            "claims",
            json!({
                "metadata": {"name": claim, "namespace": "default", "uid": end},
                "spec": {"storageClassName": "silver", "accessModes": ["ReadWriteOnce"], "volumeName": pv_name,
                         "resources": {"requests": {"storage": "1Gi"}}},
            }),
        );
        drop(api);
        self.theatre.storage.insert(pv_name);
    }

    async fn turn(&mut self) {
        self.theatre.shared.limiter = Arc::new(Limiter::new(8));
        self.theatre.turn_of_controllers().await;
        self.kubelet();
        self.theatre.garbage_collector();
        self.theatre.binder();
        self.snapshot_controller();
    }

    /// Has all runs go on. What copies takes long enough for everybody else to go on meanwhile.
    fn kubelet(&mut self) {
        let all = self.theatre.runs();
        let is_going = |operation: &str| all.iter().any(|going| going.operation() == operation && !going.is_new);
        let (takes, restores) = (is_going("snapshot-group"), is_going("restore"));
        for going in all {
            let operation = going.operation();
            let copies = operation == "snapshot-group" || operation == "restore";
            if going.is_new {
                self.going = if copies { 0 } else { self.going };
                let of_source = operation == "delete" && SOURCES.contains(&going.uid());
                assert!(!(of_source && takes), "a volume is deleted while its snapshot is taken");
                assert!(
                    operation != "delete-group" || !restores,
                    "a group is deleted while one of its snapshots is restored"
                );
                assert!(operation != "delete-group" || !takes, "two runs on one group");
                self.theatre.goes_on(going);
            } else if copies && self.going < TURNS {
                self.going += 1;
                self.theatre.goes_on(going);
            } else {
                let (code, message) = self.end(&going);
                self.theatre.ends(going, code, &message);
            }
        }
    }

    /// A group that the worker takes is taken all the same.
    fn kill_worker(&mut self) {
        for going in self.theatre.runs().iter().filter(|going| going.is_on_worker()) {
            match going.operation() {
                "restore" => self.theatre.storage.extend([PV.to_owned()]),
                "snapshot-group" => self.theatre.storage.extend(SOURCES.map(taken_of)),
                _ => {}
            }
        }
        self.theatre.kill_worker();
    }

    /// What a run leaves on the storage.
    fn end(&mut self, going: &Going) -> (i32, String) {
        self.going = 0;
        let request = going.request();
        let storage = &mut self.theatre.storage;
        match going.operation() {
            "snapshot-group" => {
                self.runs += 1;
                assert_eq!(request.members().len(), 2, "one run for all of them");
                for member in request.members() {
                    assert!(storage.contains(&member.pv_name), "a copy of nothing");
                    assert!(member.volume["source"].starts_with("h:/u"), "{member:?}");
                    storage.insert(member.snapshot_name.clone());
                    if self.taking.first_fails && self.runs == 1 {
                        return (75, "busy".to_owned());
                    }
                }
            }
            "restore" => {
                assert!(storage.contains(&taken_of("u9")), "what is restored went meanwhile");
                // As if it had been taken alone.
                let source = request.source.unwrap();
                assert_eq!((source.pv_name.as_str(), source.size), ("pvc-u9", 1 << 30));
                assert_eq!(source.volume["source"], "h:/u9");
                storage.insert(PV.to_owned());
                return (0, json!({"client": "nfs", "source": "h:/x"}).to_string());
            }
            "delete-group" => {
                assert_eq!(request.members().len(), 2, "all of them at once");
                for member in request.members() {
                    storage.remove(&member.snapshot_name);
                }
            }
            "delete" => {
                storage.remove(&request.pv_name);
            }
            other => panic!("{other}"),
        }
        (0, String::new())
    }

    /// What snapshot-controller does: holds the content, makes the objects of each snapshot when the group is there,
    /// and lets them go after their group has gone.
    fn snapshot_controller(&self) {
        let mut state = self.theatre.api.lock();
        let group = state.get("groups", GROUP);
        if let Some(mut group) = group.clone() {
            let held = group["metadata"]["finalizers"].as_array();
            if held.is_none_or(Vec::is_empty) && group["metadata"]["deletionTimestamp"].is_null() {
                group["metadata"]["finalizers"] =
                    json!(["groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection"]);
                state.put("groups", group.clone());
            }
            for info in group["status"]["volumeSnapshotInfoList"]
                .as_array()
                .into_iter()
                .flatten()
            {
                if group["metadata"]["deletionTimestamp"].is_null() {
                    Self::make_member(&mut state, &group, info);
                }
            }
            return;
        }
        for end in SOURCES {
            let key = format!("/snapcontent-{end}");
            let Some(mut content) = state.get("contents", &key) else {
                continue;
            };
            state.delete("snapshots", &format!("default/of-{end}"));
            let mark = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
            if content["metadata"]["annotations"][mark].is_null() {
                content["metadata"]["annotations"][mark] = json!("yes");
                state.put("contents", content);
                state.delete("contents", &key);
            }
        }
    }

    /// The two objects of one snapshot of the group.
    fn make_member(state: &mut super::fake_api::FakeState, group: &Value, info: &Value) {
        let end = info["volumeHandle"]
            .as_str()
            .unwrap()
            .trim_start_matches("pvc-")
            .to_owned();
        if state.get("contents", &format!("/snapcontent-{end}")).is_some() {
            return;
        }
        let (name, content) = (format!("of-{end}"), format!("snapcontent-{end}"));
        let handle = &group["status"]["volumeGroupSnapshotHandle"];
        state.put(
            "contents",
            json!({
                "metadata": {
                    "name": content, "uid": format!("s-{end}"),
                    "annotations": {"groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle": handle},
                    "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
                },
                "spec": {
                    "driver": "vcs.mooring.dev", "deletionPolicy": group["spec"]["deletionPolicy"],
                    "source": {"volumeHandle": info["volumeHandle"]}, "sourceVolumeMode": "Filesystem",
                    "volumeSnapshotRef": {"namespace": "default", "name": name, "uid": format!("v-{end}")},
                },
                "status": {
                    "snapshotHandle": info["snapshotHandle"], "volumeGroupSnapshotHandle": handle,
                    "readyToUse": info["readyToUse"], "restoreSize": info["restoreSize"],
                },
            }),
        );
        state.put(
            "snapshots",
            json!({
                "metadata": {"namespace": "default", "name": name, "uid": format!("v-{end}")},
                "status": {"boundVolumeSnapshotContentName": content, "readyToUse": true},
            }),
        );
    }

    fn delete_group(&mut self) {
        let mut state = self.theatre.api.lock();
        let mut group = state.get("groups", GROUP).unwrap();
        self.was_ready = group["status"]["readyToUse"] == true;
        let mark = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";
        group["metadata"]["annotations"][mark] = json!("yes");
        state.put("groups", group);
        // With Retain the administrator does that.
        state.delete("groups", GROUP);
    }

    /// Plays until nothing changes any more. Calls go wrong from the turn before something is deleted: until then it is
    /// a group that exists, which is rehearsed too.
    async fn play(&mut self, fault: Option<(usize, Fault)>) {
        let mut quiet = 0;
        let deleted_after = self.taking.deleted_after.or(self.taking.source_deleted_after);
        let faulty_after = deleted_after.unwrap_or(0).saturating_sub(1);
        for turn in 0..160 {
            if self.by == By::Killed(turn) {
                self.kill_worker();
            }
            if turn == faulty_after {
                self.theatre.fail(fault);
            }
            if self.taking.deleted_after == Some(turn) {
                self.delete_group();
            }
            if self.taking.source_deleted_after == Some(turn) {
                self.theatre.api.lock().delete("claims", "default/of-u9");
            }
            let before = self.theatre.api.lock().version;
            let faults = self.theatre.api.lock().faults;
            self.turn().await;
            let after = self.theatre.api.lock().version;
            let rests = before == after && faults == self.theatre.api.lock().faults;
            quiet = if rests { quiet + 1 } else { 0 };
            let over = |at: Option<usize>| at.is_none_or(|at| turn > at);
            if quiet > 1 && over(self.taking.deleted_after) && over(self.taking.source_deleted_after) {
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
        let source_stands = self.taking.source_deleted_after.is_none();
        assert_eq!(storage.contains(&pv("u9")), source_stands, "{what}: the source");
        let kept = SOURCES.map(|end| storage.contains(&taken_of(end)));
        let group = state.get("groups", GROUP);
        if self.taking.deleted_after.is_some() {
            assert_eq!(group, None, "{what}: the content hangs");
            assert_eq!(names("contents"), [""; 0], "{what}: a snapshot's content hangs");
            let stay = self.taking.retain && self.was_ready;
            assert_eq!(kept, [stay; 2], "{what}: the snapshots");
        } else {
            let group = group.unwrap();
            let annotations = &group["metadata"]["annotations"];
            let ready = group["status"]["readyToUse"] == true;
            assert!(ready || !source_stands, "{what}: no snapshots: {group:#}");
            if ready {
                assert_eq!(annotations["mooring.dev/operation"], Value::Null, "{what}: still held");
                let mark = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created";
                assert_eq!(annotations[mark], Value::Null, "{what}: still marked");
                assert_eq!(kept, [true; 2], "{what}: a snapshot is missing");
                assert_eq!(group["status"]["volumeGroupSnapshotHandle"], HANDLE, "{what}");
                assert_eq!(group["status"]["error"], Value::Null, "{what}");
                for content in state.each("contents") {
                    let noted = content["metadata"]["annotations"]["mooring.dev/request"].as_str();
                    assert!(noted.is_some_and(|noted| noted.contains("h:/u")), "{what}: {content:#}");
                }
            }
        }
        if self.taking.restore {
            let claim = state.get("claims", "default/data").unwrap();
            let bound = claim["spec"]["volumeName"] == PV;
            assert!(bound || self.taking.deleted_after.is_some(), "{what}: not restored");
            assert_eq!(storage.contains(PV), bound, "{what}: the restored volume");
        }
    }
}

async fn rehearse(taking: Taking, faults: &[Fault]) {
    for by in By::each(&taking) {
        with_faults(&(taking, by), faults, async |fault, what| {
            let mut stage = Stage::open(taking, by).await;
            stage.play(fault).await;
            stage.check(what);
            stage.theatre.calls()
        })
        .await;
    }
}

/// Calls go wrong in one way after one turn, and in another after the next. That every call may go wrong in every way
/// at every moment is rehearsed with single snapshots, whose plan is the same code.
fn faults_after(turn: usize) -> [Fault; 1] {
    [Fault::ALL[turn % Fault::ALL.len()]]
}

/// Proves: P1
#[tokio::test]
async fn a_group_that_stands_has_all_its_snapshots_once_whatever_fails() {
    for (first_fails, restore) in [(false, false), (true, true)] {
        let taking = Taking {
            first_fails,
            restore,
            ..Taking::default()
        };
        rehearse(taking, &Fault::ALL).await;
    }
}

/// Proves: P1, P3
#[tokio::test]
async fn a_group_that_is_deleted_goes_from_the_storage_unless_it_is_to_stay() {
    for turn in 1..12 {
        let taking = Taking {
            first_fails: turn % 2 == 1,
            // Not with the same faults each time.
            retain: turn / 2 % 2 == 1,
            deleted_after: Some(turn),
            ..Taking::default()
        };
        rehearse(taking, &faults_after(turn)).await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_group_is_never_deleted_while_a_volume_is_made_of_one_of_its_snapshots() {
    for turn in 6..14 {
        let taking = Taking {
            restore: true,
            deleted_after: Some(turn),
            ..Taking::default()
        };
        rehearse(taking, &faults_after(turn)).await;
    }
}

/// Proves: P1
#[tokio::test]
async fn no_volume_of_a_group_is_deleted_while_its_snapshot_is_taken() {
    for turn in 0..8 {
        let taking = Taking {
            first_fails: turn % 2 == 1,
            source_deleted_after: Some(turn),
            ..Taking::default()
        };
        rehearse(taking, &faults_after(turn)).await;
    }
}

/// An attempt to delete it has failed, and an administrator decides to keep it. The watch shows that later, or at once.
///
/// Proves: P2
#[tokio::test]
async fn a_group_that_is_to_stay_after_its_deletion_has_failed_is_not_deleted() {
    for lags in [false, true] {
        let mut stage = Stage::open(Taking::default(), By::Pods).await;
        stage.play(None).await;
        stage.delete_group();
        {
            let mut api = stage.theatre.api.lock();
            let mut group = api.get("groups", GROUP).unwrap();
            let second = json!({
                "operation": "delete-group", "attempt": 2, "since": "2026-11-21T00:00:00Z",
                "pod": "admin/delete-group-g1", "config": "admin/custom-isci-provisioner", "config-uid": "c1",
                "may-exist": true, "source": HANDLE,
            });
            group["metadata"]["annotations"]["mooring.dev/operation"] = json!(second.to_string());
            api.put("groups", group.clone());
            let shown = api.all("groups");
            group["spec"]["deletionPolicy"] = json!("Retain");
            api.put("groups", group);
            if lags {
                stage.theatre.lagging.insert("groups", shown);
            }
        }
        for _ in 0..8 {
            stage.turn().await;
        }
        stage.theatre.lagging.clear();
        stage.play(None).await;
        let kept = SOURCES.map(|end| stage.theatre.storage.contains(&taken_of(end)));
        assert_eq!(kept, [true; 2], "the storage lost the snapshots, lags: {lags}");
        let api = stage.theatre.api.lock();
        assert_eq!(api.all("pods"), [Value::Null; 0], "Pods left");
        assert_eq!(api.get("groups", GROUP), None, "the content hangs");
    }
}

/// Proves: P2
#[tokio::test]
async fn a_retained_group_whose_run_outlives_its_content_stays() {
    let taking = Taking {
        retain: true,
        ..Taking::default()
    };
    let mut stage = Stage::open(taking, By::Pods).await;
    let mut run = None;
    let is_ready =
        |stage: &Stage| stage.theatre.api.lock().get("groups", GROUP).unwrap()["status"]["readyToUse"] == true;
    while !is_ready(&stage) {
        stage.turn().await;
        run = stage.theatre.api.lock().all("pods").pop().or(run);
    }
    // The controller died before it removed the run.
    stage.theatre.api.lock().put("pods", run.unwrap());
    stage.theatre.shared = super::shared(&stage.theatre.api, stage.theatre.script);
    stage.theatre.watched = 0;
    stage.theatre.api.lock().take_away("groups", GROUP);
    stage.play(None).await;
    assert_eq!(stage.theatre.api.lock().all("pods"), [Value::Null; 0], "Pods left");
    let kept = SOURCES.map(|end| stage.theatre.storage.contains(&taken_of(end)));
    assert_eq!(kept, [true; 2], "the storage lost the snapshots");
}

/// Proves: P7
#[tokio::test]
async fn a_group_costs_the_writes_of_a_snapshot_and_one_more_for_each_volume() {
    let mut stage = Stage::open(Taking::default(), By::Pods).await;
    stage.play(None).await;
    stage.check("its budget");
    let taken = [
        "PATCH groups",
        "POST pods",
        "POST secrets",
        "PATCH groups status",
        "PATCH groups",
        "DELETE pods",
        "PATCH contents",
        "PATCH contents",
    ];
    assert_eq!(stage.theatre.api.lock().writes(), taken);
    let taking = Taking {
        deleted_after: Some(20),
        ..Taking::default()
    };
    let mut stage = Stage::open(taking, By::Pods).await;
    stage.play(None).await;
    stage.check("a whole life");
    let deleted = [
        "PATCH groups",
        "POST pods",
        "POST secrets",
        "PATCH groups",
        "DELETE pods",
        "PATCH contents",
        "PATCH contents",
    ];
    assert_eq!(stage.theatre.api.lock().writes(), [&taken[..], &deleted].concat());
}
