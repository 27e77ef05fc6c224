//! Names of the tests' own in the Kubernetes API.

/// The label of tests' namespaces.
pub(super) const TESTS_LABEL: &str = "testbed.mooring.dev/test";

/// Namespace of the tests' ConfigMaps (tests/install/namespaces.yaml).
pub const CONFIG_NAMESPACE: &str = "mooring-e2e";
