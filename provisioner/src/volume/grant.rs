//! `ReferenceGrant`s, by which a namespace lets the claims of another one use what is in it.
//!
//! The type is that of kubernetes-sigs/gateway-api, `apis/v1/referencegrant_types.go`, as far as Mooring reads it. What
//! a grant allows is decided as external-provisioner does (`IsGranted` in its `pkg/controller/util.go`).

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use mooring_contract::named;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The API group of grants.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// The kind that Mooring asks grants for.
const CLAIM: &str = "PersistentVolumeClaim";

named! {
    /// A version of the API. Both have the same fields.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub enum Version {
        /// `v1`, of gateway-api 1.5 and later.
        #[default]
        V1 = "v1",
        /// `v1beta1`, which external-provisioner reads.
        V1Beta1 = "v1beta1",
    }
}

/// What a namespace lets others use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReferenceGrant {
    /// Its namespace is the one that lets others in.
    pub metadata: ObjectMeta,
    /// Who may use what.
    #[serde(default)]
    pub spec: GrantSpec,
}

/// Each of `from` may use each of `to`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantSpec {
    #[serde(default)]
    pub from: Vec<GrantFrom>,
    #[serde(default)]
    pub to: Vec<GrantTo>,
}

/// All objects of a kind in a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantFrom {
    /// Their API group; empty for that of claims.
    #[serde(default)]
    pub group: String,
    pub kind: String,
    pub namespace: String,
}

/// An object of the grant's namespace, or all of a kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantTo {
    /// Its API group; empty for that of claims.
    #[serde(default)]
    pub group: String,
    pub kind: String,
    /// Its name; all, if it is missing or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Resource for ReferenceGrant {
    type DynamicType = Version;
    type Scope = NamespaceResourceScope;

    fn kind(_: &Version) -> Cow<'_, str> {
        "ReferenceGrant".into()
    }

    fn group(_: &Version) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version(version: &Version) -> Cow<'_, str> {
        version.as_str().into()
    }

    fn plural(_: &Version) -> Cow<'_, str> {
        "referencegrants".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What a claim needs a grant for: to use an object of another namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use<'a> {
    /// The claim's namespace.
    pub by: &'a str,
    pub namespace: &'a str,
    /// The object's API group; empty for that of claims.
    pub group: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
}

impl ReferenceGrant {
    pub fn allows(&self, wanted: &Use<'_>) -> bool {
        let from = |from: &GrantFrom| from.group.is_empty() && from.kind == CLAIM && from.namespace == wanted.by;
        let to = |to: &GrantTo| {
            let named = to.name.as_deref().filter(|name| !name.is_empty());
            to.group == wanted.group && to.kind == wanted.kind && named.is_none_or(|name| name == wanted.name)
        };
        self.namespace().as_deref() == Some(wanted.namespace)
            && self.spec.from.iter().any(from)
            && self.spec.to.iter().any(to)
    }

    /// Whether it is about claims, rather than about routes and gateways.
    pub fn is_for_claims(&self) -> bool {
        self.spec
            .from
            .iter()
            .any(|from| from.group.is_empty() && from.kind == CLAIM)
    }
}

/// A [`Use`] that no grant allows, and the version of the API that there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lacking {
    version: Version,
    /// The claim's namespace.
    pub by: String,
    pub namespace: String,
    group: String,
    pub kind: String,
    pub name: String,
}

impl Lacking {
    pub fn new(version: Version, wanted: &Use<'_>) -> Self {
        Self {
            version,
            by: wanted.by.to_owned(),
            namespace: wanted.namespace.to_owned(),
            group: wanted.group.to_owned(),
            kind: wanted.kind.to_owned(),
            name: wanted.name.to_owned(),
        }
    }

    /// The command that makes the least grant that is enough.
    pub fn command(&self) -> String {
        let grant = json!({
            "apiVersion": format!("{GROUP}/{}", self.version.as_str()), "kind": "ReferenceGrant",
            "metadata": {"generateName": "volumes-", "namespace": self.namespace},
            "spec": {"from": [{"group": "", "kind": CLAIM, "namespace": self.by}],
                     "to": [{"group": self.group, "kind": self.kind, "name": self.name}]},
        });
        format!("kubectl create -f - <<<'{grant}'")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Lacking, ReferenceGrant, Use, Version};
    use serde_json::{Value, json};

    /// A grant in namespace `prod` for claims of namespace `default`.
    pub(crate) fn grant(to: &Value) -> ReferenceGrant {
        let from = json!([{"group": "", "kind": "PersistentVolumeClaim", "namespace": "default"}]);
        let grant = json!({"metadata": {"name": "g", "namespace": "prod"}, "spec": {"from": from, "to": [to]}});
        serde_json::from_value(grant).unwrap()
    }

    const SNAPSHOT: Use<'_> = Use {
        by: "default",
        namespace: "prod",
        group: "snapshot.storage.k8s.io",
        kind: "VolumeSnapshot",
        name: "monday",
    };

    #[test]
    fn a_grant_allows_what_it_names_and_nothing_beside_that() {
        let to = |name: &Value| json!({"group": SNAPSHOT.group, "kind": SNAPSHOT.kind, "name": name});
        let allows = |to: &Value, wanted: Use<'_>| grant(to).allows(&wanted);
        for (name, allowed) in [
            (Value::Null, true),
            (json!(""), true),
            (json!("monday"), true),
            (json!("tuesday"), false),
        ] {
            assert_eq!(allows(&to(&name), SNAPSHOT), allowed, "{name}");
        }
        let any = to(&Value::Null);
        for wanted in [
            Use {
                by: "other",
                ..SNAPSHOT
            },
            Use {
                namespace: "other",
                ..SNAPSHOT
            },
            Use { group: "", ..SNAPSHOT },
            Use {
                kind: "PersistentVolumeClaim",
                group: "",
                ..SNAPSHOT
            },
        ] {
            assert!(!allows(&any, wanted), "{wanted:?}");
        }
        let claims = json!({"group": "", "kind": "PersistentVolumeClaim"});
        assert!(!allows(&claims, SNAPSHOT));
        let mut of_routes = grant(&any);
        of_routes.spec.from[0].group = "gateway.networking.k8s.io".to_owned();
        assert!(!of_routes.allows(&SNAPSHOT) && !of_routes.is_for_claims());
        of_routes.spec.from.clear();
        assert!(!of_routes.allows(&SNAPSHOT));
    }

    #[test]
    fn what_is_lacking_is_a_grant_that_allows_just_that() {
        for version in Version::ALL {
            let said = Lacking::new(version, &SNAPSHOT).command();
            let text = said.split('\'').nth(1).unwrap();
            let read: Value = serde_json::from_str(text).unwrap();
            assert_eq!(
                read["apiVersion"],
                format!("gateway.networking.k8s.io/{}", version.as_str())
            );
            let grant: ReferenceGrant = serde_json::from_value(read).unwrap();
            assert!(grant.allows(&SNAPSHOT));
            assert!(!grant.allows(&Use {
                name: "tuesday",
                ..SNAPSHOT
            }));
        }
    }
}
