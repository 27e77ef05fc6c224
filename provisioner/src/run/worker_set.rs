//! For which runs workers are.

/// The workers of a ConfigMap or, where each of its runs has to be on one node, those on that node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerSet {
    /// `namespace/name` of the ConfigMap.
    pub config: String,
    /// The only node that they may be on.
    pub node: Option<String>,
}
