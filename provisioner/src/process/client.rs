//! The client of the Kubernetes API: its limits on time and rate, set on purpose.

use std::path::Path;
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::process::metrics::Metrics;

pub mod limit;

use limit::Limit;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);

/// How long any connection may be silent. The API server ends a watch after 295 s at most, as the watcher asks of it,
/// so a longer silence is a dead connection.
const SILENCE: Duration = Duration::from_secs(330);

const _: () = assert!(SILENCE.as_secs() > 295);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("failed to read kubeconfig {path:?}: check --kubeconfig")]
    Kubeconfig {
        path: String,
        source: kube::config::KubeconfigError,
    },
    /// Neither a kubeconfig nor a Pod's service account.
    #[error("failed to find a cluster: run in a Pod with a service account, or set --kubeconfig or KUBECONFIG")]
    NoCluster(#[source] Box<kube::config::InferConfigError>),
    #[error("failed to make a client of the Kubernetes API")]
    Build(#[source] kube::Error),
}

/// Where the cluster is, and with which identity to call it: from the file, else from the environment. `answer` is how
/// long an answer to anything but a watch may take to begin.
pub async fn config(kubeconfig: Option<&Path>, answer: Duration) -> Result<Config, ClientError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let failed = |source| ClientError::Kubeconfig {
                path: path.display().to_string(),
                source,
            };
            let file = Kubeconfig::read_from(path).map_err(failed)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(failed)?
        }
        None => Config::infer()
            .await
            .map_err(|error| ClientError::NoCluster(Box::new(error)))?,
    };
    config.connect_timeout = Some(CONNECT.min(answer));
    config.read_timeout = Some(SILENCE);
    config.write_timeout = Some(answer);
    config.reset_reader_on_write = true;
    Ok(config)
}

/// The client for the controllers: counted, held to `qps` requests a second and `burst` at once, and to `answer`.
pub fn limited(
    config: &Config,
    metrics: &Metrics,
    qps: u32,
    burst: u32,
    answer: Duration,
) -> Result<Client, ClientError> {
    Ok(ClientBuilder::try_from(config.clone())
        .map_err(ClientError::Build)?
        .with_layer(&metrics.api)
        .with_layer(&Limit::new(qps, burst, answer))
        .build())
}

/// The client for the leader election: counted, with a connection of its own and never queued behind other work.
pub fn unlimited(config: &Config, metrics: &Metrics) -> Result<Client, ClientError> {
    Ok(ClientBuilder::try_from(config.clone())
        .map_err(ClientError::Build)?
        .with_layer(&metrics.api)
        .build())
}

/// Address of the API server, `https://host:port`, as images get it. In a Pod that is the cluster's own Service.
pub fn address(config: &Config) -> String {
    let url = &config.cluster_url;
    let scheme = url.scheme_str().unwrap_or("https");
    let default = if scheme == "http" { 80 } else { 443 };
    let host = url.host().unwrap_or_default();
    format!(
        "{scheme}://{host}:{}{}",
        url.port_u16().unwrap_or(default),
        url.path().trim_end_matches('/')
    )
}

#[cfg(test)]
mod tests {
    use kube::Config;

    use super::address;

    #[test]
    fn images_get_an_address_with_its_port() {
        for (url, expected) in [
            ("https://10.0.0.1:6443/", "https://10.0.0.1:6443"),
            ("https://10.96.0.1", "https://10.96.0.1:443"),
            ("https://[fd00::1]:443", "https://[fd00::1]:443"),
            (
                "https://rancher.example.com/k8s/clusters/x/",
                "https://rancher.example.com:443/k8s/clusters/x",
            ),
        ] {
            assert_eq!(address(&Config::new(url.parse().unwrap())), expected);
        }
    }
}
