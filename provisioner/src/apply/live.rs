//! What a controller needs of the API as it is now before it can decide: what was watched may be old.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::{Api, PostParams};

use super::{ApplyError, Shared};
use crate::operation::describe::SubjectKind;
use crate::process::call::{CallError, is_conflict};
use crate::run::Run;
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
