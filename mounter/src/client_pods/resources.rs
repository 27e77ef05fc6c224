//! What client Pods request and may use: for all clients, and otherwise for some.

use std::collections::BTreeMap;
use std::str::FromStr;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mooring_contract::volume::{ClientName, VolumeError};

/// Units of a quantity, as Kubernetes writes them.
const UNITS: [&str; 15] = [
    "", "m", "k", "K", "Ki", "M", "Mi", "G", "Gi", "T", "Ti", "P", "Pi", "E", "Ei",
];

/// CPU and memory that a client Pod requests unless told otherwise. A Pod that uses more memory than it requests is
/// evicted before all that do not (docs/decisions/client-priority.md).
const REQUESTS: [(&str, &str); 2] = [("cpu", "10m"), ("memory", "64Mi")];

/// Memory that a client Pod may use unless told otherwise: as much as dozens of volumes of any client were seen to take
/// (docs/performance.md). It stops a program that takes more and more memory before the node has to evict Pods.
const LIMITS: [(&str, &str); 1] = [("memory", "2Gi")];

/// Flags about what client Pods request and may use. They count for Pods that are made from then on.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ResourceArgs {
    /// CPU that a client Pod requests, `10m` unless said: VALUE for all clients, CLIENT=VALUE for one.
    #[arg(long, env = "MOORING_CLIENT_CPU_REQUEST", value_delimiter = ',')]
    pub client_cpu_request: Vec<Amount>,
    /// Memory that a client Pod requests, `64Mi` unless said: VALUE for all clients, CLIENT=VALUE for one.
    #[arg(long, env = "MOORING_CLIENT_MEMORY_REQUEST", value_delimiter = ',')]
    pub client_memory_request: Vec<Amount>,
    /// CPU that a client Pod may use, no limit unless said: VALUE for all clients, CLIENT=VALUE for one, CLIENT= for
    /// none.
    #[arg(long, env = "MOORING_CLIENT_CPU_LIMIT", value_delimiter = ',')]
    pub client_cpu_limit: Vec<Amount>,
    /// Memory that a client Pod may use, `2Gi` unless said: VALUE for all clients, CLIENT=VALUE for one, CLIENT= for
    /// none. A FUSE program that is killed for it is started again, but what was open is lost.
    #[arg(long, env = "MOORING_CLIENT_MEMORY_LIMIT", value_delimiter = ',')]
    pub client_memory_limit: Vec<Amount>,
}

impl ResourceArgs {
    /// What the client container of a client requests and may use.
    pub fn of(&self, client: &str) -> ResourceRequirements {
        let Self {
            client_cpu_request,
            client_memory_request,
            client_cpu_limit,
            client_memory_limit,
        } = self;
        let requests = [("cpu", client_cpu_request), ("memory", client_memory_request)];
        let limits = [("cpu", client_cpu_limit), ("memory", client_memory_limit)];
        ResourceRequirements {
            requests: quantities(&REQUESTS, requests, client),
            limits: quantities(&LIMITS, limits, client),
            ..ResourceRequirements::default()
        }
    }
}

/// What a client usually has, unless something else is `said`.
fn quantities(
    usual: &[(&str, &str)],
    said: [(&str, &Vec<Amount>); 2],
    client: &str,
) -> Option<BTreeMap<String, Quantity>> {
    let mut all: BTreeMap<_, _> = usual.iter().copied().collect();
    all.extend(
        said.iter()
            .filter_map(|(name, amounts)| Some((*name, amount(amounts, client)?))),
    );
    all.retain(|_, value| !value.is_empty());
    let all: BTreeMap<_, _> = all
        .into_iter()
        .map(|(name, value)| (name.to_owned(), Quantity(value.to_owned())))
        .collect();
    Some(all).filter(|all| !all.is_empty())
}

/// The value for a client: the last one given for it, else the last one for all.
fn amount<'a>(amounts: &'a [Amount], client: &str) -> Option<&'a str> {
    let about = |wanted: Option<&str>| {
        let mut found = amounts.iter().rev();
        found.find(|amount| amount.client.as_ref().map(ClientName::as_str) == wanted)
    };
    let found = about(Some(client)).or_else(|| about(None));
    found.map(|amount| amount.value.as_str())
}

/// An amount of something, for all clients or for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Amount {
    client: Option<ClientName>,
    value: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAmount {
    #[error("{0:?} is not a quantity: write it as Kubernetes does, such as 250m or 64Mi, for one client as s3=64Mi")]
    Quantity(String),
    #[error(transparent)]
    Client(#[from] VolumeError),
}

impl FromStr for Amount {
    type Err = BadAmount;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (client, value) = match text.split_once('=') {
            Some((client, value)) => (Some(client.trim().parse()?), value.trim()),
            None => (None, text.trim()),
        };
        if !(is_quantity(value) || client.is_some() && value.is_empty()) {
            return Err(BadAmount::Quantity(value.to_owned()));
        }
        let value = value.to_owned();
        Ok(Self { client, value })
    }
}

fn is_quantity(text: &str) -> bool {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = &text[..text.len() - unit.len()];
    number.starts_with(|c: char| c.is_ascii_digit()) && number.parse::<f64>().is_ok() && UNITS.contains(&unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn amounts(texts: &[&str]) -> Vec<Amount> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn of(args: &ResourceArgs, client: &str) -> serde_json::Value {
        serde_json::to_value(args.of(client)).unwrap()
    }

    #[test]
    fn a_value_for_one_client_overrides_the_value_for_all() {
        let requests = json!({"cpu": "10m", "memory": "64Mi"});
        let nothing = json!({"requests": requests, "limits": {"memory": "2Gi"}});
        assert_eq!(of(&ResourceArgs::default(), "s3"), nothing);
        let args = ResourceArgs {
            client_memory_request: amounts(&["s3=96Mi"]),
            client_memory_limit: amounts(&["256Mi", "s3=1Gi", "block="]),
            client_cpu_limit: amounts(&["s3=1.5"]),
            ..ResourceArgs::default()
        };
        assert_eq!(
            of(&args, "s3"),
            json!({"requests": {"cpu": "10m", "memory": "96Mi"}, "limits": {"cpu": "1.5", "memory": "1Gi"}})
        );
        assert_eq!(
            of(&args, "sshfs"),
            json!({"requests": requests, "limits": {"memory": "256Mi"}})
        );
        assert_eq!(of(&args, "block"), json!({"requests": requests}));
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in [
            "", "lots", "-1", "1 Gi", "1.2.3", "Mi", "64mi", "S3=1Gi", "=1Gi", "s3=x",
        ] {
            assert!(text.parse::<Amount>().is_err(), "{text}");
        }
        for text in ["1", "0.5", "250m", "64Mi", "2G", "s3=64Mi", "s3="] {
            assert!(text.parse::<Amount>().is_ok(), "{text}");
        }
    }
}
