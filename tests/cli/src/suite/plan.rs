//! Which files run, in what order, and on what kind of cluster.

use std::cmp::Reverse;
use std::collections::VecDeque;

use mooring_e2e::{File, Needs};
use mooring_testbed::binaries::{Release, Releases};
use mooring_testbed::cluster::Wanted;
use mooring_testbed::node::Flavour;

/// A run of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) file: &'static File,
    /// The Kubernetes of its cluster.
    pub(super) release: Release,
    /// The number of the run, from 1.
    pub(super) round: u32,
}

impl Job {
    /// What tells it from other runs of its file.
    pub(super) fn variant(&self) -> impl Iterator<Item = String> {
        let release = (self.release != Release::default()).then(|| self.release.version().to_owned());
        let round = (self.round > 1).then(|| format!("round {}", self.round));
        release.into_iter().chain(round)
    }
}

/// Files with cycles, kills and random numbers, whose long forms `--soak` runs.
const SOAK: &[&str] = &[
    "admission_generated",
    "chaos_api",
    "chaos_client_cycles",
    "chaos_control_plane",
    "chaos_mount_cycles",
    "chaos_pod",
    "chaos_provision",
    "chaos_revive",
    "mount_junk",
    "provision_kits",
    "scale_claims",
];

/// Environment that makes the short forms long.
pub(super) const SOAK_ENVIRONMENT: &[(&str, &str)] =
    &[("MOORING_TESTBED_CYCLES", "1000"), ("MOORING_TESTBED_ALL", "1")];

/// How often `--soak` runs each file, each time with another seed.
pub(super) const SOAK_ROUNDS: u32 = 10;

pub(super) fn is_for_soak(file: &File) -> bool {
    SOAK.contains(&file.title().as_str())
}

/// What separates a file from words in its tests' names.
const TEST: &str = "::";

/// Whether a user's words name this file, or tests in it.
pub(super) fn names(prefix: &str, file: &File) -> bool {
    match prefix.split_once(TEST) {
        Some((title, _)) => file.title() == title,
        None => file.title().starts_with(prefix),
    }
}

/// Words of which the wanted tests' names have one; none if all tests of the file are wanted.
pub(super) fn tests_named<'a>(prefixes: &'a [String], file: &File) -> Option<Vec<&'a str>> {
    let naming = prefixes.iter().filter(|prefix| names(prefix, file));
    let words: Option<Vec<_>> = naming.map(|prefix| Some(prefix.split_once(TEST)?.1)).collect();
    words.filter(|words| !words.is_empty())
}

/// The kind of nodes of lane `index` of `count`. One of several lanes has plain nodes, like the demo and the bench, and
/// runs the files that need a virtual machine. All others have immutable nodes, which offer Mooring nothing to rely on.
/// When the first lane has done its own files, it takes some of the others'.
pub(super) fn flavour(index: usize, count: usize) -> Flavour {
    if count > 1 && index == 0 {
        Flavour::Plain
    } else {
        Flavour::Immutable
    }
}

/// The cluster for a job on a lane with this kind of nodes. A lane that is alone gets another cluster for files that
/// need plain nodes, and any lane for an older Kubernetes.
pub(super) fn cluster_for(job: &Job, lane: Flavour) -> Wanted {
    let flavour = if needs_plain(job.file) { Flavour::Plain } else { lane };
    Wanted {
        flavour: Some(flavour),
        releases: Some(Releases {
            control_plane: job.release,
            nodes: job.release,
        }),
    }
}

fn needs_plain(file: &File) -> bool {
    matches!(file.needs, Needs::Plain | Needs::Oldest | Needs::OldestAndNewest)
}

/// The lane of a file: if there are several, the first one for files that need a virtual machine or plain nodes.
fn runs_on(file: &File, index: usize, count: usize) -> bool {
    let first = file.needs == Needs::Machine || needs_plain(file);
    count == 1 || first == (index == 0)
}

/// The versions of Kubernetes that a file runs on. A cluster that runs already is used as it is, once.
fn releases(file: &File, is_up: bool) -> &'static [Release] {
    match file.needs {
        Needs::OldestAndNewest if !is_up => &[Release::Newest, Release::Oldest],
        Needs::Oldest => &[Release::Oldest],
        _ => &[Release::Newest],
    }
}

/// Whether a lane that has done all of its own files may take this one from the others.
fn may_help(file: &File, index: usize) -> bool {
    index == 0 && file.needs == Needs::Cluster
}

/// The runs of files in the order in which to start them: the longest first, so that no lane has one left at the end.
/// The tests of all of them run, or the default tier's. `is_up` says whether there is a cluster already.
pub(super) fn jobs(files: &[&'static File], rounds: u32, all: bool, is_up: bool) -> VecDeque<Job> {
    let seconds = |file: &File| if all { file.seconds_with_all } else { file.seconds };
    let mut jobs = Vec::new();
    for round in 1..=rounds {
        for &file in files {
            let runs = releases(file, is_up).iter();
            jobs.extend(runs.map(|&release| Job { file, release, round }));
        }
    }
    jobs.sort_by_key(|job| (job.round, Reverse(seconds(job.file))));
    jobs.into()
}

/// Jobs that wait, and whether a quiet one runs.
#[derive(Debug)]
pub(super) struct Queue {
    /// Jobs that have not started.
    pub(super) jobs: VecDeque<Job>,
    /// Whether a file that needs a quiet cluster runs on one of the lanes for such files.
    quiet_runs: bool,
}

impl Queue {
    /// A queue in which nothing has started.
    pub(super) fn new(jobs: VecDeque<Job>) -> Self {
        Self {
            jobs,
            quiet_runs: false,
        }
    }

    /// Takes the next job for a lane. Only one file that needs a quiet cluster runs at a time while there are other
    /// files: such tests start controllers by the dozen and kill processes, and two of them at once would run into
    /// their time limits.
    pub(super) fn take(&mut self, index: usize, count: usize) -> Option<Job> {
        let fits = |job: &&Job| runs_on(job.file, index, count);
        let calm = |job: &&Job| fits(job) && !(self.quiet_runs && job.file.needs == Needs::Quiet);
        // A lane changes its cluster for them: once is enough.
        let stays =
            |job: &&Job| job.release == Release::default() && (count > 1 || !needs_plain(job.file)) && calm(job);
        let next = self.jobs.iter().position(|job| stays(&job));
        let next = next.or_else(|| self.jobs.iter().position(|job| calm(&job)));
        let next = next.or_else(|| self.jobs.iter().position(|job| fits(&job)));
        let next = next.or_else(|| self.jobs.iter().position(|job| may_help(job.file, index)))?;
        let job = self.jobs.remove(next)?;
        self.quiet_runs |= job.file.needs == Needs::Quiet;
        Some(job)
    }

    /// Notes that a job has ended.
    pub(super) fn ended(&mut self, job: &Job) {
        if job.file.needs == Needs::Quiet {
            self.quiet_runs = false;
        }
    }
}

/// How many lanes have work, of at most `most`.
pub(super) fn lanes(jobs: &VecDeque<Job>, most: usize) -> usize {
    let apart = jobs.iter().filter(|job| !runs_on(job.file, 0, 2)).count();
    match (apart, jobs.len() - apart) {
        (0, _) | (_, 0) => 1.max(most.min(apart)),
        (others, _) => most.min(others + 1),
    }
}

#[cfg(test)]
mod tests {
    use mooring_e2e::{FILES, File, Needs};

    use super::{Queue, Release, SOAK, jobs, lanes, names, needs_plain, tests_named};

    fn all() -> Vec<&'static File> {
        FILES.iter().collect()
    }

    #[test]
    fn each_lane_takes_what_is_its_own_and_takes_long() {
        let of_the_first = |job: &super::Job| job.file.needs == Needs::Machine || needs_plain(job.file);
        let mut queue = Queue::new(jobs(&all(), 2, true, false));
        let count = queue.jobs.len();
        let own = queue.jobs.iter().filter(|job| of_the_first(job)).count();
        let mut taken = 0;
        let mut last = [u32::MAX; 2];
        for (lane, most) in [(0, own), (1, count)] {
            for _ in 0..most {
                let Some(job) = queue.take(lane, 4) else { break };
                queue.ended(&job);
                assert_eq!(of_the_first(&job), lane == 0, "{job:?}");
                if job.round == 1 && job.release == Release::Newest {
                    assert!(job.file.seconds_with_all <= last[lane]);
                    last[lane] = job.file.seconds_with_all;
                }
                taken += 1;
            }
        }
        assert_eq!(taken, count);
    }

    #[test]
    fn the_first_lane_helps_the_others_where_any_nodes_will_do() {
        let mut queue = Queue::new(jobs(&all(), 1, true, false));
        while queue.take(0, 2).is_some() {}
        assert!(!queue.jobs.is_empty());
        for job in &queue.jobs {
            assert!(matches!(job.file.needs, Needs::Quiet | Needs::Immutable), "{job:?}");
        }
    }

    #[test]
    fn a_lane_alone_takes_all() {
        let mut queue = Queue::new(jobs(&all(), 1, true, false));
        while queue.take(0, 1).is_some() {}
        assert!(queue.jobs.is_empty());
    }

    #[test]
    fn quiet_files_come_one_at_a_time_until_nothing_else_is_left() {
        let mut queue = Queue::new(jobs(&all(), 1, true, false));
        let is_quiet = |job: super::Job| job.file.needs == Needs::Quiet;
        let mut first = queue.take(1, 3).unwrap();
        while !is_quiet(first) {
            queue.ended(&first);
            first = queue.take(1, 3).unwrap();
        }
        let mut beside = Vec::new();
        while let Some(job) = queue.take(2, 3) {
            beside.push(is_quiet(job));
        }
        let others = beside.iter().take_while(|quiet| !**quiet).count();
        assert!(others > 0 && beside[others..].iter().all(|quiet| *quiet), "{beside:?}");
    }

    #[test]
    fn a_file_for_two_versions_of_kubernetes_runs_on_both_and_once_on_a_cluster_that_is_up() {
        let files: Vec<_> = all()
            .into_iter()
            .filter(|file| file.needs == Needs::OldestAndNewest)
            .collect();
        for (is_up, runs) in [(false, 2), (true, 1)] {
            assert_eq!(jobs(&files, 1, true, is_up).len(), runs * files.len());
        }
    }

    #[test]
    fn no_lane_is_started_without_work() {
        let of = |needs: &[Needs]| -> Vec<&'static File> {
            needs
                .iter()
                .map(|needs| FILES.iter().find(|file| file.needs == *needs).unwrap())
                .collect()
        };
        assert_eq!(lanes(&jobs(&of(&[Needs::Cluster]), 1, true, false), 4), 1);
        assert_eq!(lanes(&jobs(&of(&[Needs::Machine]), 3, true, false), 4), 1);
        assert_eq!(lanes(&jobs(&of(&[Needs::Machine, Needs::Quiet]), 1, true, false), 4), 2);
        assert_eq!(lanes(&jobs(&of(&[Needs::Quiet]), 30, true, false), 4), 4);
        assert_eq!(lanes(&jobs(&all(), 1, true, false), 4), 4);
    }

    #[test]
    fn a_file_is_named_by_its_beginning_and_tests_by_words_after_the_whole_name() {
        let file = FILES.iter().find(|file| file.title() == "mount_hung").unwrap();
        let prefixes = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        for (word, is_named) in [
            ("mount", true),
            ("mount_hung", true),
            ("mount_hung::slow", true),
            ("mount::slow", false),
        ] {
            assert_eq!(names(word, file), is_named, "{word}");
        }
        let words = prefixes(&["mount_hung::slow", "mount_s3", "mount_hung::heals"]);
        assert_eq!(tests_named(&words, file), Some(vec!["slow", "heals"]));
        assert_eq!(tests_named(&prefixes(&["mount_hung::slow", "mount"]), file), None);
        assert_eq!(tests_named(&prefixes(&["mount_s3"]), file), None);
        assert_eq!(tests_named(&[], file), None);
    }

    #[test]
    fn files_to_soak_exist() {
        for name in SOAK {
            assert!(FILES.iter().any(|file| file.title() == *name), "{name}");
        }
    }
}
