//! One run of the provisioning image, and what carries it out: a Pod of its own. No other room knows that.
//!
//! [`identity`] is what a run is called. [`begin`] makes a run: with a [`pod`]
//! and its [`properties`]. The cluster shows it as an [`observed`] one, whose [`outcome`] says how far it is. [`end`]
//! removes it, and [`departed`] is what was known of one that went.

pub mod begin;
pub mod departed;
pub mod end;
pub mod error;
pub mod identity;
pub mod observed;
pub mod order;
pub mod outcome;
pub mod pod;
pub mod properties;

pub use self::identity::{RunId, RunRef};
pub use self::observed::Run;
