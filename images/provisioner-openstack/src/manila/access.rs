//! Who may mount a share. A share of CephFS has a Ceph client of its own, whose key goes into a Secret of its own. One
//! of NFS has the addresses that the ConfigMap names.

use std::collections::BTreeMap;

use pv::volume::SecretName;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Manila;
use super::protocol::Protocol;
use crate::error::OpenstackError;
use crate::kube_secret::KubeSecrets;
use crate::storage::Item;
use crate::wait::{LookResult, until};

/// Begins the name of the Secret of a share.
const SECRET: &str = "share-";

/// Key of the ConfigMap: the namespace of these Secrets.
pub(super) const NAMESPACE: &str = "keys-namespace";

/// Whom a share is to let in.
#[derive(Debug)]
pub(super) enum Access {
    /// A Ceph client of this name, whose key goes into a Secret in that namespace.
    Ceph {
        user: String,
        namespace: String,
    },
    Addresses(Vec<String>),
}

#[derive(Debug, Deserialize)]
struct Rule {
    id: String,
    access_type: String,
    access_to: String,
    state: String,
    #[serde(default)]
    access_key: Option<String>,
}

impl Rule {
    /// Whether its key, if it has one, is there too.
    fn is_complete(&self) -> bool {
        let has_key = self.access_key.as_ref().is_some_and(|key| !key.is_empty());
        self.state == "active" && (self.access_type != "cephx" || has_key)
    }
}

/// Name of the Secret with the key of a share.
pub(super) fn secret_name(pv_name: &str) -> String {
    format!("{SECRET}{pv_name}")
}

impl Manila<'_> {
    /// What the ConfigMap says about that.
    pub(super) fn access(&self, protocol: Protocol) -> Result<Access, OpenstackError> {
        match protocol {
            Protocol::CephFs => Ok(Access::Ceph {
                user: self.storage.given.request.pv_name.clone(),
                namespace: self
                    .storage
                    .given
                    .needed(NAMESPACE, "the namespace for Secrets with the keys of shares")?,
            }),
            Protocol::Nfs => {
                let addresses = self.storage.given.list("allowed-addresses")?;
                if addresses.is_empty() {
                    return Err(OpenstackError::NoProperty {
                        name: "allowed-addresses",
                        what: "the nodes' addresses or networks, with commas between them,",
                    });
                }
                Ok(Access::Addresses(addresses))
            }
        }
    }

    /// Makes the rules that are not there, and waits until they are in force. Returns the Secret that a mount needs.
    pub(super) fn let_in(&self, share: &Item, access: &Access) -> Result<Option<SecretName>, OpenstackError> {
        match access {
            Access::Addresses(addresses) => {
                for address in addresses {
                    self.rule(share, "ip", address)?;
                }
                Ok(None)
            }
            Access::Ceph { user, namespace } => {
                // Before anything is made that could not be used.
                let secrets = KubeSecrets::of(self.storage.given, namespace.clone(), self.storage.pace)?;
                let key = self.rule(share, "cephx", user)?.access_key.unwrap_or_default();
                let name = secret_name(&self.storage.given.request.pv_name);
                let values = BTreeMap::from([("user".to_owned(), user.clone()), ("key".to_owned(), key)]);
                secrets.write(&name, &values)?;
                Ok(Some(SecretName {
                    name,
                    namespace: Some(namespace.clone()),
                }))
            }
        }
    }

    fn rule(&self, share: &Item, kind: &str, whom: &str) -> Result<Rule, OpenstackError> {
        let what = format!("let {whom} mount share {}", share.id);
        if self.rule_of(share, kind, whom)?.is_none() {
            let about = json!({"access_type": kind, "access_to": whom, "access_level": "rw"});
            let made = self.storage.act(&what, &share.id, "allow_access", &about);
            if let Err(error) = made
                // Another run for this share may have just made it.
                && self.rule_of(share, kind, whom)?.is_none()
            {
                return Err(error.of_the_request());
            }
        }
        let found = until(self.storage.pace, &format!("Manila's rule for {whom}"), || {
            Ok(match self.rule_of(share, kind, whom)? {
                Some(rule) if rule.is_complete() => LookResult::Ready(Ok(rule)),
                Some(rule) if rule.state == "error" => LookResult::Ready(Err(rule)),
                Some(rule) => LookResult::NotYet(rule.state),
                None => LookResult::NotYet("not listed".to_owned()),
            })
        })?;
        found.or_else(|rule| {
            let failed = self.storage.failed(&what, &share.id, "the rule is made again");
            // No other rule is taken while this one is there.
            let gone = self
                .storage
                .act(&what, &share.id, "deny_access", &json!({"access_id": rule.id}));
            gone.and(Err(failed))
        })
    }

    fn rule_of(&self, share: &Item, kind: &str, whom: &str) -> Result<Option<Rule>, OpenstackError> {
        let what = format!("look at the rules of share {}", share.id);
        let path = format!("/share-access-rules?share_id={}", share.id);
        let mut found = self.storage.service.get(&what, &path)?;
        let rules: Vec<Rule> = match found["access_list"].take() {
            Value::Null => Vec::new(),
            list => self.storage.service.read(&what, list)?,
        };
        let fits = |rule: &Rule| rule.access_type == kind && rule.access_to == whom;
        Ok(rules.into_iter().find(fits))
    }
}
