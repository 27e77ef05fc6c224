//! OpenStack's storage services in the cluster, for the classes that Cinder and Manila serve.

use anyhow::Result;
use mooring_contract::names::NAMESPACE;
use serde_json::json;

use mooring_testbed::install::apply;
use mooring_testbed::target::Target;

/// The Secret that such classes name. It is made here.
const SECRET: &str = "conform-openstack";

/// The share types of the classes `manila` and `manila-nfs`. The latter needs a further back end.
const SHARE_TYPE: &str = "conform";
const NFS_TYPE: &str = "conform-nfs";

/// Starts the services if a class has their Secret; whether it has.
pub fn start(target: &Target, class: &str) -> Result<bool> {
    if !class.contains(SECRET) {
        return Ok(false);
    }
    if class.contains(NFS_TYPE) {
        crate::serve_with_back_ends(target)?;
        crate::nfs_type(target, NFS_TYPE)?;
    } else {
        crate::serve(target)?;
        crate::share_type(target, SHARE_TYPE)?;
    }
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": NAMESPACE},
        "stringData": crate::login(target)?,
    });
    apply(target, &secret.to_string())?;
    Ok(true)
}

/// Removes the services with their data.
///
/// # Errors
/// If something of them could not be removed.
pub fn remove(target: &Target) -> Result<()> {
    crate::remove(target, true)
}
