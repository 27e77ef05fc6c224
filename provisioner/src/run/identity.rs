//! The name of a run before it exists, and of an observed run that has to be removed.

use kube::ResourceExt as _;
use mooring_contract::operation::Operation;

use super::carrier::Carrier;
use super::release::Release;

/// Which run: of this operation, on what has this uid. Every attempt has the same, so two attempts can't be there at
/// once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunId {
    pub operation: Operation,
    /// The uid of the claim that the volume is or was for.
    pub uid: String,
}

impl RunId {
    pub fn new(operation: Operation, uid: &str) -> Self {
        Self {
            operation,
            uid: uid.to_owned(),
        }
    }

    /// Its name, such as `provision-<uid>`.
    pub fn name(&self) -> String {
        format!("{}-{}", self.operation.as_str(), self.uid)
    }

    /// `namespace/name`, where it is run for ConfigMaps of this namespace.
    pub fn in_namespace(&self, namespace: &str) -> String {
        format!("{namespace}/{}", self.name())
    }
}

/// A run to be removed, as it was seen: never another one of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRef {
    pub(super) namespace: String,
    /// Name of what carries the run out.
    pub(super) name: String,
    /// Uid of the run.
    pub(super) uid: String,
    /// Uid of what carries the run out.
    pub(super) carrier_uid: String,
    pub(super) resource_version: Option<String>,
    /// How its worker is freed of it, if that says that it ended: the worker stays.
    pub(super) release: Option<Release>,
}

impl RunRef {
    /// For what carries runs out itself.
    pub(super) fn of_carrier(carrier: &Carrier) -> Self {
        let uid = carrier.metadata.uid.clone().unwrap_or_default();
        Self {
            namespace: carrier.metadata.namespace.clone().unwrap_or_default(),
            name: carrier.name_any(),
            carrier_uid: uid.clone(),
            uid,
            resource_version: None,
            release: None,
        }
    }

    /// The uid of the run.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Whether it is removed only if nothing about it has changed since it was seen.
    pub fn is_exact(&self) -> bool {
        self.resource_version.is_some()
    }
}

#[cfg(test)]
mod tests {
    use mooring_contract::operation::Operation;

    use super::RunId;

    #[test]
    fn the_policy_for_volume_makers_knows_the_pod_of_every_operation_by_its_name() {
        let policies = include_str!("../../../configmaps/install/admission.yaml");
        let policy = policies.split("\n---\n").find(|policy| {
            policy.contains("kind: ValidatingAdmissionPolicy\n") && policy.contains("name: mooring-volume-makers\n")
        });
        let (_, after) = policy.unwrap().split_once("'^(provision|").unwrap();
        let (others, _) = after.split_once(")-'").unwrap();
        let mut listed: Vec<_> = ["provision"].into_iter().chain(others.split('|')).collect();
        let mut operations = Operation::ALL.map(Operation::as_str).to_vec();
        listed.sort_unstable();
        operations.sort_unstable();
        assert_eq!(listed, operations);
        for operation in Operation::ALL {
            let name = RunId::new(operation, "u").name();
            let operation = name.strip_suffix("-u").unwrap();
            assert!(listed.contains(&operation), "{name}");
            // Two words at most: the form of the name that the policy tells runs by.
            assert!(operation.split('-').count() <= 2, "{name}");
        }
    }
}
