//! The clusters that end-to-end tests run on, side by side, each with one file at a time.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use mooring_e2e::guarantees::END_TO_END;
use mooring_e2e::{File, Needs};
use mooring_testbed::cluster;
use mooring_testbed::cluster::Wanted;
use mooring_testbed::cluster::remains::{Before, remains};
use mooring_testbed::command::{command, output};
use mooring_testbed::image_store::ImageStore;
use mooring_testbed::images::{Built, Form, PROGRAMS_VARIABLE, Selection};
use mooring_testbed::install::install_for_tests;
use mooring_testbed::layout::{CONTROL_PLANE, Layout, STATE_VARIABLE, repository};
use mooring_testbed::node::Flavour;
use mooring_testbed::progress::{labelled, say, spoken};
use mooring_testbed::rights::{self, Right};
use mooring_testbed::target::{EXISTING_VARIABLE, Target, TargetArgs};

use super::libtest::{self, Results};
use super::outcome::{Outcome, Ran, Times};
use super::plan::{self, Job, Queue};
use super::programs::Programs;

/// Environment variable: where a failed test leaves all information.
const RESULTS_VARIABLE: &str = "MOORING_TESTBED_RESULTS";
/// Environment variable: the seed of tests that draw random numbers.
const SEED_VARIABLE: &str = "MOORING_TESTBED_SEED";

/// Environment variable: tests that have a longer form run that.
pub(super) const ALL_VARIABLE: &str = "MOORING_TESTBED_ALL";

/// Environment variable: in the environment of all that a run of the suite starts, by which it is found afterwards.
const RUN_VARIABLE: &str = "MOORING_TESTBED_RUN";

/// Most lanes that a user can ask for.
pub(super) const MOST_LANES: usize = 8;

/// Time limit of a file of tests. Each test has a limit of its own.
const FILE_LIMIT: Duration = Duration::from_hours(1);

/// Time limit of a file with `--soak`.
const SOAK_LIMIT: Duration = Duration::from_hours(6);

/// What the lanes share.
pub(super) struct Lanes<'a> {
    /// The cluster of the first lane; those of the others are beside it.
    pub(super) layout: &'a Layout,
    /// Which cluster to work on.
    pub(super) target: &'a TargetArgs,
    /// The kind of nodes asked for.
    pub(super) flavour: Option<Flavour>,
    /// The images; an existing cluster's are built and delivered at once.
    pub(super) built: Option<&'a [Built]>,
    /// The same, unpacked for the nodes.
    pub(super) store: Option<&'a ImageStore>,
    pub(super) programs: &'a Programs,
    /// Leave the clusters up.
    pub(super) keep: bool,
    pub(super) forms: Forms<'a>,
    /// The rights of which to see whether the clusters' audit logs have a request that needed them.
    pub(super) rights: &'a BTreeSet<Right>,
    pub(super) count: usize,
}

/// Which tests of the files run, and how long they are.
pub(super) struct Forms<'a> {
    /// Run the forms that take hours.
    pub(super) soak: bool,
    /// Run the forms of `--all`.
    pub(super) all: bool,
    /// The files and tests that the user named.
    pub(super) prefixes: &'a [String],
    /// The form of the programs in the images.
    pub(super) programs: Form,
}

struct LaneCluster {
    target: Target,
    /// As it was started.
    wanted: Option<Wanted>,
    has_failed: bool,
}

impl Lanes<'_> {
    pub(super) fn run(&self, jobs: VecDeque<Job>) -> Outcome {
        let started = Instant::now();
        let before = Before::look();
        let jobs = Mutex::new(Queue::new(jobs));
        // Clusters start and end one after the other: each looks for free addresses.
        let starting = Mutex::new(());
        let outcome = Mutex::new(Outcome::default());
        std::thread::scope(|scope| {
            for index in 0..self.count {
                let (jobs, starting, outcome) = (&jobs, &starting, &outcome);
                scope.spawn(move || {
                    let label = if self.count > 1 {
                        format!("lane {}: ", index + 1)
                    } else {
                        String::new()
                    };
                    labelled(&label, || {
                        let mut times = Times::default();
                        let ended = self.lane(index, jobs, starting, outcome, &mut times);
                        times.waited = started.elapsed().saturating_sub(times.set_up + times.tests);
                        let mut outcome = locked(outcome);
                        outcome.lanes.resize(self.count, Times::default());
                        outcome.lanes[index] = times;
                        outcome.errors.extend(ended.err());
                    });
                });
            }
        });
        let mut outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
        // A lane that ends early waits for the others.
        for times in &mut outcome.lanes {
            times.waited = started.elapsed().saturating_sub(times.set_up + times.tests);
        }
        let left = jobs.into_inner().unwrap_or_else(PoisonError::into_inner).jobs;
        if !left.is_empty() {
            let titles: Vec<_> = left.iter().map(title).collect();
            outcome.errors.push(anyhow!("not run: {}", titles.join(", ")));
        }
        if !self.keep && !self.target.existing {
            outcome
                .errors
                .extend(before.and_then(|before| self.nothing_left(&before)).err());
        }
        outcome
    }

    /// Fails if the clusters, which were removed, or the tests left anything on this machine.
    fn nothing_left(&self, before: &Before) -> Result<()> {
        let layouts: Vec<_> = (0..self.count).map(|index| layout_of(self.layout, index)).collect();
        let left = remains(&layouts, before, &format!("{RUN_VARIABLE}={}", run_name()))?;
        ensure!(left.is_empty(), "left on this machine: {}", left.join("; "));
        Ok(())
    }

    fn lane(
        &self,
        index: usize,
        jobs: &Mutex<Queue>,
        starting: &Mutex<()>,
        outcome: &Mutex<Outcome>,
        times: &mut Times,
    ) -> Result<()> {
        let layout = layout_of(self.layout, index);
        let flavour = self.flavour.map(|asked| match asked {
            Flavour::Immutable => plan::flavour(index, self.count),
            Flavour::Plain => Flavour::Plain,
        });
        let result = (|| {
            let mut cluster = None;
            loop {
                if libtest::is_stopped() {
                    return Ok(());
                }
                let Some(job) = locked(jobs).take(index, self.count) else {
                    return Ok(());
                };
                let title = title(&job);
                let wanted = flavour.map(|flavour| plan::cluster_for(&job, flavour));
                let ready = self.ready(&mut cluster, wanted, &layout, starting, outcome, times);
                let is_broken = ready.is_err();
                let began = Instant::now();
                let results = ready.and_then(|target| self.run_job(&job, &layout, &target));
                let results = Results::told(&title, results);
                locked(jobs).ended(&job);
                if results.may_leave_things()
                    && let Some(cluster) = &mut cluster
                {
                    cluster.has_failed = true;
                }
                let took = began.elapsed();
                times.tests += took;
                say(format!("{title}: {} ({})", results.counts(), spoken(took)));
                locked(outcome).ran.push(Ran {
                    title,
                    lane: index + 1,
                    took,
                    results,
                });
                if is_broken {
                    return Ok(());
                }
            }
        })();
        if self.keep || self.target.existing {
            return result;
        }
        result.and(self.take_away(&layout, starting, outcome, times))
    }

    /// The cluster of a lane for its next file: the one that it has, if that has the wanted nodes and no test has failed
    /// there, as a known failure does too. What a failed test left would fail the tests after it.
    fn ready(
        &self,
        current: &mut Option<LaneCluster>,
        wanted: Option<Wanted>,
        layout: &Layout,
        starting: &Mutex<()>,
        outcome: &Mutex<Outcome>,
        times: &mut Times,
    ) -> Result<Target> {
        if let Some(cluster) = current {
            let fits = cluster.wanted == wanted && !cluster.has_failed;
            if fits || self.keep || self.target.existing {
                return Ok(cluster.target.clone());
            }
            say("starting another cluster: a test has failed on this one, or the next file needs other nodes");
            *current = None;
            self.take_away(layout, starting, outcome, times)?;
        }
        let target = self.open(layout, wanted, starting, times)?;
        if let Some(cluster) = target.own_cluster() {
            times.nodes = format!("{:?}", cluster.description.flavour).to_lowercase();
        }
        *current = Some(LaneCluster {
            target: target.clone(),
            wanted,
            has_failed: false,
        });
        Ok(target)
    }

    /// The cluster of a lane, with Mooring on it.
    fn open(&self, layout: &Layout, wanted: Option<Wanted>, starting: &Mutex<()>, times: &mut Times) -> Result<Target> {
        let target = {
            let _one_at_a_time = locked(starting);
            let began = Instant::now();
            let target = if self.target.existing {
                self.target.open(layout)
            } else {
                Target::own(layout, wanted.unwrap_or_default(), self.store)
            };
            times.set_up += began.elapsed();
            target.context("failed to bring the cluster up")?
        };
        let began = Instant::now();
        let installed = match self.built {
            Some(built) => target.deliver(built).and_then(|()| install_for_tests(&target, built)),
            None => target
                .load_images(Selection::All)
                .and_then(|built| install_for_tests(&target, &built)),
        };
        times.set_up += began.elapsed();
        installed.context("failed to install Mooring")?;
        Ok(target)
    }

    /// Removes the cluster of a lane, after a look at its audit log.
    fn take_away(
        &self,
        layout: &Layout,
        starting: &Mutex<()>,
        outcome: &Mutex<Outcome>,
        times: &mut Times,
    ) -> Result<()> {
        let began = Instant::now();
        // A lane that had no file to run has had no cluster.
        let logs = layout.logs(CONTROL_PLANE);
        let used = if logs.is_dir() {
            rights::used(&logs, self.rights)
        } else {
            Ok(BTreeSet::new())
        };
        let down = {
            let _one_at_a_time = locked(starting);
            cluster::down(layout).context("failed to take the cluster away")
        };
        times.set_up += began.elapsed();
        locked(outcome).used_rights.extend(used?);
        down
    }

    fn run_job(&self, job: &Job, layout: &Layout, target: &Target) -> Result<Results> {
        let program = self.programs.end_to_end(job.file.group)?;
        let mut command = Command::new(program);
        let at_once = match job.file.needs {
            Needs::Cluster | Needs::Immutable => 4,
            Needs::Quiet | Needs::Plain | Needs::Oldest | Needs::OldestAndNewest | Needs::Machine => 1,
        };
        command
            .args(self.forms.filters(job.file, program)?)
            .arg(format!("--test-threads={at_once}"))
            .env(PROGRAMS_VARIABLE, self.forms.programs.name())
            .current_dir(repository().join("tests/e2e"))
            .env("RUST_BACKTRACE", "1")
            .env(STATE_VARIABLE, &layout.state)
            .env(RUN_VARIABLE, run_name())
            .env(RESULTS_VARIABLE, results_folder(job));
        if self.forms.all {
            command.env(ALL_VARIABLE, "1");
        }
        if self.forms.soak {
            command.envs(plan::SOAK_ENVIRONMENT.iter().copied());
        }
        if job.round > 1 && std::env::var_os(SEED_VARIABLE).is_none() {
            command.env(SEED_VARIABLE, job.round.to_string());
        }
        if self.target.existing {
            command.env(EXISTING_VARIABLE, "1");
            if let Some(kubeconfig) = &target.kubeconfig {
                command.env("KUBECONFIG", kubeconfig);
            }
        }
        let limit = if self.forms.soak { SOAK_LIMIT } else { FILE_LIMIT };
        let results = libtest::run(command, &title(job), limit)?;
        ensure!(results != Results::default(), "there is no test in this file");
        Ok(results.of(&Path::new(END_TO_END).join(job.file.group)))
    }
}

impl Forms<'_> {
    /// The arguments by which a test program runs what is wanted of a file.
    fn filters(&self, file: &File, program: &Path) -> Result<Vec<String>> {
        let module = format!("{}::", file.name);
        let Some(words) = plan::tests_named(self.prefixes, file) else {
            return Ok(vec![module]);
        };
        let listed = output(&mut command(program, [&module, "--list", "--format=terse"]))?;
        let mut tests: Vec<_> = listed
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .filter(|test| {
                words
                    .iter()
                    .any(|word| test.strip_prefix(&module).is_some_and(|test| test.contains(word)))
            })
            .map(str::to_owned)
            .collect();
        ensure!(
            !tests.is_empty(),
            "{} has no test with {}",
            file.title(),
            words.join(" or ")
        );
        tests.push("--exact".to_owned());
        Ok(tests)
    }
}

fn run_name() -> String {
    std::process::id().to_string()
}

/// The folder for what failed tests leave. Each run of a file has one of its own, since several run at once.
fn results_folder(job: &Job) -> PathBuf {
    let variant = job.variant().map(|part| part.replace(' ', "-"));
    repository()
        .join("target/testbed-results")
        .join(variant.collect::<PathBuf>())
}

/// The cluster of a lane; the first lane has the default one.
fn layout_of(layout: &Layout, index: usize) -> Layout {
    if index == 0 {
        return layout.clone();
    }
    let mut state = layout.state.clone().into_os_string();
    state.push(format!("-lane-{}", index + 1));
    Layout::of(PathBuf::from(state))
}

/// The clusters of further lanes that a killed suite has left.
pub(crate) fn left_over(layout: &Layout) -> impl Iterator<Item = Layout> {
    let layout = layout.clone();
    (1..MOST_LANES)
        .map(move |index| layout_of(&layout, index))
        .filter(|layout| layout.state.exists())
}

fn title(job: &Job) -> String {
    let parts = std::iter::once(job.file.title()).chain(job.variant());
    parts.collect::<Vec<_>>().join(", ")
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
