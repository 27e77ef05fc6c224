//! A token of Keystone's, and the catalogue that comes with it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clouds::Cloud;
use crate::error::OpenstackError;
use crate::fault;
use crate::http::{Http, HttpCall, Method, Response};
use crate::kept_token::KeptToken;

const KEYSTONE: &str = "Keystone";

/// A login to a cloud, made when it is first needed and kept for the run, or for the runs of a worker.
#[derive(Debug)]
pub struct Session {
    http: Http,
    cloud: Cloud,
    token: RefCell<Option<Rc<Token>>>,
    kept: Option<KeptToken>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Token {
    /// What the services are shown.
    pub id: String,
    pub project: String,
    catalogue: Vec<Service>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Service {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Endpoint {
    #[serde(default)]
    interface: String,
    #[serde(default)]
    region_id: Option<String>,
    #[serde(default)]
    region: Option<String>,
    #[serde(default)]
    url: String,
}

impl Session {
    pub fn new(http: Http, cloud: Cloud, kept: Option<KeptToken>) -> Self {
        Self {
            http,
            cloud,
            token: RefCell::new(kept.as_ref().and_then(KeptToken::read).map(Rc::new)),
            kept,
        }
    }

    pub fn token(&self) -> Result<Rc<Token>, OpenstackError> {
        if let Some(token) = self.token.borrow().as_ref() {
            return Ok(token.clone());
        }
        let token = Rc::new(self.log_in()?);
        *self.token.borrow_mut() = Some(token.clone());
        Ok(token)
    }

    /// Another token, as a service does not take this one any more.
    pub fn renewed(&self) -> Result<Rc<Token>, OpenstackError> {
        *self.token.borrow_mut() = None;
        self.token()
    }

    /// Leaves no token to the worker's next run.
    pub fn forget(&self) {
        if let Some(kept) = &self.kept {
            kept.forget();
        }
    }

    pub fn send(&self, call: &HttpCall<'_>) -> Result<Response, OpenstackError> {
        self.http.send(call)
    }

    /// Where the catalogue has a service, by the first of its types that is there.
    pub fn address(&self, server: &'static str, types: &[&str]) -> Result<String, OpenstackError> {
        let mut found = self.listed(&*self.token()?, types);
        if found.is_none() && self.kept.is_some() {
            // The catalogue is as old as the token.
            found = self.listed(&*self.renewed()?, types);
        }
        found.ok_or_else(|| OpenstackError::NoService {
            server,
            region: self.cloud.region.clone().unwrap_or_else(|| "any".to_owned()),
            interface: self.cloud.interface.clone(),
        })
    }

    fn listed(&self, token: &Token, types: &[&str]) -> Option<String> {
        let fits = |endpoint: &&Endpoint| {
            let regions = [&endpoint.region_id, &endpoint.region];
            let here = |region: &String| regions.into_iter().flatten().any(|one| one == region);
            endpoint.interface == self.cloud.interface && self.cloud.region.as_ref().is_none_or(here)
        };
        let named = |kind: &&str| {
            let mut services = token.catalogue.iter().filter(|service| service.kind == *kind);
            services.find_map(|service| service.endpoints.iter().find(fits))
        };
        types.iter().find_map(named).map(|endpoint| endpoint.url.clone())
    }

    fn log_in(&self) -> Result<Token, OpenstackError> {
        let url = format!("{}/auth/tokens", self.cloud.auth_url);
        let what = "log in";
        let answer = self.http.send(&HttpCall {
            what,
            server: KEYSTONE,
            method: Method::POST,
            url: &url,
            headers: Vec::new(),
            body: Some(self.cloud.login.to_string()),
        })?;
        match answer.status {
            401 | 403 => return Err(OpenstackError::Login(fault::words(&answer.text))),
            _ if !answer.is_success() => return Err(refused(what, KEYSTONE, &answer)),
            _ => {}
        }
        let strange = |source| OpenstackError::Answer {
            what: what.to_owned(),
            server: KEYSTONE,
            url: url.clone(),
            source,
        };
        let id = answer.token.ok_or_else(|| strange(None))?;
        let read: Value = serde_json::from_str(&answer.text).map_err(|error| strange(Some(error)))?;
        let catalogue = &read["token"]["catalog"];
        let catalogue = if catalogue.is_null() {
            Vec::new()
        } else {
            Vec::deserialize(catalogue).map_err(|error| strange(Some(error)))?
        };
        let token = Token {
            id,
            project: read["token"]["project"]["id"].as_str().unwrap_or_default().to_owned(),
            catalogue,
        };
        if let (Some(kept), Some(life)) = (&self.kept, life(&read["token"])) {
            kept.write(&token, life);
        }
        Ok(token)
    }
}

/// For how long a token was issued, by Keystone's clock alone.
fn life(token: &Value) -> Option<Duration> {
    let time = |key: &str| token[key].as_str()?.parse::<Timestamp>().ok();
    let life = time("expires_at")?.duration_since(time("issued_at")?);
    life.try_into().ok()
}

/// A service's refusal, in its words.
pub fn refused(what: &str, server: &'static str, answer: &Response) -> OpenstackError {
    let words = fault::words(&answer.text);
    if answer.status == 413 {
        return OpenstackError::Quota { server, words };
    }
    OpenstackError::Fault {
        what: what.to_owned(),
        server,
        status: answer.status,
        words,
        request: answer.request.as_ref().map_or_else(String::new, |id| format!(", {id}")),
        for_good: false,
    }
}

#[cfg(test)]
impl Token {
    pub(crate) fn without_services(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            project: String::new(),
            catalogue: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Session;
    use crate::clouds::Cloud;
    use crate::http::Http;
    use crate::kept_token::{self, KeptToken};
    use crate::test_server::{PACE, login, reply, serve};
    use serde_json::json;

    fn cloud(url: &str, region: Option<&str>) -> Cloud {
        Cloud {
            auth_url: format!("{url}/v3"),
            login: json!({}),
            region: region.map(str::to_owned),
            interface: "public".into(),
            cacert: None,
        }
    }

    fn session(url: &str, region: Option<&str>) -> Session {
        Session::new(Http::new(None, PACE).unwrap(), cloud(url, region), None)
    }

    #[test]
    fn one_login_serves_a_run_and_its_catalogue_is_read_by_region_and_interface() {
        let (url, seen) = serve(vec![login("t1", "http://cinder/v3/p")]);
        let session = session(&url, Some("one"));
        assert_eq!(session.token().unwrap().id, "t1");
        assert_eq!(session.token().unwrap().project, "p");
        let types = ["block-storage", "volumev3"];
        assert_eq!(session.address("Cinder", &types).unwrap(), "http://cinder/v3/p");
        let error = session.address("Manila", &["share"]).unwrap_err();
        assert_eq!(error.exit_code(), 75);
        assert!(
            error.to_string().contains("no Manila (region one, interface public)"),
            "{error}"
        );
        assert_eq!(seen.join().unwrap().len(), 1);
    }

    #[test]
    fn another_region_has_no_service() {
        let (url, seen) = serve(vec![login("t1", "http://cinder/v3/p")]);
        assert!(session(&url, Some("two")).address("Cinder", &["volumev3"]).is_err());
        seen.join().unwrap();
    }

    #[test]
    fn a_refused_login_is_told_in_keystone_s_words() {
        let (url, seen) = serve(vec![reply(
            401,
            r#"{"error": {"message": "The password is expired."}}"#,
        )]);
        let error = session(&url, None).token().unwrap_err();
        assert!(error.to_string().contains("The password is expired"), "{error}");
        assert_eq!(error.exit_code(), 75);
        seen.join().unwrap();
    }

    #[test]
    fn what_is_not_keystone_is_not_believed() {
        for answer in [reply(201, "{}"), reply(200, "<html>").with("x-subject-token", "t")] {
            let (url, seen) = serve(vec![answer]);
            let error = session(&url, None).token().unwrap_err();
            assert!(error.to_string().contains("makes no sense"), "{error}");
            seen.join().unwrap();
        }
    }

    #[test]
    fn runs_of_a_worker_share_a_login_until_one_fails_or_a_service_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        kept_token::make(folder.path()).unwrap();
        let (url, seen) = serve(vec![
            login("t1", "http://cinder/v3/p"),
            login("t2", "http://cinder/v3/p"),
            login("t3", "http://cinder/v3/p"),
        ]);
        let run = || {
            let cloud = cloud(&url, None);
            let kept = KeptToken::of(folder.path(), &cloud);
            Session::new(Http::new(None, PACE).unwrap(), cloud, kept)
        };
        for _ in 0..2 {
            let session = run();
            assert_eq!(session.token().unwrap().id, "t1");
            assert_eq!(session.address("Cinder", &["volumev3"]).unwrap(), "http://cinder/v3/p");
        }
        run().forget();
        assert_eq!(run().token().unwrap().id, "t2");
        run().address("Swift", &["object-store"]).unwrap_err();
        assert_eq!(run().token().unwrap().id, "t3", "its catalogue is the newest");
        assert_eq!(seen.join().unwrap().len(), 3);
    }
}
