//! What a controller needs of the API as it is now before it can decide: what was watched may be old.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use mooring_contract::names::annotations;

use super::{ApplyError, Shared, is_conflict};
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
        Err(source) => Err(ApplyError::api("create PersistentVolume", &volume.name_any(), source)),
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
    let live = live.map_err(|source| ApplyError::api("read PersistentVolume", &name, source))?;
    let others = known.into_iter().filter(|volume| volume.name_any() != name);
    Ok(live.map(Arc::new).into_iter().chain(others).collect())
}

/// Whether neither claim nor PV is there, read as they are now.
pub(crate) async fn is_orphan(shared: &Shared, pod: &Pod, uid: &str) -> Result<bool, ApplyError> {
    let client = &shared.context.client;
    if let Some((namespace, name)) = claim_of(pod) {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
        let claim = claims.get_metadata_opt(name).await;
        let claim = claim.map_err(|source| ApplyError::api("read claim", name, source))?;
        if claim.is_some_and(|claim| claim.metadata.uid.as_deref() == Some(uid)) {
            return Ok(false);
        }
    }
    let name = persistent_volume::name_for(uid);
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = volumes.get_opt(&name).await;
    let volume = volume.map_err(|source| ApplyError::api("read PersistentVolume", &name, source))?;
    Ok(!volume.is_some_and(|volume| is_ours(&volume)))
}

fn claim_of(pod: &Pod) -> Option<(&str, &str)> {
    pod.annotations().get(annotations::CLAIM)?.split_once('/')
}
