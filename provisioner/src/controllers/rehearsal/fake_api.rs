//! As much of an API server as the controllers need, in memory, that fails the call it is told to fail. It asks the
//! shipped admission policies about whatever the controller writes. Before a [`RealApi`], it is a copy of what that
//! has: whatever is written goes there first.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Body as Answer;
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::addresses::{Addressed, Kind, addressed, path_of, status, type_of};
use super::policies::{Write, refusal};
use super::real_api::RealApi;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It never reached the API server.
    Before,
    /// It was carried out, and the answer was lost.
    After,
    /// It was refused as one on old knowledge, and the controller lives.
    Conflict,
}

impl Fault {
    pub(super) const ALL: [Self; 3] = [Self::Before, Self::After, Self::Conflict];
}

/// How long a watch waits for changes.
const WATCH: Duration = Duration::from_millis(20);

/// A handle on the server; a clone is another handle on the same.
#[derive(Debug, Clone, Default)]
pub(super) struct FakeApi {
    state: Arc<Mutex<FakeState>>,
}

#[derive(Debug, Default)]
pub(super) struct FakeState {
    /// By kind, then `namespace/name`.
    objects: BTreeMap<&'static str, BTreeMap<String, Value>>,
    pub(super) version: u64,
    calls: usize,
    writes: usize,
    fault: Option<(usize, Fault)>,
    pub(super) tripped: bool,
    pub(super) faults: usize,
    /// What somebody else deletes just before this call: its number, kind and key.
    pub(super) meanwhile: Option<(usize, &'static str, &'static str)>,
    /// What the controller is refused to do to which kind, and how.
    pub(super) refused: Option<(Method, &'static str, StatusCode)>,
    /// Every watch has expired, so that its client has to list again.
    pub(super) watches_expire: bool,
    /// What is gone, by kind, as it was last.
    pub(super) gone: Vec<(&'static str, Value)>,
    /// Whether the controller makes the call that is carried out.
    by_controller: bool,
    /// What was asked to be written.
    pub(super) log: Vec<String>,
    real: Option<RealApi>,
}

impl FakeApi {
    /// A copy of what this API server has, from which all is removed first.
    pub(super) fn before(real: &RealApi) -> Self {
        let mut state = FakeState {
            real: Some(real.clone()),
            ..FakeState::default()
        };
        for kind in [
            "pods",
            "secrets",
            "claims",
            "volumes",
            "contents",
            "snapshots",
            "snapshotclasses",
            "attributes",
            "classes",
        ] {
            let all = match kind {
                "secrets" => "/api/v1/namespaces/admin/secrets".to_owned(),
                _ => path_of(kind, "/"),
            };
            let listed = real.must(&Method::GET, &all, &Value::Null);
            for object in listed["items"].as_array().unwrap() {
                let key = key_of(object);
                state
                    .objects
                    .entry(kind)
                    .or_default()
                    .insert(key.clone(), object.clone());
                state.take_away(kind, &key);
            }
        }
        state.gone.clear();
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// What it is a copy of.
    pub(super) fn real(&self) -> Option<RealApi> {
        self.lock().real().cloned()
    }

    /// The controller's, which the policies are about.
    pub(super) fn client(&self) -> Client {
        self.client_of(true)
    }

    /// That of an administrator.
    pub(super) fn client_of_administrator(&self) -> Client {
        self.client_of(false)
    }

    fn client_of(&self, by_controller: bool) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap_or_default();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let query = parts.uri.query().unwrap_or_default();
                let real = api.real();
                if query.contains("watch=true") {
                    if let Some(real) = real {
                        return Ok(real.watch(parts.uri.path(), query).await);
                    }
                    tokio::time::sleep(WATCH).await;
                    let events = api.lock().watch(parts.uri.path(), query);
                    return Ok(Response::new(Answer::from(events)));
                }
                // The lists of watches, of which the rehearsals have none, don't count.
                let of_watch = real.is_some() && query.contains("limit=");
                let path = parts.uri.path();
                let mut state = api.lock();
                state.by_controller = by_controller;
                let (status, answer) = if of_watch {
                    state.carry_out(&parts.method, path, query, &body)
                } else {
                    state.call(&parts.method, path, query, &body)
                };
                drop(state);
                let response = Response::builder().status(status);
                Ok::<_, Infallible>(response.body(Answer::from(answer.to_string())).unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// Has the `nth` call from now on go wrong. [`Fault::After`] counts only writes: for a read it is the same as
    /// [`Fault::Before`].
    pub(super) fn fail(&self, nth: usize, fault: Fault) {
        let mut state = self.lock();
        (state.calls, state.writes) = (0, 0);
        state.tripped = false;
        state.fault = Some((nth, fault));
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap()
    }
}

impl FakeState {
    /// Calls since the last [`FakeApi::fail`] that it counts.
    pub(super) fn calls(&self) -> usize {
        match self.fault {
            Some((_, Fault::After)) => self.writes,
            Some((_, Fault::Before | Fault::Conflict)) | None => self.calls,
        }
    }

    /// What was asked to be written, by verb and kind, such as `PATCH claims status`.
    pub(super) fn writes(&self) -> Vec<String> {
        let short = |line: &String| {
            let (method, path) = line.split_once(' ')?;
            let Addressed { kind, by_status, .. } = addressed(path)?;
            Some(format!("{method} {kind}{}", if by_status { " status" } else { "" }))
        };
        let lines = self.log.iter();
        lines.map(|line| short(line).unwrap_or_else(|| line.clone())).collect()
    }

    /// What it is a copy of.
    pub(super) fn real(&self) -> Option<&RealApi> {
        self.real.as_ref()
    }

    pub(super) fn each(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.get(kind).into_iter().flat_map(BTreeMap::values)
    }

    /// Copies, which takes long where there are many: see [`Self::each`].
    pub(super) fn all(&self, kind: &str) -> Vec<Value> {
        self.each(kind).cloned().collect()
    }

    pub(super) fn get(&self, kind: &str, key: &str) -> Option<Value> {
        self.objects.get(kind)?.get(key).cloned()
    }

    /// Creates or replaces, as somebody other than Mooring would.
    pub(super) fn put(&mut self, kind: &'static str, mut object: Value) {
        let key = key_of(&object);
        if let Some(real) = self.real.clone() {
            self.put_there(&real, kind, &key, &object);
            return;
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        }
        if object["metadata"]["creationTimestamp"].is_null() {
            object["metadata"]["creationTimestamp"] = json!(k8s_openapi::jiff::Timestamp::now().to_string());
        }
        self.objects.entry(kind).or_default().insert(key, object);
    }

    /// Deletes as Kubernetes does: what has finalizers is only marked.
    pub(super) fn delete(&mut self, kind: &'static str, key: &str) {
        let Some(mut object) = self.get(kind, key) else { return };
        if let Some(real) = self.real.clone() {
            let at_once = json!({"gracePeriodSeconds": 0});
            real.must(&Method::DELETE, &path_of(kind, key), &at_once);
            self.refresh(&real, kind, key);
            return;
        }
        let held = object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|held| !held.is_empty());
        if held {
            if object["metadata"]["deletionTimestamp"].is_null() {
                object["metadata"]["deletionTimestamp"] = json!("2026-11-21T00:00:00Z");
                self.put(kind, object);
            }
        } else {
            self.version += 1;
            self.objects.entry(kind).or_default().remove(key);
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            self.gone.push((kind, object));
        }
    }

    /// Deletes, whatever holds it.
    pub(super) fn take_away(&mut self, kind: &'static str, key: &str) {
        let mut object = self.get(kind, key).unwrap();
        object["metadata"]["finalizers"] = json!([]);
        self.put(kind, object);
        self.delete(kind, key);
    }

    /// The copy of an object becomes what there is.
    fn refresh(&mut self, real: &RealApi, kind: Kind, key: &str) {
        let (code, object) = real.call(&Method::GET, &path_of(kind, key), &Value::Null);
        let before = self.get(kind, key);
        let objects = self.objects.entry(kind).or_default();
        if code == StatusCode::NOT_FOUND {
            objects.remove(key);
            self.gone.extend(before.clone().map(|object| (kind, object)));
        } else {
            assert!(code.is_success(), "GET {kind} {key}: {object:#}");
            objects.insert(key.to_owned(), object.clone());
        }
        let is_same = before.is_some_and(|before| code.is_success() && before == object);
        self.version += u64::from(!is_same);
    }

    /// Creates or replaces: what is done by ways of their own, in turn.
    fn put_there(&mut self, real: &RealApi, kind: Kind, key: &str, wanted: &Value) {
        let (api_version, name) = type_of(kind);
        let mut object = wanted.clone();
        (object["apiVersion"], object["kind"]) = (json!(api_version), json!(name));
        let path = path_of(kind, key);
        let before = self.get(kind, key);
        match &before {
            None => {
                let metadata = object["metadata"].as_object_mut().unwrap();
                for given in ["uid", "resourceVersion", "creationTimestamp"] {
                    metadata.remove(given);
                }
                real.must(&Method::POST, path.rsplit_once('/').unwrap().0, &object);
            }
            Some(before) => {
                let node = &wanted["spec"]["nodeName"];
                if kind == "pods" && before["spec"]["nodeName"].is_null() && !node.is_null() {
                    let target = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": before["metadata"]["name"]},
                                        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
                    real.must(&Method::POST, &format!("{path}/binding"), &target);
                    self.refresh(real, kind, key);
                }
                let there = self.get(kind, key).unwrap();
                object["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"].clone();
                object["status"] = there["status"].clone();
                if object != there {
                    real.must(&Method::PUT, &path, &object);
                }
            }
        }
        self.refresh(real, kind, key);
        if let Some(mut there) = self.get(kind, key)
            && !wanted["status"].is_null()
            && there["status"] != wanted["status"]
        {
            there["status"] = wanted["status"].clone();
            real.must(&Method::PUT, &format!("{path}/status"), &there);
            self.refresh(real, kind, key);
        }
    }

    /// Carries a call out there.
    fn pass_on(
        &mut self,
        real: &RealApi,
        method: &Method,
        path: &str,
        query: &str,
        body: &Value,
    ) -> (StatusCode, Value) {
        let target = if query.is_empty() {
            path.to_owned()
        } else {
            format!("{path}?{query}")
        };
        let (code, answer) = real.call_by_controller(method, &target, body);
        if *method != Method::GET
            && code.is_success()
            && let Some(addressed) = addressed(path)
        {
            let Addressed {
                namespace, kind, name, ..
            } = addressed;
            let name = name.or_else(|| body["metadata"]["name"].as_str()).unwrap_or_default();
            let key = format!("{namespace}/{name}");
            let old = self.get(kind, &key);
            let new = Some(&answer).filter(|_| *method != Method::DELETE);
            let refused = self.denied(method, &addressed, old.as_ref(), new);
            assert_eq!(refused, None, "it was taken there: {answer:#}");
            self.refresh(real, kind, &key);
            let is_left = |pod: &Value| pod["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
            if *method == Method::DELETE && kind == "pods" && self.get(kind, &key).is_some_and(|pod| is_left(&pod)) {
                // Its kubelet has nothing to stop.
                self.delete(kind, &key);
            }
        }
        (code, answer)
    }

    /// What the API server answers where a policy refuses a write.
    fn denied(
        &self,
        method: &Method,
        addressed: &Addressed<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Option<(StatusCode, Value)> {
        let write = Write {
            method,
            addressed,
            old,
            new,
        };
        let why = self.by_controller.then(|| refusal(&write))??;
        Some(status(StatusCode::UNPROCESSABLE_ENTITY, &why))
    }

    /// The lines of a watch: all that has changed since the version that its client knows.
    fn watch(&self, path: &str, query: &str) -> String {
        let Some(Addressed { kind, .. }) = addressed(path) else {
            return String::new();
        };
        if self.watches_expire {
            let expired = status(StatusCode::GONE, "too old resource version").1;
            return format!("{}\n", json!({"type": "ERROR", "object": expired}));
        }
        let known = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
        let known: u64 = known.and_then(|version| version.parse().ok()).unwrap_or_default();
        let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>();
        let gone = self.gone.iter().filter(|(of, _)| *of == kind);
        let gone = gone.map(|(_, object)| ("DELETED", object));
        let there = self.each(kind).map(|object| ("MODIFIED", object));
        let news = gone
            .chain(there)
            .map(|(change, object)| (version(object).unwrap(), change, object));
        let mut news: Vec<_> = news.filter(|(version, ..)| *version > known).collect();
        news.sort_by_key(|(version, ..)| *version);
        let lines = news
            .iter()
            .map(|(_, change, object)| format!("{}\n", json!({"type": change, "object": object})));
        lines.collect()
    }

    fn call(&mut self, method: &Method, path: &str, query: &str, body: &Value) -> (StatusCode, Value) {
        self.calls += 1;
        if let Some((_, kind, key)) = self.meanwhile.filter(|(nth, ..)| *nth == self.calls) {
            self.delete(kind, key);
        }
        let writes = *method != Method::GET;
        if writes {
            self.writes += 1;
            self.log.push(format!("{method} {path}"));
        }
        let fault = self
            .fault
            .filter(|(nth, fault)| *nth == self.calls() && (writes || *fault != Fault::After))
            .map(|(_, fault)| fault);
        self.faults += usize::from(fault.is_some());
        if fault == Some(Fault::Conflict) {
            return status(StatusCode::CONFLICT, "as you wished");
        }
        if fault.is_some() {
            self.tripped = true;
        }
        let failed = status(StatusCode::INTERNAL_SERVER_ERROR, "as you wished");
        if fault == Some(Fault::Before) {
            return failed;
        }
        let answer = self.carry_out(method, path, query, body);
        if fault == Some(Fault::After) { failed } else { answer }
    }

    /// The objects of a kind with the labels that are asked for.
    fn list(&self, kind: &str, query: &str) -> Value {
        let selector = query.split('&').find_map(|part| part.strip_prefix("labelSelector="));
        let selector = selector
            .unwrap_or_default()
            .replace("%2F", "/")
            .replace("%3D", "=")
            .replace("%2C", ",");
        let wanted: Vec<_> = selector.split(',').filter_map(|part| part.split_once('=')).collect();
        // Pods of users, which the controllers' watches do not see.
        let users = (kind == "pods").then(|| self.each("users")).into_iter().flatten();
        let items: Vec<&Value> = self
            .each(kind)
            .chain(users)
            .filter(|object| {
                let labels = &object["metadata"]["labels"];
                wanted.iter().all(|(key, value)| labels[*key] == *value)
            })
            .collect();
        let metadata = json!({"resourceVersion": self.version.to_string()});
        json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items})
    }

    /// Puts what a write has made of an object; gone, if it was only held by what the write took off.
    fn updated(&mut self, method: &Method, addressed: &Addressed<'_>, key: &str, object: Value) -> (StatusCode, Value) {
        let old = self.get(addressed.kind, key);
        if let Some(denied) = self.denied(method, addressed, old.as_ref(), Some(&object)) {
            return denied;
        }
        let gone = !object["metadata"]["deletionTimestamp"].is_null()
            && object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        self.put(addressed.kind, object);
        let updated = self.get(addressed.kind, key).unwrap();
        if gone {
            self.delete(addressed.kind, key);
        }
        (StatusCode::OK, updated)
    }

    fn carry_out(&mut self, method: &Method, path: &str, query: &str, body: &Value) -> (StatusCode, Value) {
        let Some(addressed) = addressed(path) else {
            return status(StatusCode::NOT_FOUND, path);
        };
        let Addressed {
            namespace,
            kind,
            name,
            by_status,
            ..
        } = addressed;
        if let Some(real) = self.real.clone() {
            return self.pass_on(&real, method, path, query, body);
        }
        if *method == Method::GET && name.is_none() {
            return (StatusCode::OK, self.list(kind, query));
        }
        let name = name.or_else(|| body["metadata"]["name"].as_str()).unwrap_or_default();
        let key = format!("{namespace}/{name}");
        let found = self.get(kind, &key);
        if let Some((refused, of, code)) = &self.refused
            && (refused, *of) == (method, kind)
            && (*method == Method::POST || found.is_some())
        {
            let verb = method.as_str().to_lowercase();
            return status(*code, &format!("cannot {verb} resource {kind:?}"));
        }
        if *method == Method::POST {
            if let Some(denied) = self.denied(method, &addressed, None, Some(body)) {
                return denied;
            }
            if found.is_some() {
                return status(StatusCode::CONFLICT, "it is there already");
            }
            self.put(kind, body.clone());
            return (StatusCode::CREATED, self.get(kind, &key).unwrap());
        }
        let Some(mut object) = found else {
            return status(StatusCode::NOT_FOUND, path);
        };
        let wanted = |wanted: &Value, field: &str| wanted.is_null() || *wanted == object["metadata"][field];
        if *method == Method::PATCH
            && let Some(operations) = body.as_array()
        {
            if !operations.iter().all(|operation| json_patch(&mut object, operation)) {
                return status(StatusCode::UNPROCESSABLE_ENTITY, "it is not what was expected");
            }
            return self.updated(method, &addressed, &key, object);
        }
        if *method == Method::PUT {
            if !wanted(&body["metadata"]["resourceVersion"], "resourceVersion") {
                return status(StatusCode::CONFLICT, "it has changed");
            }
            return self.updated(method, &addressed, &key, body.clone());
        }
        if *method == Method::PATCH {
            let meta = &body["metadata"];
            if !wanted(&meta["resourceVersion"], "resourceVersion") || !wanted(&meta["uid"], "uid") {
                return status(StatusCode::CONFLICT, "it has changed");
            }
            merge_patch(&mut object, kind, by_status, body.clone());
            return self.updated(method, &addressed, &key, object);
        }
        if *method == Method::DELETE {
            let conditions = &body["preconditions"];
            if !wanted(&conditions["resourceVersion"], "resourceVersion") || !wanted(&conditions["uid"], "uid") {
                return status(StatusCode::CONFLICT, "it has changed");
            }
            if let Some(denied) = self.denied(method, &addressed, Some(&object), None) {
                return denied;
            }
            self.delete(kind, &key);
        }
        (StatusCode::OK, object)
    }
}

/// Carries out a merge patch with Kubernetes' directive for lists of finalizers.
fn merge_patch(object: &mut Value, kind: &str, by_status: bool, mut body: Value) {
    let directives = body["metadata"].as_object_mut();
    if let Some(less) = directives.and_then(|meta| meta.remove("$deleteFromPrimitiveList/finalizers")) {
        let less = less.as_array().cloned().unwrap_or_default();
        if let Some(held) = object["metadata"]["finalizers"].as_array_mut() {
            held.retain(|name| !less.contains(name));
        }
    }
    // By one way, no status can be written, by the other no spec; of what a CRD defines no metadata either.
    let not_written: &[_] = match (kind, by_status) {
        ("claims", true) => &["spec"],
        ("contents" | "groups", true) => &["spec", "metadata"],
        ("claims" | "contents" | "groups", false) => &["status"],
        _ => &[],
    };
    for part in not_written {
        body.as_object_mut().map(|body| body.remove(*part));
    }
    merge(object, &body);
}

/// Carries out one operation of a JSON patch (RFC 6902); whether it could be.
fn json_patch(object: &mut Value, operation: &Value) -> bool {
    let path = operation["path"].as_str().unwrap();
    let (parent, last) = path.rsplit_once('/').unwrap();
    let last = last.replace("~1", "/");
    let value = operation["value"].clone();
    match (operation["op"].as_str().unwrap(), object.pointer_mut(parent)) {
        ("test", _) => object.pointer(path).unwrap_or(&Value::Null) == &value,
        ("add" | "replace", Some(Value::Object(parent))) => {
            parent.insert(last, value);
            true
        }
        ("remove", Some(Value::Object(parent))) => parent.remove(&last).is_some(),
        ("remove", Some(Value::Array(parent))) => {
            parent.remove(last.parse().unwrap());
            true
        }
        _ => false,
    }
}

pub(super) fn key_of(object: &Value) -> String {
    let part = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", part("namespace"), part("name"))
}

/// JSON merge patch (RFC 7386).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key.as_str()], value);
        }
    }
}
