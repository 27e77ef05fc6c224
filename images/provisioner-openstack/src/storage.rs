//! What Cinder's volumes and Manila's shares have in common: how they are named, found again, waited for, enlarged and
//! deleted, and how snapshots of them are taken.
//!
//! Each is named after its PersistentVolume, by which it is found again, and has metadata that tells it from one of the
//! same name that is not Mooring's.

use serde_json::{Value, json};

use crate::answer::AnswerWriter;
use crate::error::OpenstackError;
use crate::given::GivenRun;
use crate::http::encoded;
use crate::keystone::Session;
use crate::service::{CloudService, Kind};
use crate::wait::{LookResult, Pace, until};

mod delete;
mod expand;
mod item;
mod make;
mod saved;
mod zones;

pub use item::{Item, ItemAttachment};
pub use saved::{BACKUP, Restorable, SNAPSHOT, Way};

/// Metadata: the name of the PersistentVolume.
pub const PV_NAME: &str = "mooring-pv-name";

/// Metadata of what is deleted but for its snapshots.
pub const DELETED: &str = "mooring-deleted";

/// In what volumes and shares differ.
#[derive(Debug)]
pub struct Words {
    pub service: Kind,
    /// One of them, as JSON and messages call it.
    pub one: &'static str,
    /// Several, as paths and JSON call them.
    pub all: &'static str,
    /// States that pass by themselves.
    pub passing: &'static [&'static str],
    /// States in which the owner may delete one.
    pub deletable: &'static [&'static str],
    /// The action that enlarges one.
    pub extend: &'static str,
    /// The action by which an administrator of the cloud deletes one in any other state.
    pub force_delete: &'static str,
    /// What a snapshot has for the id of what it is of.
    pub of: &'static str,
    /// The query for messages about an id that stands between the two, the newest first.
    pub messages: (&'static str, &'static str),
}

/// A service, and what this run is to do there.
#[derive(Debug)]
pub struct Storage<'a> {
    pub words: &'static Words,
    pub service: CloudService<'a>,
    pub given: &'a GivenRun,
    pub answer: AnswerWriter<'a>,
    pub pace: Pace,
}

impl<'a> Storage<'a> {
    pub fn open(
        session: &'a Session,
        words: &'static Words,
        given: &'a GivenRun,
        answer: AnswerWriter<'a>,
        pace: Pace,
    ) -> Result<Self, OpenstackError> {
        Ok(Self {
            words,
            service: CloudService::open(session, &words.service)?,
            given,
            answer,
            pace,
        })
    }

    /// As messages call the service.
    pub fn server(&self) -> &'static str {
        self.words.service.name
    }

    /// Those that were made for a PersistentVolume of this name, the oldest first. A run that was cut off while it
    /// asked for one may leave a second.
    pub fn items_of(&self, pv_name: &str) -> Result<Vec<Item>, OpenstackError> {
        let Words { one, all, .. } = self.words;
        let what = format!("look for {one} {pv_name}");
        let path = format!("/{all}/detail?name={}", encoded(pv_name));
        let found = self.service.list(&what, &path, all)?;
        let items = found.into_iter().map(|found| self.service.read::<Item>(&what, found));
        let mut items = items.collect::<Result<Vec<_>, _>>()?;
        items.retain(|item| item.is_of(pv_name));
        items.sort_by(|a, b| a.age().cmp(&b.age()));
        Ok(items)
    }

    pub fn item(&self, id: &str) -> Result<Option<Item>, OpenstackError> {
        let Words { one, all, .. } = self.words;
        let what = format!("look at {one} {id}");
        let found = self.service.find(&what, &format!("/{all}/{}", encoded(id)))?;
        let read = |mut found: Value| self.service.read(&what, found[*one].take());
        found.map(read).transpose()
    }

    /// That of a PersistentVolume of this name, if it is there. It is looked for by its id first, if that is known: it
    /// may have been given another name.
    pub fn standing(&self, pv_name: &str, id: Option<&str>) -> Result<Option<Item>, OpenstackError> {
        if let Some(id) = id
            && let Some(item) = self.item(id)?
        {
            self.check_own(&item, pv_name)?;
            return Ok(Some(item));
        }
        Ok(self.items_of(pv_name)?.into_iter().find(|item| !item.is_deleted()))
    }

    /// Those who may write a PersistentVolume can write any id there.
    pub fn check_own(&self, item: &Item, pv_name: &str) -> Result<(), OpenstackError> {
        if item.is_of(pv_name) {
            return Ok(());
        }
        Err(OpenstackError::NotOurs {
            what: format!("{} {} of {}", self.words.one, item.id, self.server()),
            key: PV_NAME,
            name: pv_name.to_owned(),
        })
    }

    /// What is wanted is not there. It may be again, as after a restore of the service's database.
    pub fn gone(&self, pv_name: &str) -> OpenstackError {
        let (server, one) = (self.server(), self.words.one);
        OpenstackError::NotNow(format!("{server} has no {one} {pv_name} any more"))
    }

    /// Waits until its state does not change by itself any more; none if it is gone.
    pub fn settled(&self, id: &str, what: &str) -> Result<Option<Item>, OpenstackError> {
        until(self.pace, what, || {
            Ok(match self.item(id)? {
                None => LookResult::Ready(None),
                Some(item) if self.is_passing(&item) => LookResult::NotYet(item.status),
                Some(item) => LookResult::Ready(Some(item)),
            })
        })
    }

    /// Those that were made for a PersistentVolume of this name, when the state of none of them changes by itself any
    /// more; the oldest first.
    fn all_settled(&self, pv_name: &str, what: &str) -> Result<Vec<Item>, OpenstackError> {
        until(self.pace, what, || {
            let all = self.items_of(pv_name)?;
            Ok(match all.iter().find(|item| self.is_passing(item)) {
                Some(item) => LookResult::NotYet(item.status.clone()),
                None => LookResult::Ready(all),
            })
        })
    }

    /// Whether its state changes by itself.
    fn is_passing(&self, item: &Item) -> bool {
        self.words.passing.contains(&item.status.as_str())
    }

    /// Asks for something to be done with one.
    pub fn act(&self, what: &str, id: &str, action: &str, about: &Value) -> Result<(), OpenstackError> {
        let path = format!("/{}/{id}/action", self.words.all);
        self.service.post(what, &path, &json!({action: about})).map(drop)
    }

    /// The error of something that ended badly, in the service's words to its users.
    pub fn failed(&self, what: &str, id: &str, then: &str) -> OpenstackError {
        let (before, after) = self.words.messages;
        let path = format!("/messages?{before}{id}{after}");
        let found = self.service.get("read the service's messages", &path).ok();
        let message = found
            .as_ref()
            .and_then(|found| found["messages"][0]["user_message"].as_str());
        let words = message.unwrap_or("it does not say why; the log of the service does");
        self.failed_with(what, words, then)
    }

    /// As `failed`, where the service says why.
    fn failed_with(&self, what: &str, reason: &str, then: &str) -> OpenstackError {
        OpenstackError::Failed {
            what: what.to_owned(),
            server: self.server(),
            words: format!("{}: {then}", reason.trim_end_matches('.')),
        }
    }
}
