//! Who may mount a share: each node that does, by `attach`; or, without that, all nodes from the start, except for CIFS.
//! Then a share of CephFS has a Ceph client of its own, whose key goes into a Secret of its own, and one of NFS has the addresses that
//! the ConfigMap names.

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

/// Metadata of a rule: the node that it was made for. Its addresses may be others when the rule is to go.
const NODE: &str = "mooring-node";

/// Begins the name of such metadata where one rule is for several nodes: that of each follows.
const ONE_OF_NODES: &str = "mooring-node.";

/// Key of the ConfigMap: the namespace of these Secrets.
pub(super) const NAMESPACE: &str = "keys-namespace";

/// Whom a new share is to let in.
#[derive(Debug)]
pub(super) enum Access {
    /// Nobody before `attach`.
    Later,
    /// A Ceph client of this name, whose key goes into a Secret in that namespace.
    Ceph {
        user: String,
        namespace: String,
    },
    Addresses(Vec<String>),
}

/// Whom a rule is about, as Manila has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Whom {
    pub(super) kind: &'static str,
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Rule {
    id: String,
    access_type: String,
    access_to: String,
    state: String,
    #[serde(default)]
    pub(super) access_key: Option<String>,
    #[serde(default)]
    metadata: BTreeMap<String, Value>,
}

impl Rule {
    /// Whether its key, if it has one, is there too.
    fn is_complete(&self) -> bool {
        let has_key = self.access_key.as_ref().is_some_and(|key| !key.is_empty());
        self.state == "active" && (self.access_type != "cephx" || has_key)
    }

    fn is_for(&self, node: &str) -> bool {
        self.metadata.get(NODE).and_then(Value::as_str) == Some(node)
            || self.metadata.contains_key(&format!("{ONE_OF_NODES}{node}"))
    }

    /// Whether other nodes come by it, too.
    fn is_for_others_than(&self, node: &str) -> bool {
        let mut nodes = self.metadata.keys().filter_map(|key| key.strip_prefix(ONE_OF_NODES));
        nodes.any(|one| one != node)
    }

    /// Whether it is being taken away already.
    fn is_leaving(&self) -> bool {
        matches!(self.state.as_str(), "queued_to_deny" | "denying" | "deleted")
    }
}

impl Whom {
    pub(super) fn at(address: &str) -> Self {
        Self {
            kind: "ip",
            name: address.to_owned(),
        }
    }

    /// A user of the server's, as whom all nodes come.
    pub(super) fn user(name: &str) -> Self {
        Self {
            kind: "user",
            name: name.to_owned(),
        }
    }

    fn is_shared(&self) -> bool {
        self.kind == "user"
    }

    pub(super) fn ceph(user: &str) -> Self {
        Self {
            kind: "cephx",
            name: user.to_owned(),
        }
    }
}

/// Name of the Secret with the key of a share.
pub(super) fn secret_name(pv_name: &str) -> String {
    format!("{SECRET}{pv_name}")
}

impl Manila<'_> {
    /// What the ConfigMap says about that.
    pub(super) fn access(&self, protocol: Protocol) -> Result<Access, OpenstackError> {
        if self.storage.given.request.attaches {
            return Ok(Access::Later);
        }
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
            Protocol::Cifs => Err(OpenstackError::Refused(
                "a share of CIFS comes with a login, which only \"attach\" can hand to a node: list attach and detach \
                 under \"operations\" of the ConfigMap, with multi-attach"
                    .to_owned(),
            )),
        }
    }

    /// Makes the rules that are not there, and waits until they are in force. Returns the Secret that a mount needs.
    pub(super) fn let_in(&self, share: &Item, access: &Access) -> Result<Option<SecretName>, OpenstackError> {
        match access {
            Access::Later => Ok(None),
            Access::Addresses(addresses) => {
                for address in addresses {
                    self.rule(share, &Whom::at(address))?;
                }
                Ok(None)
            }
            Access::Ceph { user, namespace } => {
                // Before anything is made that could not be used.
                let secrets = KubeSecrets::of(self.storage.given, namespace.clone(), self.storage.pace)?;
                let key = self.rule(share, &Whom::ceph(user))?.access_key.unwrap_or_default();
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

    /// Makes the rule unless it is there, and waits until it is in force.
    pub(super) fn rule(&self, share: &Item, whom: &Whom) -> Result<Rule, OpenstackError> {
        let Whom { kind, name } = whom;
        let what = format!("let {name} mount share {}", share.id);
        // One that is being taken away does not come back.
        let there = until(
            self.storage.pace,
            &format!("the end of Manila's rule for {name}"),
            || {
                Ok(match self.rule_of(share, whom)? {
                    Some(rule) if rule.is_leaving() => LookResult::NotYet(rule.state),
                    there => LookResult::Ready(there),
                })
            },
        )?;
        if there.is_none() {
            let only_read = self.storage.given.request.access_modes == ["ReadOnlyMany"];
            let level = if only_read { "ro" } else { "rw" };
            let mut about = json!({"access_type": kind, "access_to": name, "access_level": level});
            if self.storage.given.request.attachment.is_some() {
                about["metadata"] = self.mark(whom);
            }
            let made = self.storage.act(&what, &share.id, "allow_access", &about);
            if let Err(error) = made
                // Another run for this share may have just made it.
                && self.rule_of(share, whom)?.is_none()
            {
                // The ConfigMap says whom "provision" lets in, and the node itself whom "attach" does.
                return Err(match self.storage.given.request.attachment {
                    Some(_) => error,
                    None => error.of_the_request(),
                });
            }
        }
        if let Some(rule) = there.filter(|rule| whom.is_shared() && !rule.is_for(&self.storage.given.request.node_name))
        {
            let path = format!("/share-access-rules/{}/metadata", rule.id);
            let about = json!({"metadata": self.mark(whom)});
            self.storage.service.put(&what, &path, &about)?;
        }
        let found = until(self.storage.pace, &format!("Manila's rule for {name}"), || {
            Ok(match self.rule_of(share, whom)? {
                Some(rule) if rule.is_complete() => LookResult::Ready(Ok(rule)),
                Some(rule) if rule.state == "error" => LookResult::Ready(Err(rule)),
                Some(rule) => LookResult::NotYet(rule.state),
                None => LookResult::NotYet("not listed".to_owned()),
            })
        })?;
        found.or_else(|rule| {
            let failed = self.storage.failed(&what, &share.id, "the rule is made again");
            // No other rule is taken while this one is there.
            self.deny(&what, share, &rule).and(Err(failed))
        })
    }

    /// What a rule says of the node that this run is about.
    fn mark(&self, whom: &Whom) -> Value {
        let node = &self.storage.given.request.node_name;
        if whom.is_shared() {
            json!({format!("{ONE_OF_NODES}{node}"): "true"})
        } else {
            json!({NODE: node})
        }
    }

    /// Whether other nodes come by the same rule as this one, so that it has to stay.
    pub(super) fn shares_its_rule(&self, share: &Item, node: &str) -> Result<bool, OpenstackError> {
        let rules = self.rules(share)?;
        Ok(rules
            .iter()
            .any(|rule| rule.is_for(node) && rule.is_for_others_than(node)))
    }

    /// Takes away the rules that were made for a node, and waits until they are gone.
    pub(super) fn shut_out(&self, share: &Item, node: &str) -> Result<(), OpenstackError> {
        let what = format!("keep node {node} from share {}", share.id);
        let of_node = || -> Result<Vec<Rule>, OpenstackError> {
            let mut rules = self.rules(share)?;
            rules.retain(|rule| rule.is_for(node));
            Ok(rules)
        };
        for rule in of_node()?.iter().filter(|rule| !rule.is_leaving()) {
            if rule.is_for_others_than(node) {
                let path = format!("/share-access-rules/{}/metadata/{ONE_OF_NODES}{node}", rule.id);
                self.storage.service.delete(&what, &path)?;
                continue;
            }
            let denied = self.deny(&what, share, rule);
            // Another run for this share may have just done so.
            let stays = |there: &Rule| there.id == rule.id && !there.is_leaving();
            if denied.is_err() && of_node()?.iter().any(stays) {
                return denied;
            }
        }
        let failed = until(
            self.storage.pace,
            &format!("the end of Manila's rules for node {node}"),
            || {
                let left = of_node()?;
                Ok(match left.first() {
                    None => LookResult::Ready(false),
                    Some(_) if left.iter().any(|rule| rule.state == "error") => LookResult::Ready(true),
                    Some(rule) => LookResult::NotYet(rule.state.clone()),
                })
            },
        )?;
        if failed {
            return Err(self.storage.failed(&what, &share.id, "it is tried again"));
        }
        Ok(())
    }

    fn deny(&self, what: &str, share: &Item, rule: &Rule) -> Result<(), OpenstackError> {
        let about = json!({"access_id": rule.id});
        self.storage.act(what, &share.id, "deny_access", &about)
    }

    fn rule_of(&self, share: &Item, whom: &Whom) -> Result<Option<Rule>, OpenstackError> {
        let fits = |rule: &Rule| rule.access_type == whom.kind && rule.access_to == whom.name;
        Ok(self.rules(share)?.into_iter().find(fits))
    }

    fn rules(&self, share: &Item) -> Result<Vec<Rule>, OpenstackError> {
        let what = format!("look at the rules of share {}", share.id);
        let path = format!("/share-access-rules?share_id={}", share.id);
        let mut found = self.storage.service.get(&what, &path)?;
        match found["access_list"].take() {
            Value::Null => Ok(Vec::new()),
            list => self.storage.service.read(&what, list),
        }
    }
}
