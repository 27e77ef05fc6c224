//! Whether a run ended as it has to, and whether two runs gave the same.

use std::collections::{BTreeMap, BTreeSet};

use flex_provisioner::operation::discover;
use flex_provisioner::run::outcome::{Category, Finish};
use flex_provisioner::volume::persistent_volume::Answered;
use kube::ResourceExt;
use mooring_contract::discovered::Discovered;
use mooring_contract::outcome::Outcome;
use mooring_program::error::chain;

use super::Passed;
use crate::conform::error::{KitError, fault};
use crate::conform::runs::MadeVolume;

/// Whether a run is done.
pub(super) fn done(finish: &Finish) -> Passed {
    match finish.outcome {
        Outcome::Done => Ok(()),
        Outcome::Retry | Outcome::GiveUp => Err(fault(format!("the run failed: {}", words(finish)))),
    }
}

/// Whether a run is done, or asks to be run again: one of two at once may find the other in its way.
pub(super) fn done_or_later(finish: &Finish) -> Passed {
    match finish.outcome {
        Outcome::Done => Ok(()),
        Outcome::Retry => failed_with_reason(finish),
        Outcome::GiveUp => Err(fault(format!(
            "one of two simultaneous runs gave up for good (exit 78), but has to exit with 75 to be run again: {}",
            words(finish)
        ))),
    }
}

/// Whether a run failed, by itself, where it could not do what it was asked.
pub(super) fn must_fail(finish: &Finish, since: &str) -> Passed {
    match finish.outcome {
        Outcome::Done => Err(fault(format!("the run says that it is done, though {since}"))),
        Outcome::Retry | Outcome::GiveUp => failed_with_reason(finish),
    }
}

/// Whether a run that failed ended by itself and said why.
pub(super) fn failed_with_reason(finish: &Finish) -> Passed {
    if finish.category == Category::Timeout {
        return Err(fault(
            "the run did not end until its timeout: have the image end before that, and say why",
        ));
    }
    if finish.message.trim().is_empty() {
        return Err(fault(
            "the run failed and said nothing: write why to standard error or /dev/termination-log",
        ));
    }
    Ok(())
}

fn words(finish: &Finish) -> &str {
    match finish.why.trim() {
        "" => "it said nothing",
        words => words,
    }
}

/// Whether two runs gave the same volume.
pub(super) fn same_volume(first: &MadeVolume, second: &MadeVolume) -> Passed {
    if first.options == second.options {
        return Ok(());
    }
    Err(fault(format!(
        "two runs for claim {} gave two volumes, {:?} and {:?}: name a volume after pv-name, and look for it first",
        first.claim.name_any(),
        first.options,
        second.options
    )))
}

/// Whether a run let the node in, and printed what Mooring can read.
pub(super) fn connected(finish: &Finish) -> Passed {
    done(finish)?;
    Answered::parse(&finish.message)
        .map(drop)
        .map_err(|error| fault(format!("the connection would be refused: {error}")))
}

/// What a run has listed; an error if the controller would not take it.
pub(super) fn listed(finish: &Finish) -> Result<Discovered, KitError> {
    done(finish)?;
    discover::read(&finish.message).map_err(|error| fault(chain(&error)))
}

/// Whether two runs listed the same classes, whatever is left in each.
pub(super) fn same_list(first: &Discovered, second: &Discovered) -> Passed {
    let classes = |found: &Discovered| -> BTreeSet<(String, BTreeMap<String, String>)> {
        let classes = found.classes.iter();
        classes
            .map(|class| (class.name.clone(), class.parameters.clone()))
            .collect()
    };
    let (first, second) = (classes(first), classes(second));
    if first == second {
        return Ok(());
    }
    Err(fault(format!(
        "two runs listed different classes, {first:?} and {second:?}: a class keeps its name and its parameters for as \
         long as the storage has it"
    )))
}
