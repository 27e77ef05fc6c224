//! Operation `expand`. Nothing is ever made smaller.

use serde_json::json;

use super::Storage;
use crate::error::OpenstackError;

impl Storage<'_> {
    pub fn expand(&self, id: &str) -> Result<String, OpenstackError> {
        let name = &self.given.request.pv_name;
        let wanted = self.given.gib();
        let (server, one) = (self.server(), self.words.one);
        let what = format!("enlarge {one} {name}");
        let waiting = format!("the growth of {one} {name}");
        let settled = || self.settled(id, &waiting)?.ok_or_else(|| self.gone(name));
        let item = settled()?;
        if item.is_failed() {
            let then = format!(
                "its state is {}: have an administrator of the cloud reset it",
                item.status
            );
            return Err(self.failed(&what, id, &then));
        }
        if item.size >= wanted {
            return Ok(format!("{one} {name} of {server} has {} GiB already", item.size));
        }
        self.act(&what, id, self.words.extend, &json!({"new_size": wanted}))?;
        let item = settled()?;
        if item.size < wanted || item.is_failed() {
            return Err(self.failed(
                &what,
                id,
                &format!("it has {} GiB still, and is {}", item.size, item.status),
            ));
        }
        Ok(format!("{one} {name} of {server} has {} GiB", item.size))
    }
}
