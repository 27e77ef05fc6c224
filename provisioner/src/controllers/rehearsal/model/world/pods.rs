//! What becomes of the Pods, and what their containers do to the storage.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use mooring_contract::operation::Operation;
use mooring_contract::request::{Member, Request};
use serde_json::{Value, json};

use super::super::super::fake_api::{FakeState, key_of};
use super::super::super::fake_worker::{is_free, is_worker};
use super::super::Fate;
use super::{Features, World, asked, has_properties, has_subject, is_going, is_held, text};
use crate::operation::tests::{ended, no_image, running};

/// Holds a Pod until its container was seen to end.
pub(super) const KUBELET: &str = "example.com/kubelet";

/// Marks a Pod whose node does not answer.
pub(super) const LOST: &str = "example.com/lost";

/// When a run has begun whose time is over.
pub(super) const LONG_AGO: &str = "2026-11-20T00:00:00Z";

/// How a container ends that is killed.
const KILLED: i32 = 143;

/// Whether no two of these may go on at once.
fn exclude(one: &Request, other: &Request) -> bool {
    let both = [one, other];
    let of_snapshot = both.map(|run| run.snapshot.as_ref().map(|snapshot| &snapshot.name));
    let deletes = both.iter().any(|run| run.operation == Operation::Delete);
    let reads_none = |run: &&Request| matches!(run.operation, Operation::DeleteSnapshot | Operation::DeleteGroup);
    let reads_none = both.iter().any(reads_none);
    let volumes = |run: &Request| {
        let members = run.members().iter().map(|member| member.pv_name.clone());
        members
            .chain([run.pv_name.clone()])
            .filter(|name| !name.is_empty())
            .collect::<BTreeSet<_>>()
    };
    let share = !volumes(one).is_disjoint(&volumes(other));
    let only_read = both.iter().all(|run| run.operation == Operation::Restore);
    let same_snapshot = of_snapshot[0].is_some() && of_snapshot[0] == of_snapshot[1] && !only_read;
    let changes = both
        .iter()
        .any(|run| matches!(run.operation, Operation::Expand | Operation::Modify));
    let copies = |run: &Request, source: &Request| {
        let of = run.source.as_ref().filter(|_| run.operation == Operation::Clone);
        of.is_some_and(|of| of.pv_name == source.pv_name)
    };
    let reads = copies(one, other) || copies(other, one);
    reads && (deletes || changes) || same_snapshot || share && (deletes || changes) && !reads_none
}

/// What only this run remembers.
pub(super) fn remembered_alone(state: &FakeState, pod: &Value) -> Vec<String> {
    if is_free(pod) || has_subject(state, pod) {
        return vec![];
    }
    let request = asked(pod);
    let members = request.members().iter().map(|member| member.snapshot_name.clone());
    let names = request.snapshot.iter().map(|snapshot| snapshot.name.clone());
    names.chain(members).chain([request.pv_name.clone()]).collect()
}

fn lost(state: &FakeState) -> Vec<Value> {
    state.each("pods").filter(|pod| is_lost(pod)).cloned().collect()
}

pub(super) fn is_lost(pod: &Value) -> bool {
    !pod["metadata"]["annotations"][LOST].is_null()
}

fn is_over(pod: &Value) -> bool {
    matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed")
}

impl World {
    /// What the kubelets do with all Pods that have their Secrets.
    pub(super) fn pods(&mut self, fate: Fate) -> Result<(), String> {
        self.go_on_worker(fate)?;
        let pods = self.theatre.api.lock().all("pods");
        for pod in pods.into_iter().filter(|pod| !is_lost(pod) && !is_worker(pod)) {
            if is_over(&pod) {
                if is_going(&pod) {
                    self.theatre.api.lock().take_away("pods", &key_of(&pod));
                }
            } else if is_held(&pod, KUBELET) {
                if !matches!(fate, Fate::Runs | Fate::NoImage) {
                    self.go_on(pod, fate)?;
                }
            } else if !is_going(&pod) && has_properties(&self.theatre.api.lock(), &pod) {
                self.begin(pod, fate)?;
            }
        }
        Ok(())
    }

    /// The time of runs is over that wait for properties which nobody brings, since nobody wants them. Whether there is
    /// any.
    pub(super) fn deadlines_pass(&mut self) -> bool {
        let mut state = self.theatre.api.lock();
        let waits = |pod: &Value| {
            if is_worker(pod) {
                !is_free(pod) && pod["metadata"]["annotations"]["mooring.dev/begun"] != LONG_AGO
            } else {
                !has_properties(&state, pod)
            }
        };
        let is_late = |pod: &Value| !is_over(pod) && waits(pod) && !has_subject(&state, pod);
        let late: Vec<_> = state.all("pods").into_iter().filter(is_late).collect();
        let some = !late.is_empty();
        for mut pod in late {
            if is_worker(&pod) {
                pod["metadata"]["annotations"]["mooring.dev/begun"] = json!(LONG_AGO);
            } else {
                pod["status"] = json!({"phase": "Failed", "reason": "DeadlineExceeded"});
            }
            state.put("pods", pod);
        }
        some
    }

    /// A kubelet takes a Pod.
    fn begin(&mut self, mut pod: Value, fate: Fate) -> Result<(), String> {
        pod["spec"]["nodeName"] = json!("node-a");
        if fate == Fate::NoImage {
            pod["status"] = no_image();
        } else {
            self.check_alone(&asked(&pod))?;
            pod["metadata"]["finalizers"] = json!([KUBELET]);
            pod["status"] = running();
        }
        pod["status"]["startTime"] = json!(Timestamp::now().to_string());
        if matches!(fate, Fate::Runs | Fate::NoImage) {
            self.theatre.api.lock().put("pods", pod);
            Ok(())
        } else {
            self.go_on(pod, fate)
        }
    }

    /// The container of a Pod ends, or its node is lost.
    fn go_on(&mut self, mut pod: Value, fate: Fate) -> Result<(), String> {
        let (code, has_effect) = match fate {
            Fate::Done => (Some(0), true),
            Fate::Fails { effect, .. } if is_going(&pod) => (Some(KILLED), effect),
            Fate::Fails { code, effect } => (Some(code), effect),
            Fate::Lost { effect } => (None, effect),
            Fate::Runs | Fate::NoImage => (None, false),
        };
        let answer = if has_effect {
            self.effect(&pod, &asked(&pod), code == Some(0))?
        } else {
            String::new()
        };
        match code {
            // It began long ago.
            None => {
                pod["status"] = running();
                pod["metadata"]["annotations"][LOST] = json!("yes");
            }
            Some(code) => {
                pod["status"] = ended(code, if code == 0 { answer.as_str() } else { "busy" });
                if !is_going(&pod) {
                    pod["metadata"]["finalizers"] = json!([]);
                }
            }
        }
        self.theatre.api.lock().put("pods", pod);
        Ok(())
    }

    /// What a container does to the storage of its ConfigMap, whether it says so at its end or fails; its answer.
    pub(super) fn effect(&mut self, pod: &Value, request: &Request, says_so: bool) -> Result<String, String> {
        let config = text(&pod["metadata"]["annotations"]["mooring.dev/config"]).to_owned();
        let volume = (config.clone(), request.pv_name.clone());
        let class = request.attributes.as_ref().map(|attributes| attributes.class.clone());
        let class = class.unwrap_or_default();
        let snapshot = request.snapshot.as_ref().map(|snapshot| snapshot.name.clone());
        let snapshot = snapshot.unwrap_or_default();
        let snapshot = (config, snapshot);
        let answer = match request.operation {
            Operation::Clone if !self.is_there_to_copy(request) => {
                return Err(format!("what was to be copied to {volume:?} went before"));
            }
            Operation::Restore if !self.storage.contains(&snapshot) && !self.given_up.contains(&snapshot.1) => {
                return Err(format!("{snapshot:?} went before {volume:?} was made of it"));
            }
            Operation::Provision | Operation::Clone | Operation::Restore => {
                let size = request.size;
                self.features.entry(volume.clone()).or_insert(Features {
                    size,
                    class,
                    grew_unsaid: false,
                });
                self.storage.insert(volume);
                json!({"client": "nfs", "source": "h:/x"}).to_string()
            }
            Operation::Delete => {
                self.features.remove(&volume);
                self.storage.remove(&volume);
                String::new()
            }
            Operation::Expand | Operation::Modify => {
                let features = match self.features.get_mut(&volume) {
                    Some(features) => features,
                    None if self.given_up.contains(&volume.1) => return Ok(String::new()),
                    None => return Err(format!("{volume:?} went before it was changed")),
                };
                if request.operation == Operation::Expand {
                    if request.size >= features.size {
                        features.size = request.size;
                        features.grew_unsaid = !says_so;
                    }
                } else {
                    features.class = class;
                }
                String::new()
            }
            Operation::Snapshot if !self.storage.contains(&volume) && !self.given_up.contains(&volume.1) => {
                return Err(format!("{volume:?} went before its snapshot {snapshot:?} was taken"));
            }
            Operation::Snapshot => {
                self.storage.insert(snapshot);
                String::new()
            }
            Operation::DeleteSnapshot => {
                self.storage.remove(&snapshot);
                String::new()
            }
            Operation::SnapshotGroup => {
                for member in request.members() {
                    let volume = (snapshot.0.clone(), member.pv_name.clone());
                    if !self.storage.contains(&volume) && !self.given_up.contains(&volume.1) {
                        return Err(format!("{volume:?} went before the snapshots of its group were taken"));
                    }
                    self.storage.insert((snapshot.0.clone(), member.snapshot_name.clone()));
                }
                String::new()
            }
            Operation::DeleteGroup => {
                let taken = |member: &Member| (snapshot.0.clone(), member.snapshot_name.clone());
                for member in request.members().iter().map(taken) {
                    self.storage.remove(&member);
                }
                String::new()
            }
            other => return Err(format!("nobody asked for {other:?}")),
        };
        Ok(answer)
    }

    fn is_there_to_copy(&self, clone: &Request) -> bool {
        let source = clone.source.as_ref().unwrap();
        self.given_up.contains(&source.pv_name) || self.storage.iter().any(|(_, name)| *name == source.pv_name)
    }

    /// Nothing goes on that excludes what begins.
    pub(super) fn check_alone(&self, begins: &Request) -> Result<(), String> {
        let state = self.theatre.api.lock();
        let goes_on = |pod: &&Value| !is_worker(pod) && is_held(pod, KUBELET) && !is_over(pod);
        let on_worker = self.on_worker().filter(|_| self.has_begun_on_worker());
        let going = state.each("pods").filter(goes_on).map(asked);
        let mut going = going.chain(on_worker.map(|run| run.request));
        match going.find(|other| exclude(other, begins)) {
            Some(other) => Err(format!("{begins:#?} begins beside {other:#?}")),
            None => Ok(()),
        }
    }

    pub(super) fn node_returns(&self) {
        let mut state = self.theatre.api.lock();
        for mut pod in lost(&state) {
            let noted = pod["metadata"]["annotations"].as_object_mut();
            noted.map(|noted| noted.remove(LOST));
            state.put("pods", pod);
        }
        if let Some(worker) = &self.theatre.worker {
            worker.reach(true);
        }
    }

    pub(super) fn node_goes(&mut self) {
        let mut state = self.theatre.api.lock();
        for pod in lost(&state) {
            self.given_up.extend(remembered_alone(&state, &pod));
            state.take_away("pods", &key_of(&pod));
            if is_worker(&pod) {
                self.theatre.worker = None;
            }
        }
    }
}
