//! The modification of an existing claim, rehearsed like its growth: it ends with the attributes that were asked for on
//! the storage, in the PV and in the claim, and never are two things run on one volume at once.

use serde_json::{Value, json};

use super::fake_api::key_of;
use super::{By, Going, Offers, PV, Script, Theatre, UID, with_every_fault};
use crate::run::properties::tests::silver;

/// What the image and the user do.
#[derive(Debug, Clone, Copy, Default)]
struct Change {
    /// The first run ends with this code.
    first_exit: Option<i32>,
    /// The user asks for this class (empty: none) after so many turns.
    then_asks: Option<(usize, &'static str)>,
    /// The user also asks for more space.
    grows: bool,
    /// The class that is asked for is made only after so many turns.
    class_made_after: Option<usize>,
    /// The user deletes the claim after so many turns.
    deleted_after: Option<usize>,
}

/// The class that the user asks for.
const ASKED: &str = "gold";

/// A stage with a bound claim without attributes that asks for some.
struct Stage {
    theatre: Theatre,
    change: Change,
    by: By,
    /// The `tier` that the storage has; none if the volume is gone.
    storage: Option<String>,
    size: u64,
    runs: usize,
}

fn class(name: &str) -> Value {
    json!({"metadata": {"name": name}, "driverName": "vcs.mooring.dev", "parameters": {"tier": name}})
}

impl Stage {
    async fn open(change: Change, by: By) -> Self {
        let mut theatre = Theatre::open(Script::plain(Offers::Changes));
        theatre.carried_out(by).await;
        let mut made_by = silver();
        (made_by.pv_name, made_by.pvc_uid) = (PV.into(), UID.into());
        let mut volume = crate::volume::acceptance::tests::volume();
        volume["metadata"]["annotations"] = json!({
            "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
            "mooring.dev/config": "admin/custom-isci-provisioner",
            "mooring.dev/request": json!(made_by).to_string(),
        });
        volume["metadata"]["finalizers"] = json!(["mooring.dev/volume"]);
        volume["spec"].as_object_mut().unwrap().remove("flexVolume");
        volume["spec"]["csi"] = json!({
            "driver": "vcs.mooring.dev", "volumeHandle": PV,
            "volumeAttributes": {"client": "nfs", "source": "h:/x"},
        });
        volume["status"] = json!({"phase": "Bound"});
        {
            let mut api = theatre.api.lock();
            api.put("volumes", volume);
            if change.class_made_after.is_none() {
                api.put("attributes", class(ASKED));
            }
            api.put("attributes", class("iron"));
            let mut claim = api.get("claims", "default/data").unwrap();
            claim["spec"]["volumeName"] = json!(PV);
            claim["spec"]["volumeAttributesClassName"] = json!(ASKED);
            if change.grows {
                claim["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
            }
            claim["metadata"]["finalizers"] = json!([]);
            claim["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
            api.put("claims", claim);
        }
        Self {
            theatre,
            change,
            by,
            storage: Some(String::new()),
            size: 1,
            runs: 0,
        }
    }

    /// Ends every run that has its properties, as the image would.
    fn image(&mut self, what: &str) {
        for going in self.theatre.the_run(what) {
            let is_first = going.operation() == "modify" && self.runs == 0;
            self.runs += usize::from(going.operation() == "modify");
            let code = self.change.first_exit.filter(|_| is_first).unwrap_or(0);
            if code == 0 {
                self.effect(&going);
            }
            self.theatre.ends(going, code, "no");
        }
    }

    fn effect(&mut self, going: &Going) {
        let request = going.request();
        match going.operation() {
            "modify" => self.storage = Some(request.attributes.unwrap().parameters["tier"].clone()),
            "expand" => self.size = self.size.max(request.size >> 30),
            "delete" => self.storage = None,
            other => panic!("{other}"),
        }
    }

    /// What the worker does is done all the same.
    fn kill_worker(&mut self, what: &str) {
        for going in self.theatre.the_run(what).filter(Going::is_on_worker) {
            self.effect(&going);
        }
        self.theatre.kill_worker();
    }

    fn released(&self) {
        let mut api = self.theatre.api.lock();
        let gone = api.get("claims", "default/data").is_none();
        if let Some(mut volume) = api.get("volumes", &format!("/{PV}"))
            && gone
            && volume["status"]["phase"] != "Released"
        {
            volume["status"]["phase"] = json!("Released");
            api.put("volumes", volume);
        }
    }

    async fn play(&mut self, what: &str) {
        let mut quiet = 0;
        for turn in 0..80 {
            if self.by == By::Killed(turn) {
                self.kill_worker(what);
            }
            if self.change.deleted_after == Some(turn) {
                self.theatre.api.lock().delete("claims", "default/data");
            }
            if self.change.class_made_after == Some(turn) {
                self.theatre.api.lock().put("attributes", class(ASKED));
            }
            if let Some((_, named)) = self.change.then_asks.filter(|(at, _)| *at == turn) {
                let mut api = self.theatre.api.lock();
                let mut claim = api.get("claims", "default/data").unwrap();
                claim["spec"]["volumeAttributesClassName"] = json!(named);
                api.put("claims", claim);
            }
            let before = self.theatre.api.lock().version;
            self.image(what);
            self.theatre.turn_of_controllers().await;
            self.released();
            quiet = if self.theatre.api.lock().version == before {
                quiet + 1
            } else {
                0
            };
            let last = [
                self.change.deleted_after,
                self.change.then_asks.map(|(at, _)| at),
                self.change.class_made_after,
            ];
            if quiet > 1 && last.into_iter().max().flatten().is_none_or(|at| turn > at) {
                return;
            }
        }
        panic!("{what}: it does not come to rest: {:#?}", self.theatre.api.lock());
    }

    fn check(&self, what: &str) {
        assert_eq!(self.theatre.pods_left(), [""; 0], "{what}: Pods left");
        let api = self.theatre.api.lock();
        let names = |kind: &str| api.each(kind).map(key_of).collect::<Vec<_>>();
        assert_eq!(names("secrets"), [""; 0], "{what}: Secrets left");
        if self.change.deleted_after.is_some() {
            assert_eq!(names("claims"), [""; 0], "{what}: the claim hangs");
            assert_eq!(names("volumes"), [""; 0], "{what}: the PV hangs");
            assert_eq!(self.storage, None, "{what}: a volume without a claim");
            return;
        }
        let asked = self.change.then_asks.map_or(ASKED, |(_, class)| class);
        assert_eq!(self.storage.as_deref(), Some(asked), "{what}");
        let volume = api.get("volumes", &format!("/{PV}")).unwrap();
        let claim = api.get("claims", "default/data").unwrap();
        let status = &claim["status"];
        if asked.is_empty() {
            assert!(volume["spec"]["volumeAttributesClassName"].is_null(), "{what}");
            assert!(status["currentVolumeAttributesClassName"].is_null(), "{what}");
        } else {
            assert_eq!(volume["spec"]["volumeAttributesClassName"], asked, "{what}: of the PV");
            assert_eq!(
                status["currentVolumeAttributesClassName"], asked,
                "{what}: of the claim"
            );
            assert!(status["modifyVolumeStatus"].is_null(), "{what}: {status}");
            let request = volume["metadata"]["annotations"]["mooring.dev/request"].as_str();
            let request: Value = serde_json::from_str(request.unwrap()).unwrap();
            assert_eq!(request["attributes"]["class"], asked, "{what}: of later operations");
        }
        if self.change.grows {
            assert_eq!(
                (self.size, &status["capacity"]["storage"]),
                (2, &json!("2Gi")),
                "{what}"
            );
        }
        assert_eq!(status["conditions"], json!([]), "{what}");
        assert_eq!(claim["metadata"]["finalizers"], json!([]), "{what}: still held");
        assert!(
            claim["metadata"]["annotations"]["mooring.dev/operation"].is_null(),
            "{what}: a record"
        );
    }
}

/// Plays it without a fault, then with each call going wrong in every way.
async fn rehearse(change: Change) {
    for by in By::each(&change) {
        with_every_fault(&(change, by), async |fault, what| {
            let mut stage = Stage::open(change, by).await;
            stage.theatre.fail(fault);
            stage.play(what).await;
            stage.check(what);
            stage.theatre.calls()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_volume_gets_the_attributes_that_its_claim_asks_for_whatever_fails() {
    for first_exit in [None, Some(75)] {
        rehearse(Change {
            first_exit,
            ..Change::default()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_modification_that_was_refused_is_taken_back_by_another_class_or_none() {
    for named in ["iron", ""] {
        rehearse(Change {
            first_exit: Some(78),
            then_asks: Some((20, named)),
            ..Change::default()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_claim_that_asks_for_another_class_meanwhile_gets_that() {
    for turn in [1, 2, 4] {
        rehearse(Change {
            then_asks: Some((turn, "iron")),
            ..Change::default()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_volume_that_is_to_grow_and_to_change_does_one_after_the_other() {
    rehearse(Change {
        grows: true,
        ..Change::default()
    })
    .await;
}

/// Proves: P1
#[tokio::test]
async fn a_class_that_comes_late_is_waited_for() {
    rehearse(Change {
        class_made_after: Some(10),
        ..Change::default()
    })
    .await;
}

/// Proves: P1, P3
#[tokio::test]
async fn a_claim_that_is_deleted_while_it_is_modified_ends_with_no_volume_and_never_with_two_runs_at_once() {
    for turn in [1, 2, 3, 5] {
        rehearse(Change {
            deleted_after: Some(turn),
            ..Change::default()
        })
        .await;
    }
}

/// Proves: P7
#[tokio::test]
async fn a_modification_costs_six_writes() {
    let mut stage = Stage::open(Change::default(), By::Pods).await;
    stage.play("its budget").await;
    stage.check("its budget");
    let writes = [
        "PATCH claims status",
        "POST pods",
        "POST secrets",
        "PATCH volumes",
        "PATCH claims status",
        "DELETE pods",
    ];
    assert_eq!(stage.theatre.api.lock().writes(), writes);
}
