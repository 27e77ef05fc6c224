//! Operations `attach` and `detach`, by Cinder's attachments. Nodes that are Nova's servers have it from Nova: `nova`.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::connection::{CephLogin, ceph_image, read};
use super::fence::{Fence, Fenced};
use super::{Cinder, place};
use crate::error::OpenstackError;
use crate::service::Microversion;
use crate::storage::{Item, ItemAttachment};

/// Begins what an attachment has for its device: which node it is for. Only this of a connector can be read again.
const MARK: &str = "mooring:";

#[derive(Debug, Deserialize)]
pub(super) struct Attachment {
    pub(super) id: String,
    /// Nova's server that it is for.
    #[serde(default)]
    pub(super) instance: Option<String>,
    #[serde(default)]
    connection_info: Value,
}

impl Cinder<'_> {
    pub(super) fn attach(&self) -> Result<String, OpenstackError> {
        let request = &self.storage.given.request;
        let (name, node) = (&request.pv_name, &request.node_name);
        let volume = self.this_volume()?;
        // A node keeps what it has, by whichever way.
        if let Some(server) = self.server()
            && !self.is_marked(&volume)
            && (volume.is_on_server(&server) || self.uses_nova()?)
        {
            return self.attach_to_server(server, &volume);
        }
        let info = match self.attached_here(&volume)? {
            Some(info) => info,
            None => self.attach_anew(&volume)?,
        };
        let ceph = self.ceph_login()?;
        let client = match self.storage.given.option("client") {
            "" => place::client(self.storage.given)?,
            client => client.to_owned(),
        };
        let connection = match read(&info, &client, &ceph) {
            Ok(connection) => connection,
            Err(error) => {
                // Nothing could be done with it.
                self.end_own(&volume.id)?;
                return Err(error);
            }
        };
        self.storage
            .answer
            .connection(self.storage.given, connection.options, &connection.secrets)?;
        Ok(format!("volume {name} of Cinder is attached to node {node}"))
    }

    pub(super) fn detach(&self) -> Result<String, OpenstackError> {
        let request = &self.storage.given.request;
        let (name, node) = (&request.pv_name, &request.node_name);
        let gone = request.attachment.as_ref().is_some_and(|attachment| attachment.gone);
        let Some(volume) = self.storage.standing(name, self.id())? else {
            return Ok(format!("Cinder has no volume {name}"));
        };
        if let Some(server) = self.server() {
            self.detach_from_server(server, &volume)?;
        }
        if gone && !self.storage.given.list("fenced-nodes")?.contains(node) {
            self.fence(&volume)?;
        }
        self.end_own(&volume.id)?;
        self.storage
            .settled(&volume.id, &format!("the detachment of volume {name}"))?;
        Ok(format!("volume {name} of Cinder is detached from node {node}"))
    }

    /// Keeps a node that is gone from the volume, or says what an administrator has to do.
    fn fence(&self, volume: &Item) -> Result<(), OpenstackError> {
        let request = &self.storage.given.request;
        let (name, node) = (&request.pv_name, &request.node_name);
        let Some(info) = self.attached_here(volume)? else {
            return Ok(());
        };
        let addresses = request.attachment.iter().flat_map(|attachment| &attachment.addresses);
        let addresses: Vec<_> = addresses.map(String::as_str).collect();
        let is_rbd = info["driver_volume_type"] == "rbd";
        if is_rbd {
            let image = ceph_image(&info, &self.ceph_login()?)?;
            let fence = Fence {
                rbd: Path::new("rbd"),
                ceph: Path::new("ceph"),
                folder: &std::env::temp_dir(),
            };
            // Other nodes keep what they have.
            let whose = volume.multiattach.then_some(addresses.as_slice());
            if fence.close(&image, whose)? == Fenced::Done {
                return Ok(());
            }
        }
        let addresses = addresses.join(" and ");
        let by_itself = match (is_rbd, volume.multiattach) {
            (true, true) => "; image provisioner-openstack-ceph does both where Ceph sees the node by its own address",
            (true, false) => "; image provisioner-openstack-ceph does both by itself",
            (false, _) => "",
        };
        Err(OpenstackError::Refused(format!(
            "node {node} is gone, and Cinder can't tell whether it still writes to volume {name}: keep it from the \
             storage (RBD: \"ceph osd blocklist add\" {addresses}), then put {node} into \"fenced-nodes\" of the \
             ConfigMap{by_itself}"
        )))
    }

    fn ceph_login(&self) -> Result<CephLogin, OpenstackError> {
        Ok(CephLogin {
            user: self.storage.given.property("ceph-user")?,
            key: self.storage.given.property("ceph-key")?,
        })
    }

    /// Whether this node has it without Nova.
    fn is_marked(&self, volume: &Item) -> bool {
        let mark = Some(self.mark());
        volume.attachments.iter().any(|held| held.device == mark)
    }

    /// The connection that this node has already: it keeps what it has open.
    fn attached_here(&self, volume: &Item) -> Result<Option<Value>, OpenstackError> {
        let mark = Some(self.mark());
        let held = volume.attachments.iter().find(|held| held.device == mark);
        held.map_or(Ok(None), |held| self.connection_of(held))
    }

    /// How the node of an attachment reaches the volume; none if the attachment has ended.
    pub(super) fn connection_of(&self, held: &ItemAttachment) -> Result<Option<Value>, OpenstackError> {
        let id = &held.attachment_id;
        let found = self
            .storage
            .service
            .find(&format!("look at attachment {id}"), &format!("/attachments/{id}"))?;
        Ok(found.map(|mut found| found["attachment"]["connection_info"].take()))
    }

    fn attach_anew(&self, volume: &Item) -> Result<Value, OpenstackError> {
        let (id, name) = (&volume.id, &self.storage.given.request.pv_name);
        let what = format!("attach volume {name}");
        self.make_free(volume)?;
        let mut about = json!({"volume_uuid": id, "connector": self.connector()});
        if self.storage.service.has(Microversion(3, 54)) {
            about["mode"] = json!("rw");
        }
        let mut made = self
            .storage
            .service
            .post(&what, "/attachments", &json!({"attachment": about}))?;
        let attachment: Attachment = self.storage.service.read(&what, made["attachment"].take())?;
        let path = format!("/attachments/{}/action", attachment.id);
        self.storage.service.post(&what, &path, &json!({"os-complete": null}))?;
        Ok(attachment.connection_info)
    }

    /// Ends what a run that was cut off has left, and waits for what Cinder is at. Fails if somebody else has the volume.
    pub(super) fn make_free(&self, volume: &Item) -> Result<(), OpenstackError> {
        let name = &self.storage.given.request.pv_name;
        if let Some(other) = self.end_own(&volume.id)?
            && !volume.multiattach
        {
            return Err(OpenstackError::NotNow(format!(
                "volume {name} of Cinder is attached elsewhere ({other}): it is attached here when that has ended"
            )));
        }
        let what = format!("Cinder's work on volume {name}");
        self.storage.settled(&volume.id, &what).map(drop)
    }

    /// All attachments of a volume, also those that are not complete.
    pub(super) fn attachments(&self, id: &str) -> Result<Vec<Attachment>, OpenstackError> {
        let what = format!("look for attachments of volume {id}");
        let service = &self.storage.service;
        let found = service.list(&what, &format!("/attachments?volume_id={id}"), "attachments")?;
        found.into_iter().map(|one| service.read(&what, one)).collect()
    }

    /// Ends this node's attachment of a volume and those that were never complete. Returns whose another one is.
    fn end_own(&self, id: &str) -> Result<Option<String>, OpenstackError> {
        let Some(volume) = self.storage.item(id)? else {
            return Ok(None);
        };
        let mut other = None;
        for attachment in self.attachments(id)? {
            let held = volume
                .attachments
                .iter()
                .find(|held| held.attachment_id == attachment.id);
            let device = held.map(|held| held.device.clone().unwrap_or_default());
            if let Some(server) = attachment.instance {
                other = Some(format!("server {server} of Nova"));
            } else if let Some(device) = device.filter(|device| *device != self.mark()) {
                other = Some(device);
            } else {
                let what = format!("end attachment {}", attachment.id);
                self.storage
                    .service
                    .delete(&what, &format!("/attachments/{}", attachment.id))?;
            }
        }
        Ok(other)
    }

    /// What Cinder's drivers may want to know of a node.
    fn connector(&self) -> Value {
        let request = &self.storage.given.request;
        let attachment = request.attachment.as_ref();
        let addresses = attachment.map(|attachment| attachment.addresses.as_slice());
        json!({
            "host": request.node_name,
            "ip": addresses.and_then(<[String]>::first),
            "initiator": attachment.map(|attachment| &attachment.initiator),
            // A back end with several portals lists all of them then.
            "multipath": true,
            "platform": std::env::consts::ARCH,
            "os_type": "linux",
            "do_local_attach": false,
            "mountpoint": self.mark(),
        })
    }

    fn mark(&self) -> String {
        let attachment = self.storage.given.request.attachment.as_ref();
        format!(
            "{MARK}{}",
            attachment.map_or("", |attachment| attachment.initiator.as_str())
        )
    }
}
