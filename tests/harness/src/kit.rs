//! The vendor's kit, `flex-provisioner conform`, as a vendor runs it.

use anyhow::{Context, Result, ensure};
use mooring_testbed::images;
use mooring_testbed::layout::{repository, write_file};
use serde_json::json;

use super::children::tied;
use super::provisioner::{CONFIG_NAMESPACE, Provisioner};
use super::scope::Scope;
use super::waiting::wait_for;

/// What the kit said of an image.
#[derive(Debug)]
pub struct Judgement {
    pub passed: bool,
    pub said: String,
}

impl Scope {
    /// Has the kit judge the image of a provisioner, whose ConfigMap need not be on the cluster.
    pub fn judged_by_kit(&self, provisioner: &Provisioner, flags: &[&str]) -> Result<Judgement> {
        let workplace = self.workplace()?;
        let file = workplace.file("provisioner.yaml");
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": provisioner.name, "namespace": CONFIG_NAMESPACE, "labels": {"type": "provisioner-config"},
            },
            "data": provisioner.data,
        });
        write_file(&file, self.target.with_image_names(&map.to_string()))?;
        let image = provisioner.data.get("image").context("the ConfigMap names no image")?;
        let program = repository().join(images::program_folder()?).join("flex-provisioner");
        let mut kit = tied(&program)?;
        kit.arg("conform")
            .arg(workplace.kubeconfig_flag())
            .arg(format!("--namespace={}", self.namespace))
            .args(flags)
            .arg(self.target.with_image_names(image))
            .arg(&file);
        let _waiting = wait_for(format!("the kit to judge {image}"));
        let ended = kit.output().context("failed to run the kit")?;
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr)
        );
        ensure!(
            matches!(ended.status.code(), Some(0 | 1)),
            "the kit could not try {image} ({}): {said}",
            ended.status
        );
        Ok(Judgement {
            passed: ended.status.success(),
            said,
        })
    }
}
