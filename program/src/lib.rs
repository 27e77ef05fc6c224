//! What both of Mooring's programs have in common on the outside, so that who knows one knows the other: the flags of
//! the log, the paths of the port, and how they find out whether admission policies hold them.
#![forbid(unsafe_code)]

pub mod held;
pub mod log;
pub mod paths;
