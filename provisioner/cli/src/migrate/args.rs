//! The command line of `mooring migrate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use flex_provisioner::config::VolumeSourceKind;
use mooring_contract::names;
use mooring_program::time::parse_duration;

pub(crate) const MIGRATE_HELP: &str = "\
How a volume moves:
  The command deletes its PersistentVolume and at once creates it again: the same name, the same claim, the other
  source. The claim keeps its name, its uid and its data, and is Lost for some milliseconds; Kubernetes may report that
  in an Event. The command neither touches the storage nor runs an image.

  A volume moves only while no Pod uses it. A Pod that runs is never disturbed. With --wait, each volume moves between
  the end of its last Pod and the start of the next one: restart the Pods meanwhile, in your own order
  (kubectl rollout restart statefulset …). Where new Pods start before old ones end (a Deployment that rolls), scale it
  to 0 and back, or use strategy Recreate.

  You can stop this at any point. Each move is first recorded in a ConfigMap in Mooring's namespace. The next run
  finishes what has begun, and --back undoes it. Until then, a claim whose move was cut off may be Lost, and no new
  Pod can use it.

The table has a line for each volume: moved, back, waits (for what), stays (why it can't move), failed.
Exits with 0 if nothing is left to do, 1 if volumes wait or failed, 2 if nothing could be tried. Volumes that stay do
not count: no later run changes them.

You need the rights of a cluster's administrator. New volumes of a class use the driver that its ConfigMap
names: set volume-source there.

Examples:
  mooring migrate --to csi --dry-run                        what would move, what waits for which Pod, what stays
  mooring migrate --to csi --namespace team-a --wait 1h     move each volume when its Pods are restarted
  mooring migrate --back                                    undo what was begun and cut off
  mooring migrate --to flexVolume --class silver            the other way";

/// What to move, and where to.
#[derive(Debug, Clone, Args)]
pub struct MigrateArgs {
    /// Where to: csi or flexVolume
    #[arg(long, value_name = "csi|flexVolume", value_parser = VolumeSourceKind::parse, required_unless_present = "back")]
    pub to: Option<VolumeSourceKind>,
    /// Take moves back that have begun and are not over; begin none
    #[arg(long, conflicts_with_all = ["to", "wait"])]
    pub back: bool,
    /// Only volumes of this StorageClass
    #[arg(long)]
    pub class: Option<String>,
    /// Only volumes of claims in this namespace
    #[arg(long)]
    pub namespace: Option<String>,
    /// Only the volume of this claim; may be given more than once
    #[arg(long, requires = "namespace")]
    pub claim: Vec<String>,
    /// Change nothing, and tell what would be done
    #[arg(long, conflicts_with = "wait")]
    pub dry_run: bool,
    /// Go on for as long as this until nothing waits any more, and move each volume when its Pods end
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub wait: Option<Duration>,
    /// Namespace that Mooring runs in: where moves are written down
    #[arg(long, env = "MOORING_NAMESPACE", default_value = names::NAMESPACE)]
    pub mooring_namespace: String,
    /// Kubeconfig of a cluster's administrator [default: $KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}
