//! Pods that go on writing to a volume of Cinder and to a share of Manila while the services are replaced below them.

use anyhow::{Context, Result, ensure};

use super::{CLAIMS, TRIAL, TYPE, Trial, pod, wait_until};
use mooring_testbed::progress::step;
use mooring_testbed::target::Target;

const NODE: &str = "node-1";

/// A number in each line, from 1 on. It ends if a write fails, and the container with it.
const WRITE: &str = "i=1; while echo $i >>/data/letter && sync; do i=$((i+1)); sleep 1; done";

pub(crate) struct InUse<'a> {
    trial: Trial<'a>,
    /// Each Pod with its uid.
    pods: Vec<(String, String)>,
}

impl<'a> InUse<'a> {
    /// Registers the services with Mooring, and starts the Pods.
    pub(crate) fn begin(target: &'a Target) -> Result<Self> {
        let trial = Trial { target };
        trial.types(TYPE)?;
        trial.register()?;
        let mut pods = Vec::new();
        for claim in &CLAIMS {
            let name = format!("{}-{NODE}", claim.config);
            step(&format!("a Pod that goes on writing to {}", claim.config), |_| {
                wait_until(&format!("class {}", claim.class), || {
                    trial
                        .kubectl(&["get", "storageclass", claim.class, "-o", "name"])
                        .map(drop)
                })?;
                trial.put(&claim.to_claim(1))?;
                trial.put(&pod(claim.config, NODE, WRITE))?;
                trial.ready(&name)
            })?;
            let uid = trial.field("pod", &name, "{.metadata.uid}")?;
            pods.push((name, uid));
        }
        Ok(Self { trial, pods })
    }

    /// Each Pod is the same, was never restarted, has written all numbers, and writes more.
    pub(crate) fn goes_on(&self) -> Result<()> {
        for (name, uid) in &self.pods {
            let is = self.trial.field(
                "pod",
                name,
                "{.metadata.uid} {.status.containerStatuses[0].restartCount}",
            )?;
            ensure!(
                is == format!("{uid} 0"),
                "{name} is another one, or was restarted: {is}"
            );
            let before = self.written(name)?;
            wait_until(&format!("{name} to write more than {before} lines"), || {
                let now = self.written(name)?;
                ensure!(now > before, "it has {now}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// How many numbers there are. None may be missing.
    fn written(&self, name: &str) -> Result<usize> {
        let all = self
            .trial
            .kubectl(&["-n", TRIAL, "exec", name, "--", "cat", "/data/letter"])?;
        for (index, line) in all.lines().enumerate() {
            let expected = index + 1;
            ensure!(line == expected.to_string(), "line {expected} of {name} is {line:?}");
        }
        Ok(all.lines().count())
    }

    /// New Pods find what the old ones wrote. Then all of it is removed.
    pub(crate) fn end(self) -> Result<()> {
        for (claim, (name, _)) in CLAIMS.iter().zip(&self.pods) {
            let least = self.written(name)?;
            step(
                &format!("another Pod reads what was written to {}", claim.config),
                |_| {
                    self.trial.delete_pod(name)?;
                    self.trial.put(&pod(claim.config, NODE, "sleep 100000"))?;
                    self.trial.ready(name)?;
                    let most = self.written(name)?;
                    ensure!(most >= least, "there were {least} lines, and now there are {most}");
                    Ok(())
                },
            )?;
        }
        step("remove claims, Pods and classes", |_| self.trial.remove())?;
        self.trial
            .types(&format!("-{TYPE}"))
            .context("failed to remove the volume type")
    }
}
