//! A provisioner ConfigMap, as YAML and as its keys; and the Pod for an accepted one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flex_provisioner::config::trust::Trust;
use flex_provisioner::config::{ConfigProblem, ProvisionerConfig, ReclaimPolicy, Severity};
use flex_provisioner::controllers::config::verdict::verdict;
use flex_provisioner::run::RunId;
use flex_provisioner::run::input_state::InputState;
use flex_provisioner::run::order::Order;
use flex_provisioner::run::pod::{Skeleton, build};
use flex_provisioner::run::properties::Properties;
use flex_provisioner::yaml;
use k8s_openapi::api::core::v1::ConfigMap;
use mooring::lint::check::check as lint;
use mooring::lint::text::documents;
use mooring_contract::names::{NAMESPACE, annotations, labels};
use mooring_contract::operation::Operation;
use mooring_contract::property::{self, env_name};
use mooring_contract::request::Request;
use mooring_contract::volume::{Speaker, Volume};
use mooring_contract::worker::ASKED_VARIABLE;
use secrecy::ExposeSecret;
use serde_json::{Value, json};

/// Runs an input; panics if an invariant is broken.
///
/// # Panics
/// If an invariant is broken.
pub fn run(text: &str) {
    let allowed = "mooring.dev/*".parse().expect("a pattern");
    let trust = Trust::new([NAMESPACE.to_owned()], [allowed]);
    if let Ok(config_map) = yaml::from_str::<ConfigMap>(text) {
        judge(&config_map, &trust);
    }
    linted(text, &trust);
    // A key and its value on one line each, so that the fuzzer need not learn YAML first. A line that begins with @ is
    // outside of the data.
    let mut config_map: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": "fuzz", "namespace": NAMESPACE, "uid": "u", "labels": {labels::TYPE: labels::TYPE_PROVISIONER_CONFIG}},
        "data": {"plugin-name": "mooring.dev/flex-provisioner", "image": "mooring.dev/x"},
    }))
    .expect("a ConfigMap");
    for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
        let (key, value) = (key.to_owned(), value.replace('|', "\n"));
        let map = match key.as_str() {
            "@class" => (&mut config_map.metadata.labels, labels::STORAGE_CLASS.to_owned()),
            "@pass" => (
                &mut config_map.metadata.annotations,
                annotations::PASS_THROUGH.to_owned(),
            ),
            "@namespace" => {
                config_map.metadata.namespace = Some(value);
                continue;
            }
            _ => (&mut config_map.data, key),
        };
        map.0.get_or_insert_default().insert(map.1, value);
    }
    judge(&config_map, &trust);
}

fn judge(config_map: &ConfigMap, trust: &Trust) {
    let now = verdict(config_map, None, trust);
    match ProvisionerConfig::parse(config_map, trust) {
        Ok(config) => {
            let read = config_map.data.clone().unwrap_or_default();
            assert_eq!(
                config.reference.namespace, NAMESPACE,
                "a namespace that is not honoured"
            );
            assert!(
                config
                    .warnings
                    .iter()
                    .all(|problem| problem.severity == Severity::Warning)
            );
            has_its_bounds(&config);
            is_handed_on_unread(&config, &read);
            makes_a_harmless_pod(&config);
            stays_in_force(config_map, &config, now.record.as_deref(), trust);
        }
        Err(problems) => {
            assert!(problems.iter().any(|problem| problem.severity == Severity::Error));
            assert!(now.record.is_none());
            keep_the_token(config_map, &problems);
        }
    }
}

fn has_its_bounds(config: &ProvisionerConfig) {
    // A registry's name ignores case.
    assert!(
        config.image.to_ascii_lowercase().starts_with("mooring.dev/"),
        "{}",
        config.image
    );
    assert!((Duration::from_secs(1)..=Duration::from_hours(24)).contains(&config.timeout));
    assert!(config.operations.contains(&Operation::Provision));
    let deletes = config.operations.contains(&Operation::Delete);
    assert!(deletes || config.class.reclaim_policy == ReclaimPolicy::Retain);
    assert!(config.operations.contains(&Operation::Expand) || !config.class.allow_expansion);
    for name in [&config.service_account, &config.secret_name, &config.class_name]
        .into_iter()
        .flatten()
    {
        assert!(
            !name.is_empty() && name.len() <= 253 && !name.contains(['/', ' ', '\n']),
            "{name}"
        );
    }
    let account = config.service_account.as_deref().unwrap_or_default();
    assert!(!["flex-provisioner", "mounter", "client"].contains(&account));
    for volume in config.backend_volume.iter().chain(&config.backup_volume) {
        assert!(volume.check(Speaker::Image, &[]).is_ok());
        assert_eq!(Volume::from_options(&volume.to_options()).as_ref(), Ok(volume));
    }
}

/// Every key is Mooring's own, or is passed to the image unchanged and separate from all others.
fn is_handed_on_unread(config: &ProvisionerConfig, data: &BTreeMap<String, String>) {
    let mut variables: BTreeSet<String> = property::keys::ALL.iter().map(|key| env_name(key)).collect();
    for (key, value) in &config.pass_through {
        assert_eq!(data.get(key), Some(value));
        assert!(!value.contains('\0'));
        assert!(variables.insert(env_name(key)), "{key} shares its variable");
    }
    for key in data.keys() {
        assert!(
            config.pass_through.contains_key(key) || flex_provisioner::config::keys::is_known(key),
            "{key} is lost"
        );
    }
}

fn request_of(config: &ProvisionerConfig) -> Request {
    Request {
        contract: 1,
        operation: Operation::Provision,
        pv_name: "pvc-u".to_owned(),
        username: "tom".to_owned(),
        groups: Vec::new(),
        size: 1,
        size_gi: 1,
        pvc_name: "data".to_owned(),
        pvc_namespace: "shop".to_owned(),
        pvc_uid: "u".to_owned(),
        storage_class: "silver".to_owned(),
        access_modes: vec!["ReadWriteOnce".to_owned()],
        volume_mode: "Filesystem".to_owned(),
        fs_type: String::new(),
        mount_options: config.class.mount_options.clone(),
        reclaim_policy: config.class.reclaim_policy.as_str().to_owned(),
        deletion_policy: String::new(),
        node_name: String::new(),
        topology: BTreeMap::new(),
        allowed_topologies: Vec::new(),
        service_account: config.service_account.clone().unwrap_or_default(),
        kube_api: "https://10.0.0.1:443".to_owned(),
        parameters: config.pass_through.clone(),
        volume: BTreeMap::new(),
        source: None,
        snapshot: None,
        attributes: None,
        attaches: false,
        attachment: None,
    }
}

fn makes_a_harmless_pod(config: &ProvisionerConfig) {
    let request = request_of(config);
    // What was accepted can be passed on, except for one name that is a file of Mooring's.
    let token = config.service_token.clone();
    let Ok(properties) = Properties::new(&request, &BTreeMap::new(), token) else {
        assert!(
            config.pass_through.contains_key("request.json"),
            "can't be handed to the image"
        );
        return;
    };
    let pod = build(&Skeleton {
        order: Order {
            id: &RunId::new(Operation::Provision, &request.pvc_uid),
            request: &request,
            config,
            attempt: 1,
            state: &InputState::Unknown,
            node: None,
            allowed: &[],
            owner: None,
            seals: false,
            backups_read_only: false,
        },
        secret: "secret-of-the-pod",
        properties: &properties.names(),
    });
    let pod = serde_json::to_value(&pod).expect("a Pod");
    is_of_the_known_shape(&pod["spec"], &config.image);
    if let Some(token) = &config.service_token
        && token.expose_secret().len() > 8
        && !config_says(config, token.expose_secret())
    {
        assert!(
            !pod.to_string().contains(&json!(token.expose_secret()).to_string()),
            "a secret stands in the Pod"
        );
    }
}

/// A Pod's spec has what the skeleton gives it, and nothing that a ConfigMap could have added.
fn is_of_the_known_shape(spec: &Value, image: &str) {
    let spec = spec.as_object().expect("a spec");
    let shape: BTreeSet<&str> = spec.keys().map(String::as_str).collect();
    let known = [
        "activeDeadlineSeconds",
        // To nodes where its volume can be mounted, and to no others.
        "affinity",
        "automountServiceAccountToken",
        "containers",
        "enableServiceLinks",
        "nodeSelector",
        "restartPolicy",
        "securityContext",
        "serviceAccountName",
        "tolerations",
        "volumes",
    ];
    assert!(shape.is_subset(&known.into()), "{shape:?}");
    if let Some(affinity) = spec.get("affinity") {
        let kinds: Vec<_> = affinity.as_object().expect("an affinity").keys().collect();
        assert_eq!(kinds, ["nodeAffinity"], "{affinity}");
    }
    for volume in spec["volumes"].as_array().expect("volumes") {
        let kind = ["secret", "emptyDir", "csi"]
            .iter()
            .filter(|kind| volume.get(**kind).is_some())
            .count();
        assert_eq!(
            (kind, volume.as_object().map(serde_json::Map::len)),
            (1, Some(2)),
            "{volume}"
        );
        let secret = volume.pointer("/secret/secretName").and_then(Value::as_str);
        assert!(secret.is_none_or(|name| name == "secret-of-the-pod"));
    }
    let container = &spec["containers"][0];
    assert_eq!(spec["containers"].as_array().map(Vec::len), Some(1));
    assert_eq!(container["image"], image);
    assert_eq!(container["securityContext"]["privileged"], false);
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert!(
        ["command", "args", "envFrom", "ports", "volumeDevices"]
            .iter()
            .all(|key| container.get(key).is_none())
    );
    assert!(
        container["env"]
            .as_array()
            .expect("variables")
            .iter()
            .all(|variable| variable.get("value").is_none() || variable["name"] == ASKED_VARIABLE)
    );
}

/// Whether the ConfigMap has a value outside of `service-token` as well.
fn config_says(config: &ProvisionerConfig, text: &str) -> bool {
    let rest = ProvisionerConfig {
        service_token: None,
        ..config.clone()
    };
    format!("{rest:?}").contains(&format!("{text:?}"))
}

/// A bad edit leaves a good version in force, even for a controller that has only the record of it.
fn stays_in_force(config_map: &ConfigMap, config: &ProvisionerConfig, record: Option<&str>, trust: &Trust) {
    let record = record.expect("a good version has a record");
    let mut bad = config_map.clone();
    bad.data
        .get_or_insert_default()
        .insert("timeout".to_owned(), "soon".to_owned());
    bad.metadata.annotations = Some([(annotations::LAST_GOOD.to_owned(), record.to_owned())].into());
    let after = verdict(&bad, None, trust);
    assert!(after.record.is_none(), "a bad version was recorded");
    let kept = after.entry.good.expect("the version on record");
    assert_eq!(kept.fingerprint, config.fingerprint);
    assert_eq!(kept.pass_through, config.pass_through);
}

/// Messages about a ConfigMap never contain its token.
fn keep_the_token(config_map: &ConfigMap, problems: &[ConfigProblem]) {
    let mut elsewhere = config_map.clone();
    let token = elsewhere.data.as_mut().and_then(|data| data.remove("service-token"));
    // A short word may be part of any sentence.
    let token = token
        .as_deref()
        .map(str::trim)
        .filter(|token| token.len() > 8 && token.contains(char::is_numeric));
    if let Some(token) = token
        && !format!("{elsewhere:?}").contains(&token[..4.min(token.floor_char_boundary(4))])
    {
        for problem in problems {
            assert!(!problem.to_string().contains(token), "{problem}");
        }
    }
}

/// If `lint` accepts a file, so does the controller; and each finding is on a line of the file.
fn linted(text: &str, trust: &Trust) {
    for document in documents(text) {
        let checked = lint(&document, trust);
        let lines = yaml_lines(&document.text);
        for finding in &checked.findings {
            let line = finding.line + 1 - document.first_line;
            assert!(
                (1..=lines.max(1) + 1).contains(&line),
                "line {line} of {lines}: {}",
                finding.message
            );
        }
        if let Some(linted) = checked
            .config
            .filter(|_| checked.findings.iter().all(|f| f.severity == Severity::Warning))
        {
            let mut config_map: ConfigMap = yaml::from_str(&document.text).expect("what lint found good");
            config_map
                .metadata
                .namespace
                .get_or_insert_with(|| NAMESPACE.to_owned());
            let taken = ProvisionerConfig::parse(&config_map, trust).expect("what lint found good");
            assert_eq!((taken.image, taken.pass_through), (linted.image, linted.pass_through));
        }
    }
}

/// Lines as YAML counts them: it has more kinds of line breaks than most formats.
fn yaml_lines(text: &str) -> usize {
    let text = text.replace("\r\n", "\n");
    text.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count()
}
