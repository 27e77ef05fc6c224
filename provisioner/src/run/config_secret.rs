//! The Secret that a ConfigMap names, whose keys become properties.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;

use super::error::RunError;
use crate::config::ProvisionerConfig;
use crate::process::objects::Objects;

/// As it is now.
pub(super) async fn read(
    client: &Client,
    config: &ProvisionerConfig,
) -> Result<BTreeMap<String, ByteString>, RunError> {
    let Some(name) = &config.secret_name else {
        return Ok(BTreeMap::new());
    };
    let namespace = &config.reference.namespace;
    let secrets: Objects<Secret> = Objects::within(client, namespace);
    let secret = secrets.read(name).await?.ok_or_else(|| RunError::NoSecret {
        name: name.clone(),
        namespace: namespace.clone(),
    })?;
    Ok(secret.data.unwrap_or_default())
}
