//! Random lives of claims, volumes and snapshots against a model of the storage: made, copied, restored, expanded,
//! modified, deleted, taken away, handed on, snapshotted alone and in groups, by Pods and by a worker; while nodes,
//! workers and ConfigMaps go, watches lag, API calls fail and controllers are killed.
//!
//! Whatever happened, everything comes to rest. Then there is one volume for each claim that wants one and none for
//! others, a volume has the size and the class that its claim says, nothing that is retained was deleted, and whoever
//! waits is told what for.
//!
//! The same before a real API server, by watches that are dropped and expire: [`RealApi`]. There, no groups are taken
//! and there is no worker.
//!
//! A seed always makes the same steps. One that fails is printed with the fewest of its steps that still fail;
//! `MOORING_TESTBED_SEED` repeats it.

mod world;

use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use self::world::World;
use super::fake_api::{FakeApi, Fault};
use super::real_api::RealApi;

/// How many seeds are played: by default, and with `--all`.
const SEEDS: u64 = 200;
const ALL_SEEDS: u64 = 10_000;

/// The same before a real API server.
const REAL_SEEDS: u64 = 3;
const ALL_REAL_SEEDS: u64 = 200;

/// Most tries to find fewer steps that fail.
const MAX_SHRINKS: u32 = 1000;
const MAX_REAL_SHRINKS: u32 = 30;

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A user asks for the claim of this number, if it is not there.
    Claim(usize),
    /// The same, for a copy of another claim's volume.
    Clone { claim: usize, source: usize },
    /// The same, for a claim with the content of a snapshot.
    Restore { claim: usize, snapshot: usize },
    /// A user takes a snapshot of a bound claim, which stays when its objects go if it is to be retained.
    Snapshot { claim: usize, retain: bool },
    /// A user takes snapshots of all bound claims at once.
    Group { retain: bool },
    /// A user asks for so many GiB.
    Grow { claim: usize, gib: u64 },
    /// A user asks for the attributes of the class of this number.
    Modify { claim: usize, class: usize },
    /// An object is deleted: the one of this number of its kind.
    Delete(&'static str, usize),
    /// The same, and its finalizers are removed.
    TakeAway(&'static str, usize),
    /// The volume of this number is to be kept when its claim goes.
    Retain(usize),
    /// A volume is given to a claim that has none, though another claim may have it.
    HandOn { volume: usize, claim: usize },
    /// The ConfigMap of this number is there from now on, or not.
    ConfigMap(usize, bool),
    /// The class passes to the other ConfigMap.
    ClassPasses,
    /// kube-controller-manager binds and releases. It may bind a claim while Mooring still holds it.
    Bind { quick: bool },
    /// Kubernetes' garbage collector removes what has lost its owner.
    Collect,
    /// A worker of the ConfigMap of this number starts, if there is none. So many of its answers are lost.
    Hire { config: usize, lost_answers: usize },
    /// The worker's Pod is deleted, whatever it carries out.
    Dismiss,
    /// What becomes of the Pods that may run, and of what the worker carries out.
    Pods(Fate),
    /// The lost node answers again.
    NodeReturns,
    /// The lost node is deleted, and its Pods with it.
    NodeGoes,
    /// The controllers look at the object of this number.
    Look(usize),
    /// Controllers, kubelets and Kubernetes do for a while what they are there for.
    GoWell,
    /// The controllers look at everything.
    LookAtAll { backwards: bool },
    /// The controller is killed, and another one starts.
    Restart,
    /// The watch of a kind lags: it goes on showing what there is now.
    Lag(&'static str),
    /// No watch lags any more.
    CatchUp,
    /// A call from now on goes wrong, which may kill the controller.
    Fail { nth: usize, fault: Fault, kills: bool },
}

/// What becomes of a Pod that may run, and of the container of a Pod that is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It goes on.
    Runs,
    /// It does what was asked, and exits with 0.
    Done,
    /// It exits with this code, perhaps when it has done what was asked.
    Fails { code: i32, effect: bool },
    /// Its image can't be pulled.
    NoImage,
    /// Its node does not answer any more: nobody sees it end.
    Lost { effect: bool },
}

/// What controllers look at.
const KINDS: [&str; 4] = ["claims", "volumes", "contents", "groups"];

/// What a watch may lag behind with.
const LAGGING: [&str; 4] = ["claims", "volumes", "contents", "pods"];

fn kind() -> impl Strategy<Value = &'static str> {
    (0..KINDS.len()).prop_map(|at| KINDS[at])
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        8 => Just(Fate::Done),
        3 => Just(Fate::Runs),
        2 => any::<bool>().prop_map(|effect| Fate::Fails { code: 75, effect }),
        1 => any::<bool>().prop_map(|effect| Fate::Fails { code: 78, effect }),
        1 => Just(Fate::NoImage),
        2 => any::<bool>().prop_map(|effect| Fate::Lost { effect }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let fault = (0..Fault::ALL.len()).prop_map(|at| Fault::ALL[at]);
    prop_oneof![
        8 => Just(Step::GoWell),
        20 => any::<bool>().prop_map(|backwards| Step::LookAtAll { backwards }),
        20 => fate().prop_map(Step::Pods),
        14 => (0..6_usize).prop_map(Step::Look),
        10 => any::<bool>().prop_map(|quick| Step::Bind { quick }),
        4 => Just(Step::Collect),
        4 => (0..2_usize).prop_map(Step::Claim),
        3 => (0..3_usize, 0..2_usize).prop_map(|(claim, source)| Step::Clone { claim, source }),
        5 => (0..3_usize, 0..2_usize).prop_map(|(claim, snapshot)| Step::Restore { claim, snapshot }),
        3 => (0..2_usize, any::<bool>()).prop_map(|(claim, retain)| Step::Snapshot { claim, retain }),
        2 => any::<bool>().prop_map(|retain| Step::Group { retain }),
        4 => (0..2_usize, 2..5_u64).prop_map(|(claim, gib)| Step::Grow { claim, gib }),
        4 => (0..2_usize, 0..2_usize).prop_map(|(claim, class)| Step::Modify { claim, class }),
        7 => (kind(), 0..2_usize).prop_map(|(kind, at)| Step::Delete(kind, at)),
        2 => (kind(), 0..2_usize).prop_map(|(kind, at)| Step::TakeAway(kind, at)),
        2 => (0..2_usize).prop_map(Step::Retain),
        3 => (0..2_usize, 0..2_usize).prop_map(|(volume, claim)| Step::HandOn { volume, claim }),
        5 => (0..2_usize, any::<bool>()).prop_map(|(at, there)| Step::ConfigMap(at, there)),
        2 => Just(Step::ClassPasses),
        6 => (0..2_usize, 0..3_usize).prop_map(|(config, lost_answers)| Step::Hire { config, lost_answers }),
        1 => Just(Step::Dismiss),
        1 => Just(Step::NodeReturns),
        2 => Just(Step::NodeGoes),
        2 => Just(Step::Restart),
        3 => (0..LAGGING.len()).prop_map(|at| Step::Lag(LAGGING[at])),
        3 => Just(Step::CatchUp),
        5 => (1..8_usize, fault, any::<bool>()).prop_map(|(nth, fault, kills)| Step::Fail { nth, fault, kills }),
    ]
}

/// Plays these steps, then lets everything come to rest: with the ConfigMaps that are left, with both, and when all is
/// deleted. `Err` with what is wrong.
fn play(steps: &[Step]) -> Result<(), String> {
    play_on(FakeApi::default(), steps)
}

fn play_on(api: FakeApi, steps: &[Step]) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(async {
        let mut world = World::new(api);
        for step in steps {
            world.take(*step).await?;
        }
        world.rest("as it is left").await?;
        world.restore_configs();
        world.rest("with both ConfigMaps").await?;
        world.check("with both ConfigMaps")?;
        world.delete_all();
        world.rest("with all deleted").await?;
        world.check("with all deleted")
    })
}

/// What is wrong with this seed, if anything is, with the fewest of its steps that show it.
fn wrong_with(seed: u64) -> Option<String> {
    wrong_by(seed, MAX_SHRINKS, &play)
}

fn wrong_by(seed: u64, shrinks: u32, play: &dyn Fn(&[Step]) -> Result<(), String>) -> Option<String> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: 1,
        max_shrink_iters: shrinks,
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    match runner.run(&vec(step(), 10..40), |steps| play(&steps).map_err(TestCaseError::fail)) {
        Ok(()) => None,
        Err(TestError::Fail(wrong, steps)) => Some(format!("seed {seed}: {wrong}\nafter {steps:#?}")),
        Err(TestError::Abort(why)) => Some(format!("seed {seed} could not be played: {why}")),
    }
}

/// Proves: P4
#[test]
fn what_was_given_up_is_tried_again_with_a_config_map_that_changed_before_its_answer_was_read() {
    let deletion = [
        Step::LookAtAll { backwards: false },
        Step::Pods(Fate::Fails {
            code: 75,
            effect: false,
        }),
        Step::Delete("claims", 0),
        Step::Look(0),
        Step::LookAtAll { backwards: false },
        Step::Pods(Fate::Fails {
            code: 78,
            effect: false,
        }),
        Step::ConfigMap(0, false),
        Step::LookAtAll { backwards: false },
        Step::LookAtAll { backwards: false },
        Step::LookAtAll { backwards: false },
    ];
    play(&deletion).unwrap();
}

/// Proves: P1
#[test]
fn what_a_run_makes_is_deleted_although_its_controller_was_killed_while_taking_it_back() {
    let before = [
        Step::LookAtAll { backwards: false },
        Step::Pods(Fate::NoImage),
        Step::Delete("claims", 0),
    ];
    let unseen = [Step::Pods(Fate::Lost { effect: true }), Step::NodeGoes, Step::Restart];
    let faults = (1..=3).flat_map(|nth| {
        Fault::ALL.map(|fault| Step::Fail {
            nth,
            fault,
            kills: true,
        })
    });
    for fault in faults {
        play(&[&before, &[fault, Step::Look(0)][..], &unseen].concat()).unwrap();
    }
}

/// Proves: P1
#[test]
fn what_an_attempt_made_is_deleted_although_the_run_seen_last_never_ran_or_the_claim_seen_last_is_gone() {
    const LOOK: Step = Step::LookAtAll { backwards: false };
    let made = Step::Pods(Fate::Done);
    for steps in [
        // The run of the attempt that was seen last is not its first.
        vec![
            LOOK,
            Step::Look(0),
            Step::Pods(Fate::Lost { effect: true }),
            Step::NodeGoes,
            LOOK,
            Step::Delete("claims", 0),
            LOOK,
        ],
        // The run is all that tells of the volume.
        vec![
            LOOK,
            Step::Delete("claims", 0),
            Step::Lag("claims"),
            Step::TakeAway("claims", 0),
            made,
            LOOK,
            LOOK,
        ],
        // The claim is gone, and its volume stays.
        vec![
            LOOK,
            made,
            LOOK,
            Step::Retain(0),
            Step::Bind { quick: false },
            Step::Grow { claim: 0, gib: 2 },
            LOOK,
            Step::TakeAway("claims", 0),
            Step::Retain(0),
            LOOK,
        ],
    ] {
        play(&steps).unwrap_or_else(|wrong| panic!("{wrong}\nafter {steps:#?}"));
    }
}

/// Proves: P1
#[test]
fn what_a_run_made_is_deleted_although_the_run_was_gone_when_it_was_to_be_taken_back() {
    const LOOK: Step = Step::LookAtAll { backwards: false };
    let steps = [
        LOOK,
        Step::Delete("claims", 0),
        Step::Lag("pods"),
        Step::Pods(Fate::Lost { effect: true }),
        Step::NodeGoes,
        LOOK,
        LOOK,
        LOOK,
    ];
    play(&steps).unwrap();
}

/// Proves: P1
#[test]
fn a_refused_volume_is_deleted_although_its_volume_s_removal_is_not_seen_yet() {
    const LOOK: Step = Step::LookAtAll { backwards: false };
    let steps = [
        Step::Fail {
            nth: 4,
            fault: Fault::After,
            kills: false,
        },
        LOOK,
        Step::Pods(Fate::Done),
        LOOK,
        Step::Bind { quick: true },
        Step::Grow { claim: 0, gib: 2 },
        Step::Delete("claims", 0),
        Step::Lag("volumes"),
        LOOK,
        Step::Look(0),
        LOOK,
    ];
    play(&steps).unwrap();
}

/// Proves: P1
#[test]
fn a_worker_makes_a_claim_s_volume_of_a_snapshot_that_it_took() {
    let steps = [
        Step::Hire {
            config: 0,
            lost_answers: 1,
        },
        Step::GoWell,
        Step::Snapshot {
            claim: 0,
            retain: false,
        },
        Step::Group { retain: true },
        Step::GoWell,
        Step::Restore { claim: 1, snapshot: 0 },
        Step::GoWell,
        Step::Delete("contents", 0),
        Step::Dismiss,
        Step::GoWell,
    ];
    play(&steps).unwrap();
}

/// Proves: P4
#[test]
fn a_claim_that_was_given_another_s_volume_gets_the_size_that_it_asks_for() {
    let steps = [
        Step::GoWell,
        Step::TakeAway("claims", 0),
        Step::LookAtAll { backwards: false },
        Step::Clone { claim: 1, source: 0 },
        Step::HandOn { volume: 0, claim: 0 },
    ];
    play(&steps).unwrap();
}

/// Proves: P1
#[test]
fn a_volume_that_another_claim_gets_before_its_own_is_not_made_once_more() {
    let steps = [
        Step::Look(0),
        Step::Pods(Fate::Done),
        Step::LookAtAll { backwards: false },
        Step::Clone { claim: 1, source: 0 },
        Step::HandOn { volume: 0, claim: 1 },
        Step::GoWell,
    ];
    play(&steps).unwrap();
}

/// The seeds to play: this many, or the other number with `--all`.
fn seeds(some: u64, all: u64) -> Range<u64> {
    let given = std::env::var("MOORING_TESTBED_SEED").ok();
    let given: Option<u64> = given.and_then(|seed| seed.parse().ok());
    let count = match std::env::var_os("MOORING_TESTBED_ALL") {
        Some(_) => all,
        None => some,
    };
    given.map_or(0..count, |seed| seed..seed + 1)
}

/// Proves: P1, P2, P3, P4
#[test]
fn whatever_happens_before_a_real_api_server_there_is_one_volume_for_each_claim_and_whoever_waits_is_told() {
    let Some(real) = RealApi::start() else {
        return;
    };
    let seeds = seeds(REAL_SEEDS, ALL_REAL_SEEDS);
    for seed in seeds.clone() {
        let play = |steps: &[Step]| {
            real.begin(seed);
            play_on(FakeApi::before(&real), steps)
        };
        if let Some(wrong) = wrong_by(seed, MAX_REAL_SHRINKS, &play) {
            panic!("{wrong}");
        }
        println!("seed {seed}: {:?} watches expired and dropped", real.watches());
    }
    let is_hindered = real.watches().iter().all(|count| *count > 0);
    assert!(is_hindered || seeds.count() == 1, "the proxy let every watch through");
}

/// Proves: P1, P2, P3, P4
#[test]
fn whatever_happens_there_is_one_volume_for_each_claim_and_whoever_waits_is_told() {
    let seeds = seeds(SEEDS, ALL_SEEDS);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|part| {
                let mut seeds = seeds.clone().skip(part).step_by(threads);
                scope.spawn(move || seeds.find_map(wrong_with))
            })
            .collect();
        parts.into_iter().filter_map(|part| part.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
