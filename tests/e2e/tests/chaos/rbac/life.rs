//! What a controller is made to do, so that it needs each of its rights once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use kube::Api;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, ResourceExt,
};
use mooring_contract::names::{CSI_DRIVER, annotations};
use mooring_harness::provisioner::{TEST_LABEL, claim, user_of};
use mooring_harness::rights::Right;
use mooring_harness::{Scope, wait_until};
use serde_json::{Value, json};

use super::LIMIT;
use super::mooring::{Mooring, Requests};
use super::rights::{Rights, refusal};

/// How often the controller's requests are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How long it may take until the controller counts an answer.
const COUNTED: Duration = Duration::from_secs(20);

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

impl Mooring {
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

    pub(super) async fn class(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(Option<&StorageClass>) -> bool,
    ) -> Result<()> {
        let classes: Api<StorageClass> = Api::all(self.scope.client.clone());
        wait_until(&format!("class {name} {what}"), LIMIT, async || {
            Ok(wanted(classes.get_opt(name).await?.as_ref()).then_some(()))
        })
        .await
    }

    /// Everything a controller ever does, once: a ConfigMap is created, changed and deleted; the scheduler is told what
    /// a class has left; volumes are provisioned,
    /// expanded and deleted; snapshots are taken and deleted, one alone and those of a group; classes are made of what
    /// was discovered; a Pod with the name that it wants exists already.
    async fn life(&self) -> Result<()> {
        let class = &self.namespace;
        self.class(class, "to be made", |class| class.is_some()).await?;
        self.capacities().await?;
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
        self.kubectl(["delete", "configmap", "main", "late", "attached", "told"])?;
        self.class(class, "to be given up", |class| class.is_none()).await?;
        self.snapshot_class(&discovered, false).await
    }

    /// Has what a class has left made known, changed and taken away, while the class stays.
    async fn capacities(&self) -> Result<()> {
        let class = self.told_class();
        let mut more = json!({"plugin-name": CSI_DRIVER, "volume-source": "csi"});
        self.apply(&[self.config("told", &class, more.clone())]).await?;
        self.class(&class, "to be made", |class| class.is_some()).await?;
        self.capacity("9223372036854775807").await?;
        let classes: Api<StorageClass> = Api::all(self.scope.client.clone());
        let left = json!({"metadata": {"annotations": {annotations::CAPACITY: "1024"}}});
        classes
            .patch(&class, &PatchParams::default(), &Patch::Merge(&left))
            .await?;
        self.capacity("1Ki").await?;
        // From now on, each node has an object of its own.
        more["backend-volume"] = json!("client=pool");
        self.apply(&[self.config("told", &class, more)]).await?;
        self.capacity("").await
    }

    /// Waits until the one object for all nodes says this, or is gone.
    async fn capacity(&self, left: &str) -> Result<()> {
        let objects: Api<CSIStorageCapacity> = self.api();
        let what = format!("what {} has left to be {left:?}", self.told_class());
        wait_until(&what, LIMIT, async || {
            let all = objects.list(&ListParams::default()).await?;
            let of_all_nodes = |object: &&CSIStorageCapacity| {
                let topology = object.node_topology.as_ref();
                topology.is_some_and(|topology| topology.match_labels.is_none())
            };
            let found = all.iter().find(of_all_nodes);
            let says = found.and_then(|object| Some(object.capacity.as_ref()?.0.as_str()));
            Ok((says.unwrap_or_default() == left).then_some(()))
        })
        .await
    }

    /// Has a volume attached for a Pod, and detached again; returns the uid of its claim.
    async fn attached(&self) -> Result<String> {
        let class = self.attached_class();
        let mut more = json!({"volume-source": "csi", "operations": "provision,delete,attach,detach"});
        if self.by_worker {
            (more["workers"], more["service-account-name"]) = (json!("1"), Value::Null);
        }
        self.apply(&[self.config("attached", &class, more)]).await?;
        self.class(&class, "to be made", |class| class.is_some()).await?;
        if self.by_worker {
            wait_until("a worker to wait for a run", LIMIT, async || {
                let free = "mooring_provisioner_workers{state=\"free\"} 1";
                Ok(self.metrics().await?.contains(free).then_some(()))
            })
            .await?;
        }
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
    pub(super) async fn snapshot_class(&self, name: &str, is_wanted: bool) -> Result<()> {
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
    pub(super) async fn without_snapshots(&self) -> Result<()> {
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

    /// Lives, and shows `look` the requests of the controller again and again until it says that it has seen enough: a
    /// controller that can't renew its Lease in time begins anew, and so do its metrics. After the life, it looks for
    /// as long as an answer may take to be counted; what was asked for may be seen before.
    async fn live(&self, mut look: impl AsyncFnMut(Requests) -> Result<bool>) -> Result<()> {
        let mut life = std::pin::pin!(self.life());
        let mut lived_at: Option<Instant> = None;
        loop {
            tokio::select! {
                lived = &mut life, if lived_at.is_none() => {
                    lived?;
                    lived_at = Some(Instant::now());
                }
                () = tokio::time::sleep(LOOK) => (),
            }
            let is_over = lived_at.is_some_and(|at| at.elapsed() > COUNTED);
            let has_seen_enough = match self.requests().await {
                Ok(requests) => look(requests).await?,
                Err(error) if is_over => return Err(error),
                // It may be starting.
                Err(_) => false,
            };
            if is_over || (has_seen_enough && lived_at.is_some()) {
                return Ok(());
            }
        }
    }

    /// Makes the controller live with all of its rights; returns those of which it has made no successful request, and
    /// fails if it was refused one.
    pub(super) async fn life_with<'a>(&self, rights: &'a [Right]) -> Result<Vec<&'a Right>> {
        let mut unused: Vec<_> = rights.iter().collect();
        self.live(async |requests| {
            let refused: Vec<_> = requests.iter().filter(|(_, _, code)| *code == 403).collect();
            ensure!(refused.is_empty(), "refused: {refused:?}");
            unused.retain(|right| {
                !requests.iter().any(|(verb, resource, code)| {
                    *verb == right.verb && *resource == right.resource && (200..300).contains(code)
                })
            });
            Ok(unused.is_empty())
        })
        .await?;
        Ok(unused)
    }

    /// Makes the controller live while it lacks rights, each of which it gets when it has been refused for lack of it.
    /// Returns those that it has not missed.
    pub(super) async fn life_without<'a>(
        &self,
        rights: &Rights,
        mut lacking: Vec<&'a Right>,
    ) -> Result<Vec<&'a Right>> {
        let lived = self.live(async |requests| {
            let had = lacking.len();
            lacking.retain(|right| !requests.contains(&refusal(right)));
            if lacking.len() < had {
                self.grant(&rights.without(&lacking)).await?;
            }
            Ok(lacking.is_empty())
        });
        Box::pin(lived).await.with_context(|| {
            let without: Vec<_> = lacking.iter().map(ToString::to_string).collect();
            format!("without {}", without.join(", "))
        })?;
        Ok(lacking)
    }
}
