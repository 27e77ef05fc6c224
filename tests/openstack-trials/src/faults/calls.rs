//! A run's calls, counted, and the one among them that goes wrong.

use nix::unistd::Pid;

use super::fault::{Fault, Kind, Of};
use super::http::Message;
use super::shown::Shown;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) fault: Option<Fault>,
    /// Name of what the run is about.
    pub(super) own: String,
    pub(super) run: Option<Pid>,
    /// Which run this is, and how many have ended.
    pub(super) number: usize,
    pub(super) ended: usize,
    pub(super) calls: Vec<String>,
    /// Calls since the run began, where a call that is repeated counts twice at most.
    pub(super) counted: usize,
    pub(super) writes: usize,
    /// Answers that show what the run is about.
    pub(super) looks: usize,
    /// The call that went wrong.
    pub(super) hit: Option<String>,
    /// Calls that have not come to their end, of this run and of those before.
    pub(super) at_work: usize,
}

/// What a run has done.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) calls: usize,
    pub(super) hit: Option<String>,
}

impl State {
    /// Notes a call; returns how it goes wrong, if it is to.
    pub(super) fn count(&mut self, request: &Message) -> Option<Kind> {
        let call = request.call();
        let is_write = request.first[0] != "GET" && !request.is_login();
        let again = self.calls.iter().rev().take_while(|one| **one == call).count();
        self.counted += usize::from(again < 2);
        self.writes += usize::from(is_write);
        self.calls.push(call.clone());
        let fault = self.fault?;
        let is_it = match fault.of {
            Of::Calls => self.counted == fault.at && again < 2,
            Of::Writes => is_write && self.writes == fault.at,
            Of::Looks => false,
        };
        if !is_it || self.hit.is_some() {
            return None;
        }
        self.hit = Some(call);
        Some(fault.kind)
    }

    /// Notes an answer; returns what it shows, if that is to be in error.
    pub(super) fn look(&mut self, request: &Message, answer: &Message) -> Option<Shown> {
        let fault = self.fault.filter(|fault| fault.of == Of::Looks && self.hit.is_none())?;
        let shown = Shown::of(request, answer, &self.own)?;
        let again = self.calls.iter().rev().take_while(|one| **one == shown.call).count();
        self.looks += usize::from(again <= 2);
        if self.looks < fault.at {
            return None;
        }
        self.hit = Some(shown.call.clone());
        Some(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::{Fault, Kind, Message, Of, State};

    fn request(method: &str, path: &str) -> Message {
        let mut request = Message::answer(0, "", "");
        request.first = [method, path, "HTTP/1.1"].map(str::to_owned);
        request
    }

    fn state(of: Of, at: usize) -> State {
        let kind = Kind::Cut;
        let given_up = false;
        State {
            fault: Some(Fault { kind, of, at, given_up }),
            own: "a".to_owned(),
            ..State::default()
        }
    }

    #[test]
    fn a_call_goes_wrong_once_and_one_that_is_repeated_counts_twice() {
        let calls = [
            ("POST", "/v3/auth/tokens"),
            ("GET", "/volumes/1"),
            ("GET", "/volumes/1"),
            ("GET", "/volumes/1"),
            ("DELETE", "/volumes/1"),
            ("GET", "/volumes/1"),
        ];
        for (of, at, wanted) in [
            (Of::Calls, 1, Some(0)),
            (Of::Calls, 3, Some(2)),
            (Of::Calls, 4, Some(4)),
            (Of::Calls, 6, None),
            (Of::Writes, 1, Some(4)),
            (Of::Writes, 2, None),
            (Of::Looks, 1, None),
        ] {
            let mut state = state(of, at);
            let wrong = calls.map(|(method, path)| state.count(&request(method, path)));
            let wrong: Vec<_> = (0..calls.len()).filter(|index| wrong[*index].is_some()).collect();
            assert_eq!(wrong, wanted.into_iter().collect::<Vec<_>>(), "{of:?} {at}");
        }
    }

    #[test]
    fn only_what_the_run_is_about_gets_into_error() {
        let look = request("GET", "/v3/p/volumes/1");
        let answer = |name: &str| {
            let volume = format!(r#"{{"volume": {{"id": "1", "name": "{name}", "status": "creating"}}}}"#);
            Message::answer(200, "OK", &volume)
        };
        let mut state = state(Of::Looks, 1);
        let mut shown = |name: &str| {
            state.count(&look);
            state.look(&look, &answer(name)).is_some()
        };
        assert_eq!(["b", "a", "a"].map(&mut shown), [false, true, false]);
    }
}
