//! What tests wait for in their namespace: Pods, claims, Events.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::ListParams;
use mooring_program::reasons;

use super::scope::Scope;
use super::waits::wait_until;
use mooring_testbed::progress::{note, spoken};

/// Longest wait for a Pod to run or to end. The images are on the node: the time is for volumes on a busy machine,
/// where 40 MB written through s3fs and read again took 80 s.
const POD_LIMIT: Duration = Duration::from_mins(4);
/// Longest wait for a claim to be bound.
const CLAIM_LIMIT: Duration = Duration::from_mins(4);
/// Longest wait for an Event: the kubelet tries a mount again after two minutes at most.
const EVENT_LIMIT: Duration = Duration::from_mins(4);
/// Longest wait for what a running program writes.
const TEXT_LIMIT: Duration = Duration::from_mins(2);

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// When an Event was first recorded; the kubelet's have whole seconds.
#[must_use]
pub fn recorded(event: &Event) -> Option<Timestamp> {
    let exact = event.event_time.as_ref().map(|time| time.0);
    exact.or(event.first_timestamp.as_ref().map(|time| time.0))
}

impl Scope {
    /// Waits until a Pod is ready.
    pub async fn pod_ready(&self, name: &str) -> Result<Pod> {
        let pods: Api<Pod> = self.api();
        wait_until(&format!("Pod {name} to be ready"), self.limit(POD_LIMIT), async || {
            Ok(pods.get_opt(name).await?.filter(is_ready))
        })
        .await
    }

    /// Waits until a Pod has succeeded; fails at once if the Pod does.
    pub async fn pod_succeeded(&self, name: &str) -> Result<Pod> {
        let pods: Api<Pod> = self.api();
        let pod = wait_until(&format!("Pod {name} to end"), self.limit(POD_LIMIT), async || {
            let pod = pods.get_opt(name).await?;
            Ok(pod.filter(|pod| ["Succeeded", "Failed"].contains(&phase(pod))))
        })
        .await?;
        if phase(&pod) == "Failed" {
            bail!("Pod {name} failed");
        }
        Ok(pod)
    }

    /// Waits until a Pod is gone.
    pub async fn pod_gone(&self, name: &str) -> Result<()> {
        let pods: Api<Pod> = self.api();
        wait_until(&format!("Pod {name} to be gone"), self.limit(POD_LIMIT), async || {
            Ok(pods.get_opt(name).await?.is_none().then_some(()))
        })
        .await
    }

    /// Waits until a file in a Pod has this content. A Pod without a probe is ready before its program has done
    /// anything.
    pub async fn file_is(&self, pod: &str, path: &str, content: &str) -> Result<()> {
        let what = format!("Pod {pod} to have {content:?} in {path}");
        self.has(&what, content, || self.exec(pod, ["cat", path])).await
    }

    /// Waits until a Pod's log is this.
    pub async fn log_is(&self, pod: &str, content: &str) -> Result<()> {
        let what = format!("Pod {pod} to have printed {content:?}");
        self.has(&what, content, || self.kubectl(["logs", pod])).await
    }

    async fn has(&self, what: &str, content: &str, read: impl Fn() -> Result<String>) -> Result<()> {
        wait_until(what, self.limit(TEXT_LIMIT), async || {
            let text = read()?;
            ensure!(text == content, "it is {text:?}");
            Ok(Some(()))
        })
        .await
    }

    /// Deletes Pods whose server hangs, and waits until they are gone, for this long at most.
    pub async fn deleted_within(&self, pods: &[&str], limit: Duration) -> Result<()> {
        let (start, mut left) = (Instant::now(), pods.to_vec());
        for pod in pods {
            self.kubectl(["delete", "pod", pod, "--wait=false"])?;
        }
        let there: Api<Pod> = self.api();
        wait_until(&format!("{} to be gone", pods.join(", ")), limit, async || {
            for pod in left.clone() {
                if there.get_opt(pod).await?.is_none() {
                    note(format!("{pod} was gone after {}", spoken(start.elapsed())));
                    left.retain(|other| *other != pod);
                }
            }
            ensure!(left.is_empty(), "{} are there", left.join(", "));
            Ok(Some(()))
        })
        .await
    }

    /// [`Self::deleted_within`], which also checks that each Pod has an Event that says why.
    pub async fn given_up(&self, pods: &[&str], limit: Duration) -> Result<()> {
        self.deleted_within(pods, limit).await?;
        self.say_given_up(pods).await
    }

    /// That each Pod has an Event that says that its volume was given up.
    pub async fn say_given_up(&self, pods: &[&str]) -> Result<()> {
        for pod in pods {
            let event = self.event(pod, "did not answer").await?;
            ensure!(event.reason.as_deref() == Some(reasons::VOLUME_GIVEN_UP), "{event:?}");
        }
        Ok(())
    }

    /// Waits until a claim is bound.
    pub async fn claim_bound(&self, name: &str) -> Result<PersistentVolumeClaim> {
        let claims: Api<PersistentVolumeClaim> = self.api();
        wait_until(
            &format!("claim {name} to be bound"),
            self.limit(CLAIM_LIMIT),
            async || {
                let claim = claims.get_opt(name).await?;
                let bound = |claim: &PersistentVolumeClaim| {
                    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
                };
                Ok(claim.filter(bound))
            },
        )
        .await
    }

    /// The Events on an object of this namespace.
    pub async fn events(&self, object: &str) -> Result<Vec<Event>> {
        let events: Api<Event> = self.api();
        let selector = ListParams::default().fields(&format!("involvedObject.name={object}"));
        let listed = events.list(&selector).await;
        Ok(listed
            .with_context(|| format!("failed to list the Events on {object}"))?
            .items)
    }

    /// Waits for an Event on an object of this namespace whose message contains `text`.
    pub async fn event(&self, object: &str, text: &str) -> Result<Event> {
        self.event_with_all(object, &[text]).await
    }

    /// The same, whose message contains all of `texts`.
    pub async fn event_with_all(&self, object: &str, texts: &[&str]) -> Result<Event> {
        let has_all = |event: &Event| {
            let message = event.message.as_deref();
            message.is_some_and(|message| texts.iter().all(|text| message.contains(text)))
        };
        wait_until(
            &format!("an Event on {object} with {texts:?}"),
            self.limit(EVENT_LIMIT),
            async || Ok(self.events(object).await?.into_iter().find(has_all)),
        )
        .await
    }
}
