//! One run of the provisioning image, and what carries it out: a Pod of its own, or a worker. Which of the two, other
//! rooms need not know.
//!
//! [`identity`] is what a run is called. [`begin`] makes a run: with a [`pod`] and its [`properties`]. The cluster shows
//! it as an [`observed`] one, which says with which [`input_state`] it began, and whose [`outcome`] says how far it is.
//! [`end`] removes it, and [`departed`] is what was known of one that went.
//!
//! [`carrier`] is what both have in common. A [`worker`] is of a [`worker_set`], and has a [`worker_pod`], which `release`
//! frees of its run. It is given properties over a [`connection`], and [`workers`] has what each said last.

pub mod begin;
pub mod carrier;
mod config_secret;
pub mod connection;
pub mod departed;
pub mod end;
pub mod error;
pub mod identity;
pub mod input_state;
pub mod observed;
pub mod order;
pub mod outcome;
pub mod pod;
pub mod properties;
mod release;
pub mod worker;
pub mod worker_pod;
pub mod worker_set;
pub mod workers;

pub use self::identity::{RunId, RunRef};
pub use self::observed::Run;
