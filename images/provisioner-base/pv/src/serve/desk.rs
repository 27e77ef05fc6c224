//! Which run a worker has, and how its last one ended.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mooring_contract::worker::{Order, Report, RunEnd};

#[derive(Debug, Default)]
pub(super) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    report: Report,
    /// What has been taken on and is not carried out yet.
    order: Option<Order>,
}

impl Desk {
    /// Takes a run on, unless there is one or this is not the next; says how things are then.
    pub(super) fn begin(&self, order: Order) -> Report {
        let mut state = self.lock();
        if state.report.is_idle() && order.number > state.report.number {
            state.report = Report {
                number: order.number,
                ended: None,
            };
            state.order = Some(order);
            self.changed.notify_all();
        }
        state.report.clone()
    }

    /// How things are as soon as that is something else, or after this time.
    pub(super) fn changed(&self, known: &Report, limit: Duration) -> Report {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), limit, |state| state.report == *known);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.report.clone()
    }

    /// Waits for a run, and has it carried out.
    pub(super) fn carry_out(&self, execute: impl FnOnce(Order) -> RunEnd) {
        let waited = self.changed.wait_while(self.lock(), |state| state.order.is_none());
        let order = waited.unwrap_or_else(PoisonError::into_inner).order.take();
        let Some(order) = order else { return };
        let number = order.number;
        let ended = Some(execute(order));
        self.lock().report = Report { number, ended };
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mooring_contract::worker::{Order, Report, RunEnd};

    use super::Desk;

    fn order(number: u64) -> Order {
        Order {
            number,
            timeout: 1,
            properties: [].into(),
            request: String::new(),
        }
    }

    fn end(code: i32) -> RunEnd {
        RunEnd {
            exit_code: code,
            message: String::new(),
            timed_out: false,
        }
    }

    #[test]
    fn there_is_one_run_at_a_time_and_none_comes_twice() {
        let desk = Desk::default();
        let running = |number| Report { number, ended: None };
        assert_eq!(desk.begin(order(2)), running(2));
        assert_eq!(desk.begin(order(3)), running(2), "two at once");
        desk.carry_out(|order| end(i32::try_from(order.number).unwrap()));
        let ended = Report {
            number: 2,
            ended: Some(end(2)),
        };
        assert_eq!(desk.changed(&running(2), Duration::from_mins(1)), ended);
        for late in [1, 2] {
            assert_eq!(desk.begin(order(late)), ended, "run {late} came late and was begun");
        }
        assert_eq!(desk.changed(&ended, Duration::ZERO), ended);
        assert_eq!(desk.begin(order(3)), running(3));
    }
}
