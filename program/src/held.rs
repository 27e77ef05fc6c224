//! Whether admission policies hold a program to what it may do. The policies name its service account with its
//! namespace: installed under another one and not changed, they match nobody.
//!
//! So each program asks the API server, by dry run, what it would say to something that the program must not do.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use crate::error::chain;

/// How often a program asks again while no policy holds it, or nobody says so.
pub const PERIOD: Duration = Duration::from_secs(10);

/// How often a program asks again that a policy holds: a second installation takes the policies from the first.
const AGAIN: Duration = Duration::from_mins(2);

/// What to do where no policy holds a program.
pub const CURE: &str = "the policies in configmaps/install/admission.yaml name another namespace. If somebody has \
                        installed Mooring a second time, remove that installation; then apply this one's manifests \
                        again, by its Helm chart or with the transformer of configmaps/registry";

/// Longest wait for one answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Where a Pod has its service account's token.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// What the API server says to what must not be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// A policy refuses it.
    Yes,
    /// It would be done.
    No,
    /// Something else refuses it, or there is no answer; with what was said. The program must not act as if it were
    /// held.
    Unknown(String),
}

impl Held {
    /// How long until the API server is asked again.
    pub fn pause(&self) -> Duration {
        match self {
            Self::Yes => AGAIN,
            Self::No | Self::Unknown(_) => PERIOD,
        }
    }
}

/// Whether policies are to hold this program. One that runs outside of a Pod has its user's own rights, which the
/// policies are not about.
pub fn is_to_be_held() -> bool {
    Path::new(TOKEN).exists()
}

/// Asks the API server by this call, which must be a dry run.
pub async fn ask<T>(dry_run: impl Future<Output = kube::Result<T>>) -> Held {
    match tokio::time::timeout(LIMIT, dry_run).await {
        Ok(answer) => judge(&answer),
        Err(_) => Held::Unknown(format!("no answer within {} s", LIMIT.as_secs())),
    }
}

fn judge<T>(answer: &kube::Result<T>) -> Held {
    match answer {
        Ok(_) => Held::No,
        Err(kube::Error::Api(status)) => {
            let by_policy = status.message.contains("ValidatingAdmissionPolicy")
                // A policy that goes by a ConfigMap refuses everything while that is missing.
                || status.message.contains("no params found");
            if by_policy {
                Held::Yes
            } else {
                Held::Unknown(status.message.clone())
            }
        }
        Err(error) => Held::Unknown(chain(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Held, judge};
    use kube::core::Status;

    #[test]
    fn only_a_policy_holds_and_only_what_is_let_in_shows_that_none_does() {
        let refused = |message: &str| {
            let status = Status::failure(message, "Forbidden").with_code(403).boxed();
            judge(&Err::<(), _>(kube::Error::Api(status)))
        };
        assert_eq!(judge(&Ok(())), Held::No);
        let policy = "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'mooring-mounter' with binding \
                      'mooring-mounter' denied request";
        assert_eq!(refused(policy), Held::Yes);
        assert_eq!(refused("no params found for policy binding"), Held::Yes);
        let rights = "pods is forbidden: User cannot create resource \"pods\"";
        assert_eq!(refused(rights), Held::Unknown(rights.to_owned()));
    }
}
