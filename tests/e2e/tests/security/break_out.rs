//! A hundred generated attempts to get another volume than the one that is allowed: volumes written into Pods,
//! `PersistentVolumes` as an administrator's tool might write them, names of other volumes, forged Secrets and forged
//! connections. What each Pod has on its node is compared with rules that are stated here once more, and more simply.
//! `mounter/tests/break_out.rs` does the same with many more attempts, and without a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams, ResourceExt};
use mooring_contract::attachment::{AttachedTo, CONNECTION, Connection, VolumeKey, secret_name};
use mooring_contract::names::{CSI_DRIVER, CSI_VOLUMES_DIR, FLEX_DRIVER, FLEX_DRIVER_DIR, PROVISIONER, annotations};
use mooring_harness::credentials::{dry_run, refusal};
use mooring_harness::nodes::{POOL, on_own_nodes_within};
use mooring_harness::random::Random;
use mooring_harness::{Scope, skipped_without_all, wait_until};
use mooring_seal::signature::SigningKey;
use mooring_seal::{Purpose, new_key, seal};
use mooring_testbed::progress::note;
use serde_json::{Value, json};

const ATTEMPTS: u64 = 100;

/// How many of them must at least be granted and refused by a mounter, and refused by the API server: else it would be
/// no test.
const LEAST: [usize; 3] = [10, 20, 10];

const WHOLE_LIMIT: Duration = Duration::from_mins(20);

/// Longest until each attempt has come to an end: a kubelet tries a mount again after two minutes at most.
const LIMIT: Duration = Duration::from_mins(5);

/// Longest until a setting is in force.
const FORCE_LIMIT: Duration = Duration::from_mins(2);

const NODES: [(u8, &str); 2] = [(1, "node-1"), (2, "node-2")];

/// Words of an error that goes by: the mount is tried again, and is not refused.
const PASSING: [&str; 4] = ["tries again", "in progress", "did not answer", "deadline"];

/// Directories of the server. The namespace may mount the first three in its Pods.
const DIRECTORIES: [&str; 5] = ["open-1", "open-2", "open-3", "closed", "open-1/deep"];
const OPEN: usize = 3;

/// The claim whose PersistentVolume has a name that others try to use.
const PLAIN: &str = "plain";
/// The same, with a PersistentVolume that has to be attached.
const ATTACHED: &str = "attached";

/// What a volume says of itself.
#[derive(Debug, Clone)]
struct Offer {
    options: Value,
    /// What is seen where it is mounted.
    shows: String,
    may: May,
}

/// Who may say it: the author of a Pod, the image of a claim's volume, and an administrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum May {
    Nobody,
    Administrators,
    /// And administrators.
    Images,
    /// And the other two.
    All,
}

/// In which way a Pod asks for the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By a volume of its own.
    Inline { name: Name, csi: bool },
    /// By a claim.
    Claim { by_image: bool, csi: bool },
    /// By a claim whose PersistentVolume has to be attached, which somebody else than the controller says.
    Attached { csi: bool },
    /// By a volume of its own with the name of the PersistentVolume of a claim that the Pod uses as well.
    Both,
}

/// The name of a Pod's own volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Own,
    /// Of the PersistentVolume of claim [`PLAIN`], which the Pod does not use.
    Plain,
    /// Of that of claim [`ATTACHED`].
    Attached,
    /// As of one that is made for a claim.
    Provisioned,
}

#[derive(Debug, Clone)]
struct Attempt {
    number: u64,
    way: Way,
    offer: Offer,
    /// The Secret has a key of a connection besides what the server needs.
    is_forged: bool,
}

/// What the world of the attempts is.
struct World<'a> {
    scope: &'a Scope,
    /// The ssh server's address.
    address: String,
}

impl World<'_> {
    fn source(&self, directory: &str) -> String {
        format!("mooring@{}:/srv/volumes/{directory}", self.address)
    }

    /// What there is to be had, for the attempt of this number.
    fn offers(&self, number: u64) -> Vec<Offer> {
        let offer = |options: Value, shows: &str, may: May| Offer {
            options,
            shows: shows.to_owned(),
            may,
        };
        let open = self.source("open-1");
        let ssh = |source: &str, more: &[(&str, &str)]| {
            let mut options = json!({"client": "sshfs", "source": source});
            for (key, value) in more {
                options[*key] = json!(value);
            }
            options
        };
        let image = concat!("mooring.dev/client-sshfs:", env!("CARGO_PKG_VERSION"));
        let mut offers: Vec<_> = DIRECTORIES
            .iter()
            .enumerate()
            .map(|(index, directory)| {
                let may = if index < OPEN { May::All } else { May::Images };
                offer(ssh(&self.source(directory), &[]), directory, may)
            })
            .collect();
        offers.extend([
            offer(ssh(&open, &[("mount-options", "noatime,nosuid")]), "open-1", May::All),
            offer(ssh(&open, &[("mount-options", "idmap=none")]), "open-1", May::Images),
            offer(ssh(&open, &[("mount-options", "suid")]), "open-1", May::Images),
            offer(ssh(&open, &[("port", "22")]), "open-1", May::Images),
            offer(ssh(&open, &[("client-image", image)]), "open-1", May::Images),
            offer(ssh(&format!("{open}/../closed"), &[]), "closed", May::Administrators),
            offer(json!({"client": "pool"}), "pool", May::Administrators),
            offer(
                json!({"client": "local", "source": self.disk(number)}),
                "local",
                May::Images,
            ),
            // A path of the node.
            offer(
                json!({"client": self.scope.namespace, "fs-type": "tmpfs", "source": "/scratch",
                       "mount-options": "size=1m"}),
                "tmpfs",
                May::Administrators,
            ),
            offer(ssh(&open, &[("fs-type", "overlay")]), "", May::Nobody),
            offer(ssh(&open, &[("server", "192.0.2.1")]), "", May::Nobody),
            offer(ssh(&open, &[("mount-options", "bind")]), "", May::Nobody),
            offer(ssh("[-oProxyCommand=sh]:/x", &[]), "", May::Nobody),
        ]);
        offers
    }

    /// The file of a local volume, which is on both nodes.
    fn disk(&self, number: u64) -> String {
        format!("{}-disk-{number}", self.scope.namespace)
    }

    /// The same for the same random numbers.
    fn attempt(&self, number: u64, random: &mut Random) -> Attempt {
        let csi = random.one_in(2);
        let way = match random.below(20) {
            0..=8 => Way::Inline {
                name: match random.below(6) {
                    0 => Name::Plain,
                    1 => Name::Attached,
                    2 => Name::Provisioned,
                    _ => Name::Own,
                },
                csi,
            },
            9..=16 => Way::Claim {
                by_image: random.one_in(2),
                csi,
            },
            17..=18 => Way::Attached { csi },
            _ => Way::Both,
        };
        let mut offers = self.offers(number);
        // Else most would be refused at once.
        if random.one_in(2) {
            offers.retain(|offer| way.author_may(offer));
        }
        let count = offers.len() as u64;
        let at = usize::try_from(random.below(count)).unwrap_or_default();
        let mut offer = offers.swap_remove(at);
        // Only the namespace's annotation says which sources there are.
        if matches!(way, Way::Inline { .. }) && random.one_in(4) {
            self.change_source(&mut offer, random);
        }
        Attempt {
            number,
            way,
            offer,
            is_forged: random.one_in(6),
        }
    }

    /// Puts a letter into the source.
    fn change_source(&self, offer: &mut Offer, random: &mut Random) {
        let mut source = offer.options["source"].as_str().unwrap_or_default().to_owned();
        let at = usize::try_from(random.below(source.len() as u64 + 1)).unwrap_or_default();
        // One that can be seen, or a blank.
        let letter = u8::try_from(32 + random.below(95)).unwrap_or(b'x');
        source.insert(at, letter.into());
        if !(0..OPEN).any(|open| self.source(DIRECTORIES[open]) == source) {
            offer.may = May::Nobody;
        }
        offer.options["source"] = json!(source);
    }

    fn volume_name(&self, name: Name) -> String {
        match name {
            Name::Own => "data".to_owned(),
            Name::Plain => self.scope.volume_name(PLAIN),
            Name::Attached => self.scope.volume_name(ATTACHED),
            Name::Provisioned => "pvc-5ec0d001-0000-4000-8000-000000000001".to_owned(),
        }
    }
}

impl Way {
    /// Whether the author of such a volume may say what it says.
    fn author_may(self, offer: &Offer) -> bool {
        let least = match self {
            Self::Inline { .. } | Self::Both => May::All,
            Self::Claim { by_image: true, .. } => May::Images,
            Self::Claim { .. } | Self::Attached { .. } => May::Administrators,
        };
        offer.may >= least
    }
}

impl Attempt {
    fn pod_name(&self) -> String {
        format!("try-{}", self.number)
    }

    fn claim(&self) -> String {
        format!("claim-{}", self.number)
    }

    /// The rules in short. A Pod's own volume is what a tenant may say, under a name that is not a PersistentVolume's
    /// that the Pod uses, that has to be attached or that is made for a claim. A claim's volume is what the
    /// PersistentVolume's author may say. Nobody but the controller says how a node reaches what has to be attached, and
    /// nothing else has a key of a connection.
    fn is_allowed(&self) -> bool {
        let is_free = match self.way {
            // With CSI, a mounter does not see in every Pod whether it uses the claim as well.
            Way::Inline { name, csi } => name == Name::Own || name == Name::Plain && !csi,
            Way::Claim { .. } => true,
            Way::Attached { .. } | Way::Both => false,
        };
        is_free && !self.is_forged && self.way.author_may(&self.offer)
    }

    fn secret(&self) -> &'static str {
        if self.is_forged { "forged" } else { "ssh" }
    }

    /// Makes the PersistentVolume and the claim, if the Pod is to use one.
    async fn prepare(&self, scope: &Scope, forger: &Forger) -> Result<()> {
        let (name, mut options) = (self.claim(), self.offer.options.clone());
        let (csi, by_image) = match self.way {
            Way::Claim { by_image, csi } => (csi, by_image),
            Way::Attached { csi } => (csi, false),
            Way::Inline { .. } | Way::Both => return Ok(()),
        };
        options["secret"] = json!(self.secret());
        let pv = scope.volume_name(&name);
        if matches!(self.way, Way::Attached { .. }) {
            options["secret"] = json!(secret_name(&pv));
            scope.mount_secret(&secret_name(&pv), &forger.secret(scope))?;
        }
        if csi {
            scope.csi_volume(&name, &options, &Value::Null)?;
        } else {
            scope.volume(&name, &options)?;
        }
        let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
        let noted = match self.way {
            Way::Attached { .. } => {
                let uid = volumes.get(&pv).await?.uid().context("no uid")?;
                let to = forger.says(&pv, &uid, self.node())?;
                json!({annotations::ATTACHED_TO: to})
            }
            _ if by_image => json!({annotations::PROVISIONED_BY: PROVISIONER}),
            _ => return Ok(()),
        };
        let note = Patch::Merge(json!({"metadata": {"annotations": noted}}));
        volumes.patch(&pv, &PatchParams::default(), &note).await?;
        Ok(())
    }

    fn node(&self) -> &'static str {
        if self.number.is_multiple_of(2) {
            NODES[0].1
        } else {
            NODES[1].1
        }
    }

    /// The Pod's volume as its author writes it, under this name.
    fn inline(&self, name: &str, csi: bool) -> Value {
        let (options, secret) = (&self.offer.options, json!({"name": self.secret()}));
        if csi {
            json!({"name": name, "csi": {
                "driver": CSI_DRIVER, "volumeAttributes": options, "nodePublishSecretRef": secret}})
        } else {
            json!({"name": name, "flexVolume": {"driver": FLEX_DRIVER, "options": options, "secretRef": secret}})
        }
    }

    fn pod(&self, world: &World<'_>) -> Result<Pod> {
        let by_claim = |claim: &str| json!({"name": "claimed", "persistentVolumeClaim": {"claimName": claim}});
        let volumes = match self.way {
            Way::Inline { name, csi } => vec![self.inline(&world.volume_name(name), csi)],
            Way::Claim { .. } | Way::Attached { .. } => vec![by_claim(&self.claim())],
            Way::Both => vec![self.inline(&world.volume_name(Name::Plain), false), by_claim(PLAIN)],
        };
        let mount = |(at, volume): (usize, &Value)| json!({"name": volume["name"], "mountPath": format!("/data-{at}")});
        let mounts: Vec<_> = volumes.iter().enumerate().map(mount).collect();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.pod_name()},
            "spec": {
                "nodeName": self.node(), "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
                "containers": [{
                    "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"], "volumeMounts": mounts,
                }],
                "volumes": volumes,
            },
        });
        serde_json::from_value(pod).context("failed to write a Pod")
    }
}

/// Somebody who is not the controller, and says what the controller would.
struct Forger {
    signer: SigningKey,
    key: String,
    /// What the ssh server needs.
    login: Value,
}

impl Forger {
    fn new(login: Value) -> Result<Self> {
        Ok(Self {
            signer: SigningKey::generate()?,
            key: new_key()?,
            login,
        })
    }

    /// A Secret with a key of theirs.
    fn secret(&self, scope: &Scope) -> Value {
        let key = VolumeKey { key: self.key.clone() };
        let mut key = json!(key);
        // As an earlier version had it.
        key["options"] = json!({"client": "pool", "source": ""});
        key["node"] = json!(scope.namespace);
        let mut secret = self.login.clone();
        secret[CONNECTION] = json!(key.to_string());
        secret
    }

    /// That a node reaches a volume by its own pool.
    fn says(&self, volume: &str, uid: &str, node: &str) -> Result<String> {
        let purpose = Purpose { pv_name: volume, node };
        let connection = Connection {
            volume: volume.to_owned(),
            volume_uid: uid.to_owned(),
            node: node.to_owned(),
            serial: 1,
            options: [("client", "pool"), ("source", "")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            sealed: seal(&self.key, purpose, &BTreeMap::new())?,
        };
        let to = AttachedTo {
            node: node.to_owned(),
            initiator: "i".to_owned(),
            provider_id: String::new(),
            connection: self.signer.sign(&connection)?,
        };
        Ok(serde_json::to_string(&to)?)
    }
}

/// The server, the files and the settings.
async fn prepared(scope: &Scope) -> Result<(World<'_>, Forger)> {
    let server = scope.ssh_server("node-1", &DIRECTORIES).await?;
    for directory in DIRECTORIES {
        let tell = format!("echo {directory} >/srv/volumes/{directory}/which");
        scope.exec("ssh", ["sh", "-c", &tell])?;
    }
    let world = World {
        scope,
        address: server.address.clone(),
    };
    let forger = Forger::new(server.secret())?;
    scope.mount_secret("forged", &forger.secret(scope))?;
    for (node, _) in NODES {
        scope.on_node(
            node,
            &format!(
                "mkdir -p {POOL} && touch {POOL}/{ours}-canary
                 for number in $(seq 0 {ATTEMPTS}); do truncate -s 64M {POOL}/{ours}-disk-$number; done",
                ours = scope.namespace
            ),
        )?;
    }

    let closed = json!({"client": "sshfs", "source": server.source("closed"), "secret": "ssh"});
    scope.volume(PLAIN, &closed)?;
    let mut attached = closed.clone();
    attached["secret"] = json!(secret_name(&scope.volume_name(ATTACHED)));
    scope.volume(ATTACHED, &attached)?;

    scope.mounter_config(&scope.namespace, "self")?;
    for (_, node) in NODES {
        wait_until("the mounter to have read it", FORCE_LIMIT, async || {
            let status = scope.mounter_status(node).await?;
            Ok((status["clients"][&scope.namespace] == "self").then_some(()))
        })
        .await?;
    }
    let sources: Vec<_> = DIRECTORIES[..OPEN].iter().map(|name| world.source(name)).collect();
    for (key, value) in [
        (
            annotations::INLINE_CLIENTS,
            format!("sshfs,pool,local,host,{}", scope.namespace),
        ),
        (annotations::INLINE_SOURCES, sources.join(",")),
    ] {
        scope.kubectl(["annotate", "namespace", &scope.namespace, &format!("{key}={value}")])?;
    }
    let pods: Api<Pod> = scope.api();
    let first = world.offers(0).swap_remove(0);
    let allowed = Attempt {
        number: 0,
        way: Way::Inline {
            name: Name::Own,
            csi: false,
        },
        offer: first,
        is_forged: false,
    };
    // A policy sees a namespace a moment after it changed.
    wait_until("sshfs to be allowed", FORCE_LIMIT, async || {
        Ok(Some(pods.create(&dry_run(), &allowed.pod(&world)?).await?))
    })
    .await?;
    Ok((world, forger))
}

/// Names of the Pods that run, and of those whose mount was refused for good.
async fn ended(scope: &Scope) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let (pods, events): (Api<Pod>, Api<Event>) = (scope.api(), scope.api());
    let is_running = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running")
    };
    let all = pods.list(&ListParams::default()).await?.items;
    let running = all.iter().filter(|pod| is_running(pod)).map(ResourceExt::name_any);
    let is_refusal = |event: &Event| {
        let said = event.message.as_deref().unwrap_or_default();
        said.contains("MountVolume.SetUp failed") && !PASSING.iter().any(|words| said.contains(words))
    };
    let told = events.list(&ListParams::default()).await?.items;
    let refused = told.into_iter().filter(is_refusal);
    Ok((
        running.collect(),
        refused.filter_map(|event| event.involved_object.name).collect(),
    ))
}

/// What is mounted on the nodes for the volumes of Mooring's of these Pods, by the Pod's uid: what can be seen there.
fn mounted(scope: &Scope, pods: &BTreeMap<String, &Attempt>) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let uids: Vec<_> = pods.keys().map(String::as_str).collect();
    let script = format!(
        "awk '$5 ~ \"/pods/({uids})/volumes/({FLEX_DRIVER_DIR}|{CSI_VOLUMES_DIR})/\" {{ print $5 }}' \
             /proc/self/mountinfo | while read -r point; do
             if [ -f \"$point/which\" ]; then shown=$(cat \"$point/which\")
             elif [ -e \"$point/{ours}-canary\" ]; then shown=pool
             elif [ -d \"$point/lost+found\" ]; then shown=local
             else shown=$(stat -f -c %T \"$point\")
             fi
             echo \"$point $shown\"
         done",
        uids = uids.join("|"),
        ours = scope.namespace
    );
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for (node, _) in NODES {
        for line in scope.on_node(node, &script)?.lines() {
            let (point, shown) = line.split_once(' ').with_context(|| format!("no mount: {line}"))?;
            let uid = point.split("/pods/").nth(1).and_then(|rest| rest.split('/').next());
            let uid = uid.with_context(|| format!("no Pod: {line}"))?;
            found.entry(uid.to_owned()).or_default().insert(shown.to_owned());
        }
    }
    Ok(found)
}

/// Creates the Pods; returns those that were let in by their uids, and how many the API server refused.
async fn create<'a>(world: &World<'_>, attempts: &'a [Attempt]) -> Result<(BTreeMap<String, &'a Attempt>, usize)> {
    let pods: Api<Pod> = world.scope.api();
    let (mut made, mut refused) = (BTreeMap::new(), 0);
    for attempt in attempts {
        match pods.create(&PostParams::default(), &attempt.pod(world)?).await {
            Ok(pod) => {
                made.insert(pod.uid().context("no uid")?, attempt);
            }
            Err(error) => {
                let said = refusal::<Pod>(Err(error));
                ensure!(!attempt.is_allowed(), "{attempt:?} was refused: {said}");
                refused += 1;
            }
        }
    }
    Ok((made, refused))
}

/// Proves: M5
#[test]
fn a_hundred_attempts_get_what_the_rules_allow_and_nothing_else() {
    if skipped_without_all() {
        return;
    }
    on_own_nodes_within(WHOLE_LIMIT, "sec-break-out", async |scope| {
        let (world, forger) = prepared(&scope).await?;
        let seed = Random::seed();
        note(format!("seed {seed}"));
        let mut random = Random::new(seed);
        let attempts: Vec<_> = (1..=ATTEMPTS)
            .map(|number| world.attempt(number, &mut random))
            .collect();
        for attempt in &attempts {
            attempt.prepare(&scope, &forger).await?;
        }
        let (made, by_api) = create(&world, &attempts).await?;
        let wanted = |is_allowed: bool| {
            let some = made.values().filter(move |attempt| attempt.is_allowed() == is_allowed);
            some.map(|attempt| attempt.pod_name()).collect::<BTreeSet<_>>()
        };
        let (allowed, forbidden) = (wanted(true), wanted(false));
        let counts = [allowed.len(), forbidden.len(), by_api];
        note(format!(
            "{counts:?}: allowed, to be refused by a mounter, refused by the API server"
        ));
        ensure!(
            counts.iter().zip(LEAST).all(|(count, least)| *count >= least),
            "{counts:?} attempts are no test"
        );

        wait_until("each attempt to come to its end", LIMIT, async || {
            let (running, refused) = ended(&scope).await?;
            let waiting: Vec<_> = allowed
                .difference(&running)
                .chain(forbidden.difference(&refused))
                .collect();
            ensure!(waiting.is_empty(), "{} have not: {waiting:?}", waiting.len());
            Ok(Some(()))
        })
        .await?;

        let (running, _) = ended(&scope).await?;
        let mounted = mounted(&scope, &made)?;
        let mut wrong = Vec::new();
        for (uid, attempt) in &made {
            let shown = mounted.get(uid).cloned().unwrap_or_default();
            let is_right = if attempt.is_allowed() {
                shown == BTreeSet::from([attempt.offer.shows.clone()])
            } else {
                shown.is_empty() && !running.contains(&attempt.pod_name())
            };
            if !is_right {
                wrong.push(format!("{shown:?}: {attempt:?}"));
            }
        }
        ensure!(wrong.is_empty(), "mounted against the rules:\n{}", wrong.join("\n"));
        Ok(())
    });
}
