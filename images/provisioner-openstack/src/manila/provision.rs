//! Operations `provision` and `restore`: a share, empty or with the content of a snapshot, and who may mount it.

use mooring_contract::volume::keys;
use serde_json::Value;

use super::Manila;
use super::protocol::Protocol;
use crate::answer::options;
use crate::error::OpenstackError;
use crate::storage::{Restorable, SNAPSHOT};

impl Manila<'_> {
    pub(super) fn provision(&self) -> Result<String, OpenstackError> {
        self.make(|| Ok(None))
    }

    pub(super) fn restore(&self) -> Result<String, OpenstackError> {
        let name = self.storage.given.snapshot_name()?;
        self.make(|| self.storage.to_restore(&SNAPSHOT, name).map(Some))
    }

    /// Makes the share unless it is there, lets the nodes in, and answers where it is.
    pub(super) fn make(
        &self,
        snapshot: impl FnOnce() -> Result<Option<Restorable>, OpenstackError>,
    ) -> Result<String, OpenstackError> {
        let given = self.storage.given;
        let request = &given.request;
        if request.volume_mode == "Block" {
            return Err(OpenstackError::Refused(
                "a share is no device: ask for volumeMode Filesystem, or for a volume of Cinder".to_owned(),
            ));
        }
        let protocol = Protocol::asked(given)?;
        let access = self.access(protocol)?;
        let share = self.storage.ready(|asked| {
            asked["share_proto"] = Value::from(protocol.name());
            asked["is_public"] = Value::from(false);
            for (key, value) in [
                ("share_type", given.property("share-type")?),
                ("availability_zone", given.property("availability-zone")?),
                ("share_network_id", given.property("share-network")?),
            ] {
                if let Some(value) = value {
                    asked[key] = Value::from(value);
                }
            }
            if let Some(snapshot) = snapshot()? {
                asked["snapshot_id"] = Value::from(snapshot.id);
                // Manila notes a larger size, but its driver of CephFS leaves the share as large as the snapshot.
                if let Some(size) = snapshot.size {
                    asked["size"] = Value::from(size);
                }
            }
            Ok(())
        })?;
        if share.size < given.gib() {
            self.storage.expand(&share.id)?;
        }
        let secret = self.let_in(&share, &access)?;
        let export = self.export(&share, protocol)?;
        let driver = match protocol {
            Protocol::CephFs => given.property("driver")?,
            Protocol::Nfs | Protocol::Cifs => None,
        };
        let made = options([
            (keys::CLIENT, protocol.client().to_owned()),
            (keys::SOURCE, export.source),
            ("fs-name", export.fs_name),
            ("driver", driver.unwrap_or_default()),
        ]);
        self.storage.answer.volume(given, made, secret)?;
        Ok(format!(
            "share {} of Manila is {} ({} GiB)",
            request.pv_name,
            share.id,
            share.size.max(given.gib())
        ))
    }
}
