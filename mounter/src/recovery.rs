//! Volumes that fail while they are in use. Runs in the daemon, which finds them and decides; workers and agents do the
//! rest.
//!
//! Files: [`revive`] (their FUSE daemon has ended), [`give_up`] (their server does not answer, and their Pod is to go).

pub mod give_up;
pub mod revive;
