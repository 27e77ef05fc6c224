//! What runs are told of the snapshots and nodes that they are about.

use flex_provisioner::volume::snapshot::{Form, name_in_group};
use kube::ResourceExt;
use mooring_contract::attachment::initiator;
use mooring_contract::request::{Attachment, Member, Snapshot};

use crate::conform::runs::{MadeVolume, NodeOfRun};

/// Two nodes: their names and addresses, which nobody has (RFC 5737).
pub(super) const FIRST: (&str, &str) = ("mooring-conform-1", "192.0.2.11");
pub(super) const SECOND: (&str, &str) = ("mooring-conform-2", "192.0.2.12");

pub(super) fn node(made: &MadeVolume, (name, address): (&str, &str), gone: bool) -> NodeOfRun {
    NodeOfRun {
        name: name.to_owned(),
        attachment: Attachment {
            addresses: vec![address.to_owned()],
            initiator: initiator(name, &made.claim.uid().unwrap_or_default()),
            provider_id: String::new(),
            gone,
        },
    }
}

/// What was taken of these volumes, by the one name that the contract has for it.
pub(super) fn taken(form: Form, volumes: &[MadeVolume]) -> Option<Snapshot> {
    let uid = volumes.first()?.claim.uid().unwrap_or_default();
    let (noun, content) = match form {
        Form::Snapshot | Form::Backup => (form.noun(), "snapcontent"),
        Form::Group => ("groupsnapshot", "groupsnapcontent"),
    };
    let name = format!("{noun}-{uid}");
    let member = |made: &MadeVolume| Member {
        snapshot_name: name_in_group(&name, &made.request.pv_name),
        pv_name: made.request.pv_name.clone(),
        volume_handle: made.request.pv_name.clone(),
        volume_mode: made.request.volume_mode.clone(),
        pvc_name: made.request.pvc_name.clone(),
        pvc_uid: made.request.pvc_uid.clone(),
        size: made.request.size,
        volume: made.options.clone(),
        parameters: [].into(),
    };
    Some(Snapshot {
        content_name: format!("{content}-{uid}"),
        content_uid: uid,
        backup: form == Form::Backup,
        members: (form == Form::Group).then(|| volumes.iter().map(member).collect()),
        name,
    })
}
