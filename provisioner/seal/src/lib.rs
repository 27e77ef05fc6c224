//! How an image hands secrets to the controller in a termination message, which anybody may read who may read the Pod.
//!
//! The controller gives each run a key of its own. The image seals the secrets with it, for this run's volume and node
//! only; the controller opens them. What was sealed with another key, for another volume or another node, or was
//! changed, can't be opened.
//!
//! With the same cipher, [`channel`] protects what the controller and a worker say to each other. By [`signature`],
//! mounters know what the controller said.
#![forbid(unsafe_code)]

pub mod channel;
pub mod signature;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};

#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The system gave no random bytes.
    #[error("failed to get random bytes from the system")]
    NoRandom,
    /// The key is not one that [`new_key`] made.
    #[error("the key of the run is not one that Mooring made")]
    BadKey,
    /// It was not sealed for this run, or has been changed.
    #[error("the secrets were not sealed with the key of this run, or not for this volume and node")]
    NotOurs,
    #[error(
        "a message between controller and worker is longer than {} bytes",
        channel::MAX_FRAME
    )]
    TooLong,
    #[error("it was not signed by a controller, or was changed since")]
    NotSigned,
    #[error("it was signed with key {0}, which is not published")]
    UnknownKey(String),
    #[error("what was signed can't be read")]
    NoStatement(#[source] serde_json::Error),
    /// What was sealed is no object of texts.
    #[error("what was sealed is not a JSON object of texts")]
    NotTexts(#[source] serde_json::Error),
}

/// What the secrets are for: they can be opened only for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purpose<'a> {
    pub pv_name: &'a str,
    pub node: &'a str,
}

impl Purpose<'_> {
    fn aad(self) -> Aad<Vec<u8>> {
        // Neither name can have a slash.
        Aad::from(format!("{}/{}", self.pv_name, self.node).into_bytes())
    }
}

/// A key for one run.
pub fn new_key() -> Result<String, SealError> {
    let mut key = [0; 32];
    SystemRandom::new().fill(&mut key).map_err(|_| SealError::NoRandom)?;
    Ok(STANDARD.encode(key))
}

pub fn seal(key: &str, purpose: Purpose<'_>, secrets: &BTreeMap<String, String>) -> Result<String, SealError> {
    let text = serde_json::to_vec(secrets).map_err(SealError::NotTexts)?;
    Ok(STANDARD.encode(sealed(&cipher(key)?, purpose.aad(), text)?))
}

pub fn open(key: &str, purpose: Purpose<'_>, sealed: &str) -> Result<BTreeMap<String, String>, SealError> {
    let bytes = STANDARD.decode(sealed.trim()).map_err(|_| SealError::NotOurs)?;
    serde_json::from_slice(&opened(&cipher(key)?, purpose.aad(), &bytes)?).map_err(SealError::NotTexts)
}

/// A fresh nonce, and behind it what was sealed with it.
fn sealed<A: AsRef<[u8]>>(cipher: &LessSafeKey, aad: Aad<A>, mut text: Vec<u8>) -> Result<Vec<u8>, SealError> {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).map_err(|_| SealError::NoRandom)?;
    cipher
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut text)
        .map_err(|_| SealError::NotOurs)?;
    Ok([nonce.as_slice(), &text].concat())
}

fn opened<A: AsRef<[u8]>>(cipher: &LessSafeKey, aad: Aad<A>, bytes: &[u8]) -> Result<Vec<u8>, SealError> {
    let (nonce, text) = bytes.split_at_checked(NONCE_LEN).ok_or(SealError::NotOurs)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::NotOurs)?;
    let mut text = text.to_vec();
    let opened = cipher.open_in_place(nonce, aad, &mut text);
    Ok(opened.map_err(|_| SealError::NotOurs)?.to_vec())
}

fn cipher(key: &str) -> Result<LessSafeKey, SealError> {
    let key = STANDARD.decode(key.trim()).map_err(|_| SealError::BadKey)?;
    let key = UnboundKey::new(&CHACHA20_POLY1305, &key).map_err(|_| SealError::BadKey)?;
    Ok(LessSafeKey::new(key))
}

#[cfg(test)]
mod tests {
    use super::{Purpose, SealError, new_key, open, seal};
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    const FOR: Purpose<'_> = Purpose {
        pv_name: "pvc-u1",
        node: "a",
    };

    #[test]
    fn secrets_are_opened_with_the_key_of_their_run_alone() {
        let secrets = [("chap-password".to_owned(), "geheim".to_owned())].into();
        let key = new_key().unwrap();
        let sealed = seal(&key, FOR, &secrets).unwrap();
        assert!(!sealed.contains("geheim"));
        assert_eq!(open(&key, FOR, &sealed).unwrap(), secrets);
        assert!(matches!(
            open(&new_key().unwrap(), FOR, &sealed),
            Err(SealError::NotOurs)
        ));
        let other = Purpose { node: "b", ..FOR };
        assert!(matches!(open(&key, other, &sealed), Err(SealError::NotOurs)));
        let mut changed = STANDARD.decode(&sealed).unwrap();
        *changed.last_mut().unwrap() ^= 1;
        assert!(matches!(
            open(&key, FOR, &STANDARD.encode(changed)),
            Err(SealError::NotOurs)
        ));
        for nothing in ["", "AAAA", "no base64"] {
            assert!(matches!(open(&key, FOR, nothing), Err(SealError::NotOurs)));
        }
        assert!(matches!(seal("short", FOR, &secrets), Err(SealError::BadKey)));
    }
}
