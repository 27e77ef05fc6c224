//! A connection to a worker.

use std::time::Duration;

use mooring_contract::worker::{Ask, Report};
use mooring_seal::SealError;
use mooring_seal::channel::{Channel, GREETING, Side};
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::workers::Seat;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(3);

/// How long an answer may take. A worker that is watched answers within 15 s.
const ANSWER: Duration = Duration::from_secs(25);

#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("failed to connect to the worker at {host} port {port}")]
    Connect {
        host: String,
        port: u16,
        source: std::io::Error,
    },
    #[error("the connection to the worker broke")]
    Broken(#[from] std::io::Error),
    #[error("the worker did not answer in time")]
    Silent,
    /// What came was not sealed with the worker's key.
    #[error("what answers at the worker's address is not the worker")]
    Seal(#[from] SealError),
    #[error("the worker's answer can't be read: build its image from a provisioner-base of this version")]
    Unreadable(#[from] serde_json::Error),
    /// It has another run, which its Pod does not say.
    #[error("the worker is at run {0}, which is not the one that its Pod has")]
    Busy(u64),
}

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    channel: Channel,
}

impl Connection {
    pub async fn open(seat: &Seat) -> Result<Self, WorkerError> {
        let Seat { host, port, key } = seat;
        let failed = |source| WorkerError::Connect {
            host: host.clone(),
            port: *port,
            source,
        };
        let opening = async {
            let mut stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            let mut greeting = [0; GREETING];
            stream.read_exact(&mut greeting).await?;
            Ok((stream, greeting))
        };
        let (stream, greeting) = match timeout(CONNECT, opening).await {
            Ok(opened) => opened.map_err(failed)?,
            Err(_) => return Err(failed(std::io::ErrorKind::TimedOut.into())),
        };
        let channel = Channel::new(key.expose_secret(), Side::Controller, greeting)?;
        Ok(Self { stream, channel })
    }

    pub async fn ask(&mut self, ask: &Ask) -> Result<Report, WorkerError> {
        timeout(ANSWER, self.exchange(ask))
            .await
            .unwrap_or(Err(WorkerError::Silent))
    }

    async fn exchange(&mut self, ask: &Ask) -> Result<Report, WorkerError> {
        let message = self.channel.seal(serde_json::to_vec(ask)?)?;
        self.stream.write_all(&message).await?;
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).await?;
        let mut frame = vec![0; Channel::length(length)?];
        self.stream.read_exact(&mut frame).await?;
        Ok(serde_json::from_slice(&self.channel.open(&frame)?)?)
    }
}
