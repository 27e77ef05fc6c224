//! The rights that Mooring is installed with are sufficient, and all are needed: each is removed in turn, and a request
//! that needs it is refused. Alone, since this fills the cluster with controllers and changes the mounters' rights.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, ResourceExt,
};
use kube::{Api, Resource};
use mooring_contract::names::{NAMESPACE, annotations};
use mooring_harness::provisioner::{SCRIPTED, TEST_LABEL, claim, user_of};
use mooring_harness::rights::{Right, rights_in, without};
use mooring_harness::{Scope, in_namespace, in_namespace_within, wait_until};
use mooring_testbed::progress::note;
use serde_json::{Value, json};

/// Longest wait until a right is missed, and until a controller that has it again is done: many of them start at once.
const LIMIT: Duration = Duration::from_mins(5);

/// Time limit of the test: it starts a program again for each right.
const WHOLE_LIMIT: Duration = Duration::from_mins(30);

/// Number of controllers at once.
const AT_ONCE: usize = 12;

/// The rules of the three roles that the controller is installed with.
#[derive(Clone)]
struct Rights {
    /// `ClusterRole` flex-provisioner, bound to the whole cluster.
    cluster: Vec<PolicyRule>,
    /// `ClusterRole` flex-provisioner-configs, bound in the namespace of the ConfigMaps.
    configs: Vec<PolicyRule>,
    /// Role flex-provisioner, in the namespace that the controller runs in.
    own: Vec<PolicyRule>,
}

/// The request that is refused first without a right: verb, resource, code.
fn refusal(right: &Right) -> (String, String, u16) {
    let (verb, resource, code) = match (right.verb.as_str(), right.resource.as_str()) {
        // The admission policy mooring-claim-records lets a controller other than the installed one write its records
        // on claims only if it may delete volumes. Without this right, the controller gets no further than that write.
        ("delete", "persistentvolumes") => ("patch", "persistentvolumeclaims", 422),
        (verb, resource) => (verb, resource, 403),
    };
    (verb.to_owned(), resource.to_owned(), code)
}

impl Rights {
    /// The rights as they are installed.
    async fn installed(scope: &Scope) -> Result<Self> {
        let cluster: Api<ClusterRole> = Api::all(scope.client.clone());
        let own: Api<Role> = Api::namespaced(scope.client.clone(), NAMESPACE);
        Ok(Self {
            cluster: cluster.get("flex-provisioner").await?.rules.unwrap_or_default(),
            configs: cluster.get("flex-provisioner-configs").await?.rules.unwrap_or_default(),
            own: own.get("flex-provisioner").await?.rules.unwrap_or_default(),
        })
    }

    fn all(&self) -> Vec<Right> {
        [
            rights_in("flex-provisioner", &self.cluster),
            rights_in("flex-provisioner-configs", &self.configs),
            rights_in("the Role flex-provisioner", &self.own),
        ]
        .concat()
    }

    fn without(&self, right: &Right) -> Self {
        let mut rights = self.clone();
        let rules = match right.role {
            "flex-provisioner" => &mut rights.cluster,
            "flex-provisioner-configs" => &mut rights.configs,
            _ => &mut rights.own,
        };
        *rules = without(rules, right);
        rights
    }
}

/// Applies the installed controller's admission policy to a test's controllers: a controller without a policy refuses
/// to work.
async fn hold(scope: &Scope) -> Result<()> {
    const POLICY: &str = "mooring-controller";
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(scope.client.clone());
    let installed = serde_json::to_value(policies.get(POLICY).await?.spec)?;
    let condition = &installed["matchConditions"][0]["expression"];
    ensure!(
        condition
            .as_str()
            .is_some_and(|text| text.contains(":flex-provisioner'")),
        "{condition}"
    );
    let metadata = json!({"name": scope.namespace, "labels": {TEST_LABEL: scope.namespace}});
    let mut policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata, "spec": installed,
    });
    policy["spec"]["matchConditions"][0]["expression"] = format!(
        "request.userInfo.username.matches('^system:serviceaccount:{}-[0-9a-z]+:controller$')",
        scope.namespace
    )
    .into();
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata, "spec": {"policyName": scope.namespace, "validationActions": ["Deny"]},
    });
    scope.apply_anywhere(&json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]}).to_string())
}

/// What snapshot-controller makes for a snapshot, and for a group of them.
struct Contents {
    group: &'static str,
    kind: &'static str,
    /// Its annotation that says that the user's object is being deleted.
    being_deleted: &'static str,
}

const CONTENTS: [Contents; 2] = [
    Contents {
        group: "snapshot.storage.k8s.io",
        kind: "VolumeSnapshotContent",
        being_deleted: annotations::SNAPSHOT_BEING_DELETED,
    },
    Contents {
        group: "groupsnapshot.storage.k8s.io",
        kind: "VolumeGroupSnapshotContent",
        being_deleted: annotations::GROUP_BEING_DELETED,
    },
];

impl Contents {
    fn api(&self, scope: &Scope) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(self.group, "v1", self.kind);
        Api::all_with(scope.client.clone(), &ApiResource::from_gvk(&kind))
    }
}

/// A separate Mooring in a namespace of its own: a controller with exactly these rights, which reads the ConfigMaps
/// there. When this is dropped, it removes what the controller did not clean up.
struct Mooring {
    scope: Scope,
    namespace: String,
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
    fn object(&self, api_version: &str, kind: &str, name: &str, more: Value) -> Value {
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
    async fn apply(&self, objects: &[Value]) -> Result<()> {
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

    fn kubectl<const N: usize>(&self, args: [&str; N]) -> Result<String> {
        let there = ["-n", self.namespace.as_str()];
        self.scope.kubectl(there.into_iter().chain(args))
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.scope.client.clone(), &self.namespace)
    }

    async fn grant(&self, rights: &Rights) -> Result<()> {
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

    /// A provisioner ConfigMap for the class of this name.
    fn config(&self, name: &str, class: &str, more: Value) -> Value {
        let mut data = json!({
            "plugin-name": "mooring.dev/flex-provisioner", "image": SCRIPTED,
            "volume-source": "flexVolume", "provision-script": "pv options client=sshfs source=nobody@192.0.2.1:/x",
            "service-account-name": "image", "secret-name": "backend",
        });
        if let (Some(data), Value::Object(more)) = (data.as_object_mut(), more) {
            data.extend(more);
        }
        let mut object = self.object("v1", "ConfigMap", name, json!({"data": data}));
        object["metadata"]["labels"]["type"] = json!("provisioner-config");
        object["metadata"]["labels"]["storage-class"] = json!(class);
        object
    }

    /// Creates the namespace and everything that needs no controller, then the controller.
    async fn start(scope: &Scope, end: &str, rights: &Rights) -> Result<Self> {
        let mooring = Self {
            scope: scope.clone(),
            namespace: format!("{}-{end}", scope.namespace),
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

    /// The requests from the controller's metrics: verb, resource, code.
    async fn requests(&self) -> Result<BTreeSet<(String, String, u16)>> {
        let path = format!(
            "/api/v1/namespaces/{}/pods/controller:8080/proxy/metrics",
            self.namespace
        );
        let request = http_get(&path)?;
        let text = self.scope.client.request_text(request).await?;
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

    async fn claim(&self, name: &str, class: &str) -> Result<String> {
        let mut wanted = claim(name, class, "1Gi");
        wanted["metadata"]["namespace"] = json!(self.namespace);
        self.apply(&[wanted]).await?;
        let claims: Api<PersistentVolumeClaim> = self.api();
        claims.get(name).await?.uid().context("no uid")
    }

    async fn bound(&self, name: &str) -> Result<()> {
        let claims: Api<PersistentVolumeClaim> = self.api();
        wait_until(
            &format!("claim {name} of {} to be bound", self.namespace),
            LIMIT,
            async || {
                let claim = claims.get(name).await?;
                let phase = claim.status.and_then(|status| status.phase);
                Ok((phase.as_deref() == Some("Bound")).then_some(()))
            },
        )
        .await
    }

    /// Asks for more, and waits until it is there.
    async fn grown(&self, name: &str) -> Result<()> {
        let claims: Api<PersistentVolumeClaim> = self.api();
        let more = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
        // The API server may not know yet that the class allows it.
        wait_until(&format!("claim {name} to ask for more"), LIMIT, async || {
            Ok(claims.patch(name, &PatchParams::default(), &more).await.ok())
        })
        .await?;
        wait_until(&format!("claim {name} to be larger"), LIMIT, async || {
            let status = json!(claims.get(name).await?.status);
            Ok((status["capacity"]["storage"] == "2Gi").then_some(()))
        })
        .await
    }

    async fn class(&self, name: &str, what: &str, wanted: impl Fn(Option<&StorageClass>) -> bool) -> Result<()> {
        let classes: Api<StorageClass> = Api::all(self.scope.client.clone());
        wait_until(&format!("class {name} {what}"), LIMIT, async || {
            Ok(wanted(classes.get_opt(name).await?.as_ref()).then_some(()))
        })
        .await
    }

    /// Everything a controller ever does, once: a ConfigMap is created, changed and deleted; volumes are provisioned,
    /// expanded and deleted; snapshots are taken and deleted, one alone and those of a group; classes are made of what
    /// was discovered; a Pod with the name that it wants exists already.
    async fn life(&self) -> Result<()> {
        let class = &self.namespace;
        self.class(class, "to be made", |class| class.is_some()).await?;
        let uid = self.claim("data", class).await?;
        self.bound("data").await?;
        let more = json!({
            "mount-options": "noatime", "operations": "provision,delete,expand", "allow-volume-expansion": "true",
        });
        self.apply(&[self.config("main", class, more)]).await?;
        self.class(class, "to be changed", |class| {
            class.is_some_and(|class| class.mount_options.is_some())
        })
        .await?;
        self.grown("data").await?;

        let attached = self.attached().await?;

        let late = self.late_class();
        let taken = self.claim("taken", &late).await?;
        self.apply(&[self.object(
            "v1",
            "Pod",
            &format!("provision-{taken}"),
            json!({"spec": {
                // It exists, and never runs.
                "schedulerName": "nobody",
                "containers": [{"name": "main", "image": "busybox:1"}],
            }}),
        )])
        .await?;
        let by_csi = json!({
            "volume-source": "csi", "discover-script": "echo 'ssd snapshots -- pool=ssd' | pv classes",
            "operations": "provision,delete,snapshot,delete-snapshot,snapshot-group,delete-group,discover",
        });
        self.apply(&[self.config("late", &late, by_csi)]).await?;
        let there = self.scope.elsewhere(&self.namespace);
        let told = async || there.event("taken", "exists already and is not Mooring's").await;
        wait_until("the Pod in the way to be told", LIMIT, async || told().await.map(Some)).await?;
        wait_until("it to be told again", LIMIT, async || {
            let event = told().await?;
            Ok((event.series.is_some() || event.count.is_some_and(|count| count > 1)).then_some(()))
        })
        .await?;
        self.kubectl([
            "delete",
            "pod",
            &format!("provision-{taken}"),
            "--grace-period=0",
            "--force",
        ])?;
        self.bound("taken").await?;
        self.snapshots(&taken).await?;
        let discovered = self.discovered_class();
        self.snapshot_class(&discovered, true).await?;

        self.kubectl(["delete", "--wait=false", "persistentvolumeclaims", "--all"])?;
        for uid in [&uid, &taken, &attached] {
            there.nothing_left(uid).await?;
        }
        self.kubectl(["delete", "configmap", "main", "late", "attached"])?;
        self.class(class, "to be given up", |class| class.is_none()).await?;
        self.snapshot_class(&discovered, false).await
    }

    /// Has a volume attached for a Pod, and detached again; returns the uid of its claim.
    async fn attached(&self) -> Result<String> {
        let class = self.attached_class();
        let more = json!({"volume-source": "csi", "operations": "provision,delete,attach,detach"});
        self.apply(&[self.config("attached", &class, more)]).await?;
        self.class(&class, "to be made", |class| class.is_some()).await?;
        let uid = self.claim("attached", &class).await?;
        self.bound("attached").await?;
        let mut user = user_of("user", "attached", "sleep 1000000");
        user["metadata"]["namespace"] = json!(self.namespace);
        user["metadata"]["labels"] = json!({TEST_LABEL: self.scope.namespace});
        self.apply(&[user]).await?;
        self.attachment(&uid, true).await?;
        self.kubectl(["delete", "pod", "user", "--grace-period=0", "--force"])?;
        self.attachment(&uid, false).await?;
        Ok(uid)
    }

    /// Waits until a node has a claim's volume, or none has it.
    async fn attachment(&self, uid: &str, wanted: bool) -> Result<()> {
        let volumes: Api<PersistentVolume> = Api::all(self.scope.client.clone());
        let name = format!("pvc-{uid}");
        wait_until(&format!("{name} to be attached or detached"), LIMIT, async || {
            let notes = volumes.get(&name).await?.metadata.annotations.unwrap_or_default();
            let is_open = notes.contains_key(annotations::OPERATION);
            Ok((!is_open && notes.contains_key(annotations::ATTACHED_TO) == wanted).then_some(()))
        })
        .await
    }

    /// Waits until the class of snapshots of what was discovered is there, or is not any more.
    async fn snapshot_class(&self, name: &str, is_wanted: bool) -> Result<()> {
        let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass");
        let classes: Api<DynamicObject> = Api::all_with(self.scope.client.clone(), &ApiResource::from_gvk(&kind));
        wait_until(&format!("class {name} of snapshots to come or go"), LIMIT, async || {
            Ok((classes.get_opt(name).await?.is_some() == is_wanted).then_some(()))
        })
        .await
    }

    /// Has snapshots of a claim's volume taken and deleted, alone and as a group, by the objects that
    /// snapshot-controller makes for them.
    async fn snapshots(&self, claim: &str) -> Result<()> {
        let volume = format!("pvc-{claim}");
        let of = json!({"namespace": self.namespace, "name": "monday", "uid": claim});
        let alone = json!({"source": {"volumeHandle": volume}, "volumeSnapshotRef": of});
        let group = json!({"source": {"volumeHandles": [volume]}, "volumeGroupSnapshotRef": of});
        for (content, mut spec) in CONTENTS.iter().zip([alone, group]) {
            (spec["driver"], spec["deletionPolicy"]) = (json!("vcs.mooring.dev"), json!("Delete"));
            let version = format!("{}/v1", content.group);
            let mut object = self.object(&version, content.kind, &self.namespace, json!({"spec": spec}));
            object["metadata"]["namespace"] = Value::Null;
            self.apply(&[object]).await?;
            let contents = content.api(&self.scope);
            wait_until(&format!("{} to be ready", content.kind), LIMIT, async || {
                let content = contents.get(&self.namespace).await?;
                Ok((content.data["status"]["readyToUse"] == true).then_some(()))
            })
            .await?;
        }
        self.without_snapshots().await
    }

    /// Deletes the contents that are there, with the mark of snapshot-controller that the users' objects are deleted
    /// too.
    async fn without_snapshots(&self) -> Result<()> {
        for content in &CONTENTS {
            let contents = content.api(&self.scope);
            if contents.get_opt(&self.namespace).await?.is_none() {
                continue;
            }
            let mark = json!({"metadata": {"annotations": {content.being_deleted: "yes"}}});
            contents
                .patch(&self.namespace, &PatchParams::default(), &Patch::Merge(&mark))
                .await?;
            contents.delete(&self.namespace, &DeleteParams::default()).await?;
            wait_until(&format!("{} to be gone", content.kind), LIMIT, async || {
                Ok(contents.get_opt(&self.namespace).await?.is_none().then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// All requests of [`Self::life`]. They are read again and again: a controller that can't renew its Lease in time
    /// begins anew, and so do its metrics.
    async fn requests_of_a_life(&self) -> Result<BTreeSet<(String, String, u16)>> {
        let mut all = BTreeSet::new();
        let mut life = std::pin::pin!(self.life());
        loop {
            tokio::select! {
                lived = &mut life => {
                    lived?;
                    all.extend(self.requests().await?);
                    return Ok(all);
                }
                () = tokio::time::sleep(Duration::from_secs(1)) => all.extend(self.requests().await.unwrap_or_default()),
            }
        }
    }

    /// Makes the controller work until it is refused for lack of the right; whether it was.
    async fn is_refused(&self, right: &Right) -> Result<bool> {
        let hit = refusal(right);
        let what = format!("{right} to be refused");
        let refused = wait_until(&what, LIMIT, async || {
            Ok(self.requests().await?.contains(&hit).then_some(()))
        });
        tokio::select! {
            refused = refused => refused.map(|()| true),
            lived = self.life() => {
                lived?;
                // The metrics may not have had the last refusal yet.
                Ok(self.requests().await?.contains(&hit))
            }
        }
    }

    /// Gives the controller the missing right: it resumes its work and cleans up after itself.
    async fn finish(mut self, rights: &Rights) -> Result<()> {
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
            // The run of a discovery stays for as long as its ConfigMap.
            left.extend(
                pods.list(&all)
                    .await?
                    .iter()
                    .map(ResourceExt::name_any)
                    .filter(|name| name != "controller" && !name.starts_with("discover-")),
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
    fn classes(&self) -> [String; 4] {
        [
            self.namespace.clone(),
            self.late_class(),
            self.discovered_class(),
            self.attached_class(),
        ]
    }

    fn attached_class(&self) -> String {
        format!("{}-attached", self.namespace)
    }

    /// The class of what the image discovers, and that of its snapshots.
    fn discovered_class(&self) -> String {
        format!("{}-ssd", self.late_class())
    }

    fn late_class(&self) -> String {
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
        let [class, late, discovered, attached] = self.classes();
        steps.extend([
            stopped.map(drop),
            claims.map(drop),
            volumes.map(drop),
            self.kubectl([
                "delete",
                "--ignore-not-found",
                "storageclass",
                &class,
                &late,
                &discovered,
                &attached,
            ])
            .map(drop),
            self.kubectl(["delete", "--ignore-not-found", "volumesnapshotclass", &discovered])
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

#[test]
fn the_controller_does_all_it_does_with_its_rights_and_uses_each_of_them() {
    in_namespace("rbac-all", async |scope| {
        scope.require_mooring().await?;
        scope.snapshot_api()?;
        scope.grants_api()?;
        let rights = Rights::installed(&scope).await?;
        hold(&scope).await?;
        let mooring = Mooring::start(&scope, "all", &rights).await?;
        let requests = mooring.requests_of_a_life().await?;
        let refused: Vec<_> = requests.iter().filter(|(_, _, code)| *code == 403).collect();
        ensure!(refused.is_empty(), "refused: {refused:?}");
        let used = |right: &Right| {
            requests.iter().any(|(verb, resource, code)| {
                *verb == right.verb && *resource == right.resource && (200..300).contains(code)
            })
        };
        let unused: Vec<_> = rights.all().into_iter().filter(|right| !used(right)).collect();
        ensure!(unused.is_empty(), "rights that nothing needs: {unused:?}");
        mooring.finish(&rights).await
    });
}

#[test]
fn a_controller_that_no_admission_policy_holds_does_nothing_until_one_does() {
    in_namespace("rbac-unheld", async |scope| {
        scope.require_mooring().await?;
        scope.snapshot_api()?;
        scope.grants_api()?;
        let rights = Rights::installed(&scope).await?;
        let mooring = Mooring::start(&scope, "unheld", &rights).await?;
        wait_until("the controller to say that nothing holds it", LIMIT, async || {
            let log = mooring.kubectl(["logs", "controller"])?;
            Ok(log
                .contains("no admission policy restricts this controller, so it does nothing")
                .then_some(()))
        })
        .await?;
        let path = format!(
            "/api/v1/namespaces/{}/pods/controller:8080/proxy/readyz",
            mooring.namespace
        );
        // With kubectl: the client library would try again when the answer is that the controller is not ready.
        match scope.kubectl(["get", "--raw", &path]) {
            Ok(said) => bail!("it says that it is ready: {said}"),
            Err(error) => ensure!(format!("{error:#}").contains("unable to handle"), "{error:#}"),
        }
        let asked = |code| ("create".to_owned(), "pods".to_owned(), code);
        let mut made: BTreeSet<_> = mooring.requests().await?;
        // A busy API server may have had it ask again.
        made.retain(|request| ![429, 500, 503, 504].map(asked).contains(request));
        assert_eq!(made, BTreeSet::from([asked(201)]), "it did more than ask, by dry run");

        hold(&scope).await?;
        let class = &mooring.namespace;
        mooring
            .class(class, "to be made by a controller that is held", |class| {
                class.is_some()
            })
            .await?;
        mooring.finish(&rights).await
    });
}

#[test]
fn the_controller_needs_each_of_its_rights_and_continues_when_one_is_restored() {
    in_namespace_within(WHOLE_LIMIT, "rbac", async |scope| {
        scope.require_mooring().await?;
        scope.snapshot_api()?;
        scope.grants_api()?;
        let rights = Rights::installed(&scope).await?;
        hold(&scope).await?;
        let all = rights.all();
        ensure!(all.len() > 25, "only {} rights were found", all.len());
        let not_needed: Vec<_> = futures::stream::iter(all.iter().enumerate())
            .map(|(index, right)| {
                let (scope, rights) = (&scope, &rights);
                async move {
                    let mooring = Mooring::start(scope, &index.to_string(), &rights.without(right)).await?;
                    let refused = mooring.is_refused(right).await;
                    let refused = refused.with_context(|| format!("without {right}"))?;
                    let finished = mooring.finish(rights).await;
                    finished.with_context(|| format!("after it had {right} back"))?;
                    anyhow::Ok((!refused).then_some(right))
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_filter_map(|not_needed| std::future::ready(Ok(not_needed)))
            .try_collect()
            .await?;
        ensure!(not_needed.is_empty(), "rights that are not needed: {not_needed:?}");
        note(format!("{} rights were removed in turn", all.len()));
        Ok(())
    });
}
