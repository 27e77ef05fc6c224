//! Whatever a Pod's author, an image or a PersistentVolume says, a call mounts only the volume that the call was granted:
//! generated attempts to get another one, judged by rules that are stated here once more, and more simply.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PersistentVolume;
use mooring_contract::attachment::{CONNECTION, Connection};
use mooring_contract::volume::Volume;
use mooring_mounter::core::client::Client;
use mooring_mounter::core::metrics::MounterMetrics;
use mooring_mounter::core::origin::Volumes;
use mooring_mounter::core::{Core, Places};
use mooring_mounter::node::attachments::{AttachmentApi, Attachments};
use mooring_mounter::volume::job::{Access, MountError, MountJob, PodRef, Secrets};
use mooring_mounter::volume::registry::Registry;
use mooring_mounter::volume::target::Target;
use mooring_seal::signature::{PublicKeys, SigningKey};
use mooring_seal::{Purpose, new_key, seal};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

/// The node that is asked to mount.
const NODE: &str = "a";

/// Names that a volume directory has: of two `PersistentVolumes`, and of none.
const NAMES: [&str; 3] = ["pvc-1", "pvc-2", "data"];

/// What a volume may say of itself, or a connection of the volume.
const OPTIONS: [&str; 9] = [
    "client=iscsi,source=iscsi://h/t/1",
    "client=iscsi,source=iscsi://h/t/2",
    "client=nfs,source=h:/x",
    "client=node-disk,source=serial://1",
    "client=disk,source=/dev/sda",
    "client=pool,source=",
    "client=local,source=pvc-2.img",
    "client=host,source=h:/x,fs-type=nfs",
    "source=/etc",
];

/// Those of them that a connection may say.
const OF_A_CONNECTION: [usize; 4] = [0, 1, 2, 3];

/// Those that are on storage elsewhere, so that a volume may say it without an administrator.
const ELSEWHERE: [usize; 3] = [0, 1, 2];

/// The controller's key, which is published, and one that is not.
static SIGNERS: LazyLock<[SigningKey; 2]> = LazyLock::new(|| [(); 2].map(|()| SigningKey::generate().unwrap()));

/// The keys of the two `PersistentVolumes`, and one of nothing.
static KEYS: LazyLock<[String; 3]> = LazyLock::new(|| [(); 3].map(|()| new_key().unwrap()));

/// What a PersistentVolume says of the node: numbers of [`NAMES`], [`OPTIONS`], [`SIGNERS`] and [`KEYS`].
#[derive(Debug, Clone)]
struct Told {
    signer: usize,
    volume: usize,
    uid: usize,
    /// Whether it is for [`NODE`].
    for_node: bool,
    options: usize,
    key: usize,
    /// A letter of the signed word is another one.
    is_changed: bool,
}

#[derive(Debug, Clone)]
enum Entry {
    /// The node does not have the volume.
    None,
    Told(Told),
}

#[derive(Debug, Clone)]
enum Handed {
    /// No key of a volume is in the Secret.
    Nothing,
    /// One of the [`KEYS`], and whatever the author of the Secret writes beside it.
    Key(usize),
    Junk,
}

#[derive(Debug, Clone)]
struct Attempt {
    by_csi: bool,
    name: usize,
    /// What the kubelet says of the volume.
    options: usize,
    handed: Handed,
    /// What each PersistentVolume says: its own options, and what this node is told.
    volumes: [(usize, Entry); 2],
}

fn attempts() -> impl Strategy<Value = Attempt> {
    let told = (
        0..2_usize,
        0..2_usize,
        0..2_usize,
        any::<bool>(),
        0..OPTIONS.len(),
        0..3_usize,
        0..9_u8,
    );
    let told = told.prop_map(|(signer, volume, uid, for_node, options, key, change)| Told {
        signer,
        volume,
        uid,
        for_node,
        options,
        // The controller seals with the volume's own key; somebody else with what there is.
        key: if signer == 0 { volume } else { key },
        is_changed: change == 0,
    });
    // Most of what is generated is refused, so right ones are mixed in.
    let right = (0..2_usize, 0..OPTIONS.len()).prop_map(|(volume, options)| Told {
        signer: 0,
        volume,
        uid: volume,
        for_node: true,
        options,
        key: volume,
        is_changed: false,
    });
    let entry = prop_oneof![
        1 => Just(Entry::None),
        3 => told.prop_map(Entry::Told),
        4 => right.prop_map(Entry::Told),
    ];
    let handed = prop_oneof![
        2 => Just(Handed::Nothing),
        5 => (0..3_usize).prop_map(Handed::Key),
        1 => Just(Handed::Junk),
    ];
    let volume = || (0..3_usize, entry.clone());
    (
        any::<bool>(),
        0..3_usize,
        0..OPTIONS.len(),
        handed,
        [volume(), volume()],
    )
        .prop_map(|(by_csi, name, options, handed, volumes)| Attempt {
            by_csi,
            name,
            options,
            handed,
            volumes,
        })
}

fn pairs(line: &str) -> BTreeMap<String, String> {
    let pairs = line.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn secrets_of(volume: usize) -> BTreeMap<String, String> {
    [("password".to_owned(), format!("of-{volume}"))].into()
}

impl Told {
    fn signed(&self) -> String {
        let node = if self.for_node { NODE } else { "b" };
        let purpose = Purpose {
            pv_name: NAMES[self.volume],
            node,
        };
        let connection = Connection {
            volume: NAMES[self.volume].to_owned(),
            volume_uid: format!("uid-{}", self.uid),
            node: node.to_owned(),
            serial: 1,
            options: pairs(OPTIONS[self.options]),
            sealed: seal(&KEYS[self.key], purpose, &secrets_of(self.volume)).unwrap(),
        };
        let signed = SIGNERS[self.signer].sign(&connection).unwrap();
        if !self.is_changed {
            return signed;
        }
        let at = signed.len() / 2;
        let other = if signed.as_bytes()[at] == b'A' { "B" } else { "A" };
        format!("{}{other}{}", &signed[..at], &signed[at + 1..])
    }
}

impl Attempt {
    fn persistent_volume(&self, number: usize) -> PersistentVolume {
        let (options, entry) = &self.volumes[number];
        let mut notes = json!({});
        if let Entry::Told(told) = entry {
            let to = json!({"node": NODE, "initiator": "i", "connection": told.signed()});
            notes["mooring.dev/attached-to"] = json!(to.to_string());
        }
        serde_json::from_value(json!({
            "metadata": {"name": NAMES[number], "uid": format!("uid-{number}"), "annotations": notes},
            "spec": {"csi": {"driver": "vcs.mooring.dev", "volumeHandle": "x",
                             "volumeAttributes": pairs(OPTIONS[*options])}},
        }))
        .unwrap()
    }

    fn job(&self) -> Option<MountJob> {
        let name = NAMES[self.name];
        let path = if self.by_csi {
            format!("/kubelet/pods/u/volumes/kubernetes.io~csi/{name}/mount")
        } else {
            format!("/kubelet/pods/u/volumes/mooring.dev~vcs/{name}")
        };
        let handed = match &self.handed {
            Handed::Nothing => None,
            Handed::Key(key) => Some(json!({
                "proof": KEYS[*key], "node": NODE, "options": {"client": "pool", "source": ""},
            })),
            Handed::Junk => Some(Value::from("x")),
        };
        let secrets = handed.map(|handed| (CONNECTION.to_owned(), handed.to_string().into_bytes()));
        Some(MountJob {
            volume: Volume::from_options(&pairs(OPTIONS[self.options])).ok()?,
            secrets: Secrets(secrets.into_iter().collect()),
            target: if self.by_csi {
                Target::parse_csi(Path::new("/kubelet"), &path).unwrap()
            } else {
                Target::parse(Path::new("/kubelet"), &path).unwrap()
            },
            access: Access::FileSystem,
            sole: false,
            only_read: false,
            read_only: false,
            fs_group: None,
            label: None,
            pod: PodRef::default(),
            volume_name: name.to_owned(),
            image: None,
            deadline: Instant::now() + Duration::from_secs(30),
        })
    }

    /// What may be mounted: the volume's options and the secrets that it gets. The rules in short: a Secret with a
    /// volume's key is of the PersistentVolume that has this name and this key, and its node mounts what the controller
    /// said of it; anything else mounts what it says itself, if that is on storage elsewhere.
    fn granted(&self) -> Option<(BTreeMap<String, String>, BTreeMap<String, String>)> {
        match self.handed {
            Handed::Junk => None,
            // What gives out the node is the business of admission policies, for Pods, and of an administrator's
            // PersistentVolume.
            Handed::Nothing => ELSEWHERE
                .contains(&self.options)
                .then(|| (pairs(OPTIONS[self.options]), BTreeMap::new())),
            Handed::Key(key) => {
                let own = self.name;
                let (options, entry) = self.volumes.get(own)?;
                let Entry::Told(told) = entry else { return None };
                let is_told = told.signer == 0
                    && !told.is_changed
                    && (told.volume, told.uid, told.key, key) == (own, own, own, own)
                    && told.for_node
                    && OF_A_CONNECTION.contains(&told.options);
                let mut granted = pairs(OPTIONS[*options]);
                granted.extend(pairs(OPTIONS[told.options]));
                is_told.then(|| (granted, secrets_of(own)))
            }
        }
    }
}

/// The API and the client of the node.
struct World {
    volumes: BTreeMap<String, PersistentVolume>,
    mounted: Mutex<Vec<MountJob>>,
}

#[derive(Clone)]
struct Shared(Arc<World>);

#[async_trait]
impl AttachmentApi for Shared {
    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, kube::Error> {
        Ok(self.0.volumes.get(name).cloned())
    }

    async fn keys(&self) -> Result<PublicKeys, kube::Error> {
        let published = &SIGNERS[0];
        Ok(PublicKeys::published(
            [(published.id().to_owned(), published.public())].into(),
        ))
    }

    async fn note(&self, _: &str, _: bool) -> Result<(), kube::Error> {
        Ok(())
    }

    async fn noted(&self) -> Result<BTreeSet<String>, kube::Error> {
        Ok(BTreeSet::new())
    }
}

#[async_trait]
impl Volumes for Shared {
    async fn get(&self, name: &str) -> Result<Option<PersistentVolume>, kube::Error> {
        Ok(self.0.volumes.get(name).cloned())
    }
}

#[async_trait]
impl Client for Shared {
    async fn mount(&self, job: &MountJob) -> Result<(), MountError> {
        self.0.mounted.lock().unwrap().push(job.clone());
        Ok(())
    }
}

/// What was mounted, or why nothing was.
fn mounted(attempt: &Attempt, job: MountJob) -> Result<MountJob, MountError> {
    let volumes = [0, 1].map(|number| (NAMES[number].to_owned(), attempt.persistent_volume(number)));
    let world = Shared(Arc::new(World {
        volumes: volumes.into(),
        mounted: Mutex::default(),
    }));
    let rules = ["iscsi", "nfs", "node-disk", "disk"].map(|client| format!("{client}=a/b:1").parse().unwrap());
    let places = Places {
        kubelet_root: "/kubelet".into(),
        pool: "/pool".into(),
        host_namespace: None,
    };
    let attachments = Attachments::new(Box::new(world.clone()), NODE.into(), "/kubelet".into());
    let core = Core::new(
        places,
        Registry::new(rules.into()),
        Some(Arc::new(world.clone())),
        MounterMetrics::default(),
    )
    .asking(Some(Arc::new(world.clone())))
    .attaching(Some(Arc::new(attachments)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(core.mount(job))?;
    Ok(world.0.mounted.lock().unwrap().pop().expect("a client mounted it"))
}

/// Proves: M5
#[test]
fn no_call_mounts_another_volume_than_the_one_that_it_was_granted() {
    let (granted, refused) = (Mutex::new(0), Mutex::new(0));
    let config = Config {
        cases: 10_000,
        failure_persistence: None,
        ..Config::default()
    };
    let run = TestRunner::new(config).run(&attempts(), |attempt| {
        // What the kubelet hands over can't be read as a volume, or is for the mounter's own clients: an admission policy
        // lets that through for provisioning Pods only.
        let own = matches!(attempt.handed, Handed::Nothing) && (5..8).contains(&attempt.options);
        let Some(job) = attempt.job().filter(|_| !own) else {
            return Ok(());
        };
        match (mounted(&attempt, job), attempt.granted()) {
            (Ok(job), Some((options, secrets))) => {
                let wanted = Volume::from_options(&options).unwrap();
                prop_assert_eq!(&job.volume, &wanted);
                let secrets: BTreeMap<_, _> = secrets
                    .into_iter()
                    .map(|(key, text)| (key, text.into_bytes()))
                    .collect();
                prop_assert_eq!(&job.secrets.0, &secrets);
                *granted.lock().unwrap() += 1;
            }
            (Err(error), None) => {
                let is_refusal = matches!(
                    error,
                    MountError::Forbidden(_) | MountError::BadOptions(_) | MountError::NotAttached { .. }
                );
                prop_assert!(is_refusal, "it came as far as {}", error);
                *refused.lock().unwrap() += 1;
            }
            (Ok(job), None) => prop_assert!(false, "{:?} was mounted", job.volume),
            (Err(error), Some(_)) => prop_assert!(false, "was refused: {}", error),
        }
        Ok(())
    });
    run.unwrap();
    // Else it would be no test.
    let (granted, refused) = (granted.into_inner().unwrap(), refused.into_inner().unwrap());
    assert!(granted > 500 && refused > 2_000, "{granted} granted, {refused} refused");
}
