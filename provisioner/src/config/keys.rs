//! The keys of a provisioner ConfigMap that steer Mooring. Every other key goes to the image.

mooring_contract::keys! {
    pub KNOWN:

    /// Whose ConfigMap it is; must be there.
    PLUGIN_NAME = "plugin-name";
    /// The provisioning image; must be there.
    IMAGE = "image";
    /// The service account that the image runs as.
    SERVICE_ACCOUNT_NAME = "service-account-name";
    /// A token of the ConfigMap's own, instead of a bound and expiring one.
    SERVICE_TOKEN = "service-token";
    /// On which nodes the image may run.
    NODE_SELECTOR = "node-selector";
    /// Which taints the image tolerates.
    TOLERATIONS = "tolerations";
    /// Whether the image's user is not root, which Pod Security `restricted` asks for.
    RUN_AS_NON_ROOT = "run-as-non-root";
    /// A Secret whose keys become properties.
    SECRET_NAME = "secret-name";
    /// How long one run may take.
    TIMEOUT = "timeout";
    /// How many runs may go on at once.
    MAX_PARALLEL = "max-parallel";
    /// How many Pods of the image may stay, and carry out one run after another.
    WORKERS = "workers";
    /// How long such a Pod stays without a run.
    WORKERS_IDLE = "workers-idle";
    /// What the image can do.
    OPERATIONS = "operations";
    /// Whether several nodes can have a volume attached at once.
    MULTI_ATTACH = "multi-attach";
    /// How often the image is asked what the storage can serve.
    DISCOVER_INTERVAL = "discover-interval";
    /// Which source Mooring gives the PV that it makes.
    VOLUME_SOURCE = "volume-source";
    /// The volume that the image works on.
    BACKEND_VOLUME = "backend-volume";
    /// The volume that the image keeps backups on.
    BACKUP_VOLUME = "backup-volume";
    /// The client image of the volumes.
    CLIENT_IMAGE = "client-image";
    /// For how many bytes of a new ext4 there is an inode.
    BYTES_PER_INODE = mooring_contract::volume::keys::BYTES_PER_INODE;
    /// A setting of the generated StorageClass.
    RECLAIM_POLICY = "reclaim-policy";
    /// A setting of the generated StorageClass.
    VOLUME_BINDING_MODE = "volume-binding-mode";
    /// A setting of the generated StorageClass.
    ALLOW_VOLUME_EXPANSION = "allow-volume-expansion";
    /// A setting of the generated StorageClass.
    MOUNT_OPTIONS = "mount-options";
}

/// Whether Mooring reads this key itself.
pub fn is_known(key: &str) -> bool {
    KNOWN.contains(&key)
}
