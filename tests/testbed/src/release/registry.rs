//! A client of a registry: the parts of the OCI distribution specification that a release needs.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use ureq::http::{Method, Request, Response};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::layout::{Descriptor, INDEX, MANIFEST};
use super::login::{Challenge, Login, stored};

const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// Longest until a registry answers: it may copy a large blob first.
const ANSWER_LIMIT: Duration = Duration::from_mins(5);

/// What it accepts as the content of a tag; the last are Docker's own.
const KINDS: [&str; 4] = [
    INDEX,
    MANIFEST,
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// How much of an error's text to show, in characters.
const SHOWN: usize = 300;

/// Where all of a release goes: a registry, and the path in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    host: String,
    path: String,
}

impl Place {
    pub(super) fn parse(text: &str) -> Result<Self> {
        ensure!(
            !text.contains("://"),
            "{text} is no registry: leave the scheme out, as in registry.example.com/mooring"
        );
        let text = text.trim_end_matches('/');
        let (host, path) = text.split_once('/').unwrap_or((text, ""));
        let is_host = host.contains(['.', ':']) || host == "localhost";
        ensure!(
            is_host,
            "{text} is no registry: begin with its host, as in registry.example.com/mooring"
        );
        ensure!(
            path == path.to_lowercase(),
            "{text} is no registry: paths in a registry have no capital letters"
        );
        Ok(Self {
            host: host.to_owned(),
            path: path.to_owned(),
        })
    }

    /// A repository's path in the registry.
    fn repository(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}/{name}", self.path)
        }
    }

    pub(super) fn is_loopback(&self) -> bool {
        let host = self.host.rsplit_once(':').map_or(self.host.as_str(), |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// Registry and path, as image names begin.
impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.host)?;
        if self.path.is_empty() {
            return Ok(());
        }
        write!(f, "/{}", self.path)
    }
}

/// How to reach a registry.
#[derive(Debug, Clone, Default)]
pub(super) struct Connection {
    pub(super) is_plain_http: bool,
    /// Certificates of authorities, in place of Mozilla's.
    pub(super) authorities: Option<PathBuf>,
}

pub(super) struct Registry {
    agent: Agent,
    place: Place,
    base: String,
    login: Option<Login>,
    /// The header `Authorization` of each repository.
    authorizations: Mutex<BTreeMap<String, String>>,
}

/// What a request sends.
#[derive(Debug, Clone, Copy)]
enum Content<'a> {
    None,
    Bytes(&'a [u8]),
    File(&'a Path),
}

impl Registry {
    pub(super) fn open(place: &Place, connection: &Connection) -> Result<Self> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_LIMIT))
            .timeout_recv_response(Some(ANSWER_LIMIT));
        if let Some(path) = &connection.authorities {
            config = config.tls_config(TlsConfig::builder().root_certs(authorities(path)?).build());
        }
        let scheme = if connection.is_plain_http { "http" } else { "https" };
        Ok(Self {
            agent: Agent::new_with_config(config.build()),
            place: place.clone(),
            base: format!("{scheme}://{}", place.host),
            login: stored(&place.host)?,
            authorizations: Mutex::default(),
        })
    }

    pub(super) fn login(&self) -> Option<&Login> {
        self.login.as_ref()
    }

    /// Begins an upload and gives it up: fails where the registry can't be reached or trusted, or takes nothing from us.
    pub(super) fn ensure_writable(&self, name: &str) -> Result<()> {
        let url = self.url(name, "blobs/uploads/");
        let begun = self.send(name, &Method::POST, &url, &[], Content::None)?;
        if begun.status().as_u16() != 202 {
            return self.refused(&format!("begin an upload to {name}"), begun);
        }
        // A registry that can't cancel an upload forgets it by itself.
        let _ = self.send(name, &Method::DELETE, &self.upload(&begun)?, &[], Content::None);
        Ok(())
    }

    /// The manifest under a tag.
    pub(super) fn manifest(&self, name: &str, tag: &str) -> Result<Option<Vec<u8>>> {
        let kinds = KINDS.join(", ");
        let url = self.url(name, &format!("manifests/{tag}"));
        let mut answer = self.send(name, &Method::GET, &url, &[("accept", &kinds)], Content::None)?;
        match answer.status().as_u16() {
            200 => Ok(Some(answer.body_mut().read_to_vec().with_context(|| reading(&url))?)),
            404 => Ok(None),
            _ => self.refused(&format!("read {name}:{tag}"), answer),
        }
    }

    /// Puts a manifest under a tag or its digest. Returns whether the registry lists it with its subject.
    pub(super) fn put_manifest(&self, name: &str, reference: &str, media_type: &str, content: &[u8]) -> Result<bool> {
        let url = self.url(name, &format!("manifests/{reference}"));
        let headers = [("content-type", media_type)];
        let answer = self.send(name, &Method::PUT, &url, &headers, Content::Bytes(content))?;
        if answer.status().as_u16() != 201 {
            return self.refused(&format!("put the manifest {name}:{reference}"), answer);
        }
        Ok(answer.headers().contains_key("oci-subject"))
    }

    /// Uploads a blob, unless it is there. The registry copies it if another of its repositories has it.
    pub(super) fn put_blob(&self, name: &str, blob: &Descriptor, file: &Path, other: Option<&str>) -> Result<()> {
        let what = || format!("put {} into {name}", blob.digest);
        let url = self.url(name, &format!("blobs/{}", blob.digest));
        let there = self.send(name, &Method::HEAD, &url, &[], Content::None)?;
        if there.status().as_u16() == 200 {
            return Ok(());
        }
        let mut url = self.url(name, "blobs/uploads/");
        if let Some(other) = other {
            url = format!("{url}?mount={}&from={}", blob.digest, self.place.repository(other));
        }
        let begun = self.send(name, &Method::POST, &url, &[], Content::None)?;
        match begun.status().as_u16() {
            201 => return Ok(()),
            202 => {}
            _ => return self.refused(&what(), begun),
        }
        let absolute = self.upload(&begun)?;
        let mark = if absolute.contains('?') { '&' } else { '?' };
        let url = format!("{absolute}{mark}digest={}", blob.digest);
        let headers = [("content-type", "application/octet-stream")];
        let done = self.send(name, &Method::PUT, &url, &headers, Content::File(file))?;
        if done.status().as_u16() == 201 {
            return Ok(());
        }
        self.refused(&what(), done)
    }

    /// The address of an upload that was begun.
    fn upload(&self, begun: &Response<Body>) -> Result<String> {
        let place = begun.headers().get("location").and_then(|value| value.to_str().ok());
        let place = place.with_context(|| format!("{} names no place to upload to", self.place.host))?;
        Ok(if place.starts_with('/') {
            format!("{}{place}", self.base)
        } else {
            place.to_owned()
        })
    }

    fn url(&self, name: &str, rest: &str) -> String {
        format!("{}/v2/{}/{rest}", self.base, self.place.repository(name))
    }

    /// Sends a request, and once more with what the registry asks for.
    fn send(
        &self,
        name: &str,
        method: &Method,
        url: &str,
        headers: &[(&str, &str)],
        content: Content<'_>,
    ) -> Result<Response<Body>> {
        let answer = self.send_once(name, method, url, headers, content)?;
        if answer.status().as_u16() != 401 {
            return Ok(answer);
        }
        let asked = answer.headers().get("www-authenticate");
        let asked = asked.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let authorization = self.authorization(name, asked)?;
        self.authorizations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.to_owned(), authorization);
        self.send_once(name, method, url, headers, content)
    }

    fn send_once(
        &self,
        name: &str,
        method: &Method,
        url: &str,
        headers: &[(&str, &str)],
        content: Content<'_>,
    ) -> Result<Response<Body>> {
        let what = || format!("failed to send {method} {url}");
        let mut request = Request::builder().method(method).uri(url);
        for (header, value) in headers {
            request = request.header(*header, *value);
        }
        let authorizations = self.authorizations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(authorization) = authorizations.get(name) {
            request = request.header("authorization", authorization);
        }
        drop(authorizations);
        let sent = match content {
            Content::None => self.agent.run(request.body(()).with_context(what)?),
            Content::Bytes(bytes) => self.agent.run(request.body(bytes).with_context(what)?),
            Content::File(path) => {
                let file = File::open(path).with_context(|| format!("failed to open {}", path.display()))?;
                self.agent.run(request.body(file).with_context(what)?)
            }
        };
        sent.map_err(|error| {
            let is_unknown = error.to_string().contains("UnknownIssuer");
            let cure = "no known authority signed the registry's certificate: name yours by --registry-ca";
            let error = anyhow::Error::new(error);
            if is_unknown { error.context(cure) } else { error }.context(what())
        })
    }

    /// The header that answers a challenge.
    fn authorization(&self, name: &str, asked: &str) -> Result<String> {
        let basic = self.login.as_ref().map(|login| format!("Basic {}", login.value));
        match Challenge::parse(asked) {
            Some(Challenge::Basic) => basic.with_context(|| self.log_in()),
            Some(Challenge::Token { realm, service }) => self.token(name, &realm, service.as_deref(), basic),
            None => bail!("{} asks for a login of an unknown kind: {asked:?}", self.place.host),
        }
    }

    fn token(&self, name: &str, realm: &str, service: Option<&str>, basic: Option<String>) -> Result<String> {
        let scope = format!("repository:{}:pull,push", self.place.repository(name));
        let mut get = self.agent.get(realm).query("scope", &scope);
        if let Some(service) = service {
            get = get.query("service", service);
        }
        if let Some(basic) = basic {
            get = get.header("authorization", basic);
        }
        let mut answer = get
            .call()
            .with_context(|| format!("failed to ask {realm} for a token"))?;
        ensure!(answer.status().is_success(), "{}: {realm} gave no token", self.log_in());
        let text = answer.body_mut().read_to_string().with_context(|| reading(realm))?;
        let answer: Value = serde_json::from_str(&text).with_context(|| format!("{realm} answered without JSON"))?;
        let token = ["token", "access_token"].iter().find_map(|key| answer[*key].as_str());
        Ok(format!(
            "Bearer {}",
            token.with_context(|| format!("{realm} gave no token"))?
        ))
    }

    fn log_in(&self) -> String {
        let host = &self.place.host;
        format!(
            "{host} asks for a login: run `buildah login {host}` or `docker login {host}` first (logins in a credential \
             helper of Docker are not read)"
        )
    }

    fn refused<T>(&self, what: &str, mut answer: Response<Body>) -> Result<T> {
        let status = answer.status();
        let said = answer.body_mut().read_to_string().unwrap_or_default();
        let said: String = said.trim().chars().take(SHOWN).collect();
        if [401, 403].contains(&status.as_u16()) {
            bail!(
                "failed to {what}: {} answers {status}: {said}. {}",
                self.place.host,
                self.log_in()
            );
        }
        bail!("failed to {what}: {} answers {status}: {said}", self.place.host)
    }
}

fn reading(url: &str) -> String {
    format!("failed to read the answer of {url}")
}

fn authorities(path: &Path) -> Result<RootCerts> {
    let text = std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&text) {
        if let PemItem::Certificate(certificate) = item.with_context(|| format!("{} is no PEM", path.display()))? {
            certificates.push(certificate);
        }
    }
    ensure!(!certificates.is_empty(), "{} has no certificate", path.display());
    Ok(RootCerts::from(certificates))
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn a_place_is_a_host_and_a_path() {
        let place = |text: &str| Place::parse(text).map(|place| (place.to_string(), place.repository("mounter")));
        assert_eq!(
            place("r.example.com/team/mooring/").unwrap(),
            (
                "r.example.com/team/mooring".to_owned(),
                "team/mooring/mounter".to_owned()
            )
        );
        assert_eq!(
            place("localhost:5000").unwrap(),
            ("localhost:5000".to_owned(), "mounter".to_owned())
        );
        for (wrong, why) in [
            ("https://r.example.com/x", "leave the scheme out"),
            ("mooring", "begin with its host"),
            ("r.example.com/Team", "no capital letters"),
        ] {
            let error = place(wrong).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        for (text, is_loopback) in [
            ("localhost:5000/x", true),
            ("127.0.0.1:5000", true),
            ("[::1]:5000/x", true),
            ("10.0.0.1:5000", false),
            ("localhost.example.com", false),
        ] {
            assert_eq!(Place::parse(text).unwrap().is_loopback(), is_loopback, "{text}");
        }
    }
}
