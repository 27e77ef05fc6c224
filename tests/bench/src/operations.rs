//! What each operation on a volume costs: Mooring, whose image does nothing, beside kubernetes-csi's sidecars, whose
//! driver does nothing; and the class `local` beside local-path-provisioner. The floor of a run without a worker is a
//! bare Pod.
//!
//! The requests of snapshot-controller are in neither's count: both need it alike, and it is the bench's own user.

mod aims;
mod attachments;
mod figures;
pub(crate) mod many;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};

use self::figures::Figures;
use self::many::Amounts;
use super::audit::{self, Counts, Window};
use super::claims;
use super::observer::{Mark, Observer, Subject};
use super::options::WHOLE_LIMIT;
use super::peer::Peer;
use super::processes::{CONTROLLER, MOUNTER, PEER, WORKER as MOUNT_WORKER, snapshot};
use super::report::Requests;
use super::sidecars::{ACCOUNT, PROGRAMS, Sidecars};
use super::summary::number;
use super::systems::{LIMIT, LOCAL, MOORING, System, WORKER_PREFIX, World};
use mooring_harness::Scope;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, claim, until};
use mooring_harness::random::Random;
use mooring_harness::snapshots::snapshot_of;
use mooring_testbed::binaries::{ensure_peer, ensure_sidecars};
use mooring_testbed::progress::Step;
use mooring_testbed::target::Target;

/// The name in the report of Mooring with a worker.
const WORKER: &str = "Mooring, worker";

/// The sidecars' name in the report.
const SIDECARS: &str = "sidecars";

/// The node of the server that all volumes of Mooring are on.
const SERVER_NODE: &str = "node-1";

/// How long after an operation its last writes may come.
const CALM: Duration = Duration::from_secs(1);

/// In each such round, requests are counted.
const COUNTED: usize = 4;

/// Operations begin at any point of this time, in milliseconds: that of the control plane's own rhythms.
const RHYTHM_MS: u64 = 1000;

/// Pause before idle memory is looked at.
const IDLE: Duration = Duration::from_secs(10);

/// A step of a round. Each is one operation on a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Provision,
    Expand,
    Snapshot,
    Restore,
    DeleteSnapshot,
    Delete,
}

impl Operation {
    const ALL: [Self; 6] = [
        Self::Provision,
        Self::Expand,
        Self::Snapshot,
        Self::Restore,
        Self::DeleteSnapshot,
        Self::Delete,
    ];

    /// From what to what it is measured.
    fn name(self) -> &'static str {
        match self {
            Self::Provision => "provision: claim → Bound",
            Self::Expand => "expand: claim changed → its new capacity",
            Self::Snapshot => "snapshot: made → ready to use",
            Self::Restore => "restore: claim → Bound",
            Self::DeleteSnapshot => "delete-snapshot: deleted → content gone",
            Self::Delete => "delete: claim deleted → volume gone",
        }
    }
}

/// One of those that are compared.
struct Side {
    name: &'static str,
    /// Begins the names of its volumes.
    volumes: &'static str,
    /// Takes part only in rounds whose requests are counted.
    seldom: bool,
    class: String,
    snapshot_class: String,
    /// Who its controller is in the audit log.
    own: &'static str,
    /// Where it runs Pods, which must be gone before the next operation.
    pods_in: Option<&'static str>,
}

/// Measures everything, on the testbed's own cluster with Mooring installed.
pub(super) async fn run(target: &Target, rounds: usize, amounts: Amounts) -> Result<Figures> {
    ensure_peer()?;
    ensure_sidecars()?;
    let mut figures = None;
    mooring_harness::run(target.clone(), WHOLE_LIMIT, "bench", async |scope| {
        scope.require_mooring().await?;
        let _controller = scope.snapshot_controller()?;
        let (sidecars, peer) = (Sidecars::of(&scope), Peer::of(&scope));
        let measured = Box::pin(in_scope(&scope, &sidecars, &peer, rounds, amounts)).await;
        let removed = sidecars.remove().and(peer.remove());
        figures = Some(measured?);
        removed
    })
    .await?;
    figures.context("nothing was measured")
}

async fn in_scope(
    scope: &Scope,
    sidecars: &Sidecars<'_>,
    peer: &Peer<'_>,
    rounds: usize,
    amounts: Amounts,
) -> Result<Figures> {
    let step = Step::begin("set the classes up");
    let [ours, attached, free] = provisioners(scope).await?;
    let [by_worker, attached_by_worker] = [(&ours, "-worker"), (&attached, "-attached-worker")].map(with_worker(scope));
    let local = scope.provisioner_named("-local").example("local.yaml")?;
    for provisioner in [&ours, &attached, &free, &by_worker, &attached_by_worker, &local] {
        provisioner.apply().await?;
    }
    sidecars.install()?;
    peer.install()?;
    let world = World {
        scope: scope.clone(),
        observer: Observer::start(&scope.client, &scope.namespace).await?,
        nodes: scope.own_cluster()?.description.nodes,
    };
    step.done("");
    let sides = [
        Side {
            name: MOORING,
            volumes: "mooring",
            seldom: true,
            class: ours.class.clone(),
            snapshot_class: scope.snapshot_class("Delete")?,
            own: CONTROLLER,
            pods_in: Some(CONFIG_NAMESPACE),
        },
        Side {
            name: WORKER,
            volumes: "worker",
            seldom: false,
            class: by_worker.class.clone(),
            snapshot_class: scope.snapshot_class("Delete")?,
            own: CONTROLLER,
            pods_in: Some(CONFIG_NAMESPACE),
        },
        Side {
            name: SIDECARS,
            volumes: "sidecars",
            seldom: false,
            class: sidecars.name.clone(),
            snapshot_class: sidecars.name.clone(),
            own: ACCOUNT,
            pods_in: None,
        },
    ];
    tokio::time::sleep(IDLE).await;
    let idle = memory(&world, &[CONTROLLER])?;
    let taken = one_after_another(&world, &sides, rounds).await?;
    let mut step = Step::begin("claims of class local, and of local-path-provisioner");
    let systems = [
        System::mooring(LOCAL, &local.class, true),
        System::peer(PEER, &peer.name, &peer.name),
    ];
    claims::measure(&world, &systems, world.nodes.into(), "first", &mut step).await?;
    let few = rounds.div_ceil(COUNTED);
    let local = claims::measure(&world, &systems, few, "one", &mut step).await?;
    step.done("");
    let mut step = Step::begin("Pods with volumes that have to be attached");
    let classes = [&free, &attached, &attached_by_worker].map(|provisioner| provisioner.class.as_str());
    let attach = attachments::measure(&world, sidecars, classes, few, &mut step).await?;
    step.done("");
    let mut programs = PROGRAMS.to_vec();
    programs.extend([MOUNTER, MOUNT_WORKER]);
    let mut memory = memory(&world, &programs)?;
    memory.extend(idle);
    let ours = System::without_pods(WORKER, &by_worker.class);
    let theirs = System::without_pods(SIDECARS, &sidecars.name);
    let many = many::measure(&world, sidecars, [&ours, &theirs], amounts).await?;
    let figures = taken.figures(&world, &sides)?;
    Ok(Figures {
        local,
        attach,
        many,
        memory,
        ..figures
    })
}

/// Every operation of every side, round by round.
async fn one_after_another(world: &World, sides: &[Side], rounds: usize) -> Result<Taken> {
    let mut random = Random::new(Random::seed());
    let mut taken = Taken::default();
    let mut step = Step::begin("operations one after another");
    for round in 0..=rounds {
        step.update(&format!("round {round} of {rounds}"));
        let mut this = Taken::default();
        let counted = round % COUNTED == 0;
        if counted {
            let name = format!("bare-{round}");
            let bare = System::bare(&world.scope);
            this.bare
                .push(world.make_one(&bare, &name, round).await?.took.as_secs_f64());
            world.remove(&bare, &name).await?;
        }
        for turn in 0..sides.len() {
            let side = &sides[(round + turn) % sides.len()];
            if counted || !side.seldom {
                let name = format!("{}-{round}", side.volumes);
                one_round(world, side, &name, counted, &mut random, &mut this).await?;
            }
        }
        // The first does not count: images are unpacked, pages are read.
        if round > 0 {
            taken.extend(this);
        }
    }
    step.done("");
    Ok(taken)
}

/// Resident memory in MiB of these programs; of several processes, the largest.
fn memory(world: &World, programs: &[&str]) -> Result<BTreeMap<String, f64>> {
    let processes = snapshot(&world.scope.own_cluster()?.layout, &world.leader()?)?;
    let of = processes
        .into_iter()
        .filter(|(name, _)| programs.contains(&name.as_str()));
    Ok(of.map(|(name, taken)| (name, mib(taken.resident))).collect())
}

/// For all operations but to attach; for volumes that have to be attached; and for the same that have not.
async fn provisioners(scope: &Scope) -> Result<[Provisioner; 3]> {
    let server = scope.ssh_server(SERVER_NODE, &["data"]).await?;
    let secret = scope.ssh_secret_for_runs(&server)?;
    let source = format!("pv options client=sshfs source={}", server.source("data"));
    let key = |name: &str| format!("--seal {name}=/run/mooring/properties/{name}");
    let all = "provision, delete, expand, snapshot, delete-snapshot, restore";
    let ours = scope
        .provisioner()
        .key("volume-source", "csi")
        .key("operations", all)
        .key("workers", "0")
        .key("allow-volume-expansion", "true")
        .key("restore-script", &source)
        .on_provision(&source);
    let attached = scope
        .provisioner_named("-attached")
        .key("volume-source", "csi")
        .key("operations", "provision, delete, attach, detach")
        .key("workers", "0")
        .key("secret-name", &secret)
        .key(
            "attach-script",
            format!("pv options {} {}", key("ssh-privatekey"), key("known_hosts")),
        )
        .on_provision(&source);
    let free = scope
        .provisioner_named("-free")
        .key("volume-source", "csi")
        .on_provision(&format!("{source} secret-name=ssh secret-namespace=$PVC_NAMESPACE"));
    Ok([ours, attached, free])
}

/// Makes of a provisioner one of this name's end that has workers.
fn with_worker(scope: &Scope) -> impl Fn((&Provisioner, &str)) -> Provisioner {
    |(like, end)| {
        let same = scope.provisioner_named(end);
        let same = like
            .data
            .iter()
            .fold(same, |same, (key, value)| same.key(key, value.clone()));
        same.key("workers", "2")
    }
}

/// Samples so far.
#[derive(Default)]
struct Taken {
    bare: Vec<f64>,
    operations: Vec<(Operation, &'static str, f64, Option<Window>)>,
}

impl Taken {
    fn extend(&mut self, other: Self) {
        self.bare.extend(other.bare);
        self.operations.extend(other.operations);
    }

    fn figures(self, world: &World, sides: &[Side]) -> Result<Figures> {
        let windows: Vec<Window> = self.operations.iter().filter_map(|(.., window)| *window).collect();
        let mut counts = audit::count_each(&world.scope.own_cluster()?.layout, &windows, false)?.into_iter();
        let counts: Vec<Option<Counts>> = self
            .operations
            .iter()
            .map(|(.., window)| window.and_then(|_| counts.next()))
            .collect();
        let mut figures = Figures {
            bare: self.bare,
            ..Figures::default()
        };
        for operation in Operation::ALL {
            for side in sides {
                let of = || {
                    let all = self.operations.iter().zip(&counts);
                    all.filter(|((what, who, ..), _)| (*what, *who) == (operation, side.name))
                };
                let samples: Vec<f64> = of().map(|((.., seconds, _), _)| *seconds).collect();
                let requests = Requests {
                    phase: operation.name().to_owned(),
                    who: side.name.to_owned(),
                    volumes: samples.len(),
                    by_client: mean(of().filter_map(|(_, counts)| counts.as_ref())),
                };
                figures.operations.push((operation, side.name, samples));
                if !requests.by_client.is_empty() {
                    figures.requests.push((operation, requests, side.own));
                }
            }
        }
        Ok(figures)
    }
}

fn mean<'a>(counts: impl Iterator<Item = &'a Counts>) -> BTreeMap<String, BTreeMap<String, f64>> {
    let mut sums = BTreeMap::<String, BTreeMap<String, f64>>::new();
    let mut all = 0;
    for one in counts {
        all += 1;
        for (client, verbs) in one {
            let sums = sums.entry(client.clone()).or_default();
            for (verb, count) in verbs {
                *sums.entry(verb.clone()).or_default() += number(*count);
            }
        }
    }
    for sum in sums.values_mut().flat_map(BTreeMap::values_mut) {
        *sum /= number(all);
    }
    sums
}

/// Every operation once, on volumes whose names begin with `name`. Counts their requests if `counted`.
async fn one_round(
    world: &World,
    side: &Side,
    name: &str,
    counted: bool,
    random: &mut Random,
    taken: &mut Taken,
) -> Result<()> {
    let scope = &world.scope;
    let claims: Api<PersistentVolumeClaim> = scope.api();
    let restored = format!("{name}-restored");
    let bound = |name: &str| Subject::Claim(name.to_owned());
    for operation in Operation::ALL {
        let content = match operation {
            Operation::DeleteSnapshot => Some(content_of(scope, name).await?),
            _ => None,
        };
        tokio::time::sleep(Duration::from_millis(random.below(RHYTHM_MS))).await;
        let (from, began) = (Timestamp::now(), Instant::now());
        match operation {
            Operation::Provision => {
                world.make_claim(claim(name, &side.class, "64Mi")).await?;
                world.observer.wait(&bound(name), Mark::Bound, LIMIT).await?;
            }
            Operation::Expand => {
                let larger = json!({"spec": {"resources": {"requests": {"storage": "128Mi"}}}});
                claims
                    .patch(name, &PatchParams::default(), &Patch::Merge(&larger))
                    .await
                    .context("failed to ask for a larger volume")?;
                let grown = |seen: Option<&PersistentVolumeClaim>| {
                    seen.is_some_and(|claim| json!(claim.status)["capacity"]["storage"] == "128Mi")
                };
                until(&claims, name, "to have grown", LIMIT, grown).await?;
            }
            Operation::Snapshot => {
                scope.apply(&snapshot_of(name, name, &side.snapshot_class).to_string())?;
                let snapshots = dynamic(scope, "VolumeSnapshot");
                dynamic_until(snapshots, name, "to be ready", |seen| {
                    seen.is_some_and(|snapshot| snapshot["status"]["readyToUse"] == true)
                })
                .await?;
            }
            Operation::Restore => {
                let mut wanted = claim(&restored, &side.class, "128Mi");
                wanted["spec"]["dataSource"] =
                    json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name});
                world.make_claim(wanted).await?;
                world.observer.wait(&bound(&restored), Mark::Bound, LIMIT).await?;
            }
            Operation::DeleteSnapshot => {
                let snapshots = dynamic(scope, "VolumeSnapshot");
                let deleted = snapshots.delete(name, &DeleteParams::default()).await;
                deleted.context("failed to delete the snapshot")?;
                let contents = dynamic(scope, "VolumeSnapshotContent");
                let content = content.context("a snapshot without content")?;
                dynamic_until(contents, &content, "to be gone", |seen| seen.is_none()).await?;
            }
            Operation::Delete => remove_claim(world, name).await?,
        }
        let took = began.elapsed();
        if let Some(namespace) = side.pods_in {
            world.observer.no_pods(namespace, WORKER_PREFIX, LIMIT).await?;
        }
        if counted {
            tokio::time::sleep(CALM).await;
        }
        let window = counted.then(|| Window {
            from,
            until: Timestamp::now(),
        });
        taken
            .operations
            .push((operation, side.name, took.as_secs_f64(), window));
    }
    remove_claim(world, &restored).await?;
    if let Some(namespace) = side.pods_in {
        world.observer.no_pods(namespace, WORKER_PREFIX, LIMIT).await?;
    }
    Ok(())
}

async fn remove_claim(world: &World, name: &str) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = world.scope.api();
    let deleted = claims.delete(name, &DeleteParams::default()).await;
    deleted.with_context(|| format!("failed to delete the claim {name}"))?;
    let volume = Subject::VolumeOf(name.to_owned());
    world.observer.wait(&volume, Mark::Gone, LIMIT).await?;
    Ok(())
}

/// Objects of the snapshot API. Those that are in a namespace are in the bench's.
fn dynamic(scope: &Scope, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", kind));
    if kind == "VolumeSnapshotContent" {
        Api::all_with(scope.client.clone(), &resource)
    } else {
        Api::namespaced_with(scope.client.clone(), &scope.namespace, &resource)
    }
}

async fn dynamic_until(
    api: Api<DynamicObject>,
    name: &str,
    what: &str,
    is: impl Fn(Option<&Value>) -> bool,
) -> Result<()> {
    let wanted = |seen: Option<&DynamicObject>| is(seen.map(|object| &object.data));
    let Ok(seen) = tokio::time::timeout(LIMIT, await_condition(api, name, wanted)).await else {
        bail!("waited in vain for the snapshot or content {name} {what}");
    };
    seen.with_context(|| format!("failed to watch {name}"))?;
    Ok(())
}

async fn content_of(scope: &Scope, snapshot: &str) -> Result<String> {
    let found = dynamic(scope, "VolumeSnapshot").get(snapshot).await?;
    let name = found.data["status"]["boundVolumeSnapshotContentName"].as_str();
    Ok(name.context("the snapshot is not bound")?.to_owned())
}

fn mib(kib: u64) -> f64 {
    number(usize::try_from(kib).unwrap_or_default()) / 1024.0
}

#[cfg(test)]
mod tests {
    use super::mean;
    use crate::audit::Counts;

    #[test]
    fn what_only_some_rounds_have_counts_for_all() {
        let counts = |text: &str| serde_json::from_str::<Counts>(text).unwrap();
        let rounds = [
            counts(r#"{"ours": {"create": 2, "get": 1}}"#),
            counts(r#"{"ours": {"create": 4}, "kubelet": {"patch": 1}}"#),
        ];
        assert_eq!(
            serde_json::json!(mean(rounds.iter())),
            serde_json::json!({"ours": {"create": 3.0, "get": 0.5}, "kubelet": {"patch": 0.5}})
        );
        assert!(mean([].iter()).is_empty());
    }
}
