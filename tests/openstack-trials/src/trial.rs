//! `cargo testbed openstack --test`: uses the running services, kills each of their Pods and nodes, and changes their
//! settings.
//!
//! It is no file of the end-to-end tests: it takes longer than all other files beside it may.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::Value;

use super::kustomization::Kustomization;
use super::{LABEL, NAMESPACE, logs, nodes, put, put_and_wait, ready_within, script, use_services};
use mooring_testbed::command::output;
use mooring_testbed::images::Built;
use mooring_testbed::progress::step;
use mooring_testbed::target::Target;
use mooring_testbed::wait::{Look, wait_for};

/// Used in the Pods that reach Ceph.
const DATA: &str = include_str!("data.py");

/// Another name of Cinder's Service: what is changed may be looked up.
const SHORT_ENDPOINT: &str = "http://cinder-api.openstack:8776";

/// How long a Pod with a broken setting is given to become ready.
const BROKEN_LIMIT: Duration = Duration::from_mins(1);

/// Longest wait for a Pod that was killed.
const LIMIT: Duration = Duration::from_mins(5);

/// What was made, as JSON for `use.py`.
pub(super) struct Things(pub(super) Value);

/// Runs all of it. The services are as `kustomization` has them before and after.
pub(super) fn run(target: &Target, kustomization: &Kustomization, images: &[Built]) -> Result<()> {
    let trial = Trial {
        target,
        images,
        kustomization,
    };
    let mut things = trial.make()?;
    trial.apply_again()?;
    logs::find_a_request(target)?;
    nodes::kill_each(&trial, &things)?;
    trial.kill_each_pod(&things)?;
    trial.change_a_setting()?;
    trial.break_an_api(&things)?;
    trial.break_a_daemon(&things)?;
    trial.restore_and_remove(&mut things)
}

pub(super) struct Trial<'a> {
    pub(super) target: &'a Target,
    pub(super) images: &'a [Built],
    pub(super) kustomization: &'a Kustomization,
}

impl Trial<'_> {
    pub(super) fn use_services(&self, what: &str, args: &[&Value]) -> Result<Value> {
        use_services(self.target, what, args)
    }

    fn volume(&self, what: &str, id: &str, part: &str) -> Result<()> {
        let what = format!("{what}-volume");
        script(self.target, "cinder-volume-0", DATA, &[&what, id, part])?;
        Ok(())
    }

    fn share(&self, what: &str, things: &Things, part: &str) -> Result<()> {
        let what = format!("{what}-share");
        let args = [
            &what,
            things.text("path"),
            part,
            things.text("user"),
            things.text("key"),
        ];
        script(self.target, "manila-share-0", DATA, &args)?;
        Ok(())
    }

    /// Makes everything, and writes to it: part 0 of the volume is in snapshot and backup, part 1 is not.
    pub(super) fn make(&self) -> Result<Things> {
        let mut things = step("make a volume, a share and an access rule", |_| {
            Ok(Things(self.use_services("make", &[])?))
        })?;
        step("write to the volume and to the share", |_| {
            self.volume("write", things.text("volume"), "0")?;
            self.share("write", &things, "0")
        })?;
        let saved = step("make a snapshot and a backup", |_| {
            self.use_services("save", &[&things.0["volume"]])
        })?;
        for name in ["snapshot", "backup"] {
            things.0[name] = saved[name].clone();
        }
        self.volume("write", things.text("volume"), "1")?;
        step("the volume, the snapshot, the backup and the share", |_| {
            self.check(&things)
        })?;
        Ok(things)
    }

    /// Everything is there with its content, and the services still do something new.
    pub(super) fn check(&self, things: &Things) -> Result<()> {
        self.use_services("check", &[&things.0])?;
        for part in ["0", "1"] {
            self.volume("read", things.text("volume"), part)?;
        }
        self.share("read", things, "0")
    }

    /// Everything is there to the end, also what snapshot and backup have.
    pub(super) fn restore_and_remove(&self, things: &mut Things) -> Result<()> {
        step("the volume, the snapshot, the backup and the share", |_| {
            self.check(things)
        })?;
        self.restore(things)?;
        step("remove what was made", |_| {
            self.use_services("remove", &[&things.0])?;
            Ok(())
        })
    }

    /// What snapshot and backup have: not what was written later.
    fn restore(&self, things: &mut Things) -> Result<()> {
        step("volumes from the snapshot and the backup", |_| {
            let restored = self.use_services("restore", &[&things.0])?;
            for name in ["of the snapshot", "of the backup"] {
                things.0[name] = restored[name].clone();
                self.volume("read", things.text(name), "0")?;
                let later = self.volume("read", things.text(name), "1");
                ensure!(later.is_err(), "the volume {name} has what was written later");
            }
            Ok(())
        })
    }

    fn apply_again(&self) -> Result<()> {
        let before = self.state()?;
        put(self.target, &self.kustomization.write()?, self.images)?;
        step("a second apply has changed nothing", |_| {
            // Long enough for a controller to begin a rollout.
            std::thread::sleep(Duration::from_secs(5));
            let after = self.state()?;
            ensure!(before == after, "before: {before:?}\nafter: {after:?}");
            Ok(())
        })
    }

    fn kill_each_pod(&self, things: &Things) -> Result<()> {
        let count = self.pods()?.len();
        for (pod, uid) in self.pods()? {
            step(&format!("kill {pod}"), |progress| {
                let mut delete = self.target.kubectl(["-n", NAMESPACE, "delete", "pod", &pod]);
                output(delete.args(["--grace-period=1", "--timeout=120s"]))?;
                progress.update("wait until all are ready");
                self.all_ready(count, &uid)?;
                progress.update("check");
                self.check(things)
            })?;
        }
        Ok(())
    }

    /// Waits until as many Pods are ready as there are to be, and a killed one is gone.
    pub(super) fn all_ready(&self, count: usize, killed: &str) -> Result<()> {
        wait_for("all Pods to be ready", LIMIT, &[], || match self.lines_of_pods() {
            Ok(lines) => {
                let lacking = lines
                    .iter()
                    .find(|line| line.last().is_none_or(|ready| ready != "True") || line[1] == killed);
                match lacking {
                    Some(line) => Look::NotYet(line.join(" ")),
                    None if lines.len() != count => Look::NotYet(format!("{} of {count} Pods", lines.len())),
                    None => Look::Ready(()),
                }
            }
            Err(error) => Look::NotYet(format!("{error:#}")),
        })?;
        Ok(())
    }

    /// The Pods that stay, by name, with their uids: all but those of Jobs.
    pub(super) fn pods(&self) -> Result<BTreeMap<String, String>> {
        let lines = self.lines_of_pods()?;
        Ok(lines
            .into_iter()
            .map(|words| (words[0].clone(), words[1].clone()))
            .collect())
    }

    /// Name, uid, kind of the owner, and whether it is ready, of each Pod that stays.
    fn lines_of_pods(&self) -> Result<Vec<Vec<String>>> {
        let path = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.metadata.ownerReferences[0].kind} \
                    {.status.conditions[?(@.type==\"Ready\")].status}{\"\\n\"}{end}";
        let mut get = self.target.kubectl(["-n", NAMESPACE, "get", "pods", "-l", LABEL]);
        let lines = output(get.args(["-o", path]))?;
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        Ok(lines
            .lines()
            .map(words)
            .filter(|words| words.len() > 2 && words[2] != "Job")
            .collect())
    }

    /// What an apply may change: specifications, by their generation, and Pods.
    fn state(&self) -> Result<BTreeSet<String>> {
        let path = "jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid} {.metadata.generation}\
                    {\"\\n\"}{end}";
        let kinds = "deployments,statefulsets,jobs,pods,services,configmaps,secrets,persistentvolumeclaims";
        let lines = output(&mut self.target.kubectl(["-n", NAMESPACE, "get", kinds, "-o", path]))?;
        Ok(lines.lines().map(str::to_owned).collect())
    }

    /// Applies the kustomization with a setting added to a service's file that overrides.
    fn put_with(&self, service: &str, setting: &str) -> Result<()> {
        put(self.target, &self.with_setting(service, setting).write()?, self.images)?;
        Ok(())
    }

    fn with_setting(&self, service: &str, setting: &str) -> Kustomization {
        self.kustomization.with_file(service, "30-override.conf", setting)
    }

    fn change_a_setting(&self) -> Result<()> {
        let before = self.pods()?;
        let changed = self.with_setting("cinder", &format!("[DEFAULT]\npublic_endpoint = {SHORT_ENDPOINT}"));
        put_and_wait(self.target, &changed.write()?, self.images)?;
        step(
            "a changed setting of Cinder has replaced its Pods, and no others",
            |_| {
                let after = self.pods()?;
                let of_cinder = |name: &&String| name.starts_with("cinder-");
                for (name, uid) in after.iter().filter(|(name, _)| of_cinder(name)) {
                    ensure!(before.get(name) != Some(uid), "{name} still has the old setting");
                }
                for (name, uid) in after.iter().filter(|(name, _)| !of_cinder(name)) {
                    ensure!(
                        before.get(name) == Some(uid),
                        "{name} was replaced, and has nothing of Cinder"
                    );
                }
                let endpoint = self.use_services("endpoint", &[])?;
                let endpoint = endpoint.as_str().unwrap_or_default();
                ensure!(
                    endpoint.starts_with(SHORT_ENDPOINT),
                    "Cinder says that it is at {endpoint}"
                );
                Ok(())
            },
        )
    }

    fn break_an_api(&self, things: &Things) -> Result<()> {
        let before = self.pods()?;
        self.put_with(
            "keystone",
            "[database]\nconnection = mysql+pymysql://nobody@mariadb/nothing",
        )?;
        step(
            "a broken setting of Keystone: its new Pod is not ready, its old one serves",
            |_| {
                let error = self.not_ready("deployment.apps/keystone")?;
                ensure!(
                    error.contains("nobody"),
                    "the error does not say what is wrong: {error}"
                );
                let after = self.pods()?;
                let gone: Vec<_> = before.iter().filter(|(name, _)| !after.contains_key(*name)).collect();
                ensure!(
                    gone.iter().all(|(name, _)| name.starts_with("cinder-api-")),
                    "gone: {gone:?}"
                );
                self.check(things)
            },
        )
    }

    fn break_a_daemon(&self, things: &Things) -> Result<()> {
        self.put_with("manila", "[cephfs]\ncephfs_filesystem_name = missing")?;
        step("a broken setting of Manila's backend: its Pod is not ready", |_| {
            self.not_ready("statefulset.apps/manila-share")?;
            Ok(())
        })?;
        put_and_wait(self.target, &self.kustomization.write()?, self.images)?;
        step("the setting is taken back: all is well again", |_| self.check(things))
    }

    /// Checks that a workload does not become ready; returns what is said about that.
    fn not_ready(&self, workload: &str) -> Result<String> {
        match ready_within(self.target, workload, BROKEN_LIMIT) {
            Ok(()) => bail!("{workload} is ready with a broken setting"),
            Err(error) => Ok(format!("{error:#}")),
        }
    }
}

impl Things {
    fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }
}
