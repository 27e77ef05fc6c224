//! What is tried of `discover`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flex_provisioner::operation::discover;
use flex_provisioner::run::outcome::Finish;
use futures::future::FutureExt;
use mooring_contract::discovered::Discovered;
use mooring_contract::operation::Operation;
use mooring_program::error::chain;

use super::{Check, Kit, Passed, done, fault};
use crate::conform::error::KitError;
use crate::conform::runs::{Ask, Runs};

/// Of how many of the classes that an image lists a volume is made.
const MOST_CLASSES: usize = 8;

impl<R: Runs> Kit<'_, R> {
    pub(super) fn of_discover(&self) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(Operation::Discover, what, check);
        vec![
            check("lists what classes can be made of", self.discover_once().boxed_local()),
            check(
                "lists the same when it is run again",
                self.discover_twice().boxed_local(),
            ),
            check(
                "lists the same in two runs at once",
                self.discover_at_once().boxed_local(),
            ),
            check("lists it after it was killed", self.discover_cut_off().boxed_local()),
            check(
                "makes a volume of each class that it lists",
                self.provision_discovered().boxed_local(),
            ),
        ]
    }

    async fn discovered(&self, ask: &Ask<'_>) -> Result<Discovered, KitError> {
        listed(&self.rig.run(ask).await?)
    }

    async fn discover_once(&self) -> Passed {
        let claim = self.rig.claim().await?;
        self.discovered(&Ask::of(Operation::Discover, &claim)).await.map(drop)
    }

    async fn discover_twice(&self) -> Passed {
        let claim = self.rig.claim().await?;
        let ask = Ask::of(Operation::Discover, &claim);
        same_list(&self.discovered(&ask).await?, &self.discovered(&ask).await?)
    }

    async fn discover_at_once(&self) -> Passed {
        let claim = self.rig.claim().await?;
        let (first, second) = self.both(&Ask::of(Operation::Discover, &claim)).await?;
        same_list(&listed(&first)?, &listed(&second)?)
    }

    async fn discover_cut_off(&self) -> Passed {
        let claim = self.rig.claim().await?;
        let ask = Ask::of(Operation::Discover, &claim);
        self.rig.cut_off(&ask, Duration::ZERO).await?;
        self.discovered(&ask).await.map(drop)
    }

    /// A class that is listed is one that claims can have.
    async fn provision_discovered(&self) -> Passed {
        let claim = self.rig.claim().await?;
        let found = self.discovered(&Ask::of(Operation::Discover, &claim)).await?;
        for class in found.classes.iter().take(MOST_CLASSES) {
            // One that only some nodes reach, or that is full, is no fault of the image's.
            let elsewhere = !class.nodes.is_empty() || !class.topologies.is_empty();
            let full = class.capacity.is_some_and(|left| left < self.rig.size());
            if elsewhere || full {
                continue;
            }
            let claim = self.rig.claim().await?;
            let of_class = |operation| Ask {
                parameters: class.parameters.clone(),
                ..Ask::of(operation, &claim)
            };
            let made = self.made_by(&of_class(Operation::Provision)).await;
            let made = made.map_err(|error| of_listed(&class.name, error))?;
            if self.rig.promised().contains(&Operation::Delete) {
                let gone = Ask {
                    volume: made.options.clone(),
                    ..of_class(Operation::Delete)
                };
                self.must_be_done(&gone).await?;
            }
        }
        Ok(())
    }
}

/// What a run has listed; an error if the controller would not take it.
fn listed(finish: &Finish) -> Result<Discovered, KitError> {
    done(finish)?;
    discover::read(&finish.message).map_err(|error| fault(chain(&error)))
}

/// Whether two runs listed the same classes, whatever is left in each.
fn same_list(first: &Discovered, second: &Discovered) -> Passed {
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

/// A fault of a class that was listed.
fn of_listed(class: &str, error: KitError) -> KitError {
    match error {
        KitError::Image(text) => fault(format!("class {class:?} is listed, but {text}")),
        rig @ KitError::Rig(_) => rig,
    }
}
