//! The record of a move: a ConfigMap in Mooring's namespace, which no user of a claim can write. It is there before
//! anything changes, and has the whole PersistentVolume, so that nothing is lost while none is there.

use std::collections::BTreeMap;

use flex_provisioner::config::VolumeSourceKind;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use mooring_contract::names::labels;

use super::source;

mod keys {
    pub(super) const CLAIM: &str = "claim";
    pub(super) const TO: &str = "to";
    pub(super) const UID: &str = "volume-uid";
    pub(super) const VOLUME: &str = "volume.json";
}

/// The claim that a volume is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimKey {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl ClaimKey {
    /// The claim that a PersistentVolume names, if it is bound to one.
    pub fn of(volume: &PersistentVolume) -> Option<Self> {
        let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
        Some(Self {
            namespace: claim.namespace.clone()?,
            name: claim.name.clone()?,
            uid: claim.uid.clone()?,
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum MoveRecordError {
    /// A key is missing, or its value makes no sense.
    #[error("key {0:?} of the record is missing or wrong")]
    Key(&'static str),
    #[error("the PersistentVolume in the record can't be read: {0}")]
    Volume(#[from] serde_json::Error),
}

#[derive(Debug, Clone, PartialEq)]
pub struct MoveRecord {
    pub claim: ClaimKey,
    pub to: VolumeSourceKind,
    /// The uid of the PersistentVolume to replace.
    pub uid: String,
    /// That PersistentVolume, to create it again.
    pub old: PersistentVolume,
    /// The ConfigMap's resourceVersion, once it is there.
    pub version: Option<String>,
}

impl MoveRecord {
    pub fn new(volume: &PersistentVolume, claim: ClaimKey, to: VolumeSourceKind) -> Self {
        Self {
            claim,
            to,
            uid: volume.uid().unwrap_or_default(),
            old: source::plain(volume),
            version: None,
        }
    }

    /// The name of a claim's record.
    pub fn name_for(claim_uid: &str) -> String {
        format!("migration-{claim_uid}")
    }

    pub fn to_config_map(&self, namespace: &str) -> ConfigMap {
        let data = [
            (keys::CLAIM, format!("{}/{}", self.claim.namespace, self.claim.name)),
            (keys::TO, self.to.as_str().to_owned()),
            (keys::UID, self.uid.clone()),
            (keys::VOLUME, serde_json::to_string(&self.old).unwrap_or_default()),
        ];
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(Self::name_for(&self.claim.uid)),
                namespace: Some(namespace.to_owned()),
                resource_version: self.version.clone(),
                labels: Some(BTreeMap::from([
                    (labels::COMPONENT.to_owned(), labels::COMPONENT_MIGRATION.to_owned()),
                    (labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_MOORING.to_owned()),
                ])),
                ..ObjectMeta::default()
            },
            data: Some(data.map(|(key, value)| (key.to_owned(), value)).into()),
            ..ConfigMap::default()
        }
    }

    /// Reads a ConfigMap. Its PersistentVolume is one of Mooring's, for the claim that the record is of: nothing else
    /// is ever created from it.
    pub fn of(map: &ConfigMap) -> Result<Self, MoveRecordError> {
        let get = |key: &'static str| {
            let value = map.data.as_ref().and_then(|data| data.get(key));
            value.ok_or(MoveRecordError::Key(key))
        };
        let to = VolumeSourceKind::parse(get(keys::TO)?).map_err(|_| MoveRecordError::Key(keys::TO))?;
        let old: PersistentVolume = serde_json::from_str(get(keys::VOLUME)?)?;
        let claim = ClaimKey::of(&old).ok_or(MoveRecordError::Key(keys::VOLUME))?;
        let same = *get(keys::CLAIM)? == format!("{}/{}", claim.namespace, claim.name)
            && map.name_any() == Self::name_for(&claim.uid);
        if !same {
            return Err(MoveRecordError::Key(keys::CLAIM));
        }
        if old.metadata.name.is_none() || source::of(&old).is_none_or(|from| from == to) {
            return Err(MoveRecordError::Key(keys::VOLUME));
        }
        Ok(Self {
            claim,
            to,
            uid: get(keys::UID)?.clone(),
            old: source::plain(&old),
            version: map.metadata.resource_version.clone(),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use flex_provisioner::config::VolumeSourceKind::Csi;
    use serde_json::json;

    use super::{ClaimKey, MoveRecord, MoveRecordError};
    use crate::migrate::fixtures::volume;

    pub(crate) fn record() -> MoveRecord {
        let volume = serde_json::from_value(volume()).unwrap();
        let claim = ClaimKey::of(&volume).unwrap();
        MoveRecord::new(&volume, claim, Csi)
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let map = record().to_config_map("mooring");
        assert_eq!(map.metadata.name.as_deref(), Some("migration-u1"));
        assert_eq!(MoveRecord::of(&map).unwrap(), record());
    }

    #[test]
    fn a_record_of_another_claim_or_another_driver_is_not_gone_by() {
        let changed = |key: &str, value: String| {
            let mut map = record().to_config_map("mooring");
            map.data.as_mut().unwrap().insert(key.to_owned(), value);
            MoveRecord::of(&map)
        };
        assert!(matches!(
            changed("claim", "kube-system/x".into()),
            Err(MoveRecordError::Key("claim"))
        ));
        assert!(matches!(
            changed("to", "hostPath".into()),
            Err(MoveRecordError::Key("to"))
        ));
        assert!(matches!(
            changed("to", "flexVolume".into()),
            Err(MoveRecordError::Key("volume.json"))
        ));
        assert!(matches!(
            changed("volume.json", "{".into()),
            Err(MoveRecordError::Volume(_))
        ));
        let mut other = volume();
        other["spec"]["flexVolume"] = json!(null);
        other["spec"]["hostPath"] = json!({"path": "/"});
        assert!(matches!(
            changed("volume.json", other.to_string()),
            Err(MoveRecordError::Key("volume.json"))
        ));
        let mut map = record().to_config_map("mooring");
        map.metadata.name = Some("migration-u2".into());
        assert!(matches!(MoveRecord::of(&map), Err(MoveRecordError::Key("claim"))));
    }
}
