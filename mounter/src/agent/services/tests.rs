use std::path::Path;

use nix::sys::stat::Mode;
use tempfile::TempDir;

use super::*;
use crate::sys::fake::target;
use crate::volume::volume_id::VolumeId;

const VOLUME: &str = "0a1b";

/// Longest wait for quick things.
const SOON: Duration = Duration::from_secs(20);

struct Agent {
    services: Arc<Services>,
    dir: TempDir,
}

impl Agent {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("services")).unwrap();
        let services = Arc::new(Services::new(dir.path().to_owned(), dir.path().join("services")));
        Self { services, dir }
    }

    /// The same agent after a restart.
    fn again(self) -> Self {
        // The old agent has no chance to clean up.
        let services = Arc::new(Services::new(
            self.dir.path().to_owned(),
            self.dir.path().join("services"),
        ));
        self.services.lock().clear();
        services.resume();
        Self { services, ..self }
    }

    fn mounting(&self) -> Running {
        let run = ServiceRun {
            volume_id: VolumeId::of(&target()),
            label: None,
            directory: self.dir.path().to_owned(),
            source: "nbd://server/disk".into(),
            until: Instant::now() + SOON,
        };
        self.services.begin(VOLUME, run).unwrap()
    }

    async fn serve(&self, service: ServiceCall) -> Result<String, ServiceError> {
        self.services.serve(VOLUME, service, BTreeMap::new()).await
    }

    /// A daemon that is ready when it has created the file with its name.
    async fn daemon(&self, name: &str, script: &str) -> Result<String, ServiceError> {
        let ready = self.services.state(VOLUME).join(name);
        let script = format!("{script}\n: >{}; exec sleep 70", ready.display());
        self.serve(ServiceCall::Daemon {
            pid_file: None,
            ready: Some(ready),
            program: vec!["/bin/sh".into(), "-c".into(), script],
        })
        .await
    }

    fn processes(&self) -> Vec<Arc<Process>> {
        let volumes = self.services.lock();
        volumes
            .get(VOLUME)
            .map(|volume| volume.daemons().cloned().collect())
            .unwrap_or_default()
    }

    /// Whether nothing is left of the volume.
    fn is_clean(&self) -> bool {
        fs::read_dir(self.dir.path().join("services")).unwrap().next().is_none() && self.services.lock().is_empty()
    }
}

async fn soon(what: impl Future) {
    tokio::time::timeout(SOON, what).await.unwrap();
}

#[tokio::test]
async fn a_daemon_lives_until_its_volume_is_released_and_a_second_release_succeeds() {
    let agent = Agent::new();
    let running = agent.mounting();
    agent.daemon("one", "echo up").await.unwrap();
    agent.daemon("two", "").await.unwrap();
    drop(running);
    let processes = agent.processes();
    assert!(processes.len() == 2 && processes.iter().all(|process| process.is_alive()));
    agent.services.release(VOLUME).await.unwrap();
    assert!(!processes.iter().any(|process| process.is_alive()));
    agent.services.release(VOLUME).await.unwrap();
    assert!(agent.is_clean());
}

#[tokio::test]
async fn a_daemon_that_ends_by_itself_takes_those_with_it_that_came_later() {
    let agent = Agent::new();
    let _running = agent.mounting();
    agent.daemon("first", "").await.unwrap();
    agent.daemon("middle", "").await.unwrap();
    agent.daemon("last", "").await.unwrap();
    let processes = agent.processes();
    processes[1].signal(nix::sys::signal::Signal::SIGKILL);
    soon(agent.services.ended()).await;
    soon(processes[2].ended()).await;
    assert!(processes[0].is_alive());
    agent.services.release(VOLUME).await.unwrap();
    assert!(agent.is_clean() && !processes[0].is_alive());
}

#[tokio::test]
async fn the_output_of_a_daemon_that_ends_at_once_is_reported_line_by_line() {
    let agent = Agent::new();
    let _running = agent.mounting();
    let error = agent
        .daemon("one", "echo no server >&2; echo none at all; exit 3")
        .await
        .unwrap_err();
    assert!(matches!(error, ServiceError::Ended { .. }), "{error}");
    assert_eq!(error.report(), "no server\nnone at all");
    let pid_file = Some(agent.services.state(VOLUME).join("pid"));
    let program = ["/bin/sh", "-c", "echo one; echo two; exit 1"]
        .map(str::to_owned)
        .to_vec();
    let failed = agent
        .serve(ServiceCall::Daemon {
            pid_file,
            ready: None,
            program,
        })
        .await
        .unwrap_err();
    assert_eq!(failed.report(), "one\ntwo");
    let program = vec!["/nonexistent/program".into()];
    let missing = agent
        .serve(ServiceCall::Daemon {
            pid_file: None,
            ready: None,
            program,
        })
        .await
        .unwrap_err();
    assert!(
        missing.report().contains("does the client image have it?"),
        "{}",
        missing.report()
    );
    agent.services.release(VOLUME).await.unwrap();
    assert!(agent.is_clean());
}

#[tokio::test]
async fn a_daemon_that_ends_before_it_is_ready_leaves_its_place_to_another() {
    let agent = Agent::new();
    let running = agent.mounting();
    agent.daemon("one", "exit 3").await.unwrap_err();
    agent.daemon("one", "").await.unwrap();
    drop(running);
    assert_eq!(agent.services.are_running(VOLUME), Some(true));
    let agent = agent.again();
    assert_eq!(agent.services.are_running(VOLUME), Some(true));
    agent.services.release(VOLUME).await.unwrap();
    assert!(agent.is_clean());
}

#[tokio::test]
async fn a_daemon_that_goes_to_the_background_is_found_by_its_pid_file_and_ended() {
    let agent = Agent::new();
    let _running = agent.mounting();
    let pid_file = agent.services.state(VOLUME).join("pid");
    // The process id of another process.
    fs::write(&pid_file, "1").unwrap();
    let script = format!("sleep 70 >/dev/null 2>&1 & sleep 0.2; echo $! >{}", pid_file.display());
    let service = ServiceCall::Daemon {
        pid_file: Some(pid_file),
        ready: None,
        program: vec!["/bin/sh".into(), "-c".into(), script],
    };
    agent.serve(service).await.unwrap();
    let process = agent.processes().remove(0);
    assert!(process.is_alive());
    agent.services.release(VOLUME).await.unwrap();
    assert!(agent.is_clean() && !process.is_alive());
}

#[tokio::test]
async fn a_restarted_agent_continues_the_services_of_the_last_one() {
    let agent = Agent::new();
    let running = agent.mounting();
    let state = agent.services.state(VOLUME);
    let wait = format!(
        "until [ -e {}/speak ]; do sleep 0.1; done; echo still here",
        state.display()
    );
    // The daemon that writes has no reader between the two agents.
    let program = vec![
        "/bin/sh".into(),
        "-c".into(),
        format!("{wait}; : >{}/spoken; exec sleep 70", state.display()),
    ];
    agent
        .serve(ServiceCall::Daemon {
            pid_file: None,
            ready: None,
            program,
        })
        .await
        .unwrap();
    agent.daemon("later", "").await.unwrap();
    let before = agent.processes();
    std::mem::forget(running);
    let agent = agent.again();
    let processes = agent.processes();
    assert_eq!(processes.len(), 2);
    fs::write(state.join("speak"), "").unwrap();
    soon(daemon::is_there(state.join("spoken"))).await;
    // It is watched as before.
    processes[0].signal(nix::sys::signal::Signal::SIGKILL);
    soon(agent.services.ended()).await;
    soon(before[1].ended()).await;
    agent.services.release(VOLUME).await.unwrap();
    assert!(agent.is_clean());
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_an_error_that_names_its_file_and_the_other_volumes_continue() {
    let agent = Agent::new();
    let _running = agent.mounting();
    agent.daemon("one", "").await.unwrap();
    let services = agent.dir.path().join("services");
    let damaged = services.join("ff00.json");
    fs::write(&damaged, "[{\"daemon\":").unwrap();
    let recorded = volume::recorded(&services);
    let errors: Vec<_> = recorded.into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    let told = ServiceError::from(errors.into_iter().next().unwrap()).report();
    assert!(told.contains("ff00.json") && told.contains("EOF"), "{told}");
    let agent = agent.again();
    assert_eq!(agent.processes().len(), 1);
    assert!(!agent.services.lock().contains_key("ff00"));
    agent.services.release(VOLUME).await.unwrap();
    fs::remove_file(damaged).unwrap();
    assert!(agent.is_clean());
}

#[tokio::test]
async fn services_after_a_daemon_that_ended_between_two_agents_end_as_well() {
    let agent = Agent::new();
    let _running = agent.mounting();
    agent.daemon("first", "").await.unwrap();
    agent.daemon("later", "").await.unwrap();
    let before = agent.processes();
    // The agent does not react.
    agent.services.lock().get_mut(VOLUME).unwrap().ending = true;
    before[0].signal(nix::sys::signal::Signal::SIGKILL);
    soon(before[0].ended()).await;
    // Reaped as by process 1.
    tokio::time::sleep(OUTPUT_GRACE).await;
    let agent = agent.again();
    soon(before[1].ended()).await;
    agent.services.release(VOLUME).await.unwrap();
    assert!(agent.is_clean());
}

#[tokio::test]
async fn no_service_is_given_when_no_program_mounts_and_one_that_is_ready_too_late_is_ended() {
    let agent = Agent::new();
    let refused = agent.daemon("one", "").await.unwrap_err();
    assert!(matches!(refused, ServiceError::NotMounting(_)), "{refused}");
    let running = agent.mounting();
    let pid_file = agent.services.state(VOLUME).join("pid");
    let begun = agent.services.state(VOLUME).join("begun");
    let script = format!(
        ": >{}; sleep 70 >/dev/null 2>&1 & sleep 1; echo $! >{}",
        begun.display(),
        pid_file.display()
    );
    let late = agent.serve(ServiceCall::Daemon {
        pid_file: Some(pid_file.clone()),
        ready: None,
        program: vec!["/bin/sh".into(), "-c".into(), script],
    });
    let gives_up = async {
        daemon::is_there(begun).await;
        drop(running);
    };
    let (late, ()) = tokio::join!(late, gives_up);
    assert!(matches!(late, Err(ServiceError::NotMounting(_))), "{late:?}");
    let pid = fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
    assert!(Process::of(pid).is_ok_and(|process| !process.is_alive()) || Process::of(pid).is_err());
    agent.services.release(VOLUME).await.unwrap();
    assert!(agent.is_clean());
}

/// Makes a file that does not answer: opening it to read waits for a writer.
fn make_silent(file: &Path) {
    nix::unistd::mkfifo(file, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
}

#[tokio::test]
async fn a_volume_whose_server_is_waited_for_without_a_limit_can_be_given_up() {
    let agent = Agent::new();
    let _running = agent.mounting();
    let silent = agent.services.state(VOLUME).join("silent");
    make_silent(&silent);
    agent.daemon("one", "").await.unwrap();
    assert!(!agent.services.give_up(VOLUME), "no server is watched");
    let watch = ServiceCall::WatchServer {
        limit: 0,
        file: silent.clone(),
    };
    agent.serve(watch).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(agent.services.silence(VOLUME) > Some(Duration::ZERO));
    let process = agent.processes().remove(0);
    assert!(process.is_alive());
    assert!(agent.services.give_up(VOLUME));
    soon(process.ended()).await;
    drop(OpenOptions::new().read(true).write(true).open(&silent).unwrap());
    agent.services.release(VOLUME).await.unwrap();
    assert!(agent.is_clean());
}

#[tokio::test]
async fn the_daemon_of_a_silent_server_is_killed_and_that_of_one_that_answers_is_not() {
    let agent = Agent::new();
    let _running = agent.mounting();
    let state = agent.services.state(VOLUME);
    let watch = |file: &str, limit| ServiceCall::WatchServer {
        limit,
        file: state.join(file),
    };
    let alone = agent.serve(watch("silent", 1)).await.unwrap_err();
    assert!(matches!(alone, ServiceError::NoDaemon), "{alone}");
    agent.daemon("one", "").await.unwrap();
    fs::write(state.join("answers"), "").unwrap();
    agent.serve(watch("answers", 1)).await.unwrap();
    agent.serve(watch("silent", 0)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let process = agent.processes().remove(0);
    assert!(process.is_alive());
    let silent = state.join("silent");
    make_silent(&silent);
    agent.serve(watch("silent", 1)).await.unwrap();
    soon(process.ended()).await;
    // Lets the waiting thread continue.
    drop(OpenOptions::new().read(true).write(true).open(&silent).unwrap());
    agent.services.release(VOLUME).await.unwrap();
    assert!(agent.is_clean());
}

#[tokio::test]
async fn a_loop_device_is_held_until_the_mount_exists_and_is_detached_with_the_volume() {
    let agent = Agent::new();
    let running = agent.mounting();
    let file = agent.services.state(VOLUME).join("disk");
    fs::File::create_new(&file).unwrap().set_len(1 << 20).unwrap();
    let nothing = ServiceCall::Loop {
        file: "/nonexistent/file".into(),
        read_only: true,
        direct: false,
    };
    assert!(matches!(agent.serve(nothing).await, Err(ServiceError::Open { .. })));
    // Only root can attach one, and some machines have no such devices.
    let call = ServiceCall::Loop {
        file,
        read_only: false,
        direct: true,
    };
    let Ok(device) = agent.serve(call).await else {
        return;
    };
    let device = PathBuf::from(device);
    let behind = loop_device::file_behind(&device).unwrap();
    assert!(behind.ends_with("0a1b/disk"), "{behind}");
    // As the mount would hold it.
    let mounted = fs::File::open(&device).unwrap();
    drop(running);
    assert_eq!(loop_device::file_behind(&device).as_ref(), Some(&behind));
    let user = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(mounted);
    };
    let (released, ()) = tokio::join!(agent.services.release(VOLUME), user);
    released.unwrap();
    assert_ne!(loop_device::file_behind(&device).as_ref(), Some(&behind));
    assert!(agent.is_clean());
}
