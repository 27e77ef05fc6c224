//! Whatever a Pod's author, an image or a PersistentVolume says, a call mounts only the volume that the call was granted:
//! generated attempts to get another one, judged by rules that are stated here once more, and more simply.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use mooring_contract::attachment::{CONNECTION, Connection};
use mooring_contract::volume::Volume;
use mooring_mounter::agent::protocol::MountCall;
use mooring_mounter::grant::granter::{ApiError, GrantApi, Granter, PodSeen};
use mooring_mounter::grant::request::{MountRequest, Told as ByKubelet};
use mooring_mounter::grant::{Grant, Granted};
use mooring_mounter::node::attachments::{AttachmentApi, Attachments};
use mooring_mounter::volume::job::{Access, MountError, PodRef, Secrets};
use mooring_mounter::volume::target::Target;
use mooring_seal::signature::{PublicKeys, SigningKey};
use mooring_seal::{Purpose, new_key, seal};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

/// The node that is asked to mount.
const NODE: &str = "a";

/// Names that a volume directory has: of two `PersistentVolumes`, the second of which has that of a claim's, and of none,
/// of which the last may be a claim's next.
const NAMES: [&str; 4] = [
    "pvc-1",
    "pvc-1b4e28ba-2fa1-11d2-883f-0016d3cca427",
    "data",
    "pvc-1b4e28ba-2fa1-11d2-883f-0016d3cca428",
];

fn is_of_a_claim(name: usize) -> bool {
    name % 2 == 1
}

/// Who says something about a volume.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    /// The author of a Pod.
    Tenant,
    /// The image of a claim's volume.
    Image,
    /// The controller, in the Pod of a run.
    Run,
    Administrator,
    /// An image, in a connection.
    Attach,
}

use By::{Administrator, Attach, Image, Run, Tenant};

const ALL: &[By] = &[Tenant, Image, Run, Administrator, Attach];

/// A client as options of a volume name it, the options that go with it, and who may name it so.
type Named = (&'static str, &'static [(&'static str, &'static str)], &'static [By]);

/// The last names none.
const CLIENTS: [Named; 9] = [
    ("iscsi", &[], ALL),
    // In another node's name.
    (
        "iscsi",
        &[("initiator", "iqn.x:another-node")],
        &[Image, Run, Administrator, Attach],
    ),
    ("nfs", &[], ALL),
    ("node-disk", &[], ALL),
    // A vendor's own.
    ("disk", &[], ALL),
    ("pool", &[], &[Run, Administrator]),
    ("local", &[], &[Image, Administrator]),
    ("host", &[("fs-type", "nfs")], &[Administrator]),
    ("", &[], &[]),
];

/// The client without a record, which takes any source.
const VENDOR: &str = "disk";

/// Where a source leads.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Leads {
    Elsewhere,
    /// To the node, or out of the directory that the source begins with.
    Astray,
}

use Leads::{Astray, Elsewhere};

/// Sources, and the clients beside [`VENDOR`] that they fit. To NFS, what stands before `:/` is a server's name.
const SOURCES: [(&str, &[&str], Leads); 14] = [
    ("iscsi://h/t/1", &["iscsi", "nfs", "host"], Elsewhere),
    ("iscsi://h,[fe80::1]:3261/t/2", &["iscsi", "nfs", "host"], Elsewhere),
    ("iscsi://h/../1", &["iscsi", "nfs", "host"], Astray),
    ("iscsi://h/t/x", &["nfs", "host"], Elsewhere),
    ("h:/x", &["nfs", "host"], Elsewhere),
    ("[fe80::1]:/x", &["nfs", "host"], Elsewhere),
    ("h:/x/../y", &["nfs", "host"], Astray),
    ("[-oX=y]:/x", &[], Elsewhere),
    ("serial://1", &["node-disk", "nfs", "host"], Astray),
    ("/dev/sda", &[], Astray),
    ("//dev/loop1", &[], Astray),
    ("UUID=1-2", &["local"], Astray),
    ("pvc-2.img", &["local"], Elsewhere),
    ("", &["pool"], Elsewhere),
];

/// Mount options, and who may ask for them. What an image asks for is what the volume's class asked for: the controller
/// saw to that.
const MOUNT_OPTIONS: [(&str, &[By]); 9] = [
    ("ro", ALL),
    ("noatime", ALL),
    ("vers=4.1", &[Image, Run, Administrator, Attach]),
    ("suid", &[Image, Administrator]),
    ("log=/x", &[Image, Administrator]),
    ("credentials=x", &[Image, Administrator]),
    ("bind", &[]),
    ("source=/dev/sda", &[]),
    ("a\\", &[]),
];

/// What a volume says of itself, or a connection of the volume: numbers of [`CLIENTS`], [`SOURCES`] and
/// [`MOUNT_OPTIONS`].
#[derive(Debug, Clone, PartialEq)]
struct Said {
    client: usize,
    source: usize,
    mount_options: Vec<usize>,
}

impl Said {
    fn client(&self) -> &'static str {
        CLIENTS[self.client].0
    }

    fn options(&self) -> BTreeMap<String, String> {
        let (client, more, _) = CLIENTS[self.client];
        let mount_options: Vec<_> = self.mount_options.iter().map(|at| MOUNT_OPTIONS[*at].0).collect();
        let mount_options = mount_options.join(",");
        let mut pairs = vec![("source", SOURCES[self.source].0)];
        pairs.extend(more);
        pairs.extend(
            [("client", client), ("mount-options", &mount_options)]
                .iter()
                .filter(|(_, value)| !value.is_empty()),
        );
        pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    fn fits(&self, client: &str) -> bool {
        client == VENDOR || SOURCES[self.source].1.contains(&client)
    }

    /// Whether they may say so. Of an answer of `attach`, `asked` are the mount options of the PersistentVolume itself.
    fn may_be_said(&self, by: By, asked: &[usize]) -> bool {
        let is_disk = by == Attach && self.client() == "node-disk";
        let leads_well = SOURCES[self.source].2 == Elsewhere || by == Administrator || is_disk;
        let may_ask = |at: &usize| MOUNT_OPTIONS[*at].1.contains(&by) || asked.contains(at);
        CLIENTS[self.client].2.contains(&by)
            && self.fits(self.client())
            && leads_well
            && self.mount_options.iter().all(may_ask)
    }
}

fn said() -> impl Strategy<Value = Said> + Clone {
    let all: Vec<_> = (0..MOUNT_OPTIONS.len()).collect();
    let mount_options = prop_oneof![3 => Just(Vec::new()), 1 => subsequence(all, 1..3)];
    (
        0..CLIENTS.len(),
        0..SOURCES.len(),
        any::<Index>(),
        0..5_u8,
        mount_options,
    )
        .prop_map(|(client, source, index, chance, mount_options)| {
            // Most of what comes together by chance is refused.
            let fitting: Vec<_> = (0..CLIENTS.len())
                .filter(|at| SOURCES[source].1.contains(&CLIENTS[*at].0))
                .collect();
            let client = if chance == 0 || fitting.is_empty() {
                client
            } else {
                *index.get(&fitting)
            };
            Said {
                client,
                source,
                mount_options,
            }
        })
}

/// The controller's key, which is published, and one that is not.
static SIGNERS: LazyLock<[SigningKey; 2]> = LazyLock::new(|| [(); 2].map(|()| SigningKey::generate().unwrap()));

/// The keys of the two `PersistentVolumes`, and one of nothing.
static KEYS: LazyLock<[String; 3]> = LazyLock::new(|| [(); 3].map(|()| new_key().unwrap()));

/// What a PersistentVolume says of the node: numbers of [`NAMES`], [`SIGNERS`] and [`KEYS`].
#[derive(Debug, Clone)]
struct Told {
    signer: usize,
    volume: usize,
    uid: usize,
    /// Whether it is for [`NODE`].
    for_node: bool,
    /// What the storage answered, if anything.
    options: Option<Said>,
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
    /// The Secret of the PersistentVolume of this name.
    Own,
}

/// What the spec of the Pod has under the name of the volume.
#[derive(Debug, Clone, PartialEq)]
enum Written {
    /// A claim of the PersistentVolume's name.
    Claim,
    /// An inline volume.
    Inline(Said),
    /// Both.
    Both(Said),
    /// An inline volume, in a Pod that has the label of a run's, in Mooring's own namespace or a tenant's.
    OfARun { options: Said, honoured: bool },
    /// Something else.
    Nothing,
}

/// What is wrong with an attempt beside what is said in it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Flaw {
    None,
    /// The `PersistentVolumes` are another driver's.
    Driver,
    /// They are bound in another namespace than the Pod's.
    Namespace,
    /// By CSI, the kubelet names another handle.
    Handle,
    /// Another Pod has the name by now.
    Pod,
    /// By CSI, the kubelet does not say whether the volume is the Pod's own.
    Lifecycle,
}

/// How a Pod is to have the volume: as a device, alone, for no writer, for a writer elsewhere.
type Access4 = (bool, bool, bool, bool);

#[derive(Debug, Clone)]
struct Attempt {
    by_csi: bool,
    flaw: Flaw,
    access: Access4,
    name: usize,
    /// What the kubelet says of the volume, which its author may have forged.
    options: Said,
    written: Written,
    handed: Handed,
    /// What each PersistentVolume says: its own options, whether an image made it, whether it has to be attached, and
    /// what this node is told.
    volumes: [(Said, bool, bool, Entry); 2],
}

fn attempts() -> impl Strategy<Value = Attempt> {
    let told = (
        0..2_usize,
        0..2_usize,
        0..2_usize,
        any::<bool>(),
        of(said()),
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
    let right = |volume: usize| {
        of(said()).prop_map(move |options| Told {
            signer: 0,
            volume,
            uid: volume,
            for_node: true,
            options,
            key: volume,
            is_changed: false,
        })
    };
    let entry = move |volume: usize| {
        prop_oneof![
            1 => Just(Entry::None),
            3 => told.clone().prop_map(Entry::Told),
            4 => right(volume).prop_map(Entry::Told),
        ]
    };
    let handed = prop_oneof![
        2 => Just(Handed::Nothing),
        3 => (0..3_usize).prop_map(Handed::Key),
        1 => Just(Handed::Junk),
        5 => Just(Handed::Own),
    ];
    let volume = |number: usize| (said(), any::<bool>(), any::<bool>(), entry(number));
    let written = prop_oneof![
        4 => Just(Written::Claim),
        2 => said().prop_map(Written::Inline),
        1 => said().prop_map(Written::Both),
        1 => (said(), any::<bool>()).prop_map(|(options, honoured)| Written::OfARun { options, honoured }),
        1 => Just(Written::Nothing),
    ];
    let flaw = prop_oneof![
        20 => Just(Flaw::None),
        1 => Just(Flaw::Driver),
        1 => Just(Flaw::Namespace),
        1 => Just(Flaw::Handle),
        1 => Just(Flaw::Pod),
        1 => Just(Flaw::Lifecycle),
    ];
    (
        (any::<bool>(), flaw, any::<Access4>()),
        prop_oneof![4 => 0..2_usize, 1 => 2..NAMES.len()],
        said(),
        written,
        handed,
        (volume(0), volume(1)),
    )
        .prop_map(
            |((by_csi, flaw, access), name, options, written, handed, (first, second))| Attempt {
                by_csi,
                flaw,
                access,
                name,
                options,
                written,
                handed,
                volumes: [first, second],
            },
        )
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
            options: self.options.as_ref().map(Said::options).unwrap_or_default(),
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
        let (options, by_image, to_attach, entry) = &self.volumes[number];
        let mut notes = json!({});
        if *by_image {
            notes["pv.kubernetes.io/provisioned-by"] = json!("mooring.dev/flex-provisioner");
        }
        if let Entry::Told(told) = entry {
            let to = json!({"node": NODE, "initiator": "i", "connection": told.signed()});
            notes["mooring.dev/attached-to"] = json!(to.to_string());
        }
        let name = NAMES[number];
        let secret = json!({"name": format!("{}-{name}", if *to_attach { "attachment" } else { "key" })});
        let options = options.options();
        let [csi, flex] = match self.flaw {
            Flaw::Driver => ["csi.example.com", "example.com/vcs"],
            _ => ["vcs.mooring.dev", "mooring.dev/vcs"],
        };
        let source = if self.by_csi {
            json!({"csi": {"driver": csi, "volumeHandle": name, "volumeAttributes": options,
                           "nodePublishSecretRef": secret}})
        } else {
            json!({"flexVolume": {"driver": flex, "options": options, "secretRef": secret}})
        };
        let namespace = if self.flaw == Flaw::Namespace { "other" } else { "shop" };
        let mut spec = json!({"claimRef": {"namespace": namespace, "name": name}});
        spec.as_object_mut()
            .unwrap()
            .extend(source.as_object().unwrap().clone());
        let metadata = json!({"name": name, "uid": format!("uid-{number}"), "annotations": notes});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    fn namespace(&self) -> &'static str {
        match self.written {
            Written::OfARun { honoured: true, .. } => "mooring",
            _ => "shop",
        }
    }

    /// The inline volume that the Pod has.
    fn inline(&self) -> Option<&Said> {
        match &self.written {
            Written::Inline(options) | Written::Both(options) | Written::OfARun { options, .. } => Some(options),
            Written::Claim | Written::Nothing => None,
        }
    }

    fn pod(&self) -> Pod {
        let name = NAMES[self.name];
        let inline = self.inline().map(
            |options| json!({"name": name, "flexVolume": {"driver": "mooring.dev/vcs", "options": options.options()}}),
        );
        let has_claim = matches!(self.written, Written::Claim | Written::Both(_));
        let claim = has_claim.then(|| json!({"name": "x", "persistentVolumeClaim": {"claimName": name}}));
        let mut volumes: Vec<_> = inline.into_iter().chain(claim).collect();
        if volumes.is_empty() {
            volumes.push(json!({"name": name, "emptyDir": {}}));
        }
        let mut labels = json!({"app": "web"});
        if matches!(self.written, Written::OfARun { .. }) {
            labels["mooring.dev/component"] = json!("provisioning");
        }
        let uid = if self.flaw == Flaw::Pod { "w" } else { "u" };
        let metadata = json!({"name": "web", "namespace": self.namespace(), "uid": uid, "labels": labels});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": [], "volumes": volumes}})).unwrap()
    }

    fn handed(&self) -> Handed {
        match (&self.handed, self.volumes.get(self.name)) {
            (Handed::Own, Some((_, _, true, _))) => Handed::Key(self.name),
            (Handed::Own, _) => Handed::Nothing,
            (handed, _) => handed.clone(),
        }
    }

    /// What the kubelet asks for; none if it can't be read as a volume.
    fn request(&self) -> Option<MountRequest> {
        let name = NAMES[self.name];
        let (is_device, sole, only_read, read_only) = self.access;
        let is_device = is_device && self.by_csi && self.inline().is_none();
        let path = if is_device {
            format!("/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/{name}/u")
        } else if self.by_csi {
            format!("/kubelet/pods/u/volumes/kubernetes.io~csi/{name}/mount")
        } else {
            format!("/kubelet/pods/u/volumes/mooring.dev~vcs/{name}")
        };
        let handed = match self.handed() {
            Handed::Nothing | Handed::Own => None,
            Handed::Key(key) => Some(json!({
                "proof": KEYS[key], "node": NODE, "options": {"client": "pool", "source": ""},
            })),
            Handed::Junk => Some(Value::from("x")),
        };
        let secrets = handed.map(|handed| (CONNECTION.to_owned(), handed.to_string().into_bytes()));
        // By CSI the kubelet says which kind it is, and passes on what an inline volume has.
        let (said, told) = match (self.by_csi, self.inline()) {
            (false, _) => (&self.options, ByKubelet::Nothing),
            (true, Some(options)) => (options, csi(self.lifecycle(true), "csi-0")),
            (true, None) if self.flaw == Flaw::Handle => (&self.options, csi(Some(false), "another")),
            (true, None) => (&self.options, csi(self.lifecycle(false), name)),
        };
        Some(MountRequest {
            told,
            volume: Volume::from_options(&said.options()).ok()?,
            secrets: Secrets(secrets.into_iter().collect()),
            target: Target::parse_any(Path::new("/kubelet"), &path).unwrap(),
            access: if is_device { Access::Device } else { Access::FileSystem },
            sole,
            only_read,
            read_only,
            fs_group: None,
            label: None,
            pod: PodRef {
                name: "web".to_owned(),
                namespace: self.namespace().to_owned(),
                uid: "u".to_owned(),
            },
        })
    }

    /// Whether the volume is the Pod's own, as the kubelet says by CSI.
    fn lifecycle(&self, ephemeral: bool) -> Option<bool> {
        (self.flaw != Flaw::Lifecycle).then_some(ephemeral)
    }

    /// What may be mounted: the volume's options and the secrets that it gets. The rules in short: a volume of the Pod's
    /// own says what a tenant may say, or a run in a namespace of ConfigMaps; a claim's volume says what the
    /// PersistentVolume's author may say; and one that has to be attached is as the controller told this node, for a
    /// Secret with the key of this very PersistentVolume.
    fn granted(&self) -> Option<(BTreeMap<String, String>, BTreeMap<String, String>)> {
        let of_name = self.volumes.get(self.name);
        let has_key = !matches!(self.handed(), Handed::Nothing);
        let is_to_attach = of_name.is_some_and(|(_, _, to_attach, _)| *to_attach);
        let is_flawed = match self.flaw {
            Flaw::Lifecycle => self.by_csi,
            Flaw::Pod => true,
            // They say so of a claim's volume.
            Flaw::Handle => self.by_csi && self.inline().is_none(),
            Flaw::Driver => self.inline().is_none(),
            // By CSI, the kubelet knows whose volume it is.
            Flaw::Namespace => !self.by_csi && self.inline().is_none(),
            Flaw::None => false,
        };
        if is_flawed {
            return None;
        }
        if let Some(options) = self.inline() {
            let by = match self.written {
                Written::OfARun { honoured: true, .. } => Some(Run),
                Written::OfARun { honoured: false, .. } => None,
                _ => Some(Tenant),
            };
            let may = by.is_some_and(|by| options.may_be_said(by, &[]));
            // Nobody knows which of the two a FlexVolume's Secret is for. By CSI, they would share a directory.
            let is_bound_here = self.flaw != Flaw::Namespace && self.namespace() == "shop";
            let is_one_of_two = of_name.is_some() && is_bound_here && matches!(self.written, Written::Both(_));
            let is_granted = may && !has_key && !is_to_attach && !is_one_of_two && !is_of_a_claim(self.name);
            return is_granted.then(|| (options.options(), BTreeMap::new()));
        }
        // By CSI the kubelet says that it is a claim's, and it knows.
        if self.written == Written::Nothing && !self.by_csi {
            return None;
        }
        let (options, by_image, to_attach, entry) = of_name?;
        // A claim's volume is an image's, whatever it is noted as.
        let by = if *by_image || is_of_a_claim(self.name) {
            Image
        } else {
            Administrator
        };
        if !options.may_be_said(by, &[]) {
            return None;
        }
        if !to_attach {
            return (!has_key).then(|| (options.options(), BTreeMap::new()));
        }
        let own = self.name;
        let (Entry::Told(told), Handed::Key(key)) = (entry, self.handed()) else {
            return None;
        };
        let is_told = told.signer == 0
            && !told.is_changed
            && (told.volume, told.uid, told.key, key) == (own, own, own, own)
            && told.for_node;
        let granted = match &told.options {
            None => Some(options.options()),
            Some(said) => connected(options, said),
        };
        granted.filter(|_| is_told).map(|granted| (granted, secrets_of(own)))
    }
}

/// A volume with what its image answered to `attach`, if the image may answer so.
fn connected(own: &Said, said: &Said) -> Option<BTreeMap<String, String>> {
    let mut granted = own.options();
    // Without a client it is about the volume's own.
    let mut said = said.clone();
    if said.client().is_empty() {
        said.client = own.client;
    }
    // The only file system that is named here is NFS, of which a vendor's client makes the volume one as well.
    let fits = match (granted.contains_key("fs-type"), said.client()) {
        (false, _) | (true, "nfs") => true,
        (true, VENDOR) => said.fits("nfs"),
        (true, _) => false,
    };
    // Another client has only the file system and the mount options of the volume itself.
    if own.client() != said.client() {
        granted.retain(|key, _| ["fs-type", "mount-options"].contains(&key.as_str()));
    }
    granted.extend(said.options());
    (fits && said.may_be_said(Attach, &own.mount_options)).then_some(granted)
}

fn csi(ephemeral: Option<bool>, volume_id: &str) -> ByKubelet {
    ByKubelet::Csi {
        ephemeral,
        volume_id: volume_id.to_owned(),
    }
}

/// The API.
struct World {
    volumes: BTreeMap<String, PersistentVolume>,
    pod: Pod,
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
impl GrantApi for Shared {
    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, ApiError> {
        Ok(self.0.volumes.get(name).cloned())
    }

    async fn pod(&self, _: &PodRef) -> Result<PodSeen, ApiError> {
        Ok(PodSeen::There(Box::new(self.0.pod.clone())))
    }
}

/// What is granted, or why nothing is.
fn granted(attempt: &Attempt, request: MountRequest) -> Result<Grant, MountError> {
    let volumes = [0, 1].map(|number| (NAMES[number].to_owned(), attempt.persistent_volume(number)));
    let world = Shared(Arc::new(World {
        volumes: volumes.into(),
        pod: attempt.pod(),
    }));
    let granter = Granter::new(Some(Arc::new(world.clone())), ["mooring".to_owned()]);
    let attachments = Attachments::new(Box::new(world), NODE.into(), "/kubelet".into());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    runtime.block_on(async {
        match granter.grant(request, deadline).await? {
            Granted::Now(grant) => Ok(*grant),
            Granted::ToAttach(to_attach) => attachments.connect(*to_attach, deadline).await,
        }
    })
}

/// Proves: M5
#[test]
fn no_call_mounts_another_volume_than_the_one_that_it_was_granted() {
    let (plain, attached, refused) = (Mutex::new(0), Mutex::new(0), Mutex::new(0));
    let config = Config {
        cases: 10_000,
        failure_persistence: None,
        ..Config::default()
    };
    let run = TestRunner::new(config).run(&attempts(), |attempt| {
        let Some(request) = attempt.request() else {
            return Ok(());
        };
        let asked = request.clone();
        match (granted(&attempt, request), attempt.granted()) {
            (Ok(grant), Some((options, secrets))) => {
                let wanted = Volume::from_options(&options).unwrap();
                prop_assert_eq!(grant.volume(), &wanted);
                prop_assert_eq!(grant.target(), &asked.target);
                let is_read_only = asked.read_only || wanted.mount_options.iter().any(|option| option == "ro");
                prop_assert_eq!(
                    (
                        grant.access(),
                        grant.is_sole(),
                        grant.is_only_read(),
                        grant.is_read_only()
                    ),
                    (asked.access, asked.sole, asked.only_read, is_read_only)
                );
                // An agent is told no more than that.
                let call = MountCall::of(&grant, Duration::ZERO);
                prop_assert_eq!(call.mount_options.iter().any(|option| option == "ro"), is_read_only);
                let told = (&call.client, &call.source, &call.target);
                prop_assert_eq!(
                    told,
                    (&wanted.client.to_string(), &wanted.source, &asked.target.to_string())
                );
                let secrets: BTreeMap<_, _> = secrets
                    .into_iter()
                    .map(|(key, text)| (key, text.into_bytes()))
                    .collect();
                prop_assert_eq!(&grant.secrets().0, &secrets);
                let count = if secrets.is_empty() { &plain } else { &attached };
                *count.lock().unwrap() += 1;
            }
            (Err(error), None) => {
                let is_refusal = matches!(
                    error,
                    MountError::Forbidden(_) | MountError::BadOptions(_) | MountError::NotAttached { .. }
                );
                prop_assert!(is_refusal, "it came as far as {}", error);
                *refused.lock().unwrap() += 1;
            }
            (Ok(grant), None) => prop_assert!(false, "{:?} was granted", grant.volume()),
            (Err(error), Some(_)) => prop_assert!(false, "was refused: {}", error),
        }
        Ok(())
    });
    run.unwrap();
    // Else it would be no test.
    let [plain, attached, refused] = [plain, attached, refused].map(|count| count.into_inner().unwrap());
    assert!(
        plain > 300 && attached > 50 && refused > 2_000,
        "{plain} granted, {attached} by a connection, {refused} refused"
    );
}
