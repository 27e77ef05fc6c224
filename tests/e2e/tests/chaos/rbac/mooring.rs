//! A Mooring beside the installed one: a controller with the rights that a test gives it, and what it needs around it.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, ResourceExt,
};
use kube::{Api, Resource};
use mooring_contract::names::CONNECTION_KEYS;
use mooring_harness::provisioner::{SCRIPTED, TEST_LABEL};
use mooring_harness::{Scope, wait_until};
use mooring_testbed::progress::note;
use serde_json::{Value, json};

use super::LIMIT;
use super::rights::Rights;

/// Requests of a controller: verb, resource, code.
pub(super) type Requests = BTreeSet<(String, String, u16)>;

/// A separate Mooring in a namespace of its own: a controller with exactly these rights, which reads the ConfigMaps
/// there. When this is dropped, it removes what the controller did not clean up.
pub(super) struct Mooring {
    pub(super) scope: Scope,
    pub(super) namespace: String,
    /// Whether a worker attaches volumes. That is one more Pod for each controller, and needed for one right.
    pub(super) by_worker: bool,
    cleaned_up: bool,
}

impl Drop for Mooring {
    fn drop(&mut self) {
        if !self.cleaned_up
            && let Err(error) = self.remove()
        {
            note(format!("what {} did was not cleared away: {error:#}", self.namespace));
        }
    }
}

impl Mooring {
    /// One of the objects of this Mooring.
    pub(super) fn object(&self, api_version: &str, kind: &str, name: &str, more: Value) -> Value {
        let mut object = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {"name": name, "namespace": self.namespace, "labels": {TEST_LABEL: self.scope.namespace}},
        });
        if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
            object.extend(more);
        }
        object
    }

    /// Applies objects by the client library: many do this at once, and a kubectl for each would need too much of the
    /// machine.
    pub(super) async fn apply(&self, objects: &[Value]) -> Result<()> {
        for object in objects {
            let text = self.scope.target.with_image_names(&object.to_string());
            let object: DynamicObject = serde_json::from_str(&text).context("a bad object")?;
            let types = object.types.clone().context("an object without a kind")?;
            let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
            let api: Api<DynamicObject> = match &object.metadata.namespace {
                Some(namespace) => Api::namespaced_with(self.scope.client.clone(), namespace, &kind),
                None => Api::all_with(self.scope.client.clone(), &kind),
            };
            let name = object.name_any();
            api.patch(&name, &PatchParams::apply("testbed").force(), &Patch::Apply(&object))
                .await
                .with_context(|| format!("failed to apply {} {name}", types.kind))?;
        }
        Ok(())
    }

    pub(super) fn kubectl<const N: usize>(&self, args: [&str; N]) -> Result<String> {
        let there = ["-n", self.namespace.as_str()];
        self.scope.kubectl(there.into_iter().chain(args))
    }

    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.scope.client.clone(), &self.namespace)
    }

    pub(super) async fn grant(&self, rights: &Rights) -> Result<()> {
        const RBAC: &str = "rbac.authorization.k8s.io/v1";
        let role =
            |kind: &str, name: &str, rules: &[PolicyRule]| self.object(RBAC, kind, name, json!({"rules": rules}));
        let binding = |kind: &str, role: &str, name: &str| {
            self.object(
                RBAC,
                kind,
                name,
                json!({
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": name},
                    "subjects": [{"kind": "ServiceAccount", "name": "controller", "namespace": self.namespace}],
                }),
            )
        };
        let mut objects = vec![
            role("ClusterRole", &self.namespace, &rights.cluster),
            binding("ClusterRoleBinding", "ClusterRole", &self.namespace),
            role("Role", "configs", &rights.configs),
            binding("RoleBinding", "Role", "configs"),
            role("Role", "own", &rights.own),
            binding("RoleBinding", "Role", "own"),
        ];
        for object in &mut objects {
            if object["kind"].as_str().is_some_and(|kind| kind.starts_with("Cluster")) {
                object["metadata"]["namespace"] = Value::Null;
            }
        }
        self.apply(&objects).await
    }

    /// A provisioner ConfigMap for the class of this name. A key with null is left out.
    pub(super) fn config(&self, name: &str, class: &str, more: Value) -> Value {
        let mut data = json!({
            "plugin-name": "mooring.dev/flex-provisioner", "image": SCRIPTED,
            "volume-source": "flexVolume", "provision-script": "pv options client=sshfs source=nobody@192.0.2.1:/x",
            "service-account-name": "image", "secret-name": "backend",
        });
        if let (Some(data), Value::Object(more)) = (data.as_object_mut(), more) {
            data.extend(more);
            data.retain(|_, value| !value.is_null());
        }
        let mut object = self.object("v1", "ConfigMap", name, json!({"data": data}));
        object["metadata"]["labels"]["type"] = json!("provisioner-config");
        object["metadata"]["labels"]["storage-class"] = json!(class);
        object
    }

    /// Creates the namespace and everything that needs no controller, then the controller.
    pub(super) async fn start(scope: &Scope, end: &str, rights: &Rights) -> Result<Self> {
        let mooring = Self {
            scope: scope.clone(),
            namespace: format!("{}-{end}", scope.namespace),
            by_worker: false,
            cleaned_up: false,
        };
        let mut namespace = mooring.object("v1", "Namespace", &mooring.namespace, json!({}));
        namespace["metadata"]["namespace"] = Value::Null;
        mooring.apply(&[namespace]).await?;
        mooring.grant(rights).await?;
        let controller = json!({"spec": {
            "serviceAccountName": "controller",
            "terminationGracePeriodSeconds": 2,
            "containers": [{
                "name": "flex-provisioner",
                "image": concat!("mooring.dev/flex-provisioner:", env!("CARGO_PKG_VERSION")),
                "imagePullPolicy": "IfNotPresent",
                "args": ["run"],
                "env": [
                    {"name": "MOORING_NAMESPACE", "value": mooring.namespace},
                    {"name": "MOORING_CONFIG_NAMESPACES", "value": mooring.namespace},
                    {"name": "MOORING_ALLOWED_IMAGES", "value": "mooring.dev/**"},
                    {"name": "MOORING_MAX_BACKOFF", "value": "5s"},
                ],
            }],
        }});
        mooring
            .apply(&[
                mooring.object("v1", "ServiceAccount", "controller", json!({})),
                mooring.object("v1", "ServiceAccount", "image", json!({})),
                mooring.object("v1", "Secret", "backend", json!({"stringData": {"password": "x"}})),
                mooring.object("v1", "ConfigMap", CONNECTION_KEYS, json!({})),
                mooring.config("main", &mooring.namespace, json!({})),
            ])
            .await?;
        // The admission of Pods has to know the service account first.
        let pod = mooring.object("v1", "Pod", "controller", controller);
        wait_until("the controller's Pod to be made", LIMIT, async || {
            mooring.apply(std::slice::from_ref(&pod)).await.map(Some)
        })
        .await?;
        Ok(mooring)
    }

    /// The controller's metrics, in Prometheus' format.
    pub(super) async fn metrics(&self) -> Result<String> {
        let path = format!(
            "/api/v1/namespaces/{}/pods/controller:8080/proxy/metrics",
            self.namespace
        );
        let request = http_get(&path)?;
        Ok(self.scope.client.request_text(request).await?)
    }

    /// The requests from the controller's metrics.
    pub(super) async fn requests(&self) -> Result<Requests> {
        let text = self.metrics().await?;
        let value = |line: &str, key: &str| {
            let (_, rest) = line.split_once(&format!("{key}=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        Ok(text
            .lines()
            .filter(|line| line.starts_with("mooring_provisioner_api_requests_total{"))
            .filter_map(|line| {
                Some((
                    value(line, "verb")?,
                    value(line, "resource")?,
                    value(line, "code")?.parse().ok()?,
                ))
            })
            .collect())
    }

    /// Gives the controller the missing right: it resumes its work and cleans up after itself.
    pub(super) async fn finish(mut self, rights: &Rights) -> Result<()> {
        self.grant(rights).await?;
        self.without_snapshots().await?;
        let pods: Api<Pod> = self.api();
        let claims: Api<PersistentVolumeClaim> = self.api();
        let volumes: Api<PersistentVolume> = Api::all(self.scope.client.clone());
        let all = ListParams::default();
        claims.delete_collection(&DeleteParams::default(), &all).await?;
        let in_the_way = ListParams::default()
            .labels(TEST_LABEL)
            .fields("metadata.name!=controller");
        pods.delete_collection(&DeleteParams::default().grace_period(0), &in_the_way)
            .await?;
        wait_until(&format!("{} to be cleaned up", self.namespace), LIMIT, async || {
            let mut left: Vec<_> = claims.list(&all).await?.iter().map(ResourceExt::name_any).collect();
            // The run of a discovery and a worker stay for as long as their ConfigMap.
            left.extend(
                pods.list(&all)
                    .await?
                    .iter()
                    .map(ResourceExt::name_any)
                    .filter(|name| name != "controller")
                    .filter(|name| !name.starts_with("discover-") && !name.starts_with("worker-")),
            );
            left.extend(volumes.list(&all).await?.iter().filter_map(|volume| {
                let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
                (claim.namespace.as_deref() == Some(&self.namespace)).then(|| volume.name_any())
            }));
            ensure!(left.is_empty(), "{} are left", left.join(", "));
            Ok(Some(()))
        })
        .await?;
        let configs: Api<ConfigMap> = self.api();
        configs
            .delete_collection(&DeleteParams::default(), &ListParams::default().labels(TEST_LABEL))
            .await?;
        for class in self.classes() {
            self.class(&class, "to be given up", |class| class.is_none()).await?;
        }
        self.snapshot_class(&self.discovered_class(), false).await?;
        let namespaces: Api<Namespace> = Api::all(self.scope.client.clone());
        namespaces.delete(&self.namespace, &DeleteParams::default()).await?;
        self.cleaned_up = true;
        Ok(())
    }

    /// The classes that it creates, if it gets that far.
    fn classes(&self) -> [String; 5] {
        [
            self.told_class(),
            self.namespace.clone(),
            self.late_class(),
            self.discovered_class(),
            self.attached_class(),
        ]
    }

    /// The class of which the scheduler is told what it has left.
    pub(super) fn told_class(&self) -> String {
        format!("{}-told", self.namespace)
    }

    pub(super) fn attached_class(&self) -> String {
        format!("{}-attached", self.namespace)
    }

    /// The class of what the image discovers, and that of its snapshots.
    pub(super) fn discovered_class(&self) -> String {
        format!("{}-ssd", self.late_class())
    }

    pub(super) fn late_class(&self) -> String {
        format!("{}-late", self.namespace)
    }

    /// Removes what it created and nothing else cleans up. If one step fails, the others are still done.
    fn remove(&self) -> Result<()> {
        let stopped = self.kubectl([
            "delete",
            "pod",
            "controller",
            "--ignore-not-found",
            "--grace-period=0",
            "--force",
        ]);
        let claims = self.kubectl(["get", "persistentvolumeclaims", "-o", "name"]);
        let of_namespace = format!(
            "jsonpath={{range .items[?(@.spec.claimRef.namespace==\"{}\")]}}persistentvolume/{{.metadata.name}} \
             {{end}}",
            self.namespace
        );
        let volumes = self.kubectl(["get", "persistentvolumes", "-o", &of_namespace]);
        let of_kind = |kind: &str| self.kubectl(["get", kind, &self.namespace, "--ignore-not-found", "-o", "name"]);
        let [content, group] = ["volumesnapshotcontents", "volumegroupsnapshotcontents"].map(of_kind);
        let mut steps: Vec<Result<()>> = Vec::new();
        for object in [&claims, &volumes, &content, &group]
            .into_iter()
            .flatten()
            .flat_map(|all| all.split_whitespace())
        {
            steps.push(self.let_go(object));
        }
        let classes = self.classes();
        let delete = ["delete", "--ignore-not-found", "storageclass"].map(str::to_owned);
        steps.extend([
            stopped.map(drop),
            claims.map(drop),
            volumes.map(drop),
            self.scope.kubectl(delete.iter().chain(&classes)).map(drop),
            self.kubectl([
                "delete",
                "--ignore-not-found",
                "volumesnapshotclass",
                &self.discovered_class(),
            ])
            .map(drop),
            self.kubectl([
                "delete",
                "--ignore-not-found",
                "--wait=false",
                "namespace",
                &self.namespace,
            ])
            .map(drop),
        ]);
        steps.into_iter().collect()
    }

    /// Deletes an object that has a finalizer of a controller that has ended.
    fn let_go(&self, object: &str) -> Result<()> {
        self.kubectl(["delete", "--ignore-not-found", "--wait=false", object])?;
        let there = self.kubectl(["get", "--ignore-not-found", "-o", "name", object])?;
        if !there.is_empty() {
            self.kubectl([
                "patch",
                object,
                "--type=merge",
                "-p",
                r#"{"metadata":{"finalizers":null}}"#,
            ])?;
        }
        Ok(())
    }
}

fn http_get(path: &str) -> Result<http::Request<Vec<u8>>> {
    http::Request::get(path)
        .body(Vec::new())
        .with_context(|| format!("{path} is not a path"))
}
