//! What the controllers know of the cluster without asking the API, and what they are to look at next.
//!
//! [`watches`] fill the [`store`] and put what a change concerns into the [`work_queue`]. The controllers read the
//! store; [`expectations`] says what of it is older than their own last write, and the [`limiter`] whether there is a
//! place for another run. Both forget an object as soon as it is gone: [`departures`]. [`consumers`] says on which
//! nodes Pods use a claim, [`capacities`] what the scheduler reads of classes. [`mirror`] keeps the few fields that
//! matter of the objects of one [`watch`].

pub mod capacities;
pub mod consumers;
mod departures;
pub mod expectations;
pub mod grants;
pub mod groups;
pub mod limiter;
pub mod mirror;
pub mod snapshots;
pub mod store;
pub mod table;
mod watch;
pub mod watches;
pub mod work_queue;

use kube::ResourceExt;

/// Objects a page of a list: more would be held twice for a moment.
const PAGE: u32 = 50;

/// `namespace/name`.
pub fn key(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}
