use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PersistentVolume;
use mooring_contract::volume::Volume;
use serde_json::{Value, json};

use super::{ApiError, GrantApi, Granter, PodSeen};
use crate::grant::author::Author;
use crate::grant::request::tests::request;
use crate::grant::request::{MountRequest, Told};
use crate::grant::{Grant, Granted};
use crate::settings::SettingsInForce;
use crate::volume::job::{MountError, PodRef};
use crate::volume::pod_group::PodGroup;
use crate::volume::target::Target;

const FLEX: &str = "/kubelet/pods/u/volumes/mooring.dev~vcs/v";
const CSI: &str = "/kubelet/pods/u/volumes/kubernetes.io~csi/v/mount";
const DEVICE: &str = "/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/v/u";

/// The one PersistentVolume `v`, and the one Pod, of a cluster.
#[derive(Clone, Default)]
struct Fake {
    volume: Option<Value>,
    pod: Option<Value>,
    /// The API shows the mounter no Pod.
    hides: bool,
    /// What the API says instead of an answer.
    fails: bool,
    silent: bool,
}

impl Fake {
    async fn answer<T: serde::de::DeserializeOwned>(&self, found: Option<&Value>) -> Result<Option<T>, ApiError> {
        if self.silent {
            std::future::pending::<()>().await;
        }
        if self.fails {
            return Err("cannot get resource".into());
        }
        Ok(found.map(|found| serde_json::from_value(found.clone()).unwrap()))
    }
}

#[async_trait]
impl GrantApi for Fake {
    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, ApiError> {
        self.answer(self.volume.as_ref().filter(|_| name == "v")).await
    }

    async fn pod(&self, pod: &PodRef) -> Result<PodSeen, ApiError> {
        if self.hides {
            return Ok(PodSeen::Hidden);
        }
        let is_it =
            |found: &&Value| found["metadata"]["name"] == pod.name && found["metadata"]["namespace"] == pod.namespace;
        let found = self.answer(self.pod.as_ref().filter(is_it)).await?;
        Ok(found.map_or(PodSeen::Missing, PodSeen::There))
    }
}

fn options(line: &str) -> Value {
    json!(Volume::from_line(line).unwrap().to_options())
}

/// A PersistentVolume with these options, for claim `shop/data`.
fn flex(line: &str) -> Value {
    let source = json!({"driver": "mooring.dev/vcs", "options": options(line)});
    json!({"metadata": {"name": "v", "uid": "v1"},
           "spec": {"claimRef": {"namespace": "shop", "name": "data"}, "flexVolume": source}})
}

fn csi(line: &str) -> Value {
    let source = json!({"driver": "vcs.mooring.dev", "volumeHandle": "v", "volumeAttributes": options(line)});
    json!({"metadata": {"name": "v", "uid": "v1"}, "spec": {"csi": source}})
}

/// Pod `shop/web` with these volumes.
fn pod(volumes: &Value) -> Value {
    json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u"},
           "spec": {"containers": [], "volumes": volumes}})
}

fn with_claim() -> Value {
    pod(&json!([{"name": "x", "persistentVolumeClaim": {"claimName": "data"}}]))
}

/// An inline volume of this name.
fn inline(name: &str, line: &str) -> Value {
    json!({"name": name, "flexVolume": {"driver": "mooring.dev/vcs", "options": options(line)}})
}

fn asked(line: &str, path: &str) -> MountRequest {
    let target = Target::parse_any(Path::new("/kubelet"), path).unwrap();
    request(Volume::from_line(line).unwrap(), target)
}

/// A CSI volume in the Pod's own spec.
fn own_csi(line: &str) -> MountRequest {
    MountRequest {
        told: Told::Csi {
            ephemeral: Some(true),
            volume_id: "csi-x".into(),
        },
        ..asked(line, CSI)
    }
}

async fn answer(fake: &Fake, request: MountRequest) -> Result<Granted, MountError> {
    let granter = Granter::new(Some(Arc::new(fake.clone())), ["mooring".to_owned()]);
    let deadline = Instant::now() + Duration::from_secs(20);
    Ok(granter.grant(request, deadline).await?)
}

async fn granted(fake: &Fake, request: MountRequest) -> Grant {
    match answer(fake, request).await {
        Ok(Granted::Now(grant)) => *grant,
        other => panic!("{other:?}"),
    }
}

async fn refused(fake: &Fake, request: MountRequest, category: &str, words: &str) {
    let error = answer(fake, request).await.unwrap_err();
    assert_eq!(error.category(), category, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

/// Proves: M5
#[tokio::test]
async fn a_persistent_volume_is_mounted_as_the_api_has_it_whatever_the_kubelet_says() {
    let lies = "client=pool,source=,mount-options=suid";
    let own = "client=nfs,source=h:/own";
    let fake = Fake {
        volume: Some(flex(own)),
        pod: Some(with_claim()),
        ..Fake::default()
    };
    let grant = granted(&fake, asked(lies, FLEX)).await;
    assert_eq!(grant.volume(), &Volume::from_line(own).unwrap());
    assert_eq!(grant.author(), Author::Administrator);
    let mut beside = csi(own);
    beside["spec"]["mountOptions"] = json!(["ro"]);
    beside["spec"]["csi"]["fsType"] = json!("nfs4");
    let fake = Fake {
        volume: Some(beside),
        ..fake
    };
    let grant = granted(&fake, asked(lies, CSI)).await;
    let wanted = format!("{own},mount-options=ro,fs-type=nfs4");
    assert_eq!(grant.volume(), &Volume::from_line(&wanted).unwrap());
    assert!(grant.is_read_only());
    // A device has no file system.
    let grant = granted(&fake, asked(lies, DEVICE)).await;
    assert_eq!(grant.volume(), &Volume::from_line(own).unwrap());
}

/// Proves: M5
#[tokio::test]
async fn a_volume_of_a_pod_s_own_is_a_tenant_s_whatever_its_name() {
    let own = "client=nfs,source=h:/own";
    let mut of_others = flex("client=pool,source=");
    of_others["spec"]["claimRef"]["namespace"] = json!("other");
    for volume in [None, Some(of_others)] {
        let mut fake = Fake {
            volume,
            pod: Some(pod(&json!([inline("v", own)]))),
            ..Fake::default()
        };
        let grant = granted(&fake, asked("client=pool,source=", FLEX)).await;
        assert_eq!(grant.author(), Author::Tenant);
        assert_eq!(grant.volume(), &Volume::from_line(own).unwrap());
        for (line, category, words) in [
            ("client=pool,source=", "forbidden", "use a PersistentVolumeClaim"),
            ("client=local,source=a.img", "forbidden", "use a PersistentVolumeClaim"),
            (
                "client=host,source=h:/x,fs-type=nfs",
                "forbidden",
                "use a PersistentVolumeClaim",
            ),
            ("client=disk,source=/dev/sda", "bad-options", "a path or a device"),
            (
                "client=nfs,source=h:/x,client-image=a/b:1",
                "bad-options",
                "use a PersistentVolumeClaim",
            ),
            (
                "client=nfs,source=h:/x,mount-options=suid",
                "bad-options",
                "removes a protection",
            ),
        ] {
            fake.pod = Some(pod(&json!([inline("v", line)])));
            refused(&fake, asked(own, FLEX), category, words).await;
            // By CSI the kubelet says that it is the Pod's own.
            refused(&fake, own_csi(line), category, words).await;
        }
    }
}

/// Whoever made the claim knows its uid before the volume is there. The node's notes know volumes by name.
///
/// Proves: M5
#[tokio::test]
async fn an_inline_volume_has_no_name_that_a_provisioned_one_will_have() {
    let name = "pvc-1b4e28ba-2fa1-11d2-883f-0016d3cca427";
    let own = "client=nfs,source=h:/own";
    let fake = Fake {
        pod: Some(pod(&json!([inline(name, own), inline("pvc-mine", own)]))),
        ..Fake::default()
    };
    let named = |name: &str| format!("/kubelet/pods/u/volumes/mooring.dev~vcs/{name}");
    refused(&fake, asked(own, &named(name)), "forbidden", "is made for a claim").await;
    granted(&fake, asked(own, &named("pvc-mine"))).await;
}

/// The kubelet has one volume of a name for each Pod, with the options of the one and the Secret of the other.
///
/// Proves: M5
#[tokio::test]
async fn a_pod_with_an_inline_volume_and_a_claim_s_of_one_name_gets_neither() {
    let claim = json!({"name": "x", "persistentVolumeClaim": {"claimName": "data"}});
    let own = inline("v", "client=sshfs,source=u@h:/mine");
    for volumes in [json!([own, claim]), json!([claim, own])] {
        let fake = Fake {
            volume: Some(flex("client=sshfs,source=u@h:/theirs")),
            pod: Some(pod(&volumes)),
            ..Fake::default()
        };
        for line in ["client=sshfs,source=u@h:/mine", "client=sshfs,source=u@h:/theirs"] {
            refused(&fake, asked(line, FLEX), "forbidden", "give the volume another name").await;
        }
    }
}

/// Proves: M5
#[tokio::test]
async fn a_persistent_volume_is_mounted_for_pods_that_use_its_claim_and_no_others() {
    let fake = |volumes: Value| Fake {
        volume: Some(flex("client=nfs,source=h:/x")),
        pod: Some(pod(&volumes)),
        ..Fake::default()
    };
    let other = json!([{"name": "v", "emptyDir": {}}, {"name": "w", "persistentVolumeClaim": {"claimName": "other"}}]);
    let other_driver = json!([{"name": "v", "flexVolume": {"driver": "other/driver"}}]);
    let line = "client=nfs,source=h:/x";
    for volumes in [json!([]), other, other_driver, json!([inline("w", line)])] {
        refused(&fake(volumes), asked(line, FLEX), "forbidden", "is for claim shop/data").await;
    }
    let mut elsewhere = fake(json!([{"name": "x", "persistentVolumeClaim": {"claimName": "data"}}]));
    elsewhere.volume.as_mut().unwrap()["spec"]["claimRef"]["namespace"] = json!("bank");
    refused(&elsewhere, asked(line, FLEX), "forbidden", "is for claim bank/data").await;
    // A generic ephemeral volume has a claim of its own.
    let mut generic = fake(json!([{"name": "data", "ephemeral": {}}]));
    refused(&generic, asked(line, FLEX), "forbidden", "is for claim").await;
    generic.volume.as_mut().unwrap()["spec"]["claimRef"]["name"] = json!("web-data");
    granted(&generic, asked(line, FLEX)).await;
}

/// Proves: M5
#[tokio::test]
async fn a_pod_is_known_by_its_uid_which_the_kubelet_puts_into_the_directory() {
    let line = "client=nfs,source=h:/x";
    let fake = Fake {
        volume: Some(flex(line)),
        pod: Some(with_claim()),
        ..Fake::default()
    };
    let elsewhere = FLEX.replace("/u/", "/u2/");
    refused(
        &fake,
        asked(line, &elsewhere),
        "forbidden",
        "no Pod shop/web with uid u2",
    )
    .await;
    let mut forged = asked(line, FLEX);
    forged.pod.name = "other".into();
    refused(&fake, forged, "forbidden", "no Pod shop/other").await;
}

/// The author of an inline volume can forge what the kubelet says of the group.
///
/// Proves: M5
#[tokio::test]
async fn the_files_are_for_the_group_of_the_pod_as_the_api_has_it() {
    let line = "client=nfs,source=h:/x";
    for (volume, path) in [(flex(line), FLEX), (csi(line), CSI)] {
        for (context, gid, on_root_mismatch) in [
            (json!({}), None, false),
            (json!({"fsGroup": 2000}), Some(2000), false),
            (json!({"fsGroup": 0, "fsGroupChangePolicy": "Always"}), Some(0), false),
            (
                json!({"fsGroup": 7, "fsGroupChangePolicy": "OnRootMismatch"}),
                Some(7),
                true,
            ),
        ] {
            let mut pod = with_claim();
            pod["spec"]["securityContext"] = context;
            let fake = Fake {
                volume: Some(volume.clone()),
                pod: Some(pod),
                ..Fake::default()
            };
            let forged = MountRequest {
                fs_group: Some(PodGroup::always(9)),
                ..asked(line, path)
            };
            let wanted = gid.map(|gid| PodGroup { gid, on_root_mismatch });
            assert_eq!(granted(&fake, forged).await.fs_group(), wanted, "{path}");
        }
    }
}

/// Proves: M5
#[tokio::test]
async fn a_csi_volume_is_the_persistent_volume_whose_handle_the_kubelet_names() {
    let line = "client=nfs,source=h:/x";
    let fake = Fake {
        volume: Some(csi(line)),
        pod: Some(with_claim()),
        ..Fake::default()
    };
    let told = |ephemeral, volume_id: &str| MountRequest {
        told: Told::Csi {
            ephemeral,
            volume_id: volume_id.into(),
        },
        ..asked(line, CSI)
    };
    granted(&fake, told(Some(false), "v")).await;
    refused(&fake, told(Some(false), "csi-0"), "forbidden", "is not the one").await;
    refused(&fake, told(None, "v"), "forbidden", "podInfoOnMount").await;
    let none = Fake {
        volume: None,
        ..fake.clone()
    };
    refused(&none, told(Some(false), "v"), "forbidden", "no PersistentVolume").await;
    let of_flex = Fake {
        volume: Some(flex(line)),
        ..fake
    };
    refused(&of_flex, told(Some(false), ""), "forbidden", "another driver").await;
}

/// Proves: M5
#[tokio::test]
async fn the_pod_of_a_run_has_the_node_s_pool_in_a_namespace_of_configmaps_alone() {
    let pool = "client=pool,source=";
    let run = |namespace: &str| {
        let mut pod = pod(&json!([inline("v", pool)]));
        pod["metadata"]["namespace"] = json!(namespace);
        pod["metadata"]["labels"] = json!({"mooring.dev/component": "provisioning"});
        Fake {
            pod: Some(pod),
            ..Fake::default()
        }
    };
    // The flexVolume is an earlier controller's.
    for request in [own_csi(pool), asked(pool, FLEX)] {
        let in_namespace = |namespace: &str| {
            let mut request = request.clone();
            request.pod.namespace = namespace.into();
            request
        };
        let grant = granted(&run("mooring"), in_namespace("mooring")).await;
        assert_eq!((grant.author(), grant.volume().client.as_str()), (Author::Run, "pool"));
        refused(
            &run("shop"),
            in_namespace("shop"),
            "forbidden",
            "key config-namespaces of ConfigMap mooring-settings",
        )
        .await;
        let mut unmarked = run("mooring");
        unmarked.pod.as_mut().unwrap()["metadata"]["labels"] = json!({"mooring.dev/component": "client"});
        refused(&unmarked, in_namespace("mooring"), "forbidden", "PersistentVolumeClaim").await;
        let mut other = run("mooring");
        other.pod.as_mut().unwrap()["metadata"]["uid"] = json!("u2");
        refused(&other, in_namespace("mooring"), "forbidden", "no Pod").await;
        let hidden = Fake {
            hides: true,
            ..run("mooring")
        };
        refused(&hidden, in_namespace("mooring"), "forbidden", "mooring-mounter-runs").await;
    }
}

/// Proves: M5
#[tokio::test]
async fn the_persistent_volume_says_whether_it_has_to_be_attached() {
    let line = "client=iscsi,source=iscsi://h/t/1";
    let with_secret = |mut volume: Value, secret: &str| {
        for (source, key) in [("flexVolume", "secretRef"), ("csi", "nodePublishSecretRef")] {
            if !volume["spec"][source].is_null() {
                volume["spec"][source][key] = json!({"name": secret});
            }
        }
        volume
    };
    for (volume, path) in [(flex(line), FLEX), (csi(line), CSI)] {
        let mut fake = Fake {
            volume: Some(with_secret(volume.clone(), "attachment-v")),
            pod: Some(with_claim()),
            ..Fake::default()
        };
        refused(&fake, asked(line, path), "forbidden", "has no key mooring-connection").await;
        let keyed = || {
            let mut request = asked(line, path);
            let key = json!({"proof": "x"}).to_string().into_bytes();
            request.secrets.0.insert("mooring-connection".into(), key);
            request
        };
        let granted = answer(&fake, keyed()).await.unwrap();
        assert!(matches!(granted, Granted::ToAttach(_)), "{granted:?}");
        // The key of another volume's Secret, or of the author's.
        fake.volume = Some(with_secret(volume, "attachment-w"));
        refused(&fake, keyed(), "forbidden", "none that has to be attached").await;
    }
    // An inline volume with its name would keep its note on the Node.
    let fake = Fake {
        volume: Some(with_secret(csi(line), "attachment-v")),
        pod: Some(pod(&json!([inline("v", "client=nfs,source=h:/x")]))),
        ..Fake::default()
    };
    refused(&fake, asked(line, FLEX), "forbidden", "another name").await;
    let mut by_csi = asked("client=nfs,source=h:/x", CSI);
    by_csi.told = Told::Csi {
        ephemeral: Some(true),
        volume_id: "csi-x".into(),
    };
    refused(&fake, by_csi, "forbidden", "another name").await;
}

/// The kubelet passes on only whether the Pod's own volume says so.
#[tokio::test]
async fn a_persistent_volume_that_is_read_only_is_so_in_every_pod() {
    let line = "client=nfs,source=h:/x";
    for (mut volume, kind, path) in [(flex(line), "flexVolume", FLEX), (csi(line), "csi", CSI)] {
        volume["spec"][kind]["readOnly"] = json!(true);
        let fake = Fake {
            volume: Some(volume),
            pod: Some(with_claim()),
            ..Fake::default()
        };
        let mut request = asked(line, path);
        if kind == "csi" {
            request.told = Told::Csi {
                ephemeral: Some(false),
                volume_id: "v".into(),
            };
        }
        assert!(granted(&fake, request).await.is_read_only(), "{kind}");
    }
}

/// They would share a directory, and be taken for one another.
#[tokio::test]
async fn a_csi_volume_of_a_pod_s_own_has_the_name_of_no_volume_of_a_claim_beside_it() {
    let line = "client=nfs,source=h:/own";
    let own = || own_csi(line);
    let bound_in = |namespace: &str| {
        let mut volume = csi("client=nfs,source=h:/x");
        volume["spec"]["claimRef"] = json!({"namespace": namespace, "name": "data"});
        Fake {
            volume: Some(volume),
            pod: Some(pod(&json!([]))),
            ..Fake::default()
        }
    };
    let with = |volumes: &Value| Fake {
        pod: Some(pod(volumes)),
        ..bound_in("shop")
    };
    let claim = |name: &str| json!([{"name": "x", "persistentVolumeClaim": {"claimName": name}}]);
    refused(&with(&claim("data")), own(), "forbidden", "another name").await;
    // Such as the Pod of a run, beside a volume that somebody called as it calls its own.
    for volumes in [json!([]), claim("other")] {
        granted(&with(&volumes), own()).await;
    }
    granted(&bound_in("other"), own()).await;
    // Before Kubernetes 1.36.
    let hidden = Fake {
        hides: true,
        ..bound_in("shop")
    };
    refused(&hidden, own(), "forbidden", "another name").await;
    let alone = Fake {
        volume: None,
        ..bound_in("shop")
    };
    granted(&alone, own()).await;
}

#[tokio::test(start_paused = true)]
async fn where_the_api_does_not_answer_nothing_is_mounted_and_the_kubelet_tries_again() {
    let line = "client=nfs,source=h:/x";
    for path in [FLEX, CSI, DEVICE] {
        let fails = Fake {
            fails: true,
            ..Fake::default()
        };
        refused(&fails, asked(line, path), "unproved", "cannot get resource").await;
        let silent = Fake {
            silent: true,
            ..Fake::default()
        };
        refused(&silent, asked(line, path), "unproved", "the kubelet tries again").await;
    }
    let granter = Granter::new(None, []);
    let error = granter.grant(asked(line, FLEX), Instant::now()).await.unwrap_err();
    assert_eq!(MountError::from(error).category(), "node");
}

#[tokio::test]
async fn until_the_settings_were_read_nobody_knows_whose_a_run_is() {
    let pool = "client=pool,source=";
    let mut pod = pod(&json!([inline("v", pool)]));
    pod["metadata"]["labels"] = json!({"mooring.dev/component": "provisioning"});
    let fake = Fake {
        pod: Some(pod),
        ..Fake::default()
    };
    let granter = Granter::new(Some(Arc::new(fake)), SettingsInForce::new("mooring"));
    let deadline = Instant::now() + Duration::from_secs(20);
    let error = granter.grant(own_csi(pool), deadline).await.unwrap_err();
    assert!(error.to_string().contains("was not read yet"), "{error}");
    assert_eq!(MountError::from(error).category(), "unproved");
}

#[tokio::test]
async fn a_kubelet_that_stands_alone_asks_for_its_administrator() {
    let standalone = Granter::standalone();
    let request = asked("client=local,source=a.img", FLEX);
    let granted = standalone.grant(request, Instant::now()).await.unwrap();
    let Granted::Now(grant) = granted else {
        panic!("{granted:?}")
    };
    assert_eq!(grant.author(), Author::Administrator);
    let views = asked("client=x,source=a,fs-type=overlay", FLEX);
    standalone.grant(views, Instant::now()).await.unwrap_err();
}

/// Before Kubernetes 1.36. Of a CSI volume the kubelet says the rest, and its word can't be forged.
#[tokio::test]
async fn where_the_api_shows_no_pod_a_csi_volume_is_mounted_with_the_group_that_the_kubelet_says() {
    let hidden = Fake {
        volume: Some(csi("client=nfs,source=h:/x")),
        hides: true,
        ..Fake::default()
    };
    let request = |path| MountRequest {
        fs_group: Some(PodGroup::always(7)),
        ..asked("client=nfs,source=forged:/x", path)
    };
    let grant = granted(&hidden, request(CSI)).await;
    assert_eq!(grant.volume().source, "h:/x");
    assert_eq!(grant.fs_group(), Some(PodGroup::always(7)));
    let flex = Fake {
        volume: Some(flex("client=nfs,source=h:/x")),
        ..hidden.clone()
    };
    refused(&flex, request(FLEX), "forbidden", "CSI driver").await;
    let shown = Fake {
        pod: Some(pod(&json!([]))),
        hides: false,
        ..hidden
    };
    assert_eq!(granted(&shown, request(CSI)).await.fs_group(), None);
}
