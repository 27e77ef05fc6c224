//! Which image to build next, if several are built at once.

use std::collections::BTreeSet;

use super::recipes::Recipe;

/// The remaining builds. Images are identified by their full names.
pub(super) struct Queue<'a> {
    /// Those that take longest come first, so that none of them runs alone at the end.
    waiting: Vec<&'a Recipe>,
    at_work: BTreeSet<&'a str>,
    stopped: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    Build(&'a Recipe),
    Wait,
    End,
}

impl<'a> Queue<'a> {
    pub(super) fn new(recipes: impl IntoIterator<Item = &'a Recipe>) -> Self {
        let mut waiting: Vec<_> = recipes.into_iter().collect();
        waiting.sort_by_key(|recipe| std::cmp::Reverse(recipe.words_run));
        // Others wait for these.
        let bases: BTreeSet<&str> = waiting
            .iter()
            .flat_map(|recipe| recipe.bases.iter().map(String::as_str))
            .collect();
        waiting.sort_by_key(|recipe| !bases.contains(recipe.name.as_str()));
        Self {
            waiting,
            at_work: BTreeSet::new(),
            stopped: false,
        }
    }

    pub(super) fn next(&mut self) -> Next<'a> {
        if self.stopped || self.waiting.is_empty() {
            return Next::End;
        }
        let is_coming = |base: &String| {
            self.at_work.contains(base.as_str()) || self.waiting.iter().any(|waiting| waiting.name == *base)
        };
        let ready = self
            .waiting
            .iter()
            .position(|recipe| !recipe.bases.iter().any(is_coming));
        let Some(place) = ready else {
            return Next::Wait;
        };
        let recipe = self.waiting.remove(place);
        self.at_work.insert(&recipe.name);
        Next::Build(recipe)
    }

    /// Notes that an image is there.
    pub(super) fn built(&mut self, recipe: &Recipe) {
        self.at_work.remove(recipe.name.as_str());
    }

    /// Starts no further build.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }
}

#[cfg(test)]
mod tests {
    use super::{Next, Queue};
    use crate::images::Recipe;

    fn recipe(name: &str, bases: &[&str], words_run: usize) -> Recipe {
        Recipe {
            name: name.into(),
            bases: bases.iter().map(|base| (*base).into()).collect(),
            words_run,
            ..Recipe::default()
        }
    }

    #[test]
    fn an_image_waits_for_its_base_and_the_longest_come_first() {
        let all = [
            recipe("short", &["debian"], 3),
            recipe("long", &["debian"], 30),
            recipe("upon", &["base"], 90),
            recipe("base", &["busybox"], 0),
        ];
        let mut queue = Queue::new(&all);
        let order = [&all[3], &all[1], &all[0]].map(Next::Build);
        assert_eq!([queue.next(), queue.next(), queue.next()], order);
        assert_eq!(queue.next(), Next::Wait);
        queue.built(&all[1]);
        assert_eq!(queue.next(), Next::Wait);
        queue.built(&all[3]);
        assert_eq!(queue.next(), Next::Build(&all[2]));
        assert_eq!(queue.next(), Next::End);
    }

    #[test]
    fn after_a_failure_none_is_started() {
        let all = [recipe("a", &[], 1), recipe("b", &[], 1)];
        let mut queue = Queue::new(&all);
        assert_eq!(queue.next(), Next::Build(&all[0]));
        queue.stop();
        assert_eq!(queue.next(), Next::End);
    }
}
