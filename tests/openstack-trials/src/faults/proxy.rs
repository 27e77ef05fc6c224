//! Stands between a run of the image and OpenStack's services, counts the run's calls, and has one of them go wrong.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::calls::{Seen, State};
use super::fault::{Fault, Kind, SLOW};
use super::http::{Message, exchange};
use mooring_testbed::progress::note;
use mooring_testbed::wait::{Look, wait_for};

/// What a busy service says, in seconds.
const BUSY: &str = "1";

/// How long a service may be at work for a run that has ended.
pub(super) const REST: Duration = Duration::from_mins(1);

/// The header with a token.
const TOKEN: &str = "x-subject-token";

/// Addresses of services by the hosts and ports that the catalogue has.
pub(super) type Servers = BTreeMap<String, SocketAddr>;

/// One proxy serves one run at a time. The first part of a path is the server that is meant.
#[derive(Debug)]
pub(super) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    servers: Servers,
    state: Mutex<State>,
    /// Keystone's answer to a login, which serves later ones too: it takes longer for a password than for anything
    /// else.
    login: Mutex<Option<Message>>,
}

impl Proxy {
    /// Serves until this program ends.
    pub(super) fn start(servers: Servers) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("failed to listen")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            servers,
            state: Mutex::default(),
            login: Mutex::default(),
        });
        let serving = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = serving.clone();
                shared.state().at_work += 1;
                std::thread::spawn(move || {
                    let served = shared.serve(&stream, address);
                    shared.state().at_work -= 1;
                    // A run that was killed reads no answer.
                    if let Err(error) = served
                        && !is_broken_pipe(&error)
                    {
                        note(format!("  .. proxy: {error:#}"));
                    }
                });
            }
        });
        Ok(Self { address, shared })
    }

    /// What stands before a server's name and port in an address.
    pub(super) fn prefix(&self) -> String {
        prefix(self.address)
    }

    /// Starts a run about `own`, whose calls are counted, and one of which goes wrong.
    pub(super) fn run(&self, fault: Option<Fault>, own: &str, start: impl FnOnce() -> Result<Child>) -> Result<Child> {
        // Its first call waits for the lock.
        let mut state = self.shared.state();
        *state = State {
            fault,
            own: own.to_owned(),
            number: state.number + 1,
            ended: state.ended,
            at_work: state.at_work,
            ..State::default()
        };
        let child = start()?;
        state.run = Some(Pid::from_raw(i32::try_from(child.id())?));
        Ok(child)
    }

    /// To be called when the run has ended, before its number can be another's.
    pub(super) fn ended(&self) -> Seen {
        let mut state = self.shared.state();
        state.run = None;
        state.ended += 1;
        Seen {
            calls: state.calls.len(),
            hit: state.hit.clone(),
        }
    }

    /// Whether no service is at work for a run any more.
    pub(super) fn is_idle(&self) -> bool {
        self.shared.state().at_work == 0
    }
}

fn prefix(address: SocketAddr) -> String {
    format!("http://{address}/")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kinds = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
    let found = error.downcast_ref::<std::io::Error>();
    found.is_some_and(|error| kinds.contains(&error.kind()))
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn serve(&self, stream: &TcpStream, proxy: SocketAddr) -> Result<()> {
        let mut request = Message::read(stream, false)?;
        let path = request.first[1].trim_start_matches('/').to_owned();
        let (server, rest) = path.split_once('/').unwrap_or((&path, ""));
        request.first[1] = format!("/{rest}");
        request.set("host", server);
        let address = self.servers.get(server);
        let address = *address.with_context(|| format!("{server} is no service that runs here"))?;
        let kind = self.state().count(&request);
        let pass = |sent: &dyn Fn()| {
            let mut kept = request.is_login().then(|| lock(&self.login));
            if let Some(answer) = kept.as_ref().and_then(|kept| kept.as_ref()) {
                sent();
                return Ok(answer.clone());
            }
            let answer = with_addresses(exchange(address, &request, sent)?, proxy);
            if let Some(kept) = &mut kept {
                **kept = Some(answer.clone()).filter(|answer| answer.header(TOKEN).is_some());
            }
            Ok::<_, anyhow::Error>(answer)
        };
        let pass_on = || pass(&|| ());
        let answer = match kind {
            None => {
                let answer = pass_on()?;
                let own = self.state().look(&request, &answer);
                match own {
                    None => answer,
                    Some(shown) => {
                        shown.break_it(address, &request)?;
                        pass_on()?
                    }
                }
            }
            Some(Kind::KilledBefore) => return self.kill_run(),
            Some(Kind::KilledAtWork) => {
                pass(&|| {
                    let _ = self.kill_run();
                })?;
                return Ok(());
            }
            Some(Kind::Late) => {
                self.kill_run_and_wait()?;
                pass_on()?;
                return Ok(());
            }
            Some(Kind::KilledAfter) => {
                pass_on()?;
                return self.kill_run();
            }
            Some(Kind::Refused) => failed(),
            Some(Kind::Lost) => {
                pass_on()?;
                failed()
            }
            Some(Kind::Cut) => {
                pass_on()?;
                return Ok(());
            }
            Some(Kind::Expired) => expired(),
            Some(Kind::Busy) => busy(),
            Some(Kind::Slow) => {
                let answer = pass_on()?;
                std::thread::sleep(SLOW);
                answer
            }
            // It is done where an answer shows something.
            Some(Kind::Broken) => pass_on()?,
        };
        answer.write(stream)
    }

    /// Returns when the next run has ended.
    fn kill_run_and_wait(&self) -> Result<()> {
        let next = self.state().number + 1;
        self.kill_run()?;
        wait_for("the next run to end", REST, &[], || {
            if self.state().ended < next {
                Look::NotYet("it runs".to_owned())
            } else {
                Look::Ready(())
            }
        })?;
        Ok(())
    }

    fn kill_run(&self) -> Result<()> {
        // While the lock is held, the number is the run's.
        let state = self.state();
        if let Some(run) = state.run {
            kill(run, Signal::SIGKILL).context("failed to kill the run")?;
        }
        Ok(())
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed() -> Message {
    let words = r#"{"computeFault": {"code": 500, "message": "an unexpected error"}}"#;
    Message::answer(500, "Internal Server Error", words)
}

fn expired() -> Message {
    let words = r#"{"error": {"code": 401, "message": "the token has run out"}}"#;
    Message::answer(401, "Unauthorized", words)
}

fn busy() -> Message {
    let mut answer = Message::answer(503, "Service Unavailable", "{}");
    answer.set("retry-after", BUSY);
    answer
}

/// Keystone's catalogue leads past the proxy otherwise.
fn with_addresses(mut answer: Message, proxy: SocketAddr) -> Message {
    if answer.header(TOKEN).is_some() {
        let text = String::from_utf8_lossy(&answer.body).replace("http://", &prefix(proxy));
        answer.body = text.into_bytes();
    }
    answer
}
