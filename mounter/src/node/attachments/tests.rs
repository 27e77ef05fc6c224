use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PersistentVolume;
use mooring_contract::volume::Volume;
use serde_json::{Value, json};

use super::{AUTHORIZER_LAG, AttachmentApi, Attachments, Data, SecretError};
use crate::volume::job::{Access, MountError, MountJob, PodRef, Secrets};
use crate::volume::target::Target;

/// A cluster in which node `a` is.
struct Fake {
    volume: Value,
    connection: Value,
    /// How many times the Secret may not be read.
    forbidden: usize,
    /// Becomes the volume when the Secret is waited for.
    next: Option<(Value, Value)>,
    /// Becomes the volume when a note is written.
    after_note: Option<Value>,
    noted: BTreeSet<String>,
    did: Vec<String>,
}

#[derive(Clone)]
struct Shared(Arc<Mutex<Fake>>);

fn volume(annotations: &Value) -> Value {
    json!({"metadata": {"name": "pvc-u1", "annotations": annotations},
           "spec": {"csi": {"driver": "vcs.mooring.dev", "volumeHandle": "pvc-u1",
                            "nodePublishSecretRef": {"namespace": "admin", "name": "attachment-pvc-u1"}}}})
}

fn attached(node: &str) -> Value {
    volume(&json!({"mooring.dev/attached-to": json!({"node": node, "initiator": "i"}).to_string()}))
}

fn connection(node: &str) -> Value {
    json!({"proof": "x", "node": node, "options": {"source": "iscsi://h/t/2"}})
}

#[async_trait]
impl AttachmentApi for Shared {
    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, kube::Error> {
        let fake = self.0.lock().unwrap();
        Ok((name == "pvc-u1").then(|| serde_json::from_value(fake.volume.clone()).unwrap()))
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Data, SecretError> {
        assert_eq!((namespace, name), ("admin", "attachment-pvc-u1"));
        let mut fake = self.0.lock().unwrap();
        if let Some(left) = fake.forbidden.checked_sub(1) {
            fake.forbidden = left;
            let said = "no relationship found between node 'a' and this object";
            return Err(SecretError::Forbidden(said.to_owned()));
        }
        Ok(Data {
            version: "7".into(),
            values: secrets(&fake.connection),
        })
    }

    async fn changed(&self, _: &str, _: &str, _: &str) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let mut fake = self.0.lock().unwrap();
        fake.did.push("waited".into());
        if let Some((volume, connection)) = fake.next.take() {
            (fake.volume, fake.connection) = (volume, connection);
        }
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

fn secrets(connection: &Value) -> BTreeMap<String, Vec<u8>> {
    [("mooring-connection", connection.to_string()), ("password", "p".into())]
        .map(|(key, value)| (key.to_owned(), value.into_bytes()))
        .into()
}

fn job(handed: &Value) -> MountJob {
    MountJob {
        volume: Volume::from_line("client=block,source=iscsi://h/t/1").unwrap(),
        secrets: Secrets(secrets(handed)),
        target: Target::parse(Path::new("/kubelet"), "/kubelet/pods/u/volumes/mooring.dev~vcs/pvc-u1").unwrap(),
        access: Access::FileSystem,
        sole: false,
        only_read: false,
        read_only: false,
        fs_group: None,
        label: None,
        pod: PodRef::default(),
        volume_name: "pvc-u1".into(),
        image: None,
        deadline: Instant::now() + Duration::from_millis(2300),
    }
}

fn world(volume: Value, connection: Value) -> (Shared, Attachments) {
    let fake = Shared(Arc::new(Mutex::new(Fake {
        volume,
        connection,
        forbidden: 0,
        next: None,
        after_note: None,
        noted: BTreeSet::new(),
        did: Vec::new(),
    })));
    let attachments = Attachments::new(Box::new(fake.clone()), "a".into(), "/kubelet".into());
    (fake, attachments)
}

impl Shared {
    fn did(&self) -> Vec<String> {
        self.0.lock().unwrap().did.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_needs_no_attachment_costs_nothing() {
    let (fake, attachments) = world(attached("b"), connection("b"));
    let mut job = job(&connection("b"));
    job.secrets.0.remove("mooring-connection");
    attachments.connect(&mut job).await.unwrap();
    assert!(fake.did().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_noted_before_it_is_mounted_and_until_it_is_unmounted() {
    let (fake, attachments) = world(attached("a"), connection("a"));
    // What the kubelet hands over may be old.
    let mut job = job(&json!({"proof": "x"}));
    attachments.connect(&mut job).await.unwrap();
    assert_eq!(job.volume.source, "iscsi://h/t/2");
    assert_eq!(job.secrets.0.keys().collect::<Vec<_>>(), ["password"]);
    assert_eq!(fake.did(), ["noted true"]);
    attachments.leave(&job.target).await;
    attachments.leave(&job.target).await;
    assert_eq!(fake.did(), ["noted true", "noted false"]);
}

#[tokio::test(start_paused = true)]
async fn a_mount_waits_until_its_node_has_the_volume() {
    let (fake, attachments) = world(volume(&json!({})), json!({"proof": "x"}));
    fake.0.lock().unwrap().next = Some((attached("a"), connection("a")));
    let mut job = job(&json!({"proof": "x"}));
    attachments.connect(&mut job).await.unwrap();
    assert_eq!(fake.did(), ["waited", "noted true"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_another_node_has_is_not_mounted() {
    let (fake, attachments) = world(attached("b"), connection("b"));
    let error = attachments.connect(&mut job(&connection("b"))).await.unwrap_err();
    assert!(
        matches!(&error, MountError::NotAttached { other: Some(other), .. } if other == "b"),
        "{error}"
    );
    assert!(fake.0.lock().unwrap().noted.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_taken_away_in_the_same_moment_is_not_mounted() {
    let (fake, attachments) = world(attached("a"), connection("a"));
    let mut going = attached("a");
    going["metadata"]["annotations"]["mooring.dev/operation"] = json!("{}");
    fake.0.lock().unwrap().after_note = Some(going);
    let error = attachments.connect(&mut job(&connection("a"))).await.unwrap_err();
    assert!(matches!(error, MountError::NotAttached { .. }), "{error}");
    assert!(fake.0.lock().unwrap().noted.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_a_pod_s_author_wrote_is_not_used() {
    let (fake, attachments) = world(attached("a"), connection("a"));
    let mut forged = connection("a");
    forged["proof"] = json!("y");
    let error = attachments.connect(&mut job(&forged)).await.unwrap_err();
    assert!(matches!(error, MountError::Forbidden(_)), "{error}");
    // Nor one of a volume that has no such Secret.
    fake.0.lock().unwrap().volume["spec"] = json!({});
    let error = attachments.connect(&mut job(&connection("a"))).await.unwrap_err();
    assert!(matches!(error, MountError::Forbidden(_)), "{error}");
    assert!(fake.did().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_can_t_be_read_in_the_api_is_not_used() {
    let (fake, attachments) = world(attached("a"), connection("a"));
    fake.0.lock().unwrap().forbidden = usize::MAX;
    let began = tokio::time::Instant::now();
    let mut job = job(&connection("a"));
    job.deadline = Instant::now() + Duration::from_mins(1);
    let Err(error) = attachments.connect(&mut job).await else {
        panic!("the kubelet's copy was used");
    };
    assert!(matches!(error, MountError::Forbidden(_)), "{error}");
    for words in ["mooring-mounter-connections", "no relationship found"] {
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(began.elapsed() <= AUTHORIZER_LAG, "{:?}", began.elapsed());
    assert!(fake.did().is_empty());
}

/// The node authorizer learns of a new Pod's volumes by a watch.
#[tokio::test(start_paused = true)]
async fn a_connection_is_read_once_the_authorizer_knows_of_the_pod() {
    let (fake, attachments) = world(attached("a"), connection("a"));
    fake.0.lock().unwrap().forbidden = 3;
    let mut job = job(&connection("a"));
    job.deadline = Instant::now() + Duration::from_secs(20);
    let connected = attachments.connect(&mut job).await;
    connected.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(fake.did(), ["noted true"]);
}

/// The controller checks a connection in the same way (`check_connection` in `provisioner/src/operation/attach.rs`).
#[tokio::test(start_paused = true)]
async fn beside_a_connection_the_mount_options_are_allowed_that_the_persistent_volume_has() {
    for (of_volume, handed, said, allowed) in [
        ("suid", "suid", None, true),
        ("suid,dev", "suid,dev", Some("dev,noatime"), true),
        ("noatime", "noatime", Some("sync"), true),
        // By a Pod's author, or by the image.
        ("", "suid", None, false),
        ("", "", Some("suid"), false),
        ("dev", "dev", Some("suid"), false),
    ] {
        // On the node a class's options stand among the others.
        for beside in [false, true] {
            let mut volume = attached("a");
            volume["spec"]["csi"]["volumeAttributes"] = json!({"client": "block", "source": "iscsi://h/t/1"});
            if beside {
                volume["spec"]["mountOptions"] = of_volume.split_terminator(',').collect();
            } else {
                volume["spec"]["csi"]["volumeAttributes"]["mount-options"] = json!(of_volume);
            }
            let mut connection = connection("a");
            if let Some(said) = said {
                connection["options"]["mount-options"] = json!(said);
            }
            let (_fake, attachments) = world(volume, connection.clone());
            let mut job = job(&connection);
            job.volume.mount_options = handed.split_terminator(',').map(str::to_owned).collect();
            match attachments.connect(&mut job).await {
                Err(error) if allowed => panic!("{of_volume:?}, {said:?}: {error}"),
                Ok(_) if !allowed => panic!("{of_volume:?}, {handed:?}, {said:?} was used"),
                _ => {}
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_names_nothing_of_the_node_but_its_disk() {
    for options in [
        json!({"client": "pool", "source": ""}),
        json!({"client": "local", "source": "pvc-other.img"}),
        json!({"client": "host", "source": "h:/x", "fs-type": "nfs"}),
    ] {
        let mut reaching = connection("a");
        reaching["options"] = options;
        let (_fake, attachments) = world(attached("a"), reaching.clone());
        let Err(error) = attachments.connect(&mut job(&reaching)).await else {
            panic!("{reaching} was used");
        };
        assert!(matches!(error, MountError::BadOptions(_)), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_says_no_more_than_an_image_may() {
    let mut reaching = connection("a");
    reaching["options"]["source"] = json!("/dev/sda");
    let (_fake, attachments) = world(attached("a"), reaching.clone());
    let error = attachments.connect(&mut job(&reaching)).await.unwrap_err();
    assert!(matches!(error, MountError::BadOptions(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_may_name_a_disk_of_the_node() {
    let mut disk = connection("a");
    disk["options"] = json!({"client": "node-disk", "source": "serial://1"});
    let (_fake, attachments) = world(attached("a"), disk.clone());
    let mut by_nova = job(&disk);
    by_nova.volume = Volume::from_line("client=iscsi,source=iscsi://later/t/1,initiator=iqn.x:a").unwrap();
    assert!(attachments.connect(&mut by_nova).await.unwrap());
    let wanted = Volume::from_line("client=node-disk,source=serial://1").unwrap();
    assert_eq!(by_nova.volume, wanted);
}

#[tokio::test(start_paused = true)]
async fn notes_of_an_earlier_mounter_go_with_its_mounts() {
    let (fake, attachments) = world(attached("a"), connection("a"));
    fake.0.lock().unwrap().noted.insert("pvc-u1".into());
    attachments.tidy().await.unwrap();
    assert!(fake.0.lock().unwrap().noted.is_empty());
}

/// The same volume, which both nodes have.
fn shared(record: &Value) -> (Value, Value) {
    let to = |node: &str| json!({"node": node, "initiator": "i"});
    let mut notes = json!({"mooring.dev/attached-to": json!([to("b"), to("a")]).to_string()});
    if !record.is_null() {
        notes["mooring.dev/operation"] = json!(record.to_string());
    }
    let mut volume = volume(&notes);
    volume["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    let own = |node: &str| {
        let (source, password) = (format!("iscsi://h/t-{node}/1"), format!("p-{node}"));
        json!({"options": {"source": source}, "secrets": {"password": password}})
    };
    (volume, json!({"proof": "x", "nodes": {"a": own("a"), "b": own("b")}}))
}

#[tokio::test(start_paused = true)]
async fn one_of_several_nodes_uses_what_it_is_told_and_no_more() {
    // An operation for another node does not hold it up.
    for record in [Value::Null, json!({"operation": "detach", "node": "b"})] {
        let (volume, connection) = shared(&record);
        let (_fake, attachments) = world(volume, connection.clone());
        let mut job = job(&connection);
        attachments.connect(&mut job).await.unwrap();
        assert_eq!(job.volume.source, "iscsi://h/t-a/1");
        assert_eq!(job.secrets.0, [("password".to_owned(), b"p-a".to_vec())].into());
    }
    // One of its own does, and the others are no reason.
    for record in [
        json!({"operation": "detach", "node": "a"}),
        json!({"operation": "expand"}),
    ] {
        let (volume, connection) = shared(&record);
        let (_fake, attachments) = world(volume, connection.clone());
        let error = attachments.connect(&mut job(&connection)).await.unwrap_err();
        assert!(matches!(error, MountError::NotAttached { other: None, .. }), "{error}");
    }
}
