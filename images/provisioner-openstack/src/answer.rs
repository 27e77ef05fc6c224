//! What the run hands to Mooring, in its termination message.

use std::collections::BTreeMap;
use std::path::Path;

use mooring_contract::discovered::{Discovered, MAX_MESSAGE};
use mooring_contract::volume::{Speaker, Volume, keys};
use mooring_seal::{Purpose, seal};
use pv::volume::{SecretName, termination_message};
use serde_json::Value;

use crate::error::OpenstackError;
use crate::given::GivenRun;

pub type VolumeOptions = BTreeMap<String, String>;

/// Options as they are written in code.
pub fn options<const N: usize>(pairs: [(&str, String); N]) -> VolumeOptions {
    let filled = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    filled.map(|(key, value)| (key.to_owned(), value)).collect()
}

#[derive(Debug, Clone, Copy)]
pub struct AnswerWriter<'a> {
    pub to: &'a Path,
}

impl AnswerWriter<'_> {
    /// The options of a volume that was made.
    pub fn volume(
        &self,
        given: &GivenRun,
        options: VolumeOptions,
        secret: Option<SecretName>,
    ) -> Result<(), OpenstackError> {
        let volume = Volume::from_options(&options).map_err(pv::error::Error::Options)?;
        check(&volume, Speaker::Image, &given.request.mount_options)?;
        self.write(termination_message(options, secret)?)
    }

    /// What a node needs to reach a volume that was attached to it: options beside the volume's own, and secrets.
    pub fn connection(
        &self,
        given: &GivenRun,
        mut options: VolumeOptions,
        secrets: &VolumeOptions,
    ) -> Result<(), OpenstackError> {
        check_connection(given, &options)?;
        if !secrets.is_empty() {
            let purpose = Purpose {
                pv_name: &given.request.pv_name,
                node: &given.request.node_name,
            };
            let sealed = seal(&given.answer_key()?, purpose, secrets).map_err(pv::error::Error::Seal)?;
            options.insert(keys::SEALED.to_owned(), sealed);
        }
        self.write(termination_message(options, None)?)
    }

    /// What the service can serve.
    pub fn classes(&self, printed: &Value) -> Result<usize, OpenstackError> {
        let message = printed.to_string();
        let read = Discovered::parse(&message).map_err(pv::error::Error::Classes)?;
        if message.len() > MAX_MESSAGE {
            return Err(pv::error::Error::ClassesTooLong {
                len: message.len(),
                max: MAX_MESSAGE,
            }
            .into());
        }
        self.write(message)?;
        Ok(read.classes.len())
    }

    fn write(&self, message: String) -> Result<(), OpenstackError> {
        Ok(pv::answer::write(self.to, message)?)
    }
}

/// Whether a node can mount the volume so.
pub fn check_connection(given: &GivenRun, options: &VolumeOptions) -> Result<(), OpenstackError> {
    let volume = Volume::from_options(&given.request.volume).map_err(pv::error::Error::Options)?;
    let connected = volume.connected(options.clone()).map_err(pv::error::Error::Options)?;
    check(&connected, Speaker::Attach, &given.request.mount_options)
}

/// Mooring would refuse it too, and the volume would be there for nothing.
fn check(volume: &Volume, speaker: Speaker, granted: &[String]) -> Result<(), OpenstackError> {
    let checked = volume.check(speaker, granted);
    checked.map_err(|error| OpenstackError::Refused(format!("the volume can't be mounted: {error}")))
}

#[cfg(test)]
mod tests {
    use super::{AnswerWriter, options};
    use crate::given::tests::given;
    use serde_json::{Value, json};
    use std::fs;

    #[test]
    fn a_connection_s_secrets_are_sealed_and_its_options_belong_to_the_volume() {
        let key = mooring_seal::new_key().unwrap();
        let volume = json!({"client": "rbd", "source": "rbd://by-attach/cinder/volume-1", "fs-type": "ext4"});
        let changes = json!({"operation": "attach", "node-name": "a", "volume": volume});
        let (folder, given) = given(&changes, &[("answer-key", &key)]);
        let to = folder.path().join("message");
        let answer = AnswerWriter { to: &to };
        let source = "rbd://10.0.0.1:6789/volumes/volume-1";
        let secrets = options([("key", "geheim".to_owned()), ("user", String::new())]);
        answer
            .connection(&given, options([("source", source.to_owned())]), &secrets)
            .unwrap();
        let message: Value = serde_json::from_str(&fs::read_to_string(&to).unwrap()).unwrap();
        assert_eq!(message["source"], source);
        assert_eq!(message.get("client"), None);
        let purpose = mooring_seal::Purpose {
            pv_name: "pvc-u1",
            node: "a",
        };
        let opened = mooring_seal::open(&key, purpose, message["sealed"].as_str().unwrap()).unwrap();
        assert_eq!(opened, secrets);
        let error = answer
            .connection(&given, options([("source", "/etc".to_owned())]), &options([]))
            .unwrap_err();
        assert_eq!(error.exit_code(), 78);
    }

    #[test]
    fn more_classes_than_fit_are_refused() {
        let (folder, _given) = given(&json!({}), &[]);
        let to = folder.path().join("message");
        let answer = AnswerWriter { to: &to };
        let short = json!({"parameter": "volume-type", "classes": ["ssd", "hdd"]});
        assert_eq!(answer.classes(&short).unwrap(), 2);
        let names: Vec<_> = (0..200).map(|n| format!("a-rather-long-name-of-a-type-{n}")).collect();
        let error = answer
            .classes(&json!({"parameter": "volume-type", "classes": names}))
            .unwrap_err();
        assert!(error.to_string().contains("4096"), "{error}");
    }
}
