//! How much the bench measures, and how long it may take.

use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

/// Time limit of a run, however much it measures.
pub(super) const WHOLE_LIMIT: Duration = Duration::from_hours(4);

/// How much is measured.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct Options {
    /// Rounds of one claim after another: claim created to Bound, claim deleted to volume gone.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    pub claims: usize,
    /// Rounds of a Pod with a new claim compared with a Pod without.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub pods: usize,
    /// Bursts: this many claims at once. The same number several times gives a spread.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "50,200", value_parser = at_least_one)]
    pub bursts: Vec<usize>,
    /// Mounts and unmounts of each kind.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = at_least_one)]
    pub mounts: usize,
    /// How long to do nothing, to see what Mooring costs then.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub idle: u64,
    /// Worker threads of local-path-provisioner in its second turn.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub peer_threads: usize,
    /// Leave local-path-provisioner out.
    #[arg(long)]
    pub skip_peer: bool,
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a number of at least 1 is wanted".to_owned()),
        Ok(number) => Ok(number),
    }
}
