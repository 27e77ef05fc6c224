//! Runs of the image, and who carries them out.

use std::collections::BTreeMap;
use std::time::Duration;

use flex_provisioner::config::ProvisionerConfig;
use flex_provisioner::run::outcome::{Category, Finish};
use flex_provisioner::volume::topology::Node;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use mooring_contract::operation::Operation;
use mooring_contract::request::{Attachment, Attributes, Request, Snapshot};
use tokio::time::{Instant, sleep};

use super::error::{KitError, RigError};

/// How often a run is tried that the cluster ends, how soon again, and after how long no more: `timeout` may be long.
const TIMES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_mins(3);

/// One run to be carried out.
#[derive(Debug, Clone)]
pub(super) struct Ask<'a> {
    pub(super) operation: Operation,
    pub(super) claim: &'a PersistentVolumeClaim,
    /// Another claim, to whose name the run is: two runs for one claim can't be there at once.
    pub(super) beside: Option<&'a PersistentVolumeClaim>,
    pub(super) volume: BTreeMap<String, String>,
    /// In place of the claim's.
    pub(super) size: Option<u64>,
    pub(super) source: Option<&'a MadeVolume>,
    pub(super) snapshot: Option<Snapshot>,
    pub(super) attributes: Option<Attributes>,
    /// Those of a class that the image has listed.
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) unreachable: bool,
    /// The node of an attachment.
    pub(super) node: Option<NodeOfRun>,
}

/// The node that a volume is attached to or detached from, as the image gets it.
#[derive(Debug, Clone)]
pub(super) struct NodeOfRun {
    pub(super) name: String,
    pub(super) attachment: Attachment,
}

impl<'a> Ask<'a> {
    pub(super) fn of(operation: Operation, claim: &'a PersistentVolumeClaim) -> Self {
        Self {
            operation,
            claim,
            beside: None,
            volume: BTreeMap::new(),
            size: None,
            source: None,
            snapshot: None,
            attributes: None,
            parameters: BTreeMap::new(),
            unreachable: false,
            node: None,
        }
    }

    pub(super) fn on(operation: Operation, made: &'a MadeVolume) -> Self {
        Self {
            volume: made.options.clone(),
            ..Self::of(operation, &made.claim)
        }
    }

    /// The claim to whose name the run is.
    pub(super) fn in_name_of(&self) -> &PersistentVolumeClaim {
        self.beside.unwrap_or(self.claim)
    }
}

/// What is tried, and with what.
pub(super) struct Setup {
    pub(super) config: ProvisionerConfig,
    /// The node that volumes are made on, if they live on one.
    pub(super) node: Option<Node>,
    /// The attributes to give volumes; none if nobody named any.
    pub(super) attributes: BTreeMap<String, String>,
    /// How large volumes are asked for, in bytes.
    pub(super) size: u64,
}

impl Setup {
    /// Whether the ConfigMap says that the image can do this.
    pub(super) fn promises(&self, operation: Operation) -> bool {
        self.config.operations.contains(&operation)
    }
}

pub(super) trait Runs {
    fn setup(&self) -> &Setup;
    /// Whether a run can be given settings by which it does not reach its storage.
    fn can_be_unreachable(&self) -> bool;
    async fn claim(&self) -> Result<PersistentVolumeClaim, RigError>;
    /// What the image is asked.
    fn asked(&self, ask: &Ask<'_>) -> Result<Request, RigError>;
    /// Has the image run until something ends it.
    async fn run_once(&self, ask: &Ask<'_>) -> Result<Finish, RigError>;

    /// Has the image run to its end: again, as the controller would, where the cluster ended it.
    async fn run(&self, ask: &Ask<'_>) -> Result<Finish, RigError> {
        let begin = Instant::now();
        let mut times = 0;
        loop {
            times += 1;
            let finish = self.run_once(ask).await?;
            if finish.category.is_own_end() || finish.category == Category::Timeout && finish.started {
                return Ok(finish);
            }
            let is_last = times == TIMES || begin.elapsed() > LONGEST;
            // It may need more than it may have, or there is no such image or program.
            let may_be_its_own = finish.category == Category::OutOfMemory || !finish.started;
            if is_last && may_be_its_own {
                return Ok(finish);
            }
            if is_last {
                return Err(RigError::Lost {
                    name: format!(
                        "run {} of claim {}",
                        ask.operation.as_str(),
                        ask.in_name_of().name_any()
                    ),
                    times,
                    why: finish.why,
                });
            }
            sleep(PAUSE).await;
        }
    }

    /// Has the image run, and kills it this long after it started.
    async fn cut_off(&self, ask: &Ask<'_>, after: Duration) -> Result<(), RigError>;
    /// Has one worker of the image carry out these runs, one after another, to their ends.
    async fn on_worker(&self, asks: &[Ask<'_>]) -> Result<Vec<Finish>, KitError>;
    /// Has one worker carry out the first of two runs and begin the second, and kills the worker when this share of the
    /// first one's time has passed. Returns how the first one ended.
    async fn cut_off_on_worker(&self, first: &Ask<'_>, second: &Ask<'_>, share: f64) -> Result<Finish, KitError>;
}

#[derive(Debug, Clone)]
pub(super) struct MadeVolume {
    pub(super) claim: PersistentVolumeClaim,
    pub(super) request: Request,
    /// The image states that its containers can be workers.
    pub(super) can_be_worker: bool,
    pub(super) options: BTreeMap<String, String>,
}
