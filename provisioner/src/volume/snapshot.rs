//! The objects of the snapshot API, as far as Mooring reads them, and what a snapshot's handle says.
//!
//! The types are those of kubernetes-csi/external-snapshotter, `client/apis/volumesnapshot/v1/types.go`. They are
//! written out here since a crate for them would bind Mooring to its own version of kube.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use mooring_contract::named;
use mooring_contract::names::parameters;
use mooring_contract::operation::Operation;
use serde::{Deserialize, Serialize};

use crate::config::ConfigRef;

/// The API group of snapshots.
pub const GROUP: &str = "snapshot.storage.k8s.io";

/// A snapshot on the storage, and how to take it. snapshot-controller makes one for each `VolumeSnapshot`; an
/// administrator makes one for an existing snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeSnapshotContent {
    pub metadata: ObjectMeta,
    pub spec: ContentSpec,
    pub status: Option<ContentStatus>,
}

/// What a [`VolumeSnapshotContent`] asks for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContentSpec {
    /// The `VolumeSnapshot` that it is for. The uid of a content that an administrator made is empty until they are
    /// bound.
    pub volume_snapshot_ref: ObjectReference,
    /// Whether the snapshot goes with its objects.
    pub deletion_policy: DeletionPolicy,
    pub driver: String,
    /// The class, with the image's parameters.
    pub volume_snapshot_class_name: Option<String>,
    /// What the snapshot is of, or is.
    pub source: ContentSource,
    /// The volume mode of what it is of, where snapshot-controller says it.
    pub source_volume_mode: Option<String>,
}

named! {
    /// What happens to a snapshot whose `VolumeSnapshot` is deleted.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub enum DeletionPolicy {
        /// It goes too.
        Delete = "Delete",
        /// It stays on the storage.
        #[default]
        Retain = "Retain",
    }
}

/// What a snapshot is of, or is: one of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContentSource {
    pub volume_handle: Option<String>,
    /// The handle of a snapshot that exists already.
    pub snapshot_handle: Option<String>,
}

/// What there is of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContentStatus {
    /// See [`Handle`].
    pub snapshot_handle: Option<String>,
    /// Whether volumes can be made of it.
    pub ready_to_use: Option<bool>,
    /// The least size of such a volume, in bytes.
    pub restore_size: Option<u64>,
    /// Why there is none yet.
    pub error: Option<SnapshotError>,
    /// For a snapshot of a group, the group's handle.
    pub volume_group_snapshot_handle: Option<String>,
}

/// Why there is no snapshot yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotError {
    pub message: Option<String>,
}

/// What a user asks for: a snapshot of a claim's volume.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct VolumeSnapshot {
    pub metadata: ObjectMeta,
    /// What there is, as snapshot-controller says it.
    pub status: Option<SnapshotStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    pub bound_volume_snapshot_content_name: Option<String>,
    /// Whether volumes can be made of it.
    pub ready_to_use: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct VolumeSnapshotClass {
    pub metadata: ObjectMeta,
    pub driver: String,
    /// Whether a snapshot goes with its objects.
    #[serde(default, rename = "deletionPolicy")]
    pub deletion_policy: DeletionPolicy,
    /// For the image.
    pub parameters: Option<BTreeMap<String, String>>,
}

/// What a content represents on the storage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// A snapshot, beside its volume.
    #[default]
    Snapshot,
    /// A copy elsewhere.
    Backup,
    /// Snapshots of several volumes, taken at once.
    Group,
}

impl Form {
    /// The operation that takes one.
    pub fn take(self) -> Operation {
        match self {
            Self::Snapshot => Operation::Snapshot,
            Self::Backup => Operation::Backup,
            Self::Group => Operation::SnapshotGroup,
        }
    }

    /// The operation that removes one.
    pub fn delete(self) -> Operation {
        match self {
            Self::Snapshot => Operation::DeleteSnapshot,
            Self::Backup => Operation::DeleteBackup,
            Self::Group => Operation::DeleteGroup,
        }
    }

    /// What Events call it.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Backup => "backup",
            Self::Group => "group snapshot",
        }
    }
}

/// A class that does not say what to take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "parameter {key} of the VolumeSnapshotClass is {0:?}: create the class again with \"true\" or \"false\"",
    key = parameters::BACKUP
)]
pub struct FormError(String);

impl VolumeSnapshotClass {
    /// What to take for a content of this class.
    pub fn form(&self) -> Result<Form, FormError> {
        let said = self.parameters.as_ref().and_then(|all| all.get(parameters::BACKUP));
        match said.map_or("false", String::as_str) {
            "true" => Ok(Form::Backup),
            "false" => Ok(Form::Snapshot),
            other => Err(FormError(other.to_owned())),
        }
    }
}

/// Has kube and its watches know a kind of a group.
macro_rules! kind {
    ($type:ident of $group:ident: $scope:ty, $plural:literal, $($meta:tt).+) => {
        impl ::kube::Resource for $type {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> ::std::borrow::Cow<'_, str> {
                stringify!($type).into()
            }

            fn group((): &()) -> ::std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> ::std::borrow::Cow<'_, str> {
                "v1".into()
            }

            fn plural((): &()) -> ::std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.$($meta).+
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.$($meta).+
            }
        }
    };
}
pub(super) use kind;

kind!(VolumeSnapshotContent of GROUP: ClusterResourceScope, "volumesnapshotcontents", metadata);
kind!(VolumeSnapshot of GROUP: NamespaceResourceScope, "volumesnapshots", metadata);
kind!(VolumeSnapshotClass of GROUP: ClusterResourceScope, "volumesnapshotclasses", metadata);

/// A snapshot or backup on the storage: all that it takes to find it again, with nothing else of the cluster left.
/// Administrators write one to name a snapshot that exists already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    pub form: Form,
    /// The ConfigMap that took it.
    pub config: ConfigRef,
    /// Its name on the storage: what [`name_for`](super::content_view::name_for) gives, or what an administrator wrote. At most 200 letters, digits,
    /// `-`, `.` and `_`.
    pub name: String,
    /// The host name of the node that it lives on, if it lives on one. A backup lives on none.
    pub host: Option<String>,
}

/// A handle that names no snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the handle of a snapshot: write NAMESPACE/CONFIGMAP/SNAPSHOT, with @NODE after it if the snapshot \
     lives on a node; for a backup, write backup:NAMESPACE/CONFIGMAP/BACKUP; for a group, the same as for a snapshot \
     after group:"
)]
pub struct HandleError(String);

impl HandleError {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// Begins the handle of a backup. No namespace has a colon in its name.
const BACKUP: &str = "backup:";

/// Begins the handle of a group.
const GROUP_OF_SNAPSHOTS: &str = "group:";

/// Longest name of a snapshot: it becomes a file's.
const MAX_NAME: usize = 200;

impl FromStr for Handle {
    type Err = HandleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let (form, rest) = if let Some(rest) = text.strip_prefix(BACKUP) {
                (Form::Backup, rest)
            } else if let Some(rest) = text.strip_prefix(GROUP_OF_SNAPSHOTS) {
                (Form::Group, rest)
            } else {
                (Form::Snapshot, text)
            };
            let (config, last) = rest.rsplit_once('/')?;
            let (name, host) = match last.split_once('@') {
                Some((name, host)) => (name, Some(host)),
                None => (last, None),
            };
            let plain = |text: &str| {
                !text.is_empty()
                    && text.len() <= MAX_NAME
                    && text.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && text
                        .chars()
                        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))
            };
            let elsewhere = form == Form::Backup && host.is_some();
            (plain(name) && host.is_none_or(plain) && !elsewhere).then_some(())?;
            Some(Self {
                form,
                config: config.parse().ok()?,
                name: name.to_owned(),
                host: host.map(str::to_owned),
            })
        };
        read().ok_or_else(|| HandleError::new(text))
    }
}

impl Handle {
    /// For a group, that of one of its snapshots, which is where the group is.
    #[must_use]
    pub fn member(&self, name: &str) -> Self {
        Self {
            form: Form::Snapshot,
            name: name.to_owned(),
            ..self.clone()
        }
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.form {
            Form::Snapshot => "",
            Form::Backup => BACKUP,
            Form::Group => GROUP_OF_SNAPSHOTS,
        })?;
        write!(f, "{}/{}", self.config, self.name)?;
        match &self.host {
            Some(host) => write!(f, "@{host}"),
            None => Ok(()),
        }
    }
}

/// Name on the storage of the snapshot of one volume of a group.
pub fn name_in_group(group: &str, pv_name: &str) -> String {
    format!("{group}.{pv_name}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Form, Handle, VolumeSnapshotClass, VolumeSnapshotContent};
    use serde_json::{Value, json};

    /// A content as snapshot-controller makes it, with changes to its parts.
    pub(crate) fn content(change: &Value) -> Value {
        let mut content = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "snapcontent-s1", "uid": "s1",
                         "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"]},
            "spec": {
                "driver": "vcs.mooring.dev", "deletionPolicy": "Delete", "source": {"volumeHandle": "pvc-u1"},
                "volumeSnapshotClassName": "silver",
                "volumeSnapshotRef": {"kind": "VolumeSnapshot", "namespace": "default", "name": "monday", "uid": "v1",
                                      "apiVersion": "snapshot.storage.k8s.io/v1"},
            },
        });
        for (part, new) in change.as_object().unwrap() {
            for (key, value) in new.as_object().unwrap() {
                content[part][key] = value.clone();
            }
        }
        content
    }

    #[test]
    fn a_handle_says_all_that_it_takes_to_find_the_snapshot() {
        for text in [
            "admin/gold/snapshot-1",
            "admin/gold/snapshot-1@node-a",
            "a/b/s_1.img@n.example",
            "backup:admin/gold/backup-1",
            "backup/gold/snapshot-1",
            "group:admin/gold/groupsnapshot-1",
            "group:admin/gold/groupsnapshot-1@node-a",
            "admin/gold/groupsnapshot-1.pvc-1@node-a",
        ] {
            assert_eq!(text.parse::<Handle>().unwrap().to_string(), text);
        }
        let handle: Handle = "admin/gold/snapshot-1@node-a".parse().unwrap();
        assert_eq!(
            (handle.config.to_string().as_str(), handle.name.as_str()),
            ("admin/gold", "snapshot-1")
        );
        for text in [
            "",
            "gold/x",
            "admin/gold/",
            "admin/gold/..",
            "admin/gold/a b",
            "admin/gold/x@",
            "a/b/-rf",
            "a/b/x@/etc",
            "backup:gold/x",
            "backup:admin/gold/",
            "backup:admin/gold/x@node-a",
            "group:admin/gold/",
        ] {
            assert!(text.parse::<Handle>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_class_says_whether_its_snapshots_are_backups() {
        let form = |said: Option<&str>| {
            let parameters = said.map(|said| [("mooring.dev/backup".to_owned(), said.to_owned())].into());
            let class = VolumeSnapshotClass {
                parameters,
                ..VolumeSnapshotClass::default()
            };
            class.form().ok()
        };
        for (said, meant) in [
            (None, Some(Form::Snapshot)),
            (Some("false"), Some(Form::Snapshot)),
            (Some("true"), Some(Form::Backup)),
            (Some("yes"), None),
        ] {
            assert_eq!(form(said), meant, "{said:?}");
        }
    }

    #[test]
    fn an_administrator_may_name_another_configmap_of_the_same_storage() {
        let config = |change: &Value| {
            let content: VolumeSnapshotContent = serde_json::from_value(content(change)).unwrap();
            content.view().config().map(|config| config.to_string())
        };
        let source = json!({"snapshotHandle": "backup:a/b/c"});
        let named =
            |name: &str| json!({"metadata": {"annotations": {"mooring.dev/config": name}}, "spec": {"source": source}});
        assert_eq!(config(&json!({"spec": {"source": source}})).as_deref(), Some("a/b"));
        assert_eq!(config(&named("other/gold")).as_deref(), Some("other/gold"));
        assert_eq!(config(&named("nonsense")).as_deref(), Some("a/b"));
        assert_eq!(config(&json!({})), None);
    }

    #[test]
    fn a_content_is_over_when_its_snapshot_is() {
        let over = |change: &Value| {
            let content: VolumeSnapshotContent = serde_json::from_value(content(change)).unwrap();
            content.view().is_over()
        };
        let going = json!("2026-11-21T00:00:00Z");
        let marked = json!({"snapshot.storage.kubernetes.io/volumesnapshot-being-deleted": "yes"});
        assert!(!over(&json!({})));
        assert!(!over(&json!({"metadata": {"deletionTimestamp": going}})));
        assert!(!over(&json!({"metadata": {"annotations": marked}})), "retained");
        assert!(over(
            &json!({"metadata": {"deletionTimestamp": going, "annotations": marked}})
        ));
        let unbound = json!({"metadata": {"deletionTimestamp": going}, "spec": {
            "source": {"snapshotHandle": "a/b/c"}, "volumeSnapshotRef": {"name": "x", "namespace": "y"}}});
        assert!(over(&unbound));
    }
}
