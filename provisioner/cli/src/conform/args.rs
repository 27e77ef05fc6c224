//! The command line of `mooring conform`.

use std::path::PathBuf;

use clap::Args;
use flex_provisioner::config::values::pair;
use mooring_contract::names;

/// What to try, and where.
#[derive(Debug, Clone, Args)]
pub struct ConformArgs {
    /// The image to try, in place of the one that the ConfigMap names
    pub image: String,
    /// File with the provisioner ConfigMap; the Secret and the service account that it names must be on the cluster
    #[arg(value_name = "CONFIGMAP")]
    pub config: PathBuf,
    /// Namespace in which to make the claims
    #[arg(long, default_value = "default")]
    pub namespace: String,
    /// Size of the volumes, as in a claim
    #[arg(long, default_value = "16Mi")]
    pub size: String,
    /// Key of the ConfigMap, with a value by which the image can't reach its storage; may be given more than once
    ///
    /// With it, the kit tries what the image does when its storage is away. Options of volumes that have the key's
    /// usual value in them get the new one too.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub unreachable: Vec<(String, String)>,
    /// Attribute that the image can give a volume, as a parameter of a `VolumeAttributesClass`; may be given more than
    /// once
    ///
    /// With it, the kit tries operation modify.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub attribute: Vec<(String, String)>,
    /// Write the results to this file too, as the XML that CI systems read
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Kubeconfig of a cluster's administrator [default: $KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name under which runs are begun: the controller's, since no other user may give a run the node's pool
    #[arg(long, default_value_t = format!("system:serviceaccount:{}:flex-provisioner", names::NAMESPACE))]
    pub controller: String,
}
