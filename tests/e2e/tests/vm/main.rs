//! End-to-end tests: see each file.

mod ceph;
mod daemons;
mod nfs;
mod node;
mod silent;
mod smb;
