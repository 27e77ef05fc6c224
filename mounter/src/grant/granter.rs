//! The proof of who wrote a volume, and with it the only way to a [`Grant`].
//!
//! The name of a volume proves nothing: an author of Pods can give an inline volume the name of any PersistentVolume.
//! Of a CSI volume the kubelet says whether a Pod has it in its own spec, and which `volumeHandle` it has. Of a
//! `FlexVolume` it says nothing that its author can't forge but the directory: so the Pod whose uid is in the directory
//! has to have an inline volume of this name, or to use the claim that the PersistentVolume of this name is for.
//!
//! A PersistentVolume is mounted as the API has it, and an inline `FlexVolume` as the Pod has it there. The group of the
//! files is the Pod's, as the API has it. Where the API shows the mounter no Pod (before Kubernetes 1.36), no `FlexVolume`
//! is mounted, nor what a Pod has of its own in a namespace of runs, and the group of a CSI volume is what the kubelet
//! says, which nobody else can say there. Unmounts, growth and revival ask nobody.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{FlexVolumeSource, PersistentVolume, Pod};
use mooring_contract::attachment::CONNECTION;
use mooring_contract::names::{CSI_DRIVER, FLEX_DRIVER, SETTINGS_CONFIG, annotations};
use mooring_contract::volume::{Volume, VolumeError};
use mooring_program::settings::keys::CONFIG_NAMESPACES;

use super::attach::{ToAttach, needs_attachment};
use super::author::{Author, Misfit, is_of_a_claim, looks_like_a_run};
use super::request::{MountRequest, Told};
use super::{Grant, Granted};
use crate::settings::SettingsInForce;
use crate::volume::cause::Cause;
use crate::volume::job::{MountError, PodRef};
use crate::volume::kubelet_options::{self, FLEX_PREFIX};
use crate::volume::pod_group::PodGroup;

/// Longest that the API may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Why the API did not answer.
pub type ApiError = Box<dyn std::error::Error + Send + Sync>;

/// A Pod of this node, as far as the API shows it to the mounter.
#[derive(Debug)]
pub enum PodSeen {
    There(Box<Pod>),
    /// The API has no such Pod.
    Missing,
    /// Kubernetes before 1.36 lets no mounter see the Pods of only its own node.
    Hidden,
}

/// What is asked of the API, once for a mount.
#[async_trait]
pub trait GrantApi: Send + Sync {
    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, ApiError>;
    /// A Pod of this node, by its name and namespace.
    async fn pod(&self, pod: &PodRef) -> Result<PodSeen, ApiError>;
}

/// Why a mount is not granted; the message says who has to do what.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    #[error(
        "the mounter has no access to the Kubernetes API, so it can't see who wrote the volume: see the mounter's log"
    )]
    NoApi,
    #[error("the Kubernetes API did not say who wrote the volume ({0}): the kubelet tries again")]
    NoAnswer(ApiError),
    #[error("the Kubernetes API did not say who wrote the volume (no answer in time): the kubelet tries again")]
    NoAnswerInTime,
    /// The `CSIDriver` object is not Mooring's own.
    #[error(
        "the kubelet does not say whether the volume is written in a Pod or is a PersistentVolume: an administrator has \
         to set podInfoOnMount: true in CSIDriver {CSI_DRIVER}, as configmaps/install/csi.yaml has it"
    )]
    NoLifecycle,
    #[error(
        "the Kubernetes API has no Pod {namespace}/{name} with uid {uid} on this node, so it does not show who wrote the \
         volume: a Pod that is only a file on the node can't have a volume of Mooring, so create the Pod in the API"
    )]
    NoPod {
        namespace: String,
        name: String,
        uid: String,
    },
    #[error(
        "before Kubernetes 1.36, a mounter sees no Pod of namespace {0}, so it can't know who wrote the volume: if the \
         namespace is one of provisioner ConfigMaps, bind ClusterRole mooring-mounter-runs to account mounter in it; \
         else use a PersistentVolume of CSI driver {CSI_DRIVER} (volume-source: csi in its ConfigMap), or update Kubernetes"
    )]
    HiddenPod(String),
    #[error(
        "Pod {pod} has no volume {volume} of driver {FLEX_DRIVER}, and there is no PersistentVolume of this name: delete \
         the Pod, and create the PersistentVolume again first"
    )]
    NoVolume { volume: String, pod: String },
    #[error("PersistentVolume {0} is of another driver than the kubelet says: delete the Pod that uses its claim")]
    OtherDriver(String),
    #[error(
        "PersistentVolume {volume} is not the one that the kubelet knows by this name (volumeHandle {found:?} is not \
         {wanted:?}): delete the Pod that uses it"
    )]
    OtherHandle {
        volume: String,
        /// The PersistentVolume's.
        found: String,
        /// The kubelet's.
        wanted: String,
    },
    #[error(
        "PersistentVolume {volume} is for claim {claim}, which Pod {pod} does not use, and the Pod has no volume of its \
         own with this name: delete the Pod"
    )]
    OtherClaim { volume: String, claim: String, pod: String },
    /// A name that can be no accident.
    #[error(
        "the Pod's own volume {0} has the name of a PersistentVolume that has to be attached: give the volume another \
         name"
    )]
    NameOfAttached(String),
    #[error(
        "the Pod's own volume {0} has the name of a PersistentVolume that is made for a claim: give the volume another \
         name"
    )]
    NameOfProvisioned(String),
    /// The Secret may be the PersistentVolume's.
    #[error(
        "the Pod's own volume {0} has the name of the PersistentVolume of a claim of its namespace: give the volume \
         another name"
    )]
    TwoOfOneName(String),
    #[error(
        "Pod {pod} has the label of Mooring's own runs, but its namespace is not among those with provisioner \
         ConfigMaps: an administrator has to add it to the key {CONFIG_NAMESPACES} of ConfigMap {SETTINGS_CONFIG}"
    )]
    RunElsewhere { pod: String },
    #[error(
        "ConfigMap {SETTINGS_CONFIG} in Mooring's namespace was not read yet, so the mounter does not know whether a Pod \
         of namespace {0} may be one of Mooring's own runs; the kubelet tries again: if the ConfigMap has a mistake, an \
         Event on it names the key to correct"
    )]
    SettingsUnread(String),
    #[error(
        "the Secret of PersistentVolume {volume} has no key {CONNECTION} that can be read: somebody changed the Secret, \
         which only Mooring may write. Remove annotation {annotation} from the PersistentVolume, and Mooring makes the \
         key again and attaches the volume", annotation = annotations::ATTACHED_TO
    )]
    NoKey { volume: String },
    #[error(
        "the Secret of the volume has key {CONNECTION}, but the volume is none that has to be attached: remove the key \
         from the Secret, or name another Secret"
    )]
    StrayKey,
    #[error(transparent)]
    Options(#[from] VolumeError),
    #[error(transparent)]
    Misfit(#[from] Misfit),
}

impl From<Misfit> for MountError {
    fn from(misfit: Misfit) -> Self {
        match misfit {
            Misfit::NodeClient { .. } => Self::Forbidden(Cause::of(misfit)),
            Misfit::Options(error) => error,
        }
    }
}

impl From<GrantError> for MountError {
    fn from(error: GrantError) -> Self {
        match error {
            GrantError::NoApi => Self::Node(Cause::of(error)),
            GrantError::NoAnswer(_) | GrantError::NoAnswerInTime | GrantError::SettingsUnread(_) => {
                Self::Unproved(Cause::of(error))
            }
            GrantError::Options(error) => Self::bad_options(error),
            GrantError::Misfit(misfit) => misfit.into(),
            _ => Self::Forbidden(Cause::of(error)),
        }
    }
}

/// Who is asked.
enum Witness {
    Nobody,
    Api(Arc<dyn GrantApi>),
    /// The kubelet itself: it has no API either, and its Pods are files that the node's administrator wrote.
    Kubelet,
}

/// Grants mounts.
pub struct Granter {
    witness: Witness,
    /// They say in which namespaces Pods may be runs.
    settings: SettingsInForce,
}

/// Who wrote a volume, and what it says.
enum Proof {
    Inline { author: Author, volume: Volume },
    Persistent(Box<PersistentVolume>),
}

impl Granter {
    /// One that asks the API. Without it every mount is refused.
    pub fn new(api: Option<Arc<dyn GrantApi>>, settings: impl Into<SettingsInForce>) -> Self {
        Self {
            witness: api.map_or(Witness::Nobody, Witness::Api),
            settings: settings.into(),
        }
    }

    /// One for a kubelet that stands alone, without an API: every volume is an administrator's.
    pub fn standalone() -> Self {
        Self {
            witness: Witness::Kubelet,
            settings: [].into(),
        }
    }

    /// Decides what a request may mount. Returns before `deadline`.
    pub async fn grant(&self, mut request: MountRequest, deadline: Instant) -> Result<Granted, GrantError> {
        let proof = match &self.witness {
            Witness::Nobody => return Err(GrantError::NoApi),
            Witness::Kubelet => Proof::Inline {
                author: Author::Administrator,
                volume: request.volume.clone(),
            },
            Witness::Api(api) => {
                let limit = LIMIT.min(deadline.saturating_duration_since(Instant::now()));
                let proved = tokio::time::timeout(limit, self.prove(&**api, &request));
                let (proof, pod) = proved.await.map_err(|_| GrantError::NoAnswerInTime)??;
                if let Some(pod) = pod {
                    request.fs_group = PodGroup::of(&pod);
                }
                proof
            }
        };
        let key = request.secrets.0.get(CONNECTION).cloned();
        match proof {
            Proof::Persistent(found) if needs_attachment(&found) => {
                let key = key.and_then(|key| serde_json::from_slice(&key).ok());
                let key = key.ok_or_else(|| GrantError::NoKey {
                    volume: request.target.name().to_owned(),
                })?;
                let grant = of_persistent_volume(&found, request)?;
                Ok(Granted::ToAttach(Box::new(ToAttach::new(grant, *found, key))))
            }
            _ if key.is_some() => Err(GrantError::StrayKey),
            Proof::Persistent(found) => Ok(Granted::Now(Box::new(of_persistent_volume(&found, request)?))),
            Proof::Inline { author, volume } => Ok(Granted::Now(Box::new(judged(author, volume, request)?))),
        }
    }

    /// Who wrote the volume, and the Pod that it is for, if the API shows it.
    async fn prove(&self, api: &dyn GrantApi, request: &MountRequest) -> Result<(Proof, Option<Box<Pod>>), GrantError> {
        if let Told::Csi { ephemeral: None, .. } = request.told {
            return Err(GrantError::NoLifecycle);
        }
        let (found, pod) =
            tokio::try_join!(api.volume(request.target.name()), api.pod(&request.pod)).map_err(GrantError::NoAnswer)?;
        let pod = match pod {
            PodSeen::There(pod) if pod.metadata.uid.as_deref() == Some(request.target.pod_uid()) => Some(pod),
            PodSeen::There(_) | PodSeen::Missing => return Err(no_pod(request)),
            PodSeen::Hidden => None,
        };
        Ok((self.author_and_volume(request, found, pod.as_deref())?, pod))
    }

    fn author_and_volume(
        &self,
        request: &MountRequest,
        found: Option<PersistentVolume>,
        pod: Option<&Pod>,
    ) -> Result<Proof, GrantError> {
        let name = request.target.name();
        let proof = match &request.told {
            Told::Csi {
                ephemeral: Some(true), ..
            } => {
                let namespace = &request.pod.namespace;
                // They would share a directory in a Pod that has both.
                let is_beside = |found: &PersistentVolume| match pod {
                    Some(pod) => is_used_by(found, pod, request).is_ok(),
                    None => is_claimed_in(found, namespace),
                };
                if found.as_ref().is_some_and(is_beside) {
                    return Err(GrantError::TwoOfOneName(name.to_owned()));
                }
                let author = match pod {
                    Some(pod) => self.author_of(pod, request)?,
                    // It may be a run's.
                    None if self.has_runs_in(namespace)? => {
                        return Err(GrantError::HiddenPod(namespace.clone()));
                    }
                    None => Author::Tenant,
                };
                (author, request.volume.clone())
            }
            Told::Csi { volume_id, .. } => {
                let found = found.ok_or_else(|| no_volume(request))?;
                return has_handle(&found, volume_id).map(|()| Proof::Persistent(Box::new(found)));
            }
            Told::Nothing => {
                let pod = pod.ok_or_else(|| GrantError::HiddenPod(request.pod.namespace.clone()))?;
                let Some(inline) = flex_volume(pod, name) else {
                    let found = found.ok_or_else(|| no_volume(request))?;
                    return is_used_by(&found, pod, request).map(|()| Proof::Persistent(Box::new(found)));
                };
                // The kubelet mounts one of the two, and its Secret may be that of the other.
                if let Some(found) = &found
                    && is_used_by(found, pod, request).is_ok()
                {
                    return Err(GrantError::TwoOfOneName(name.to_owned()));
                }
                (self.author_of(pod, request)?, as_written(inline)?)
            }
        };
        match proof {
            // The name of a volume says which note on the Node it has.
            _ if found.as_ref().is_some_and(needs_attachment) => Err(GrantError::NameOfAttached(name.to_owned())),
            // Such a PersistentVolume may still be made.
            _ if is_of_a_claim(name) => Err(GrantError::NameOfProvisioned(name.to_owned())),
            (author, volume) => Ok(Proof::Inline { author, volume }),
        }
    }

    /// Who wrote the volumes of a Pod.
    fn author_of(&self, pod: &Pod, request: &MountRequest) -> Result<Author, GrantError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        if !looks_like_a_run(pod) {
            return Ok(Author::Tenant);
        }
        if self.has_runs_in(namespace)? {
            return Ok(Author::Run);
        }
        Err(GrantError::RunElsewhere {
            pod: said(&request.pod),
        })
    }

    fn has_runs_in(&self, namespace: &str) -> Result<bool, GrantError> {
        let known = self.settings.has_runs_in(namespace);
        known.ok_or_else(|| GrantError::SettingsUnread(namespace.to_owned()))
    }
}

fn of_persistent_volume(found: &PersistentVolume, mut request: MountRequest) -> Result<Grant, GrantError> {
    request.read_only |= is_read_only(found);
    let volume = kubelet_options::of_persistent_volume(found, request.target.driver());
    let volume = volume.ok_or_else(|| GrantError::OtherDriver(request.target.name().to_owned()))??;
    judged(Author::of_persistent_volume(found), volume, request)
}

/// Whether a PersistentVolume says that nobody may write it. The kubelet passes on only what the Pod says.
fn is_read_only(found: &PersistentVolume) -> bool {
    let spec = found.spec.as_ref();
    let flex = spec.and_then(|spec| spec.flex_volume.as_ref()?.read_only);
    let csi = spec.and_then(|spec| spec.csi.as_ref()?.read_only);
    flex.or(csi).unwrap_or_default()
}

fn judged(author: Author, volume: Volume, request: MountRequest) -> Result<Grant, GrantError> {
    author.judge(&volume)?;
    Ok(Grant::new(author, volume, request))
}

/// Whether a PersistentVolume is the one that the kubelet means: no inline volume has its handle.
fn has_handle(found: &PersistentVolume, wanted: &str) -> Result<(), GrantError> {
    let csi = found.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    let handle = csi.map(|csi| csi.volume_handle.as_str()).unwrap_or_default();
    if handle == wanted {
        return Ok(());
    }
    Err(GrantError::OtherHandle {
        volume: found.metadata.name.clone().unwrap_or_default(),
        found: handle.to_owned(),
        wanted: wanted.to_owned(),
    })
}

/// A volume of this name and of Mooring's driver in the Pod's own spec.
fn flex_volume<'a>(pod: &'a Pod, name: &str) -> Option<&'a FlexVolumeSource> {
    let volumes = pod.spec.as_ref()?.volumes.as_deref().unwrap_or_default();
    let own = volumes.iter().find(|volume| volume.name == name)?;
    own.flex_volume.as_ref().filter(|flex| flex.driver == FLEX_DRIVER)
}

/// An inline volume as its author wrote it.
fn as_written(flex: &FlexVolumeSource) -> Result<Volume, VolumeError> {
    let options: BTreeMap<_, _> = flex.options.clone().unwrap_or_default();
    let fs_type = flex.fs_type.as_deref().unwrap_or_default();
    kubelet_options::volume(options, FLEX_PREFIX, fs_type, &[])
}

/// Whether a PersistentVolume is for a claim that the Pod uses.
fn is_used_by(found: &PersistentVolume, pod: &Pod, request: &MountRequest) -> Result<(), GrantError> {
    let claim = found.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let claim = claim.map(|claim| {
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        (text(&claim.namespace), text(&claim.name))
    });
    let (namespace, name) = claim.unwrap_or_default();
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    let mut volumes = volumes.unwrap_or_default().iter();
    let is_of_claim = |volume: &k8s_openapi::api::core::v1::Volume| {
        if let Some(claim) = &volume.persistent_volume_claim {
            return claim.claim_name == name;
        }
        // Kubernetes names the claim of a generic ephemeral volume like this.
        volume.ephemeral.is_some() && name == format!("{}-{}", request.pod.name, volume.name)
    };
    if pod.metadata.namespace.as_deref() == Some(&namespace) && volumes.any(is_of_claim) {
        return Ok(());
    }
    Err(GrantError::OtherClaim {
        volume: request.target.name().to_owned(),
        claim: format!("{namespace}/{name}"),
        pod: said(&request.pod),
    })
}

/// Whether a PersistentVolume is bound to a claim of this namespace.
fn is_claimed_in(found: &PersistentVolume, namespace: &str) -> bool {
    let claim = found.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    claim.and_then(|claim| claim.namespace.as_deref()) == Some(namespace)
}

fn no_pod(request: &MountRequest) -> GrantError {
    let PodRef { name, namespace, uid } = request.pod.clone();
    GrantError::NoPod { namespace, name, uid }
}

fn no_volume(request: &MountRequest) -> GrantError {
    GrantError::NoVolume {
        volume: request.target.name().to_owned(),
        pod: said(&request.pod),
    }
}

fn said(pod: &PodRef) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

#[cfg(test)]
mod tests;
