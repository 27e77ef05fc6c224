//! What can fail, and whether trying again helps.

use std::time::Duration;

use mooring_contract::outcome::{EX_CONFIG, EX_TEMPFAIL};

use crate::clouds::CloudsError;
use crate::service::Microversion;

/// Why an operation is not done; the message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenstackError {
    /// The run's properties or its answer.
    #[error(transparent)]
    Pv(#[from] pv::error::Error),
    /// A property that the image needs is not there.
    #[error("there is no property {name:?}: put {what} into the provisioner ConfigMap or its Secret")]
    NoProperty { name: &'static str, what: &'static str },
    /// A property that the image does not understand.
    #[error("{name}: {value:?} is not {wanted}: correct it in the provisioner ConfigMap or the StorageClass")]
    Property {
        name: &'static str,
        value: String,
        wanted: &'static str,
    },
    #[error("failed to read clouds.yaml in the ConfigMap's Secret")]
    Clouds(#[from] CloudsError),
    #[error("the certificates in property {0:?} are not in PEM form: put those of your cloud's authority there")]
    Certificates(String, #[source] Box<ureq::Error>),
    #[error("failed to {what}: {server} does not answer at {url}: see whether it is up and whether Pods reach it")]
    Unreachable {
        what: String,
        server: &'static str,
        url: String,
        source: Box<ureq::Error>,
    },
    /// An answer that is not from an OpenStack service.
    #[error("failed to {what}: {server} gave an answer at {url} that makes no sense: see what listens there")]
    Answer {
        what: String,
        server: &'static str,
        url: String,
        #[source]
        source: Option<serde_json::Error>,
    },
    /// Keystone does not know who asks.
    #[error("Keystone refuses the login: {0}: correct clouds.yaml in the ConfigMap's Secret")]
    Login(String),
    #[error("{server} refuses a token that Keystone has just given: {words}: have the cloud's administrator see why")]
    Token { server: &'static str, words: String },
    #[error(
        "the cloud's catalogue has no {server} (region {region}, interface {interface}): it is used as soon as it is \
         there; see \"openstack catalog list\", and \"region_name\" and \"interface\" in clouds.yaml"
    )]
    NoService {
        server: &'static str,
        region: String,
        interface: String,
    },
    #[error("{server} speaks API {has} at most, and {what} needs {needs}: upgrade it")]
    TooOld {
        server: &'static str,
        has: Microversion,
        needs: Microversion,
        what: &'static str,
    },
    /// The service said no.
    #[error("failed to {what}: {server} says: {words} (HTTP {status}{request})")]
    Fault {
        what: String,
        server: &'static str,
        status: u16,
        words: String,
        /// The request's id in the service's log, if it gave one.
        request: String,
        /// There is no use in asking again.
        for_good: bool,
    },
    #[error("{server} says: {words}: delete what is not needed, or have the project's quota raised")]
    Quota { server: &'static str, words: String },
    /// It ended in another state than the wanted one.
    #[error("{server} failed to {what}: {words}")]
    Failed {
        what: String,
        server: &'static str,
        /// The service's own words, and what becomes of it.
        words: String,
    },
    #[error("{what} takes longer than {} s ({state}): it is looked at again", limit.as_secs())]
    Slow {
        what: String,
        state: String,
        limit: Duration,
    },
    /// Something has the name and is not Mooring's.
    #[error(
        "{what} is not called {name} or has no metadata {key}, so it is not Mooring's and nothing is done: give it \
         both if it is"
    )]
    NotOurs {
        what: String,
        key: &'static str,
        name: String,
    },
    #[error("{0}")]
    Refused(String),
    /// It may be possible later.
    #[error("{0}")]
    NotNow(String),
    #[error("{0} is no operation of this image: it knows {1}; take it out of \"operations\" in the ConfigMap")]
    Operation(String, &'static str),
}

impl OpenstackError {
    /// Exit code that the contract has for this: 75 to try again, 78 not to.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Pv(error) => error.exit_code(),
            Self::NoProperty { .. }
            | Self::Property { .. }
            | Self::Clouds(_)
            | Self::Certificates(..)
            | Self::Fault { for_good: true, .. }
            | Self::Refused(_)
            | Self::Operation(..) => EX_CONFIG,
            // A login can be corrected, a quota or a right be given, and a thing be put right in the cloud, without a
            // change of ConfigMap or claim.
            Self::Unreachable { .. }
            | Self::Answer { .. }
            | Self::Login(_)
            | Self::Token { .. }
            | Self::NoService { .. }
            | Self::TooOld { .. }
            | Self::Fault { for_good: false, .. }
            | Self::Quota { .. }
            | Self::Failed { .. }
            | Self::Slow { .. }
            | Self::NotOurs { .. }
            | Self::NotNow(_) => EX_TEMPFAIL,
        }
    }

    /// The same, where the service refuses what was asked for rather than the moment: a wrong value or a thing that
    /// there is not.
    #[must_use]
    pub fn of_the_request(mut self) -> Self {
        if let Self::Fault { status, for_good, .. } = &mut self {
            *for_good = matches!(status, 400 | 404 | 422);
        }
        self
    }

    /// The status of a service's refusal.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Fault { status, .. } => Some(*status),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::OpenstackError;

    fn fault(status: u16) -> OpenstackError {
        OpenstackError::Fault {
            what: "make volume pvc-1".into(),
            server: "Cinder",
            status,
            words: "no".into(),
            request: String::new(),
            for_good: false,
        }
    }

    #[test]
    fn a_refusal_is_for_good_only_where_it_is_about_what_was_asked_for() {
        for status in [400, 403, 404, 409, 500, 503] {
            assert_eq!(fault(status).exit_code(), 75, "{status}");
        }
        for (status, code) in [(400, 78), (404, 78), (422, 78), (403, 75), (409, 75), (500, 75)] {
            assert_eq!(fault(status).of_the_request().exit_code(), code, "{status}");
        }
    }
}
