//! The objects of one kind in the Kubernetes API. Each call that fails says what was attempted on what.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use mooring_contract::names::FIELD_MANAGER;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::call::{CallError, GONE, Tolerant as _, is_there};

/// A kind whose objects can be read.
pub trait Kind: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug {}

impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug> Kind for K {}

/// The objects of one kind: all, or those of one namespace.
#[derive(Debug)]
pub struct Objects<K>(Api<K>);

impl<K: Kind> Objects<K> {
    pub fn all(client: &Client) -> Self {
        Self(Api::all(client.clone()))
    }

    pub fn within(client: &Client, namespace: &str) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        Self(Api::namespaced(client.clone(), namespace))
    }

    /// `None` if there is no such object.
    pub async fn read(&self, name: &str) -> Result<Option<K>, CallError> {
        self.0.get_opt(name).await.map_err(failed::<K>("read", name))
    }

    /// The object's metadata; `None` if there is no such object.
    pub async fn meta(&self, name: &str) -> Result<Option<ObjectMeta>, CallError> {
        let found = self.0.get_metadata_opt(name).await;
        let found = found.map_err(failed::<K>("read", name))?;
        Ok(found.map(|found| found.metadata))
    }

    /// An object that is there in any cluster with Mooring: without it, this fails.
    pub async fn read_own(&self, name: &str) -> Result<K, CallError> {
        self.0.get(name).await.map_err(failed::<K>("read", name))
    }

    /// Whether the object of this name and uid is there.
    pub async fn has(&self, name: &str, uid: &str) -> Result<bool, CallError> {
        is_there(&self.0, name, uid).await
    }

    pub async fn create(&self, object: &K) -> Result<K, CallError>
    where
        K: Serialize,
    {
        let created = self.0.create(&by_us(), object).await;
        created.map_err(failed::<K>("create", &object.name_any()))
    }

    /// Writes the whole object, if it is still of the version that it has here.
    pub async fn replace(&self, object: &K) -> Result<K, CallError>
    where
        K: Serialize,
    {
        let name = object.name_any();
        let replaced = self.0.replace(&name, &by_us(), object).await;
        replaced.map_err(failed::<K>("update", &name))
    }

    pub async fn patch<P: Serialize + Debug>(&self, name: &str, patch: &Patch<P>) -> Result<K, CallError> {
        let patched = self.0.patch(name, &patched_by_us(), patch).await;
        patched.map_err(failed::<K>("patch", name))
    }

    pub async fn patch_status<P: Serialize + Debug>(&self, name: &str, patch: &Patch<P>) -> Result<K, CallError> {
        let patched = self.0.patch_status(name, &patched_by_us(), patch).await;
        patched.map_err(failed::<K>("patch", name))
    }

    /// Of a call on the object of this uid: it may be gone, also where another has its name.
    pub async fn unless_gone<T>(&self, done: Result<T, CallError>, name: &str, uid: &str) -> Result<(), CallError> {
        match done.unless(GONE) {
            Err(error) if error.is_conflict() && !self.has(name, uid).await? => Ok(()),
            done => done.map(drop),
        }
    }

    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<(), CallError> {
        let deleted = self.0.delete(name, params).await;
        deleted.map(drop).map_err(failed::<K>("delete", name))
    }
}

/// The object of this uid only, and of this version, if there is one.
pub fn only(uid: Option<String>, resource_version: Option<String>) -> Preconditions {
    Preconditions { uid, resource_version }
}

/// The object as it was read.
pub fn as_read(meta: &ObjectMeta) -> DeleteParams {
    DeleteParams::default().preconditions(only(meta.uid.clone(), meta.resource_version.clone()))
}

pub fn by_us() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

fn patched_by_us() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

fn failed<K: Kind>(verb: &'static str, name: &str) -> impl FnOnce(kube::Error) -> CallError {
    let kind = K::kind(&());
    let (what, name) = match kind.as_ref() {
        "PersistentVolumeClaim" => ("claim".into(), name.to_owned()),
        "StorageClass" => ("storage class".into(), format!("{name:?}")),
        "Lease" => ("lease".into(), format!("{name:?}")),
        _ => (kind, name.to_owned()),
    };
    move |source| CallError::new(verb, what, &name, source)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
    use k8s_openapi::api::storage::v1::StorageClass;
    use kube::core::Status;

    use super::{Kind, failed};
    use crate::process::call::{CHANGED, CallError, GONE, TAKEN, Tolerant as _};

    fn error<K: Kind>(code: u16) -> CallError {
        let status = Status::failure("no", "No").with_code(code);
        failed::<K>("create", "a")(kube::Error::Api(status.boxed()))
    }

    #[test]
    fn a_failure_names_the_object_as_people_call_it() {
        assert_eq!(error::<Pod>(500).to_string(), "failed to create Pod a");
        assert_eq!(
            error::<PersistentVolumeClaim>(500).to_string(),
            "failed to create claim a"
        );
        assert_eq!(
            error::<StorageClass>(500).to_string(),
            "failed to create storage class \"a\""
        );
        assert_eq!(error::<Lease>(500).to_string(), "failed to create lease \"a\"");
    }

    #[test]
    fn only_the_answers_that_are_named_are_no_failure() {
        for code in [403, 404, 409, 500] {
            for tolerated in [GONE, TAKEN, CHANGED] {
                let answer = Err::<(), _>(error::<Pod>(code)).unless(tolerated);
                assert_eq!(answer.is_ok(), tolerated.contains(&code), "{code} of {tolerated:?}");
            }
        }
        assert_eq!(Ok(1).unless(GONE).unwrap(), Some(1));
    }
}
