//! What needs a kernel that this machine lacks.

mod ceph;
mod daemons;
mod disk;
mod nfs;
mod node;
mod silent;
mod smb;
