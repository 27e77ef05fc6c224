//! The ways to install Mooring make the same objects: kustomize and the Helm chart, in any namespace.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use mooring_contract::names::SETTINGS_CONFIG;
use mooring_testbed::binaries::{Release, Releases, ensure_binaries, ensure_helm};
use mooring_testbed::command::{command, output};
use mooring_testbed::layout::repository;
use mooring_yaml::documents;
use serde_json::{Value, json};

/// Another namespace than that of the manifests.
const ELSEWHERE: &str = "storage";

/// Objects by kind and name.
type Objects = BTreeMap<String, Value>;

/// White space reduced to single blanks: kustomize's YAML makes more of it in long expressions, where it means nothing.
fn reduced(value: Value) -> Value {
    match value {
        Value::String(text) => text.split_whitespace().collect::<Vec<_>>().join(" ").into(),
        Value::Array(items) => items.into_iter().map(reduced).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, reduced(value))).collect(),
        other => other,
    }
}

fn objects(rendered: &str) -> Result<Objects> {
    let named = |object: Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (
            format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"])),
            object,
        )
    };
    let found: Objects = documents(rendered)?
        .into_iter()
        .filter(|object| !object.is_null())
        .map(reduced)
        .map(named)
        .collect();
    ensure!(found.len() > 50, "only {} objects", found.len());
    Ok(found)
}

fn kustomized(folder: &Path) -> Result<Objects> {
    let mut kustomize = command(ensure_binaries(Releases::default())?.path("kubectl"), ["kustomize"]);
    objects(&output(kustomize.arg(folder))?)
}

fn helm(release: Release, namespace: &str, values: &[&str]) -> Result<Command> {
    let mut helm = command(ensure_helm()?, ["template", "mooring"]);
    helm.arg(repository().join("configmaps/install"));
    // Without a cluster, Helm takes the version for that of its own libraries, or an earlier one.
    helm.args(["--namespace", namespace, "--kube-version", release.version()]);
    helm.args(values.iter().map(|value| format!("--set={value}")));
    Ok(helm)
}

fn charted(namespace: &str, values: &[&str]) -> Result<Objects> {
    objects(&output(&mut helm(Release::Newest, namespace, values)?)?)
}

/// A copy of the manifests, whose `configmaps/registry` is for this namespace.
fn registry_in(copy: &Path, namespace: &str) -> Result<Objects> {
    output(command("cp", ["-r"]).arg(repository().join("configmaps")).arg(copy))?;
    let folder = copy.join("configmaps/registry");
    let file = folder.join("kustomization.yaml");
    let text = std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
    let changed = text.replace("\nnamespace: mooring\n", &format!("\nnamespace: {namespace}\n"));
    ensure!(changed != text, "the kustomization names no namespace");
    std::fs::write(&file, changed).with_context(|| format!("failed to write {}", file.display()))?;
    kustomized(&folder)
}

/// What both have, without the namespace, which Helm makes itself.
fn assert_same(mut kustomized: Objects, charted: &Objects) {
    kustomized.retain(|name, _| !name.starts_with("Namespace "));
    let names = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&kustomized), names(charted));
    for (name, object) in &kustomized {
        assert_eq!(object, &charted[name], "{name}");
    }
}

#[test]
fn kustomize_and_the_chart_make_the_same_objects() -> Result<()> {
    let settings = format!("ConfigMap {SETTINGS_CONFIG}");
    let mut charted = charted("mooring", &[])?;
    // The chart has an administrator's values in it, and kustomize leaves their object alone.
    assert_eq!(
        charted.remove(&settings).unwrap()["data"],
        json!({"registry": "mooring.dev"})
    );
    let plain = kustomized(&repository().join("configmaps/install"))?;
    assert!(!plain.contains_key(&settings));
    assert_same(plain, &charted);
    Ok(())
}

#[test]
fn before_kubernetes_1_36_they_leave_the_same_objects_out() -> Result<()> {
    let chart = output(&mut helm(Release::Oldest, "mooring", &[])?)?;
    let mut charted = objects(&chart)?;
    charted.remove(&format!("ConfigMap {SETTINGS_CONFIG}"));
    assert!(!charted.keys().any(|name| name.starts_with("Mutating")));
    assert_same(
        kustomized(&repository().join("configmaps/install-before-1.36"))?,
        &charted,
    );
    Ok(())
}

#[test]
fn in_a_namespace_and_from_a_registry_of_one_s_own_they_are_the_same_too() -> Result<()> {
    let folder = tempfile::tempdir().context("failed to make a folder")?;
    let kustomized = registry_in(folder.path(), ELSEWHERE)?;
    let registry = "registry.example.com/mooring";
    let charted = charted(ELSEWHERE, &[&format!("registry={registry}")])?;
    for (name, object) in &charted {
        let namespace = &object["metadata"]["namespace"];
        assert!(
            namespace.is_null() || namespace == ELSEWHERE,
            "{name} is in {namespace}"
        );
        let text = object.to_string();
        for trace in [
            "serviceaccount:mooring:",
            "\"namespace\":\"mooring\"",
            "mooring.dev/mounter:",
            "'mooring'",
        ] {
            assert!(!text.contains(trace), "{name} has {trace}: {text}");
        }
    }
    assert_eq!(
        charted[&format!("ConfigMap {SETTINGS_CONFIG}")]["data"],
        json!({"registry": registry})
    );
    let image = |name: &str| charted[name]["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    assert_eq!(
        image("DaemonSet mounter"),
        format!("{registry}/mounter:{}", env!("CARGO_PKG_VERSION"))
    );
    assert_same(kustomized, &charted);
    Ok(())
}

#[test]
fn the_chart_refuses_values_that_it_does_not_know() -> Result<()> {
    for wrong in [
        "registry=https://a",
        "setings.registry=a",
        "settings.config-namespace=a",
        "controller.replicas=x",
        "mounter.env[0].value=9,mounter.env[0].name=MOORING_MAX_VOLUMES",
    ] {
        assert!(
            output(&mut helm(Release::Newest, "mooring", &[wrong])?).is_err(),
            "{wrong}"
        );
    }
    Ok(())
}
