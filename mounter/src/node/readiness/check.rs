//! One check of the node.

use serde::Serialize;

/// Nothing, or what to do.
pub type ClientVerdict = Result<(), String>;

/// Checks by name, for those that a client depends on.
pub(super) const PLUGIN_DIRECTORY: &str = "plugin-directory";
pub(super) const LOOP_DEVICES: &str = "loop-devices";
pub(super) const POOL: &str = "pool";
pub(super) const FUSE: &str = "fuse";
pub(super) const HOST_NAMESPACE: &str = "host-namespace";
pub(super) const ISCSID: &str = "iscsid";

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// The name of what was checked, such as `fuse`.
    pub name: &'static str,
    pub ok: bool,
    /// Whether no volume at all can be mounted without it.
    pub required: bool,
    /// What is there, or what to do.
    pub message: String,
}

impl Check {
    pub(super) fn new(name: &'static str, required: bool, result: Result<String, String>) -> Self {
        Self {
            name,
            ok: result.is_ok(),
            required,
            message: result.unwrap_or_else(|cure| cure),
        }
    }

    /// Nothing if it is as it should be, else what to do.
    pub(super) fn verdict(&self) -> ClientVerdict {
        if self.ok { Ok(()) } else { Err(self.message.clone()) }
    }
}
