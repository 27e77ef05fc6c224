//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use mooring_contract::names::paths;

const ABOUT: &str = "\
Makes or removes the PersistentVolume of a provisioning run.

pv reads what the run is about from /run/mooring (request.json and the property
files), so an image gives only what it alone knows: where the volume is.
All commands may be repeated.";

const AFTER: &str = "\
An image that makes its volume on a file server and then the PersistentVolume:

  mkdir -p /run/mooring/backend/\"$PV_NAME\"
  pv create --option client=nfs --option source=\"$SERVER:/exports/$PV_NAME\"

The same with 'volume-source: csi' (or 'flexVolume') in the ConfigMap, which then needs no right:

  mkdir -p /run/mooring/backend/\"$PV_NAME\"
  pv options client=nfs source=\"$SERVER:/exports/$PV_NAME\"

Exit codes, which a script under 'set -e' passes on:
   0  done, or was done already
  75  the Kubernetes API could not do it now: Mooring tries again
  78  refused: nothing changes until the ConfigMap, the claim or the image does";

/// Arguments of `pv`.
#[derive(Debug, Parser)]
#[command(name = "pv", version, about = ABOUT, after_help = AFTER, max_term_width = 120)]
pub struct Args {
    /// Folder that Mooring put this run's request into.
    #[arg(long, env = "MOORING_RUN_DIR", default_value = "/run/mooring", hide = true)]
    pub run_dir: PathBuf,
    /// File of the token to use with Kubernetes, instead of the property service-token.
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: PvCommand,
}

/// One command.
#[derive(Debug, Subcommand)]
pub enum PvCommand {
    /// Make the PersistentVolume of this run.
    ///
    /// Its name, claim, class, capacity, access modes, volume mode, reclaim policy and mount options come from the
    /// request. If it exists already and for the same claim, that is success.
    #[command(after_help = "\
Examples:
  pv create --option client=nfs --option source=10.0.0.7:/exports/$PV_NAME
  pv create --option client=sshfs --option source=$SOURCE --secret sshfs-key/storage
  echo '{\"iscsi\": {\"targetPortal\": \"10.0.0.7:3260\", …}}' | pv create --source-json -")]
    Create(Create),
    /// Remove the PersistentVolume of this run; success if it is gone already.
    ///
    /// Mooring removes the PersistentVolume itself after a 'delete' run that ends with 0. This is for an image that has
    /// to undo a 'provision' half-way.
    Delete,
    /// Refuse a property of the ConfigMap or the StorageClass that the image does not know.
    ///
    /// An image ignores a misspelt property in silence. With this, the run ends with 78, and says which name was
    /// probably meant. Call it first in every run: it refuses only in 'provision', 'clone', 'restore', 'discover' and,
    /// for attributes, 'modify'. Keys of a Secret and Mooring's own properties are never refused.
    #[command(after_help = "\
Example, first in a script:
  pv expect server directory attribute-tier")]
    Expect(Expect),
    /// Print one property, such as 'size-gi' or a key of your own.
    #[command(after_help = "\
Examples:
  server=$(pv get server)
  port=$(pv get port --default 22)
  source=$(pv get --volume source)
  copied=$(pv get --source source)")]
    Get(Get),
    /// Print the volumes of a group, a line for each (operations 'snapshot-group' and 'delete-group').
    ///
    /// A line has the name of the volume's PersistentVolume, the name of its snapshot and its capacity in bytes. Of a
    /// group that an administrator has named, nothing may be known but the snapshots: then the first is '-' and the
    /// last 0.
    #[command(after_help = "\
Example:
  pv members >/tmp/members
  while read -r pv_name snapshot_name _; do
      acme snapshot create \"$(pv get --member \"$pv_name\" source)\" \"$snapshot_name\"
  done </tmp/members")]
    Members,
    /// Hand the volume's options to Mooring, which makes the PersistentVolume (needs 'volume-source' in the ConfigMap).
    ///
    /// Writes them as JSON to the termination message, so that a script needs no quoting of its own.
    #[command(after_help = "\
Example:
  pv options client=local source=\"$PV_NAME.img\" fs-type=ext4
  pv options source=\"iscsi://$portal/$target/1\" --seal chap-password=/tmp/password  # attach")]
    Options(OptionsArgs),
    /// Hand the list of what the storage can serve to Mooring, which makes a StorageClass for each (operation
    /// 'discover').
    ///
    /// Reads a line for each class from standard input: its name, then what is to be said of it ('default',
    /// 'snapshots', 'expansion', capacity=BYTES, nodes=A,B, mount-options=A,B), and behind '--' the parameters with
    /// which 'provision' is run for it. An empty list says that the storage serves nothing.
    #[command(after_help = "\
Examples:
  ceph osd pool ls | pv classes --parameter pool --expansion
  echo 'ssd default capacity=1099511627776 -- tier=1 pool=fast' | pv classes")]
    Classes(Classes),
    /// Run a command that no other run may execute at the same time, on this node or backend.
    ///
    /// Takes an exclusive lock on a file or directory, such as the backend volume, and becomes the command, whose exit
    /// code is the result. The lock is released when the command ends, however it ends.
    #[command(after_help = "\
Example, in a script that makes its volume only if there is room:
  [ \"${1-}\" = locked ] || exec pv lock /run/mooring/backend \"$0\" locked")]
    Lock(Lock),
    /// Copy a file as large as a volume.
    ///
    /// Where the file system can, the two share their blocks until one is written. Else only what was written is
    /// copied, and holes stay holes; a copy to another file system is of one moment if the first can share blocks. FILE
    /// appears only when all of it is on the disk: until then the copy is FILE.new.
    #[command(after_help = "\
Example, in a script that makes a volume as a copy of another:
  [ -e \"$pool/$PV_NAME.img\" ] || pv copy \"$pool/$SOURCE_PV_NAME.img\" \"$pool/$PV_NAME.img\"")]
    Copy(Copy),
    /// Make this container a worker, which carries out one run after another without a new Pod for each.
    ///
    /// For ConfigMaps with key 'workers': Mooring starts the image with OPERATION=serve, and gives it runs from then on.
    /// Each is PROGRAM, with the variables and files of a Pod of its own. When it ends, all that it started is ended, and
    /// /tmp is emptied.
    #[command(after_help = "\
Example, first in a script:
  [ \"$OPERATION\" != serve ] || exec pv serve \"$0\"")]
    Serve(Serve),
}

/// Arguments of `pv create`.
#[derive(Debug, clap::Args)]
pub struct Create {
    /// Option of the volume, mounted by Mooring (driver mooring.dev/vcs); may be repeated. 'client' is needed, and
    /// nearly always 'source'.
    #[arg(long = "option", value_name = "KEY=VALUE", required_unless_present = "source_json")]
    pub options: Vec<String>,
    /// Secret that the mount needs, in namespace NAMESPACE (default: the claim's). Its type must be mooring.dev/vcs.
    #[arg(long, value_name = "NAME[/NAMESPACE]")]
    pub secret: Option<String>,
    /// Make the volume read-only.
    #[arg(long)]
    pub read_only: bool,
    /// Any other volume source as in a PersistentVolume's spec, one JSON object with one key; '-' reads it from stdin.
    #[arg(long, value_name = "FILE|-", conflicts_with_all = ["options", "secret", "read_only"])]
    pub source_json: Option<PathBuf>,
    /// Node that the volume is on: only Pods on that node can use it.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Capacity of the volume, if it came out larger than asked: bytes, or with a suffix such as 10Gi.
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<String>,
}

/// Arguments of `pv expect`.
#[derive(Debug, clap::Args)]
pub struct Expect {
    /// All properties that the image reads, without Mooring's own: keys of the ConfigMap, parameters of the class, and
    /// 'attribute-NAME' for an attribute.
    #[arg(value_name = "NAME")]
    pub known: Vec<String>,
}

/// Arguments of `pv get`.
#[derive(Debug, clap::Args)]
pub struct Get {
    /// The property's name, as in the ConfigMap or the contract.
    pub property: String,
    /// Print an option of the existing volume instead, as its PersistentVolume has it: a 'delete' needs these.
    #[arg(long)]
    pub volume: bool,
    /// Print an option of the volume to copy instead, as its PersistentVolume has it: a 'clone' needs these.
    #[arg(long, conflicts_with = "volume")]
    pub source: bool,
    /// Print an option of this volume of the group instead, as its PersistentVolume has it; or else a parameter that it
    /// was made with. See 'pv members'.
    #[arg(long, value_name = "PV_NAME", conflicts_with_all = ["volume", "source"])]
    pub member: Option<String>,
    /// What to print if there is no such property (without this, that is an error).
    #[arg(long, value_name = "VALUE")]
    pub default: Option<String>,
}

/// Arguments of `pv lock`.
#[derive(Debug, clap::Args)]
pub struct Lock {
    /// File or directory that exists.
    pub path: PathBuf,
    /// The command.
    pub command: OsString,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// Arguments of `pv serve`.
#[derive(Debug, clap::Args)]
pub struct Serve {
    /// The image's own program.
    #[arg(value_name = "PROGRAM")]
    pub command: OsString,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
    /// Folder for temporary files.
    #[arg(long, value_name = "FOLDER", default_value = "/tmp", hide = true)]
    pub tmp: PathBuf,
    /// File of the termination message.
    #[arg(long, value_name = "FILE", default_value = paths::TERMINATION_LOG, hide = true)]
    pub message: PathBuf,
}

/// Arguments of `pv copy`.
#[derive(Debug, clap::Args)]
pub struct Copy {
    /// File to copy.
    pub from: PathBuf,
    /// The new FILE.
    #[arg(value_name = "FILE")]
    pub to: PathBuf,
}

/// Arguments of `pv classes`.
#[derive(Debug, clap::Args)]
pub struct Classes {
    /// Parameter that has the name of a class for its value.
    #[arg(long, value_name = "NAME")]
    pub parameter: Option<String>,
    /// Snapshots of all of them can be taken.
    #[arg(long)]
    pub snapshots: bool,
    /// The volumes of all of them can grow.
    #[arg(long)]
    pub expansion: bool,
    /// File of the termination message.
    #[arg(long, value_name = "FILE", default_value = paths::TERMINATION_LOG, hide = true)]
    pub to: PathBuf,
}

/// Arguments of `pv options`.
#[derive(Debug, clap::Args)]
pub struct OptionsArgs {
    /// Options of the volume.
    #[arg(value_name = "KEY=VALUE", required_unless_present = "seal")]
    pub options: Vec<String>,
    /// Secret that the mount needs, in namespace NAMESPACE (default: the claim's). Its type must be mooring.dev/vcs.
    #[arg(long, value_name = "NAME[/NAMESPACE]")]
    pub secret: Option<String>,
    /// Secret of the connection: KEY with what is in FILE. Only the node that the volume is attached to gets it
    /// ('attach' only; may be repeated).
    #[arg(long, value_name = "KEY=FILE", conflicts_with = "secret")]
    pub seal: Vec<String>,
    /// File of the termination message.
    #[arg(long, value_name = "FILE", default_value = paths::TERMINATION_LOG, hide = true)]
    pub to: PathBuf,
}
