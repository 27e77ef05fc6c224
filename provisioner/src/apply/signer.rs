//! The key by which mounters know this controller's connections.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use mooring_contract::names::CONNECTION_KEYS;
use mooring_seal::signature::SigningKey;
use tokio::sync::OnceCell;

use super::ApplyError;
use crate::process::call::CallError;
use crate::process::objects::Objects;
use crate::run::error::RunError;

/// This process's key, made when something is signed first. Its public half is in ConfigMap [`CONNECTION_KEYS`] for as
/// long as a connection has its signature, also after this process.
#[derive(Clone, Default)]
pub struct Signer(Arc<OnceCell<SigningKey>>);

impl Signer {
    /// The key, which is published, also where somebody has taken it away. The other keys that are `in_use`, by id, stay
    /// published.
    pub async fn key(
        &self,
        client: &Client,
        namespace: &str,
        in_use: impl FnOnce() -> BTreeSet<String>,
    ) -> Result<&SigningKey, ApplyError> {
        let key = self.0.get_or_try_init(async || SigningKey::generate()).await;
        let key = key.map_err(RunError::from)?;
        publish(client, namespace, key, in_use).await?;
        Ok(key)
    }
}

async fn publish(
    client: &Client,
    namespace: &str,
    key: &SigningKey,
    in_use: impl FnOnce() -> BTreeSet<String>,
) -> Result<(), CallError> {
    let config_maps: Objects<ConfigMap> = Objects::within(client, namespace);
    let mut keys = config_maps.read_own(CONNECTION_KEYS).await?;
    if keys.data.as_ref().is_some_and(|data| data.contains_key(key.id())) {
        return Ok(());
    }
    // Only now: a connection may have been signed since with a key that was read.
    let in_use = in_use();
    let data = keys.data.get_or_insert_default();
    data.retain(|id, _| in_use.contains(id));
    data.insert(key.id().to_owned(), key.public());
    // As it was read: another controller may have published its key since.
    config_maps.replace(&keys).await.map(drop)
}
