use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use mooring_contract::operation::Operation;
use secrecy::ExposeSecret;

use super::{ProblemKind, Severity};
use crate::config::trust::Trust;
use crate::config::{BindingMode, ConfigProblem, ProvisionerConfig, ReclaimPolicy, VolumeSourceKind};
use crate::yaml;

fn trust() -> Trust {
    Trust::new(
        ["mooring".to_owned(), "admin".to_owned()],
        ["mooring.dev/*".parse().unwrap(), "custom/*".parse().unwrap()],
    )
}

fn parse(data: &str) -> Result<ProvisionerConfig, Vec<ConfigProblem>> {
    let data: std::collections::BTreeMap<String, String> = yaml::from_str(data).unwrap();
    let mut config_map = ConfigMap {
        data: Some(data),
        ..ConfigMap::default()
    };
    config_map.metadata.namespace = Some("mooring".into());
    config_map.metadata.name = Some("test".into());
    config_map.metadata.labels = Some([("storage-class".to_owned(), "test".to_owned())].into());
    ProvisionerConfig::parse(&config_map, &trust())
}

/// A good ConfigMap and these lines.
fn with(lines: &str) -> Result<ProvisionerConfig, Vec<ConfigProblem>> {
    parse(&format!(
        "plugin-name: mooring.dev/flex-provisioner\nimage: mooring.dev/provisioner-local:0.1.0\n{lines}"
    ))
}

#[test]
fn bytes_per_inode_are_one_of_those_that_the_mounter_takes() {
    let config = with("bytes-per-inode: \"8192\"").unwrap();
    assert_eq!(config.bytes_per_inode.as_deref(), Some("8192"));
    assert!(!config.pass_through.contains_key("bytes-per-inode"));
    for line in ["bytes-per-inode: \"1024\"", "bytes-per-inodes: \"4096\""] {
        let problems = with(line).unwrap_err();
        assert!(problems[0].to_string().contains("bytes-per-inode"), "{problems:?}");
    }
}

#[test]
fn a_file_system_is_asked_for_by_a_class_and_a_config_map_that_does_so_is_told() {
    for key in ["fs-type", "fsType", "fstype", "fs_type"] {
        let problems = with(&format!("{key}: xfs")).unwrap_err();
        let text = problems[0].to_string();
        assert!(
            problems.len() == 1 && text.contains(key) && text.contains("class of your own with parameter fs-type: xfs"),
            "{problems:?}"
        );
    }
    // An image may have a property of this name.
    let mut config_map = ConfigMap {
        data: Some(
            [
                ("plugin-name", "mooring.dev/flex-provisioner"),
                ("image", "custom/acme"),
                ("fsType", "acmefs"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ),
        ..ConfigMap::default()
    };
    config_map.metadata.namespace = Some("mooring".into());
    let pass_through = ("mooring.dev/pass-through".to_owned(), "fsType".to_owned());
    config_map.metadata.annotations = Some([pass_through].into());
    let config = ProvisionerConfig::parse(&config_map, &trust()).unwrap();
    assert_eq!(config.pass_through["fsType"], "acmefs");
}

const SILVER: &str = r#"
kind: ConfigMap
apiVersion: v1
metadata:
  name: custom-isci-provisioner
  namespace: admin
  labels: {storage-class: silver, type: provisioner-config}
data:
  plugin-name: kubernetes.io/flex-provisioner
  image: custom/iscsi-provision
  service-account-name: foo
  service-token: "23092390532lksf90kwelklfw"
  use-nfs-server: 10.10.2.4
  zone: west
"#;

#[test]
fn the_original_silver_config_map_works_word_for_word() {
    let config = ProvisionerConfig::parse(&yaml::from_str(SILVER).unwrap(), &trust()).unwrap();
    assert_eq!(config.reference.to_string(), "admin/custom-isci-provisioner");
    assert_eq!(config.class_name.as_deref(), Some("silver"));
    assert_eq!(config.image, "custom/iscsi-provision");
    assert_eq!(config.service_account.as_deref(), Some("foo"));
    assert_eq!(
        config.service_token.as_ref().unwrap().expose_secret(),
        "23092390532lksf90kwelklfw"
    );
    let properties: Vec<_> = config
        .pass_through
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(properties, [("use-nfs-server", "10.10.2.4"), ("zone", "west")]);
    assert_eq!(config.warnings, []);
    assert!(config.operations.contains(&Operation::Provision) && config.operations.contains(&Operation::Delete));
    assert_eq!(config.class.binding_mode, BindingMode::Immediate);
    assert_eq!(config.class.reclaim_policy, ReclaimPolicy::Delete);
    assert!(
        !format!("{config:?}").contains("23092390532lksf90kwelklfw"),
        "a token in a log"
    );
}

#[test]
fn every_known_key_is_read() {
    let config = with(
        r"
service-account-name: foo
node-selector: disk=ssd
tolerations: '[{key: storage, operator: Exists}]'
secret-name: login
timeout: 90s
max-parallel: '3'
operations: provision, delete
volume-source: flexvolume
backend-volume: client=pool
backup-volume: client=nfs,source=10.10.2.4:/backups
client-image: mooring.dev/client-sshfs:0.1.0
reclaim-policy: Retain
volume-binding-mode: WaitForFirstConsumer
mount-options: noatime,ro
zone: west
",
    )
    .unwrap();
    assert_eq!(config.node_selector["disk"], "ssd");
    assert_eq!(config.tolerations.len(), 1);
    assert_eq!(config.secret_name.as_deref(), Some("login"));
    assert_eq!(config.timeout, Duration::from_secs(90));
    assert_eq!(config.max_parallel.unwrap().get(), 3);
    assert_eq!(config.volume_source, Some(VolumeSourceKind::FlexVolume));
    assert!(config.is_node_local());
    assert_eq!(config.client_image.as_deref(), Some("mooring.dev/client-sshfs:0.1.0"));
    assert_eq!(config.class.reclaim_policy, ReclaimPolicy::Retain);
    assert_eq!(config.class.binding_mode, BindingMode::WaitForFirstConsumer);
    assert_eq!(config.class.mount_options, ["noatime", "ro"]);
    assert_eq!(config.pass_through.len(), 1);
    assert_eq!(config.warnings, []);
}

#[test]
fn a_volume_source_is_one_of_both_drivers_in_any_case() {
    for (text, kind) in [
        ("flexVolume", VolumeSourceKind::FlexVolume),
        ("CSI", VolumeSourceKind::Csi),
        ("csi", VolumeSourceKind::Csi),
    ] {
        let config = with(&format!("volume-source: {text}")).unwrap();
        assert_eq!(config.volume_source, Some(kind), "{text}");
    }
}

#[test]
fn each_mistake_is_found_at_its_key_and_with_a_cure() {
    use ProblemKind::{BadValue, Collision, Contradiction, NearMiss};
    for (lines, key, kind, cure) in [
        (
            "sevice-account-name: foo",
            "sevice-account-name",
            NearMiss,
            "service-account-name",
        ),
        (
            "service-account-name: ''",
            "service-account-name",
            BadValue,
            "remove the key",
        ),
        (
            "service-account-name: other/foo",
            "service-account-name",
            BadValue,
            "no namespace",
        ),
        ("secret-name: kube-system/x", "secret-name", BadValue, "no namespace"),
        ("node-selector: ssd", "node-selector", BadValue, "label=value"),
        ("tolerations: storage", "tolerations", BadValue, "operator: Exists"),
        ("timeout: 5 minutes", "timeout", BadValue, "5m"),
        ("max-parallel: '0'", "max-parallel", BadValue, "from 1"),
        (
            "operations: provision,remove",
            "operations",
            BadValue,
            "delete-snapshot",
        ),
        ("operations: delete", "operations", Contradiction, "add it"),
        ("operations: provision", "operations", Contradiction, "Retain"),
        (
            "allow-volume-expansion: 'true'",
            "allow-volume-expansion",
            Contradiction,
            "expand",
        ),
        (
            "allow-volume-expansion: 'yes'",
            "allow-volume-expansion",
            BadValue,
            "\"true\"",
        ),
        ("volume-source: nfs", "volume-source", BadValue, "flexVolume or csi"),
        ("backend-volume: /exports", "backend-volume", BadValue, "key=value"),
        ("backend-volume: source=x", "backend-volume", BadValue, "client=nfs"),
        (
            "backup-volume: client=pool",
            "backup-volume",
            BadValue,
            "is lost with it",
        ),
        (
            "backend-volume: client=local,source=x",
            "backend-volume",
            BadValue,
            "client=pool",
        ),
        (
            "backup-volume: client=local,source=x",
            "backup-volume",
            BadValue,
            "volume of a claim",
        ),
        ("backup-volume: /exports", "backup-volume", BadValue, "key=value"),
        ("client-image: A B", "client-image", BadValue, "lower-case"),
        (
            "reclaim-policy: Recycle",
            "reclaim-policy",
            BadValue,
            "Delete or Retain",
        ),
        (
            "volume-binding-mode: Late",
            "volume-binding-mode",
            BadValue,
            "WaitForFirstConsumer",
        ),
        ("mount-options: ro noatime", "mount-options", BadValue, "commas"),
        ("a-b: x\na.b: y", "a.b", Collision, "rename"),
        ("size: 3", "size", Collision, "another name"),
        ("path: /x", "path", Collision, "storage-path"),
    ] {
        let problems = with(lines).expect_err(lines);
        let errors: Vec<_> = problems.iter().filter(|p| p.severity == Severity::Error).collect();
        assert_eq!(errors.len(), 1, "{lines}: {problems:?}");
        assert_eq!(
            (errors[0].key.as_str(), errors[0].kind),
            (key, kind),
            "{lines}: {problems:?}"
        );
        assert!(errors[0].message.contains(cure), "{lines}: {}", errors[0].message);
    }
}

#[test]
fn oddities_are_warned_of() {
    for (lines, key, kind) in [
        (
            "use-nfs-server: 10.10.2.4 zone:west",
            "use-nfs-server",
            ProblemKind::MissingSpace,
        ),
        (
            "backend-volume: client=pool",
            "volume-binding-mode",
            ProblemKind::Contradiction,
        ),
        ("multi-attach: 'true'", "multi-attach", ProblemKind::Contradiction),
    ] {
        let config = with(lines).unwrap();
        let found: Vec<_> = config.warnings.iter().map(|p| (p.key.as_str(), p.kind)).collect();
        assert_eq!(found, [(key, kind)], "{lines}");
    }
    for lines in [
        "servers: a:/x b:/y",
        "portals: 10.0.0.1:3260 san:3260",
        "url: see http://x",
        "motto: 'well: yes'",
    ] {
        assert_eq!(with(lines).unwrap().warnings, [], "{lines}");
    }
}

#[test]
fn attach_needs_detach_and_a_volume_source() {
    for (lines, says) in [
        (
            "operations: provision,delete,attach\nvolume-source: csi",
            "one of attach and detach",
        ),
        (
            "operations: provision,delete,detach\nvolume-source: csi",
            "one of attach and detach",
        ),
        ("operations: provision,delete,attach,detach", "set volume-source"),
    ] {
        let problems = with(lines).unwrap_err();
        assert_eq!(problems.len(), 1, "{lines}: {problems:?}");
        assert!(problems[0].message.contains(says), "{lines}: {problems:?}");
        assert_eq!(
            (problems[0].key.as_str(), problems[0].kind),
            ("operations", ProblemKind::Contradiction)
        );
    }
    let attaching = "operations: provision,delete,attach,detach\nvolume-source: flexVolume";
    assert!(!with(attaching).unwrap().multi_attach);
    assert!(
        with(&format!("{attaching}\nmulti-attach: 'true'"))
            .unwrap()
            .multi_attach
    );
}

#[test]
fn a_worker_carries_out_what_needs_no_token() {
    for (lines, says) in [
        ("workers: '1'", "set volume-source"),
        (
            "workers: '1'\nvolume-source: csi\nservice-account-name: foo",
            "service-account-name gives",
        ),
        (
            "workers: '1'\nvolume-source: csi\nservice-token: x",
            "service-token gives",
        ),
        ("workers: many\nvolume-source: csi", "from 0 to 20"),
        ("workers: '21'\nvolume-source: csi", "from 0 to 20"),
    ] {
        let problems = with(lines).unwrap_err();
        let of_it: Vec<_> = problems.iter().filter(|problem| problem.key == "workers").collect();
        assert_eq!(of_it.len(), 1, "{lines}: {problems:?}");
        assert!(of_it[0].message.contains(says), "{lines}: {problems:?}");
    }
    for (lines, always, if_capable) in [
        ("workers: '3'\nvolume-source: csi", 3, 3),
        ("workers: '0'\nvolume-source: csi", 0, 0),
        ("volume-source: csi", 0, 2),
        // Where a worker could do nothing there is none, whatever its image states.
        ("timeout: 1m", 0, 0),
        ("volume-source: csi\nservice-account-name: foo", 0, 0),
        ("volume-source: csi\nservice-token: x", 0, 0),
        (
            "volume-source: csi\nbackend-volume: client=pool\nvolume-binding-mode: WaitForFirstConsumer",
            0,
            2,
        ),
    ] {
        let config = with(lines).unwrap();
        assert_eq!(
            (config.workers(false), config.workers(true)),
            (always, if_capable),
            "{lines}"
        );
        assert!(config.warnings.is_empty(), "{lines}: {:?}", config.warnings);
    }
    let idle = |lines: &str| with(&format!("volume-source: csi\n{lines}")).map(|config| config.workers_idle.as_secs());
    assert_eq!(idle("workers: '2'").unwrap(), 600);
    assert_eq!(idle("workers: '2'\nworkers-idle: 30s").unwrap(), 30);
    assert_eq!(idle("workers-idle: 30s").unwrap(), 30);
    for (lines, says) in [
        ("workers: '2'\nworkers-idle: 5s", "from 10s to 24h"),
        ("workers: '2'\nworker-idle: 30s", "looks like \"workers-idle\" misspelt"),
    ] {
        let problems = idle(lines).unwrap_err();
        assert!(problems[0].to_string().contains(says), "{problems:?}");
    }
    for lines in [
        "workers-idle: 30s",
        "workers-idle: 30s\nworkers: '0'\nvolume-source: csi",
    ] {
        let config = with(lines).unwrap();
        assert!(
            config.warnings[0].to_string().contains("there are no workers"),
            "{lines}"
        );
    }
}

#[test]
fn all_mistakes_are_found_at_once() {
    let problems = parse("imag: x\ntimeout: soon\nmax-parallel: many\nsize: '1'").unwrap_err();
    let keys: Vec<_> = problems.iter().map(|p| p.key.as_str()).collect();
    for key in ["imag", "image", "plugin-name", "timeout", "max-parallel", "size"] {
        assert!(keys.contains(&key), "{key} not in {keys:?}");
    }
}

#[test]
fn trust_is_checked() {
    let problems = parse("plugin-name: mooring.dev/flex-provisioner\nimage: evil/x").unwrap_err();
    assert_eq!(problems[0].kind, ProblemKind::Untrusted);
    let mut config_map: ConfigMap = yaml::from_str(SILVER).unwrap();
    config_map.metadata.namespace = Some("tom".into());
    let problems = ProvisionerConfig::parse(&config_map, &trust()).unwrap_err();
    assert_eq!(
        (problems[0].kind, problems[0].key.as_str()),
        (ProblemKind::Untrusted, "metadata.namespace")
    );
}

#[test]
fn a_config_map_may_have_the_csi_driver_s_name_for_volumes_of_that_driver_only() {
    let by_csi = |lines: &str| parse(&format!("plugin-name: vcs.mooring.dev\nimage: mooring.dev/x\n{lines}"));
    assert_eq!(by_csi("volume-source: csi").unwrap().provisioner, "vcs.mooring.dev");
    for line in ["", "volume-source: flexVolume"] {
        let problems = by_csi(line).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(
            (problems[0].kind, problems[0].key.as_str()),
            (ProblemKind::Contradiction, "plugin-name")
        );
        let text = problems[0].to_string();
        assert!(
            text.contains("set volume-source: csi, or write mooring.dev/flex-provisioner"),
            "{text}"
        );
    }
    for name in ["mooring.dev/flex-provisioner", "kubernetes.io/flex-provisioner"] {
        let config = parse(&format!(
            "plugin-name: {name}\nimage: mooring.dev/x\nvolume-source: csi"
        ))
        .unwrap();
        assert_eq!(config.provisioner, "mooring.dev/flex-provisioner");
    }
}

#[test]
fn another_plugin_s_config_map_and_a_misspelt_one_are_told_apart() {
    for (name, kind) in [
        ("mooring.dev/flex-provisoner", ProblemKind::NearMiss),
        ("csi.mooring.dev", ProblemKind::NearMiss),
        ("mooring.dev/vcs", ProblemKind::BadValue),
        ("example.com/other", ProblemKind::BadValue),
    ] {
        let problems = parse(&format!("plugin-name: {name}\nimage: mooring.dev/x")).unwrap_err();
        assert_eq!(problems[0].kind, kind, "{name}");
    }
}

#[test]
fn a_near_miss_that_is_meant_can_be_said_to_be() {
    let mut config_map: ConfigMap = yaml::from_str(SILVER).unwrap();
    config_map
        .data
        .as_mut()
        .unwrap()
        .insert("timeouts".into(), "5,6".into());
    assert!(ProvisionerConfig::parse(&config_map, &trust()).is_err());
    config_map.metadata.annotations = Some([("mooring.dev/pass-through".to_owned(), "timeouts".to_owned())].into());
    let config = ProvisionerConfig::parse(&config_map, &trust()).unwrap();
    assert_eq!(config.pass_through["timeouts"], "5,6");
}

#[test]
fn the_fingerprint_changes_with_the_meaning_only() {
    let mut config_map: ConfigMap = yaml::from_str(SILVER).unwrap();
    let of = |config_map: &ConfigMap| super::fingerprint(config_map, "a/b:1", &[]);
    let before = of(&config_map);
    config_map.metadata.annotations = Some([("mooring.dev/status".to_owned(), "in force".to_owned())].into());
    config_map.metadata.resource_version = Some("7".into());
    assert_eq!(of(&config_map), before);
    // A worker of another registry's image, or with another login, is another one.
    assert_ne!(super::fingerprint(&config_map, "c/b:1", &[]), before);
    assert_ne!(super::fingerprint(&config_map, "a/b:1", &["login".to_owned()]), before);
    config_map.data.as_mut().unwrap().insert("zone".into(), "east".into());
    assert_ne!(of(&config_map), before);
}

#[test]
fn a_class_name_that_no_class_can_have_is_an_error() {
    let mut config_map: ConfigMap = yaml::from_str(SILVER).unwrap();
    config_map
        .metadata
        .labels
        .as_mut()
        .unwrap()
        .insert("storage-class".into(), "Silver_1".into());
    let problems = ProvisionerConfig::parse(&config_map, &trust()).unwrap_err();
    assert_eq!(problems[0].key, "metadata.labels.storage-class");
    config_map.metadata.labels.as_mut().unwrap().remove("storage-class");
    assert_eq!(
        ProvisionerConfig::parse(&config_map, &trust()).unwrap().class_name,
        None
    );
}

#[test]
fn what_is_too_long_to_be_kept_in_force_is_refused() {
    let lines = |count: usize| {
        (0..count).fold(String::new(), |text, at| {
            format!("{text}ca-{at}: \"{}\"\n", "x".repeat(1000))
        })
    };
    assert!(with(&lines(118)).is_ok());
    let problems = with(&lines(125)).unwrap_err();
    assert_eq!(problems[0].category(), "too-long");
    assert!(problems[0].to_string().contains("secret-name"), "{}", problems[0]);
}
