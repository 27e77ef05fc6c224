//! What a controller needs of the API as it is now before it can decide: what was watched may be old.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use mooring_contract::names::{OUT_OF_SERVICE, annotations};
use mooring_contract::request::{Request, Snapshot, Source};

use super::{ApplyError, Shared};
use crate::cache::key;
use crate::operation::attach::observed::{Look, NodeFacts, NodeMounter, ObservedNode};
use crate::operation::content;
use crate::operation::describe::{Reads, SubjectKind, describe};
use crate::operation::record::Record;
use crate::process::call::{Answer as _, GONE, Tolerant as _};
use crate::process::objects::{Kind, Objects};
use crate::run::carrier::{Carrier, selector};
use crate::run::end::find;
use crate::run::{Run, RunId};
use crate::volume::content_view::ContentView;
use crate::volume::group_snapshot::VolumeGroupSnapshotContent;
use crate::volume::persistent_volume::{self, is_ours};
use crate::volume::snapshot::VolumeSnapshotContent;

/// The claim's PVs with the one of its name as the API has it now.
pub(crate) async fn look_up(
    shared: &Shared,
    uid: &str,
    known: Vec<Arc<PersistentVolume>>,
) -> Result<Vec<Arc<PersistentVolume>>, ApplyError> {
    let name = persistent_volume::name_for(uid);
    let live = Objects::all(&shared.context.client).read(&name).await?;
    let others = known.into_iter().filter(|volume| volume.name_any() != name);
    Ok(live.map(Arc::new).into_iter().chain(others).collect())
}

fn claims(client: &Client, namespace: &str) -> Objects<PersistentVolumeClaim> {
    Objects::within(client, namespace)
}

/// Whether this is the object of this uid, and nobody has deleted it.
fn is_staying(object: &ObjectMeta, uid: &str) -> bool {
    object.uid.as_deref() == Some(uid) && object.deletion_timestamp.is_none()
}

/// What there is of what a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remains {
    /// The claim, the PV that Mooring holds, or the content.
    Owner,
    /// Only a PV of the run's name, which Mooring does not hold.
    OtherVolume,
    Nothing,
}

/// What there is of what a run is for, read as it is now.
pub(crate) async fn remains(shared: &Shared, run: &Run, uid: &str) -> Result<Remains, ApplyError> {
    let client = &shared.context.client;
    match run.operation().map(|kind| describe(kind).subject) {
        Some(SubjectKind::Snapshot) => return content_of::<VolumeSnapshotContent>(client, run, uid).await,
        Some(SubjectKind::Group) => return content_of::<VolumeGroupSnapshotContent>(client, run, uid).await,
        Some(SubjectKind::Claim | SubjectKind::Volume | SubjectKind::Config) | None => {}
    }
    if let Some((namespace, name)) = run.claim() {
        let claim = claims(client, namespace).meta(name).await?;
        if claim.is_some_and(|claim| claim.uid.as_deref() == Some(uid)) {
            return Ok(Remains::Owner);
        }
    }
    let name = run.pv_name().unwrap_or_else(|| persistent_volume::name_for(uid));
    let volumes: Objects<PersistentVolume> = Objects::all(client);
    Ok(match volumes.read(&name).await? {
        Some(volume) if is_ours(&volume) => Remains::Owner,
        Some(_) => Remains::OtherVolume,
        None => Remains::Nothing,
    })
}

/// Whether the content of this uid, which a run is for, is there. Where the run does not say its name, it may be.
async fn content_of<K: Kind>(client: &Client, run: &Run, uid: &str) -> Result<Remains, ApplyError> {
    let Some(snapshot) = run.request().ok().and_then(|request| request.snapshot) else {
        return Ok(Remains::Owner);
    };
    let contents: Objects<K> = Objects::all(client);
    Ok(match contents.meta(&snapshot.content_name).await? {
        Some(content) if content.uid.as_deref() == Some(uid) => Remains::Owner,
        Some(_) | None => Remains::Nothing,
    })
}

/// Whether the source claim exists and stays, read from the API now.
///
/// A copy's record is written before this, and all claims come by one watch, in the order of their changes. So a
/// controller that sees this claim go sees the record too, unless this has said no: see [`copied_by`].
pub(crate) async fn is_there_to_copy(client: &Client, namespace: &str, source: &Source) -> Result<bool, ApplyError> {
    let namespace = Some(source.pvc_namespace.as_str())
        .filter(|there| !there.is_empty())
        .unwrap_or(namespace);
    let claim = claims(client, namespace).meta(&source.pvc_name).await?;
    Ok(claim.is_some_and(|claim| is_staying(&claim, &source.pvc_uid)))
}

/// Whether the content of the snapshot to restore exists and stays, read from the API now.
///
/// The run is there before this, without its properties. So a controller that sees the content go finds the run, unless
/// this has said no: see [`restored_by`].
pub(crate) async fn is_there_to_restore(client: &Client, snapshot: &Snapshot) -> Result<bool, ApplyError> {
    let contents: Objects<VolumeSnapshotContent> = Objects::all(client);
    match contents.read(&snapshot.content_name).await? {
        Some(content) if is_staying(&content.metadata, &snapshot.content_uid) => {
            is_group_staying(client, &content).await
        }
        Some(_) | None => Ok(false),
    }
}

/// Whether the group that this snapshot belongs to, if it belongs to one, is not going: its snapshots go before their
/// own contents do.
async fn is_group_staying(client: &Client, content: &VolumeSnapshotContent) -> Result<bool, ApplyError> {
    let Some(handle) = content.view().of_group else {
        return Ok(true);
    };
    let groups: Api<VolumeGroupSnapshotContent> = Api::all(client.clone());
    let groups = groups.list(&ListParams::default()).await;
    let groups = groups.or_failed_to("list", SubjectKind::Group.name(), "of the cluster");
    let Some(groups) = groups.unless(GONE)? else {
        return Ok(true);
    };
    let of_it = |group: &VolumeGroupSnapshotContent| ContentView::from(group).handle() == Some(handle);
    let going = |group: &VolumeGroupSnapshotContent| group.metadata.deletion_timestamp.is_some();
    Ok(!groups.iter().any(|group| of_it(group) && going(group)))
}

/// Whether the source claims exist and stay; see [`is_there_to_restore`].
pub(crate) async fn is_there_to_snapshot(client: &Client, request: &Request) -> Result<bool, ApplyError> {
    let claims = claims(client, &request.pvc_namespace);
    let members = request.members().iter();
    let members: Vec<_> = members.map(|member| (&member.pvc_name, &member.pvc_uid)).collect();
    let wanted = if members.is_empty() {
        vec![(&request.pvc_name, &request.pvc_uid)]
    } else {
        members
    };
    for (name, uid) in wanted {
        let claim = claims.meta(name).await?;
        // One that is being deleted stays for as long as somebody holds it, or else this run holds its volume.
        if claim.is_none_or(|claim| claim.uid.as_ref() != Some(uid)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How fresh an answer has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fresh {
    /// As it was watched, which may be old: enough to wait for what is there.
    Watched,
    /// As the API has it now, which takes a list.
    Now,
}

/// The claim whose volume is being made of this snapshot, or of one of this group, which is to go: `namespace/name`.
pub(crate) async fn restored_by(
    shared: &Shared,
    content: &ContentView<'_>,
    namespace: &str,
    fresh: Fresh,
) -> Result<Option<String>, ApplyError> {
    let uid = content.uid();
    let members = content.member_names();
    let of = |request: &Request| {
        let snapshot = request.snapshot.as_ref();
        snapshot.is_some_and(|snapshot| snapshot.content_uid == uid || members.contains(&snapshot.name))
    };
    let request = going_on(shared, namespace, fresh, Reads::Snapshot, of).await?;
    Ok(request.map(|request| format!("{}/{}", request.pvc_namespace, request.pvc_name)))
}

/// What is asked of a run that reads this and has not ended.
async fn going_on(
    shared: &Shared,
    namespace: &str,
    fresh: Fresh,
    reads: Reads,
    wanted: impl Fn(&Request) -> bool,
) -> Result<Option<Request>, ApplyError> {
    let runs: Vec<Run> = match fresh {
        Fresh::Watched => {
            let all = shared.cache.runs();
            all.filter(|run| run.namespace() == Some(namespace)).collect()
        }
        Fresh::Now => {
            let carriers: Api<Carrier> = Api::namespaced(shared.context.client.clone(), namespace);
            let found = carriers.list(&ListParams::default().labels(&selector())).await;
            let found = found.or_failed_to("list", "provisioning Pods", namespace)?;
            let runs = found.items.into_iter().map(Run::of);
            runs.map(|run| shared.cache.reported(run)).collect()
        }
    };
    let is_open = |run: &Run| !run.is_over() && run.operation().is_some_and(|it| describe(it).reads == reads);
    let open = runs.into_iter().filter(is_open);
    let mut asked = open.filter_map(|run| run.request().ok());
    Ok(asked.find(wanted))
}

/// What is being made as a copy of this PV, whose own claim is gone: a claim, or a snapshot.
pub(crate) async fn copied_by(
    shared: &Shared,
    volume: &PersistentVolume,
    runs_in: Option<&str>,
    fresh: Fresh,
) -> Result<Option<String>, ApplyError> {
    let name = volume.name_any();
    if let Some(namespace) = runs_in.filter(|_| shared.cache.has_snapshots()) {
        let of_it = |request: &Request| request.is_about(&name);
        let taken = going_on(shared, namespace, fresh, Reads::SnapshotVolume, of_it).await?;
        if let Some(request) = taken
            && let Some(snapshot) = request.snapshot
        {
            let kind = describe(request.operation).subject.name();
            return Ok(Some(format!("{kind} {}", snapshot.content_name)));
        }
    }
    let Some(of) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Ok(None);
    };
    let (namespace, claim) = (of.namespace.as_deref(), of.name.as_deref());
    for copy in shared
        .cache
        .copies_of(namespace.unwrap_or_default(), claim.unwrap_or_default())
    {
        let Ok(Some(record)) = Record::on(&*copy) else { continue };
        if record.source != name {
            continue;
        }
        if record.copies(&name) || runs(shared, &copy, &record, fresh).await? {
            return Ok(Some(format!("claim {}", key(&*copy))));
        }
    }
    Ok(None)
}

/// Whether a run of a claim's copying has not ended. The watch of runs may lag behind the record.
async fn runs(
    shared: &Shared,
    copy: &PersistentVolumeClaim,
    record: &Record,
    fresh: Fresh,
) -> Result<bool, ApplyError> {
    let Some((namespace, _)) = record.run.split_once('/') else {
        return Ok(false);
    };
    let id = RunId::new(content::making(copy), &copy.uid().unwrap_or_default());
    let found = match fresh {
        Fresh::Watched => shared.cache.run(namespace, &id).into_iter().collect(),
        Fresh::Now => find(&shared.context.client, namespace, &id).await?,
    };
    Ok(found.into_iter().any(|run| !shared.cache.reported(run).is_over()))
}

/// A node as it is now, as far as an attachment of this PV goes by it.
pub(crate) async fn node_now(
    shared: &Shared,
    volume: &PersistentVolume,
    look: Look,
) -> Result<ObservedNode, ApplyError> {
    let nodes: Objects<Node> = Objects::all(&shared.context.client);
    let found = nodes.read(&look.node).await?;
    let in_use = format!("{}{}", annotations::NODE_ATTACHED_PREFIX, volume.name_any());
    let there = found.map(|node| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        let addresses = node.status.as_ref().and_then(|status| status.addresses.clone());
        NodeFacts {
            uid: node.uid().unwrap_or_default(),
            provider_id: node
                .spec
                .as_ref()
                .and_then(|spec| spec.provider_id.clone())
                .unwrap_or_default(),
            out_of_service: taints.into_iter().flatten().any(|taint| taint.key == OUT_OF_SERVICE),
            in_use: node.annotations().contains_key(&in_use),
            mounter: match node
                .annotations()
                .get(annotations::NODE_NOTES_ATTACHED)
                .map(String::as_str)
            {
                None => NodeMounter::Silent,
                Some(annotations::TAKES_SIGNED) => NodeMounter::Current,
                Some(_) => NodeMounter::Older,
            },
            addresses: addresses.into_iter().flatten().map(|address| address.address).collect(),
        }
    });
    Ok(ObservedNode { name: look.node, there })
}
