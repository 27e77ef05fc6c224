//! Operation `expand`. A share is never made smaller.

use serde_json::json;

use super::Manila;
use crate::error::Error;

impl Manila<'_> {
    pub(super) fn expand(&self) -> Result<String, Error> {
        let name = &self.given.request.pv_name;
        let wanted = self.given.gib();
        let what = format!("enlarge share {name}");
        let waiting = format!("the growth of share {name}");
        let id = self.this_share()?.id;
        let gone = || Error::Refused(format!("Manila has no share {name} any more: its content is gone"));
        let share = self.settled(&id, &waiting)?.ok_or_else(gone)?;
        if share.size >= wanted && !share.is_failed() {
            return Ok(format!("share {name} of Manila has {} GiB already", share.size));
        }
        if share.is_failed() {
            let then = format!(
                "its state is {}: have an administrator of the cloud reset it",
                share.status
            );
            return Err(self.failed(what, &id, &then));
        }
        self.act(&what, &id, "extend", &json!({"new_size": wanted}))?;
        let share = self.settled(&id, &waiting)?.ok_or_else(gone)?;
        if share.size < wanted || share.is_failed() {
            return Err(self.failed(
                what,
                &id,
                &format!("it has {} GiB still, and is {}", share.size, share.status),
            ));
        }
        Ok(format!("share {name} of Manila has {} GiB", share.size))
    }
}
