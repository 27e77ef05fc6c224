//! The key by which mounters know this controller's connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use mooring_contract::names::{CONNECTION_KEYS, FIELD_MANAGER};
use mooring_seal::signature::SigningKey;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::ApplyError;
use crate::process::call::CallError;
use crate::run::error::RunError;

/// This process's key, made when something is signed first. Its public half is in ConfigMap [`CONNECTION_KEYS`] for as
/// long as a connection has its signature, also after this process.
#[derive(Clone, Default)]
pub struct Signer(Arc<OnceCell<SigningKey>>);

impl Signer {
    /// The key, which is published. The other keys that are `in_use`, by id, stay published.
    pub async fn key(
        &self,
        client: &Client,
        namespace: &str,
        in_use: impl FnOnce() -> BTreeSet<String>,
    ) -> Result<&SigningKey, ApplyError> {
        let make = async || {
            let key = SigningKey::generate().map_err(RunError::from)?;
            publish(client, namespace, &key, &in_use()).await?;
            Ok(key)
        };
        self.0.get_or_try_init(make).await
    }
}

async fn publish(
    client: &Client,
    namespace: &str,
    key: &SigningKey,
    in_use: &BTreeSet<String>,
) -> Result<(), CallError> {
    let failed = |verb: &'static str| move |source| CallError::new(verb, "ConfigMap", CONNECTION_KEYS, source);
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let found = api.get(CONNECTION_KEYS).await.map_err(failed("read"))?;
    let published = found.data.as_ref().map(BTreeMap::keys).into_iter().flatten();
    let unused = published.filter(|id| !in_use.contains(*id));
    let mut data: BTreeMap<&str, Value> = unused.map(|id| (id.as_str(), Value::Null)).collect();
    data.insert(key.id(), json!(key.public()));
    let patch = json!({"metadata": {"resourceVersion": found.resource_version()}, "data": data});
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patched = api.patch(CONNECTION_KEYS, &params, &Patch::Merge(patch)).await;
    patched.map(drop).map_err(failed("patch"))
}
