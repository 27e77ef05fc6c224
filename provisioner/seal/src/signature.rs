//! What the controller says to mounters through an object that others may write, too: signed.
//!
//! A controller makes its key when it needs one, and keeps it in its memory only, so nothing can give it away. It
//! publishes the public half, by which mounters know the signature for as long as that is published.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::SealError;

/// Stands before all that is signed: a signature for anything else is none for this.
const CONTEXT: &[u8] = b"mooring.dev/signed/v1\n";

/// Between the parts of a signed statement; base64 has no such letter.
const DOT: char = '.';

/// A controller's key. It can't be written down.
pub struct SigningKey {
    id: String,
    pair: Ed25519KeyPair,
}

impl SigningKey {
    pub fn generate() -> Result<Self, SealError> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| SealError::NoRandom)?;
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).map_err(|_| SealError::BadKey)?;
        let id = id_of(pair.public_key().as_ref());
        Ok(Self { id, pair })
    }

    /// Its name among the [`PublicKeys`].
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its public half, to be published under its id.
    pub fn public(&self) -> String {
        STANDARD.encode(self.pair.public_key())
    }

    /// The statement with its signature, as one word.
    pub fn sign(&self, statement: &impl Serialize) -> Result<String, SealError> {
        let text = serde_json::to_vec(statement).map_err(SealError::NoStatement)?;
        let signature = self.pair.sign(&[CONTEXT, &text].concat());
        let (text, signature) = (STANDARD.encode(&text), STANDARD.encode(signature));
        Ok(format!("{}{DOT}{text}{DOT}{signature}", self.id))
    }
}

/// The id of the key that signed a statement, by the statement's own word.
pub fn signer_of(signed: &str) -> &str {
    signed.split(DOT).next().unwrap_or_default()
}

/// The first bytes of a public key.
fn id_of(public: &[u8]) -> String {
    let first = public.first_chunk().copied().unwrap_or_default();
    format!("{:016x}", u64::from_be_bytes(first))
}

/// The public keys of controllers, by id.
#[derive(Debug, Clone, Default)]
pub struct PublicKeys(BTreeMap<String, String>);

/// A statement that one of the [`PublicKeys`] signed. There is no other way to get one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    pub fn get(&self) -> &T {
        &self.0
    }

    pub fn into_inner(self) -> T {
        self.0
    }
}

impl PublicKeys {
    /// As they are published: by id.
    pub fn published(keys: BTreeMap<String, String>) -> Self {
        Self(keys)
    }

    pub fn verify<T: DeserializeOwned>(&self, signed: &str) -> Result<Verified<T>, SealError> {
        let mut parts = signed.split(DOT);
        let (Some(id), Some(text), Some(signature), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(SealError::NotSigned);
        };
        let decoded = |text: &str| STANDARD.decode(text).map_err(|_| SealError::NotSigned);
        let key = self.0.get(id).ok_or_else(|| SealError::UnknownKey(id.to_owned()))?;
        let (key, text, signature) = (decoded(key.trim())?, decoded(text)?, decoded(signature)?);
        let message = [CONTEXT, &text].concat();
        let verified = UnparsedPublicKey::new(&ED25519, key).verify(&message, &signature);
        verified.map_err(|_| SealError::NotSigned)?;
        serde_json::from_slice(&text)
            .map(Verified)
            .map_err(SealError::NoStatement)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{PublicKeys, SigningKey, signer_of};
    use crate::SealError;

    type Statement = BTreeMap<String, String>;

    fn published(key: &SigningKey) -> PublicKeys {
        PublicKeys::published([(key.id().to_owned(), key.public())].into())
    }

    #[test]
    fn a_statement_is_taken_from_a_published_key_alone() {
        let statement: Statement = [("node".to_owned(), "a".to_owned())].into();
        let (key, other) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let signed = key.sign(&statement).unwrap();
        assert_eq!(signer_of(&signed), key.id());
        let taken = published(&key).verify::<Statement>(&signed).unwrap();
        assert_eq!(taken.into_inner(), statement);
        let error = published(&other).verify::<Statement>(&signed).unwrap_err();
        assert!(matches!(error, SealError::UnknownKey(id) if id == key.id()));
        // Another key that is published under this one's id.
        let forged = PublicKeys::published([(key.id().to_owned(), other.public())].into());
        assert!(matches!(forged.verify::<Statement>(&signed), Err(SealError::NotSigned)));
    }

    #[test]
    fn a_statement_that_was_changed_is_not_taken() {
        let statement: Statement = [("node".to_owned(), "a".to_owned())].into();
        let key = SigningKey::generate().unwrap();
        let signed = key.sign(&statement).unwrap();
        let keys = published(&key);
        let refused = |text: &str| keys.verify::<Statement>(text).is_err();
        for at in 0..signed.len() {
            let mut changed = signed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(refused(&changed), "letter {at}");
        }
        for text in ["", ".", "..", &format!("{signed}."), &signed[..signed.len() - 4]] {
            assert!(refused(text), "{text:?}");
        }
    }
}
