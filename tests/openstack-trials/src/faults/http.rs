//! As much of HTTP/1 as a proxy between a program and OpenStack's services takes: a connection has one call.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Longest silence of either side.
const SILENCE: Duration = Duration::from_mins(3);

/// Headers that are about a connection, and the length that is counted anew.
const OF_THE_CONNECTION: [&str; 4] = ["connection", "keep-alive", "content-length", "transfer-encoding"];

/// A request or an answer.
#[derive(Debug, Clone)]
pub(super) struct Message {
    /// The words of its first line.
    pub(super) first: [String; 3],
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Message {
    pub(super) fn answer(status: u16, reason: &str, body: &str) -> Self {
        Self {
            first: ["HTTP/1.1".to_owned(), status.to_string(), reason.to_owned()],
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: body.into(),
        }
    }

    /// Method and path of a request.
    pub(super) fn call(&self) -> String {
        format!("{} {}", self.first[0], self.first[1])
    }

    /// Whether it asks Keystone for a token.
    pub(super) fn is_login(&self) -> bool {
        self.first[0] == "POST" && self.first[1].ends_with("/auth/tokens")
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find_map(|(key, value)| key.eq_ignore_ascii_case(name).then_some(value.as_str()))
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.headers.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
    }

    /// Reads one; the body of an answer without a length goes to the end.
    pub(super) fn read(stream: &TcpStream, is_answer: bool) -> Result<Self> {
        stream.set_read_timeout(Some(SILENCE))?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut words = line.trim_end().splitn(3, ' ').map(str::to_owned);
        let first = [(); 3].map(|()| words.next().unwrap_or_default());
        ensure!(!first[1].is_empty(), "{line:?} begins nothing of HTTP");
        let mut message = Self {
            first,
            headers: Vec::new(),
            body: Vec::new(),
        };
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            message.headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let length = message.header("content-length").map(str::parse::<u64>).transpose()?;
        match length {
            Some(length) => reader.take(length).read_to_end(&mut message.body)?,
            None if is_answer => reader.read_to_end(&mut message.body)?,
            None => 0,
        };
        Ok(message)
    }

    pub(super) fn write(&self, mut stream: &TcpStream) -> Result<()> {
        let mut head = self.first.join(" ");
        for (name, value) in &self.headers {
            if !OF_THE_CONNECTION.iter().any(|one| name.eq_ignore_ascii_case(one)) {
                head = format!("{head}\r\n{name}: {value}");
            }
        }
        // An answer of 204 has no body, and no length either.
        if self.first[1] != "204" {
            head = format!("{head}\r\ncontent-length: {}", self.body.len());
        }
        let mut whole = format!("{head}\r\nconnection: close\r\n\r\n").into_bytes();
        whole.extend(&self.body);
        stream.write_all(&whole)?;
        Ok(())
    }
}

/// Makes a call; `sent` is called between request and answer.
pub(super) fn exchange(server: SocketAddr, request: &Message, sent: impl FnOnce()) -> Result<Message> {
    let stream = TcpStream::connect(server).with_context(|| format!("failed to reach {server}"))?;
    let mut request = request.clone();
    // Version 1.0 knows no chunks.
    "HTTP/1.0".clone_into(&mut request.first[2]);
    request.write(&stream)?;
    sent();
    Message::read(&stream, true).with_context(|| format!("failed to read the answer to {:?}", request.first))
}
