//! Volumes that are mounted again with a newer Secret than that of their first mount.
//!
//! What is kept of a volume ([`super::kept`] and its agent's own record) has the Secret that the kubelet handed over. A
//! later mount that was granted for the same PersistentVolume on this node brings a newer one. If a volume can't be
//! mounted again, the mounter also reads the Secret in the node's name, where it may. See
//! `docs/decisions/newer-secrets.md`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooring_program::error::chain;
use tracing::{info, warn};

use super::ClientPods;
use super::kept::KeptRecord;
use crate::agent::protocol::{AgentAnswer, Call, FailureCategory, MountCall, SecretBytes, now};
use crate::node::volume_secrets::MountedVolume;
use crate::volume::target::Target;

/// Longest that an agent may take to note a Secret.
const NOTE_LIMIT: Duration = Duration::from_secs(5);

/// Wait before an agent that was busy with the volume is asked again.
const AGAIN: Duration = Duration::from_millis(200);

/// Longest that the API may take to say which Secret a volume has.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// What came of looking for a newer Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The volume is mounted with the newest one from now on.
    Changed,
    /// It had the newest one before.
    Newest,
    /// The mounter can't see which is the newest.
    Unknown,
}

impl ClientPods {
    /// Starts to have the volumes that this is a later mount of use its Secret, when they are mounted again.
    pub fn renew_by(self: &Arc<Self>, later: &MountCall) {
        for kept in self.kept.older_than(later) {
            let call = kept.call.renewed(later.secrets.clone(), later.secrets_at);
            let pods = Arc::clone(self);
            tokio::spawn(async move { pods.renew(KeptRecord { call, ..kept }).await });
        }
    }

    /// Has a volume that can't be mounted again use the Secret that it has in the API.
    pub async fn renew_from_api(&self, target: &Target) -> Renewal {
        let Some(kept) = self.kept.get(&target.to_string()) else {
            return Renewal::Unknown;
        };
        let Some(secrets) = self.newest_secrets(target, &kept.call).await else {
            return Renewal::Unknown;
        };
        let call = kept.call.renewed(secrets, Some(now()));
        self.renew(KeptRecord { call, ..kept }).await
    }

    /// The Secret that a PersistentVolume has in the API; none if the mounter can't see that.
    pub(super) async fn newest_secrets(
        &self,
        target: &Target,
        call: &MountCall,
    ) -> Option<BTreeMap<String, SecretBytes>> {
        let api = self
            .volume_secrets
            .as_ref()
            .filter(|_| call.is_of_persistent_volume())?;
        let mounted = MountedVolume {
            target,
            client: &call.client,
            source: &call.source,
            options: &call.options,
        };
        match tokio::time::timeout(READ_LIMIT, api.newest(mounted)).await {
            Ok(Ok(secrets)) => Some(
                secrets
                    .0
                    .into_iter()
                    .map(|(key, value)| (key, SecretBytes(value)))
                    .collect(),
            ),
            Ok(Err(error)) => {
                info!(target.path = %target, "failed to see which Secret the volume has by now: {}", chain(&error));
                None
            }
            Err(_) => None,
        }
    }

    /// Tells the agent that has a volume, and keeps what it was told.
    async fn renew(&self, record: KeptRecord) -> Renewal {
        let call = Call::Renew {
            target: record.call.target.clone(),
            secrets: record.call.secrets.clone(),
            secrets_at: record.call.secrets_at,
        };
        let until = Instant::now() + NOTE_LIMIT;
        let renewed = loop {
            match self.ask(&record.by, call.clone(), NOTE_LIMIT).await {
                Ok(AgentAnswer::Renewed { changed: true }) => break Renewal::Changed,
                Ok(AgentAnswer::Renewed { changed: false }) => break Renewal::Newest,
                // It is trying to mount the volume at this moment.
                Ok(AgentAnswer::Failed(failure))
                    if failure.category == FailureCategory::InProgress && Instant::now() < until =>
                {
                    tokio::time::sleep(AGAIN).await;
                }
                // The agent is of an earlier release, if it does not say why.
                Ok(_) => return Renewal::Unknown,
                Err(error) => {
                    let error = chain(&error);
                    warn!(target.path = record.call.target, error = %error, "failed to hand over a newer Secret");
                    return Renewal::Unknown;
                }
            }
        };
        self.kept.renew(record);
        renewed
    }
}
