//! Other people's credentials, for tests that try to break out with them.

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};

use super::connection::client;
use super::scope::Scope;

/// Parameters for a request that the API server only checks.
pub fn dry_run() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

/// The change that gives an object an owner that there is not: the garbage collector deletes it.
pub fn owned_by_nothing() -> Value {
    json!({"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "00000000-0000-4000-8000-000000000000"},
    ]}})
}

/// The API server's answer to a request that it must refuse.
///
/// # Panics
/// If it accepted the request.
pub fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> String {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 || status.code == 422 => status.message,
        other => panic!("it was not refused: {other:?}"),
    }
}

impl Scope {
    /// A client that has only a token.
    pub async fn with_token(&self, token: &str) -> Result<Client> {
        self.with_token_as(token, None).await
    }

    /// A client that has only a token, and impersonates another user.
    pub async fn with_token_as(&self, token: &str, user: Option<&str>) -> Result<Client> {
        let kubeconfig = match &self.target.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        }
        .context("failed to read the kubeconfig")?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .context("failed to understand the kubeconfig")?;
        config.auth_info = AuthInfo {
            token: Some(token.trim().to_owned().into()),
            impersonate: user.map(str::to_owned),
            ..AuthInfo::default()
        };
        Client::try_from(config).context("failed to make a client")
    }

    /// A client as a user who has only what RBAC gives.
    pub async fn as_user(&self, user: &str, groups: &[&str]) -> Result<Client> {
        client(&self.target, Some((user, groups))).await
    }

    /// A token of a service account. With `pod`, it is bound to that Pod, like those that the kubelet gets.
    pub async fn token_of(&self, namespace: &str, account: &str, pod: Option<&str>) -> Result<String> {
        let bound_object_ref = match pod {
            None => None,
            Some(name) => {
                let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
                let pod = pods
                    .get(name)
                    .await
                    .with_context(|| format!("failed to read Pod {name}"))?;
                Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(name.to_owned()),
                    uid: pod.uid(),
                })
            }
        };
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                bound_object_ref,
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let made = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .with_context(|| format!("failed to make a token of {namespace}/{account}"))?;
        made.status.and_then(|status| status.token).context("no token")
    }
}
