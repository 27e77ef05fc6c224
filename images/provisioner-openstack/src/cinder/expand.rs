//! Operation `expand`.

use serde_json::json;

use super::Cinder;
use crate::error::Error;

impl Cinder<'_> {
    pub(super) fn expand(&self) -> Result<String, Error> {
        let name = &self.given.request.pv_name;
        let wanted = self.given.gib();
        let what = format!("enlarge volume {name}");
        let waiting = format!("the growth of volume {name}");
        let id = self.this_volume()?.id;
        let gone = || Error::Refused(format!("Cinder has no volume {name} any more: its content is gone"));
        let volume = self.settled(&id, &waiting)?.ok_or_else(gone)?;
        if volume.size >= wanted && !volume.is_failed() {
            return Ok(format!("volume {name} of Cinder has {} GiB already", volume.size));
        }
        if volume.is_failed() {
            let then = format!(
                "its state is {}: have an administrator of the cloud reset it",
                volume.status
            );
            return Err(self.failed(what, &id, &then));
        }
        self.act(&what, &id, "os-extend", &json!({"new_size": wanted}))?;
        let volume = self.settled(&id, &waiting)?.ok_or_else(gone)?;
        if volume.size < wanted || volume.is_failed() {
            return Err(self.failed(
                what,
                &id,
                &format!("it has {} GiB still, and is {}", volume.size, volume.status),
            ));
        }
        Ok(format!("volume {name} of Cinder has {} GiB", volume.size))
    }
}
