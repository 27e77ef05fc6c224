//! Nodes that are servers of Nova: Nova's attach gives them the volume as a disk of their own, which the node finds by
//! its serial. See `docs/decisions/nova.md`.
//!
//! Nova does it in the background, and tells of it in two places: Cinder has an attachment with the server, and the
//! server has the volume in its list. A run goes by both, so the next one carries on wherever one was cut off.

use mooring_contract::volume::clients::{NODE_DISK, SERIAL};
use mooring_contract::volume::keys;
use serde_json::{Value, json};

use super::Cinder;
use crate::answer::{VolumeOptions, check_connection, options};
use crate::error::OpenstackError;
use crate::service::{CloudService, Kind, Microversion};
use crate::storage::Item;
use crate::wait::{LookResult, until};

static NOVA: Kind = Kind {
    name: "Nova",
    types: &["compute"],
    api: "v2.1",
    header: ("openstack-api-version", "compute "),
    // Volumes of several servers, of the same release as Cinder's oldest version here. A later one has nothing more
    // for this, and other answers.
    newest: Microversion(2, 60),
    oldest: Microversion(2, 60),
};

/// Begins what a Node says of a server of Nova: `openstack:///ID` or `openstack://REGION/ID`.
const PROVIDER: &str = "openstack://";

/// States of a server in which nothing runs in it.
const OFF: &[&str] = &["SHUTOFF", "DELETED", "SOFT_DELETED", "SHELVED_OFFLOADED"];

/// The server of Nova that a node is; none if its cloud is another one.
fn server_of(provider_id: &str) -> Option<String> {
    let (_region, id) = provider_id.strip_prefix(PROVIDER)?.split_once('/')?;
    let is_uuid = id.len() == 36 && id.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    is_uuid.then(|| id.to_ascii_lowercase())
}

/// A server of Nova.
struct Server<'a> {
    nova: CloudService<'a>,
    id: String,
}

impl Server<'_> {
    /// What Nova shows of it; none if the project has no such server.
    fn shown(&self) -> Result<Option<Value>, OpenstackError> {
        let what = format!("look at server {}", self.id);
        self.nova.find(&what, &format!("/servers/{}", self.id))
    }

    /// Whether its list has the volume, or Nova is about to attach or detach it.
    fn lists(&self, volume: &str) -> Result<bool, OpenstackError> {
        let what = format!("look whether server {} has volume {volume}", self.id);
        Ok(self.nova.find(&what, &self.path(volume))?.is_some())
    }

    fn path(&self, volume: &str) -> String {
        format!("/servers/{}/os-volume_attachments/{volume}", self.id)
    }
}

impl Cinder<'_> {
    /// The server of Nova that this run's node is.
    pub(super) fn server(&self) -> Option<String> {
        let attachment = self.storage.given.request.attachment.as_ref()?;
        server_of(&attachment.provider_id)
    }

    /// Whether nodes that are Nova's servers get volumes by Nova.
    pub(super) fn uses_nova(&self) -> Result<bool, OpenstackError> {
        match self.storage.given.property("nova")?.as_deref() {
            None | Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => Err(OpenstackError::Property {
                name: "nova",
                value: other.to_owned(),
                wanted: "true or false",
            }),
        }
    }

    /// Has Nova attach the volume to a server, and says how the node finds it there.
    pub(super) fn attach_to_server(&self, id: String, volume: &Item) -> Result<String, OpenstackError> {
        let request = &self.storage.given.request;
        let (name, node) = (&request.pv_name, &request.node_name);
        let options = options([
            (keys::CLIENT, NODE_DISK.to_owned()),
            (keys::SOURCE, format!("{SERIAL}{}", volume.id)),
        ]);
        // Before it is attached for nothing.
        check_connection(self.storage.given, &options)?;
        let server = self.nova(id)?;
        if !server.lists(&volume.id)? {
            self.ask_for(&server, volume)?;
        }
        self.await_attached(&server, &volume.id)?;
        self.storage
            .answer
            .connection(self.storage.given, options, &VolumeOptions::default())?;
        Ok(format!(
            "volume {name} of Cinder is attached to node {node}, server {} of Nova",
            server.id
        ))
    }

    fn ask_for(&self, server: &Server<'_>, volume: &Item) -> Result<(), OpenstackError> {
        let request = &self.storage.given.request;
        let (name, node, id) = (&request.pv_name, &request.node_name, &server.id);
        if server.shown()?.is_none() {
            return Err(OpenstackError::NotNow(format!(
                "the project in clouds.yaml has no server {id} of Nova, which node {node} is by its providerID: use a \
                 login for that server's project, or write nova: \"false\" into the ConfigMap, and nodes get volumes \
                 without Nova"
            )));
        }
        self.make_free(volume)?;
        let what = format!("attach volume {name} to server {id}");
        let path = format!("/servers/{id}/os-volume_attachments");
        let about = json!({"volumeAttachment": {"volumeId": volume.id}});
        server.nova.post(&what, &path, &about).map(drop)
    }

    fn await_attached(&self, server: &Server<'_>, volume: &str) -> Result<(), OpenstackError> {
        let name = &self.storage.given.request.pv_name;
        let what = format!("the attachment of volume {name} to server {}", server.id);
        until(self.storage.pace, &what, || {
            let item = self.storage.item(volume)?.ok_or_else(|| self.storage.gone(name))?;
            let held = item.attachments.iter().find(|held| held.is_of_server(&server.id));
            match (held, server.lists(volume)?) {
                (Some(_), true) if item.status == "in-use" => Ok(LookResult::Ready(())),
                (Some(held), false) => Err(OpenstackError::NotNow(left_over(name, &server.id, &held.attachment_id))),
                (None, false) if !self.is_passing(&item) => Err(OpenstackError::Failed {
                    what: format!("attach volume {name} to server {}", server.id),
                    server: NOVA.name,
                    words: format!(
                        "Nova has given it up and says no more; see the log of nova-compute, and \"openstack server \
                         event list {}\": it is tried again",
                        server.id
                    ),
                }),
                _ => Ok(LookResult::NotYet(item.status)),
            }
        })
    }

    /// Has Nova detach the volume from a server, if that has it.
    pub(super) fn detach_from_server(&self, id: String, volume: &Item) -> Result<(), OpenstackError> {
        let request = &self.storage.given.request;
        let (name, node) = (&request.pv_name, &request.node_name);
        // Without Cinder's attachment nothing of Nova's is left, and there may be no Nova.
        if self.attachment_of(&id, &volume.id)?.is_none() {
            return Ok(());
        }
        let server = self.nova(id)?;
        let gone = request.attachment.as_ref().is_some_and(|attachment| attachment.gone);
        if gone && !self.storage.given.list("fenced-nodes")?.contains(node) {
            self.check_off(&server)?;
        }
        let what = format!("the detachment of volume {name} from server {}", server.id);
        if server.lists(&volume.id)? {
            // An earlier run may have asked for it, and asked twice, Nova refuses.
            self.storage.settled(&volume.id, &what)?;
            if server.lists(&volume.id)? {
                let what = format!("detach volume {name} from server {}", server.id);
                server.nova.delete(&what, &server.path(&volume.id))?;
            }
        }
        until(self.storage.pace, &what, || {
            let Some(item) = self.storage.item(&volume.id)? else {
                return Ok(LookResult::Ready(()));
            };
            let held = self.attachment_of(&server.id, &volume.id)?;
            match (held, server.lists(&volume.id)?) {
                (None, false) => Ok(LookResult::Ready(())),
                (Some(held), false) => Ok(LookResult::NotYet(left_over(name, &server.id, &held))),
                (_, true) if !self.is_passing(&item) && item.is_on_server(&server.id) => Err(OpenstackError::Failed {
                    what: format!("detach volume {name} from server {}", server.id),
                    server: NOVA.name,
                    words: "the server did not let go of the disk: it is tried again; if this stays so, stop the \
                            server"
                        .to_owned(),
                }),
                (_, true) => Ok(LookResult::NotYet(item.status)),
            }
        })
    }

    /// Sees that a server writes nothing any more, or says what an administrator has to do.
    fn check_off(&self, server: &Server<'_>) -> Result<(), OpenstackError> {
        let request = &self.storage.given.request;
        let (name, node, id) = (&request.pv_name, &request.node_name, &server.id);
        let Some(shown) = server.shown()? else {
            return Ok(());
        };
        let status = shown["server"]["status"].as_str().unwrap_or("in no known state");
        // On its way to another state, it may be about to start.
        let task = &shown["server"]["OS-EXT-STS:task_state"];
        if OFF.contains(&status) && task.is_null() {
            return Ok(());
        }
        Err(OpenstackError::NotNow(format!(
            "node {node} is gone, and its server {id} of Nova is {status}{}: it may still write to volume {name}; stop \
             it (\"openstack server stop {id}\") or delete it, and the volume is detached; or keep it from the storage \
             yourself and put {node} into \"fenced-nodes\" of the ConfigMap",
            task.as_str().map(|task| format!(" ({task})")).unwrap_or_default()
        )))
    }

    /// The id of Cinder's attachment of a volume to a server, complete or not.
    fn attachment_of(&self, server: &str, volume: &str) -> Result<Option<String>, OpenstackError> {
        let all = self.attachments(volume)?;
        let of = all.into_iter().find(|one| one.instance.as_deref() == Some(server));
        Ok(of.map(|one| one.id))
    }

    fn is_passing(&self, item: &Item) -> bool {
        self.storage.words.passing.contains(&item.status.as_str())
    }

    fn nova(&self, id: String) -> Result<Server<'_>, OpenstackError> {
        let opened = CloudService::open(self.session, &NOVA);
        let nova = opened.map_err(|error| match error {
            OpenstackError::NoService { .. } => OpenstackError::NotNow(format!(
                "{error}; node {} is server {id} of Nova by its providerID: if it is another cloud's, write nova: \
                 \"false\" into the ConfigMap, and nodes get volumes without Nova",
                self.storage.given.request.node_name
            )),
            other => other,
        })?;
        Ok(Server { nova, id })
    }
}

/// What Cinder has of a server that knows nothing of it.
fn left_over(name: &str, server: &str, attachment: &str) -> String {
    format!(
        "Cinder has volume {name} attached to server {server} of Nova, and Nova does not: if this stays so, have the \
         cloud's administrator delete attachment {attachment} (\"openstack volume attachment delete\")"
    )
}

#[cfg(test)]
mod tests;
