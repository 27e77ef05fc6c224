//! `mooring conform`: tries a vendor's image on a cluster, by the contract of `docs/vendors.md`.
//!
//! It begins the very runs that the controller would, one by one, with claims that no class serves: so the controller
//! leaves them alone, and nothing but what is tried decides what happens when. [`on_cluster`] carries runs out by a
//! [`rig`], [`checks`] are what is tried, [`report`] tells it.

pub mod args;
mod checks;
mod error;
mod node;
mod on_cluster;
mod report;
mod rig;
mod runs;
mod tunnel;
mod worker;

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use flex_provisioner::config::ProvisionerConfig;
use flex_provisioner::config::keys;
use flex_provisioner::config::trust::Trust;
use flex_provisioner::process::client::ClientError;
use k8s_openapi::api::core::v1::ConfigMap;
use mooring_contract::names;
use mooring_contract::worker::SERVE;
use mooring_program::signals::Signals;
use tokio_util::sync::CancellationToken;

use self::args::ConformArgs;
use self::checks::Kit;
use self::error::RigError;
use self::report::ConformReport;
use self::rig::{Rig, Unreachable};
use self::runs::Runs as _;
use crate::say::say;

/// Why nothing could be tried.
#[derive(Debug, thiserror::Error)]
enum ConformError {
    #[error("failed to read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path:?} is not YAML")]
    Yaml {
        path: PathBuf,
        source: mooring_yaml::YamlError,
    },
    #[error("{0:?} has no provisioner ConfigMap (label type=provisioner-config)")]
    NoConfig(PathBuf),
    #[error("the ConfigMap in {path:?} can't be used: {problems}; `mooring lint` says where")]
    Config { path: PathBuf, problems: String },
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Rig(#[from] RigError),
    #[error(
        "--unreachable can't change backend-volume: no run begins before its backend volume is mounted; name a key \
         that the image itself reads"
    )]
    Backend,
    #[error("failed to write {path:?}")]
    Junit { path: PathBuf, source: io::Error },
    #[error("failed to listen for signals")]
    Signals(#[source] io::Error),
    #[error("ended in the middle of its runs: their Pods, claims named conform-…, and volumes may be left")]
    EndedAtOnce,
}

/// Tries the image and tells what was found; whether all is well. A second signal ends it at once, as an error.
pub(crate) async fn run(args: &ConformArgs) -> Result<bool, impl Error> {
    let stop = CancellationToken::new();
    tokio::select! {
        judged = judge(args, &stop) => judged,
        ended = interrupted_twice(&stop) => Err(ended.map_or_else(ConformError::Signals, |()| ConformError::EndedAtOnce)),
    }
}

/// Cancels `stop` at the first signal, and returns at the second.
async fn interrupted_twice(stop: &CancellationToken) -> io::Result<()> {
    let mut signals = Signals::listen()?;
    signals.next().await;
    say("stopping: what has begun is finished and its volumes are removed; a second signal ends this at once");
    stop.cancel();
    signals.next().await;
    Ok(())
}

async fn judge(args: &ConformArgs, stop: &CancellationToken) -> Result<bool, ConformError> {
    let map = config_map(&args.config)?;
    let config = parsed(&args.config, &map, &args.image, &[])?;
    let unreachable = match args.unreachable.as_slice() {
        [] => None,
        changes => Some(unreachable(args, &map, changes)?),
    };
    let rig = Rig::new(args, config, unreachable).await?;
    let config = &rig.setup().config;
    let mut promised: Vec<_> = config.operations.iter().map(|operation| operation.as_str()).collect();
    promised.extend((config.workers(false) > 0).then_some(SERVE));
    let mut report = ConformReport::begin(&args.image, &promised);
    Kit::new(&rig).try_all(&mut report, stop).await;
    rig.clean().await;
    report.end();
    if let Some(path) = &args.junit {
        std::fs::write(path, report.junit()).map_err(|source| ConformError::Junit {
            path: path.clone(),
            source,
        })?;
    }
    Ok(report.passed())
}

/// The same provisioner, whose image does not reach its storage.
fn unreachable(args: &ConformArgs, map: &ConfigMap, changes: &[(String, String)]) -> Result<Unreachable, ConformError> {
    if changes.iter().any(|(key, _)| key == keys::BACKEND_VOLUME) {
        return Err(ConformError::Backend);
    }
    let usual = |key: &str| map.data.as_ref()?.get(key).filter(|value| !value.is_empty()).cloned();
    Ok(Unreachable {
        config: parsed(&args.config, map, &args.image, changes)?,
        values: changes
            .iter()
            .filter_map(|(key, value)| Some((usual(key)?, value.clone())))
            .collect(),
    })
}

/// The first provisioner ConfigMap of a file.
fn config_map(path: &Path) -> Result<ConfigMap, ConformError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConformError::Read {
        path: path.to_owned(),
        source,
    })?;
    let documents = mooring_yaml::documents(&text).map_err(|source| ConformError::Yaml {
        path: path.to_owned(),
        source,
    })?;
    let is_config = |map: &ConfigMap| {
        let labels = map.metadata.labels.as_ref();
        let label = labels.and_then(|all| all.get(names::labels::TYPE));
        label.map(String::as_str) == Some(names::labels::TYPE_PROVISIONER_CONFIG)
    };
    let mut maps = documents
        .into_iter()
        .filter(|document| document["kind"] == "ConfigMap")
        .filter_map(|document| serde_json::from_value::<ConfigMap>(document).ok());
    maps.find(is_config)
        .ok_or_else(|| ConformError::NoConfig(path.to_owned()))
}

/// The ConfigMap with this image and these changes.
fn parsed(
    path: &Path,
    map: &ConfigMap,
    image: &str,
    changes: &[(String, String)],
) -> Result<ProvisionerConfig, ConformError> {
    let mut map = map.clone();
    map.metadata
        .namespace
        .get_or_insert_with(|| names::NAMESPACE.to_owned());
    let data = map.data.get_or_insert_default();
    data.insert("image".to_owned(), image.to_owned());
    data.extend(changes.iter().cloned());
    // A ConfigMap of this name may be on the cluster: nothing of the kit's is to go with it or to pass for its own.
    map.metadata.uid = None;
    let parsed = ProvisionerConfig::parse(&map, &Trust::offline(None, None));
    let parsed = parsed.map_err(|problems| ConformError::Config {
        path: path.to_owned(),
        problems: problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    })?;
    Ok(ProvisionerConfig {
        fingerprint: format!("conform-{}", parsed.fingerprint),
        ..parsed
    })
}
