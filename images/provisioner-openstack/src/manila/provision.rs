//! Operations `provision` and `restore`: a share, empty or with the content of a snapshot, and who may mount it.

use mooring_contract::volume::keys;
use serde_json::{Value, json};

use super::Manila;
use super::protocol::Protocol;
use super::share::{PV_NAME, Share};
use crate::answer::options;
use crate::error::Error;

impl Manila<'_> {
    pub(super) fn provision(&self) -> Result<String, Error> {
        self.make(|| Ok(None))
    }

    pub(super) fn restore(&self) -> Result<String, Error> {
        let name = self.given.snapshot_name()?;
        self.make(|| self.snapshot_to_restore(name).map(Some))
    }

    /// Makes the share unless it is there, lets the nodes in, and answers where it is.
    fn make(&self, snapshot: impl FnOnce() -> Result<Option<String>, Error>) -> Result<String, Error> {
        let request = &self.given.request;
        if request.volume_mode == "Block" {
            return Err(Error::Refused(
                "a share is no device: ask for volumeMode Filesystem, or for a volume of Cinder".to_owned(),
            ));
        }
        let protocol = Protocol::asked(self.given)?;
        let access = self.access(protocol)?;
        let share = self.ready(protocol, snapshot)?;
        let secret = self.let_in(&share, &access)?;
        let export = self.export(&share, protocol)?;
        let made = options([
            (keys::CLIENT, protocol.client().to_owned()),
            (keys::SOURCE, export.source),
            ("fs-name", export.fs_name),
            ("driver", self.given.property("driver")?.unwrap_or_default()),
        ]);
        self.answer.volume(self.given, made, secret)?;
        Ok(format!(
            "share {} of Manila is {} ({} GiB)",
            request.pv_name, share.id, share.size
        ))
    }

    fn ready(
        &self,
        protocol: Protocol,
        snapshot: impl FnOnce() -> Result<Option<String>, Error>,
    ) -> Result<Share, Error> {
        let name = &self.given.request.pv_name;
        let mut there = self.shares_of(name)?;
        if there.is_empty() {
            self.create(protocol, snapshot()?)?;
            there = self.shares_of(name)?;
        }
        let Some(first) = there.first() else {
            return Err(Error::NotNow(format!(
                "Manila does not list share {name} yet: it is looked for again"
            )));
        };
        for second in &there[1..] {
            self.remove(second)?;
        }
        let Some(share) = self.settled(&first.id, &format!("the making of share {name}"))? else {
            return Err(Error::NotNow(format!(
                "somebody deleted share {name} of Manila: it is made again"
            )));
        };
        if share.is_failed() {
            let failed = self.failed(format!("make share {name}"), &share.id, "it is made again");
            self.remove(&share)?;
            return Err(failed);
        }
        Ok(share)
    }

    fn create(&self, protocol: Protocol, snapshot: Option<String>) -> Result<(), Error> {
        let request = &self.given.request;
        let mut share = json!({
            "name": request.pv_name,
            "description": format!("claim {}", self.given.claim()),
            "size": self.given.gib(),
            "share_proto": protocol.name(),
            "is_public": false,
            "metadata": {PV_NAME: request.pv_name, "mooring-claim": self.given.claim()},
        });
        for (key, value) in [
            ("share_type", self.given.property("share-type")?),
            ("availability_zone", self.given.property("availability-zone")?),
            ("share_network_id", self.given.property("share-network")?),
            ("snapshot_id", snapshot),
        ] {
            if let Some(value) = value {
                share[key] = Value::from(value);
            }
        }
        let what = format!("make share {}", request.pv_name);
        let made = self.service.post(&what, "/shares", &json!({"share": share}));
        made.map(drop).map_err(Error::of_the_request)
    }
}
