//! OpenStack's storage services in the cluster, for the classes that Cinder and Manila serve.

use anyhow::Result;
use mooring_contract::names::NAMESPACE;
use serde_json::json;

use crate::install::apply;
use crate::openstack;
use crate::target::Target;

/// The Secret that such classes name. It is made here.
const SECRET: &str = "conform-openstack";

/// The share type of class `manila`.
const SHARE_TYPE: &str = "conform";

/// Starts the services if a class has their Secret; whether it has.
pub(super) fn start(target: &Target, class: &str) -> Result<bool> {
    if !class.contains(SECRET) {
        return Ok(false);
    }
    openstack::serve(target)?;
    openstack::share_type(target, SHARE_TYPE)?;
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": NAMESPACE},
        "stringData": openstack::login(target)?,
    });
    apply(target, &secret.to_string())?;
    Ok(true)
}
