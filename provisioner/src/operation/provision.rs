//! Operation `provision`: from a claim without a volume to one that is bound.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::{PROVISIONER, annotations, finalizers, is_provisioner};
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::Request;
use mooring_contract::volume::ClientName;
use serde_json::{Value, json};

use super::claim_error::ClaimError;
use super::content::Content;
use super::decision::{
    Accept, ClaimDecision, Decision, ForAccepted, ForClaim, Refuse, Reschedule, Start, name_and_uid, removable,
};
use super::describe::{action, done, waiting};
use super::drive::{Operate, Progress, begin, drive, ran_late, removed, to_remove};
use super::observed::ObservedClaim;
use super::record::Record;
use super::source::{self, Found};
use super::standing;
use super::{attach, attributes, request, undo};
use crate::config::storage_class::is_own;
use crate::config::store::NoConfig;
use crate::config::{ProvisionerConfig, VolumeSourceKind};
use crate::process::events::{Note, reasons};
use crate::run::departed::Departed;
use crate::run::outcome::Finish;
use crate::run::{Run, RunRef};
use crate::time::{elapsed, later, whole_seconds};
use crate::volume::acceptance::{Expected, Refusal, check};
use crate::volume::persistent_volume::{self, Printed};
use crate::volume::topology::{Node, is_unable};

/// After how many failed attempts on one node another is asked for, where the volume would live on that node.
const ATTEMPTS_PER_NODE: u32 = 3;

/// What to do about a claim that has no volume of its own yet, or none any more.
pub(super) fn plan(seen: &ObservedClaim<'_>, now: Timestamp) -> ClaimDecision {
    if let Some(record) = seen.record
        && let Some(volume) = standing::accepted(seen)
    {
        return match seen.provision_run.filter(|run| !run.is_over()) {
            // It was begun again.
            Some(run) => removed(run, seen.making(), seen.limits, now),
            // By what was so then. It may be bound and in use by now, and somebody may have changed its policy.
            None => accept(seen, record, (volume, ForAccepted::Nothing), now),
        };
    }
    if seen.claim.metadata.deletion_timestamp.is_some() {
        return match seen.record {
            // It is bound to what the run has made, which is judged as if the claim stayed.
            Some(record) if undo::given(seen).is_some() && seen.provision_run.is_some_and(Run::is_done) => {
                ongoing(seen, record, now)
            }
            _ => undo::plan_undo(seen, now),
        };
    }
    match seen.record {
        None => fresh(seen, now),
        Some(record) if record.refused => undo::plan_refused(seen, record, now),
        Some(record) => ongoing(seen, record, now),
    }
}

/// A claim that nothing has been done for.
fn fresh(seen: &ObservedClaim<'_>, now: Timestamp) -> ClaimDecision {
    let bound = seen.claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_some());
    let ready = seen
        .volumes
        .iter()
        .find(|volume| standing::is_ready(volume, seen.uid()));
    let leftovers = leftovers(seen);
    if bound || seen.class.is_none() || ready.is_some() {
        return match (leftovers.is_empty(), ready) {
            (false, _) => Decision::Stop(leftovers),
            (true, _) if bound => super::fresh_change(seen, now),
            (true, Some(volume)) => to_be_bound(seen, volume, now),
            (true, None) => Decision::Rest,
        };
    }
    if !is_wanted(seen) {
        return Decision::Rest;
    }
    match seen.config {
        Ok(_) => {}
        Err(NoConfig::NotOurs { .. } | NoConfig::NotReadYet) => return Decision::Rest,
        Err(error) => {
            if let Some(left) = left_to_another(seen, error, now) {
                return Decision::wait(left);
            }
            return Decision::wait_for(Note::warning(
                reasons::NO_CONFIG,
                action(seen.making()),
                error.to_string(),
            ));
        }
    }
    if !leftovers.is_empty() {
        // A record that is not seen yet, or a run of an operation that is over: reading the claim tells.
        return Decision::Stop(leftovers);
    }
    begin(&Provisioning::of(seen, None, now))
}

/// A claim whose volume is ready: kube-controller-manager binds the two.
fn to_be_bound(seen: &ObservedClaim<'_>, volume: &PersistentVolume, now: Timestamp) -> ClaimDecision {
    let (name, _) = name_and_uid(volume);
    if volume.metadata.deletion_timestamp.is_some() {
        // It is never bound to this claim.
        let text = format!(
            "PersistentVolume {name} of the claim is being deleted: Mooring makes another when it is gone (kubectl \
             describe pv {name} says what it waits for)"
        );
        return Decision::wait_for(waiting(seen.making(), text));
    }
    let has = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    if let Some(other) = has.filter(|claim| claim.uid.is_some() && claim.uid != seen.claim.metadata.uid) {
        let [namespace, claim] = [&other.namespace, &other.name].map(|part| part.as_deref().unwrap_or_default());
        let text = format!(
            "PersistentVolume {name}, which Mooring made for this claim, was given to claim {namespace}/{claim}: delete \
             this claim, and create it again"
        );
        return Decision::wait_for(waiting(seen.making(), text));
    }
    let made = [&volume.metadata, &seen.claim.metadata].map(|meta| meta.creation_timestamp.as_ref());
    // The volume may have been another claim's before.
    let waited = made.into_iter().flatten().map(|made| elapsed(made.0, now));
    let waited = waited.min().unwrap_or_default();
    let left = seen.limits.bind_grace.saturating_sub(waited);
    if !left.is_zero() {
        return Decision::wait(left);
    }
    let text = format!(
        "PersistentVolume {name} is ready, and kube-controller-manager has not bound the claim to it within {} \
         minutes: check that kube-controller-manager runs, and look for the claim in its log",
        seen.limits.bind_grace.as_secs() / 60
    );
    Decision::wait_for(waiting(seen.making(), text))
}

/// Whether Kubernetes asks for a volume for the claim now.
fn is_wanted(seen: &ObservedClaim<'_>) -> bool {
    seen.annotation(annotations::STORAGE_PROVISIONER)
        .is_some_and(is_provisioner)
        && Content::of(seen.claim) != Content::Populated
        && (!seen.waits_for_consumer() || seen.selected().is_some())
}

/// Whether the claim wants a volume and has no ConfigMap.
pub fn is_unserved(seen: &ObservedClaim<'_>) -> bool {
    seen.record.is_none()
        && seen.config.is_err()
        && is_wanted(seen)
        && seen.claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_none())
}

/// How long a claim is still given to be taken up by another Mooring, whose ConfigMap its class may have.
fn left_to_another(seen: &ObservedClaim<'_>, error: &NoConfig, now: Timestamp) -> Option<Duration> {
    let grace = match error {
        // Another, which has made the class or volumes of it, may have many other claims before this one.
        NoConfig::Elsewhere { is_at_work, .. } if *is_at_work || seen.class.is_some_and(is_own) => {
            seen.limits.elsewhere_grace
        }
        NoConfig::Elsewhere { .. } | NoConfig::Unclaimed { .. } => seen.limits.claim_grace,
        NoConfig::NotOurs { .. }
        | NoConfig::NotReadYet
        | NoConfig::HalfNamed { .. }
        | NoConfig::Missing { .. }
        | NoConfig::Refused { .. } => return None,
    };
    // Not the claim's age: it may have waited for a Pod until now, or this may have started just now.
    let left = grace.saturating_sub(elapsed(seen.unserved_since, now));
    Some(left).filter(|left| !left.is_zero())
}

/// A claim that has a record.
fn ongoing(seen: &ObservedClaim<'_>, record: &Record, now: Timestamp) -> ClaimDecision {
    let spec = seen.claim.spec.as_ref();
    let elsewhere = spec.and_then(|spec| spec.volume_name.as_deref()).filter(|name| {
        let ours = seen
            .volumes
            .iter()
            .any(|volume| volume.metadata.name.as_deref() == Some(*name));
        !ours && *name != persistent_volume::name_for(seen.uid())
    });
    if elsewhere.is_some() {
        // Its user bound it to another volume meanwhile: what was being made is not wanted any more.
        return undo::plan_undo(seen, now);
    }
    drive(&Provisioning::of(seen, Some(record), now), record)
}

/// How the attempt's run was, where that was seen only when it was gone: somebody took it away. One that ended well
/// is repeated at once, since nobody can judge it any more.
fn ended_unseen<'a>(seen: &ObservedClaim<'a>, record: &Record) -> Option<&'a Departed> {
    let departed = seen.departed.filter(|run| run.attempt == record.attempt)?;
    let begun = record.has_begun() && record.is_provision();
    (begun && departed.end.outcome != Outcome::Done).then_some(departed)
}

/// From a claim to its volume.
struct Provisioning<'a> {
    seen: &'a ObservedClaim<'a>,
    progress: Progress<'a>,
}

impl<'a> Provisioning<'a> {
    fn of(seen: &'a ObservedClaim<'a>, record: Option<&'a Record>, now: Timestamp) -> Self {
        let progress = seen.progress(seen.making(), record, seen.provision_run, now);
        Self { seen, progress }
    }
}

impl Operate for Provisioning<'_> {
    type Own = ForClaim;

    fn progress(&self) -> &Progress<'_> {
        &self.progress
    }

    fn instead(&self, record: &Record) -> Option<ClaimDecision> {
        let seen = self.seen;
        let late = seen
            .departed
            .and_then(|run| ran_late(run.attempt, run.end.started, record));
        if let Some(record) = late {
            return Some(Decision::Record(Box::new(record)));
        }
        if let Some(departed) = ended_unseen(seen, record) {
            let mut unseen = Self::of(seen, self.progress.record, self.progress.now);
            unseen.progress.state = unseen.progress.state.when_begun(departed.state.clone());
            return Some(unseen.fail(record, &departed.end));
        }
        let config = match seen.config {
            Ok(config) => config,
            Err(NoConfig::NotReadYet) => return Some(Decision::Rest),
            Err(error) => return Some(Decision::wait_for(waiting(seen.making(), error.to_string()))),
        };
        if let Some(idle) = source::let_go(seen, config, record) {
            return Some(Decision::Record(Box::new(idle)));
        }
        if seen.class.is_none() {
            let spec = seen.claim.spec.as_ref();
            let class = spec.and_then(|spec| spec.storage_class_name.as_deref());
            let class = class.unwrap_or_default();
            let text = format!("StorageClass {class:?} is gone: create it again, or delete the claim");
            return Some(Decision::wait_for(waiting(seen.making(), text)));
        }
        (seen.waits_for_consumer() && seen.selected().is_none()).then_some(Decision::Rest)
    }

    fn request(&self) -> Result<Start, Box<ClaimDecision>> {
        let Progress {
            record, config, now, ..
        } = self.progress;
        let (seen, Some(config)) = (self.seen, config) else {
            return Err(Box::new(Decision::Rest));
        };
        let mut next = self.progress.next(config);
        // What an attempt that is gone has made on a node's disk went with that node.
        let is_lost = config.is_node_local() && (seen.nodes)(&next.node).is_none();
        let left = record.map(|record| Record {
            may_exist: record.may_exist || next.may_exist && !is_lost,
            ..record.clone()
        });
        let unfitting = |unfit: &Unfit| Box::new(reschedule(seen, left.as_ref(), unfit, None, now));
        let may_exist = left.as_ref().is_some_and(|left| left.may_exist);
        let node = place(seen, config).map_err(|gone| unfitting(&Unfit::Gone(gone)))?;
        if let Some(unfit) = unfit(config, node.as_ref()).filter(|_| !may_exist) {
            return Err(unfitting(&unfit));
        }
        let moved = node
            .as_ref()
            .is_some_and(|node| !next.node.is_empty() && next.node != node.name);
        if let Some(left) = left.filter(|left| moved && config.is_node_local() && left.may_exist) {
            // The scheduler chose another node, and the old one may hold a volume.
            return Err(Box::new(Decision::Own(ForClaim::Refuse(Box::new(Refuse {
                record: Record { refused: true, ..left },
                volumes: vec![],
                say: None,
                run: None,
            })))));
        }
        if moved || (!next.node.is_empty() && (seen.nodes)(&next.node).is_none()) {
            // Without a volume on it, or gone together with what was on it.
            next.node.clear();
        }
        let Asked { request, from } = asked(seen, config, node.as_ref()).map_err(|error| {
            Box::new(Decision::wait_for(if error.is_wait() {
                waiting(seen.making(), error.to_string())
            } else {
                Note::warning(reasons::BAD_CLAIM, action(seen.making()), error.to_string())
            }))
        })?;
        if let Some(node) = node {
            next.node = node.name;
        }
        if let Some(from) = from {
            next.source = from;
        }
        // A volume on a node's own disk is made where it will be used, and retried where it was begun.
        let pinned = config.is_node_local() && !next.node.is_empty();
        Ok(Start {
            node: pinned.then(|| next.node.clone()),
            allowed: allowed(seen.class, config, pinned),
            ..self.progress.start(config, next, request)
        })
    }

    fn apply(&self, run: &Run, record: &Record, finish: &Finish) -> Result<ClaimDecision, Finish> {
        made(self.seen, record, run, finish, self.progress.now)
    }

    fn meanwhile(&self, record: &Record) -> Option<ClaimDecision> {
        note_node(self.seen, record)
    }

    /// Where the node was at fault, the scheduler is asked for another.
    fn fail(&self, record: &Record, finish: &Finish) -> ClaimDecision {
        let seen = self.seen;
        let local = seen.config.as_ref().is_ok_and(|config| config.is_node_local());
        if let Err(gone) = selected(seen) {
            // What is on the node has gone with it.
            let is_lost = local && seen.provision_run.and_then(Run::node) == Some(&*gone);
            let made = Record {
                may_exist: record.may_exist || finish.may_have_run && !is_lost,
                ..record.clone()
            };
            let run = seen.provision_run.map(|run| to_remove(run, finish));
            return reschedule(seen, Some(&made), &Unfit::Gone(gone), run, self.progress.now);
        }
        let mut failed = self.progress.failed(record, finish);
        if local
            && undo::given(seen).is_none()
            && seen.waits_for_consumer()
            && finish.outcome == Outcome::Retry
            && record.attempt.is_multiple_of(ATTEMPTS_PER_NODE)
        {
            // This node can't: undo what is there, then let the scheduler choose again.
            failed.record.refused = true;
            failed.record.not_before = None;
        }
        Decision::Fail(failed)
    }
}

/// The class's `allowedTopologies`, which hold where the run decides on which node the volume is. Elsewhere the
/// scheduler has kept to them already, or the storage can be reached from every node.
fn allowed(class: Option<&StorageClass>, config: &ProvisionerConfig, pinned: bool) -> Vec<TopologySelectorTerm> {
    topologies(class.filter(|_| config.is_node_local() && !pinned)).to_vec()
}

/// The class's `allowedTopologies`.
fn topologies(class: Option<&StorageClass>) -> &[TopologySelectorTerm] {
    class
        .and_then(|class| class.allowed_topologies.as_deref())
        .unwrap_or_default()
}

/// What the image is asked to make.
struct Asked {
    request: Request,
    /// What it copies, for the record.
    from: Option<String>,
}

fn asked(seen: &ObservedClaim<'_>, config: &ProvisionerConfig, node: Option<&Node>) -> Result<Asked, ClaimError> {
    let kind = seen.making();
    config.check_offered(kind)?;
    let request = Request {
        attributes: attributes::of_claim(seen)?,
        ..request::for_claim(kind, seen.claim, node, [].into(), seen.surroundings(config))?
    };
    Ok(match source::find(seen, config)? {
        Some(Found {
            source,
            node: _,
            snapshot,
            name,
        }) => Asked {
            request: Request {
                source: Some(source),
                snapshot,
                ..request
            },
            from: Some(name),
        },
        None => Asked { request, from: None },
    })
}

/// The image says that the volume is there.
fn made(
    seen: &ObservedClaim<'_>,
    record: &Record,
    run: &Run,
    finish: &Finish,
    now: Timestamp,
) -> Result<ClaimDecision, Finish> {
    let request = run.request().map_err(|error| finish.refused(error.to_string()))?;
    let Some(volume) = seen.volumes.first() else {
        return described(seen, record, run, &request, finish, now);
    };
    let refusals = refusals(seen, record, seen.volumes);
    if refusals.is_empty() {
        let lacking = lacking(seen, record, run, &request, volume);
        return Ok(accept(seen, record, (volume, lacking), now));
    }
    let refusals = texts(&refusals);
    if !seen.looked_up {
        // What was watched may be old.
        return Ok(Decision::Own(ForClaim::LookUp));
    }
    let delay = seen.limits.backoff.delay(record.attempt, seen.uid());
    let mut next = record.failed(&refusals, later(now, delay), true);
    next.refused = true;
    next.not_before = None;
    Ok(Decision::Own(ForClaim::Refuse(Box::new(Refuse {
        record: next,
        volumes: seen.volumes.iter().map(|volume| name_and_uid(volume)).collect(),
        say: Some(Note::warning(
            reasons::REFUSED_VOLUME,
            action(seen.making()),
            format!("the PersistentVolume that the image made is refused and removed: {refusals}"),
        )),
        run: Some(run.to_remove()),
    }))))
}

/// The image says that the volume is there, and no PV is seen: the message describes it, where the ConfigMap has that so.
fn described(
    seen: &ObservedClaim<'_>,
    record: &Record,
    run: &Run,
    request: &Request,
    finish: &Finish,
    now: Timestamp,
) -> Result<ClaimDecision, Finish> {
    let config = match seen.config {
        Ok(config) => config,
        Err(error) => return Ok(Decision::wait_for(waiting(seen.making(), error.to_string()))),
    };
    match volume(seen, config, record, run, request, finish) {
        Ok(volume) => {
            let made = ForAccepted::Make(Box::new(volume.clone()));
            Ok(accept(seen, record, (&volume, made), now))
        }
        // The image may have made one, and what was watched be old.
        Err(_) if !seen.looked_up => Ok(Decision::Own(ForClaim::LookUp)),
        Err(Unmade { why, is_final: false }) => Err(finish.refused(why)),
        Err(Unmade { why, is_final: true }) => Err(Finish {
            outcome: Outcome::GiveUp,
            ..finish.refused(why)
        }),
    }
}

/// Why no PV is made of what the image said.
struct Unmade {
    why: String,
    /// The next attempt would be refused too: see [`Refusal::is_final`].
    is_final: bool,
}

impl From<String> for Unmade {
    fn from(why: String) -> Self {
        Self { why, is_final: false }
    }
}

/// The PV that the message describes, or why it can't be made.
fn volume(
    seen: &ObservedClaim<'_>,
    config: &ProvisionerConfig,
    record: &Record,
    run: &Run,
    request: &Request,
    finish: &Finish,
) -> Result<PersistentVolume, Unmade> {
    let source = config.volume_source.ok_or_else(|| {
        format!(
            "the image exited with 0 but made no PersistentVolume named {}: have it create one, or set \
             \"volume-source\" in the ConfigMap",
            request.pv_name
        )
    })?;
    let printed = Printed::parse(&finish.message).map_err(|error| error.to_string())?;
    let node = node_of_volume(seen, config, run);
    if config.is_node_local() && node.is_none() {
        return Err("the node that the volume was made on has left the cluster"
            .to_owned()
            .into());
    }
    let volume = persistent_volume::build(request, config, source, printed, node.as_ref(), topologies(seen.class));
    // What would be refused is not made: a Secret of another namespace, the whole pool.
    let refusals = refusals(seen, record, &[Arc::new(volume.clone())]);
    if !refusals.is_empty() {
        return Err(Unmade {
            why: format!("the volume that the image described is refused: {}", texts(&refusals)),
            is_final: refusals.iter().any(Refusal::is_final),
        });
    }
    Ok(volume)
}

fn texts(refusals: &[Refusal]) -> String {
    let texts: Vec<_> = refusals.iter().map(Refusal::to_string).collect();
    texts.join("; ")
}

fn refusals(seen: &ObservedClaim<'_>, record: &Record, volumes: &[Arc<PersistentVolume>]) -> Vec<Refusal> {
    let pv_name = persistent_volume::name_for(seen.uid());
    // A copy is where its source is, wherever the scheduler wanted it.
    let copied = || match (seen.provision_run, seen.config) {
        (Some(run), Ok(config)) if !record.source.is_empty() => node_of_volume(seen, config, run),
        _ => None,
    };
    let node = copied().or_else(|| seen.selected().and_then(|node| (seen.nodes)(node)));
    // Where the image ran, rather than what the record says: that is on the claim, which is its user's.
    let ran_in = seen.provision_run.and_then(Run::namespace);
    let recorded = record.config.split_once('/').map_or("", |(namespace, _)| namespace);
    let class_options = seen
        .class
        .and_then(|class| class.mount_options.clone())
        .unwrap_or_default();
    let expected = Expected {
        claim: seen.claim,
        pv_name: &pv_name,
        config_namespace: ran_in.unwrap_or(recorded),
        node: node.as_ref(),
        class_options: &class_options,
        client_image: seen
            .config
            .as_ref()
            .ok()
            .and_then(|config| config.client_image.as_deref()),
        attaches: match seen.config {
            Ok(config) => config.offers(Operation::Attach),
            // What a ConfigMap lists that is gone is not known.
            Err(_) => volumes.iter().any(|volume| attach::secret_of(volume).is_some()),
        },
    };
    volumes
        .iter()
        .flat_map(|volume| check(volume, &expected))
        // Which image a ConfigMap names that is gone is not known.
        .filter(|refusal| seen.config.is_ok() || !matches!(refusal, Refusal::ClientImage(_)))
        .collect()
}

fn accept(
    seen: &ObservedClaim<'_>,
    record: &Record,
    (volume, lacking): (&PersistentVolume, ForAccepted),
    now: Timestamp,
) -> ClaimDecision {
    let (pv_name, _) = name_and_uid(volume);
    let took = elapsed(record.since, now);
    let attempts = match record.attempt {
        1 => String::new(),
        n => format!(" at attempt {n}"),
    };
    let run = seen.provision_run.filter(|run| run.is_done());
    let made_by = run.map_or_else(String::new, |run| format!(": {run} made it"));
    Decision::Own(ForClaim::Accept(Box::new(Accept {
        operation: seen.making(),
        volume: lacking,
        claim_patch: claim_patch(seen),
        connection: attach::secret_of(volume),
        say: done(
            seen.making(),
            format!("volume {pv_name} exists after {} s{attempts}{made_by}", took.as_secs()),
        ),
        pv_name,
        runs: leftovers(seen),
        took,
    })))
}

/// What a PV lacks of what Mooring keeps on it.
fn lacking(
    seen: &ObservedClaim<'_>,
    record: &Record,
    run: &Run,
    request: &Request,
    volume: &PersistentVolume,
) -> ForAccepted {
    let config = seen.config.as_ref().ok();
    let node = config.and_then(|config| node_of_volume(seen, config, run));
    let meta = &volume.metadata;
    let has = meta.annotations.clone().unwrap_or_default();
    let by = has.get(annotations::PROVISIONED_BY).filter(|by| is_provisioner(by));
    let wanted = persistent_volume::annotations(request, &record.config, by.map_or(PROVISIONER, String::as_str));
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    let spec = volume.spec.clone().unwrap_or_default();
    let policy = spec.persistent_volume_reclaim_policy.as_deref();
    // It can be set once: an image's own stays.
    let affinity = persistent_volume::affinity(
        persistent_volume::client_of(&spec),
        node.as_ref(),
        topologies(seen.class),
    );
    let affinity = affinity.filter(|_| spec.node_affinity.is_none());
    let noted = wanted.iter().all(|(key, value)| has.get(key) == Some(value));
    let held = finalizers.iter().any(|name| name == finalizers::VOLUME);
    if noted && held && policy == Some(request.reclaim_policy.as_str()) && affinity.is_none() {
        return ForAccepted::Nothing;
    }
    if !held {
        finalizers.push(finalizers::VOLUME.to_owned());
    }
    let mut patch = json!({
        "metadata": {
            "resourceVersion": meta.resource_version,
            "annotations": wanted,
            "finalizers": finalizers,
        },
        "spec": {"persistentVolumeReclaimPolicy": request.reclaim_policy},
    });
    if let Some(affinity) = affinity {
        patch["spec"]["nodeAffinity"] = json!(affinity);
    }
    ForAccepted::Patch(patch)
}

/// The end of a claim's provisioning. From here on it is kube-controller-manager's, which binds it; it may have done so
/// already, and the patch goes through in any case: it expects this record on this claim, not this version of it.
fn claim_patch(seen: &ObservedClaim<'_>) -> Value {
    let meta = &seen.claim.metadata;
    let record = Record::path();
    let mut patch = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": meta.uid}),
        json!({"op": "test", "path": record, "value": seen.annotation(annotations::OPERATION)}),
        json!({"op": "remove", "path": record}),
    ];
    let mut finalizers = meta.finalizers.iter().flatten();
    if let Some(at) = finalizers.position(|name| name == finalizers::CLAIM) {
        let held = format!("/metadata/finalizers/{at}");
        patch.push(json!({"op": "test", "path": held, "value": finalizers::CLAIM}));
        patch.push(json!({"op": "remove", "path": held}));
    }
    Value::Array(patch)
}

/// The node that was selected; its name if it has left the cluster.
fn selected(seen: &ObservedClaim<'_>) -> Result<Option<Node>, String> {
    if !seen.waits_for_consumer() {
        return Ok(None);
    }
    match seen.selected() {
        None => Ok(None),
        Some(name) => (seen.nodes)(name).map(Some).ok_or_else(|| name.to_owned()),
    }
}

/// The node where the volume is to be made: the only one that has what it copies, or else the selected one. The
/// scheduler does not know of the source. It finds that the new volume is on another node than it has chosen, and
/// places the Pod there.
fn place(seen: &ObservedClaim<'_>, config: &ProvisionerConfig) -> Result<Option<Node>, String> {
    match source::find(seen, config) {
        Ok(Some(Found { node: Some(node), .. })) => Ok(Some(node)),
        _ => selected(seen),
    }
}

/// Why nothing can be made for the selected node.
enum Unfit {
    /// This node has left the cluster.
    Gone(String),
    /// This node can't mount the volumes of this client.
    Unable(String, &'static str),
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gone(node) => write!(f, "node {node} has left the cluster"),
            Self::Unable(node, client) => write!(
                f,
                "node {node} can't mount volumes of {client} (kubectl describe node {node} says what to do)"
            ),
        }
    }
}

/// Whether a volume that lives on the selected node could neither be made nor used there. One that lives elsewhere is
/// used from another node: its node affinity says so to the scheduler.
fn unfit(config: &ProvisionerConfig, node: Option<&Node>) -> Option<Unfit> {
    let node = node.filter(|_| config.is_node_local())?;
    let used = config.volume_source.unwrap_or(VolumeSourceKind::Csi);
    // A run has the pool by CSI, whichever way the volume is used.
    let needed = [(ClientName::POOL, VolumeSourceKind::Csi), (ClientName::LOCAL, used)];
    let (client, _) = needed.into_iter().find(|(client, by)| is_unable(node, client, *by))?;
    Some(Unfit::Unable(node.name.clone(), client))
}

fn reschedule(
    seen: &ObservedClaim<'_>,
    record: Option<&Record>,
    unfit: &Unfit,
    run: Option<RunRef>,
    now: Timestamp,
) -> ClaimDecision {
    let reason = match unfit {
        Unfit::Gone(_) => reasons::NODE_GONE,
        Unfit::Unable(..) => reasons::NODE_UNABLE,
    };
    Decision::Own(ForClaim::Reschedule(Box::new(Reschedule {
        record: record.map(|record| Record {
            attempt: record.attempt.saturating_add(1),
            // Where it may exist, it has to be removed first.
            node: if record.may_exist {
                record.node.clone()
            } else {
                String::new()
            },
            // It has not begun, so there is nothing to undo of it.
            not_before: Some(whole_seconds(now)),
            last_error: unfit.to_string(),
            ..record.clone()
        }),
        say: Note::warning(
            reason,
            action(seen.making()),
            format!("the scheduler selected a node that does not fit: {unfit}. Mooring asks the scheduler for another"),
        ),
        run,
    })))
}

/// Where a volume that lives on a node was begun must be known before it is over.
fn note_node(seen: &ObservedClaim<'_>, record: &Record) -> Option<ClaimDecision> {
    let local = seen.config.as_ref().is_ok_and(|config| config.is_node_local());
    let node = seen.provision_run.and_then(Run::node)?;
    (local && record.node != node).then(|| {
        Decision::Record(Box::new(Record {
            node: node.to_owned(),
            ..record.clone()
        }))
    })
}

/// The node that a volume lives on, if it lives on one.
fn node_of_volume(seen: &ObservedClaim<'_>, config: &ProvisionerConfig, run: &Run) -> Option<Node> {
    if !config.is_node_local() {
        return None;
    }
    (seen.nodes)(run.node()?)
}

/// Every run of the claim that is not being removed already. A deletion that is its PV's own is that one's.
fn leftovers(seen: &ObservedClaim<'_>) -> Vec<RunRef> {
    let is_of_volume = |run: &Run| {
        let mut uids = seen.volumes.iter().filter_map(|volume| volume.metadata.uid.as_deref());
        uids.any(|uid| run.belongs_to(uid))
    };
    let delete_run = seen.delete_run.filter(|run| !is_of_volume(run));
    let changes = seen.changes.values().map(Some);
    removable([seen.provision_run, delete_run].into_iter().chain(changes))
}

#[cfg(test)]
mod tests;
