//! What a volume's Secret may be, and how much of the memory that all volumes of a client Pod share.

use crate::agent::protocol::MountCall;
use crate::agent::store;

/// Most that one volume may take of the memory that all volumes of a client Pod share, with its Secret and its record:
/// room for a whole bundle of certificates beside the keys.
pub const MOST_MEMORY: usize = 256 << 10;

/// What a file takes at least: the kernel's memory comes in pages.
const PAGE: usize = 4 << 10;

/// Why a volume can't have its Secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// A key that can't be a file name.
    #[error("secret key {0:?} is not a file name: use letters, digits, dots, dashes and underscores")]
    Key(String),
    /// It would take what other volumes of the client Pod need.
    #[error(
        "the volume's Secret and options take {} KiB, and may take {} KiB (each key of the Secret counts as {} at least): \
         leave out of the Secret what the volume's client does not need",
        .0 / 1024, MOST_MEMORY / 1024, PAGE / 1024
    )]
    TooLarge(usize),
}

/// Fails if a volume takes more memory than its part of what all volumes of the client Pod have.
pub(super) fn check_size(call: &MountCall) -> Result<(), SecretsError> {
    let takes = |length: usize| length.max(1).next_multiple_of(PAGE);
    let secret: usize = call.secrets.values().map(|value| takes(value.0.len())).sum();
    let size = secret + takes(store::record_length(call));
    if size > MOST_MEMORY {
        return Err(SecretsError::TooLarge(size));
    }
    Ok(())
}

/// Fails if a key of the Secret can't be a file.
pub(super) fn check_keys(call: &MountCall) -> Result<(), SecretsError> {
    match call.secrets.keys().find(|key| !is_file_name(key)) {
        Some(key) => Err(SecretsError::Key(key.clone())),
        None => Ok(()),
    }
}

fn is_file_name(key: &str) -> bool {
    !key.is_empty()
        && key.len() <= 253
        && !key.starts_with("..")
        && key != "."
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::{MOST_MEMORY, PAGE, is_file_name};
    use crate::agent::mounts::Mounts;
    use crate::agent::protocol::{AgentFailure, FailureCategory, MountCall, SecretBytes};
    use crate::agent::store::Store;

    #[test]
    fn a_secret_s_key_stays_in_its_directory() {
        for good in ["ssh-privatekey", "known_hosts", ".dockerconfigjson", "a"] {
            assert!(is_file_name(good), "{good}");
        }
        for bad in ["", ".", "..", "..x", "a/b", "/etc/passwd", "a\0", "ä"] {
            assert!(!is_file_name(bad), "{bad}");
        }
    }

    #[tokio::test]
    async fn one_volume_takes_no_more_of_the_client_pod_s_memory_than_its_part() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = Mounts::new(dir.path().to_owned(), Store::unprepared(dir.path())).unwrap();
        let mounts = Arc::new(mounts);
        // A mount that could go on ends here.
        mounts.drain();
        let target = dir.path().join("pods/u/volumes/mooring.dev~vcs/v");
        std::fs::create_dir_all(&target).unwrap();
        let json = serde_json::json!({"target": target, "client": "s3", "source": "h:/e", "limit_ms": 90000});
        let call: MountCall = serde_json::from_value(json).unwrap();
        // The record takes one page.
        let most = MOST_MEMORY - PAGE;
        for (keys, bytes, option, fits) in [
            (0, 0, 0, true),
            (1, most, 0, true),
            (1, most + 1, 0, false),
            (3, most / 3, 0, true),
            (3, most / 3 + 1, 0, false),
            (63, 1, 0, true),
            (64, 0, 0, false),
            (0, 0, most, true),
            (0, 0, MOST_MEMORY, false),
            (1, most, PAGE, false),
        ] {
            let key = |n| (format!("key-{n}"), SecretBytes(vec![0; bytes]));
            let mut large = call.clone();
            large.secrets = (0..keys).map(key).collect();
            large.options = BTreeMap::from([("option".to_owned(), "x".repeat(option))]);
            let error = mounts.mount(large).await.unwrap_err();
            let expected = if fits {
                FailureCategory::Draining
            } else {
                FailureCategory::Invalid
            };
            assert_eq!(
                AgentFailure::from(&error).category,
                expected,
                "{keys} keys of {bytes}, option of {option}: {error}"
            );
            assert!(fits || error.to_string().contains("may take 256 KiB"), "{error}");
        }
    }
}
