//! What differs where one run takes the snapshots of several volumes at once.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;
use mooring_contract::request::{Member, Request, Snapshot};
use serde_json::{Value, json};

use super::refusal::SnapshotRefusal;
use crate::config::ProvisionerConfig;
use crate::operation::observed::{ObservedSnapshot, Surroundings};
use crate::operation::request;
use crate::volume::content_view::ContentView;
use crate::volume::persistent_volume;
use crate::volume::snapshot::{Handle, HandleError, name_in_group};

/// A volume of which a snapshot can be taken, and what made it.
pub(super) struct SnapshotTarget<'a> {
    pub(super) handle: &'a str,
    pub(super) volume: &'a PersistentVolume,
    pub(super) made_by: Request,
}

/// Refuses what no one run of one image can do.
pub(super) fn check(targets: &[SnapshotTarget<'_>], config: &ProvisionerConfig) -> Result<(), SnapshotRefusal> {
    let serves = config.reference.to_string();
    for SnapshotTarget { volume, .. } in targets {
        let made_by = volume.annotations().get(annotations::CONFIG);
        if let Some(made_by) = made_by.filter(|made_by| **made_by != serves) {
            return Err(SnapshotRefusal::OtherConfig {
                volume: volume.name_any(),
                made_by: made_by.clone(),
                serves,
            });
        }
    }
    if !config.is_node_local() {
        return Ok(());
    }
    let mut hosts = targets.iter().map(|target| persistent_volume::host_of(target.volume));
    let first = hosts.next().flatten().unwrap_or_default();
    match hosts.find(|host| host.unwrap_or_default() != first) {
        Some(other) => Err(SnapshotRefusal::OtherNode(
            first.to_owned(),
            other.unwrap_or_default().to_owned(),
        )),
        None => Ok(()),
    }
}

/// What the image gets about each volume.
pub(super) fn members(targets: &[SnapshotTarget<'_>], group: &str, config: &ProvisionerConfig) -> Vec<Member> {
    // What all of them share is among the properties.
    let own = |(key, value): &(&String, &String)| config.pass_through.get(*key) != Some(*value);
    let member = |target: &SnapshotTarget<'_>| {
        let SnapshotTarget {
            handle,
            volume,
            made_by,
        } = target;
        Member {
            snapshot_name: name_in_group(group, &made_by.pv_name),
            pv_name: made_by.pv_name.clone(),
            volume_handle: (*handle).to_owned(),
            volume_mode: made_by.volume_mode.clone(),
            pvc_name: made_by.pvc_name.clone(),
            pvc_uid: made_by.pvc_uid.clone(),
            size: persistent_volume::size(volume).unwrap_or(made_by.size),
            volume: persistent_volume::options(volume),
            parameters: made_by
                .parameters
                .iter()
                .filter(own)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        }
    };
    targets.iter().map(member).collect()
}

/// What is asked for the volumes together: no property of a single one is among it.
pub(super) fn request(seen: &ObservedSnapshot<'_>, members: &[Member], around: Surroundings<'_>) -> Request {
    let request = Request {
        pvc_namespace: seen.content.of.namespace.clone().unwrap_or_default(),
        ..request::unremembered(seen.form.take(), around)
    };
    let size = members.iter().map(|member| member.size).sum();
    request::of_size(request, size)
}

/// The snapshots of a group as its content remembers them, if their names are names: the image removes what has them.
pub(super) fn checked(members: Vec<Member>, group: &Handle) -> Result<Vec<Member>, HandleError> {
    for member in &members {
        group.member(&member.snapshot_name).to_string().parse::<Handle>()?;
    }
    Ok(members)
}

/// The snapshots of a group that an administrator has named. They are where the group is.
pub(super) fn named_members(content: &ContentView<'_>, group: &Handle) -> Result<Vec<Member>, HandleError> {
    let member = |text: &String| {
        let handle: Handle = text.parse()?;
        if (&handle.config, &handle.host) != (&group.config, &group.host) {
            return Err(HandleError::new(text));
        }
        Ok(Member {
            snapshot_name: handle.name,
            ..Member::default()
        })
    };
    content.named_members.iter().map(member).collect()
}

/// The status of a content whose group is there. By it, snapshot-controller makes the objects of each snapshot.
pub(super) fn ready(group: &str, taken: Timestamp, members: &[Member]) -> Value {
    let mut status = json!({
        "volumeGroupSnapshotHandle": group,
        "readyToUse": true,
        "creationTime": taken.to_string(),
        "error": null,
    });
    let Ok(group) = group.parse::<Handle>() else {
        return status;
    };
    let nanoseconds = i64::try_from(taken.as_nanosecond()).unwrap_or_default();
    let of_member = |member: &Member| {
        json!({
            "volumeHandle": member.volume_handle,
            "snapshotHandle": group.member(&member.snapshot_name).to_string(),
            "creationTime": nanoseconds,
            "readyToUse": true,
            "restoreSize": member.size,
        })
    };
    if !members.is_empty() {
        status["volumeSnapshotInfoList"] = members.iter().map(of_member).collect();
    }
    status
}

/// What is remembered of the snapshot of one volume, as if it had been taken alone.
pub(super) fn of_member(group: &Request, content: &ContentView<'_>, member: &Member) -> Request {
    let snapshot = group.snapshot.clone().map(|snapshot| Snapshot {
        name: member.snapshot_name.clone(),
        content_name: content.name().to_owned(),
        content_uid: content.uid().to_owned(),
        members: None,
        ..snapshot
    });
    let Member {
        snapshot_name: _,
        volume_handle: _,
        pv_name,
        volume_mode,
        pvc_name,
        pvc_uid,
        size,
        volume,
        parameters,
    } = member.clone();
    let request = Request {
        operation: Operation::Snapshot,
        pv_name,
        volume_mode,
        pvc_name,
        pvc_uid,
        volume,
        parameters: group.parameters.clone().into_iter().chain(parameters).collect(),
        snapshot,
        ..group.clone()
    };
    request::of_size(request, size)
}

#[cfg(test)]
mod tests;
