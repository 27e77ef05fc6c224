//! Operations `provision`, `clone` and `restore`: a volume, empty or with the content of another.

use mooring_contract::attachment::is_for_many;
use mooring_contract::volume::keys;
use serde_json::Value;

use super::{Cinder, place};
use crate::answer::options;
use crate::error::OpenstackError;
use crate::service::Microversion;
use crate::storage::{BACKUP, SNAPSHOT};

/// What a new volume holds: nothing, or the content of what has this id, under this key of Cinder's.
type Content = Option<(&'static str, String)>;

impl Cinder<'_> {
    pub(super) fn provision(&self) -> Result<String, OpenstackError> {
        self.make(|| Ok(None))
    }

    pub(super) fn clone_volume(&self) -> Result<String, OpenstackError> {
        self.make(|| {
            let given = self.storage.given;
            let name = given.request.source.as_ref().map_or("", |source| &source.pv_name);
            let id = given.source_option(keys::SOURCE).and_then(place::id);
            let gone = || self.storage.gone(name);
            let source = self.storage.standing(name, id)?.ok_or_else(gone)?;
            // Cinder refuses a volume that it is at work on, and a refusal is for good.
            let settled = self
                .storage
                .settled(&source.id, &format!("Cinder's work on volume {name}"))?;
            Ok(Some(("source_volid", settled.ok_or_else(gone)?.id)))
        })
    }

    pub(super) fn restore(&self) -> Result<String, OpenstackError> {
        let given = self.storage.given;
        let name = given.snapshot_name()?;
        self.make(|| {
            if given.request.snapshot.as_ref().is_some_and(|one| one.backup) {
                self.storage
                    .service
                    .needs(Microversion(3, 47), "a volume of a backup")?;
                return Ok(Some(("backup_id", self.storage.to_restore(&BACKUP, name)?.id)));
            }
            Ok(Some(("snapshot_id", self.storage.to_restore(&SNAPSHOT, name)?.id)))
        })
    }

    /// Makes the volume unless it is there, and answers where it is.
    fn make(&self, content: impl FnOnce() -> Result<Content, OpenstackError>) -> Result<String, OpenstackError> {
        let given = self.storage.given;
        let request = &given.request;
        let for_many = is_for_many(&request.access_modes);
        if for_many && request.volume_mode != "Block" {
            return Err(OpenstackError::Refused(
                "no file system of a Cinder volume can be used on several nodes: ask for access mode ReadWriteOnce, \
                 for volumeMode Block, or for a share of Manila"
                    .to_owned(),
            ));
        }
        let client = place::client(given)?;
        self.check_attributes()?;
        let volume = self.storage.ready(|asked| {
            let kind = given.attribute("volume-type").map(str::to_owned);
            let kind = kind.map_or_else(|| given.property("volume-type"), |kind| Ok(Some(kind)))?;
            let zone = given.property("availability-zone")?;
            let own = [("volume_type", kind), ("availability_zone", zone)];
            let content = content()?.map(|(key, id)| (key, Some(id)));
            for (key, value) in own.into_iter().chain(content) {
                if let Some(value) = value {
                    asked[key] = Value::from(value);
                }
            }
            Ok(())
        })?;
        if for_many && !volume.multiattach {
            // What can't be used is not left.
            self.storage.remove(&volume)?;
            return Err(OpenstackError::Refused(format!(
                "volume type {} of Cinder does not let several nodes have a volume: ask for access mode ReadWriteOnce, \
                 or for a type with multiattach=\"<is> True\"",
                volume.kind.as_deref().unwrap_or("\"\"")
            )));
        }
        let usual = given.property("file-system")?;
        let asked = Some(request.fs_type.as_str()).filter(|asked| !asked.is_empty());
        // A copy has the file system of what it is a copy of.
        let fs_type = given.source_option(keys::FS_TYPE).or(asked).or(usual.as_deref());
        let own = |name: &str| given.property(name).map(Option::unwrap_or_default);
        let made = options([
            (keys::CLIENT, client.clone()),
            (keys::SOURCE, place::source(&client, &volume.id)),
            (keys::FS_TYPE, fs_type.unwrap_or("ext4").to_owned()),
            ("driver", own("driver")?),
            ("io-timeout", own("io-timeout")?),
        ]);
        self.storage.answer.volume(given, made, None)?;
        Ok(format!(
            "volume {} of Cinder is {} ({} GiB)",
            request.pv_name, volume.id, volume.size
        ))
    }
}
