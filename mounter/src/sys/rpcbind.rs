//! Asks `rpcbind` for a program, by its oldest procedure, which every version answers (RFC 1833, section 3.2).

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use super::{Result, SysError};

/// Where `rpcbind` is.
const ADDRESS: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 111);

/// Longest for each step of an answer, which comes from this machine.
const LIMIT: Duration = Duration::from_secs(2);

/// The program number of `rpcbind`, the version of it, and the procedure that gives a program's port.
const GET_PORT: [u32; 3] = [100_000, 2, 3];

/// UDP: by it the kernel's lock manager speaks with `rpc.statd`.
const UDP: u32 = 17;

/// Words of an answer before the port: transaction, reply, accepted, verifier (two), success.
const BEFORE: [u32; 6] = [TRANSACTION, 1, 0, 0, 0, 0];

/// Any number would do: there is one question.
const TRANSACTION: u32 = 1;

/// The bit by which a record's length says that it is the last part.
const LAST: u32 = 1 << 31;

pub(super) fn has(program: u32, version: u32) -> Result<bool> {
    ask(SocketAddr::from(ADDRESS), program, version).or_else(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => Ok(false),
        _ => Err(SysError::io(
            format!("ask the node's rpcbind for program {program}"),
            error,
        )),
    })
}

fn ask(address: SocketAddr, program: u32, version: u32) -> io::Result<bool> {
    let mut link = TcpStream::connect_timeout(&address, LIMIT)?;
    link.set_read_timeout(Some(LIMIT))?;
    link.set_write_timeout(Some(LIMIT))?;
    link.write_all(&question(program, version))?;
    let mut answer = [0; 4 * (1 + BEFORE.len() + 1)];
    link.read_exact(&mut answer)?;
    port(&answer)
        .map(|port| port != 0)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "its answer can't be read"))
}

fn question(program: u32, version: u32) -> Vec<u8> {
    let [rpcbind, rpcbind_version, procedure] = GET_PORT;
    let call = [
        TRANSACTION,
        0, // a call
        2, // of RPC version 2
        rpcbind,
        rpcbind_version,
        procedure,
        0, // by nobody in particular
        0,
        0, // who proves nothing
        0,
        program,
        version,
        UDP,
        0,
    ];
    let length = u32::try_from(4 * call.len()).unwrap_or_default();
    std::iter::once(LAST | length)
        .chain(call)
        .flat_map(u32::to_be_bytes)
        .collect()
}

/// The port in an answer, 0 for none.
fn port(answer: &[u8]) -> Option<u32> {
    let words: Vec<u32> = answer
        .chunks_exact(4)
        .filter_map(|word| word.try_into().ok())
        .map(u32::from_be_bytes)
        .collect();
    let (_length, words) = words.split_first()?;
    match words.split_at_checked(BEFORE.len())? {
        (before, [port]) if before == BEFORE => Some(*port),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{BEFORE, LAST, ask, port, question};
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    fn answer(port: u32) -> Vec<u8> {
        let words = std::iter::once(LAST | 0x1c).chain(BEFORE).chain([port]);
        words.flat_map(u32::to_be_bytes).collect()
    }

    #[test]
    fn an_answer_is_parsed_and_junk_is_rejected() {
        assert_eq!(port(&answer(0)), Some(0));
        assert_eq!(port(&answer(40_000)), Some(40_000));
        assert_eq!(port(&[0; 32]), None);
        assert_eq!(port(b"HTTP"), None);
        let mut refused = answer(40_000);
        refused[27] = 1;
        assert_eq!(port(&refused), None);
    }

    #[test]
    fn one_question_is_asked_and_silence_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for port in [Some(0), Some(7), None] {
                let (mut link, _) = listener.accept().unwrap();
                let mut asked = vec![0; question(100_024, 1).len()];
                link.read_exact(&mut asked).unwrap();
                assert_eq!(asked, question(100_024, 1));
                if let Some(port) = port {
                    link.write_all(&answer(port)).unwrap();
                }
            }
        });
        assert!(!ask(address, 100_024, 1).unwrap());
        assert!(ask(address, 100_024, 1).unwrap());
        assert!(ask(address, 100_024, 1).is_err());
        server.join().unwrap();
    }
}
