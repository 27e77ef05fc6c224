//! What the run is given: its request, and the properties that the ConfigMap, the class and the Secret add.

use std::path::Path;

use mooring_contract::property::keys;
use mooring_contract::request::{Request, gib_rounded_up};
use mooring_contract::volume::split_list;
use pv::given::RunInput;

use crate::error::OpenstackError;

#[derive(Debug)]
pub struct GivenRun {
    input: RunInput,
    pub request: Request,
}

impl GivenRun {
    pub fn read(run_dir: &Path) -> Result<Self, OpenstackError> {
        let input = RunInput::at(run_dir, None);
        let request = input.request()?;
        Ok(Self { input, request })
    }

    /// A property without blanks around it; none if it is not there or empty.
    pub fn property(&self, name: &str) -> Result<Option<String>, OpenstackError> {
        let value = self.input.property(name)?;
        Ok(value
            .map(|value| value.trim().to_owned())
            .filter(|value| !value.is_empty()))
    }

    /// A property that has to be there; `what` is what to put there.
    pub fn needed(&self, name: &'static str, what: &'static str) -> Result<String, OpenstackError> {
        self.property(name)?.ok_or(OpenstackError::NoProperty { name, what })
    }

    /// The items of a list with commas.
    pub fn list(&self, name: &str) -> Result<Vec<String>, OpenstackError> {
        Ok(split_list(&self.property(name)?.unwrap_or_default()))
    }

    /// An attribute that the claim asks for by its `VolumeAttributesClass`.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let attributes = self.request.attributes.as_ref()?;
        attributes.parameters.get(name).map(String::as_str)
    }

    /// The requested size in GiB, the unit of both services; at least one.
    pub fn gib(&self) -> u64 {
        gib_rounded_up(self.request.size).max(1)
    }

    /// An option of the volume that stands; empty if it has none.
    pub fn option(&self, name: &str) -> &str {
        self.request.volume.get(name).map_or("", String::as_str)
    }

    /// An option of the volume that is copied or restored.
    pub fn source_option(&self, name: &str) -> Option<&str> {
        let source = self.request.source.as_ref()?;
        source
            .volume
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// The name that the snapshot or backup has on the storage.
    pub fn snapshot_name(&self) -> Result<&str, OpenstackError> {
        let snapshot = self.request.snapshot.as_ref();
        snapshot
            .map(|snapshot| snapshot.name.as_str())
            .ok_or(OpenstackError::NoProperty {
                name: keys::SNAPSHOT_NAME,
                what: "nothing: Mooring sets it, so the operation is not one of a snapshot or backup",
            })
    }

    /// Who claims the volume, for those who look at it on the storage.
    pub fn claim(&self) -> String {
        format!("{}/{}", self.request.pvc_namespace, self.request.pvc_name)
    }

    /// The run's token for the Kubernetes API, and the certificate of that.
    pub fn kubernetes(&self) -> Result<(String, String), OpenstackError> {
        Ok((self.input.token()?, self.input.certificate()?))
    }

    /// What secrets are sealed with.
    pub fn answer_key(&self) -> Result<String, OpenstackError> {
        Ok(self.property(keys::ANSWER_KEY)?.ok_or(pv::error::Error::NoAnswerKey)?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::GivenRun;
    use serde_json::{Value, json};
    use std::fs;

    /// A request with these fields changed, and these properties.
    pub(crate) fn given(changes: &Value, properties: &[(&str, &str)]) -> (tempfile::TempDir, GivenRun) {
        let folder = tempfile::tempdir().unwrap();
        let mut request = json!({
            "contract": 1, "operation": "provision", "pv-name": "pvc-u1", "username": "", "groups": [],
            "size": 1_073_741_824, "size-gi": 1, "pvc-name": "data", "pvc-namespace": "shop", "pvc-uid": "u1",
            "storage-class": "silver", "access-modes": ["ReadWriteOnce"], "volume-mode": "Filesystem", "fs-type": "",
            "mount-options": [], "reclaim-policy": "Delete", "node-name": "", "topology": {}, "service-account": "",
            "kube-api": "", "parameters": {},
        });
        for (key, value) in changes.as_object().unwrap() {
            request[key] = value.clone();
        }
        fs::write(folder.path().join("request.json"), request.to_string()).unwrap();
        fs::create_dir(folder.path().join("properties")).unwrap();
        for (name, value) in properties {
            fs::write(folder.path().join("properties").join(name), value).unwrap();
        }
        let given = GivenRun::read(folder.path()).unwrap();
        (folder, given)
    }

    #[test]
    fn a_size_is_whole_gibibytes_and_never_none() {
        for (bytes, gib) in [(0, 1), (1, 1), (1 << 30, 1), ((1 << 30) + 1, 2)] {
            assert_eq!(given(&json!({"size": bytes}), &[]).1.gib(), gib);
        }
    }

    #[test]
    fn an_empty_property_is_none() {
        let (_folder, given) = given(&json!({}), &[("region", " \n"), ("zones", "a, b,")]);
        assert_eq!(given.property("region").unwrap(), None);
        assert_eq!(given.list("zones").unwrap(), ["a", "b"]);
        assert_eq!(given.needed("cloud", "its name").unwrap_err().exit_code(), 78);
    }
}
