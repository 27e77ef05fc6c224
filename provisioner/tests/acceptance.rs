//! Whatever an image makes or a ConfigMap says, a claim gets no more than its own volume: generated volumes,
//! answers and ConfigMaps, judged by rules that are stated here once more, and more simply.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use flex_provisioner::config::trust::Trust;
use flex_provisioner::volume::acceptance::{Expected, check};
use flex_provisioner::volume::topology::Node;
use k8s_openapi::api::core::v1::PersistentVolume;
use mooring_contract::attachment::secret_name;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

/// The volume that is asked for, for claim `shop/data` with uid `u1` by a ConfigMap of namespace `admin`.
const NAME: &str = "pvc-u1";

/// Options of a volume, and whether an image may print them.
const VOLUMES: [(&[(&str, &str)], bool); 18] = [
    (&[("client", "nfs"), ("source", "h:/x")], true),
    (&[("client", "nfs"), ("source", "h:/x/../y")], false),
    (&[("client", "nfs"), ("source", "/dev/sda")], false),
    (&[("client", "iscsi"), ("source", "iscsi://h/t/1")], true),
    (&[("client", "iscsi"), ("source", "iscsi://h/../1")], false),
    (&[("client", "local"), ("source", "pvc-u1.img")], true),
    (&[("client", "local"), ("source", "pvc-u2.img")], false),
    (&[("client", "local"), ("source", "../pvc-u1.img")], false),
    (&[("client", "pool"), ("source", "")], false),
    (&[("client", "pool"), ("source", "pvc-u1")], false),
    (&[("client", "host"), ("source", "h:/x"), ("fs-type", "nfs")], false),
    (&[("client", "node-disk"), ("source", "serial://1")], false),
    // A vendor's own.
    (&[("client", "disk"), ("source", "disk://h/1")], true),
    (&[("client", "disk"), ("source", "/dev/sda")], false),
    (&[("client", "disk"), ("source", "//dev/loop1")], false),
    (&[("client", "disk"), ("source", "UUID=1-2")], false),
    (&[("client", "disk"), ("source", "a"), ("fs-type", "overlay")], false),
    (&[("source", "h:/x")], false),
];

/// Mount options, and whether an image may ask for them by itself.
const MOUNT_OPTIONS: [(&str, bool); 6] = [
    ("ro", true),
    ("noatime", true),
    ("suid", false),
    ("dev", false),
    ("bind", false),
    ("source=/dev/sda", false),
];

/// What the class asks for, so that an image may print it.
const OF_THE_CLASS: &str = "suid";

const IMAGES: [Option<&str>; 3] = [
    None,
    Some("registry.example/client:1"),
    Some("registry.example/other:1"),
];

/// The image that the ConfigMap names.
const OF_THE_CONFIG_MAP: &str = "registry.example/client:1";

#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    FlexVolume,
    Csi,
    /// Another driver's.
    OtherFlexVolume,
    OtherCsi,
    HostPath,
    LocalPath,
    /// What the kubelet mounts itself: a number of [`IN_TREE`].
    InTree(usize),
}

/// Sources that the kubelet mounts itself, past the mounter, and whether an image may make them. The end-to-end test of
/// the policy for images has the same.
static IN_TREE: LazyLock<Vec<(Value, bool)>> =
    LazyLock::new(|| serde_json::from_str(include_str!("in_tree.json")).unwrap());

#[derive(Debug, Clone)]
struct Made {
    by: By,
    volume: usize,
    mount_options: Vec<usize>,
    image: usize,
    /// Namespace and name of its Secret.
    secret: Option<(&'static str, &'static str)>,
    attaches: bool,
    /// Name, claim's namespace, name and uid, class.
    identity: [&'static str; 5],
    /// GiB, of the one that is asked for.
    size: Option<u8>,
    modes: Vec<&'static str>,
    node: Option<&'static str>,
}

fn mostly(right: &'static str, others: &'static [&'static str]) -> impl Strategy<Value = &'static str> + Clone {
    prop_oneof![12 => Just(right), 1 => select(others)]
}

fn made() -> impl Strategy<Value = Made> {
    let by = prop_oneof![
        5 => Just(By::FlexVolume),
        5 => Just(By::Csi),
        1 => select(vec![By::OtherFlexVolume, By::OtherCsi, By::HostPath, By::LocalPath]),
        5 => (0..IN_TREE.len()).prop_map(By::InTree),
    ];
    let all: Vec<_> = (0..MOUNT_OPTIONS.len()).collect();
    let mount_options = prop_oneof![3 => Just(Vec::new()), 1 => subsequence(all, 1..3)];
    let image = prop_oneof![4 => Just(0_usize), 1 => 0..IMAGES.len()];
    let secret = prop_oneof![
        3 => Just(None),
        3 => (select(&["shop", "admin", "kube-system"][..]), select(&["key", "attachment"][..])).prop_map(Some),
    ];
    let identity = [
        mostly(NAME, &["pvc-u2", "pvc-u1x", "data"]).boxed(),
        mostly("shop", &["other", ""]).boxed(),
        mostly("data", &["other", ""]).boxed(),
        mostly("u1", &["u2", ""]).boxed(),
        mostly("silver", &["gold", ""]).boxed(),
    ];
    let size = prop_oneof![8 => Just(Some(1_u8)), 1 => Just(Some(2)), 1 => Just(Some(0)), 1 => Just(None)];
    let modes = prop_oneof![
        8 => Just(vec!["ReadWriteOnce"]),
        1 => Just(vec!["ReadWriteMany", "ReadWriteOnce"]),
        1 => Just(vec!["ReadWriteMany"]),
        1 => Just(vec![]),
    ];
    let node = prop_oneof![6 => Just(None), 2 => Just(Some("node-a")), 1 => Just(Some("node-b"))];
    (
        (by, 0..VOLUMES.len(), mount_options, image),
        (secret, any::<bool>()),
        (identity, size, modes, node),
    )
        .prop_map(
            |((by, volume, mount_options, image), (secret, attaches), (identity, size, modes, node))| Made {
                by,
                volume,
                mount_options,
                image,
                secret,
                attaches,
                identity,
                size,
                modes,
                node,
            },
        )
}

impl Made {
    fn persistent_volume(&self) -> PersistentVolume {
        let words: Vec<_> = self.mount_options.iter().map(|at| MOUNT_OPTIONS[*at].0).collect();
        let mut options: BTreeMap<_, _> = VOLUMES[self.volume].0.iter().copied().collect();
        let words = words.join(",");
        if !words.is_empty() {
            options.insert("mount-options", &words);
        }
        if let Some(image) = IMAGES[self.image] {
            options.insert("client-image", image);
        }
        let secret = self
            .secret
            .map(|(namespace, name)| json!({"namespace": namespace, "name": if name == "attachment" { secret_name(NAME) } else { name.to_owned() }}));
        let flex = |driver: &str| json!({"flexVolume": {"driver": driver, "options": options, "secretRef": secret}});
        let csi = |driver: &str| {
            json!({"csi": {"driver": driver, "volumeHandle": NAME, "volumeAttributes": options,
                           "nodePublishSecretRef": secret}})
        };
        let mut spec = match self.by {
            By::FlexVolume => flex("mooring.dev/vcs"),
            By::OtherFlexVolume => flex("example.com/vcs"),
            By::Csi => csi("vcs.mooring.dev"),
            By::OtherCsi => csi("csi.example.com"),
            By::HostPath => json!({"hostPath": {"path": "/"}}),
            By::LocalPath => json!({"local": {"path": "/"}}),
            By::InTree(at) => IN_TREE[at].0.clone(),
        };
        let [name, namespace, claim, uid, class] = self.identity;
        if let By::InTree(_) = self.by {
            let words = self.mount_options.iter().map(|at| MOUNT_OPTIONS[*at].0);
            spec["mountOptions"] = words.collect();
        }
        spec["claimRef"] = json!({"namespace": namespace, "name": claim, "uid": uid});
        spec["storageClassName"] = json!(class);
        spec["accessModes"] = json!(self.modes);
        if let Some(size) = self.size {
            spec["capacity"] = json!({"storage": format!("{size}Gi")});
        }
        if let Some(node) = self.node {
            let term =
                json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]});
            spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [term]}});
        }
        serde_json::from_value(json!({"metadata": {"name": name, "uid": "v1"}, "spec": spec})).unwrap()
    }

    /// The rules in short: it is this claim's, as large as asked and usable where it is needed; and it gives out the
    /// storage, never the node, another claim's file, or a Secret of others.
    fn may_be_accepted(&self) -> bool {
        let is_this_claim_s = self.identity == [NAME, "shop", "data", "u1", "silver"]
            && self.size.is_some_and(|size| size >= 1)
            && self.modes.contains(&"ReadWriteOnce")
            && self.node.is_none_or(|node| node == "node-a");
        let asked = |at: &usize| MOUNT_OPTIONS[*at].1 || MOUNT_OPTIONS[*at].0 == OF_THE_CLASS;
        let has_good_options = self.mount_options.iter().all(asked);
        let gives_storage = match self.by {
            By::InTree(at) => IN_TREE[at].1 && has_good_options,
            By::FlexVolume | By::Csi => {
                VOLUMES[self.volume].1
                    && has_good_options
                    && IMAGES[self.image].is_none_or(|image| image == OF_THE_CONFIG_MAP)
            }
            By::OtherFlexVolume | By::OtherCsi | By::HostPath | By::LocalPath => false,
        };
        let has_own_secret = match self.secret.filter(|_| !matches!(self.by, By::InTree(_))) {
            None => !self.attaches,
            Some((namespace, "attachment")) => self.attaches && namespace == "admin",
            Some((namespace, _)) => !self.attaches && namespace != "kube-system",
        };
        is_this_claim_s && gives_storage && has_own_secret
    }
}

fn runner() -> TestRunner {
    TestRunner::new(Config {
        cases: 10_000,
        failure_persistence: None,
        ..Config::default()
    })
}

#[test]
fn no_image_makes_a_claim_a_volume_of_something_else() {
    let claim = json!({
        "metadata": {"name": "data", "namespace": "shop", "uid": "u1"},
        "spec": {"storageClassName": "silver", "accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": "1Gi"}}},
    });
    let claim = serde_json::from_value(claim).unwrap();
    let labels = [("kubernetes.io/hostname".to_owned(), "node-a".to_owned())];
    let node = Node {
        name: "node-a".to_owned(),
        labels: labels.into(),
    };
    let accepted = Cell::new(0);
    let run = runner().run(&made(), |made| {
        let expected = Expected {
            claim: &claim,
            pv_name: NAME,
            config_namespace: "admin",
            node: Some(&node),
            class_options: &[OF_THE_CLASS.to_owned()],
            client_image: Some(OF_THE_CONFIG_MAP),
            attaches: made.attaches,
        };
        let refusals = check(&made.persistent_volume(), &expected);
        prop_assert_eq!(refusals.is_empty(), made.may_be_accepted(), "{:?}", refusals);
        accepted.set(accepted.get() + usize::from(refusals.is_empty()));
        Ok(())
    });
    run.unwrap();
    // Else it would be no test.
    assert!(accepted.get() > 200, "{} accepted", accepted.get());
}

/// An image as a ConfigMap names it: registry, repository, tag and digest.
fn image() -> impl Strategy<Value = [&'static str; 4]> {
    let registry = select(
        &[
            "",
            "docker.io/",
            "index.docker.io/",
            "registry.example/",
            "registry.example:443/",
            "registry.example.evil/",
            "REGISTRY.example/",
            "registry.example//",
            "localhost/",
        ][..],
    );
    let repository = select(
        &[
            "mooring/a",
            "mooring/a/b",
            "mooring",
            "mooringx/a",
            "library/a",
            "a",
            "Mooring/a",
        ][..],
    );
    let tag = select(&["", ":1", ":", ":-1", ":1@"][..]);
    let digest = select(
        &[
            "",
            "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "@sha256:0",
            "@",
        ][..],
    );
    (registry, repository, tag, digest)
        .prop_map(|(registry, repository, tag, digest)| [registry, repository, tag, digest])
}

#[test]
fn no_configmap_has_an_image_an_account_or_a_namespace_that_nobody_allowed() {
    let trust = Trust::new(
        ["admin".to_owned(), "mooring".to_owned()],
        ["registry.example/mooring/*".parse().unwrap()],
    );
    let namespaces = select(&["admin", "mooring", "shop", "admin2", "", "Admin"][..]);
    let accounts = select(&["default", "mounter", "flex-provisioner", "client", "vendor"][..]);
    let allowed = Cell::new(0);
    let run = runner().run(&(image(), namespaces, accounts), |(image, namespace, account)| {
        let [registry, repository, tag, digest] = image;
        let has_form = ["", ":1"].contains(&tag) && (digest.is_empty() || digest.len() > 70);
        // A host has no case.
        let may = has_form && registry.to_lowercase() == "registry.example/" && repository == "mooring/a";
        let checked = trust.image(&image.concat());
        prop_assert_eq!(checked.is_ok(), may, "{:?}", checked);
        prop_assert_eq!(
            trust.check_namespace(namespace).is_ok(),
            ["admin", "mooring"].contains(&namespace)
        );
        let is_own = namespace == "mooring" && ["mounter", "flex-provisioner", "client"].contains(&account);
        prop_assert_eq!(trust.check_service_account(namespace, account).is_ok(), !is_own);
        allowed.set(allowed.get() + usize::from(may));
        Ok(())
    });
    run.unwrap();
    assert!(allowed.get() > 20, "{} allowed", allowed.get());
}
