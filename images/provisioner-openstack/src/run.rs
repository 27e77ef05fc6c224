//! One run: reads what is to be done, logs in, and has the service do it.

use std::path::Path;

use crate::answer::AnswerWriter;
use crate::cinder::Cinder;
use crate::clouds;
use crate::error::OpenstackError;
use crate::given::GivenRun;
use crate::http::Http;
use crate::kept_token::KeptToken;
use crate::keystone::Session;
use crate::manila::Manila;
use crate::wait::Pace;

/// Key of the Secret with the cloud and the login.
const CLOUDS: &str = "clouds.yaml";

/// Key of the Secret with the certificates of the cloud's authority.
const CACERT: &str = "cacert";

/// Carries out the run in `run_dir`; returns what to print. The answer to Mooring goes to the file `answer`.
pub fn run(run_dir: &Path, answer: &Path, pace: Pace) -> Result<String, OpenstackError> {
    let given = GivenRun::read(run_dir)?;
    let session = session(run_dir, &given, pace)?;
    let done = carry_out(&session, &given, AnswerWriter { to: answer }, pace);
    if done.is_err() {
        session.forget();
    }
    done
}

fn carry_out(
    session: &Session,
    given: &GivenRun,
    answer: AnswerWriter<'_>,
    pace: Pace,
) -> Result<String, OpenstackError> {
    match given.needed("service", "cinder or manila")?.as_str() {
        "cinder" => Cinder::open(session, given, answer, pace)?.run(),
        "manila" => Manila::open(session, given, answer, pace)?.run(),
        other => Err(OpenstackError::Property {
            name: "service",
            value: other.to_owned(),
            wanted: "cinder or manila",
        }),
    }
}

fn session(run_dir: &Path, given: &GivenRun, pace: Pace) -> Result<Session, OpenstackError> {
    let text = given.needed(CLOUDS, "a clouds.yaml of OpenStack's clients")?;
    let cloud = clouds::read(&text, given.property("cloud")?.as_deref())?;
    let (from, authorities) = match &cloud.cacert {
        // No key can have this character, so it is not the name of a key.
        Some(name) => match given.property(name).ok().flatten() {
            Some(pem) => (name.as_str(), Some(pem)),
            None => (
                CACERT,
                Some(given.needed(CACERT, "the certificates that clouds.yaml names")?),
            ),
        },
        None => (CACERT, given.property(CACERT)?),
    };
    let http = Http::new(authorities.as_deref().map(|pem| (from, pem)), pace)?;
    let kept = KeptToken::of(run_dir, &cloud);
    Ok(Session::new(http, cloud, kept))
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::test_server::PACE;
    use serde_json::json;

    #[test]
    fn what_is_missing_is_said_before_anybody_is_asked() {
        let clouds = "clouds: {one: {cacert: /etc/ca.pem, auth: {auth_url: 'http://127.0.0.1:1', username: u, \
                      password: p, project_name: x}}}";
        for (properties, says) in [
            (&[][..], "clouds.yaml"),
            (&[("clouds.yaml", clouds)][..], "\"cacert\""),
            (&[("clouds.yaml", clouds), ("ca.pem", "x")][..], "\"ca.pem\""),
        ] {
            let (folder, _) = crate::given::tests::given(&json!({}), properties);
            let error = run(folder.path(), &folder.path().join("message"), PACE).unwrap_err();
            assert_eq!(error.exit_code(), 78);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
