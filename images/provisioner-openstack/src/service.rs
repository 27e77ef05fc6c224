//! One of OpenStack's services: where it is, which version of its API is spoken, and calls to it.

use std::fmt;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::OpenstackError;
use crate::fault;
use crate::http::{HttpCall, Method, Response};
use crate::keystone::{Session, Token, refused};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Microversion(pub u32, pub u32);

impl fmt::Display for Microversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl FromStr for Microversion {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (major, minor) = text.split_once('.').ok_or(())?;
        Ok(Self(major.parse().map_err(drop)?, minor.parse().map_err(drop)?))
    }
}

#[derive(Debug)]
pub struct Kind {
    /// As messages call it.
    pub name: &'static str,
    /// Its types in the catalogue, the one to look for first before the others.
    pub types: &'static [&'static str],
    /// The part of its addresses that names its API.
    pub api: &'static str,
    /// The header that asks for a version, and what stands before the version there.
    pub header: (&'static str, &'static str),
    /// The newest version whose changes this program knows.
    pub newest: Microversion,
    /// The oldest that it can work with.
    pub oldest: Microversion,
}

impl Kind {
    /// Whether a version is one of this API: 2.60 is one of `v2.1`.
    fn speaks(&self, version: Microversion) -> bool {
        let api = self.api.trim_start_matches('v');
        api.split('.').next() == Some(version.0.to_string().as_str())
    }
}

/// A service of one cloud.
#[derive(Debug)]
pub struct CloudService<'a> {
    session: &'a Session,
    kind: &'static Kind,
    /// Address of its API for the project.
    base: String,
    version: Microversion,
}

impl<'a> CloudService<'a> {
    /// Finds the service and the newest version that both sides know.
    pub fn open(session: &'a Session, kind: &'static Kind) -> Result<Self, OpenstackError> {
        let address = session.address(kind.name, kind.types)?;
        let (root, base) = addresses(&address, kind.api, &session.token()?.project);
        let what = format!("ask {} for its versions", kind.name);
        let service = Self {
            session,
            kind,
            base,
            version: kind.newest,
        };
        let answer = service.send(&what, &Method::GET, &root, None, None)?;
        let read = service.json(&what, &root, &answer)?;
        // Nova tells of the API at this address alone.
        let several = read["versions"].as_array().into_iter().flatten();
        let versions = several.chain([&read["version"]]).map(|one| &one["version"]);
        let version = versions.into_iter().find_map(|text| {
            let version: Microversion = text.as_str()?.parse().ok()?;
            kind.speaks(version).then_some(version)
        });
        let has = version.ok_or_else(|| OpenstackError::Answer {
            what,
            server: kind.name,
            url: root,
            source: None,
        })?;
        if has < kind.oldest {
            return Err(OpenstackError::TooOld {
                server: kind.name,
                has,
                needs: kind.oldest,
                what: "this image",
            });
        }
        Ok(Self {
            version: has.min(kind.newest),
            ..service
        })
    }

    /// Whether the version that is spoken has what came with that one.
    pub fn has(&self, version: Microversion) -> bool {
        self.version >= version
    }

    /// Fails with [`OpenstackError::TooOld`], which says what would need the newer version: `what`.
    pub fn needs(&self, version: Microversion, what: &'static str) -> Result<(), OpenstackError> {
        if self.has(version) {
            return Ok(());
        }
        Err(OpenstackError::TooOld {
            server: self.kind.name,
            has: self.version,
            needs: version,
            what,
        })
    }

    /// Reads something; none if it is not there.
    pub fn find(&self, what: &str, path: &str) -> Result<Option<Value>, OpenstackError> {
        match self.call(what, &Method::GET, path, None) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn get(&self, what: &str, path: &str) -> Result<Value, OpenstackError> {
        self.call(what, &Method::GET, path, None)
    }

    pub fn post(&self, what: &str, path: &str, body: &Value) -> Result<Value, OpenstackError> {
        self.call(what, &Method::POST, path, Some(body))
    }

    pub fn put(&self, what: &str, path: &str, body: &Value) -> Result<Value, OpenstackError> {
        self.call(what, &Method::PUT, path, Some(body))
    }

    /// Deletes something. What is not there any more is deleted.
    pub fn delete(&self, what: &str, path: &str) -> Result<(), OpenstackError> {
        match self.call(what, &Method::DELETE, path, None) {
            Err(error) if error.status() != Some(404) => Err(error),
            _ => Ok(()),
        }
    }

    /// All items of a list, which a service hands out in pages. `path` has a query.
    pub fn list(&self, what: &str, path: &str, key: &str) -> Result<Vec<Value>, OpenstackError> {
        let mut all: Vec<Value> = Vec::new();
        let mut marker = String::new();
        loop {
            let mut page = self.get(what, &format!("{path}{marker}"))?;
            let links = page[format!("{key}_links")].as_array().cloned().unwrap_or_default();
            let Value::Array(items) = page[key].take() else {
                return Err(OpenstackError::Answer {
                    what: what.to_owned(),
                    server: self.kind.name,
                    url: format!("{}{path}", self.base),
                    source: None,
                });
            };
            let last = items.last().and_then(|item| item["id"].as_str()).map(str::to_owned);
            all.extend(items);
            match last {
                Some(last) if links.iter().any(|link| link["rel"] == "next") => marker = format!("&marker={last}"),
                _ => return Ok(all),
            }
        }
    }

    /// An answer, or a part of one, as what it is.
    pub fn read<T: DeserializeOwned>(&self, what: &str, value: Value) -> Result<T, OpenstackError> {
        serde_json::from_value(value).map_err(|source| OpenstackError::Answer {
            what: what.to_owned(),
            server: self.kind.name,
            url: self.base.clone(),
            source: Some(source),
        })
    }

    fn call(&self, what: &str, method: &Method, path: &str, body: Option<&Value>) -> Result<Value, OpenstackError> {
        let url = format!("{}{path}", self.base);
        let answer = self.send(what, method, &url, Some(self.version), body)?;
        self.json(what, &url, &answer)
    }

    /// A call with the run's token. One that has run out is renewed once.
    fn send(
        &self,
        what: &str,
        method: &Method,
        url: &str,
        version: Option<Microversion>,
        body: Option<&Value>,
    ) -> Result<Response, OpenstackError> {
        let once = |token: &Token| {
            let mut headers = vec![
                ("x-auth-token", token.id.clone()),
                ("accept", "application/json".to_owned()),
            ];
            if let Some(version) = version {
                let (name, before) = self.kind.header;
                headers.push((name, format!("{before}{version}")));
            }
            self.session.send(&HttpCall {
                what,
                server: self.kind.name,
                method: method.clone(),
                url,
                headers,
                body: body.map(Value::to_string),
            })
        };
        let answer = once(&*self.session.token()?)?;
        if answer.status != 401 {
            return Ok(answer);
        }
        let answer = once(&*self.session.renewed()?)?;
        if answer.status == 401 {
            return Err(OpenstackError::Token {
                server: self.kind.name,
                words: fault::words(&answer.text),
            });
        }
        Ok(answer)
    }

    fn json(&self, what: &str, url: &str, answer: &Response) -> Result<Value, OpenstackError> {
        // A list of versions is an answer of 300 in some releases.
        if !answer.is_success() && answer.status != 300 {
            return Err(refused(what, self.kind.name, answer));
        }
        if answer.text.trim().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&answer.text).map_err(|source| OpenstackError::Answer {
            what: what.to_owned(),
            server: self.kind.name,
            url: url.to_owned(),
            source: Some(source),
        })
    }
}

/// The address that lists an API's versions, and that of its resources. Clouds differ in how much of it the catalogue
/// has: all of it, all but the project, or the host alone.
fn addresses(address: &str, api: &str, project: &str) -> (String, String) {
    let address = address.trim_end_matches('/');
    let part = format!("/{api}");
    let end = address.rfind(&format!("{part}/")).map(|at| at + part.len());
    match end.or_else(|| address.ends_with(&part).then_some(address.len())) {
        Some(end) if end < address.len() => (format!("{}/", &address[..end]), address.to_owned()),
        Some(end) => (format!("{}/", &address[..end]), format!("{address}/{project}")),
        None => (format!("{address}{part}/"), format!("{address}{part}/{project}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{CloudService, Kind, Microversion, addresses};
    use crate::test_server::{Reply, login, reply, serve, session};

    static KIND: Kind = Kind {
        name: "Cinder",
        types: &["block-storage", "volumev3"],
        api: "v3",
        header: ("openstack-api-version", "volume "),
        newest: Microversion(3, 59),
        oldest: Microversion(3, 27),
    };

    fn versions(newest: &str) -> Reply {
        reply(
            200,
            &format!(r#"{{"versions": [{{"id": "v3.0", "version": "{newest}", "min_version": "3.0"}}]}}"#),
        )
    }

    #[test]
    fn an_address_is_completed_as_far_as_it_needs() {
        for (address, root, base) in [
            ("http://h:8776/v3/p", "http://h:8776/v3/", "http://h:8776/v3/p"),
            ("http://h/volume/v3/", "http://h/volume/v3/", "http://h/volume/v3/p"),
            ("http://h/volume", "http://h/volume/v3/", "http://h/volume/v3/p"),
            ("http://v3x/v3/AUTH_p/", "http://v3x/v3/", "http://v3x/v3/AUTH_p"),
            (
                "http://h/v3/cinder/v3/p",
                "http://h/v3/cinder/v3/",
                "http://h/v3/cinder/v3/p",
            ),
        ] {
            assert_eq!(addresses(address, "v3", "p"), (root.to_owned(), base.to_owned()));
        }
    }

    #[test]
    fn the_newest_version_that_both_know_is_asked_for() {
        for (has, asked) in [("3.71", "volume 3.59"), ("3.40", "volume 3.40")] {
            let (url, seen) = serve(vec![login("t", "URL/v3/p"), versions(has), reply(200, "{}")]);
            let session = session(&url);
            let service = CloudService::open(&session, &KIND).unwrap();
            service.get("look", "/types").unwrap();
            assert_eq!(service.needs(Microversion(3, 54), "that").is_ok(), has == "3.71");
            let seen = seen.join().unwrap();
            assert!(seen[1].starts_with("GET /v3/ "), "{}", seen[1]);
            assert!(!seen[1].contains("openstack-api-version"), "{}", seen[1]);
            assert!(seen[2].starts_with("GET /v3/p/types "), "{}", seen[2]);
            assert!(
                seen[2].contains(&format!("openstack-api-version: {asked}\n")),
                "{}",
                seen[2]
            );
        }
    }

    #[test]
    fn an_api_that_tells_of_itself_alone_is_known_by_its_first_number() {
        static NOVA: Kind = Kind {
            name: "Nova",
            types: &["volumev3"],
            api: "v2.1",
            header: ("openstack-api-version", "compute "),
            newest: Microversion(2, 60),
            oldest: Microversion(2, 60),
        };
        for (has, is_enough) in [("2.96", true), ("2.60", true), ("2.53", false)] {
            let text = format!(r#"{{"version": {{"id": "v2.1", "version": "{has}"}}}}"#);
            let mut replies = vec![login("t", "URL/v2.1"), reply(200, &text)];
            if is_enough {
                replies.push(reply(200, "{}"));
            }
            let (url, seen) = serve(replies);
            let session = session(&url);
            let service = CloudService::open(&session, &NOVA);
            assert_eq!(service.is_ok(), is_enough, "{has}");
            if let Ok(service) = service {
                service.get("look", "/servers").unwrap();
            }
            let seen = seen.join().unwrap();
            assert!(seen[1].starts_with("GET /v2.1/ "), "{}", seen[1]);
            if is_enough {
                assert!(seen[2].starts_with("GET /v2.1/p/servers "), "{}", seen[2]);
                assert!(seen[2].contains("openstack-api-version: compute 2.60\n"), "{}", seen[2]);
            }
        }
    }

    #[test]
    fn a_service_that_is_too_old_is_refused() {
        let (url, seen) = serve(vec![login("t", "URL/v3/p"), versions("3.15")]);
        let session = session(&url);
        let error = CloudService::open(&session, &KIND).unwrap_err();
        assert_eq!(error.exit_code(), 75);
        assert!(error.to_string().contains("3.15"), "{error}");
        seen.join().unwrap();
    }

    #[test]
    fn a_token_that_has_run_out_is_renewed_once() {
        let no = || reply(401, r#"{"error": {"message": "expired"}}"#);
        let (url, seen) = serve(vec![
            login("t1", "URL/v3/p"),
            versions("3.71"),
            no(),
            login("t2", "URL/v3/p"),
            reply(200, "{}"),
            no(),
            login("t3", "URL/v3/p"),
            no(),
        ]);
        let session = session(&url);
        let service = CloudService::open(&session, &KIND).unwrap();
        service.get("look", "/types").unwrap();
        let error = service.get("look", "/types").unwrap_err();
        assert!(error.to_string().contains("refuses a token"), "{error}");
        let seen = seen.join().unwrap();
        assert!(seen[2].contains("x-auth-token: t1\n") && seen[4].contains("x-auth-token: t2\n"));
    }

    #[test]
    fn all_pages_of_a_list_are_read_and_a_fault_is_told_in_its_words() {
        let (url, seen) = serve(vec![
            login("t", "URL/v3/p"),
            versions("3.71"),
            reply(
                200,
                r#"{"volumes": [{"id": "a"}], "volumes_links": [{"rel": "next", "href": "x"}]}"#,
            ),
            reply(200, r#"{"volumes": [{"id": "b"}]}"#),
            reply(500, r#"{"computeFault": {"message": "Queue gone."}}"#).with("x-openstack-request-id", "req-1"),
            reply(413, r#"{"overLimit": {"message": "allowed gigabytes quota"}}"#).with("retry-after", "0"),
            reply(404, "{}"),
            reply(404, "{}"),
        ]);
        let session = session(&url);
        let service = CloudService::open(&session, &KIND).unwrap();
        assert_eq!(service.list("look", "/volumes?x=y", "volumes").unwrap().len(), 2);
        let error = service.get("look", "/types").unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to look: Cinder says: Queue gone (HTTP 500, req-1)"
        );
        let error = service.get("look", "/types").unwrap_err();
        assert!(
            error.to_string().contains("allowed gigabytes quota: delete what"),
            "{error}"
        );
        assert!(service.find("look", "/x").unwrap().is_none());
        service.delete("delete", "/x").unwrap();
        let seen = seen.join().unwrap();
        assert!(seen[3].starts_with("GET /v3/p/volumes?x=y&marker=a "), "{}", seen[3]);
    }
}
