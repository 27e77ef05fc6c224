//! What the contents of two APIs say alike: that of one snapshot, and that of a group of them.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mooring_contract::names::{CSI_DRIVER, annotations, finalizers};
use mooring_contract::request::Request;

use super::group_snapshot::VolumeGroupSnapshotContent;
use super::snapshot::{
    DeletionPolicy, Form, Handle, HandleError, SnapshotError, VolumeSnapshot, VolumeSnapshotContent,
};
use crate::config::ConfigRef;

/// A `VolumeSnapshotContent` or a `VolumeGroupSnapshotContent`, as far as both say the same.
#[derive(Debug, Clone)]
pub struct ContentView<'a> {
    pub meta: &'a ObjectMeta,
    pub is_group: bool,
    /// The user's object that it is for. The uid of a content that an administrator made is empty until they are bound.
    pub of: &'a ObjectReference,
    /// Whether what is on the storage goes with its objects.
    pub deletion_policy: DeletionPolicy,
    pub driver: &'a str,
    /// The class, with the image's parameters.
    pub class: Option<&'a str>,
    /// The handles of the source volumes.
    pub volumes: &'a [String],
    /// The handle of what an administrator says to be there.
    pub named: Option<&'a str>,
    /// For a group, the handles of its snapshots, as an administrator says them.
    pub named_members: &'a [String],
    /// Which it is on the storage, if Mooring has said so.
    pub taken: Option<&'a str>,
    /// For a snapshot of a group, the group's handle.
    pub of_group: Option<&'a str>,
    /// Volumes can be made of it.
    pub is_ready: bool,
    /// Why there is nothing yet.
    pub error: Option<&'a str>,
}

impl<'a> From<&'a VolumeSnapshotContent> for ContentView<'a> {
    fn from(content: &'a VolumeSnapshotContent) -> Self {
        let (meta, spec, status) = (&content.metadata, &content.spec, content.status.as_ref());
        let taken = status.and_then(|status| status.snapshot_handle.as_deref());
        let by_status = status.and_then(|status| status.volume_group_snapshot_handle.as_deref());
        let marked = annotation(meta, annotations::OF_GROUP);
        Self {
            meta,
            is_group: false,
            of: &spec.volume_snapshot_ref,
            deletion_policy: spec.deletion_policy,
            driver: &spec.driver,
            class: spec.volume_snapshot_class_name.as_deref(),
            volumes: spec.source.volume_handle.as_slice(),
            named: spec.source.snapshot_handle.as_deref(),
            named_members: &[],
            taken,
            of_group: by_status.or(marked),
            is_ready: taken.is_some() && status.is_some_and(|status| status.ready_to_use == Some(true)),
            error: said(status.and_then(|status| status.error.as_ref())),
        }
    }
}

impl<'a> From<&'a VolumeGroupSnapshotContent> for ContentView<'a> {
    fn from(content: &'a VolumeGroupSnapshotContent) -> Self {
        let (spec, status) = (&content.spec, content.status.as_ref());
        let named = spec.source.group_snapshot_handles.as_ref();
        let taken = status.and_then(|status| status.volume_group_snapshot_handle.as_deref());
        Self {
            meta: &content.metadata,
            is_group: true,
            of: &spec.volume_group_snapshot_ref,
            deletion_policy: spec.deletion_policy,
            driver: &spec.driver,
            class: spec.volume_group_snapshot_class_name.as_deref(),
            volumes: &spec.source.volume_handles,
            named: named.map(|named| named.volume_group_snapshot_handle.as_str()),
            named_members: named.map_or(&[], |named| &named.volume_snapshot_handles),
            taken,
            of_group: None,
            is_ready: taken.is_some() && status.is_some_and(|status| status.ready_to_use == Some(true)),
            error: said(status.and_then(|status| status.error.as_ref())),
        }
    }
}

fn said(error: Option<&SnapshotError>) -> Option<&str> {
    error.and_then(|error| error.message.as_deref())
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

impl<'a> ContentView<'a> {
    pub fn name(&self) -> &'a str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    pub fn uid(&self) -> &'a str {
        self.meta.uid.as_deref().unwrap_or_default()
    }

    /// Whether it is for Mooring.
    pub fn is_ours(&self) -> bool {
        self.driver == CSI_DRIVER && (!self.volumes.is_empty() || self.named.is_some())
    }

    /// Whether what is on the storage is to go, or to be left, now: as csi-snapshotter decides it (`shouldDelete` and
    /// `shouldDeleteGroupSnapshotContent` in `pkg/sidecar-controller` of external-snapshotter). A content that somebody
    /// deletes while the user's object exists waits for that.
    pub fn is_over(&self) -> bool {
        let unbound = self.named.is_some() && self.of.uid.as_deref().unwrap_or_default().is_empty();
        let mark = if self.is_group {
            annotations::GROUP_BEING_DELETED
        } else {
            annotations::SNAPSHOT_BEING_DELETED
        };
        self.meta.deletion_timestamp.is_some() && (unbound || self.annotation(mark).is_some())
    }

    /// The annotation that says that it is being taken.
    pub fn being_created(&self) -> &'static str {
        if self.is_group {
            annotations::GROUP_BEING_CREATED
        } else {
            annotations::SNAPSHOT_BEING_CREATED
        }
    }

    /// Whether its finalizer holds it until what is on the storage is gone.
    pub fn is_held(&self) -> bool {
        let own = if self.is_group {
            finalizers::GROUP_CONTENT
        } else {
            finalizers::SNAPSHOT_CONTENT
        };
        self.meta.finalizers.iter().flatten().any(|name| name == own)
    }

    /// Which it is on the storage, if there is one.
    pub fn handle(&self) -> Option<&'a str> {
        self.taken.or(self.named)
    }

    /// Reads a handle of one like this.
    pub fn parse(&self, handle: &str) -> Result<Handle, HandleError> {
        let read: Handle = handle.parse()?;
        if (read.form == Form::Group) == self.is_group {
            Ok(read)
        } else {
            Err(HandleError::new(handle))
        }
    }

    /// The ConfigMap of the storage that it is on: the one that took it, unless an administrator has named another
    /// since.
    pub fn config(&self) -> Option<ConfigRef> {
        let named = self.annotation(annotations::CONFIG);
        let named = named.and_then(|text| text.parse().ok());
        let handle = || self.handle()?.parse::<Handle>().ok();
        named.or_else(|| handle().map(|handle| handle.config))
    }

    /// What took it, as the content remembers that, if it is about this very one.
    pub fn taken_by(&self) -> Option<Request> {
        let request: Request = serde_json::from_str(self.annotation(annotations::REQUEST)?).ok()?;
        let of_this = request
            .snapshot
            .as_ref()
            .is_some_and(|snapshot| Some(&snapshot.content_uid) == self.meta.uid.as_ref());
        of_this.then_some(request)
    }

    /// For a group, the names of its snapshots on the storage, as the content remembers or an administrator says them.
    pub fn member_names(&self) -> Vec<String> {
        let taken_by = self.taken_by();
        let remembered = taken_by.iter().flat_map(Request::members);
        let remembered = remembered.map(|member| member.snapshot_name.clone());
        let named = self.named_members.iter().filter_map(|handle| handle.parse().ok());
        remembered.chain(named.map(|handle: Handle| handle.name)).collect()
    }

    pub fn annotation(&self, key: &str) -> Option<&'a str> {
        annotation(self.meta, key)
    }
}

impl VolumeSnapshotContent {
    /// What it says, as far as one of a group says it too.
    pub fn view(&self) -> ContentView<'_> {
        self.into()
    }

    /// Whether it and a `VolumeSnapshot` are each other's.
    pub fn is_bound_to(&self, snapshot: &VolumeSnapshot) -> bool {
        let (of, meta) = (&self.spec.volume_snapshot_ref, &snapshot.metadata);
        let status = snapshot.status.as_ref();
        of.name == meta.name
            && of.namespace == meta.namespace
            && of.uid == meta.uid
            && meta.uid.is_some()
            && status.and_then(|status| status.bound_volume_snapshot_content_name.as_ref())
                == self.metadata.name.as_ref()
    }
}

/// Name on the storage of what is taken for a content: of a snapshot or a group that which csi-snapshotter would give
/// it. The uid is that of the user's object.
pub fn name_for(content: &ContentView<'_>, form: Form) -> String {
    let of = content.of.uid.as_deref().unwrap_or_default();
    let prefix = match form {
        Form::Snapshot => "snapshot",
        Form::Backup => "backup",
        Form::Group => "groupsnapshot",
    };
    format!("{prefix}-{of}")
}
