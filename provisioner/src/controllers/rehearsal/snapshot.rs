//! The life of a snapshot or a backup, and of a claim that is made of it, rehearsed like that of a claim, with
//! everything deleted at every moment. It ends with one snapshot on the storage for a content that exists and none for
//! one that is gone; and neither a volume is deleted while its snapshot is taken, nor a snapshot while a volume is made
//! of it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::fake_api::key_of;
use super::{By, Going, Offers, PV, Script, Theatre, look_at, with_every_fault};
use crate::cache::limiter::Limiter;
use crate::config::ConfigRef;
use crate::process::events::{EventRecorder, Writer, reasons};
use crate::run::properties::tests::silver;
use crate::volume::snapshot::Form;
use crate::volume::snapshot::tests::content;

const SOURCE_PV: &str = "pvc-u0";
const CONTENT: &str = "/snapcontent-s1";

/// How many turns it takes to copy.
const TURNS: usize = 3;

/// What the image, the user and snapshot-controller do.
#[derive(Debug, Clone, Copy, Default)]
struct Taking {
    /// The first attempt takes the snapshot and then fails.
    first_fails: bool,
    form: Form,
    /// The snapshot is to stay when its objects go.
    retain: bool,
    /// A claim is to be made of the snapshot.
    restore: bool,
    /// The snapshot is deleted after so many turns, whatever holds it.
    deleted_after: Option<usize>,
    /// The claim of which it is taken is deleted after so many turns, whatever holds it.
    source_deleted_after: Option<usize>,
    /// There is no ConfigMap from one of these turns to the other.
    config_away: Option<(usize, usize)>,
}

impl Taking {
    /// Its name on the storage.
    fn name(self) -> String {
        format!("{}-v1", self.form.noun())
    }

    fn handle(self) -> String {
        let prefix = if self.form == Form::Backup { "backup:" } else { "" };
        format!("{prefix}admin/custom-isci-provisioner/{}", self.name())
    }
}

struct Stage {
    theatre: Theatre,
    taking: Taking,
    by: By,
    runs: usize,
    /// For how many turns the present run has gone on.
    going: usize,
    /// The snapshot was ready when it was deleted.
    was_ready: bool,
}

impl Stage {
    async fn open(taking: Taking, by: By) -> Self {
        let mut theatre = Theatre::open(Script::plain(Offers::Changes));
        theatre.carried_out(by).await;
        let mut made_by = silver();
        (made_by.pv_name, made_by.pvc_uid) = (SOURCE_PV.into(), "u0".into());
        (made_by.pvc_namespace, made_by.pvc_name) = ("default".into(), "old".into());
        let mut volume = crate::volume::acceptance::tests::volume();
        volume["metadata"] = json!({"name": SOURCE_PV, "finalizers": ["mooring.dev/volume"], "annotations": {
            "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
            "mooring.dev/config": "admin/custom-isci-provisioner",
            "mooring.dev/request": json!(made_by).to_string(),
        }});
        volume["spec"].as_object_mut().unwrap().remove("flexVolume");
        volume["spec"]["csi"] = json!({"driver": "vcs.mooring.dev", "volumeHandle": SOURCE_PV,
                                       "volumeAttributes": {"client": "nfs", "source": "h:/x"}});
        volume["spec"]["claimRef"]["name"] = json!("old");
        volume["spec"]["claimRef"]["uid"] = json!("u0");
        volume["status"] = json!({"phase": "Bound"});
        let policy = if taking.retain { "Retain" } else { "Delete" };
        {
            let mut api = theatre.api.lock();
            api.put("volumes", volume);
            api.put(
                "claims",
                json!({
                    "metadata": {"name": "old", "namespace": "default", "uid": "u0"},
                    "spec": {"storageClassName": "silver", "accessModes": ["ReadWriteOnce"], "volumeName": SOURCE_PV,
                             "resources": {"requests": {"storage": "1Gi"}}},
                }),
            );
            api.put(
                "snapshotclasses",
                json!({"metadata": {"name": "silver"}, "driver": "vcs.mooring.dev",
                       "parameters": {"mooring.dev/backup": (taking.form == Form::Backup).to_string()}}),
            );
            api.put(
                "snapshots",
                json!({"metadata": {"namespace": "default", "name": "monday", "uid": "v1"}}),
            );
            // snapshot-controller holds it a moment after it was made.
            let change = json!({"metadata": {"finalizers": []},
                                "spec": {"deletionPolicy": policy, "source": {"volumeHandle": SOURCE_PV}}});
            api.put("contents", content(&change));
            if taking.restore {
                let mut claim = api.get("claims", "default/data").unwrap();
                let snapshot =
                    json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "monday"});
                claim["spec"]["dataSource"] = snapshot.clone();
                claim["spec"]["dataSourceRef"] = snapshot;
                api.put("claims", claim);
            } else {
                api.delete("claims", "default/data");
            }
        }
        let mut stage = Self {
            theatre,
            taking,
            by,
            runs: 0,
            going: 0,
            was_ready: false,
        };
        stage.theatre.storage.insert(SOURCE_PV.to_owned());
        stage
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
        let (take, delete) = (self.taking.form.take().as_str(), self.taking.form.delete().as_str());
        let kept = self.taking.name();
        let (takes, restores) = (is_going(take), is_going("restore"));
        for going in all {
            let operation = going.operation().to_owned();
            let copies = operation == take || operation == "restore";
            let from = if operation == take { SOURCE_PV } else { &kept };
            if going.is_new {
                self.going = if copies { 0 } else { self.going };
                assert!(
                    !(operation == "delete" && going.uid() == "u0" && takes),
                    "the volume is deleted while its snapshot is taken"
                );
                assert!(
                    !(operation == delete && restores),
                    "the snapshot is deleted while it is restored"
                );
                assert!(!(operation == delete && takes), "two runs on one snapshot");
                assert!(
                    !copies || self.theatre.storage.contains(from),
                    "a copy of nothing is begun: {operation}"
                );
                self.theatre.goes_on(going);
            } else if copies && self.going < TURNS {
                self.going += 1;
                self.theatre.goes_on(going);
            } else {
                let (code, message) = self.end(&going, from, copies);
                self.theatre.ends(going, code, &message);
            }
        }
    }

    /// What copies on the worker has its effect all the same.
    fn kill_worker(&mut self) {
        let take = self.taking.form.take().as_str();
        for going in self.theatre.runs().iter().filter(|going| going.is_on_worker()) {
            match going.operation() {
                "restore" => self.theatre.storage.insert(PV.to_owned()),
                operation if operation == take => self.theatre.storage.insert(self.taking.name()),
                _ => false,
            };
        }
        self.theatre.kill_worker();
    }

    /// What a run leaves on the storage.
    fn end(&mut self, going: &Going, from: &str, copies: bool) -> (i32, String) {
        let storage = &mut self.theatre.storage;
        let operation = going.operation();
        if copies {
            self.going = 0;
            self.runs += 1;
            assert!(storage.contains(from), "what {operation} copies went meanwhile");
        }
        let taken = self.taking.name();
        match operation {
            "snapshot" | "backup" => {
                assert_eq!(operation, self.taking.form.take().as_str());
                storage.insert(taken);
                if self.taking.first_fails && self.runs == 1 {
                    return (75, "busy".to_owned());
                }
            }
            "restore" => {
                storage.insert(PV.to_owned());
                return (0, json!({"client": "nfs", "source": "h:/x"}).to_string());
            }
            "delete-snapshot" | "delete-backup" => {
                assert_eq!(operation, self.taking.form.delete().as_str());
                let request = json!(going.request()).to_string();
                assert!(request.contains(&taken) && request.contains("h:/x"), "{request}");
                storage.remove(&taken);
            }
            "delete" => {
                storage.remove(if going.uid() == "u0" { SOURCE_PV } else { PV });
            }
            other => panic!("{other}"),
        }
        (0, String::new())
    }

    /// What snapshot-controller does: holds the content, and says on the snapshot what the content says.
    fn snapshot_controller(&self) {
        let mut state = self.theatre.api.lock();
        let Some(mut content) = state.get("contents", CONTENT) else {
            return;
        };
        let held = content["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|held| !held.is_empty());
        if !held && content["metadata"]["deletionTimestamp"].is_null() {
            content["metadata"]["finalizers"] =
                json!(["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"]);
            state.put("contents", content.clone());
        }
        let Some(mut snapshot) = state.get("snapshots", "default/monday") else {
            return;
        };
        let status = json!({"boundVolumeSnapshotContentName": "snapcontent-s1",
                            "readyToUse": content["status"]["readyToUse"] == true});
        if snapshot["status"] != status {
            snapshot["status"] = status;
            state.put("snapshots", snapshot);
        }
    }

    fn delete_snapshot(&mut self) {
        let mut state = self.theatre.api.lock();
        state.delete("snapshots", "default/monday");
        let mut content = state.get("contents", CONTENT).unwrap();
        self.was_ready = content["status"]["readyToUse"] == true;
        content["metadata"]["annotations"]["snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"] =
            json!("yes");
        state.put("contents", content);
        // With Retain the administrator does that.
        state.delete("contents", CONTENT);
    }

    fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut api = self.theatre.api.lock();
        let mut content = api.get("contents", CONTENT).unwrap();
        change(&mut content);
        api.put("contents", content);
    }

    /// A snapshot that is ready. The controller died before it removed the run that took it, and another one starts.
    async fn with_run_left(taking: Taking) -> Self {
        let mut stage = Self::open(taking, By::Pods).await;
        let place = format!("admin/{}-s1", taking.form.take().as_str());
        let mut run = None;
        while stage.state_of_content() != json!(true) {
            stage.turn().await;
            run = stage.theatre.api.lock().get("pods", &place).or(run);
        }
        stage.theatre.api.lock().put("pods", run.unwrap());
        stage.restart();
        stage
    }

    /// A snapshot that is being taken.
    async fn being_taken(taking: Taking) -> Self {
        let mut stage = Self::open(taking, By::Pods).await;
        while stage.going == 0 {
            stage.turn().await;
        }
        stage
    }

    fn state_of_content(&self) -> Value {
        let content = self.theatre.api.lock().get("contents", CONTENT);
        content.map_or(Value::Null, |content| content["status"]["readyToUse"].clone())
    }

    fn restart(&mut self) {
        self.theatre.shared = super::shared(&self.theatre.api, self.theatre.script);
        self.theatre.watched = 0;
    }

    /// Takes the content away, whatever holds it, and gives back what users are told about the run that is left.
    async fn content_vanishes(&mut self) -> Vec<String> {
        let told = self.watch_events();
        self.theatre.api.lock().take_away("contents", CONTENT);
        self.play().await;
        assert_eq!(self.theatre.api.lock().all("pods"), [Value::Null; 0], "Pods left");
        kept_by(told)
    }

    /// The Events from now on.
    fn watch_events(&mut self) -> Writer {
        let (events, told) = EventRecorder::new(self.theatre.shared.context.metrics.clone());
        self.theatre.shared.context.events = events;
        told
    }

    /// The snapshot is still there, and one Event says why.
    fn check_kept(&self, told: &[String]) {
        let name = self.taking.name();
        assert!(self.theatre.storage.contains(&name), "the storage lost a snapshot");
        assert_eq!(told.len(), 1, "{told:#?}");
        for part in [
            &name,
            "snapcontent-s1",
            "deletion policy is Retain",
            "admin/custom-isci-provisioner",
        ] {
            assert!(told[0].contains(part), "{part}: {told:#?}");
        }
    }

    /// Takes the ConfigMap away, and makes it again.
    fn config_map(&self, turn: usize) {
        let Some((gone, back)) = self.taking.config_away else {
            return;
        };
        let configs = &self.theatre.shared.context.configs;
        if (gone..back).contains(&turn) {
            configs.replace([].into());
        } else if configs
            .get(&ConfigRef::new("admin", "custom-isci-provisioner"))
            .is_none()
        {
            configs.replace(super::configs(self.theatre.script));
        }
    }

    /// Plays until nothing changes any more.
    async fn play(&mut self) {
        let mut quiet = 0;
        for turn in 0..160 {
            if self.by == By::Killed(turn) {
                self.kill_worker();
            }
            if self.taking.deleted_after == Some(turn) {
                self.delete_snapshot();
            }
            if self.taking.source_deleted_after == Some(turn) {
                self.theatre.api.lock().delete("claims", "default/old");
            }
            self.config_map(turn);
            let before = self.theatre.api.lock().version;
            let faults = self.theatre.api.lock().faults;
            self.turn().await;
            let after = self.theatre.api.lock().version;
            let rests = before == after && faults == self.theatre.api.lock().faults;
            quiet = if rests { quiet + 1 } else { 0 };
            let over = |at: Option<usize>| at.is_none_or(|at| turn > at);
            let back = self.taking.config_away.map(|(_, back)| back);
            if quiet > 1 && over(self.taking.deleted_after) && over(self.taking.source_deleted_after) && over(back) {
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
        assert_eq!(storage.contains(SOURCE_PV), source_stands, "{what}: the source");
        let content = state.get("contents", CONTENT);
        if self.taking.deleted_after.is_some() {
            assert_eq!(content, None, "{what}: the content hangs");
            let stays = self.taking.retain && self.was_ready;
            assert_eq!(storage.contains(&self.taking.name()), stays, "{what}: the snapshot");
        } else {
            let content = content.unwrap();
            let annotations = &content["metadata"]["annotations"];
            let ready = content["status"]["readyToUse"] == true;
            // Without a source an attempt that failed can't be repeated: its record stays, so that what it may have
            // made goes with the snapshot.
            assert!(ready || !source_stands, "{what}: no snapshot: {content:#}");
            if ready {
                assert_eq!(annotations["mooring.dev/operation"], Value::Null, "{what}: still held");
                let mark = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
                assert_eq!(annotations[mark], Value::Null, "{what}: still marked");
                assert!(storage.contains(&self.taking.name()), "{what}: no snapshot");
                assert_eq!(content["status"]["snapshotHandle"], self.taking.handle(), "{what}");
                assert_eq!(content["status"]["restoreSize"], 1_u64 << 30, "{what}");
                assert_eq!(content["status"]["error"], Value::Null, "{what}");
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

/// The content of a snapshot that is being taken was deleted, and somebody took its finalizers off; a controller that
/// starts then is shown the content for a while.
///
/// Proves: P1, P3
#[tokio::test]
async fn what_is_taken_for_a_content_that_is_gone_is_removed_although_the_watch_shows_the_content() {
    for form in [Form::Snapshot, Form::Backup] {
        let mut stage = Stage::being_taken(Taking {
            form,
            ..Taking::default()
        })
        .await;
        stage.delete_snapshot();
        let shown = stage.theatre.api.lock().all("contents");
        stage.theatre.lagging.insert("contents", shown);
        stage.theatre.api.lock().take_away("contents", CONTENT);
        // The run has its effect before it is stopped, if it is.
        stage.theatre.storage.insert(stage.taking.name());
        stage.restart();
        stage.theatre.watch();
        let shown = stage.theatre.shown_object("contents", CONTENT).unwrap();
        let _ = look_at("contents", shown, &stage.theatre.shared).await;
        stage.theatre.lagging.clear();
        stage.restart();
        stage.play().await;
        let left = stage.theatre.storage.contains(&stage.taking.name());
        assert!(!left, "{form:?}: a snapshot without a content");
    }
}

/// An attempt to delete it has failed, and an administrator decides to keep it. The watch does not show that yet.
///
/// Proves: P2
#[tokio::test]
async fn a_snapshot_that_was_to_go_when_the_watch_last_showed_it_is_not_deleted() {
    for form in [Form::Snapshot, Form::Backup] {
        for is_begun in [false, true] {
            let taking = Taking {
                form,
                ..Taking::default()
            };
            let mut stage = Stage::open(taking, By::Pods).await;
            stage.play().await;
            stage.delete_snapshot();
            let second = json!({
                "operation": form.delete().as_str(), "attempt": 2, "since": "2026-11-21T00:00:00Z",
                "pod": format!("admin/{}-s1", form.delete().as_str()), "config": "admin/custom-isci-provisioner",
                "config-uid": "c1", "may-exist": true, "source": taking.handle(),
            });
            stage.change(|content| {
                content["metadata"]["annotations"]["mooring.dev/operation"] = json!(second.to_string());
            });
            if is_begun {
                // The controller was killed when it had made the Pod, and before it made the Pod's Secret.
                stage.theatre.turn_of_controllers().await;
                let mut api = stage.theatre.api.lock();
                let secret = key_of(api.each("secrets").next().unwrap());
                api.delete("secrets", &secret);
            }
            let shown = stage.theatre.api.lock().all("contents");
            stage.change(|content| content["spec"]["deletionPolicy"] = json!("Retain"));
            stage.theatre.lagging.insert("contents", shown);
            stage.restart();
            for _ in 0..8 {
                stage.turn().await;
            }
            let is_there = |stage: &Stage| stage.theatre.storage.contains(&taking.name());
            assert!(is_there(&stage), "{form:?}, begun: {is_begun}: the storage lost it");
            stage.theatre.lagging.clear();
            stage.restart();
            stage.play().await;
            assert!(
                is_there(&stage),
                "{form:?}, begun: {is_begun}: the storage lost it at last"
            );
            let api = stage.theatre.api.lock();
            assert_eq!(api.all("pods"), [Value::Null; 0], "Pods left");
            assert_eq!(api.get("contents", CONTENT), None, "the content hangs");
        }
    }
}

/// What users were told about snapshots that stay.
fn kept_by(mut told: Writer) -> Vec<String> {
    let told = std::iter::from_fn(|| told.try_next()).map(|(_, note)| note);
    let kept = told.filter(|note| note.reason == reasons::KEPT);
    kept.map(|note| note.text).collect()
}

/// Both, in turn.
fn form_at(turn: usize) -> Form {
    if turn.is_multiple_of(2) {
        Form::Backup
    } else {
        Form::Snapshot
    }
}

/// Plays without a fault, then with each call going wrong in every way, until there are no more calls to fail.
async fn rehearse(taking: Taking) {
    for by in By::each(&taking) {
        with_every_fault(&(taking, by), async |fault, what| {
            let mut stage = Stage::open(taking, by).await;
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
async fn a_snapshot_that_stands_is_there_once_whatever_fails() {
    for first_fails in [false, true] {
        for restore in [false, true] {
            for form in [Form::Snapshot, Form::Backup] {
                rehearse(Taking {
                    first_fails,
                    form,
                    restore,
                    ..Taking::default()
                })
                .await;
            }
        }
    }
}

/// Proves: P1
#[tokio::test]
async fn a_backup_outlives_volume_and_configmap_and_goes_once_there_is_one_again() {
    for retain in [false, true] {
        rehearse(Taking {
            form: Form::Backup,
            retain,
            source_deleted_after: Some(12),
            config_away: Some((18, 24)),
            deleted_after: Some(20),
            ..Taking::default()
        })
        .await;
    }
}

/// Proves: P1, P3
#[tokio::test]
async fn a_snapshot_that_is_deleted_goes_from_the_storage_unless_it_is_to_stay() {
    for turn in 1..12 {
        rehearse(Taking {
            first_fails: turn % 2 == 1,
            retain: turn % 3 == 1,
            form: form_at(turn),
            deleted_after: Some(turn),
            ..Taking::default()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_snapshot_is_never_deleted_while_a_volume_is_made_of_it() {
    for turn in 6..14 {
        rehearse(Taking {
            restore: true,
            form: form_at(turn),
            deleted_after: Some(turn),
            ..Taking::default()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_volume_is_never_deleted_while_its_snapshot_is_taken() {
    for turn in 0..8 {
        rehearse(Taking {
            first_fails: turn % 2 == 1,
            form: form_at(turn / 2),
            source_deleted_after: Some(turn),
            ..Taking::default()
        })
        .await;
    }
}

/// Proves: P2
#[tokio::test]
async fn a_retained_snapshot_whose_run_outlives_its_content_stays() {
    for form in [Form::Snapshot, Form::Backup] {
        let mut stage = Stage::with_run_left(Taking {
            form,
            retain: true,
            ..Taking::default()
        })
        .await;
        let told = stage.content_vanishes().await;
        stage.check_kept(&told);
    }
}

/// Proves: P2
#[tokio::test]
async fn a_snapshot_whose_content_vanishes_before_it_is_ready_stays_with_retain() {
    let mut stage = Stage::being_taken(Taking {
        retain: true,
        ..Taking::default()
    })
    .await;
    let told = stage.content_vanishes().await;
    stage.check_kept(&told);
}

/// Proves: P1
#[tokio::test]
async fn a_snapshot_whose_content_vanishes_before_it_is_ready_goes_with_delete() {
    let mut stage = Stage::being_taken(Taking::default()).await;
    assert_eq!(stage.content_vanishes().await, [""; 0]);
    assert_eq!(stage.theatre.storage, [SOURCE_PV.to_owned()].into());
}

/// Proves: P2
#[tokio::test]
async fn a_run_that_was_left_beside_a_retained_content_goes_before_the_content() {
    let taking = Taking::default();
    with_every_fault(&taking, async |fault, what| {
        let mut stage = Stage::with_run_left(taking).await;
        stage.change(|content| content["spec"]["deletionPolicy"] = json!("Retain"));
        stage.delete_snapshot();
        stage.theatre.fail(fault);
        stage.play().await;
        let kept = stage.theatre.storage.contains(&taking.name());
        assert!(kept, "the storage lost a snapshot: {what}");
        let api = stage.theatre.api.lock();
        assert_eq!(api.all("pods"), [Value::Null; 0], "{what}: Pods left");
        assert_eq!(api.get("contents", CONTENT), None, "{what}: the content hangs");
        api.calls()
    })
    .await;
}

/// Proves: P2
#[tokio::test]
async fn of_a_snapshot_that_was_deleted_nobody_is_told_that_it_stays() {
    let mut stage = Stage::with_run_left(Taking::default()).await;
    {
        let mut api = stage.theatre.api.lock();
        let mut run = api.all("pods").pop().unwrap();
        run["metadata"]["finalizers"] = json!(["example.com/held"]);
        api.put("pods", run);
    }
    stage.play().await;
    stage.delete_snapshot();
    let told = stage.watch_events();
    stage.play().await;
    assert_eq!(stage.theatre.storage, [SOURCE_PV.to_owned()].into());
    assert_eq!(kept_by(told), [""; 0]);
}

/// Proves: P7
#[tokio::test]
async fn a_snapshot_or_backup_costs_six_writes_and_its_deletion_five_and_one_less_by_a_worker() {
    let taken = [
        "PATCH contents",
        "POST pods",
        "POST secrets",
        "PATCH contents status",
        "PATCH contents",
        "DELETE pods",
    ];
    let deleted = [
        "PATCH contents",
        "POST pods",
        "POST secrets",
        "PATCH contents",
        "DELETE pods",
    ];
    let by_worker = |writes: &[&'static str]| -> Vec<&'static str> {
        let mut writes = writes.to_vec();
        writes.splice(1..3, ["PATCH pods"]);
        *writes.last_mut().unwrap() = "PATCH pods";
        writes
    };
    for form in [Form::Snapshot, Form::Backup] {
        let taking = Taking {
            form,
            ..Taking::default()
        };
        for (by, taken, deleted) in [
            (By::Pods, taken.to_vec(), deleted.to_vec()),
            (By::Worker, by_worker(&taken), by_worker(&deleted)),
        ] {
            let mut stage = Stage::open(taking, by).await;
            stage.play().await;
            stage.check("its budget");
            assert_eq!(stage.theatre.api.lock().writes(), taken, "{form:?}");
            let taking = Taking {
                deleted_after: Some(20),
                ..taking
            };
            let mut stage = Stage::open(taking, by).await;
            stage.play().await;
            stage.check("a whole life");
            let whole = [taken, deleted].concat();
            assert_eq!(stage.theatre.api.lock().writes(), whole, "{form:?}");
        }
    }
}
