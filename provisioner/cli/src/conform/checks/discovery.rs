//! What is tried of `discover`.

use futures::future::FutureExt;
use mooring_contract::operation::Operation;

use super::trial::{Trial, Way, same};
use super::verdicts::listed;
use super::{Check, Kit, Passed};
use crate::conform::runs::{Ask, Runs};

/// Of how many of the classes that an image lists a volume is made.
const MOST_CLASSES: usize = 8;

impl<R: Runs> Kit<'_, R> {
    pub(super) fn of_discover(&self) -> Vec<Check<'_>> {
        let trial = Trial::on_none(Operation::Discover);
        let at_once = self.discover_at_once().boxed_local();
        let of_each = self.provision_discovered().boxed_local();
        vec![
            self.check(trial, "lists what classes can be made of", Way::Once),
            self.check(trial, "lists the same when it is run again", Way::Again),
            Check::new(trial.operation, "lists the same in two runs at once", at_once),
            self.check(trial, "lists it after it was killed", Way::CutOff(0.0)),
            Check::new(trial.operation, "makes a volume of each class that it lists", of_each),
        ]
    }

    /// Neither can be in the other's way: they change nothing.
    async fn discover_at_once(&self) -> Passed {
        let claim = self.rig.claim().await?;
        let ask = Ask::of(Operation::Discover, &claim);
        let [first, second] = self.both(&ask).await?;
        same(&self.read(&ask, &first)?, &self.read(&ask, &second)?)
    }

    /// A class that is listed is one that claims can have.
    async fn provision_discovered(&self) -> Passed {
        let claim = self.rig.claim().await?;
        let found = listed(&self.rig.run(&Ask::of(Operation::Discover, &claim)).await?)?;
        for class in found.classes.iter().take(MOST_CLASSES) {
            // One that only some nodes reach, or that is full, is no fault of the image's.
            let elsewhere = !class.nodes.is_empty() || !class.topologies.is_empty();
            let full = class.capacity.is_some_and(|left| left < self.rig.setup().size);
            if elsewhere || full {
                continue;
            }
            let claim = self.rig.claim().await?;
            let of_class = |operation| Ask {
                parameters: class.parameters.clone(),
                ..Ask::of(operation, &claim)
            };
            let made = self.made_by(&of_class(Operation::Provision)).await;
            let listed = |text: &str| format!("class {:?} is listed, but {text}", class.name);
            let made = made.map_err(|error| error.reworded(listed))?;
            if self.rig.setup().promises(Operation::Delete) {
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
