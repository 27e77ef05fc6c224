//! Operation `clone`. Manila copies no share: the share is made of a snapshot that is taken for it, and that goes when
//! the share is there. If the claim goes first, the snapshot goes with the share.

use serde_json::json;

use super::Manila;
use crate::error::OpenstackError;
use crate::storage::SNAPSHOT;

/// Begins the name of the snapshot; the rest is the name of the share that is made of it.
const PREFIX: &str = "copy-";

impl Manila<'_> {
    pub(super) fn clone_share(&self) -> Result<String, OpenstackError> {
        let name = self.copied();
        let done = self.make(|| {
            self.storage
                .save_as(&SNAPSHOT, &name, || self.source_share(), &json!({}))?;
            self.storage.to_restore(&SNAPSHOT, &name).map(Some)
        })?;
        self.storage.delete_copied(&name)?;
        Ok(done)
    }

    /// Name of the snapshot that is taken for this share.
    pub(super) fn copied(&self) -> String {
        format!("{PREFIX}{}", self.storage.given.request.pv_name)
    }

    fn source_share(&self) -> Result<String, OpenstackError> {
        let source = self.storage.given.request.source.as_ref();
        let name = source.map_or("", |source| &source.pv_name);
        let found = self.storage.standing(name, None)?;
        Ok(found.ok_or_else(|| self.storage.gone(name))?.id)
    }
}
