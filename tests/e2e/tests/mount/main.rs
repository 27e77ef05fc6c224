//! Volumes from the kubelet's call to the user's Pod.

mod block;
mod ceph;
mod csi;
mod glusterfs;
mod health;
mod hung;
mod junk;
mod lacking;
mod local;
mod s3;
mod sanity;
mod served;
mod shim;
mod sshfs;
mod vendor;
