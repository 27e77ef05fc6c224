//! What a controller needs of the API as it is now before it can decide: what was watched may be old.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use mooring_contract::request::Source;

use super::{ApplyError, Shared};
use crate::cache::store::key;
use crate::operation::describe::SubjectKind;
use crate::operation::record::Record;
use crate::process::call::{CallError, is_conflict};
use crate::run::observed::Carrier;
use crate::run::{Kind, Run, RunId};
use crate::volume::persistent_volume::{self, is_ours};

/// Makes a PV; one that is there already is judged like any other.
pub(crate) async fn make(
    shared: &Shared,
    volume: &PersistentVolume,
    uid: &str,
) -> Result<Vec<Arc<PersistentVolume>>, ApplyError> {
    let api: Api<PersistentVolume> = Api::all(shared.context.client.clone());
    match api.create(&PostParams::default(), volume).await {
        Ok(volume) => Ok(vec![Arc::new(volume)]),
        Err(error) if is_conflict(&error) => look_up(shared, uid, vec![]).await,
        Err(source) => Err(CallError::new("create", SubjectKind::Volume.name(), &volume.name_any(), source).into()),
    }
}

/// The claim's PVs with the one of its name as the API has it now.
pub(crate) async fn look_up(
    shared: &Shared,
    uid: &str,
    known: Vec<Arc<PersistentVolume>>,
) -> Result<Vec<Arc<PersistentVolume>>, ApplyError> {
    let name = persistent_volume::name_for(uid);
    let api: Api<PersistentVolume> = Api::all(shared.context.client.clone());
    let live = api.get_opt(&name).await;
    let live = live.map_err(|source| CallError::new("read", SubjectKind::Volume.name(), &name, source))?;
    let others = known.into_iter().filter(|volume| volume.name_any() != name);
    Ok(live.map(Arc::new).into_iter().chain(others).collect())
}

/// Whether neither claim nor PV is there, read as they are now.
pub(crate) async fn is_orphan(shared: &Shared, run: &Run, uid: &str) -> Result<bool, ApplyError> {
    let client = &shared.context.client;
    if let Some((namespace, name)) = run.claim() {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
        let claim = claims.get_metadata_opt(name).await;
        let claim = claim.map_err(|source| CallError::new("read", SubjectKind::Claim.name(), name, source))?;
        if claim.is_some_and(|claim| claim.metadata.uid.as_deref() == Some(uid)) {
            return Ok(false);
        }
    }
    let name = persistent_volume::name_for(uid);
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = volumes.get_opt(&name).await;
    let volume = volume.map_err(|source| CallError::new("read", SubjectKind::Volume.name(), &name, source))?;
    Ok(!volume.is_some_and(|volume| is_ours(&volume)))
}

/// Whether the claim of what is to be copied is there and stays, read as it is now.
///
/// A copy's record is written before this, and all claims come by one watch, in the order of their changes. So whoever
/// sees by that watch that this claim is gone sees the record too, unless this has said no: see [`copied_by`].
pub(crate) async fn is_there_to_copy(client: &Client, namespace: &str, source: &Source) -> Result<bool, ApplyError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claim = claims.get_metadata_opt(&source.pvc_name).await;
    let claim = claim.map_err(|error| CallError::new("read", SubjectKind::Claim.name(), &source.pvc_name, error))?;
    Ok(claim.is_some_and(|claim| {
        claim.metadata.uid.as_deref() == Some(&source.pvc_uid) && claim.metadata.deletion_timestamp.is_none()
    }))
}

/// The claim whose volume is being made as a copy of this PV, whose own claim is gone.
pub(crate) async fn copied_by(shared: &Shared, volume: &PersistentVolume) -> Result<Option<String>, ApplyError> {
    let name = volume.name_any();
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
        if record.copies(&name) || runs(shared, &copy, &record).await? {
            return Ok(Some(key(&*copy)));
        }
    }
    Ok(None)
}

/// Whether a run of a claim's copying has not ended. Read as it is now: the watch of runs may lag behind the record.
async fn runs(shared: &Shared, copy: &PersistentVolumeClaim, record: &Record) -> Result<bool, ApplyError> {
    let Some((namespace, _)) = record.run.split_once('/') else {
        return Ok(false);
    };
    let name = RunId::new(Kind::Clone, &copy.uid().unwrap_or_default()).name();
    let carriers: Api<Carrier> = Api::namespaced(shared.context.client.clone(), namespace);
    let found = carriers.get_opt(&name).await;
    let found = found.map_err(|source| CallError::new("read", "Pod", &name, source))?;
    Ok(found.is_some_and(|found| !Run::of(found).is_over()))
}
