//! A worker, and what becomes of the run that it has.

use mooring_contract::worker::Order;
use serde_json::{Value, json};

use super::super::super::fake_api::key_of;
use super::super::super::fake_worker::{FakeWorker, is_worker};
use super::super::Fate;
use super::pods::{KUBELET, LONG_AGO, LOST, is_lost, remembered_alone};
use super::{CONFIGS, Given, World, is_going};

impl World {
    /// A worker of the ConfigMap of this number starts, unless there is one.
    pub(super) async fn hire(&mut self, at: usize, lost_answers: usize) {
        let is_real = self.theatre.api.real().is_some();
        if is_real || !self.there[at] || self.worker_pod().is_some() {
            return;
        }
        self.made += 1;
        let mut worker = FakeWorker::start(lost_answers).await;
        (worker.uid, worker.name) = (format!("w{}", self.made), format!("worker-{}", self.made));
        let mut pod = worker.pod(CONFIGS[at], &self.fingerprint(at));
        let name = CONFIGS[at].rsplit_once('/').unwrap().1;
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": format!("c{at}"),
                           "controller": true});
        pod["metadata"]["ownerReferences"] = json!([owner]);
        pod["metadata"]["finalizers"] = json!([KUBELET]);
        self.theatre.api.lock().put("pods", pod);
        self.theatre.worker = Some(worker);
        self.theatre.begun_on_worker = 0;
    }

    /// Somebody deletes the worker's Pod.
    pub(super) fn dismiss(&mut self) {
        if let Some(pod) = self.worker_pod() {
            let mut state = self.theatre.api.lock();
            self.given_up.extend(remembered_alone(&state, &pod));
            state.delete("pods", &key_of(&pod));
        }
    }

    fn worker_pod(&self) -> Option<Value> {
        self.theatre.api.lock().each("pods").find(|pod| is_worker(pod)).cloned()
    }

    fn order(&self) -> Option<Order> {
        self.theatre.worker.as_ref()?.order()
    }

    /// The run that the worker was given, and has not ended.
    pub(super) fn on_worker(&self) -> Option<Given> {
        let (worker, order) = (self.theatre.worker.as_ref()?, self.order()?);
        Some(Given {
            uid: format!("{}/{}", worker.uid, order.number),
            place: format!("admin/{}", worker.name),
            request: serde_json::from_str(&order.request).unwrap(),
        })
    }

    /// Whether the container has begun with that run.
    pub(super) fn has_begun_on_worker(&self) -> bool {
        let number = self.order().map(|order| order.number);
        number == Some(self.theatre.begun_on_worker)
    }

    /// What becomes of the worker's run, and of a worker that is to stop.
    pub(super) fn go_on_worker(&mut self, fate: Fate) -> Result<(), String> {
        let Some(mut pod) = self.worker_pod() else {
            self.theatre.worker = None;
            return Ok(());
        };
        if is_lost(&pod) {
            return Ok(());
        }
        let run = self.on_worker();
        if let (Some(run), false) = (&run, self.has_begun_on_worker()) {
            self.check_alone(&run.request)?;
            self.theatre.begun_on_worker = self.order().map_or(0, |order| order.number);
        }
        let (code, has_effect) = match fate {
            Fate::Done => (Some(0), true),
            Fate::Fails { code, effect } => (Some(code), effect),
            Fate::Lost { effect } => (None, effect),
            Fate::Runs | Fate::NoImage if is_going(&pod) => (None, false),
            Fate::Runs | Fate::NoImage => return Ok(()),
        };
        let answer = match &run {
            Some(run) if has_effect => self.effect(&pod, &run.request, code == Some(0))?,
            _ => String::new(),
        };
        let mut state = self.theatre.api.lock();
        if is_going(&pod) {
            // It is killed with what it carries out.
            state.take_away("pods", &key_of(&pod));
            self.theatre.worker = None;
        } else if let (Some(code), Some(worker), Some(_)) = (code, &self.theatre.worker, &run) {
            worker.end(code, if code == 0 { &answer } else { "busy" });
            state.version += 1;
        } else if let (None, Some(worker)) = (code, &self.theatre.worker) {
            worker.reach(false);
            pod["metadata"]["annotations"][LOST] = json!("yes");
            if run.is_some() {
                pod["metadata"]["annotations"]["mooring.dev/begun"] = json!(LONG_AGO);
            }
            state.put("pods", pod);
        }
        Ok(())
    }
}
