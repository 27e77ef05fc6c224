//! The shim as the kubelet runs it.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use mooring_shim::{SOCKET, request};
use tempfile::TempDir;

/// A plugin directory with the shim in it, its path too long for a socket's address.
struct Plugin {
    _root: TempDir,
    dir: PathBuf,
}

impl Plugin {
    fn new() -> Self {
        let root = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let dir = root.path().join("d".repeat(120)).join("mooring.dev~vcs");
        std::fs::create_dir_all(&dir).unwrap();
        // A link, since a copy being written can't be executed ("text file busy") while another test forks.
        std::fs::hard_link(env!("CARGO_BIN_EXE_vcs"), dir.join("vcs")).unwrap();
        Self { _root: root, dir }
    }

    fn listen(&self) -> UnixListener {
        // As the mounter does it: through a short path.
        let handle = std::fs::File::open(&self.dir).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&handle);
        UnixListener::bind(format!("/proc/self/fd/{fd}/{SOCKET}")).unwrap()
    }

    fn call(&self, args: &[&str]) -> Output {
        Command::new(self.dir.join("vcs"))
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Calls with a mounter that takes the whole request and answers `answer`.
    fn call_with(&self, args: &[&str], answer: &'static [u8]) -> (Vec<Vec<u8>>, Output) {
        let listener = self.listen();
        let mounter = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            let mut chunk = vec![0; 65536];
            while request::decode(&bytes).is_err() {
                let read = stream.read(&mut chunk).unwrap();
                bytes.extend_from_slice(&chunk[..read]);
            }
            // The shim hangs up on an answer that is too long, perhaps while it is still being written.
            match stream.write_all(answer) {
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                written => written.unwrap(),
            }
            request::decode(&bytes).unwrap().map(<[u8]>::to_vec).collect::<Vec<_>>()
        });
        let output = self.call(args);
        (mounter.join().unwrap(), output)
    }
}

/// The kubelet's reading: both outputs together are one JSON object. Gives its status and message.
fn read(output: &Output) -> (String, String) {
    assert!(output.stderr.is_empty());
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let status = value["status"].as_str().unwrap().to_owned();
    // Whatever the answer: at another exit code the kubelet writes the arguments, secrets and all, into its log.
    assert!(output.status.success(), "{status}");
    (status, value["message"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn an_answer_is_handed_on_with_the_arguments_as_they_were() {
    let plugin = Plugin::new();
    let long = "x".repeat(100_000);
    let (args, output) = plugin.call_with(&["mount", "/dir", "", &long], br#"{"status":"Success"}"#);
    assert_eq!(args, [b"mount".as_slice(), b"/dir", b"", long.as_bytes()]);
    assert_eq!(output.stdout, br#"{"status":"Success"}"#);
    assert_eq!(read(&output).0, "Success");
}

#[test]
fn a_failure_of_the_mounter_is_handed_on() {
    let (_, output) = Plugin::new().call_with(&["mount"], br#"{"status":"Failure","message":"server 10.0.0.4"}"#);
    assert_eq!(read(&output), ("Failure".into(), "server 10.0.0.4".into()));
}

#[test]
fn the_arguments_are_wiped_once_the_mounter_has_them() {
    let plugin = Plugin::new();
    let listener = plugin.listen();
    let mut shim = Command::new(plugin.dir.join("vcs"))
        .args(["mount", "/dir", "canary-5309"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    while request::decode(&bytes).is_err() {
        let read = stream.read(&mut chunk).unwrap();
        bytes.extend_from_slice(&chunk[..read]);
    }
    assert_eq!(request::decode(&bytes).unwrap().last(), Some(&b"canary-5309"[..]));
    let cmdline = format!("/proc/{}/cmdline", shim.id());
    let shown = || String::from_utf8_lossy(&std::fs::read(&cmdline).unwrap()).into_owned();
    // It is at it now; a moment is all that it takes.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while shown().contains("canary") && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(shown().contains("mount"), "{}", shown());
    assert!(!shown().contains("canary"), "{}", shown());
    stream.write_all(br#"{"status":"Success"}"#).unwrap();
    drop(stream);
    assert!(shim.wait().unwrap().success());
}

/// Proves: M1
#[test]
fn half_an_answer_none_and_too_much_of_it_are_failures_that_say_so() {
    static HUGE: [u8; 100_000] = [b'{'; 100_000];
    for answer in [&b""[..], br#"{"status":"Succ"#, b"ok", &HUGE] {
        let (_, output) = Plugin::new().call_with(&["mount"], answer);
        let (status, message) = read(&output);
        assert_eq!(status, "Failure");
        assert!(message.contains("before it had answered"), "{message}");
    }
}

/// Proves: M1
#[test]
fn without_a_mounter_init_still_succeeds_and_the_rest_says_what_is_missing() {
    let plugin = Plugin::new();
    assert_eq!(read(&plugin.call(&["init"])).0, "Success");
    let (status, message) = read(&plugin.call(&["mount", "/dir", "{}"]));
    assert_eq!(status, "Failure");
    assert!(message.contains("there is no socket .mounter.sock"), "{message}");

    drop(plugin.listen());
    let (_, message) = read(&plugin.call(&["unmount", "/dir"]));
    assert!(message.contains("nobody listens"), "{message}");
}

/// Proves: M1
#[test]
fn arguments_that_are_too_many_are_a_failure() {
    let plugin = Plugin::new();
    let _listener = plugin.listen();
    let (status, message) = read(&plugin.call(&["x"; 65]));
    assert_eq!(status, "Failure");
    assert!(message.contains("too many arguments"), "{message}");
}

#[test]
fn closed_descriptors_do_no_harm() {
    let plugin = Plugin::new();
    let output = Command::new("/bin/sh")
        .args(["-c", "exec \"$0\" init <&- 2>&-"])
        .arg(plugin.dir.join("vcs"))
        .output()
        .unwrap();
    assert_eq!(read(&output).0, "Success");
}
