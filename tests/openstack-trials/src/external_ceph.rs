//! `cargo testbed openstack --external-ceph`: the services with a Ceph that is not theirs. It is the same one, in
//! another namespace, with keys and an id of its own.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::kustomization::Kustomization;
use super::trial::Trial;
use super::{FOLDER, NAMESPACE, put_and_wait, put_class, wait_for_job, with_hashes};
use mooring_testbed::command::output;
use mooring_testbed::images::Built;
use mooring_testbed::install::{apply, render};
use mooring_testbed::progress::step;
use mooring_testbed::target::Target;

pub(super) const COMPONENT: &str = "external-ceph";

/// Where that Ceph is.
const ELSEWHERE: &str = "ceph-elsewhere";

/// What Cinder and Manila have of it.
const KEYS: [&str; 2] = ["ceph-cinder-key", "ceph-manila-key"];

pub(super) fn run(target: &Target, images: &[Built]) -> Result<()> {
    let there = kubectl(
        target,
        &["get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name"],
    )?;
    ensure!(
        there.is_empty(),
        "the services are there, with a Ceph of their own: take them away first, with \
         `cargo testbed openstack --remove --data`"
    );
    put_class(target)?;
    let address = ceph(target, images)?;
    secret(target)?;
    let conf = format!("[global]\nmon host = [v2:{address}:3300,v1:{address}:6789]\nkeyring = /etc/ceph/keyring");
    let kustomization = Kustomization::new(&[COMPONENT]).with_file("ceph-client", "ceph.conf", &conf);
    put_and_wait(target, &kustomization.write()?, images)?;
    step("no Pod of Ceph is among the services", |_| {
        let pods = kubectl(target, &["-n", NAMESPACE, "get", "pods", "-o", "name"])?;
        ensure!(!pods.contains("/ceph-"), "{pods}");
        Ok(())
    })?;
    let trial = Trial {
        target,
        images,
        kustomization: &kustomization,
    };
    let mut things = trial.make()?;
    trial.restore_and_remove(&mut things)?;
    super::remove(target, true)?;
    step("remove the Ceph elsewhere", |_| {
        kubectl(target, &["delete", "namespace", ELSEWHERE, "--timeout=300s"])?;
        Ok(())
    })
}

fn kubectl(target: &Target, args: &[&str]) -> Result<String> {
    Ok(output(&mut target.kubectl(args))?)
}

/// Runs it; returns its monitor's address.
fn ceph(target: &Target, images: &[Built]) -> Result<String> {
    let builds: Vec<_> = images
        .iter()
        .map(|image| (target.with_image_names(&image.archive.name), image.hash.as_str()))
        .collect();
    let items: Vec<_> = with_hashes(&render(FOLDER, target)?, &builds)?
        .into_iter()
        .filter_map(elsewhere)
        .collect();
    step("a Ceph elsewhere", |progress| {
        apply(
            target,
            &json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string(),
        )?;
        let jobs = kubectl(target, &["-n", ELSEWHERE, "get", "jobs", "-o", "name"])?;
        for job in jobs.lines() {
            wait_for_job(target, ELSEWHERE, job, |seen| progress.update(seen))?;
        }
        for daemon in ["mon", "mgr", "osd", "mds"] {
            let workload = format!("statefulset/ceph-{daemon}");
            kubectl(
                target,
                &["-n", ELSEWHERE, "rollout", "status", &workload, "--timeout=300s"],
            )?;
        }
        kubectl(
            target,
            &[
                "-n",
                ELSEWHERE,
                "get",
                "service",
                "ceph-mon",
                "-o",
                "jsonpath={.spec.clusterIP}",
            ],
        )
    })
}

/// An object of Ceph, or of the Job that makes its keys, in that namespace.
fn elsewhere(mut object: Value) -> Option<Value> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if object["kind"] == "Namespace" {
        object["metadata"]["name"] = ELSEWHERE.into();
        return Some(object);
    }
    if !(name.starts_with("ceph") || name.starts_with("openstack-secrets")) {
        return None;
    }
    object["metadata"]["namespace"] = ELSEWHERE.into();
    for subject in object["subjects"].as_array_mut().into_iter().flatten() {
        subject["namespace"] = ELSEWHERE.into();
    }
    Some(object)
}

/// Gives the services its keys, as their administrator would: before the first apply.
fn secret(target: &Target) -> Result<()> {
    let mut data = json!({});
    for key in KEYS {
        let path = format!("jsonpath={{.data.{key}}}");
        let value = kubectl(target, &["-n", ELSEWHERE, "get", "secret", "openstack", "-o", &path])?;
        ensure!(!value.is_empty(), "the Ceph has no {key}");
        data[key] = value.into();
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "openstack", "namespace": NAMESPACE},
        "data": data,
    });
    apply(
        target,
        &json!({"apiVersion": "v1", "kind": "List", "items": [namespace, secret]}).to_string(),
    )
    .context("failed to give the services the keys")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ELSEWHERE, elsewhere};

    #[test]
    fn only_ceph_and_what_makes_its_keys_are_elsewhere() {
        let named = |kind: &str, name: &str| {
            let subjects = json!([{"name": name, "namespace": "openstack"}]);
            json!({"kind": kind, "metadata": {"name": name, "namespace": "openstack"}, "subjects": subjects})
        };
        assert!(elsewhere(named("StatefulSet", "cinder-volume")).is_none());
        assert!(elsewhere(named("ConfigMap", "cinder-abc")).is_none());
        let moved = elsewhere(named("RoleBinding", "openstack-secrets")).unwrap();
        assert_eq!(moved["metadata"]["namespace"], ELSEWHERE);
        assert_eq!(moved["subjects"][0]["namespace"], ELSEWHERE);
        assert_eq!(
            elsewhere(named("Namespace", "openstack")).unwrap()["metadata"]["name"],
            ELSEWHERE
        );
    }
}
