//! The controller's rights as they are installed, one by one, and the admission policy that holds it.

use anyhow::{Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::Api;
use mooring_contract::names::NAMESPACE;
use mooring_harness::Scope;
use mooring_harness::provisioner::TEST_LABEL;
use mooring_harness::rights::{Right, rights_in, without};
use serde_json::json;

/// The roles, as they are told apart.
const CLUSTER: &str = "flex-provisioner";
const CONFIGS: &str = "flex-provisioner-configs";
const OWN: &str = "the Role flex-provisioner";

/// The rules of the three roles that the controller is installed with.
#[derive(Clone)]
pub(super) struct Rights {
    /// `ClusterRole` flex-provisioner, bound to the whole cluster.
    pub(super) cluster: Vec<PolicyRule>,
    /// `ClusterRole` flex-provisioner-configs, bound in the namespace of the ConfigMaps.
    pub(super) configs: Vec<PolicyRule>,
    /// Role flex-provisioner, in the namespace that the controller runs in.
    pub(super) own: Vec<PolicyRule>,
}

/// The request that is refused first without a right: verb, resource, code.
pub(super) fn refusal(right: &Right) -> (String, String, u16) {
    let (verb, resource, code) = match (right.verb.as_str(), right.resource.as_str()) {
        // The admission policy mooring-claim-records lets a controller other than the installed one write its records
        // on claims only if it may delete volumes. Without this right, the controller gets no further than that write.
        ("delete", "persistentvolumes") => ("patch", "persistentvolumeclaims", 422),
        (verb, resource) => (verb, resource, 403),
    };
    (verb.to_owned(), resource.to_owned(), code)
}

impl Rights {
    /// The rights as they are installed.
    pub(super) async fn installed(scope: &Scope) -> Result<Self> {
        let cluster: Api<ClusterRole> = Api::all(scope.client.clone());
        let own: Api<Role> = Api::namespaced(scope.client.clone(), NAMESPACE);
        Ok(Self {
            cluster: cluster.get(CLUSTER).await?.rules.unwrap_or_default(),
            configs: cluster.get(CONFIGS).await?.rules.unwrap_or_default(),
            own: own.get("flex-provisioner").await?.rules.unwrap_or_default(),
        })
    }

    pub(super) fn all(&self) -> Vec<Right> {
        [
            rights_in(CLUSTER, &self.cluster),
            rights_in(CONFIGS, &self.configs),
            rights_in(OWN, &self.own),
        ]
        .concat()
    }

    pub(super) fn without(&self, taken: &[&Right]) -> Self {
        let left = |role: &str, rules: &[PolicyRule]| {
            let of_role: Vec<_> = taken.iter().copied().filter(|right| right.role == role).collect();
            without(rules, &of_role)
        };
        Self {
            cluster: left(CLUSTER, &self.cluster),
            configs: left(CONFIGS, &self.configs),
            own: left(OWN, &self.own),
        }
    }
}

/// Applies the installed controller's admission policy to a test's controllers: a controller without a policy refuses
/// to work.
pub(super) async fn hold(scope: &Scope) -> Result<()> {
    const POLICY: &str = "mooring-controller";
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(scope.client.clone());
    let installed = serde_json::to_value(policies.get(POLICY).await?.spec)?;
    let condition = &installed["matchConditions"][0]["expression"];
    ensure!(
        condition
            .as_str()
            .is_some_and(|text| text.contains(":flex-provisioner'")),
        "{condition}"
    );
    let metadata = json!({"name": scope.namespace, "labels": {TEST_LABEL: scope.namespace}});
    let mut policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata, "spec": installed,
    });
    policy["spec"]["matchConditions"][0]["expression"] = format!(
        "request.userInfo.username.matches('^system:serviceaccount:{}-[0-9a-z]+:controller$')",
        scope.namespace
    )
    .into();
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata, "spec": {"policyName": scope.namespace, "validationActions": ["Deny"]},
    });
    scope.apply_anywhere(&json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]}).to_string())
}
