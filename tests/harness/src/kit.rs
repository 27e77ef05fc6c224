//! The vendor's kit, `mooring conform`, as a vendor runs it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use mooring_testbed::images;
use mooring_testbed::layout::{repository, write_file};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::children::{start, tied};
use super::provisioner::{CONFIG_NAMESPACE, Provisioner};
use super::scope::Scope;
use super::waiting::wait_for;
use super::workplace::Workplace;

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
        let mut kit = self.kit(&workplace, provisioner, flags)?;
        let _waiting = wait_for("the kit to judge an image".to_owned());
        let ended = kit.output().context("failed to run the kit")?;
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr)
        );
        ensure!(
            matches!(ended.status.code(), Some(0 | 1)),
            "the kit could not try the image ({}): {said}",
            ended.status
        );
        Ok(Judgement {
            passed: ended.status.success(),
            said,
        })
    }

    /// The same, told to stop (Ctrl-C) once it has tried one thing. `meanwhile` runs while it finishes what has begun.
    pub fn interrupted_kit(
        &self,
        provisioner: &Provisioner,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<Judgement> {
        let workplace = self.workplace()?;
        let mut kit = self.kit(&workplace, provisioner, &[])?;
        kit.stdout(Stdio::piped());
        let mut kit = start(kit).context("failed to start the kit")?;
        let _waiting = wait_for("the kit to stop".to_owned());
        let mut out = BufReader::new(kit.stdout.take().context("no output")?);
        let mut said = String::new();
        while !said.contains("\nok ") {
            ensure!(out.read_line(&mut said)? > 0, "the kit ended too early: {said}");
        }
        kill(Pid::from_raw(kit.id().try_into()?), Signal::SIGINT).context("failed to interrupt the kit")?;
        meanwhile()?;
        out.read_to_string(&mut said)?;
        let code = kit.wait()?.code();
        ensure!(matches!(code, Some(0 | 1)), "the kit ended with {code:?}: {said}");
        Ok(Judgement {
            passed: code == Some(0),
            said,
        })
    }

    fn kit(&self, workplace: &Workplace, provisioner: &Provisioner, flags: &[&str]) -> Result<Command> {
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
        let program = repository().join(images::program_folder()?).join("mooring");
        let mut kit = tied(&program)?;
        kit.arg("conform")
            .arg(workplace.kubeconfig_flag())
            .arg(format!("--namespace={}", self.namespace))
            .args(flags)
            .arg(self.target.with_image_names(image))
            .arg(&file);
        Ok(kit)
    }
}
