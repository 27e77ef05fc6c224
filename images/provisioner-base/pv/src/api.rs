//! The calls to the Kubernetes API: one resource, three verbs.

use std::time::Duration;

use serde_json::{Value, json};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, http};

use crate::error::Error;

/// Time limit of one call, with name resolution and answer. A provisioning Pod has a limit of its own (`timeout`), and
/// a try that ends with a message is better than one that is killed.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Access to the API with one token.
#[derive(Debug)]
pub struct Api {
    agent: Agent,
    address: String,
    token: String,
}

impl Api {
    /// `address` is `https://host:port`, `certificate` PEM with one authority or more.
    pub fn new(address: &str, token: String, certificate: &str) -> Result<Self, Error> {
        let mut roots = Vec::new();
        for item in parse_pem(certificate.as_bytes()) {
            if let PemItem::Certificate(certificate) = item.map_err(Error::BadCa)? {
                roots.push(certificate);
            }
        }
        if roots.is_empty() {
            // The same error as for a damaged one.
            roots.push(Certificate::from_pem(certificate.as_bytes()).map_err(Error::BadCa)?);
        }
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&roots))
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            // A token must not follow a redirection, nor go through a proxy of the image's environment.
            .max_redirects(0)
            .proxy(None)
            .timeout_global(Some(CALL_TIMEOUT))
            .user_agent(concat!("mooring-pv/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: config.new_agent(),
            address: address.trim_end_matches('/').to_owned(),
            token,
        })
    }

    /// Creates the volume, unless it exists already for the same claim. Returns whether it was created now.
    pub fn create(&self, volume: &Value, claim_uid: &str) -> Result<bool, Error> {
        let name = volume["metadata"]["name"].as_str().unwrap_or_default();
        let what = format!("create PersistentVolume {name}");
        let request = self.agent.post(self.url("")).content_type("application/json");
        let sent = request.header("authorization", self.bearer()).send(volume.to_string());
        match self.answer(what, sent) {
            Ok(_) => Ok(true),
            Err(Error::Status { status: 409, .. }) => match self.get(name)? {
                Some(found) => {
                    check_ours(&found, name, claim_uid)?;
                    if found["metadata"].get("deletionTimestamp").is_some() {
                        return Err(Error::Leaving(name.to_owned()));
                    }
                    Ok(false)
                }
                None => Err(Error::Leaving(name.to_owned())),
            },
            Err(error) => Err(error),
        }
    }

    /// Removes the volume if it is for that claim. Returns whether there was one.
    pub fn delete(&self, name: &str, claim_uid: &str) -> Result<bool, Error> {
        let Some(found) = self.get(name)? else {
            return Ok(false);
        };
        check_ours(&found, name, claim_uid)?;
        let what = format!("delete PersistentVolume {name}");
        // Only the object that was checked.
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": { "uid": found["metadata"]["uid"] },
        });
        let request = self.agent.delete(self.url(name)).force_send_body();
        let request = request.content_type("application/json");
        let sent = request.header("authorization", self.bearer()).send(body.to_string());
        match self.answer(what, sent) {
            Ok(_) => Ok(true),
            Err(Error::Status { status: 404, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn get(&self, name: &str) -> Result<Option<Value>, Error> {
        let what = format!("read PersistentVolume {name}");
        let request = self.agent.get(self.url(name));
        let sent = request.header("authorization", self.bearer()).call();
        match self.answer(what, sent) {
            Ok(volume) => Ok(Some(volume)),
            Err(Error::Status { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn url(&self, name: &str) -> String {
        let slash = if name.is_empty() { "" } else { "/" };
        format!("{}/api/v1/persistentvolumes{slash}{name}", self.address)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    fn answer(&self, what: String, sent: Result<http::Response<Body>, ureq::Error>) -> Result<Value, Error> {
        let unreachable = |source| Error::Unreachable {
            what: what.clone(),
            api: self.address.clone(),
            source: Box::new(source),
        };
        let mut response = sent.map_err(unreachable)?;
        let status = response.status().as_u16();
        let text = response.body_mut().read_to_string().map_err(unreachable)?;
        if !response.status().is_success() {
            // A proxy in front of the API may answer with its own text.
            let message = serde_json::from_str::<Value>(&text)
                .ok()
                .and_then(|status| status["message"].as_str().map(str::to_owned))
                .unwrap_or_else(|| text.chars().take(500).collect());
            return Err(Error::Status { what, status, message });
        }
        serde_json::from_str(&text).map_err(|source| Error::Answer {
            what,
            api: self.address.clone(),
            source,
        })
    }
}

fn check_ours(found: &Value, name: &str, claim_uid: &str) -> Result<(), Error> {
    let claim = &found["spec"]["claimRef"];
    if claim["uid"].as_str() == Some(claim_uid) {
        return Ok(());
    }
    let text = |key: &str| claim[key].as_str().unwrap_or("?").to_owned();
    Err(Error::NotOurs {
        name: name.to_owned(),
        wanted: claim_uid.to_owned(),
        found: if claim.is_object() {
            format!("{}/{} ({})", text("namespace"), text("name"), text("uid"))
        } else {
            "none".to_owned()
        },
    })
}

#[cfg(test)]
mod tests;
