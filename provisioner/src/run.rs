//! One run of the provisioning image.
//!
//! [`kind`] says which operations there are. [`properties`] is what the image is given. [`pod`] is the provisioning Pod that
//! carries the run out. [`outcome`] is what came of it, read from the Pod, or from how the Pod was when it [`departed`].

pub mod departed;
pub mod kind;
pub mod outcome;
pub mod pod;
pub mod properties;
