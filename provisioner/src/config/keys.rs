//! The keys of a provisioner ConfigMap that steer Mooring. Every other key goes to the image.

/// Whose ConfigMap it is; must be there.
pub const PLUGIN_NAME: &str = "plugin-name";
/// The provisioning image; must be there.
pub const IMAGE: &str = "image";
/// The service account that the image runs as.
pub const SERVICE_ACCOUNT_NAME: &str = "service-account-name";
/// A token of the ConfigMap's own, instead of a bound and expiring one.
pub const SERVICE_TOKEN: &str = "service-token";
/// On which nodes the image may run.
pub const NODE_SELECTOR: &str = "node-selector";
/// Which taints the image tolerates.
pub const TOLERATIONS: &str = "tolerations";
/// Whether the image's user is not root, which Pod Security `restricted` asks for.
pub const RUN_AS_NON_ROOT: &str = "run-as-non-root";
/// A Secret whose keys become properties.
pub const SECRET_NAME: &str = "secret-name";
/// How long one run may take.
pub const TIMEOUT: &str = "timeout";
/// How many runs may go on at once.
pub const MAX_PARALLEL: &str = "max-parallel";
/// How many Pods of the image may stay, and carry out one run after another.
pub const WORKERS: &str = "workers";
/// How long such a Pod stays without a run.
pub const WORKERS_IDLE: &str = "workers-idle";
/// What the image can do.
pub const OPERATIONS: &str = "operations";
/// Whether several nodes can have a volume attached at once.
pub const MULTI_ATTACH: &str = "multi-attach";
/// How often the image is asked what the storage can serve.
pub const DISCOVER_INTERVAL: &str = "discover-interval";
/// Which source Mooring gives the PV that it makes.
pub const VOLUME_SOURCE: &str = "volume-source";
/// The volume that the image works on.
pub const BACKEND_VOLUME: &str = "backend-volume";
/// The volume that the image keeps backups on.
pub const BACKUP_VOLUME: &str = "backup-volume";
/// The client image of the volumes.
pub const CLIENT_IMAGE: &str = "client-image";
/// For how many bytes of a new ext4 there is an inode.
pub const BYTES_PER_INODE: &str = mooring_contract::volume::keys::BYTES_PER_INODE;
/// A setting of the generated StorageClass.
pub const RECLAIM_POLICY: &str = "reclaim-policy";
/// A setting of the generated StorageClass.
pub const VOLUME_BINDING_MODE: &str = "volume-binding-mode";
/// A setting of the generated StorageClass.
pub const ALLOW_VOLUME_EXPANSION: &str = "allow-volume-expansion";
/// A setting of the generated StorageClass.
pub const MOUNT_OPTIONS: &str = "mount-options";

pub const KNOWN: &[&str] = &[
    PLUGIN_NAME,
    IMAGE,
    SERVICE_ACCOUNT_NAME,
    SERVICE_TOKEN,
    NODE_SELECTOR,
    TOLERATIONS,
    RUN_AS_NON_ROOT,
    SECRET_NAME,
    TIMEOUT,
    MAX_PARALLEL,
    WORKERS,
    WORKERS_IDLE,
    OPERATIONS,
    MULTI_ATTACH,
    DISCOVER_INTERVAL,
    VOLUME_SOURCE,
    BACKEND_VOLUME,
    BACKUP_VOLUME,
    CLIENT_IMAGE,
    BYTES_PER_INODE,
    RECLAIM_POLICY,
    VOLUME_BINDING_MODE,
    ALLOW_VOLUME_EXPANSION,
    MOUNT_OPTIONS,
];

/// Whether Mooring reads this key itself.
pub fn is_known(key: &str) -> bool {
    KNOWN.contains(&key)
}
