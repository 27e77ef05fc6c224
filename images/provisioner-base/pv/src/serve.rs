//! `pv serve`: makes of a container of the image a worker, which the controller gives one run after another. Each run is
//! the image's own program, as in a Pod of its own: the same variables, files and termination message.
//!
//! [`desk`] says which run there is, [`execution`] carries it out, and this file speaks with the controller. There is
//! one run at a time. The worker is the first process of its container, so when the run ends, so does all that it
//! started.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mooring_contract::worker::{Ask, KEY_VARIABLE, PORT, PORT_VARIABLE, Report};
use mooring_seal::channel::{Channel, Side, greeting};

use self::desk::Desk;
use self::execution::Program;
use crate::args::Serve;
use crate::command::say;
use crate::error::Error;

mod desk;
mod execution;

/// How long a controller that watches is let wait for an answer.
const WATCH: Duration = Duration::from_secs(15);

/// How long a connection may be silent. A controller that watches speaks more often.
const SILENCE: Duration = Duration::from_mins(1);

/// Most connections at once: a controller has two, and the one before it may not have closed its own.
const MAX_CONNECTIONS: usize = 16;

/// Serves until the container is stopped; returns only an error.
pub fn run(args: Serve, run_dir: &Path) -> Result<(), Error> {
    let key = std::env::var(KEY_VARIABLE).map_err(|_| Error::NoWorker)?;
    let port = match std::env::var(PORT_VARIABLE) {
        Ok(text) => text.parse().map_err(|_| Error::NoWorker)?,
        Err(_) => PORT,
    };
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind(("0.0.0.0", port)))
        .map_err(|source| Error::Listen { port, source })?;
    let desk = Arc::new(Desk::default());
    let program = Program::new(args, run_dir);
    thread::spawn({
        let desk = desk.clone();
        move || loop {
            desk.carry_out(|order| program.execute(order));
        }
    });
    say(&format!("waiting for runs on port {port}\n"))?;
    accept(&listener, &key, &desk, SILENCE)
}

/// A connection that was accepted.
struct Caller {
    stream: TcpStream,
    has_key: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Answers who calls; never returns. With too many connections, the oldest of those that have not shown the key is
/// closed: strangers keep no controller out.
fn accept(listener: &TcpListener, key: &str, desk: &Arc<Desk>, silence: Duration) -> ! {
    let mut callers: VecDeque<Caller> = VecDeque::new();
    loop {
        let accepted = listener
            .accept()
            .and_then(|(stream, _)| Ok((stream.try_clone()?, stream)));
        let Ok((stream, own)) = accepted else {
            // No file left for it, as a rule.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        callers.retain(|caller| !caller.thread.is_finished());
        if callers.len() >= MAX_CONNECTIONS {
            let stranger = callers
                .iter()
                .position(|caller| !caller.has_key.load(Ordering::Relaxed));
            let Some(stranger) = stranger.and_then(|at| callers.remove(at)) else {
                continue;
            };
            // Its thread ends with that.
            let _ = stranger.stream.shutdown(Shutdown::Both);
        }
        let has_key = Arc::new(AtomicBool::new(false));
        let (desk, key, shown) = (desk.clone(), key.to_owned(), has_key.clone());
        let thread = thread::spawn(move || {
            // A connection that ends is the other side's to mend; strangers are not worth a word.
            let _ = converse(&own, &key, &shown, &desk, silence);
            // The other handle is closed later.
            let _ = own.shutdown(Shutdown::Both);
        });
        callers.push_back(Caller {
            stream,
            has_key,
            thread,
        });
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Seal(#[from] mooring_seal::SealError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Answers one controller until it goes, or is silent for too long. Says as soon as it has shown the key.
fn converse(
    mut stream: &TcpStream,
    key: &str,
    has_key: &AtomicBool,
    desk: &Desk,
    silence: Duration,
) -> Result<(), ConnectionError> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(silence))?;
    stream.set_write_timeout(Some(silence))?;
    let greeting = greeting()?;
    stream.write_all(&greeting)?;
    let mut channel = Channel::new(key, Side::Worker, greeting)?;
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut frame = Vec::new();
        let length = Channel::length(length)?;
        // As it comes, since nobody has shown a key yet.
        let read = stream.take(length as u64).read_to_end(&mut frame)?;
        if read < length {
            return Ok(());
        }
        let message = channel.open(&frame)?;
        has_key.store(true, Ordering::Relaxed);
        let answer = match serde_json::from_slice(&message)? {
            Ask::Begin(order) => desk.begin(order),
            Ask::Watch(known) => desk.changed(&known, WATCH),
        };
        stream.write_all(&channel.seal(serde_json::to_vec::<Report>(&answer)?)?)?;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use mooring_contract::worker::{Ask, Report};
    use mooring_seal::channel::{Channel, GREETING, Side};
    use mooring_seal::new_key;

    use super::{Desk, MAX_CONNECTIONS, SILENCE, accept};

    /// Longest that a test waits for an answer.
    const LIMIT: Duration = Duration::from_secs(20);

    fn worker(key: &str, silence: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let key = key.to_owned();
        thread::spawn(move || accept(&listener, &key, &Arc::new(Desk::default()), silence));
        address
    }

    fn call(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// A controller's connection.
    struct Controller {
        stream: TcpStream,
        channel: Channel,
    }

    impl Controller {
        fn of(address: SocketAddr, key: &str) -> Self {
            let mut stream = call(address);
            let mut greeting = [0; GREETING];
            stream.read_exact(&mut greeting).unwrap();
            let channel = Channel::new(key, Side::Controller, greeting).unwrap();
            Self { stream, channel }
        }

        /// Asks for what is answered at once: the worker had no run.
        fn ask(&mut self) -> Report {
            let other = Report { number: 1, ended: None };
            let ask = serde_json::to_vec(&Ask::Watch(other)).unwrap();
            self.stream.write_all(&self.channel.seal(ask).unwrap()).unwrap();
            let mut length = [0; 4];
            self.stream.read_exact(&mut length).unwrap();
            let mut frame = vec![0; Channel::length(length).unwrap()];
            self.stream.read_exact(&mut frame).unwrap();
            serde_json::from_slice(&self.channel.open(&frame).unwrap()).unwrap()
        }
    }

    #[test]
    fn strangers_keep_no_controller_out_and_push_none_aside() {
        let key = new_key().unwrap();
        let address = worker(&key, SILENCE);
        let crowd = || -> Vec<_> { (0..MAX_CONNECTIONS * 2).map(|_| call(address)).collect() };
        let mut before = crowd();
        let mut controller = Controller::of(address, &key);
        assert_eq!(controller.ask(), Report::default());
        let _after = crowd();
        assert_eq!(controller.ask(), Report::default());
        // The oldest stranger had to go.
        let mut said = Vec::new();
        before[0].read_to_end(&mut said).unwrap();
        assert!(said.len() <= GREETING, "{said:?}");
    }

    #[test]
    fn who_has_the_wrong_key_or_says_nothing_is_closed() {
        let address = worker(&new_key().unwrap(), Duration::from_millis(50));
        let mut silent = call(address);
        let mut said = Vec::new();
        silent.read_to_end(&mut said).unwrap();
        assert_eq!(said.len(), GREETING);

        let address = worker(&new_key().unwrap(), SILENCE);
        let mut wrong = Controller::of(address, &new_key().unwrap());
        let ask = serde_json::to_vec(&Ask::Watch(Report::default())).unwrap();
        wrong.stream.write_all(&wrong.channel.seal(ask).unwrap()).unwrap();
        let mut said = Vec::new();
        wrong.stream.read_to_end(&mut said).unwrap();
        assert!(said.is_empty(), "{said:?}");
    }
}
