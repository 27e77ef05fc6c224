//! Every name that Mooring puts into the Kubernetes API: one constant each, here only. But the reasons of Events are in
//! `mooring_program::reasons`: both programs show them, and no image has to know them.

/// `provisioner` of a StorageClass that Mooring serves, unless that has the name of its [`CSI_DRIVER`].
pub const PROVISIONER: &str = "mooring.dev/flex-provisioner";

/// The name of the original design; accepted in a ConfigMap's `plugin-name` only, since modern controller-managers
/// take a StorageClass provisioner under `kubernetes.io/` for an in-tree one and fail its claims.
pub const PROVISIONER_ALIAS: &str = "kubernetes.io/flex-provisioner";

/// `driver` of a FlexVolume; also the type that the kubelet demands of a Secret named in `secretRef`
/// (`pkg/volume/util.GetSecretForPV`).
pub const FLEX_DRIVER: &str = "mooring.dev/vcs";

/// The driver's folder in the kubelet's plugin directory (`vendor~driver`).
pub const FLEX_DRIVER_DIR: &str = "mooring.dev~vcs";

/// The driver's executable in [`FLEX_DRIVER_DIR`].
pub const FLEX_EXECUTABLE: &str = "vcs";

/// The mounter's socket, in [`FLEX_DRIVER_DIR`] beside the shim. The kubelet's prober ignores names with a leading dot.
pub const FLEX_SOCKET: &str = ".mounter.sock";

/// The ConfigMap with the public keys of the controllers that have signed connections, by id, in Mooring's namespace.
pub const CONNECTION_KEYS: &str = "connection-keys";

/// The ConfigMap that says what of Mooring the cluster's version of Kubernetes has, in Mooring's namespace.
pub const CLUSTER_FEATURES: &str = "cluster-features";

/// `driver` of a CSI volume. A StorageClass whose `provisioner` this is has its capacity looked up by the scheduler.
pub const CSI_DRIVER: &str = "vcs.mooring.dev";

/// Whether a StorageClass with this `provisioner` is Mooring's to serve.
pub fn is_provisioner(name: &str) -> bool {
    [PROVISIONER, CSI_DRIVER].contains(&name)
}

/// Where a Pod has its CSI volumes, of whatever driver (`pkg/volume/csi` of the kubelet).
pub const CSI_VOLUMES_DIR: &str = "kubernetes.io~csi";

/// The directory that a CSI volume is mounted on, in its own in [`CSI_VOLUMES_DIR`].
pub const CSI_TARGET: &str = "mount";

/// Where the kubelet has the raw block volumes of all CSI drivers, beneath its root.
pub const CSI_DEVICES_DIR: [&str; 4] = ["plugins", "kubernetes.io", "csi", "volumeDevices"];

/// What the kubelet notes of a CSI volume, beside [`CSI_TARGET`].
pub const CSI_VOLUME_DATA: &str = "vol_data.json";

/// The CSI driver's socket beneath the kubelet's root.
pub const CSI_SOCKET: [&str; 3] = ["plugins", CSI_DRIVER, "csi.sock"];

/// The socket by which the CSI driver registers itself, beneath the kubelet's root.
///
/// Its name has an `@` on purpose. Calls on this socket name its escaped path as their HTTP authority (`dial` in
/// `pkg/kubelet/pluginmanager/operationexecutor`, and grpc-go's `encodeAuthority`). A `%` is valid before an `@` only,
/// and an HTTP library that checks it refuses the call otherwise.
pub const CSI_REGISTRATION_SOCKET: [&str; 2] = ["plugins_registry", "registration@vcs.mooring.dev.sock"];

/// Namespace that Mooring runs in unless told otherwise.
pub const NAMESPACE: &str = "mooring";

/// Service account of client Pods: without rights, but it may have imagePullSecrets.
pub const CLIENT_SERVICE_ACCOUNT: &str = "client";

/// The priority class of client Pods.
pub const CLIENT_PRIORITY_CLASS: &str = "mooring-client";

/// Service accounts of Mooring's own parts in its namespace: no ConfigMap may run an image as one of them.
pub const OWN_SERVICE_ACCOUNTS: [&str; 3] = ["flex-provisioner", "mounter", CLIENT_SERVICE_ACCOUNT];

/// Field manager of every server-side apply, and reporting controller of Events.
pub const FIELD_MANAGER: &str = "mooring-flex-provisioner";

/// ConfigMap in Mooring's namespace that says which client serves which type of volume.
pub const MOUNTER_CONFIG: &str = "mounter-config";

/// ConfigMap in Mooring's namespace with the administrator's settings. No manifest of Mooring has it, so no upgrade
/// overwrites it; the admission policy for client images reads it too.
pub const SETTINGS_CONFIG: &str = "mooring-settings";

/// The admission policy that judges the images of client Pods by these settings, as the API server has them.
pub const CLIENT_IMAGES_POLICY: &str = "mooring-client-images";

/// Those admission policies that controller and mounter ask about, whether they are in force.
pub mod policies {
    pub const CONTROLLER: &str = "mooring-controller";
    pub const CONTROLLER_PRIORITY: &str = "mooring-controller-priority";
    pub const CONTROLLER_METADATA: &str = "mooring-controller-metadata";
    pub const CONTROLLER_VOLUMES: &str = "mooring-controller-volumes";
    pub const CONTROLLER_SECRETS: &str = "mooring-controller-secrets";
    pub const CONTROLLER_CONFIG_MAPS: &str = "mooring-controller-configmaps";
    pub const CONTROLLER_CLASSES: &str = "mooring-controller-classes";
    pub const CONTROLLER_EVENTS: &str = "mooring-controller-events";
    pub const CONTROLLER_TOKENS: &str = "mooring-controller-tokens";
    pub const MOUNTER: &str = "mooring-mounter";
}

/// At the beginning of an image's name: the registry with Mooring's images, whichever that is in a cluster.
pub const REGISTRY: &str = "mooring.dev";

/// Reporting controller of the mounter's Events.
pub const MOUNTER: &str = "mooring-mounter";

/// Kubernetes' own taint of a node that is gone for good, which its administrator sets.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Where a provisioning container finds what it is given.
pub mod paths {
    /// Folder of one file per property.
    pub const PROPERTIES: &str = "/run/mooring/properties";
    /// Folder of all that a worker gives to its run.
    pub const RUN: &str = "/run/mooring";
    /// The properties as typed JSON.
    pub const REQUEST: &str = "/run/mooring/request.json";
    /// The volume named by `backend-volume`.
    pub const BACKEND: &str = "/run/mooring/backend";
    /// The volume named by `backup-volume`, in runs that make, read or delete a backup.
    pub const BACKUP: &str = "/run/mooring/backup";
    /// Termination message: the volume's options with `volume-source`, else last words.
    pub const TERMINATION_LOG: &str = "/dev/termination-log";
    /// Folder of a client image's own mount programs.
    pub const CLIENT_OVERRIDES: &str = "/usr/libexec/mooring";

    /// A client image's own program that is run when its container starts.
    pub const CLIENT_START: &str = "/usr/libexec/mooring-start";

    /// A client image's description of the daemon that all its volumes need.
    pub const CLIENT_DAEMON: &str = "/usr/libexec/mooring-daemon.json";
}

/// Labels of objects that Mooring makes or reads.
pub mod labels {
    /// Of Kubernetes, on a node: its host name, by which a volume on a node's own disk is tied to it.
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
    /// On a ConfigMap: its part in Mooring; [`TYPE_PROVISIONER_CONFIG`] makes it a provisioner.
    pub const TYPE: &str = "type";
    /// Value of [`TYPE`] on a provisioner ConfigMap.
    pub const TYPE_PROVISIONER_CONFIG: &str = "provisioner-config";
    /// Value of [`TYPE`] on a ConfigMap in which Mooring sums up the provisioner ConfigMaps that are [`PART_OF`] it.
    pub const TYPE_PROVISIONER_STATUS: &str = "provisioner-status";
    /// Of Kubernetes, on a provisioner ConfigMap: the name of the ConfigMap of its namespace that sums it up.
    pub const PART_OF: &str = "app.kubernetes.io/part-of";
    /// On a ConfigMap: the name of the StorageClass that it serves.
    pub const STORAGE_CLASS: &str = "storage-class";
    /// On Pods and Secrets that Mooring made: which part made them.
    pub const COMPONENT: &str = "mooring.dev/component";
    /// [`COMPONENT`] of a provisioning Pod and its Secret.
    pub const COMPONENT_PROVISIONING: &str = "provisioning";
    /// [`COMPONENT`] of a ConfigMap that records a volume's move between FlexVolume and CSI.
    pub const COMPONENT_MIGRATION: &str = "migration";
    /// [`COMPONENT`] of a Secret with the connection of a volume that has to be attached.
    pub const COMPONENT_ATTACHMENT: &str = "attachment";
    /// [`COMPONENT`] of a client Pod.
    pub const COMPONENT_CLIENT: &str = "client";
    /// On a provisioning Pod: the operation that it runs.
    pub const OPERATION: &str = "mooring.dev/operation";
    /// On a provisioning Pod: the uid of the claim that the volume is or was for.
    pub const CLAIM_UID: &str = "mooring.dev/claim-uid";
    /// On a provisioning Pod: the claim's namespace.
    pub const CLAIM_NAMESPACE: &str = "mooring.dev/claim-namespace";
    /// On a provisioning Pod: the claim's name, cut to what a label holds.
    pub const CLAIM_NAME: &str = "mooring.dev/claim-name";
    /// On a provisioning Pod: the name of its ConfigMap, cut to what a label holds.
    pub const CONFIG_NAME: &str = "mooring.dev/config-name";
    /// On a provisioning Pod: the number of the attempt, from 1.
    pub const ATTEMPT: &str = "mooring.dev/attempt";
    /// On a provisioning Pod, `true`: it is a worker, which carries out one run after another.
    pub const WORKER: &str = "mooring.dev/worker";
    /// On a client Pod: the node that it serves.
    pub const NODE: &str = "mooring.dev/node";
    /// On a client Pod: the client (the `client` option of the volumes that it serves).
    pub const CLIENT: &str = "mooring.dev/client";
    /// On a Node, with a client's name behind it: whether the node can mount that client's volumes, [`READY`] or
    /// [`NOT_READY`]. An annotation of the same name says what to do where it can't.
    pub const NODE_CLIENT_PREFIX: &str = "client.mooring.dev/";
    /// In place of a client's name, which has no capitals: whether the node can mount volumes that the kubelet has by
    /// FlexVolume, of whichever client.
    pub const FLEX_VOLUME: &str = "FlexVolume";
    /// On a Node: whether it can mount anything at all, [`READY`] or [`NOT_READY`].
    pub const NODE_MOUNTER: &str = "mooring.dev/mounter";
    /// On a Node: how many client Pods of an earlier version still serve volumes there. An annotation of the same name
    /// says which, and for whom.
    pub const NODE_OLD_CLIENT_PODS: &str = "mooring.dev/old-client-pods";
    /// See [`NODE_CLIENT_PREFIX`].
    pub const READY: &str = "ready";
    /// See [`NODE_CLIENT_PREFIX`].
    pub const NOT_READY: &str = "not-ready";
    /// On objects that Mooring made and keeps.
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Value of [`MANAGED_BY`].
    pub const MANAGED_BY_MOORING: &str = "mooring";
}

/// Annotations that Mooring writes or reads.
pub mod annotations {
    /// On the controllers' Lease: the version of the records that a leader may have written, a number. A controller
    /// that reads none so new does not lead.
    pub const RECORDS: &str = "mooring.dev/records";
    /// On a claim: who created it, stamped at admission.
    pub const USERNAME: &str = "mooring.dev/username";
    /// On a claim: the creator's groups, comma-separated, stamped at admission.
    pub const GROUPS: &str = "mooring.dev/groups";
    /// On a claim, a PV or a `VolumeSnapshotContent`: the record of the operation in flight, JSON.
    pub const OPERATION: &str = "mooring.dev/operation";
    /// On a PV or a `VolumeSnapshotContent`: the request that made it, JSON without secrets, so that a later operation
    /// can say the same.
    pub const REQUEST: &str = "mooring.dev/request";
    /// On a PV: `namespace/name` of the provisioner ConfigMap. On a `VolumeSnapshotContent` the same, in place of the
    /// one in its handle: an administrator changes it where the ConfigMap of the same storage has another name.
    /// And on the `VolumeSnapshotClass` of something discovered.
    pub const CONFIG: &str = "mooring.dev/config";
    /// On a PV: the nodes that the storage lets have the volume, JSON; see [`crate::attachment::AttachedNodes`].
    pub const ATTACHED_TO: &str = "mooring.dev/attached-to";
    /// On a PV that several nodes can have: the attachments and detachments that wait while another is carried out,
    /// JSON.
    pub const DEFERRED: &str = "mooring.dev/deferred-attachments";
    /// On a Node, with a PV's name behind it: a volume that was attached is mounted there, or is about to be.
    pub const NODE_ATTACHED_PREFIX: &str = "attached.mooring.dev/";
    /// On a Node: its mounter is of a version that says so of each volume that was attached. No PV of Mooring's has
    /// such a name.
    pub const NODE_NOTES_ATTACHED: &str = "attached.mooring.dev/noted-by-mounter";
    /// Value of that annotation: the mounter takes connections that a controller signed, and no others.
    pub const TAKES_SIGNED: &str = "signed";
    /// On a Node: what its pool has left, JSON; see [`crate::pool::PoolRoom`].
    pub const NODE_POOL: &str = "mooring.dev/pool";
    /// On a provisioning Pod: `namespace/name` of the claim.
    pub const CLAIM: &str = "mooring.dev/claim";
    /// On a ConfigMap: whether it is in force, or what is wrong with it.
    pub const STATUS: &str = "mooring.dev/status";
    /// On a ConfigMap: properties, comma-separated, that look like a known key misspelt and are meant all the same.
    pub const PASS_THROUGH: &str = "mooring.dev/pass-through";
    /// On a ConfigMap: the last version of it that was good, JSON, so that a later bad one changes nothing that runs.
    pub const LAST_GOOD: &str = "mooring.dev/last-good";
    /// On a StorageClass: the uid of the ConfigMap that it was made for. On a worker: of the one that it belongs to while it
    /// has no run.
    pub const CONFIG_UID: &str = "mooring.dev/config-uid";
    /// On a StorageClass or a `VolumeSnapshotClass` that was made for what an image has discovered: what the storage
    /// calls it.
    pub const DISCOVERED: &str = "mooring.dev/discovered";
    /// On such a StorageClass: since when the image does not list it any more.
    pub const VANISHED: &str = "mooring.dev/vanished";
    /// On such a StorageClass: the bytes that the storage had left for new volumes, as last written down.
    pub const CAPACITY: &str = "mooring.dev/capacity";
    /// On such a StorageClass, `true`: snapshots of its volumes can be taken.
    pub const SNAPSHOTS: &str = "mooring.dev/snapshots";
    /// On such a StorageClass, `true`: Mooring has marked it as the default. What an administrator has changed since
    /// stays.
    pub const DEFAULT_BY_DISCOVERY: &str = "mooring.dev/default-by-discovery";
    /// Kubernetes' own, on a StorageClass: it is for claims that name none.
    pub const IS_DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
    /// On a provisioning Pod: the hash of the ConfigMap that it was made by.
    pub const FINGERPRINT: &str = "mooring.dev/fingerprint";
    /// On a provisioning Pod: the state of all that decided its run (ConfigMap, class, claim), a hash.
    pub const INPUT_STATE: &str = "mooring.dev/input-state";
    /// On a worker: the number of runs that it was given. The one that it has now is the last of them.
    pub const RUNS: &str = "mooring.dev/runs";
    /// On a worker: the uid of the object that its run belongs to, or nothing. It says so of the last run that it was
    /// given.
    pub const OWNER: &str = "mooring.dev/owner";
    /// On a worker that has a run: since when.
    pub const BEGUN: &str = "mooring.dev/begun";
    /// On a worker that has a run: the seconds that the run may take.
    pub const TIMEOUT: &str = "mooring.dev/timeout";
    /// On a Namespace, by its administrator: clients that a Pod there may name in an inline volume, comma-separated.
    /// Read by the admission policy `mooring-inline-volumes` only.
    pub const INLINE_CLIENTS: &str = "mooring.dev/inline-clients";
    /// On a Namespace, by its administrator: sources that a Pod there may name in an inline volume, patterns separated
    /// by commas. Read by the same policy.
    pub const INLINE_SOURCES: &str = "mooring.dev/inline-sources";
    /// Set by the binder on a claim: the node chosen with WaitForFirstConsumer.
    pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
    /// Set by the binder on a claim: the provisioner that is to serve it.
    pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
    /// Kubernetes' own, on a PV: the size that its file system still has while growing it waits for a node
    /// (`AnnPreResizeCapacity` in `pkg/volume/util/resize_util.go`). A claim that is bound to it meanwhile gets this
    /// capacity.
    pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
    /// Kubernetes' own, on a claim: no node has to do anything for its last growth (`NodeExpansionNotRequired` in
    /// `pkg/volume/util/types/types.go`).
    pub const NODE_EXPANSION_NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
    /// Kubernetes' own, on a claim: who has begun to expand its volume (`VolumeResizerKey` in
    /// `pkg/volume/util/types/types.go`).
    pub const STORAGE_RESIZER: &str = "volume.kubernetes.io/storage-resizer";
    /// external-snapshotter's own, on a `VolumeSnapshotContent`: its snapshot is being taken
    /// (`AnnVolumeSnapshotBeingCreated` in its `pkg/utils/util.go`).
    pub const SNAPSHOT_BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
    /// external-snapshotter's own, on a `VolumeSnapshotContent`: its `VolumeSnapshot` is being deleted
    /// (`AnnVolumeSnapshotBeingDeleted` in its `pkg/utils/util.go`).
    pub const SNAPSHOT_BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
    /// external-snapshotter's own, on a `VolumeGroupSnapshotContent`: its snapshots are being taken
    /// (`AnnVolumeGroupSnapshotBeingCreated` in its `pkg/utils/util.go`).
    pub const GROUP_BEING_CREATED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created";
    /// external-snapshotter's own, on a `VolumeGroupSnapshotContent`: its `VolumeGroupSnapshot` is being deleted
    /// (`AnnVolumeGroupSnapshotBeingDeleted` in its `pkg/utils/util.go`).
    pub const GROUP_BEING_DELETED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";
    /// external-snapshotter's own, on a `VolumeSnapshotContent`: it belongs to a group, whose handle this is. It is
    /// neither taken nor deleted alone (`VolumeGroupSnapshotHandleAnnotation` in its `pkg/utils/util.go`).
    pub const OF_GROUP: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";
    /// On a client Pod and a worker: the cluster autoscaler may take its node away. The first ends by itself when its
    /// mounts are gone, the second is made anew.
    pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    /// On a client Pod: [`IMAGE_BY_VOLUME`] if it was made for a volume that names its client image, not by what serves
    /// the client on the node.
    pub const IMAGE_BY: &str = "mooring.dev/image-by";
    /// On a client Pod, by an administrator: names of volumes, comma-separated, whose clean-up is not tried any more.
    pub const GIVE_UP_CLEAN_UP: &str = "mooring.dev/give-up-clean-up";
    /// On a client Pod that is for one volume alone: the name of its PersistentVolume, or the Pod's own name for it.
    pub const VOLUME: &str = "mooring.dev/volume";
    /// Value of [`IMAGE_BY`].
    pub const IMAGE_BY_VOLUME: &str = "volume";
    /// On a PV: the provisioner that made it.
    pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
}

/// Parameters of a class that Mooring reads itself; all others are passed on to the image.
pub mod parameters {
    /// Namespace of the provisioner ConfigMap.
    pub const CONFIG_NAMESPACE: &str = "mooring.dev/config-namespace";
    /// Name of the provisioner ConfigMap.
    pub const CONFIG_NAME: &str = "mooring.dev/config-name";
    /// Of a `VolumeSnapshotClass`, "true" or "false": its snapshots are backups.
    pub const BACKUP: &str = "mooring.dev/backup";
}

/// Finalizers by which Mooring holds objects.
pub mod finalizers {
    /// On a claim from before its first Pod until its volume is accepted or gone.
    pub const CLAIM: &str = "mooring.dev/provisioning";
    /// On a claim while its volume moves between FlexVolume and CSI (`mooring migrate`).
    pub const MIGRATION: &str = "mooring.dev/migration";
    /// On a PV until its volume is deleted.
    pub const VOLUME: &str = "mooring.dev/volume";
    /// external-snapshotter's own, on a `VolumeSnapshotContent`: taken off by what deletes the snapshot
    /// (`VolumeSnapshotContentFinalizer` in its `pkg/utils/util.go`).
    pub const SNAPSHOT_CONTENT: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
    /// external-snapshotter's own, on a `VolumeGroupSnapshotContent`: taken off by what deletes its snapshots
    /// (`VolumeGroupSnapshotContentFinalizer` in its `pkg/utils/util.go`).
    pub const GROUP_CONTENT: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";
    /// Kubernetes' own, on every PV: taken off as soon as the PV is to go and is not in use.
    pub const PV_PROTECTION: &str = "kubernetes.io/pv-protection";
}
