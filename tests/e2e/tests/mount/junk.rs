//! Ten thousand calls and messages that no kubelet would send, to the installed shim and mounter; and links that are
//! swapped while the mounter works. Each call gets its answer, nothing breaks, and nothing outside a volume's directory
//! is touched.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mooring_contract::names::{FLEX_DRIVER_DIR, FLEX_EXECUTABLE, FLEX_SOCKET, NAMESPACE};
use mooring_harness::Scope;
use mooring_harness::clients::{MAX_MESSAGE, client_pods_of, image_of_its_own, remove_image};
use mooring_harness::nodes::{driver_directory_outside, on_own_nodes_within, read_call_out};
use mooring_harness::own_mounter::OwnMounter;
use mooring_harness::random::Random;
use mooring_testbed::layout::Layout;
use mooring_testbed::progress::note;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

/// Number of calls of the shim, and of messages to the socket.
const CALLS: u32 = 3000;
const MESSAGES: u32 = 7000;
const AGENT_MESSAGES: u32 = 1000;

/// Time limit of a test here, for thousands of processes on a busy machine.
const LIMIT: Duration = Duration::from_mins(20);

/// Number of connections that stay open and silent meanwhile.
const SILENT: usize = 32;

/// The same cases for the same seed.
fn runner(cases: u32) -> TestRunner {
    let seed = Random::seed();
    note(format!("seed {seed}"));
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        // Each try costs a process or a connection, so a failed case is not reduced for long.
        max_shrink_iters: 64,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Words that a call may consist of, valid and invalid ones; `ours` is a Pod's directory of this test.
fn word(ours: &str, outside: &str) -> BoxedStrategy<String> {
    let volumes = format!("{ours}/volumes/{FLEX_DRIVER_DIR}");
    let directories = vec![
        format!("{volumes}/v"),
        format!("{volumes}/v/"),
        format!("{volumes}//v"),
        format!("{volumes}/./v"),
        format!("{volumes}/.."),
        format!("{volumes}/v/../../../../../../../..{outside}"),
        format!("{volumes}/link"),
        format!("{volumes}/link/v"),
        format!("{ours}-link/volumes/{FLEX_DRIVER_DIR}/v"),
        format!("{ours}/volumes/kubernetes.io~secret/v"),
        ours.to_owned(),
        outside.to_owned(),
        "/".to_owned(),
        "/etc".to_owned(),
        "/var/lib/kubelet".to_owned(),
        "/proc/self/root".to_owned(),
        "v".to_owned(),
    ];
    let clients = select(vec![
        "local", "pool", "self", "host", "nope", "../x", "", "local\n", "LOCAL", "tmpfs",
    ]);
    let sources = prop_oneof![
        select(vec![
            "",
            "a",
            "../a",
            "/etc/passwd",
            ".x",
            "-o",
            "a\u{0}b",
            "h:/x",
            "tom@h:/x"
        ])
        .prop_map(str::to_owned),
        ".{0,40}",
    ];
    let options = (clients, sources, "[a-z.-]{0,12}", ".{0,20}").prop_map(|(client, source, key, value)| {
        let mut options = json!({"client": client, "source": source, "kubernetes.io/pvOrVolumeName": "v"});
        options[key] = value.into();
        options.to_string()
    });
    prop_oneof![
        6 => select(directories),
        6 => options,
        2 => select(vec!["init", "mount", "unmount", "expandfs", "getvolumename", "attach", "mountdevice"]).prop_map(str::to_owned),
        1 => select(vec!["{}", "[]", "null", "{\"client\":{}}", "{\"client\":\"local\"", "[[[[[[[[", "\"\"", "0"]).prop_map(str::to_owned),
        1 => (1_usize..40).prop_map(|size| "[".repeat(size * 256)),
        2 => ".{0,60}",
        1 => any::<u64>().prop_map(|number| number.to_string()),
    ]
    // A process's arguments can't contain it.
    .prop_map(|word| word.replace('\0', ""))
    .boxed()
}

fn call(ours: &str, outside: &str) -> impl Strategy<Value = Vec<String>> + use<> {
    let names = select(vec![
        "mount",
        "unmount",
        "expandfs",
        "init",
        "getvolumename",
        "other",
        "",
    ])
    .prop_map(str::to_owned);
    let word = word(ours, outside);
    prop_oneof![
        8 => (names, vec(word.clone(), 0..4)).prop_map(|(name, rest)| [vec![name], rest].concat()),
        2 => vec(word.clone(), 0..7),
        1 => vec(word, 60..70),
    ]
}

/// A request as the shim writes it.
fn encoded(args: &[String]) -> Vec<u8> {
    let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = number(args.len()).to_vec();
    for arg in args {
        bytes.extend(number(arg.len()));
        bytes.extend(arg.as_bytes());
    }
    bytes
}

/// Requests that are complete, cut off, followed by more, changed in some places, or not requests at all.
fn message(ours: &str, outside: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let whole = call(ours, outside).prop_map(|args| encoded(&args)).boxed();
    let changed = (whole.clone(), vec((any::<usize>(), any::<u8>()), 1..6)).prop_map(|(mut bytes, changes)| {
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes
    });
    prop_oneof![
        4 => whole.clone(),
        3 => changed,
        2 => (whole.clone(), any::<usize>()).prop_map(|(mut bytes, at)| {
            bytes.truncate(at % bytes.len());
            bytes
        }),
        2 => (whole, vec(any::<u8>(), 1..20)).prop_map(|(bytes, more)| [bytes, more].concat()),
        3 => vec(any::<u8>(), 0..200),
        1 => (any::<u32>(), any::<u32>()).prop_map(|(count, length)| [count.to_le_bytes(), length.to_le_bytes()].concat()),
    ]
}

fn connect(directory: &Path, socket: &str) -> Result<UnixStream> {
    // A socket's address is limited to 107 bytes.
    let handle = std::fs::File::open(directory).with_context(|| format!("failed to open {}", directory.display()))?;
    let path = format!("/proc/self/fd/{}/{socket}", std::os::fd::AsRawFd::as_raw_fd(&handle));
    let stream = UnixStream::connect(path).context("failed to connect")?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

/// Sends bytes, ends its side of the connection, and returns the answer.
fn send(directory: &Path, socket: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut stream = connect(directory, socket)?;
    // The mounter may have refused it and closed the connection by then.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        // The mounter closed it without reading everything: the answer is complete.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => drop(other?),
    }
    Ok(answer)
}

/// What must be unchanged, whatever was sent.
struct Surroundings {
    script: String,
    before: String,
}

impl Surroundings {
    /// Creates directories that the generated calls name, and something outside that they must not touch.
    fn make(scope: &Scope, ours: &str, outside: &str) -> Result<Self> {
        let volumes = scope.pod_directory(1)?;
        scope.on_node(
            1,
            &format!(
                "mkdir -p {outside} && mount -t tmpfs kept {outside}
                 mkdir -p {outside}/v {outside}/volumes/{FLEX_DRIVER_DIR}/v && touch {outside}/kept
                 mount -t tmpfs deep {outside}/v
                 mkdir -p {volumes}/v {ours}/volumes/kubernetes.io~secret/v
                 ln -s {outside} {volumes}/link
                 ln -s {outside} {ours}-link"
            ),
        )?;
        // Other tests run at the same time: only what has this test's name, and the places where nothing may be
        // mounted.
        let script = format!(
            "find {outside} {ours} | sort; awk '$5 ~ \"{}\" || $5 == \"/etc\" || $5 == \"/var/lib/kubelet\" {{print \
             $5, $(NF-1)}}' /proc/self/mountinfo | sort; ls -d /etc/passwd /var/lib/kubelet/pods; cat \
             /sys/block/loop*/loop/backing_file | grep {0} || true",
            scope.namespace
        );
        let before = scope.on_node(1, &script)?;
        Ok(Self { script, before })
    }

    fn check(&self, scope: &Scope, ours: &str) -> Result<()> {
        // The one volume that may have been mounted.
        let target = format!("{ours}/volumes/{FLEX_DRIVER_DIR}/v");
        let unmounted = scope.call_out(1, &["unmount", &target])?;
        ensure!(unmounted.status() == "Success", "{unmounted:?}");
        let now = scope.on_node(1, &self.script)?;
        ensure!(now == self.before, "before:\n{}\nnow:\n{now}", self.before);
        Ok(())
    }
}

/// The mounter of node-1 and its process, which is another one after a crash.
async fn identity(scope: &Scope) -> Result<(String, Vec<i32>)> {
    let pod = scope.mounter("node-1").await?;
    let mut pids = Vec::new();
    for pid in scope.processes_of(NAMESPACE, &pod).await? {
        let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if arguments.contains("serve") {
            pids.push(pid);
        }
    }
    ensure!(pids.len() == 1, "{pids:?} are the mounter");
    Ok((pod, pids))
}

fn fails(error: &anyhow::Error) -> TestCaseError {
    TestCaseError::fail(format!("{error:#}"))
}

/// Proves: M1, M3
#[test]
fn ten_thousand_calls_and_messages_of_junk_are_answered_and_change_nothing() {
    on_own_nodes_within(LIMIT, "mount-junk", async |scope| {
        let ours = format!("/var/lib/kubelet/pods/{}", scope.namespace);
        let outside = format!("/var/lib/mooring/{}", scope.namespace);
        let surroundings = Surroundings::make(&scope, &ours, &outside)?;
        let mounter = identity(&scope).await?;
        let directory = driver_directory_outside("node-1")?;
        let silent: Vec<_> = (0..SILENT)
            .map(|_| {
                let mut stream = connect(&directory, FLEX_SOCKET)?;
                stream.write_all(b"\x02\0\0\0")?;
                Ok(stream)
            })
            .collect::<Result<_>>()?;

        let shim = directory.join(FLEX_EXECUTABLE);
        runner(CALLS)
            .run(&call(&ours, &outside), |args| {
                let run = Command::new(&shim).args(&args).stdin(Stdio::null()).output();
                let run = run.context("failed to run the shim").map_err(|error| fails(&error))?;
                read_call_out(&run).map_err(|error| fails(&error))?;
                Ok(())
            })
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        drop(silent);
        runner(MESSAGES)
            .run(&message(&ours, &outside), |bytes| {
                let answer = send(&directory, FLEX_SOCKET, &bytes).map_err(|error| fails(&error))?;
                if bytes.is_empty() && answer.is_empty() {
                    return Ok(());
                }
                let value: Value = serde_json::from_slice(&answer)
                    .map_err(|error| TestCaseError::fail(format!("{error}: {:?}", String::from_utf8_lossy(&answer))))?;
                let status = value["status"].as_str().unwrap_or_default();
                prop_assert!(["Success", "Failure", "Not supported"].contains(&status), "{value}");
                prop_assert!(
                    status != "Failure" || !value["message"].as_str().unwrap_or_default().is_empty(),
                    "{value}"
                );
                Ok(())
            })
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        // One message above the size limit.
        let huge = encoded(&["mount".to_owned(), "x".repeat(3 << 20)]);
        let answer = String::from_utf8(send(&directory, FLEX_SOCKET, &huge)?)?;
        ensure!(answer.contains("bytes of arguments"), "{answer:?}");

        ensure!(identity(&scope).await? == mounter, "the mounter has ended in between");
        surroundings.check(&scope, &ours)
    });
}

/// Whether a message to an agent has all the bytes that its length says, or one that is refused for its length alone:
/// only these get an answer.
fn is_whole(message: &[u8]) -> bool {
    message.split_first_chunk().is_some_and(|(length, rest)| {
        let length = u32::from_le_bytes(*length);
        length > MAX_MESSAGE || rest.len() >= length as usize
    })
}

#[test]
fn whole_messages_of_junk_to_an_agent_are_answered_and_its_mounts_stay() {
    on_own_nodes_within(LIMIT, "mount-junk-agent", async |scope| {
        let server = scope.ssh_server("node-2", &["data"]).await?;
        let image = image_of_its_own(&scope, "junk")?;
        let mut options = server.volume("data");
        options["client-image"] = image.clone().into();
        scope.volume("data", &options)?;
        scope.pod("user", "node-1", "data", Value::Null)?;
        scope.pod_ready("user").await?;
        let before = scope.mounts_on(1)?;
        let pods = client_pods_of(&scope, &image).await?;
        let pod = pods.first().context("there is no client Pod")?;
        let (name, uid) = (pod.metadata.name.clone(), pod.metadata.uid.clone());
        let (name, uid) = (name.context("a name")?, uid.context("a uid")?);
        let processes = scope.processes_of(NAMESPACE, &name).await?;
        let directory = Layout::from_env()?.node("node-1").join(format!(
            "var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/mooring"
        ));
        let ours = format!("/var/lib/kubelet/pods/{}", scope.namespace);
        let calls = prop_oneof![
            Just(json!({"version": 1, "call": "hello"})),
            (word(&ours, "/etc"), any::<u32>()).prop_map(|(target, version)| {
                json!({"version": version % 3, "call": {"unmount": {"target": target}}})
            }),
            (word(&ours, "/etc"), word(&ours, "/etc"), vec(word(&ours, "/etc"), 0..4)).prop_map(
                |(target, source, options)| {
                    json!({"version": 1, "call": {"mount": {
                        "target": target, "client": "nope", "source": source, "mount-options": options, "limit_ms": 50,
                    }}})
                }
            ),
        ]
        .prop_map(|value| value.to_string().into_bytes());
        let framed = |bytes: Vec<u8>| [u32::try_from(bytes.len()).unwrap_or(0).to_le_bytes().to_vec(), bytes].concat();
        let messages = prop_oneof![
            4 => calls.prop_map(framed),
            1 => vec(any::<u8>(), 0..100).prop_map(framed),
            1 => vec(any::<u8>(), 0..100),
        ];
        runner(AGENT_MESSAGES)
            .run(&messages, |bytes| {
                let answer = send(&directory, "agent.sock", &bytes).map_err(|error| fails(&error))?;
                let said = answer.split_first_chunk::<4>().map(|(_, json)| json);
                prop_assert_eq!(said.is_some(), is_whole(&bytes), "{:?}", answer);
                if let Some(json) = said {
                    let value: serde_json::Result<Value> = serde_json::from_slice(json);
                    prop_assert!(value.is_ok(), "{:?}", String::from_utf8_lossy(json));
                }
                Ok(())
            })
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        scope.exec("user", ["sh", "-c", "echo still here >/data/f"])?;
        ensure!(scope.mounts_on(1)? == before);
        let now = scope.processes_of(NAMESPACE, &name).await?;
        ensure!(
            processes.iter().all(|pid| now.contains(pid)),
            "{processes:?} became {now:?}"
        );
        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        remove_image(&scope, &image)
    });
}

/// Swaps two names again and again.
fn swap(one: &Path, other: &Path, over: &AtomicBool) -> Result<usize> {
    let mut times = 0;
    while !over.load(Ordering::Relaxed) || times % 2 == 1 {
        renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE)?;
        times += 1;
    }
    Ok(times)
}

/// Proves: M3
#[test]
fn links_swapped_under_the_mounter_s_feet_lead_it_nowhere() {
    on_own_nodes_within(LIMIT, "mount-swap", async |scope| {
        let mut mounter = OwnMounter::new(&scope, "swap", &["--mount-container=tmpfs=self"], "")?;
        let root = mounter.root().display().to_string();
        let outside = format!("{root}/outside");
        // The links' targets look like the real directories, down to the last level.
        scope.on_node(
            1,
            &format!(
                "cd {root}/kubelet && mkdir -p pods/uid/volumes/{FLEX_DRIVER_DIR}/v {outside}/volumes/{FLEX_DRIVER_DIR}/v {outside}/v
                 mount -t tmpfs kept {outside}/volumes/{FLEX_DRIVER_DIR}/v && mount -t tmpfs kept {outside}/v
                 touch {outside}/volumes/{FLEX_DRIVER_DIR}/v/file {outside}/v/file
                 ln -s {outside} pods/link && ln -s {outside} pods/uid/volumes/link"
            ),
        )?;
        mounter.start()?;
        let before = mounter.mounts(&outside)?;
        ensure!(before.len() == 2, "{before:?}");
        let pods = mounter.on_node(&mounter.root().join("kubelet/pods"));
        let swaps = [
            (pods.join("uid"), pods.join("link")),
            (
                pods.join("uid/volumes").join(FLEX_DRIVER_DIR),
                pods.join("uid/volumes/link"),
            ),
        ];
        let (mut done, mut refused) = (0, 0);
        for (one, other) in &swaps {
            let over = AtomicBool::new(false);
            let times = std::thread::scope(|threads| {
                let swapping = threads.spawn(|| swap(one, other, &over));
                let target = mounter.target("uid", "v");
                let target = target.to_string_lossy();
                let mut calls = || -> Result<()> {
                    for _ in 0..150 {
                        let mount = mounter.call(&["mount", &target, r#"{"client":"tmpfs"}"#])?;
                        let unmount = mounter.call(&["unmount", &target])?;
                        for call_out in [mount, unmount] {
                            if call_out.status() == "Success" {
                                done += 1;
                            } else {
                                refused += 1;
                            }
                        }
                        let now = mounter.mounts(&outside)?;
                        ensure!(now == before, "{now:?}");
                    }
                    Ok(())
                };
                let called = calls();
                over.store(true, Ordering::Relaxed);
                let times = swapping
                    .join()
                    .unwrap_or_else(|_| anyhow::bail!("the swapping thread panicked"))?;
                called.map(|()| times)
            })?;
            ensure!(times > 100, "swapped {times} times only");
        }
        // If only one of them happened, the test proved nothing.
        ensure!(done > 0 && refused > 0, "{done} good, {refused} refused");
        ensure!(mounter.runs()?, "{}", mounter.log());
        scope.on_node(
            1,
            &format!("test -f {outside}/v/file && test -f {outside}/volumes/{FLEX_DRIVER_DIR}/v/file"),
        )?;
        let target = mounter.target("uid", "v");
        let unmounted = mounter.call(&["unmount", &target.to_string_lossy()])?;
        ensure!(unmounted.status() == "Success", "{unmounted:?}");
        ensure!(mounter.mounts(&format!("{root}/kubelet"))?.is_empty());
        Ok(())
    });
}
