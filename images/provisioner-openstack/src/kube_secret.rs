//! A Secret for the mount of one volume, by the Kubernetes API. A termination message can be read by anybody who can
//! read the Pod, so no key may stand there.

use std::collections::BTreeMap;

use mooring_contract::names::FLEX_DRIVER;
use serde_json::json;

use crate::error::OpenstackError;
use crate::given::GivenRun;
use crate::http::{Http, HttpCall, Method};
use crate::keystone::refused;
use crate::wait::Pace;

const KUBERNETES: &str = "Kubernetes";

/// The Secrets of one namespace, with the run's token. The account may create, patch and delete them, and reads none.
#[derive(Debug)]
pub struct KubeSecrets<'a> {
    http: Http,
    api: &'a str,
    token: String,
    namespace: String,
}

impl<'a> KubeSecrets<'a> {
    pub fn of(given: &'a GivenRun, namespace: String, pace: Pace) -> Result<Self, OpenstackError> {
        let (token, certificate) = given.kubernetes()?;
        Ok(Self {
            http: Http::new(Some(("kube-ca", &certificate)), pace)?,
            api: given.request.kube_api.trim_end_matches('/'),
            token,
            namespace,
        })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Writes a Secret, whether or not it is there.
    pub fn write(&self, name: &str, values: &BTreeMap<String, String>) -> Result<(), OpenstackError> {
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            // The kubelet passes no other to Mooring.
            "type": FLEX_DRIVER,
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "provisioner-openstack"}},
            "stringData": values,
        });
        let path = format!("/{name}?fieldManager=provisioner-openstack&force=true");
        // JSON is YAML.
        let kind = ("content-type", "application/apply-patch+yaml".to_owned());
        self.call("write", name, Method::PATCH, &path, Some((kind, secret.to_string())))
            .map(drop)
    }

    /// Deletes a Secret. What is not there is deleted.
    pub fn delete(&self, name: &str) -> Result<(), OpenstackError> {
        match self.call("delete", name, Method::DELETE, &format!("/{name}"), None) {
            Err(error) if error.status() != Some(404) => Err(error),
            _ => Ok(()),
        }
    }

    fn call(
        &self,
        verb: &str,
        name: &str,
        method: Method,
        path: &str,
        body: Option<((&'static str, String), String)>,
    ) -> Result<(), OpenstackError> {
        let what = format!("{verb} Secret {}/{name}", self.namespace);
        let url = format!("{}/api/v1/namespaces/{}/secrets{path}", self.api, self.namespace);
        let mut headers = vec![("authorization", format!("Bearer {}", self.token))];
        let body = body.map(|(kind, text)| {
            headers.push(kind);
            text
        });
        let answer = self.http.send(&HttpCall {
            what: &what,
            server: KUBERNETES,
            method,
            url: &url,
            headers,
            body,
        })?;
        if answer.is_success() {
            return Ok(());
        }
        Err(refused(&what, KUBERNETES, &answer))
    }
}
