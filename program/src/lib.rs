//! What both of Mooring's programs have in common on the outside, so that whoever knows one knows the other.
#![forbid(unsafe_code)]

pub mod log;
pub mod paths;
