//! A scene from its beginning to its end, with each of the faults in it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::expected::Expected;
use super::fault::{Fault, Kind, Of};
use super::ground::Ground;
use super::program::{Ended, Program, Run};
use super::proxy::{Proxy, REST};
use super::scene::{Act, NODE, Scene, Step};
use mooring_testbed::progress::Step as Progress;
use mooring_testbed::wait::{Look, wait_for};

/// How often an operation is tried. Once is usual.
const TRIES: usize = 20;

const PAUSE: Duration = Duration::from_secs(3);

/// Longest until the lists have what they should.
const LIMIT: Duration = Duration::from_secs(30);

/// What was done.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Count {
    pub(super) runs: usize,
    /// Calls that these made to OpenStack.
    pub(super) calls: usize,
    pub(super) faults: usize,
    /// Runs that were needed since an earlier one had asked for them.
    pub(super) more: usize,
    /// The lists of both sides that were compared.
    pub(super) lists: usize,
}

impl Count {
    pub(super) fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.calls += other.calls;
        self.faults += other.faults;
        self.more += other.more;
        self.lists += other.lists;
    }
}

pub(super) struct Life<'a> {
    ground: &'a Ground<'a>,
    scene: &'a Scene,
    of: Of,
    proxy: &'a Proxy,
    program: Program<'a>,
    expected: Expected,
    /// What the image has said of each volume.
    volumes: BTreeMap<&'static str, Value>,
    count: Count,
}

/// Whether a step's fault came to pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    Yes,
    No,
}

impl<'a> Life<'a> {
    /// With the faults at these calls.
    pub(super) fn begin(
        ground: &'a Ground<'a>,
        (scene, of): (&'a Scene, Of),
        proxy: &'a Proxy,
        folder: PathBuf,
    ) -> Result<Self> {
        let program = Program {
            path: ground.program.clone(),
            folder,
            proxy,
        };
        program.give(&ground.properties(scene.service, proxy))?;
        Ok(Self {
            ground,
            scene,
            of,
            proxy,
            program,
            expected: Expected::default(),
            volumes: BTreeMap::new(),
            count: Count::default(),
        })
    }

    /// Plays it.
    pub(super) fn play(mut self, progress: &mut Progress) -> Result<Count> {
        let scene = self.scene;
        self.steps(scene.before, None)?;
        let makes = scene.round.iter().any(|step| step.fails && step.act.makes());
        // Until the runs make fewer calls than that.
        'all: for at in scene.faults.first(self.of).. {
            for fault in Fault::at(self.of, at, scene.faults, makes) {
                progress.update(&format!("{fault}"));
                if self.round(fault)? == Came::No && !fault.given_up {
                    break 'all;
                }
            }
        }
        self.steps(scene.after, None)?;
        Ok(self.count)
    }

    fn round(&mut self, fault: Fault) -> Result<Came> {
        self.steps(self.scene.round, Some(fault))
            .with_context(|| format!("{fault}"))
    }

    fn steps(&mut self, steps: &[Step], fault: Option<Fault>) -> Result<Came> {
        let mut came = Came::No;
        for step in steps {
            let given_up = fault.is_some_and(|fault| fault.given_up);
            let fits = step.fails && (!given_up || step.act.makes());
            let fault = fault.filter(|_| fits);
            let one = self
                .step(step, fault)
                .with_context(|| format!("{} of {}", step.act.operation(), self.full(step.volume)))?;
            if one == Came::Yes {
                came = Came::Yes;
            }
        }
        Ok(came)
    }

    /// Carries out an operation until it is done, and looks at what is there.
    fn step(&mut self, step: &Step, fault: Option<Fault>) -> Result<Came> {
        let request = self.request(step);
        self.expected.apply(step);
        let fault = fault.filter(|fault| fault.of != Of::Looks || self.expected.may_break(step));
        let first = self.run(step, &request, fault)?;
        let hit = first.seen.hit.clone();
        self.count.faults += usize::from(hit.is_some());
        let last = match (&hit, fault) {
            // What undoes it is next.
            (Some(_), Some(Fault { given_up: true, .. })) => return Ok(Came::Yes),
            // Also a run after one that has ended well has to find all as it should be.
            (Some(_), _) => None,
            (None, _) => Some(first),
        };
        let why = || {
            let at = hit.as_deref();
            at.map_or_else(|| "without a fault".to_owned(), |hit| format!("after a fault at {hit}"))
        };
        let done = self.until_done(step, &request, last).with_context(why)?;
        self.done(step, &done);
        let is_late = hit.is_some() && fault.is_some_and(|fault| fault.kind == Kind::Late);
        self.check(is_late).with_context(why)?;
        Ok(if hit.is_some() { Came::Yes } else { Came::No })
    }

    /// Runs an operation until it is done, as Mooring does. A service may still be at work for the run before.
    fn until_done(&mut self, step: &Step, request: &Value, first: Option<Run>) -> Result<Run> {
        let mut run = match first {
            Some(run) => run,
            None => self.run(step, request, None)?,
        };
        let mut words = Vec::new();
        while run.ended != Ended::Done {
            words.push(format!("{:?}", run.ended));
            ensure!(words.len() < TRIES, "it is not done: {words:?}");
            std::thread::sleep(PAUSE);
            self.count.more += 1;
            run = self.run(step, request, None)?;
        }
        Ok(run)
    }

    fn run(&mut self, step: &Step, request: &Value, fault: Option<Fault>) -> Result<Run> {
        self.count.runs += 1;
        let own = if step.act.is_about_other() {
            step.other
        } else {
            step.volume
        };
        let run = self.program.run(request, fault, &self.full(own))?;
        self.count.calls += run.seen.calls;
        Ok(run)
    }

    fn done(&mut self, step: &Step, run: &Run) {
        match step.act {
            Act::Provision | Act::Restore | Act::RestoreBackup | Act::Clone => {
                let mut volume = run.answer.clone();
                // A PersistentVolume refers to it in a field of its own.
                if let Some(volume) = volume.as_object_mut() {
                    volume.retain(|_, value| value.is_string());
                }
                self.volumes.insert(step.volume, volume);
            }
            Act::Delete => {
                self.volumes.remove(step.volume);
            }
            _ => {}
        }
    }

    /// Compares the lists of both sides with what has to be there. What a late call has made may be there besides,
    /// until the volume or snapshot is deleted: nobody can know of such a call.
    fn check(&mut self, is_late: bool) -> Result<()> {
        self.count.lists += 1;
        wait_for("the services to have ended their work", REST, &[], || {
            if self.proxy.is_idle() {
                Look::Ready(())
            } else {
                Look::NotYet("a call is not answered".to_owned())
            }
        })?;
        let full = |name: &str| self.full(name);
        let wanted = match self.scene.service {
            "cinder" => self.expected.of_cinder(full),
            _ => self.expected.of_manila(self.scene.has_key, full),
        };
        let own = self.full("");
        wait_for(&format!("{wanted:?}"), LIMIT, &[], || {
            match self.ground.there(self.scene.service) {
                Ok(mut there) => {
                    there.retain(|line| line.contains(&own));
                    if is_late {
                        there.retain(|line| wanted.contains(line));
                        there.dedup();
                    }
                    if there == wanted {
                        Look::Ready(())
                    } else {
                        Look::NotYet(format!("{there:?}"))
                    }
                }
                Err(error) => Look::NotYet(format!("{error:#}")),
            }
        })?;
        Ok(())
    }

    /// The name of a volume, a snapshot or a backup in the services.
    fn full(&self, name: &str) -> String {
        let Scene {
            service, name: scene, ..
        } = self.scene;
        format!("{}-{service}-{scene}-{}-{name}", self.ground.name, self.of.name())
    }

    /// What Mooring asks for.
    fn request(&self, step: &Step) -> Value {
        let (name, gib) = (self.full(step.volume), self.expected.gib(step));
        let empty = json!({});
        let volume = |name: &str| self.volumes.get(name).unwrap_or(&empty).clone();
        let mut request = json!({
            "contract": 1, "operation": step.act.operation(), "pv-name": name, "username": "", "groups": [],
            "size": gib << 30, "size-gi": gib, "pvc-name": step.volume, "pvc-namespace": "faults",
            "pvc-uid": name, "storage-class": "faults", "access-modes": ["ReadWriteOnce"],
            "volume-mode": "Filesystem", "fs-type": "", "mount-options": [], "reclaim-policy": "Delete",
            "node-name": "", "topology": {}, "service-account": "", "kube-api": self.ground.kube_api,
            "parameters": {}, "volume": volume(step.volume), "attaches": !self.scene.has_key,
        });
        match step.act {
            Act::Attach | Act::Detach => {
                request["node-name"] = json!(NODE);
                request["attachment"] = json!({
                    "addresses": ["192.0.2.1"], "initiator": "iqn.2026-11.dev.mooring:node-1",
                });
            }
            Act::Provision | Act::Delete | Act::Expand | Act::Clone => {}
            _ => {
                let saved = self.full(step.other);
                request["snapshot"] = json!({"name": saved, "content-name": saved, "content-uid": saved});
                if matches!(step.act, Act::Backup | Act::DeleteBackup | Act::RestoreBackup) {
                    request["snapshot"]["backup"] = json!(true);
                }
            }
        }
        if matches!(step.act, Act::Clone | Act::Restore | Act::RestoreBackup) {
            let source = self.expected.source(step);
            request["source"] = json!({
                "pv-name": self.full(source), "pvc-name": source, "pvc-namespace": "faults", "pvc-uid": source,
                "size": gib << 30, "volume": volume(source),
            });
        }
        request
    }
}
