//! What can fail, and whether trying again helps.

use std::io;
use std::path::PathBuf;

use mooring_contract::discovered::DiscoveredError;
use mooring_contract::outcome::{EX_CONFIG, EX_TEMPFAIL};
use mooring_contract::volume::VolumeError;
use mooring_seal::SealError;

/// Why a command failed; the message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run's folder lacks a file, or it cannot be read.
    #[error("failed to read {path}: pv works inside a provisioning Pod, where Mooring puts that file")]
    Given { path: PathBuf, source: io::Error },
    /// The request is not what the contract says.
    #[error(
        "failed to understand {path}: this pv knows only contract 1; build the image from a newer provisioner-base"
    )]
    Request { path: PathBuf, source: serde_json::Error },
    #[error("{0:?} is not a property's name: use letters, digits, '-', '_' and '.'")]
    PropertyName(String),
    #[error(
        "there is no property {0:?}: put the key into the provisioner ConfigMap, the StorageClass's parameters or the \
         Secret of \"secret-name\", or give --default"
    )]
    NoProperty(String),
    #[error("the existing volume has no option {0:?} (it has none before its 'provision' ends): give --default")]
    NoOption(String),
    /// `pv get --source` of an option that the volume to copy does not have.
    #[error("the volume to copy has no option {0:?}: only a 'clone' has such a volume; give --default")]
    NoSourceOption(String),
    /// `pv get --member` of a volume that is not among the group's.
    #[error("the group has no volume {0:?}: take the names from 'pv members'")]
    NoMember(String),
    /// `pv get --member` of an option that this volume does not have.
    #[error("volume {pv_name} of the group has neither an option nor a parameter {option:?}: give --default")]
    NoMemberOption { pv_name: String, option: String },
    /// `pv expect` of a run that has more than the image knows.
    #[error(
        "the {who} {name:?}, which the image does not know: {}, or remove it; the image knows {known}",
        nearest.as_ref().map_or_else(|| "correct its name".to_owned(), |nearest| format!("write {nearest}"))
    )]
    Unknown {
        /// Who has it, as the words before its name.
        who: &'static str,
        name: String,
        nearest: Option<String>,
        /// All that the image knows, with commas.
        known: String,
    },
    /// A `KEY=VALUE` argument without `=`, or one key twice.
    #[error("failed to read the volume's options")]
    Options(#[source] VolumeError),
    /// `--seal` in another operation than `attach`.
    #[error("there is no property answer-key: only 'attach' has secrets to seal")]
    NoAnswerKey,
    #[error("failed to seal the secrets of the connection")]
    Seal(#[from] SealError),
    /// The termination message has a limit in Kubernetes.
    #[error("the volume's options are {len} bytes of JSON, and Kubernetes takes {max}: shorten them")]
    OptionsTooLong { len: usize, max: usize },
    /// A line of `pv classes` has a word that means nothing there.
    #[error(
        "failed to understand {word:?} of class {line:?}: write NAME, then default, snapshots, expansion, \
         capacity=BYTES, nodes=A,B or mount-options=A,B, then -- and KEY=VALUE for each parameter"
    )]
    ClassWord { line: String, word: String },
    /// The list of `pv classes` is none that Mooring takes.
    #[error("failed to list the classes")]
    Classes(#[source] DiscoveredError),
    /// The termination message has a limit in Kubernetes.
    #[error(
        "the classes are {len} bytes of JSON, and Kubernetes takes {max}: use --parameter and short names, or have \
         more than one ConfigMap share the list"
    )]
    ClassesTooLong { len: usize, max: usize },
    #[error("failed to write {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("failed to copy {from} to {to}")]
    Copy {
        from: PathBuf,
        to: PathBuf,
        source: io::Error,
    },
    #[error("failed to lock {path}")]
    Lock {
        /// The file that serves as the lock.
        path: PathBuf,
        source: io::Error,
    },
    /// `pv serve` where no worker is.
    #[error("this is no worker: 'pv serve' is for variable OPERATION=serve, with which Mooring starts a worker")]
    NoWorker,
    #[error("failed to listen on port {port}")]
    Listen { port: u16, source: io::Error },
    /// The command that needs the lock did not start.
    #[error("failed to run {command:?}")]
    Run { command: String, source: io::Error },
    #[error("failed to read the volume source from {from}")]
    Source { from: String, source: io::Error },
    #[error("the volume source from {from} is not JSON: expected an object such as {{\"iscsi\": {{…}}}}")]
    SourceJson { from: String, source: serde_json::Error },
    /// The volume source does not have the form of one.
    #[error(
        "the volume source must be a JSON object with one key whose value is an object, such as {{\"iscsi\": {{…}}}}"
    )]
    SourceShape,
    /// A source that would give out a node's own files.
    #[error(
        "a volume source of type {0:?} is refused, as it would hand out the node's own files: keep volumes on the \
         node's pool with \"backend-volume: client=pool\" and client=local"
    )]
    SourceForbidden(String),
    /// Not of the form `NAME` or `NAME/NAMESPACE`.
    #[error("{0:?} names no Secret: write NAME or NAME/NAMESPACE")]
    SecretName(String),
    #[error("failed to read the token in {path}")]
    TokenFile { path: PathBuf, source: io::Error },
    #[error(
        "there is no service-token: name a \"service-account-name\" in the provisioner ConfigMap, or print the \
         volume's options with 'pv options' and set \"volume-source: flexVolume\""
    )]
    NoToken,
    /// The request does not have the address of the API.
    #[error("there is no kube-api in the request: Mooring puts it there, so run the image with Mooring, not by hand")]
    NoApi,
    /// The run has no certificate to check the API server by.
    #[error(
        "found no certificate of the Kubernetes API at {path}: name a \"service-account-name\" in the provisioner \
         ConfigMap, or give the certificate there as key \"kube-ca\""
    )]
    NoCa { path: PathBuf },
    #[error("the certificate of the Kubernetes API is not in PEM form")]
    BadCa(#[source] ureq::Error),
    /// The API server did not answer.
    #[error("failed to {what}: no answer from the Kubernetes API at {api}")]
    Unreachable {
        /// The call, such as `create PersistentVolume x`.
        what: String,
        api: String,
        source: Box<ureq::Error>,
    },
    /// The answer is not from Kubernetes.
    #[error("failed to {what}: the Kubernetes API at {api} gave an answer that is not JSON")]
    Answer {
        what: String,
        api: String,
        source: serde_json::Error,
    },
    /// The API server refused the call.
    #[error("failed to {what}: {message} (HTTP {status}){}", cure(*status, message))]
    Status { what: String, status: u16, message: String },
    /// A volume with that name exists, for another claim.
    #[error(
        "PersistentVolume {name} exists already and is not for claim {wanted} but for {found}: pv leaves it unchanged; \
         delete it by hand if it is a leftover"
    )]
    NotOurs {
        name: String,
        /// The uid of this run's claim.
        wanted: String,
        /// The uid of the claim in the existing volume.
        found: String,
    },
    /// A volume with that name is being deleted.
    #[error("PersistentVolume {0} exists already and is being deleted: waiting until it is gone")]
    Leaving(String),
}

impl Error {
    /// Exit code that the contract has for this: 75 to try again, 78 not to.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Status { status, message, .. } if is_refusal(*status, message) => EX_CONFIG,
            // The other statuses include 401 and 403: a right can be granted without a change of the ConfigMap or the
            // claim.
            Self::Unreachable { .. }
            | Self::Answer { .. }
            | Self::Status { .. }
            | Self::Leaving(_)
            | Self::Write { .. }
            | Self::Copy { .. }
            | Self::Lock { .. }
            | Self::Listen { .. } => EX_TEMPFAIL,
            Self::NoWorker
            | Self::Given { .. }
            | Self::Request { .. }
            | Self::PropertyName(_)
            | Self::NoProperty(_)
            | Self::NoOption(_)
            | Self::NoSourceOption(_)
            | Self::NoMember(_)
            | Self::NoMemberOption { .. }
            | Self::Unknown { .. }
            | Self::Options(_)
            | Self::OptionsTooLong { .. }
            | Self::ClassWord { .. }
            | Self::Classes(_)
            | Self::ClassesTooLong { .. }
            | Self::Source { .. }
            | Self::SourceJson { .. }
            | Self::SourceShape
            | Self::SourceForbidden(_)
            | Self::SecretName(_)
            | Self::TokenFile { .. }
            | Self::NoToken
            | Self::NoApi
            | Self::NoCa { .. }
            | Self::BadCa(_)
            | Self::NoAnswerKey
            | Self::Seal(_)
            | Self::Run { .. }
            | Self::NotOurs { .. } => EX_CONFIG,
        }
    }
}

/// Whether the API refused the volume itself, rather than the call at this time.
fn is_refusal(status: u16, message: &str) -> bool {
    matches!(status, 400 | 413 | 422) || is_policy(status, message)
}

/// An admission policy refuses with 403 (or 422), like a missing right.
fn is_policy(status: u16, message: &str) -> bool {
    status == 403 && message.contains("ValidatingAdmissionPolicy")
}

fn cure(status: u16, message: &str) -> &'static str {
    match status {
        401 => ": the service-token is wrong or has run out",
        403 if !is_policy(status, message) => {
            ": bind the service account to ClusterRole mooring-volume-maker, which allows just that"
        }
        _ => "",
    }
}

/// An error and its causes on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::Error;

    fn status(status: u16, message: &str) -> Error {
        Error::Status {
            what: "create PersistentVolume pvc-1".into(),
            status,
            message: message.into(),
        }
    }

    #[test]
    fn a_failure_is_tried_again_and_a_refusal_is_not() {
        for code in [401, 403, 404, 429, 500, 503] {
            assert_eq!(status(code, "no").exit_code(), 75, "{code}");
        }
        for code in [400, 413, 422] {
            assert_eq!(status(code, "no").exit_code(), 78, "{code}");
        }
        assert_eq!(
            status(403, "ValidatingAdmissionPolicy 'x' with binding 'x' denied request: y").exit_code(),
            78
        );
    }

    #[test]
    fn a_missing_right_comes_with_its_cure() {
        assert!(status(403, "forbidden").to_string().contains("mooring-volume-maker"));
        assert!(
            !status(403, "ValidatingAdmissionPolicy")
                .to_string()
                .contains("mooring-volume-maker")
        );
    }
}
