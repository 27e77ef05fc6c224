//! Operations `provision`, `clone` and `restore`: a volume, empty or with the content of another.

use mooring_contract::volume::keys;
use serde_json::{Value, json};

use super::volume::{PV_NAME, Volume};
use super::{CINDER, Cinder, place};
use crate::answer::options;
use crate::error::Error;
use crate::service::Version;

/// What a new volume holds.
enum Content {
    Nothing,
    /// That of what has this id, under this key of Cinder's.
    Of(&'static str, String),
}

impl Cinder<'_> {
    pub(super) fn provision(&self) -> Result<String, Error> {
        self.make(|| Ok(Content::Nothing))
    }

    pub(super) fn clone_volume(&self) -> Result<String, Error> {
        self.make(|| {
            let source = self.given.request.source.as_ref();
            let name = source.map_or("", |source| source.pv_name.as_str());
            let standing = self.standing(name, self.given.source_option(keys::SOURCE).unwrap_or_default())?;
            let volume = standing
                .ok_or_else(|| Error::Refused(format!("Cinder has no volume {name} any more: it can't be copied")))?;
            Ok(Content::Of("source_volid", volume.id))
        })
    }

    pub(super) fn restore(&self) -> Result<String, Error> {
        let name = self.given.snapshot_name()?;
        let is_backup = self.given.request.snapshot.as_ref().is_some_and(|one| one.backup);
        self.make(|| {
            if is_backup {
                self.service.needs(Version(3, 47), "a volume of a backup")?;
                return Ok(Content::Of("backup_id", self.backup_to_restore(name)?));
            }
            Ok(Content::Of("snapshot_id", self.snapshot_to_restore(name)?))
        })
    }

    /// Makes the volume unless it is there, and answers where it is.
    fn make(&self, content: impl FnOnce() -> Result<Content, Error>) -> Result<String, Error> {
        let request = &self.given.request;
        if request.access_modes.iter().any(|mode| mode.ends_with("Many")) {
            return Err(Error::Refused(
                "a volume of Cinder can be used on one node only: ask for access mode ReadWriteOnce".to_owned(),
            ));
        }
        let client = place::client(self.given)?;
        let volume = self.ready(content)?;
        let fs_type = match (request.fs_type.as_str(), self.given.source_option(keys::FS_TYPE)) {
            (_, Some(copied)) => copied,
            ("", None) => "ext4",
            (asked, None) => asked,
        };
        let own = |name: &str| self.given.property(name).map(Option::unwrap_or_default);
        let made = options([
            (keys::CLIENT, client.clone()),
            (keys::SOURCE, place::source(&client, &volume.id)),
            (keys::FS_TYPE, fs_type.to_owned()),
            ("driver", own("driver")?),
            ("io-timeout", own("io-timeout")?),
        ]);
        self.answer.volume(self.given, made, None)?;
        Ok(format!(
            "volume {} of Cinder is {} ({} GiB)",
            request.pv_name, volume.id, volume.size
        ))
    }

    /// The volume of this claim, ready to be used.
    fn ready(&self, content: impl FnOnce() -> Result<Content, Error>) -> Result<Volume, Error> {
        let name = &self.given.request.pv_name;
        let mut there = self.volumes_of(name)?;
        if there.is_empty() {
            self.create(&content()?)?;
            there = self.volumes_of(name)?;
        }
        let Some(first) = there.first() else {
            return Err(Error::NotNow(format!(
                "Cinder does not list volume {name} yet: it is looked for again"
            )));
        };
        for second in &there[1..] {
            self.remove(second)?;
        }
        let what = format!("the making of volume {name}");
        let Some(volume) = self.settled(&first.id, &what)? else {
            return Err(Error::NotNow(format!(
                "somebody deleted volume {name} of Cinder: it is made again"
            )));
        };
        if volume.is_failed() {
            let failed = self.failed(format!("make volume {name}"), &volume.id, "it is made again");
            self.remove(&volume)?;
            return Err(failed);
        }
        Ok(volume)
    }

    fn create(&self, content: &Content) -> Result<(), Error> {
        let request = &self.given.request;
        let mut volume = json!({
            "name": request.pv_name,
            "description": format!("claim {}", self.given.claim()),
            "size": self.given.gib(),
            "metadata": {PV_NAME: request.pv_name, "mooring-claim": self.given.claim()},
        });
        let mut put = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                volume[key] = Value::from(value);
            }
        };
        self.check_attributes()?;
        let asked = self.given.attribute("volume-type").map(str::to_owned);
        put(
            "volume_type",
            asked.map_or_else(|| self.given.property("volume-type"), |asked| Ok(Some(asked)))?,
        );
        put("availability_zone", self.given.property("availability-zone")?);
        if let Content::Of(key, id) = content {
            put(key, Some(id.clone()));
        }
        let what = format!("make volume {}", request.pv_name);
        let made = self.service.post(&what, "/volumes", &json!({"volume": volume}));
        made.map(drop).map_err(Error::of_the_request)
    }
}

/// That Cinder deletes a volume is said in the same words everywhere.
pub(super) fn deleting(id: &str) -> String {
    format!("{CINDER}'s deletion of volume {id}")
}
