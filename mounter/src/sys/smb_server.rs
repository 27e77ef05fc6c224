//! Asks an SMB server for a sign of life: a NEGOTIATE request, which comes before any login ([MS-SMB2], 2.2.3).

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::{Result, SysError};

/// Longest for a connection, as the kernel's client waits, and longest for the answer, with a server that wakes up.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Every version but the newest, whose request is longer. A server that has none of these says so, which will do.
const DIALECTS: [u16; 4] = [0x0202, 0x0210, 0x0300, 0x0302];

/// Waits until the server answers anything, also that it wants no such question: the kernel says more about that.
pub(super) fn wait_for_answer(address: SocketAddr) -> Result<()> {
    ask(address, CONNECT_LIMIT, ANSWER_LIMIT).or_else(|error| match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(()),
        kind => Err(SysError::io(
            format!("ask SMB server {address} for an answer"),
            // A socket that has waited for long enough gives the same error as one that doesn't wait.
            if kind == io::ErrorKind::WouldBlock || kind == io::ErrorKind::TimedOut {
                nix::errno::Errno::ETIMEDOUT.into()
            } else {
                error
            },
        )),
    })
}

fn ask(address: SocketAddr, connect_limit: Duration, answer_limit: Duration) -> io::Result<()> {
    let mut link = TcpStream::connect_timeout(&address, connect_limit)?;
    link.set_write_timeout(Some(answer_limit))?;
    link.set_read_timeout(Some(answer_limit))?;
    link.write_all(&negotiate())?;
    link.peek(&mut [0]).map(drop)
}

fn negotiate() -> Vec<u8> {
    let mut header = [0; 64];
    header[..4].copy_from_slice(b"\xfeSMB");
    header[4] = 64; // its own size
    header[14] = 1; // credits asked for
    let mut body = [0; 36];
    body[0] = 36; // its own size
    body[2] = DIALECTS.len().to_le_bytes()[0];
    body[4] = 1; // can sign
    let request = [header.as_slice(), &body, DIALECTS.map(u16::to_le_bytes).as_flattened()].concat();
    // Before it, how long it is: in three bytes, and zero for "a message".
    let length = u32::try_from(request.len()).unwrap_or_default().to_be_bytes();
    [length.as_slice(), &request].concat()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::{ask, negotiate, wait_for_answer};

    #[test]
    fn an_answer_or_a_refusal_is_a_sign_of_life_and_silence_is_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let mut asked = vec![0; negotiate().len()];
            let (mut link, _) = listener.accept().unwrap();
            link.read_exact(&mut asked).unwrap();
            link.write_all(b"\0\0\0\x49\xfeSMB").unwrap();
            // One that closes the connection at once, and one that says nothing.
            drop(listener.accept().unwrap());
            let silent = listener.accept().unwrap();
            (asked, silent, listener)
        });
        wait_for_answer(address).unwrap();
        wait_for_answer(address).unwrap();
        let error = ask(address, Duration::from_secs(5), Duration::from_millis(1)).unwrap_err();
        assert!(
            [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut].contains(&error.kind()),
            "{error}"
        );
        let (asked, ..) = server.join().unwrap();
        assert_eq!((asked.len(), &asked[..8]), (4 + 64 + 36 + 8, &b"\0\0\0\x6c\xfeSMB"[..]));
    }
}
