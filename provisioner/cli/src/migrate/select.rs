//! Which volumes are meant, and whether the cluster is ready for them.

use std::collections::{BTreeMap, BTreeSet};

use flex_provisioner::config::VolumeSourceKind;
use flex_provisioner::process::call::{Answer as _, CallError};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use mooring_contract::names::{CSI_DRIVER, labels};

use super::MigrateError;
use super::args::MigrateArgs;
use super::cluster::{MoveCluster, MoveError, MoveTarget};
use super::record::{ClaimKey, MoveRecord};
use super::source;

/// Whether every node with a mounter can mount what is moved.
pub(super) async fn is_ready(cluster: &MoveCluster, to: Option<VolumeSourceKind>) -> Result<(), MigrateError> {
    if to != Some(VolumeSourceKind::Csi) {
        return Ok(());
    }
    let drivers: Api<CSIDriver> = Api::all(cluster.client.clone());
    let driver = drivers.get_metadata_opt(CSI_DRIVER).await;
    if driver.or_failed_to("read", "CSIDriver", CSI_DRIVER)?.is_none() {
        return Err(MigrateError::NoDriver(CSI_DRIVER));
    }
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let nodes = nodes
        .list_metadata(&ListParams::default().labels(labels::NODE_MOUNTER))
        .await;
    let nodes = nodes.or_failed_to("list", "Node", "objects")?;
    let known: Api<CSINode> = Api::all(cluster.client.clone());
    let known = known.list(&ListParams::default()).await;
    let known = known.or_failed_to("list", "CSINode", "objects")?;
    let with_driver: BTreeSet<_> = known
        .iter()
        .filter(|node| node.spec.drivers.iter().any(|driver| driver.name == CSI_DRIVER))
        .map(ResourceExt::name_any)
        .collect();
    let without: Vec<_> = nodes
        .iter()
        .map(ResourceExt::name_any)
        .filter(|name| !with_driver.contains(name))
        .collect();
    if without.is_empty() {
        Ok(())
    } else {
        Err(MigrateError::NotRegistered(without.join(", ")))
    }
}

pub(super) struct Selected {
    pub(super) targets: BTreeSet<MoveTarget>,
    /// Records that can't be read.
    pub(super) bad: Vec<MoveError>,
    /// Claims that were named and have no volume.
    pub(super) unbound: Vec<String>,
}

/// The volumes that the arguments mean.
pub(super) async fn select(cluster: &MoveCluster, args: &MigrateArgs) -> Result<Selected, CallError> {
    let (mut records, mut bad) = (Vec::new(), Vec::new());
    for record in cluster.records().await? {
        match record {
            Ok(record) => records.push(record),
            Err(error) => bad.push(error),
        }
    }
    Ok(Selected {
        bad,
        ..choose(args, &cluster.all_volumes().await?, &records)
    })
}

fn choose(args: &MigrateArgs, volumes: &[PersistentVolume], records: &[MoveRecord]) -> Selected {
    let begun = records.iter().map(|record| (&record.old, true));
    let there = volumes.iter().map(|volume| (volume, false));
    // Nobody asks about all volumes of other drivers.
    let named = args.class.is_some() || !args.claim.is_empty();
    let is_meant = |volume: &PersistentVolume, claim: &ClaimKey, begun: bool| {
        let class = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        (begun || !args.back)
            && (named || source::of(volume).is_some())
            && args.class.as_deref().is_none_or(|wanted| class == Some(wanted))
            && args.namespace.as_ref().is_none_or(|wanted| claim.namespace == *wanted)
            && (args.claim.is_empty() || args.claim.contains(&claim.name))
    };
    let mut targets = BTreeMap::new();
    for (volume, begun) in begun.chain(there) {
        if let Some(claim) = ClaimKey::of(volume).filter(|claim| is_meant(volume, claim, begun)) {
            targets.entry(claim).or_insert_with(|| volume.name_any());
        }
    }
    let unbound = args
        .claim
        .iter()
        .filter(|name| !targets.keys().any(|claim| claim.name == **name));
    Selected {
        unbound: unbound.filter(|_| !args.back).cloned().collect(),
        targets: targets
            .into_iter()
            .map(|(claim, volume)| MoveTarget { claim, volume })
            .collect(),
        bad: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use k8s_openapi::api::core::v1::PersistentVolume;
    use serde_json::{Value, json};

    use super::choose;
    use crate::args::{Cli, Command};
    use crate::migrate::fixtures::volume;
    use crate::migrate::record::tests::record;

    fn chosen(flags: &[&str], with_record: bool) -> (Vec<String>, usize) {
        let line = ["mooring", "migrate"].iter().chain(flags).copied();
        let Command::Migrate(args) = Cli::try_parse_from(line).unwrap().command else {
            panic!("{flags:?}")
        };
        let of = |name: &str, namespace: &str, change: &dyn Fn(&mut Value)| {
            let mut value = volume();
            value["metadata"]["name"] = json!(format!("pv-{name}"));
            value["spec"]["claimRef"] = json!({"namespace": namespace, "name": name, "uid": format!("uid-{name}")});
            change(&mut value);
            serde_json::from_value::<PersistentVolume>(value).unwrap()
        };
        let volumes = [
            of("a", "one", &|_| {}),
            of("b", "two", &|pv| pv["spec"]["storageClassName"] = json!("gold")),
            of("c", "two", &|pv| {
                pv["spec"]["flexVolume"] = Value::Null;
                pv["spec"]["nfs"] = json!({"server": "h", "path": "/"});
            }),
            of("d", "two", &|pv| pv["spec"]["claimRef"] = Value::Null),
        ];
        let records = if with_record { vec![record()] } else { vec![] };
        let found = choose(&args, &volumes, &records);
        (
            found.targets.into_iter().map(|target| target.volume).collect(),
            found.unbound.len(),
        )
    }

    #[test]
    fn flags_say_which_volumes_are_meant() {
        let names = |flags: &[&str], with_record| chosen(flags, with_record).0;
        assert_eq!(names(&["--to", "csi"], false), ["pv-a", "pv-b"]);
        assert_eq!(
            names(&["--to", "csi"], true),
            ["pvc-u1", "pv-a", "pv-b"],
            "gone, and written down"
        );
        assert_eq!(names(&["--to", "CSI", "--class", "gold"], false), ["pv-b"]);
        assert_eq!(names(&["--to", "csi", "--namespace", "one"], false), ["pv-a"]);
        assert_eq!(
            names(&["--to", "csi", "--namespace", "two", "--claim", "c"], false),
            ["pv-c"],
            "named, so told"
        );
        assert_eq!(
            chosen(&["--to", "csi", "--namespace", "two", "--claim", "d"], false),
            (vec![], 1)
        );
        assert_eq!(names(&["--back"], false), [""; 0]);
        assert_eq!(names(&["--back"], true), ["pvc-u1"]);
    }

    #[test]
    fn flags_that_do_not_go_together_are_refused() {
        for bad in [
            &[][..],
            &["--to", "nfs"],
            &["--to", "csi", "--back"],
            &["--to", "csi", "--claim", "data"],
            &["--to", "csi", "--dry-run", "--wait", "1h"],
            &["--back", "--wait", "1h"],
        ] {
            let line = ["mooring", "migrate"].iter().chain(bad).copied();
            assert!(Cli::try_parse_from(line).is_err(), "{bad:?}");
        }
    }
}
