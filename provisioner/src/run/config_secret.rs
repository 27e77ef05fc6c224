//! The Secret that a ConfigMap names, whose keys become properties.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use mooring_contract::names::FLEX_DRIVER;

use super::error::RunError;
use crate::config::ProvisionerConfig;
use crate::process::objects::Objects;

#[derive(Default)]
pub(super) struct ConfigSecret {
    pub(super) data: BTreeMap<String, ByteString>,
    /// The kubelet gives it to Mooring's driver.
    pub(super) for_driver: bool,
}

impl ConfigSecret {
    /// As it is now.
    pub(super) async fn read(client: &Client, config: &ProvisionerConfig) -> Result<Self, RunError> {
        let Some(name) = &config.secret_name else {
            return Ok(Self::default());
        };
        let namespace = &config.reference.namespace;
        let secrets: Objects<Secret> = Objects::within(client, namespace);
        let secret = secrets.read(name).await?.ok_or_else(|| RunError::NoSecret {
            name: name.clone(),
            namespace: namespace.clone(),
        })?;
        Ok(Self {
            for_driver: secret.type_.as_deref() == Some(FLEX_DRIVER),
            data: secret.data.unwrap_or_default(),
        })
    }
}
