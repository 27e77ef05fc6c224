//! Operations `attach` and `detach`: a share lets in the nodes that mount it, each by rules of its own, and for as long
//! as it does.

use std::net::IpAddr;

use mooring_contract::volume::{Volume, keys};

use super::Manila;
use super::access::Whom;
use super::protocol::Protocol;
use crate::answer::{VolumeOptions, options};
use crate::error::OpenstackError;
use crate::storage::Item;

impl Manila<'_> {
    pub(super) fn attach(&self) -> Result<String, OpenstackError> {
        let request = &self.storage.given.request;
        let (name, node) = (&request.pv_name, &request.node_name);
        let share = self.storage.standing(name, None)?;
        let share = self.at_rest(&share.ok_or_else(|| self.storage.gone(name))?)?;
        let mut secrets = options([]);
        if self.is_of(Protocol::Cifs) {
            secrets = self.login()?;
        }
        for whom in self.whom()? {
            let rule = self.rule(&share, &whom)?;
            if let Some(key) = rule.access_key.filter(|_| whom.kind == "cephx") {
                secrets = options([("user", whom.name), ("key", key)]);
            }
        }
        self.storage
            .answer
            .connection(self.storage.given, options([]), &secrets)?;
        Ok(format!("share {name} of Manila lets node {node} in"))
    }

    /// Manila ends what a node has open when it takes the rule away, so this keeps out a node that is gone, too; unless
    /// others come by the same rule.
    pub(super) fn detach(&self) -> Result<String, OpenstackError> {
        let request = &self.storage.given.request;
        let (name, node) = (&request.pv_name, &request.node_name);
        let Some(share) = self.storage.standing(name, None)? else {
            return Ok(format!("Manila has no share {name}"));
        };
        let share = self.at_rest(&share)?;
        let is_gone = request.attachment.as_ref().is_some_and(|attachment| attachment.gone);
        let may_write = is_gone && !self.storage.given.list("fenced-nodes")?.contains(node);
        if may_write && self.is_of(Protocol::Cifs) && self.shares_its_rule(&share, node)? {
            return Err(OpenstackError::Refused(format!(
                "node {node} is gone, and share {name} can't keep it out alone, since all nodes log in as one user: keep \
                 it from the server yourself, then put {node} into \"fenced-nodes\" of the ConfigMap"
            )));
        }
        self.shut_out(&share, node)?;
        Ok(format!("share {name} of Manila lets node {node} in no more"))
    }

    /// The share, when Manila is not at work on it: it takes no rules meanwhile.
    fn at_rest(&self, share: &Item) -> Result<Item, OpenstackError> {
        let name = &self.storage.given.request.pv_name;
        let settled = self
            .storage
            .settled(&share.id, &format!("Manila's work on share {name}"))?;
        settled.ok_or_else(|| self.storage.gone(name))
    }

    fn is_of(&self, protocol: Protocol) -> bool {
        self.storage.given.option(keys::CLIENT) == protocol.client()
    }

    fn login(&self) -> Result<VolumeOptions, OpenstackError> {
        let given = self.storage.given;
        Ok(options([
            ("username", given.needed(CIFS_USER, LOGIN)?),
            ("password", given.needed(CIFS_PASSWORD, LOGIN)?),
            ("domain", given.property(CIFS_DOMAIN)?.unwrap_or_default()),
        ]))
    }

    /// By what the share's back end knows this node.
    fn whom(&self) -> Result<Vec<Whom>, OpenstackError> {
        let request = &self.storage.given.request;
        if self.is_of(Protocol::CephFs) {
            return Ok(vec![Whom::ceph(&user(&request.pv_name, &request.node_name))]);
        }
        if self.is_of(Protocol::Cifs) {
            return Ok(vec![Whom::user(&self.storage.given.needed(CIFS_USER, LOGIN)?)]);
        }
        let volume = Volume::from_options(&request.volume).map_err(pv::error::Error::Options)?;
        let server = volume.server();
        let attachment = request.attachment.as_ref();
        let addresses = attachment.map(|attachment| attachment.addresses.as_slice());
        let whom: Vec<_> = reaching(server, addresses.unwrap_or_default())
            .iter()
            .map(|address| Whom::at(address))
            .collect();
        if whom.is_empty() {
            return Err(OpenstackError::NotNow(format!(
                "node {} has no address by which a share of {server} could let it in: see \"kubectl get node -o wide\"",
                request.node_name
            )));
        }
        Ok(whom)
    }
}

/// Keys of the ConfigMap's Secret: as whom nodes log in at servers of CIFS. Manila knows users of such a server, and none
/// of their passwords.
pub(super) const CIFS_USER: &str = "cifs-username";
const CIFS_PASSWORD: &str = "cifs-password";
const CIFS_DOMAIN: &str = "cifs-domain";
const LOGIN: &str = "a user of the CIFS server, in the ConfigMap's Secret,";

/// The name of a node's Ceph client for a share. Manila takes no dots.
fn user(pv_name: &str, node: &str) -> String {
    format!("{pv_name}-{}", node.replace('.', "_"))
}

/// Those of a node's addresses by which it can reach `server`: of its family, if it is an address.
fn reaching<'a>(server: &str, addresses: &'a [String]) -> Vec<&'a String> {
    let server = server.parse::<IpAddr>();
    let of_family = |address: &&String| match (address.parse::<IpAddr>(), &server) {
        (Ok(address), Ok(server)) => address.is_ipv6() == server.is_ipv6(),
        (address, _) => address.is_ok(),
    };
    addresses.iter().filter(of_family).collect()
}

#[cfg(test)]
mod tests {
    use super::{reaching, user};

    #[test]
    fn a_node_is_let_in_by_the_addresses_with_which_it_comes() {
        let addresses = ["10.0.0.7", "node-a", "fd00::7"].map(str::to_owned);
        let of = |server: &str| reaching(server, &addresses);
        assert_eq!(of("10.0.0.9"), ["10.0.0.7"]);
        assert_eq!(of("fd00::9"), ["fd00::7"]);
        assert_eq!(of("filer.example"), ["10.0.0.7", "fd00::7"]);
        assert!(reaching("10.0.0.9", &addresses[1..]).is_empty());
    }

    #[test]
    fn two_nodes_have_two_clients_of_ceph() {
        // A node's name has no underscore (RFC 1123).
        assert_eq!(user("pvc-1", "a.example"), "pvc-1-a_example");
        assert_ne!(user("pvc-1", "a.b"), user("pvc-1", "a-b"));
    }
}
