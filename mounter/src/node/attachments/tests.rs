use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PersistentVolume;
use mooring_contract::attachment::Connection;
use mooring_contract::volume::Volume;
use mooring_seal::signature::{PublicKeys, SigningKey};
use mooring_seal::{Purpose, new_key, seal};
use serde_json::{Value, json};

use super::{AttachmentApi, Attachments, CleanUps};
use crate::grant::granter::{ApiError, GrantApi, Granter, PodSeen};
use crate::grant::request::MountRequest;
use crate::grant::request::tests::request;
use crate::grant::{Grant, Granted};
use crate::volume::job::{MountError, PodRef, Secrets};
use crate::volume::mount_table::Table;
use crate::volume::target::Target;

/// A cluster in which node `a` is.
struct Fake {
    volume: Value,
    keys: BTreeMap<String, String>,
    /// Becomes the volume after so many looks.
    next: Option<(usize, Value)>,
    /// Becomes the volume when a note is written.
    after_note: Option<Value>,
    noted: BTreeSet<String>,
    did: Vec<String>,
}

/// The controller, its volume's key, and the API.
struct World {
    signer: SigningKey,
    key: String,
    fake: Shared,
    granter: Granter,
    attachments: Arc<Attachments>,
}

#[derive(Clone)]
struct Shared(Arc<Mutex<Fake>>);

fn volume(annotations: &Value) -> Value {
    json!({"metadata": {"name": "pvc-u1", "uid": "v1", "annotations": annotations},
           "spec": {"csi": {"driver": "vcs.mooring.dev", "volumeHandle": "pvc-u1",
                            "volumeAttributes": {"client": "block", "source": "iscsi://h/t/1"},
                            "nodePublishSecretRef": {"namespace": "admin", "name": "attachment-pvc-u1"}}}})
}

#[async_trait]
impl AttachmentApi for Shared {
    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, kube::Error> {
        let mut fake = self.0.lock().unwrap();
        match fake.next.take() {
            Some((0, next)) => fake.volume = next,
            Some((looks, next)) => fake.next = Some((looks - 1, next)),
            None => {}
        }
        Ok((name == "pvc-u1").then(|| serde_json::from_value(fake.volume.clone()).unwrap()))
    }

    async fn keys(&self) -> Result<PublicKeys, kube::Error> {
        Ok(PublicKeys::published(self.0.lock().unwrap().keys.clone()))
    }

    async fn note(&self, volume: &str, used: bool) -> Result<(), kube::Error> {
        let mut fake = self.0.lock().unwrap();
        fake.did.push(format!("noted {used}"));
        if used {
            fake.noted.insert(volume.to_owned());
        } else {
            fake.noted.remove(volume);
        }
        if let Some(volume) = fake.after_note.take() {
            fake.volume = volume;
        }
        Ok(())
    }

    async fn noted(&self) -> Result<BTreeSet<String>, kube::Error> {
        Ok(self.0.lock().unwrap().noted.clone())
    }
}

#[async_trait]
impl GrantApi for Shared {
    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, ApiError> {
        Ok(AttachmentApi::volume(self, name).await?)
    }

    async fn pod(&self, pod: &PodRef) -> Result<PodSeen, ApiError> {
        let metadata = json!({"name": pod.name, "namespace": pod.namespace, "uid": pod.uid});
        Ok(PodSeen::There(serde_json::from_value(json!({"metadata": metadata}))?))
    }
}

impl World {
    /// The volume is attached to no node.
    fn new() -> Self {
        let signer = SigningKey::generate().unwrap();
        let fake = Shared(Arc::new(Mutex::new(Fake {
            volume: volume(&json!({})),
            keys: [(signer.id().to_owned(), signer.public())].into(),
            next: None,
            after_note: None,
            noted: BTreeSet::new(),
            did: Vec::new(),
        })));
        let attachments = Attachments::new(Box::new(fake.clone()), "a".into(), "/kubelet".into());
        let attachments = Arc::new(attachments);
        Self {
            key: new_key().unwrap(),
            signer,
            granter: Granter::new(Some(Arc::new(fake.clone())), []),
            fake,
            attachments,
        }
    }

    /// The connection of a node, by which it reaches this source.
    fn connection(&self, node: &str, source: &str) -> Connection {
        let purpose = Purpose {
            pv_name: "pvc-u1",
            node,
        };
        let secrets = [("password".to_owned(), format!("p-{node}"))].into();
        Connection {
            volume: "pvc-u1".into(),
            volume_uid: "v1".into(),
            node: node.into(),
            serial: 7,
            options: [("source".to_owned(), source.to_owned())].into(),
            sealed: seal(&self.key, purpose, &secrets).unwrap(),
        }
    }

    /// What the PV says of a node with this connection.
    fn entry(&self, node: &str, connection: &Connection) -> Value {
        json!({"node": node, "initiator": "i", "connection": self.signer.sign(connection).unwrap()})
    }

    /// The volume, attached to a node.
    fn attached(&self, node: &str) -> Value {
        let to = self.entry(node, &self.connection(node, "iscsi://h/t/2"));
        volume(&json!({"mooring.dev/attached-to": to.to_string()}))
    }

    fn has(&self, volume: Value) {
        self.fake.0.lock().unwrap().volume = volume;
    }

    /// The volume is attached to node a, which was told this.
    fn told(&self, change: impl FnOnce(&mut Connection)) {
        let mut connection = self.connection("a", "iscsi://h/t/2");
        change(&mut connection);
        let to = self.entry("a", &connection);
        self.has(volume(&json!({"mooring.dev/attached-to": to.to_string()})));
    }

    fn request(&self) -> MountRequest {
        asked(&self.key)
    }

    async fn connect(&self, request: MountRequest) -> Result<Grant, MountError> {
        let deadline = Instant::now() + Duration::from_millis(2300);
        match self.granter.grant(request, deadline).await? {
            Granted::ToAttach(to_attach) => self.attachments.connect(*to_attach, deadline).await,
            Granted::Now(grant) => panic!("{grant:?} needs no attachment"),
        }
    }

    async fn refused(&self, request: MountRequest) -> MountError {
        let refused = self.connect(request).await.unwrap_err();
        assert!(self.fake.0.lock().unwrap().noted.is_empty(), "{refused}");
        refused
    }

    fn did(&self) -> Vec<String> {
        self.fake.0.lock().unwrap().did.clone()
    }
}

/// What the kubelet asks for, with a key from the Secret of the Pod's volume.
fn asked(key: &str) -> MountRequest {
    let secrets = [
        ("mooring-connection", json!({"proof": key}).to_string()),
        ("other", "o".into()),
    ]
    .map(|(key, value)| (key.to_owned(), value.into_bytes()));
    // What the kubelet says of the volume counts for nothing.
    let said = Volume::from_line("client=block,source=iscsi://h/t/9,mount-options=suid").unwrap();
    MountRequest {
        secrets: Secrets(secrets.into()),
        ..request(said, target("u"))
    }
}

fn target(pod: &str) -> Target {
    let path = format!("/kubelet/pods/{pod}/volumes/kubernetes.io~csi/pvc-u1/mount");
    Target::parse(Path::new("/kubelet"), &path).unwrap()
}

fn is_forbidden(error: &MountError, word: &str) {
    assert!(matches!(error, MountError::Forbidden(_)), "{error}");
    assert!(error.to_string().contains(word), "{error}");
}

/// The PersistentVolume says whether a volume has to be attached.
#[tokio::test]
async fn a_volume_whose_secret_was_emptied_is_not_mounted_without_its_connection() {
    let world = World::new();
    world.has(world.attached("a"));
    for secret in [None, Some(&b"x"[..])] {
        let mut request = world.request();
        request.secrets = Secrets::default();
        request
            .secrets
            .0
            .extend(secret.map(|secret| ("mooring-connection".to_owned(), secret.to_vec())));
        is_forbidden(&world.refused(request).await, "has no key");
    }
}

#[tokio::test]
async fn a_volume_is_noted_before_it_is_mounted_and_until_it_is_unmounted() {
    let world = World::new();
    world.has(world.attached("a"));
    let grant = world.connect(world.request()).await.unwrap();
    assert_eq!(grant.volume().source, "iscsi://h/t/2");
    assert_eq!(grant.secrets().0, [("password".to_owned(), b"p-a".to_vec())].into());
    assert_eq!(world.did(), ["noted true"]);
    world.attachments.leave(grant.target()).await;
    world.attachments.leave(grant.target()).await;
    assert_eq!(world.did(), ["noted true", "noted false"]);
}

/// A Pod, or another volume, may have the same name as the PersistentVolume.
#[tokio::test]
async fn only_mounts_of_the_volume_itself_keep_its_note() {
    let world = World::new();
    let table = |points: &[&str]| {
        let lines = points.iter().enumerate();
        let lines: Vec<_> = lines
            .map(|(id, point)| format!("{id} 1 0:9 / {point} rw - tmpfs tmpfs rw\n"))
            .collect();
        Table::parse(lines.concat().as_bytes())
    };
    let own = "/kubelet/pods/u/volumes/mooring.dev~vcs/pvc-u1";
    let table = table(&[
        own,
        "/kubelet/pods/pvc-u1/volumes/mooring.dev~vcs/data",
        "/kubelet/pods/u/volumes/mooring.dev~vcs/pvc-u12",
        "/kubelet/pods/u/volumes/other~driver/pvc-u1",
    ]);
    let targets = world.attachments.targets_in(&table, "pvc-u1").unwrap();
    assert_eq!(targets, [own.to_owned()].into());
}

/// Its note would be taken back, and the volume detached, while it is mounted.
#[tokio::test]
async fn a_volume_whose_driver_can_t_be_read_stays_noted_and_holds_up_no_other() {
    let world = World::new();
    let root = tempfile::tempdir().unwrap();
    let broken = root.path().join("pods/u/volumes/kubernetes.io~csi/pvc-u1");
    std::fs::create_dir_all(broken.join("vol_data.json")).unwrap();
    let line = format!("9 1 8:16 / {}/mount rw - ext4 /dev/sdb rw\n", broken.display());
    let attachments = Attachments::new(Box::new(world.fake.clone()), "a".to_owned(), root.path().to_owned());
    let table = Table::parse(line.as_bytes());
    let error = attachments.targets_in(&table, "pvc-u1").unwrap_err();
    assert_eq!(error.mount_point, broken.join("mount"));
    assert_eq!(attachments.targets_in(&table, "pvc-u2").unwrap(), BTreeSet::new());
}

/// A detachment would take the device from a session that is still open.
#[tokio::test]
async fn a_volume_stays_noted_until_its_client_has_cleaned_up() {
    let world = World::new();
    world.has(world.attached("a"));
    let grant = world.connect(world.request()).await.unwrap();
    let (over, rest) = tokio::sync::oneshot::channel::<()>();
    world
        .attachments
        .leave_after(grant.target(), async { drop(rest.await) })
        .await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(world.did(), ["noted true"], "before its client has cleaned up");
    over.send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(world.did(), ["noted true", "noted false"]);
    // Mounted again meanwhile.
    world.connect(world.request()).await.unwrap();
    let (over, rest) = tokio::sync::oneshot::channel::<()>();
    world
        .attachments
        .leave_after(grant.target(), async { drop(rest.await) })
        .await;
    world.connect(world.request()).await.unwrap();
    over.send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(world.did().len(), 3, "it is used again");
}

/// The mount table does not show it yet.
#[tokio::test]
async fn a_volume_stays_noted_while_another_pod_s_mount_of_it_is_in_progress() {
    let world = World::new();
    world.has(world.attached("a"));
    let second = request(world.request().volume, target("u2"));
    let secrets = world.request().secrets;
    let first = world.connect(world.request()).await.unwrap();
    let second = world.connect(MountRequest { secrets, ..second }).await.unwrap();
    world.attachments.leave(first.target()).await;
    assert_eq!(world.did(), ["noted true"], "another Pod's mount is in progress");
    world.attachments.leave(second.target()).await;
    assert_eq!(world.did(), ["noted true", "noted false"]);
}

#[tokio::test(start_paused = true)]
async fn a_mount_waits_until_its_node_has_the_volume() {
    let world = World::new();
    world.fake.0.lock().unwrap().next = Some((3, world.attached("a")));
    world.connect(world.request()).await.unwrap();
    assert_eq!(world.did(), ["noted true"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_another_node_has_is_not_mounted() {
    let world = World::new();
    world.has(world.attached("b"));
    let error = world.refused(world.request()).await;
    assert!(
        matches!(&error, MountError::NotAttached { other: Some(other), .. } if other == "b"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_an_earlier_controller_attached_waits_until_it_is_attached_again() {
    let world = World::new();
    let to = json!({"node": "a", "initiator": "i"}).to_string();
    world.has(volume(&json!({"mooring.dev/attached-to": to})));
    let error = world.refused(world.request()).await;
    assert!(matches!(error, MountError::NotAttached { other: None, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_taken_away_in_the_same_moment_is_not_mounted() {
    let world = World::new();
    let mut going = world.attached("a");
    world.has(going.clone());
    going["metadata"]["annotations"]["mooring.dev/operation"] = json!("{}");
    world.fake.0.lock().unwrap().after_note = Some(going);
    let error = world.refused(world.request()).await;
    assert!(matches!(error, MountError::NotAttached { .. }), "{error}");
}

/// Proves: M5
#[tokio::test]
async fn a_pod_with_a_secret_of_its_author_gets_no_volume_that_is_attached() {
    let world = World::new();
    world.has(world.attached("a"));
    for key in [&*new_key().unwrap(), "", "x"] {
        is_forbidden(&world.refused(asked(key)).await, "does not open");
    }
    // Whatever else the author writes into it.
    let mut forging = world.request();
    let forged = json!({"proof": "x", "node": "a", "options": {"client": "pool", "source": ""}});
    forging
        .secrets
        .0
        .insert("mooring-connection".into(), forged.to_string().into_bytes());
    is_forbidden(&world.refused(forging).await, "does not open");
}

#[tokio::test]
async fn a_volume_is_not_mounted_whose_persistent_volume_was_made_anew_meanwhile() {
    let world = World::new();
    let mut another = world.attached("a");
    another["metadata"]["uid"] = json!("v2");
    world.fake.0.lock().unwrap().next = Some((1, another));
    is_forbidden(&world.refused(world.request()).await, "was deleted");
}

/// Proves: M5
#[tokio::test]
async fn a_connection_that_no_controller_signed_for_this_volume_and_node_is_not_used() {
    let world = World::new();
    let other = SigningKey::generate().unwrap();
    let connection = world.connection("a", "iscsi://h/t/2");
    let to = json!({"node": "a", "initiator": "i", "connection": other.sign(&connection).unwrap()}).to_string();
    world.has(volume(&json!({"mooring.dev/attached-to": to})));
    is_forbidden(&world.refused(world.request()).await, "not published");

    world.told(|connection| connection.node = "b".into());
    is_forbidden(&world.refused(world.request()).await, "another volume or node");
    world.told(|connection| connection.volume = "pvc-u2".into());
    is_forbidden(&world.refused(world.request()).await, "another volume or node");
    // A PersistentVolume of the same name that was made later.
    world.told(|connection| connection.volume_uid = "v0".into());
    is_forbidden(&world.refused(world.request()).await, "another volume or node");

    world.told(|_| {});
    world.fake.0.lock().unwrap().keys.clear();
    is_forbidden(&world.refused(world.request()).await, "not published");
}

#[tokio::test]
async fn an_older_connection_is_not_used_after_a_newer_one() {
    let world = World::new();
    world.told(|_| {});
    let grant = world.connect(world.request()).await.unwrap();
    world.attachments.leave(grant.target()).await;
    world.told(|connection| connection.serial = 6);
    is_forbidden(&world.refused(world.request()).await, "older");
    world.told(|_| {});
    world.connect(world.request()).await.unwrap();
}

/// Proves: M5
#[tokio::test]
async fn a_connection_names_nothing_of_the_node_but_its_disk() {
    let world = World::new();
    for line in [
        "client=pool,source=",
        "client=local,source=pvc-other.img",
        "client=host,source=h:/x,fs-type=nfs",
        "source=/dev/sda",
    ] {
        let options = line.split(',').filter_map(|pair| pair.split_once('='));
        let options: BTreeMap<_, _> = options.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        world.told(|connection| connection.options = options);
        let error = world.refused(world.request()).await;
        assert!(matches!(error, MountError::BadOptions(_)), "{line}: {error}");
    }
    world.told(|connection| {
        connection.options = [("client", "node-disk"), ("source", "serial://1")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
    });
    world.fake.0.lock().unwrap().volume["spec"]["csi"]["volumeAttributes"] =
        json!({"client": "iscsi", "source": "iscsi://later/t/1", "initiator": "iqn.x:a"});
    let by_nova = world.connect(world.request()).await.unwrap();
    let wanted = Volume::from_line("client=node-disk,source=serial://1").unwrap();
    assert_eq!(by_nova.volume(), &wanted);
}

/// The controller checks a connection in the same way (`check_connection` in `provisioner/src/operation/attach.rs`).
#[tokio::test]
async fn beside_a_connection_the_mount_options_are_allowed_that_the_persistent_volume_has() {
    for (of_volume, said, wanted) in [
        ("suid", None, Some("suid")),
        ("suid,dev", Some("dev,noatime"), Some("dev,noatime")),
        ("noatime", Some("sync"), Some("sync")),
        ("", Some("suid"), None),
        ("dev", Some("suid"), None),
    ] {
        // On the node a class's options stand among the others.
        for beside in [false, true] {
            let world = World::new();
            world.told(|connection| {
                let said = said.map(|said| ("mount-options".to_owned(), said.to_owned()));
                connection.options.extend(said);
            });
            {
                let spec = &mut world.fake.0.lock().unwrap().volume["spec"];
                if beside {
                    spec["mountOptions"] = of_volume.split_terminator(',').collect();
                } else {
                    spec["csi"]["volumeAttributes"]["mount-options"] = json!(of_volume);
                }
            }
            let taken = world.connect(world.request()).await;
            let options = taken.as_ref().ok().map(|grant| grant.volume().mount_options.join(","));
            assert_eq!(options.as_deref(), wanted, "{of_volume:?}, {said:?}: {taken:?}");
        }
    }
}

#[tokio::test]
async fn notes_of_an_earlier_mounter_go_with_its_mounts() {
    let world = World::new();
    world.fake.0.lock().unwrap().noted.insert("pvc-u1".into());
    assert!(world.attachments.tidy(None).await.unwrap());
    assert!(world.fake.0.lock().unwrap().noted.is_empty());
}

/// An agent that may be cleaning up.
struct Cleaning(Mutex<bool>);

#[async_trait]
impl CleanUps for Cleaning {
    async fn may_have(&self, volume: &str) -> bool {
        volume == "pvc-u1" && *self.0.lock().unwrap()
    }
}

#[tokio::test]
async fn notes_of_an_earlier_mounter_stay_while_its_clients_clean_up() {
    let world = World::new();
    let noted = || world.fake.0.lock().unwrap().noted.clone();
    for volume in ["pvc-u1", "pvc-u2"] {
        world.fake.0.lock().unwrap().noted.insert(volume.into());
    }
    let cleaning = Cleaning(Mutex::new(true));
    let is_done = world.attachments.tidy(Some(&cleaning)).await.unwrap();
    assert_eq!(
        noted(),
        ["pvc-u1".to_owned()].into(),
        "before its client has cleaned up"
    );
    assert!(!is_done, "it has to look again");
    *cleaning.0.lock().unwrap() = false;
    assert!(world.attachments.tidy(Some(&cleaning)).await.unwrap());
    assert!(noted().is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_of_several_nodes_uses_what_it_is_told_and_no_more() {
    let world = World::new();
    let entry = |node: &str| world.entry(node, &world.connection(node, &format!("iscsi://h/t-{node}/1")));
    let shared = |record: &Value| {
        let mut notes = json!({"mooring.dev/attached-to": json!([entry("b"), entry("a")]).to_string()});
        if !record.is_null() {
            notes["mooring.dev/operation"] = json!(record.to_string());
        }
        let mut volume = volume(&notes);
        volume["spec"]["accessModes"] = json!(["ReadWriteMany"]);
        volume
    };
    // An operation for another node does not hold it up.
    for record in [Value::Null, json!({"operation": "detach", "node": "b"})] {
        world.has(shared(&record));
        let grant = world.connect(world.request()).await.unwrap();
        assert_eq!(grant.volume().source, "iscsi://h/t-a/1");
        assert_eq!(grant.secrets().0, [("password".to_owned(), b"p-a".to_vec())].into());
        world.attachments.leave(grant.target()).await;
    }
    // One of its own does, and the others are no reason.
    for record in [
        json!({"operation": "detach", "node": "a"}),
        json!({"operation": "expand"}),
    ] {
        world.has(shared(&record));
        let error = world.refused(world.request()).await;
        assert!(matches!(error, MountError::NotAttached { other: None, .. }), "{error}");
    }
}
