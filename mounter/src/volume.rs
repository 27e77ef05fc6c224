//! What every process shares: a volume's mount, its target, and the mount table. Runs in the daemon, in workers, and in
//! client containers.
//!
//! Files: [`job`] (a mount to be made, and why it was not), [`cause`] (the error behind that), [`device_owner`]
//! (the volume that has a device), [`kubelet_options`] (how the kubelet hands a volume on), [`target`] (the only way to
//! a volume's directory), [`mount_options`], [`mount_table`], [`pod_cgroup`] (which Pod a process belongs to),
//! [`pod_group`] (the group of its files), [`selinux_label`] (the label of a volume's files), [`volume_data`] (whose a CSI volume is), [`volume_id`] (by which
//! a volume's FUSE mounts are known), [`registry`] (who serves which type of volume), [`stock`] (who does by default).

pub mod cause;
pub mod device_owner;
pub mod job;
pub mod kubelet_options;
pub mod mount_options;
pub mod mount_table;
pub mod pod_cgroup;
pub mod pod_group;
pub mod registry;
pub mod selinux_label;
pub mod stock;
pub mod target;
pub mod volume_data;
pub mod volume_id;
