//! Kustomizations that an administrator could write, for the trials: over the usual one, with components and settings.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use super::{FOLDER, NAMESPACE};
use mooring_testbed::layout::{make_folder, repository, write_file};

/// Where they are written, below the repository, each run in a folder of its own: one refers to its base by a relative
/// path.
const FOLDER_HERE: &str = "target/openstack-trial";

/// What is there besides `configmaps/openstack-services`.
#[derive(Debug, Clone)]
pub(super) struct Kustomization(Value);

impl Kustomization {
    pub(super) fn new(components: &[&str]) -> Self {
        let up = up();
        let component = |name: &&str| format!("{up}{FOLDER}/components/{name}");
        Self(json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": NAMESPACE,
            "resources": [format!("{up}{FOLDER}")],
            "components": components.iter().map(component).collect::<Vec<_>>(),
        }))
    }

    /// The same with a component of the tests, a folder below the repository.
    pub(super) fn with_component(&self, folder: &str) -> Self {
        self.with("components", json!(format!("{}{folder}", up())))
    }

    /// The same with a file of a service's ConfigMap.
    pub(super) fn with_file(&self, config_map: &str, file: &str, content: &str) -> Self {
        let literal = format!("{file}={content}\n");
        self.with(
            "configMapGenerator",
            json!({"name": config_map, "behavior": "merge", "literals": [literal]}),
        )
    }

    /// The same with another name of an image.
    pub(super) fn with_image(&self, name: &str, new: &str) -> Self {
        self.with("images", json!({"name": name, "newName": new}))
    }

    fn with(&self, list: &str, item: Value) -> Self {
        let mut changed = self.0.clone();
        match changed[list].as_array_mut() {
            Some(items) => items.push(item),
            None => changed[list] = json!([item]),
        }
        Self(changed)
    }

    /// Writes it; returns its folder.
    pub(super) fn write(&self) -> Result<PathBuf> {
        let folder = repository().join(FOLDER_HERE).join(std::process::id().to_string());
        make_folder(&folder)?;
        write_file(&folder.join("kustomization.yaml"), self.0.to_string())?;
        Ok(folder)
    }
}

/// From a run's folder to the repository.
fn up() -> String {
    "../".repeat(FOLDER_HERE.split('/').count() + 1)
}

#[cfg(test)]
mod tests {
    use super::{FOLDER, FOLDER_HERE, Kustomization};
    use crate::{external_ceph, logs, nodes, volumes};
    use mooring_testbed::layout::repository;

    #[test]
    fn what_is_added_leaves_the_rest_and_the_original_as_they_are() {
        let plain = Kustomization::new(&[logs::COMPONENT]);
        let changed = plain
            .with_file("cinder", "30-override.conf", "[DEFAULT]")
            .with_image("a", "b")
            .with_image("c", "d");
        assert_eq!(changed.0["images"][1]["newName"], "d");
        assert_eq!(
            changed.0["configMapGenerator"][0]["literals"][0],
            "30-override.conf=[DEFAULT]\n"
        );
        assert_eq!(changed.0["components"], plain.0["components"]);
        assert!(plain.0["images"].is_null());
    }

    #[test]
    fn each_component_is_there() {
        let all = Kustomization::new(&[logs::COMPONENT, nodes::COMPONENT, external_ceph::COMPONENT]);
        for trial in [volumes::back_ends::settings(), volumes::nova::settings()] {
            let component = trial.0["components"][0].as_str().unwrap();
            let below = component.trim_start_matches("../");
            assert!(repository().join(below).join("kustomization.yaml").is_file(), "{below}");
        }
        for component in all.0["components"].as_array().unwrap() {
            let below = component.as_str().unwrap().trim_start_matches("../");
            assert!(
                below.starts_with(FOLDER),
                "{below} is not below {FOLDER}, from {FOLDER_HERE}"
            );
            assert!(repository().join(below).join("kustomization.yaml").is_file(), "{below}");
        }
    }
}
