//! The growth of an existing claim, rehearsed like the rest of its life: it ends with the size that was asked for on
//! the storage, in the PV and in the claim, and never are two things run on one volume at once.

use serde_json::json;

use super::fake_api::key_of;
use super::{By, Going, Offers, PV, Script, Theatre, UID, with_every_fault};
use crate::run::properties::tests::silver;

/// What the image, the node and the user do.
#[derive(Debug, Clone, Copy, Default)]
struct Growth {
    /// The volume has a file system on a device.
    on_device: bool,
    /// The first run ends with this code.
    first_exit: Option<i32>,
    /// The user asks for this many GiB after so many turns.
    then_asks: Option<(usize, u64)>,
    /// The user deletes the claim after so many turns.
    deleted_after: Option<usize>,
}

/// The GiB that the user asks for.
const ASKED: u64 = 5;

/// A stage with a bound claim of 1 GiB that asks for more.
struct Stage {
    theatre: Theatre,
    growth: Growth,
    by: By,
    /// The GiB that the storage has.
    storage: u64,
    runs: usize,
}

impl Stage {
    async fn open(growth: Growth, by: By) -> Self {
        let mut theatre = Theatre::open(Script::plain(Offers::Changes));
        theatre.carried_out(by).await;
        let mut made_by = silver();
        (made_by.pv_name, made_by.pvc_uid) = (PV.into(), UID.into());
        let client = if growth.on_device { "local" } else { "nfs" };
        let mut volume = crate::volume::acceptance::tests::volume();
        volume["metadata"]["annotations"] = json!({
            "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
            "mooring.dev/config": "admin/custom-isci-provisioner",
            "mooring.dev/request": json!(made_by).to_string(),
        });
        volume["metadata"]["finalizers"] = json!(["mooring.dev/volume"]);
        volume["spec"]["flexVolume"]["options"] = json!({"client": client, "source": "h:/x"});
        volume["status"] = json!({"phase": "Bound"});
        {
            let mut api = theatre.api.lock();
            api.put("volumes", volume);
            let mut claim = api.get("claims", "default/data").unwrap();
            claim["spec"]["volumeName"] = json!(PV);
            claim["spec"]["resources"]["requests"]["storage"] = json!(format!("{ASKED}Gi"));
            claim["metadata"]["finalizers"] = json!([]);
            claim["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
            api.put("claims", claim);
        }
        Self {
            theatre,
            growth,
            by,
            storage: 1,
            runs: 0,
        }
    }

    /// Ends every run that has its properties, as the image would. The kubelet of the theatre then finds nothing to do.
    fn image(&mut self, what: &str) {
        for going in self.theatre.the_run(what) {
            let mut code = 0;
            if going.operation() == "expand" {
                self.runs += 1;
                match self.growth.first_exit.filter(|_| self.runs == 1) {
                    Some(exit) => code = exit,
                    None => self.storage = self.storage.max(going.request().size >> 30),
                }
            } else {
                self.storage = 0;
            }
            self.theatre.ends(going, code, "no");
        }
    }

    /// What the worker does is done all the same.
    fn kill_worker(&mut self, what: &str) {
        for going in self.theatre.the_run(what).filter(Going::is_on_worker) {
            match going.operation() {
                "expand" => self.storage = self.storage.max(going.request().size >> 30),
                _ => self.storage = 0,
            }
        }
        self.theatre.kill_worker();
    }

    /// What the kubelet does to a mounted volume that a node has to enlarge.
    fn node(&self) {
        let mut api = self.theatre.api.lock();
        let Some(mut claim) = api.get("claims", "default/data") else {
            return;
        };
        if claim["status"]["allocatedResourceStatuses"]["storage"] == "NodeResizePending" {
            claim["status"]["capacity"] = claim["status"]["allocatedResources"].clone();
            claim["status"]
                .as_object_mut()
                .unwrap()
                .remove("allocatedResourceStatuses");
            claim["status"]["conditions"] = json!([]);
            api.put("claims", claim);
        }
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
            if self.growth.deleted_after == Some(turn) {
                self.theatre.api.lock().delete("claims", "default/data");
            }
            if let Some((_, gib)) = self.growth.then_asks.filter(|(at, _)| *at == turn) {
                let mut api = self.theatre.api.lock();
                let mut claim = api.get("claims", "default/data").unwrap();
                claim["spec"]["resources"]["requests"]["storage"] = json!(format!("{gib}Gi"));
                api.put("claims", claim);
            }
            let before = self.theatre.api.lock().version;
            self.image(what);
            self.theatre.turn_of_controllers().await;
            self.node();
            self.released();
            quiet = if self.theatre.api.lock().version == before {
                quiet + 1
            } else {
                0
            };
            let last = self.growth.deleted_after.max(self.growth.then_asks.map(|(at, _)| at));
            if quiet > 1 && last.is_none_or(|at| turn > at) {
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
        if self.growth.deleted_after.is_some() {
            assert_eq!(names("claims"), [""; 0], "{what}: the claim hangs");
            assert_eq!(names("volumes"), [""; 0], "{what}: the PV hangs");
            assert_eq!(self.storage, 0, "{what}: a volume without a claim");
            return;
        }
        let asked = self.growth.then_asks.map_or(ASKED, |(_, gib)| gib);
        let size = json!(format!("{asked}Gi"));
        assert_eq!(self.storage, asked, "{what}");
        let volume = api.get("volumes", &format!("/{PV}")).unwrap();
        assert_eq!(volume["spec"]["capacity"]["storage"], size, "{what}: of the PV");
        let claim = api.get("claims", "default/data").unwrap();
        let status = &claim["status"];
        assert_eq!(status["capacity"]["storage"], size, "{what}: of the claim");
        assert_eq!(status["allocatedResources"]["storage"], size, "{what}: allocated");
        assert!(
            status["allocatedResourceStatuses"]["storage"].is_null(),
            "{what}: {status}"
        );
        assert_eq!(status["conditions"], json!([]), "{what}");
        assert_eq!(claim["metadata"]["finalizers"], json!([]), "{what}: still held");
        assert!(
            claim["metadata"]["annotations"]["mooring.dev/operation"].is_null(),
            "{what}: a record"
        );
    }
}

/// Plays it without a fault, then with each call going wrong in every way.
async fn rehearse(growth: Growth) {
    for by in By::each(&growth) {
        with_every_fault(&(growth, by), async |fault, what| {
            let mut stage = Stage::open(growth, by).await;
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
async fn a_claim_grows_to_what_it_asks_for_whatever_fails() {
    for on_device in [false, true] {
        for first_exit in [None, Some(75)] {
            rehearse(Growth {
                on_device,
                first_exit,
                ..Growth::default()
            })
            .await;
        }
    }
}

/// Proves: P1
#[tokio::test]
async fn an_expansion_that_was_refused_is_taken_back_to_a_size_that_can_be_had() {
    for on_device in [false, true] {
        rehearse(Growth {
            on_device,
            first_exit: Some(78),
            then_asks: Some((20, 3)),
            ..Growth::default()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_claim_that_asks_for_still_more_meanwhile_gets_it() {
    for turn in [1, 2, 4] {
        rehearse(Growth {
            on_device: turn % 2 == 0,
            then_asks: Some((turn, 8)),
            ..Growth::default()
        })
        .await;
    }
}

/// Proves: P1, P3
#[tokio::test]
async fn a_claim_that_is_deleted_while_it_grows_ends_with_no_volume_and_never_with_two_runs_at_once() {
    for turn in [1, 2, 3, 5] {
        rehearse(Growth {
            deleted_after: Some(turn),
            ..Growth::default()
        })
        .await;
    }
}

/// Proves: P7
#[tokio::test]
async fn an_expansion_costs_six_writes() {
    for on_device in [false, true] {
        let growth = Growth {
            on_device,
            ..Growth::default()
        };
        let mut stage = Stage::open(growth, By::Pods).await;
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
}
