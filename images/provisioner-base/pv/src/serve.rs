//! `pv serve`: makes of a container of the image a worker, which the controller gives one run after another. Each run is
//! the image's own program, as in a Pod of its own: the same variables, files and termination message.
//!
//! [`desk`] says which run there is, [`execution`] carries it out, and this file speaks with the controller. There is
//! one run at a time. The worker is the first process of its container, so when the run ends, so does all that it
//! started.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
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
    let connections = Arc::new(());
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // No file left for it, as a rule.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if Arc::strong_count(&connections) > MAX_CONNECTIONS {
            continue;
        }
        let (desk, key, counted) = (desk.clone(), key.clone(), connections.clone());
        thread::spawn(move || {
            // A connection that ends is the other side's to mend; strangers are not worth a word.
            let _ = converse(stream, &key, &desk);
            drop(counted);
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

/// Answers one controller until it goes.
fn converse(mut stream: TcpStream, key: &str, desk: &Desk) -> Result<(), ConnectionError> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let greeting = greeting()?;
    stream.write_all(&greeting)?;
    let mut channel = Channel::new(key, Side::Worker, greeting)?;
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut frame = Vec::new();
        let length = Channel::length(length)?;
        // As it comes, since nobody has shown a key yet.
        let read = (&mut stream).take(length as u64).read_to_end(&mut frame)?;
        if read < length {
            return Ok(());
        }
        let answer = match serde_json::from_slice(&channel.open(&frame)?)? {
            Ask::Begin(order) => desk.begin(order),
            Ask::Watch(known) => desk.changed(&known, WATCH),
        };
        stream.write_all(&channel.seal(serde_json::to_vec::<Report>(&answer)?)?)?;
    }
}
