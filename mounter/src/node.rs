//! What the node is, and what it has: its kubelet, its Pods, what it can mount, its pool. Runs in the daemon; workers
//! find the kubelet by it.
//!
//! Files: `kubelet` (the kubelet's processes and what they say), [`kubelet_root`] (its root directory), [`node_pods`]
//! (the Pods of this node), [`grants`] (who wrote a volume), [`volume_secrets`] (its newest Secret), [`attachments`]
//! (volumes that the storage lets only some nodes have), [`readiness`] (what can be mounted, and the cure where it
//! can't), [`pool_usage`] (volumes of class `local`), [`args`] (flags).

pub mod args;
pub mod attachments;
pub mod grants;
pub(crate) mod kubelet;
pub mod kubelet_root;
pub mod node_pods;
pub mod pool_usage;
pub mod readiness;
pub mod unix_sockets;
pub mod volume_secrets;
