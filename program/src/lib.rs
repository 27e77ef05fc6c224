//! What both of Mooring's programs have in common on the outside: to know one is to know the other. These are the flags
//! of the log, the paths of the port, the reasons of Events, lengths of time, lists of namespaces, the administrator's
//! settings, the signals that end a program, the printing of errors, how often a failure is logged, which environment
//! variables no flag reads, which nodes a node selector selects, and how a program finds out whether admission policies
//! hold it.
#![forbid(unsafe_code)]

pub mod environment;
pub mod error;
pub mod held;
pub mod log;
pub mod namespace;
pub mod node_selector;
pub mod paths;
pub mod reasons;
pub mod repeated;
pub mod settings;
pub mod signals;
pub mod time;
