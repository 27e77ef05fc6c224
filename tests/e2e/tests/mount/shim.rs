//! The installed shim and the socket behind it, called by hand in every way that the kubelet and others can.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mooring_contract::names::{FLEX_DRIVER_DIR, FLEX_SOCKET};
use mooring_harness::nodes::{POOL, driver_directory, driver_directory_outside, on_own_nodes, read_call_out};
use mooring_harness::{Scope, wait_until};
use serde_json::Value;

/// Longest wait for a call to be served.
const LIMIT: Duration = Duration::from_mins(1);

fn connect() -> Result<UnixStream> {
    let directory =
        std::fs::File::open(driver_directory_outside("node-1")?).context("failed to open the driver's directory")?;
    // A socket's address is limited to 107 bytes.
    let path = format!(
        "/proc/self/fd/{}/{FLEX_SOCKET}",
        std::os::fd::AsRawFd::as_raw_fd(&directory)
    );
    let stream = UnixStream::connect(path).context("failed to connect to the mounter")?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(stream)
}

/// Sends bytes, ends its side of the connection, and returns the answer.
fn send(bytes: &[u8]) -> Result<String> {
    let mut stream = connect()?;
    // The mounter may have refused it and closed the connection by then.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A directory like a volume's, for a Pod that does not exist.
fn target(scope: &Scope, name: &str) -> Result<String> {
    Ok(format!("{}/{name}", scope.pod_directory(1)?))
}

#[test]
fn the_shim_is_small_static_and_alone_with_the_socket() {
    on_own_nodes("shim-file", async |scope| {
        scope.own_cluster()?;
        let directory = driver_directory_outside("node-1")?;
        let mut names: Vec<_> = std::fs::read_dir(&directory)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        names.sort();
        assert_eq!(names, [FLEX_SOCKET, "vcs"]);
        let shim = std::fs::read(directory.join("vcs"))?;
        assert!(shim.len() <= 512 << 10, "{} bytes", shim.len());
        // In the ELF header: the offset of the program headers, their size and their number. A program header of type 3
        // names a loader.
        let number = |at: usize, length: usize| {
            shim[at..at + length]
                .iter()
                .rev()
                .fold(0, |all, byte| all << 8 | usize::from(*byte))
        };
        let (start, length, count) = (number(32, 8), number(54, 2), number(56, 2));
        assert!(
            (0..count).all(|index| number(start + index * length, 4) != 3),
            "it needs a loader"
        );
        Ok(())
    });
}

/// Proves: M1
#[test]
fn every_call_out_gets_one_json_object() {
    on_own_nodes("shim-calls", async |scope| {
        let init = scope.call_out(1, &["init"])?;
        assert_eq!(init.answer["capabilities"]["attach"], false);
        assert_eq!(init.answer["capabilities"]["fsGroup"], false);
        let name = scope.call_out(1, &["getvolumename", r#"{"kubernetes.io/pvOrVolumeName":"pvc-1"}"#])?;
        assert_eq!(name.answer["volumeName"], "pvc-1");
        let here = target(&scope, "v")?;
        let long = "x".repeat(100_000);
        let many = vec!["x"; 65];
        let huge = vec![long.as_str(); 11];
        let cases: &[(&[&str], &str, &str)] = &[
            (&[], "Failure", "without a call-out"),
            (&[""], "Not supported", ""),
            (&["attach", "{}", "node-1"], "Not supported", ""),
            (&["something-new", "\u{1}\"\\}{"], "Not supported", ""),
            (&["mount", &here], "Failure", "1 arguments instead of 2"),
            (&["mount", &here, "{"], "Failure", "not a JSON object"),
            (&["mount", &here, "{}"], "Failure", "\"client\" is missing"),
            (
                &["mount", &here, r#"{"client":"../x"}"#],
                "Failure",
                "not a client's name",
            ),
            (
                &["mount", &here, "{\"client\":\"local\",\"source\":\"a\\nb\"}"],
                "Failure",
                "control character",
            ),
            (&["mount", &here, &long], "Failure", "not a JSON object"),
            (
                &["expandfs", "{}", "", &here, "1"],
                "Failure",
                "4 arguments instead of 5",
            ),
            (&["unmount"], "Failure", "0 arguments instead of 1"),
            (&["unmount", &here], "Success", ""),
            (&many, "Failure", "too many arguments"),
            (&huge, "Failure", "too long"),
        ];
        for (args, status, words) in cases {
            let shown: Vec<_> = args
                .iter()
                .take(4)
                .map(|arg| arg.chars().take(80).collect::<String>())
                .collect();
            let call_out = scope.call_out(1, args).with_context(|| format!("{shown:?}"))?;
            ensure!(
                call_out.status() == *status && call_out.message().contains(words),
                "{shown:?} was answered: {call_out:?}"
            );
        }
        Ok(())
    });
}

/// Proves: M1
#[test]
fn a_message_that_is_not_a_request_gets_an_answer_and_delays_nobody() {
    on_own_nodes("shim-socket", async |scope| {
        scope.own_cluster()?;
        let _silent = connect()?;
        let cases: &[(&[u8], &str)] = &[
            (b"\x01\0\0\0\x10\0\0\0ini", "half-way"),
            (b"\x01\0\0", "half-way"),
            (b"GET / HTTP/1.1\r\n\r\n", "more than 64 arguments"),
            (b"\x01\0\0\0\xff\xff\xff\xff", "bytes of arguments"),
            (b"\x01\0\0\0\x04\0\0\0init{}", "after the request"),
            (b"\x01\0\0\0\x02\0\0\0\xff\xfe", "not text"),
        ];
        for (bytes, words) in cases {
            let answer = send(bytes)?;
            let value: Value = serde_json::from_str(&answer).with_context(|| format!("{bytes:?}: {answer:?}"))?;
            assert_eq!(value["status"], "Failure", "{bytes:?}");
            assert!(
                value["message"].as_str().unwrap_or_default().contains(words),
                "{bytes:?}: {answer}"
            );
        }
        assert_eq!(send(b"")?, "");
        // While one connection is silent, others are served. On a busy machine, the mounter may have given the silent one
        // up before.
        wait_until("a call to be served beside a silent connection", LIMIT, async || {
            let mut silent = connect()?;
            assert_eq!(scope.call_out(1, &["init"])?.status(), "Success");
            silent.set_nonblocking(true)?;
            let answer = silent.read(&mut [0]).map_err(|error| error.kind());
            Ok((answer == Err(ErrorKind::WouldBlock)).then_some(()))
        })
        .await
    });
}

#[test]
fn only_root_gets_an_answer() {
    on_own_nodes("shim-nobody", async |scope| {
        let directory = driver_directory(scope.own_cluster()?).display().to_string();
        let shim = format!("{directory}/vcs");
        let here = target(&scope, "v")?;
        let as_nobody = || -> Result<String> {
            let args = [
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                &shim,
                "unmount",
                &here,
            ];
            let run = scope.own_cluster()?.in_node(1, "setpriv", args)?.output()?;
            Ok(read_call_out(&run)?.message().to_owned())
        };
        let closed = as_nobody()?;
        assert!(closed.contains("failed to connect"), "{closed}");
        // The mounter itself refuses as well, even if the file's mode would allow it.
        let mode = |mode: &str| scope.on_node(1, &format!("chmod {mode} {directory}/{FLEX_SOCKET}"));
        mode("666")?;
        let opened = as_nobody();
        mode("600")?;
        let opened = opened?;
        assert!(opened.contains("ended before it had answered"), "{opened}");
        Ok(())
    });
}

/// Proves: M3
#[test]
fn nothing_outside_the_kubelet_s_volume_directories_is_mounted_on_or_removed() {
    on_own_nodes("shim-outside", async |scope| {
        let ns = scope.namespace.clone();
        let outside = format!("/var/lib/mooring/{ns}");
        let pods = format!("/var/lib/kubelet/pods/{ns}");
        let volumes = scope.pod_directory(1)?;
        scope.on_node(
            1,
            &format!(
                "touch {volumes}/file
                 mkdir -p {POOL} {outside} {pods}/volumes/other~driver/v
                 truncate -s 64M {POOL}/{ns}-blank
                 mount -t tmpfs kept {outside} && mkdir -p {outside}/volumes/{FLEX_DRIVER_DIR}/v && touch {outside}/kept
                 mount -t tmpfs deep {outside}/volumes/{FLEX_DRIVER_DIR}/v
                 ln -s {outside} {volumes}/link
                 ln -s {outside} {pods}-link"
            ),
        )?;
        let options = format!(r#"{{"client":"local","source":"{ns}-blank"}}"#);
        let table = "grep -v overlay /proc/self/mountinfo | grep -e mooring -e /etc | sort";
        let ours = |text: &str| {
            text.lines()
                .filter(|line| line.contains(&ns))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let before = ours(&scope.on_node(1, table)?);
        let nothing = [
            format!("{volumes}/link"),
            format!("{volumes}/file"),
            format!("{volumes}/missing"),
            format!("{pods}-link/volumes/{FLEX_DRIVER_DIR}/v"),
        ];
        for directory in [
            outside.clone(),
            "/etc".to_owned(),
            "relative".to_owned(),
            String::new(),
            "/var/lib/kubelet".to_owned(),
            pods.clone(),
            volumes.clone(),
            format!("{pods}/volumes/other~driver/v"),
            format!("{volumes}/../../../../../../{outside}"),
            format!("{volumes}/v/../../{FLEX_DRIVER_DIR}/link"),
            format!("{volumes}/link"),
            format!("{volumes}/link/"),
            format!("{volumes}/file"),
            format!("{volumes}/.."),
            format!("{pods}-link/volumes/{FLEX_DRIVER_DIR}/v"),
            format!("{volumes}/missing"),
        ] {
            let mount = scope.call_out(1, &["mount", &directory, &options])?;
            ensure!(mount.status() == "Failure", "mount on {directory:?}: {mount:?}");
            // Nothing is mounted under such a name, so the kubelet may continue to clean it up.
            let unmount = scope.call_out(1, &["unmount", &directory])?;
            ensure!(
                unmount.status() == "Failure" || nothing.iter().any(|name| directory.trim_end_matches('/') == *name),
                "unmount of {directory:?}: {unmount:?}"
            );
        }
        scope.on_node(
            1,
            &format!(
                "test -f {outside}/kept && test -d {outside}/volumes/{FLEX_DRIVER_DIR}/v && test -f \
                                   {volumes}/file && test -L {volumes}/link"
            ),
        )?;
        assert_eq!(ours(&scope.on_node(1, table)?), before);
        Ok(())
    });
}
