//! A small server for tests, which answers from a list: for what real services do only now and then.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::clouds::Cloud;
use crate::http::{Http, HttpCall, Method};
use crate::keystone::Session;
use crate::wait::Pace;

/// Without pauses between looks.
pub(crate) const PACE: Pace = Pace {
    period: Duration::ZERO,
    limit: Duration::from_secs(5),
    pauses: Duration::from_secs(1),
};

/// One answer. `URL` in it becomes the server's address.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Reply {
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

pub(crate) fn reply(status: u16, body: &str) -> Reply {
    Reply {
        status,
        headers: Vec::new(),
        body: body.to_owned(),
    }
}

/// Keystone's answer to a login, with one service in its catalogue.
pub(crate) fn login(token: &str, address: &str) -> Reply {
    let endpoint = |interface: &str, url: &str| json!({"interface": interface, "region_id": "one", "url": url});
    let body = json!({"token": {
        "project": {"id": "p"},
        "issued_at": "2026-11-27T12:00:00.000000Z",
        "expires_at": "2026-11-27T13:00:00.000000Z",
        "catalog": [
            {"type": "identity", "endpoints": []},
            {"type": "volumev3", "endpoints": [endpoint("internal", "http://other"), endpoint("public", address)]},
            {"type": "compute", "endpoints": [endpoint("public", &address.replace("/v3", "/v2.1"))]},
            {"type": "shared-file-system", "endpoints": [endpoint("public", &address.replace("/v3", "/v2"))]},
        ],
    }});
    reply(201, &body.to_string()).with("x-subject-token", token)
}

/// Answers one call after the other; returns the requests: a line, headers, an empty line, the body.
pub(crate) fn serve(replies: Vec<Reply>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let address = url.clone();
    let seen = thread::spawn(move || {
        let mut seen = Vec::new();
        for reply in replies {
            let mut stream = accept(&listener);
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut request = String::new();
            reader.read_line(&mut request).unwrap();
            let mut length = 0;
            loop {
                let mut header = String::new();
                reader.read_line(&mut header).unwrap();
                let header = header.trim();
                request.push_str(header);
                request.push('\n');
                if header.is_empty() {
                    break;
                }
                if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            seen.push(request + &String::from_utf8(body).unwrap());
            let text = reply.body.replace("URL", &address);
            write!(stream, "HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status).unwrap();
            for (name, value) in &reply.headers {
                write!(stream, "{name}: {value}\r\n").unwrap();
            }
            write!(stream, "content-length: {}\r\n\r\n{text}", text.len()).unwrap();
        }
        seen
    });
    (url, seen)
}

/// The next connection; panics if there is none, since an answer was to be asked for.
fn accept(listener: &TcpListener) -> TcpStream {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return stream;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("an answer was not asked for: {error}"),
        }
    }
}

pub(crate) fn session(url: &str) -> Session {
    let cloud = Cloud {
        auth_url: format!("{url}/v3"),
        login: json!({}),
        region: None,
        interface: "public".into(),
        cacert: None,
    };
    Session::new(Http::new(None, PACE).unwrap(), cloud, None)
}

pub(crate) fn call(url: &str) -> HttpCall<'_> {
    HttpCall {
        what: "look",
        server: "Keystone",
        method: Method::GET,
        url,
        headers: Vec::new(),
        body: None,
    }
}
