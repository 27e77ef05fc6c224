//! What the image is asked to take, or to delete.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use mooring_contract::request::{Member, Request, Snapshot};

use super::group::{self, SnapshotTarget};
use super::refusal::SnapshotRefusal;
use crate::config::{NotOffered, ProvisionerConfig};
use crate::operation::observed::{ObservedSnapshot, ObservedTarget, Surroundings};
use crate::operation::parameters::parameters_of;
use crate::operation::record::is_busy;
use crate::operation::request;
use crate::volume::content_view::name_for;
use crate::volume::persistent_volume::{self, is_ours};
use crate::volume::snapshot::{DeletionPolicy, Form, Handle};
use crate::volume::topology::Node;

/// What the image is asked, and the only node where it can do that.
pub(super) struct Asked {
    pub(super) config: Arc<ProvisionerConfig>,
    pub(super) request: Request,
    pub(super) node: Option<Node>,
    pub(super) handle: Handle,
}

/// What the image is asked to take; `None` if there is no ConfigMap.
pub(super) fn asked(
    seen: &ObservedSnapshot<'_>,
    config: Option<&Arc<ProvisionerConfig>>,
) -> Result<Option<Asked>, SnapshotRefusal> {
    if seen.content.of.uid.as_deref().unwrap_or_default().is_empty() {
        let (reference, kind) = if seen.content.is_group {
            ("volumeGroupSnapshotRef", "VolumeGroupSnapshot")
        } else {
            ("volumeSnapshotRef", "VolumeSnapshot")
        };
        return Err(SnapshotRefusal::Unbound {
            reference,
            what: seen.form.noun(),
            kind,
        });
    }
    let found: Vec<_> = seen.targets.iter().map(usable).collect::<Result<_, _>>()?;
    check_class(seen)?;
    let Some(config) = config else { return Ok(None) };
    check_offered(seen, config)?;
    let targets: Vec<_> = found.into_iter().map(known).collect::<Result<_, _>>()?;
    let Some(first) = targets.first() else {
        return Err(SnapshotRefusal::NoVolume(String::new()));
    };
    if seen.content.is_group {
        group::check(&targets, config)?;
    }
    let host = persistent_volume::host_of(first.volume).filter(|_| config.is_node_local());
    let node = host.map(|host| (seen.by_host)(host).ok_or_else(|| SnapshotRefusal::NodeGone(host.to_owned())));
    let handle = Handle {
        form: seen.form,
        config: config.reference.clone(),
        name: name_for(seen.content, seen.form),
        // A backup is elsewhere.
        host: host.filter(|_| seen.form != Form::Backup).map(str::to_owned),
    };
    let (request, members) = if seen.content.is_group {
        let members = group::members(&targets, &handle.name, config);
        (group::request(seen, &members, around(seen, config)), Some(members))
    } else {
        (of_volume(seen, first, config), None)
    };
    Ok(Some(Asked {
        config: config.clone(),
        request: about(seen, &handle.name, members, request),
        node: node.transpose()?,
        handle,
    }))
}

/// A volume with its claim, if a snapshot may be taken of it now.
type Usable<'a> = (&'a str, &'a PersistentVolume, &'a PersistentVolumeClaim);

fn usable(target: &ObservedTarget) -> Result<Usable<'_>, SnapshotRefusal> {
    let volume = target.volume.as_deref();
    let volume = volume.ok_or_else(|| SnapshotRefusal::NoVolume(target.handle.clone()))?;
    let name = volume.name_any();
    if !is_ours(volume) {
        return Err(SnapshotRefusal::NotOurs(name));
    }
    let claim = target
        .claim
        .as_deref()
        .filter(|_| volume.metadata.deletion_timestamp.is_none());
    let claim = claim.ok_or(SnapshotRefusal::Unclaimed(name))?;
    if is_busy(claim) {
        return Err(SnapshotRefusal::Busy(claim.name_any()));
    }
    Ok((&target.handle, volume, claim))
}

fn known((handle, volume, claim): Usable<'_>) -> Result<SnapshotTarget<'_>, SnapshotRefusal> {
    let made_by = request::made_by(volume)?;
    Ok(SnapshotTarget {
        handle,
        volume,
        made_by: request::on_behalf_of(made_by, claim),
    })
}

fn check_class(seen: &ObservedSnapshot<'_>) -> Result<(), SnapshotRefusal> {
    match (seen.content.class, seen.class) {
        (Some(name), None) if seen.content.is_group => Err(SnapshotRefusal::NoGroupClass(name.to_owned())),
        (Some(name), None) => Err(SnapshotRefusal::NoClass(name.to_owned())),
        // Once begun, it stays what it was begun as.
        (_, Some(class)) if seen.record.is_none() => match class.form() {
            Ok(Form::Backup) | Err(_) if seen.content.is_group => Err(SnapshotRefusal::GroupBackup(class.name_any())),
            Ok(Form::Snapshot | Form::Backup | Form::Group) => Ok(()),
            Err(error) => Err(error.into()),
        },
        (_, Some(_)) | (None, None) => Ok(()),
    }
}

fn check_offered(seen: &ObservedSnapshot<'_>, config: &ProvisionerConfig) -> Result<(), NotOffered> {
    config.check_offered(seen.form.take())?;
    match seen.content.deletion_policy {
        // What could never be deleted again is not begun.
        DeletionPolicy::Delete => config.check_offered(seen.form.delete()),
        DeletionPolicy::Retain => Ok(()),
    }
}

fn of_volume(seen: &ObservedSnapshot<'_>, target: &SnapshotTarget<'_>, config: &ProvisionerConfig) -> Request {
    let SnapshotTarget { volume, made_by, .. } = target;
    let size = persistent_volume::size(volume).unwrap_or(made_by.size);
    let options = persistent_volume::options(volume);
    let request = request::remembered(seen.form.take(), made_by.clone(), options, around(seen, config));
    request::of_size(request, size)
}

/// What the image is asked to delete.
pub(super) fn to_delete(
    seen: &ObservedSnapshot<'_>,
    config: &ProvisionerConfig,
    handle: &Handle,
) -> Result<Request, SnapshotRefusal> {
    let taken_by = seen.content.taken_by();
    let members = if seen.content.is_group {
        let remembered = taken_by.as_ref().map(|request| request.members().to_vec());
        Some(match remembered.filter(|members| !members.is_empty()) {
            Some(members) => group::checked(members, handle)?,
            None => group::named_members(seen.content, handle)?,
        })
    } else {
        None
    };
    let operation = seen.form.delete();
    let request = match taken_by {
        Some(taken_by) => {
            let options = taken_by.volume.clone();
            request::remembered(operation, taken_by, options, around(seen, config))
        }
        None => request::unremembered(operation, around(seen, config)),
    };
    Ok(about(seen, &handle.name, members, request))
}

fn around<'a>(seen: &'a ObservedSnapshot<'_>, config: &'a ProvisionerConfig) -> Surroundings<'a> {
    Surroundings::new(None, config, seen.kube_api)
}

/// The request with the snapshot that it is about, and the parameters of its class.
fn about(seen: &ObservedSnapshot<'_>, name: &str, members: Option<Vec<Member>>, request: Request) -> Request {
    let mut parameters = request.parameters;
    parameters.extend(parameters_of(seen.class.and_then(|class| class.parameters.as_ref())));
    Request {
        parameters,
        deletion_policy: seen.content.deletion_policy.as_str().to_owned(),
        snapshot: Some(Snapshot {
            name: name.to_owned(),
            content_name: seen.content.name().to_owned(),
            content_uid: seen.uid().to_owned(),
            backup: seen.form == Form::Backup,
            members,
        }),
        ..request
    }
}
