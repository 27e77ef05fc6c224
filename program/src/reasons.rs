//! Reasons of Events: the words by which people and scripts look for them.

// The controller's, but for those of one operation, which its description has.

/// A run of the image failed, and only a change of the ConfigMap or the claim brings another.
pub const GIVEN_UP: &str = "ProvisioningGivenUp";
/// What the operation waits for.
pub const WAITING: &str = "ProvisioningWaiting";
/// The PV that the image made is not what was asked for.
pub const REFUSED_VOLUME: &str = "VolumeRefused";
/// A run took longer than it may.
pub const TIMED_OUT: &str = "ProvisioningTimedOut";
/// Nobody uses the volume any more, and it stays in the storage.
pub const KEPT: &str = "VolumeKept";
/// The storage is larger, and a node is to enlarge the file system.
pub const FS_RESIZE_REQUIRED: &str = "FileSystemResizeRequired";
/// An expansion that failed is not asked for any more.
pub const RESIZE_TAKEN_BACK: &str = "VolumeSizeRestored";
/// A modification that failed is not asked for any more.
pub const MODIFY_TAKEN_BACK: &str = "VolumeModifyCanceled";
/// The volume went with its node.
pub const NODE_GONE: &str = "VolumeLostWithNode";
/// The selected node can't mount the volume.
pub const NODE_UNABLE: &str = "NodeCannotMount";
/// The claim asks for something that no image can make.
pub const BAD_CLAIM: &str = "ClaimRefused";
/// No ConfigMap is in force for the claim's class.
pub const NO_CONFIG: &str = "NoProvisionerConfig";
/// A provisioner ConfigMap has come into force.
pub const CONFIG_IN_FORCE: &str = "ConfigInForce";
/// A provisioner ConfigMap has errors.
pub const CONFIG_REFUSED: &str = "ConfigRefused";
/// A provisioner ConfigMap has an oddity.
pub const CONFIG_WARNING: &str = "ConfigWarning";
/// A worker of a provisioner ConfigMap does not start, ended or can't be reached.
pub const WORKER_FAILED: &str = "WorkerFailed";
/// The storage does not list any more what a StorageClass was made for.
pub const CLASS_VANISHED: &str = "StorageClassVanished";
/// Another ConfigMap serves the class.
pub const CLASS_TAKEN: &str = "StorageClassTaken";
/// The StorageClass outlives its ConfigMap, since it is in use.
pub const CLASS_KEPT: &str = "StorageClassKept";

// The mounter's.

/// On a Pod: the client of one of its volumes ended, and the volume was mounted again.
pub const VOLUME_REVIVED: &str = "VolumeRevived";
/// On a Pod: the client of one of its volumes ended, and the volume could not be mounted again; the mounter goes on
/// trying.
pub const VOLUME_NOT_REVIVED: &str = "VolumeNotRevived";
/// On a Pod: the client container of one of its volumes has ended, and the volume is lost to the Pod.
pub const VOLUME_LOST: &str = "VolumeLost";
/// On a Pod that is being deleted: one of its volumes does not answer, and what waited for it was ended.
pub const VOLUME_GIVEN_UP: &str = "VolumeGivenUp";
/// On a Pod that is being deleted: one of its volumes does not answer, and nothing is done about it, since others
/// have the same file system of its server.
pub const VOLUME_NOT_GIVEN_UP: &str = "VolumeNotGivenUp";
/// On a Pod: one of its volumes is not unmounted, since a mount that a container left within it is in use.
pub const VOLUME_NOT_UNMOUNTED: &str = "VolumeNotUnmounted";
/// On a Pod: one of its volumes is larger by now, and keeps its size for as long as it is mounted. The kubelet has this
/// reason too.
pub const FS_RESIZE_FAILED: &str = "FileSystemResizeFailed";
/// On a Pod: one of its volumes is being mounted and its server has not answered for some time.
pub const MOUNT_WAITS: &str = "MountWaits";
/// On a Pod: it takes some time to give the files of one of its volumes to its `fsGroup`.
pub const FS_GROUP_WAITS: &str = "FsGroupWaits";
/// On a ConfigMap of settings: it is not taken over, or not all of it counts.
pub const BAD_CONFIG: &str = "BadConfig";
/// On a Node: a client container goes on failing to clean up after a volume that was unmounted.
pub const CLEAN_UP_FAILED: &str = "CleanUpFailed";
/// On a Node: it can't mount the volumes of a client any more.
pub const CLIENT_NOT_READY: &str = "ClientNotReady";
/// On a Node: it can mount the volumes of a client again.
pub const CLIENT_READY: &str = "ClientReady";
