//! `vcs`, the FlexVolume executable: hands what the kubelet says to the mounter, and its answer back.
//!
//! Prints exactly one JSON object on standard output and nothing on standard error (the kubelet joins both and reads
//! the whole as JSON), in every case and within [`mooring_shim::DEADLINE_SECONDS`].
//!
//! It exits with 0 after every answer, even a failure: after any other exit code, the kubelet writes all arguments into
//! its log, and the values of the volume's Secret are among them. The kubelet reads the answer's status. For the same
//! reason the shim wipes the arguments from its own memory as soon as the mounter has them: anyone who may list the
//! node's processes could see them while the mount runs.
#![cfg_attr(panic = "abort", no_std)]
#![no_main]

mod sys;

use mooring_shim::answer::{self, AnswerStatus};
use mooring_shim::failure::Failure;
use mooring_shim::{DEADLINE_SECONDS, INIT_ANSWER, MAX_ANSWER, SOCKET, request};
use sys::{Errno, Interest};

const STDOUT: usize = 1;

/// What goes wrong between the kubelet and the mounter.
enum Trouble {
    NoMounter(Errno),
    System(&'static str, Errno),
    Request(request::MalformedRequest),
    TooLate,
    /// The mounter closed without a whole answer.
    Broken,
}

fn run(mut args: sys::Arguments) -> usize {
    // The executable's own name.
    let _ = args.next();
    let init = args.clone().next() == Some(b"init");
    let mut buffer = [0; MAX_ANSWER];
    let trouble = match ask(args, &mut buffer) {
        Ok(length) => match answer::read(&buffer[..length]) {
            AnswerStatus::Success | AnswerStatus::Other => return print(&buffer[..length]),
            AnswerStatus::Broken => Trouble::Broken,
        },
        Err(trouble) => trouble,
    };
    // The shim knows this answer itself; see INIT_ANSWER.
    if init && !matches!(trouble, Trouble::Request(_)) {
        return print(INIT_ANSWER.as_bytes());
    }
    print(say(&trouble).finish())
}

fn ask(args: sys::Arguments, answer: &mut [u8]) -> Result<usize, Trouble> {
    let end = sys::monotonic() + DEADLINE_SECONDS * 1_000_000_000;
    request::check(args.clone()).map_err(Trouble::Request)?;
    let socket = connect(end)?;
    request::write(args.clone(), |piece| send(socket, piece, end))?;
    args.wipe();
    let mut length = 0;
    loop {
        match sys::read(socket, &mut answer[length..]) {
            Ok(0) => return Ok(length),
            Ok(read) => length += read,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(socket, Interest::Read, end)?,
            // Reset by a mounter that ended: what came is all.
            Err(_) => return Ok(length),
        }
        if length == answer.len() {
            return Err(Trouble::Broken);
        }
    }
}

/// Connects to the socket that lies beside this executable, by way of a handle of its directory: an address holds 107
/// bytes only.
fn connect(end: u64) -> Result<usize, Trouble> {
    let mut path = [0; 4097];
    let link = sys::read_link(c"/proc/self/exe", &mut path).map_err(|e| Trouble::System("find itself", e))?;
    let slash = link.iter().rposition(|byte| *byte == b'/').unwrap_or_default();
    link[slash] = 0;
    let directory = core::ffi::CStr::from_bytes_until_nul(link).unwrap_or(c"/");
    let directory = sys::open_directory(directory).map_err(|e| Trouble::System("open its own directory", e))?;
    // A descriptor this early is a small number.
    let tens = b'0' + u8::try_from(directory / 10 % 10).unwrap_or_default();
    let ones = b'0' + u8::try_from(directory % 10).unwrap_or_default();
    let digits = [tens, ones];
    let digits = if tens == b'0' { &digits[1..] } else { &digits };
    let address =
        sys::SocketAddress::new(&[b"/proc/self/fd/", digits, b"/", SOCKET.as_bytes()]).ok_or(Trouble::Broken)?;
    let socket = sys::socket().map_err(|e| Trouble::System("make a socket", e))?;
    loop {
        match sys::connect(socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            // A Unix socket says so when the mounter's queue is full, and can't be waited for: ask again soon.
            Err(Errno::AGAIN) => {
                if sys::monotonic() >= end {
                    return Err(Trouble::TooLate);
                }
                // Nothing is ever ready to be read on a socket that is not connected, but for an error.
                let _ = sys::wait(usize::MAX, Interest::Read, 20_000_000);
            }
            Err(e @ (Errno::NOENT | Errno::CONNREFUSED)) => return Err(Trouble::NoMounter(e)),
            Err(e) => return Err(Trouble::System("connect to the mounter", e)),
        }
    }
}

/// Sends a piece of the request. A mounter that has closed may have refused and answered already, so that is seen when
/// its answer is read.
fn send(socket: usize, mut piece: &[u8], end: u64) -> Result<(), Trouble> {
    while !piece.is_empty() {
        match sys::send(socket, piece) {
            Ok(sent) => piece = piece.get(sent..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(socket, Interest::Write, end)?,
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

fn wait(socket: usize, interest: Interest, end: u64) -> Result<(), Trouble> {
    loop {
        let left = end.saturating_sub(sys::monotonic());
        if left == 0 {
            return Err(Trouble::TooLate);
        }
        match sys::wait(socket, interest, left) {
            Ok(true) => return Ok(()),
            Ok(false) | Err(Errno::INTR) => {}
            Err(e) => return Err(Trouble::System("wait for the mounter", e)),
        }
    }
}

fn say(trouble: &Trouble) -> Failure {
    match trouble {
        Trouble::NoMounter(errno) => {
            let why = if *errno == Errno::NOENT {
                "there is no socket "
            } else {
                "nobody listens on the socket "
            };
            Failure::new("mooring's mounter is not running on this node (")
                .text(why.as_bytes())
                .text(SOCKET.as_bytes())
                .text(
                    b" beside the driver): check that the DaemonSet mounter has a ready Pod here; the kubelet tries \
                        again",
                )
        }
        Trouble::System(attempted, errno) => Failure::new("mooring's shim failed to ")
            .text(attempted.as_bytes())
            .text(b": system error ")
            .number(u64::try_from(errno.0).unwrap_or_default()),
        Trouble::Request(error) => Failure::new("mooring's shim can't pass this call on: ").text(match error {
            request::MalformedRequest::TooMany => b"it has too many arguments",
            _ => b"its arguments are too long; make the volume's options and its Secret smaller",
        }),
        Trouble::TooLate => Failure::new("mooring's mounter did not answer within ")
            .number(DEADLINE_SECONDS)
            .text(b" s: see the log of its Pod on this node; it is tried again"),
        Trouble::Broken => Failure::new(
            "mooring's mounter ended before it had answered: see the log of its Pod on this node; the kubelet tries \
             again",
        ),
    }
}

/// Prints the answer and gives the exit code, which is bad only if the answer could not be printed.
fn print(mut bytes: &[u8]) -> usize {
    while !bytes.is_empty() {
        match sys::write(STDOUT, bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return 1,
        }
    }
    0
}

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(print(
        Failure::new("mooring's shim has a bug: please report it with the kubelet's log").finish(),
    ))
}
