//! What is compared: ways to get a volume, and the bare Pod as the lower bound.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{DeleteParams, PostParams, ResourceExt};
use mooring_contract::names::NAMESPACE;
use serde_json::{Value, json};

use super::observer::{Mark, Observer, Subject};
use mooring_harness::Scope;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, SCRIPTED, claim};

/// The lower bound.
pub(super) const BARE: &str = "bare Pod";
/// Mooring with an image that only prints a volume's source: Mooring's own cost.
pub(super) const MOORING: &str = "Mooring";
/// Mooring's own `local` class: an image file in the node's pool, made by a worker on that node.
pub(super) const LOCAL: &str = "Mooring, local";

/// Begins the names of workers, which stay.
pub(super) const WORKER_PREFIX: &str = "worker-";

/// The scheduler uses it to tell a provisioner where the claim's first Pod will run.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The size of every claim.
const SIZE: &str = "64Mi";

/// Longest wait for one thing while nothing else happens.
pub(super) const LIMIT: Duration = Duration::from_mins(3);

/// A way to get a volume, or the bare Pod.
#[derive(Debug, Clone)]
pub(super) struct System {
    pub(super) name: String,
    /// The class of its claims; none for bare Pods.
    pub(super) class: Option<String>,
    /// Whether its class waits for a node, which the bench sets on each claim.
    pub(super) waits_for_node: bool,
    pub(super) mounts: bool,
    /// The namespace of the Pods that make its volumes; none if no Pods do.
    pods_in: Option<String>,
    /// What precedes a volume's name in the name of the Pod that makes it; none if workers make them.
    pod_prefix: Option<&'static str>,
    /// Prefix of Pods there that stay.
    stays: &'static str,
}

impl System {
    /// A Pod of the image that Mooring's Pods use, which ends at once.
    pub(super) fn bare(scope: &Scope) -> Self {
        Self {
            name: BARE.to_owned(),
            class: None,
            waits_for_node: false,
            mounts: false,
            pods_in: Some(scope.namespace.clone()),
            pod_prefix: Some(""),
            stays: "",
        }
    }

    pub(super) fn mooring(name: &str, class: &str, local: bool) -> Self {
        Self {
            name: name.to_owned(),
            class: Some(class.to_owned()),
            waits_for_node: local,
            mounts: local,
            pods_in: Some(CONFIG_NAMESPACE.to_owned()),
            pod_prefix: (!local).then_some("provision-"),
            stays: WORKER_PREFIX,
        }
    }

    /// A class of local-path-provisioner, whose Pods are in its own namespace.
    pub(super) fn peer(name: &str, class: &str, namespace: &str) -> Self {
        Self {
            name: name.to_owned(),
            class: Some(class.to_owned()),
            waits_for_node: true,
            mounts: true,
            pods_in: Some(namespace.to_owned()),
            pod_prefix: Some("helper-pod-create-pvc-"),
            stays: "local-path-provisioner",
        }
    }

    /// One that makes its volumes by itself, or by Pods that stay.
    pub(super) fn without_pods(name: &str, class: &str) -> Self {
        Self {
            name: name.to_owned(),
            class: Some(class.to_owned()),
            waits_for_node: false,
            mounts: false,
            pods_in: None,
            pod_prefix: None,
            stays: "",
        }
    }

    /// The Pod that makes the volume of a claim with this uid, if it is made for that alone.
    fn pod(&self, uid: &str) -> Option<Subject> {
        let prefix = self.pod_prefix?;
        Some(Subject::pod(self.pods_in.as_ref()?, &format!("{prefix}{uid}")))
    }
}

/// How long the steps of a claim took, in seconds; empty if they were not seen in this order, or a worker made them.
pub(super) type Steps = Vec<(&'static str, f64)>;

/// The time that one creation took.
pub(super) struct Made {
    /// From the request to the end.
    pub(super) took: Duration,
    pub(super) steps: Steps,
}

/// Creates and removes objects, and knows when they appeared.
pub(super) struct World {
    pub(super) scope: Scope,
    pub(super) observer: Observer,
    pub(super) nodes: u8,
}

impl World {
    pub(super) fn node(&self, index: usize) -> String {
        format!("node-{}", index % usize::from(self.nodes) + 1)
    }

    /// Creates a claim or a bare Pod, without waiting; returns its uid. Claims of classes that wait for a node get the
    /// nodes in turn.
    pub(super) async fn make(&self, system: &System, name: &str, index: usize) -> Result<String> {
        let Some(class) = &system.class else {
            let pod: Pod = typed(bare_pod(name))?;
            let made = self.scope.api::<Pod>().create(&PostParams::default(), &pod).await;
            let made = made.with_context(|| format!("failed to make the Pod {name}"))?;
            return Ok(made.uid().unwrap_or_default());
        };
        let mut claim = claim(name, class, SIZE);
        if system.waits_for_node {
            claim["metadata"]["annotations"] = json!({SELECTED_NODE: self.node(index)});
        }
        self.make_claim(claim).await
    }

    /// Creates the given claim; returns its uid.
    pub(super) async fn make_claim(&self, claim: Value) -> Result<String> {
        let claim: PersistentVolumeClaim = typed(claim)?;
        let made = self.scope.api().create(&PostParams::default(), &claim).await;
        let made: PersistentVolumeClaim =
            made.with_context(|| format!("failed to make the claim {}", claim.name_any()))?;
        made.uid().context("a claim without a uid")
    }

    pub(super) async fn make_pod(&self, pod: Value) -> Result<()> {
        let pod: Pod = typed(pod)?;
        let made = self.scope.api().create(&PostParams::default(), &pod).await;
        made.with_context(|| format!("failed to make the Pod {}", pod.name_any()))?;
        Ok(())
    }

    /// The end of a creation: a claim that is bound, a bare Pod that has ended.
    pub(super) fn end_of(&self, system: &System, name: &str) -> (Subject, Mark) {
        if system.class.is_some() {
            (Subject::Claim(name.to_owned()), Mark::Bound)
        } else {
            (Subject::pod(&self.scope.namespace, name), Mark::Succeeded)
        }
    }

    /// Creates one and waits until it is done.
    pub(super) async fn make_one(&self, system: &System, name: &str, index: usize) -> Result<Made> {
        let began = Instant::now();
        let uid = self.make(system, name, index).await?;
        let (subject, mark) = self.end_of(system, name);
        let ended = self.observer.wait(&subject, mark, LIMIT).await?;
        let pod = if system.class.is_some() {
            system.pod(&uid)
        } else {
            Some(subject)
        };
        let took = ended.duration_since(began);
        let Some(pod) = pod else {
            return Ok(Made {
                took,
                steps: Vec::new(),
            });
        };
        // The watches of Pods and of claims are not synchronized.
        self.observer
            .wait(&pod, Mark::Succeeded, LIMIT)
            .await
            .or_else(|error| if system.class.is_some() { Ok(ended) } else { Err(error) })?;
        let steps = self.steps(system, &pod, began, ended);
        Ok(Made { took, steps })
    }

    fn steps(&self, system: &System, pod: &Subject, began: Instant, ended: Instant) -> Steps {
        let of_pod = [Mark::Made, Mark::Scheduled, Mark::Succeeded].map(|mark| self.observer.at(pod, mark));
        let [Some(made), Some(scheduled), Some(succeeded)] = of_pod else {
            return Vec::new();
        };
        let mut steps = vec![
            ("until the Pod is made", began, made),
            ("until it has its node", made, scheduled),
            ("until it has ended", scheduled, succeeded),
        ];
        if system.class.is_some() {
            steps.push(("until the claim is bound", succeeded, ended));
        }
        let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        steps
            .into_iter()
            .map(|(name, from, to)| (name, seconds(from, to)))
            .collect()
    }

    /// Deletes a claim or a bare Pod, without waiting.
    pub(super) async fn remove(&self, system: &System, name: &str) -> Result<()> {
        if system.class.is_some() {
            let claims: Api<PersistentVolumeClaim> = self.scope.api();
            let removed = claims.delete(name, &DeleteParams::default()).await;
            removed.with_context(|| format!("failed to delete the claim {name}"))?;
        } else {
            self.remove_pod(name).await?;
        }
        Ok(())
    }

    /// Deletes a Pod, without waiting.
    pub(super) async fn remove_pod(&self, name: &str) -> Result<()> {
        let pods: Api<Pod> = self.scope.api();
        let removed = pods.delete(name, &DeleteParams::default()).await;
        removed.with_context(|| format!("failed to delete the Pod {name}"))?;
        Ok(())
    }

    /// What disappears last: a claim's volume, or a bare Pod.
    pub(super) fn last_of(&self, system: &System, name: &str) -> Subject {
        if system.class.is_some() {
            Subject::VolumeOf(name.to_owned())
        } else {
            Subject::pod(&self.scope.namespace, name)
        }
    }

    /// Waits until a system's Pods are gone, so that the next one is measured alone. Bare Pods stay until they are
    /// removed.
    pub(super) async fn settled(&self, system: &System) -> Result<()> {
        let pods_in = system.pods_in.as_ref().filter(|_| system.class.is_some());
        if let Some(namespace) = pods_in {
            self.observer.no_pods(namespace, system.stays, LIMIT).await?;
        }
        Ok(())
    }

    /// Name of the controller's Pod that leads.
    pub(super) fn leader(&self) -> Result<String> {
        let leader = self.scope.leader();
        leader.with_context(|| format!("failed to find the controller in namespace {NAMESPACE}"))
    }
}

/// The smallest possible Pod of the image: what Mooring adds to it is Mooring's cost.
fn bare_pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [{
                "name": "main", "image": SCRIPTED,
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
            }],
        },
    })
}

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).context("failed to write an object")
}
