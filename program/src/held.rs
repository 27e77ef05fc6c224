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
pub const CURE: &str = "the policies in configmaps/install/admission.yaml are missing or name another namespace. If \
                        somebody has installed Mooring a second time, remove that installation; then apply this one's \
                        manifests again, by its Helm chart or with the transformer of configmaps/registry";

/// Longest wait for one answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Where a Pod has its service account's token.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// What the API server says to what must not be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// The policy refuses it.
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

/// Asks the API server by this call, which must be a dry run, whether this policy of Mooring's is in force.
pub async fn ask<T>(policy: &str, dry_run: impl Future<Output = kube::Result<T>>) -> Held {
    match tokio::time::timeout(LIMIT, dry_run).await {
        Ok(answer) => judge(policy, &answer),
        Err(_) => Held::Unknown(format!("no answer within {} s", LIMIT.as_secs())),
    }
}

fn judge<T>(policy: &str, answer: &kube::Result<T>) -> Held {
    match answer {
        Ok(_) => Held::No,
        Err(kube::Error::Api(status)) if denied_by(&status.message) == Some(policy) => Held::Yes,
        Err(kube::Error::Api(status)) => Held::Unknown(status.message.clone()),
        Err(error) => Held::Unknown(chain(error)),
    }
}

/// The policy that refuses, by the API server's words. It names one, although others may refuse as well.
pub fn denied_by(message: &str) -> Option<&str> {
    let (_, name) = message.split_once("ValidatingAdmissionPolicy '")?;
    name.split_once('\'').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::{Held, judge};
    use kube::core::Status;

    #[test]
    fn only_the_policy_itself_holds_and_only_what_is_let_in_shows_that_it_does_not() {
        let refused = |message: &str| {
            let status = Status::failure(message, "Forbidden").with_code(403).boxed();
            judge("mooring-mounter", &Err::<(), _>(kube::Error::Api(status)))
        };
        assert_eq!(judge("mooring-mounter", &Ok(())), Held::No);
        let by = |policy: &str, why: &str| {
            format!(
                "pods \"x\" is forbidden: ValidatingAdmissionPolicy '{policy}' with binding 'b' denied request: {why}"
            )
        };
        assert_eq!(refused(&by("mooring-mounter", "no")), Held::Yes);
        let without_settings = "failed to configure binding: no params found for policy binding";
        assert_eq!(refused(&by("mooring-mounter", without_settings)), Held::Yes);
        for others in [
            by("allowed-registries", "no"),
            by("mooring-mounter-events", "no"),
            by(
                "theirs",
                "ValidatingAdmissionPolicy 'mooring-mounter' with binding 'b' denied request",
            ),
            "no params found for policy binding".to_owned(),
            "pods is forbidden: User cannot create resource \"pods\"".to_owned(),
        ] {
            assert_eq!(refused(&others), Held::Unknown(others));
        }
    }
}
