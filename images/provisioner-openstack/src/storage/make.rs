//! One for a claim: found again, or asked for, and waited for.

use serde_json::{Value, json};

use super::{Item, PV_NAME, Storage};
use crate::error::OpenstackError;

impl Storage<'_> {
    /// That of this claim, ready to be used. `about` adds to what is asked for, if it has to be asked for.
    pub fn ready(&self, about: impl FnOnce(&mut Value) -> Result<(), OpenstackError>) -> Result<Item, OpenstackError> {
        let name = &self.given.request.pv_name;
        let (server, one) = (self.server(), self.words.one);
        if self.items_of(name)?.is_empty() {
            self.ask(about)?;
        }
        // Another run may ask at the same time. Which one stays is decided when none is in the making, so that each run
        // sees them all.
        let mut there = self.all_settled(name, &format!("the making of {one} {name}"))?;
        if there.is_empty() {
            return Err(OpenstackError::NotNow(format!(
                "{server} does not list {one} {name}: it is looked for again"
            )));
        }
        let item = there.remove(0);
        for second in &there {
            self.remove(second)?;
        }
        if item.is_failed() {
            let failed = self.failed(&format!("make {one} {name}"), &item.id, "it is made again");
            self.remove(&item)?;
            return Err(failed);
        }
        if item.says(PV_NAME) != Some(name) {
            // It is that of the volume that the backup is of.
            let path = format!("/{}/{}/metadata", self.words.all, item.id);
            let metadata = json!({"metadata": self.metadata()});
            self.service.post(&format!("name {one} {name}"), &path, &metadata)?;
        }
        Ok(item)
    }

    fn metadata(&self) -> Value {
        json!({PV_NAME: self.given.request.pv_name, "mooring-claim": self.given.claim()})
    }

    fn ask(&self, about: impl FnOnce(&mut Value) -> Result<(), OpenstackError>) -> Result<(), OpenstackError> {
        let request = &self.given.request;
        let mut item = json!({
            "name": request.pv_name,
            "description": format!("claim {}", self.given.claim()),
            "size": self.given.gib(),
            "metadata": self.metadata(),
        });
        about(&mut item)?;
        let what = format!("make {} {}", self.words.one, request.pv_name);
        let path = format!("/{}", self.words.all);
        let made = self.service.post(&what, &path, &json!({self.words.one: item}));
        made.map(drop).map_err(OpenstackError::of_the_request)
    }
}
