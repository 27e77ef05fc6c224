//! The client container: a Pod of the vendor's client image on this node, and the agent in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::join_all;
use mooring_contract::volume::clients::has_one_device;

use crate::agent::mounts::SETTLED;
use crate::agent::protocol::{
    AgentAnswer, AgentFailure, Call, FailureCategory, Hello, MountCall, MountHealth, MountState,
};
use crate::client_pods::kept::KeptRecord;
use crate::client_pods::link::LinkError;
use crate::client_pods::looks::{LOOK_LIMIT, look};
use crate::client_pods::status::{PodPhase, SeenPod};
use crate::client_pods::{ClientPods, Lease, PodError, PodNeed, clean_up};
use crate::core::client::{Client, Expansion, MountJob, Rest, Trouble};
use crate::core::waits::{Waiting, Waits};
use crate::deadlines;
use crate::settings::ImageError;
use crate::sys::look::LookedAt;
use crate::volume::cause::Cause;
use crate::volume::job::{Access, MountError, mount_table};
use crate::volume::mount_options::{self, MountFlags};
use crate::volume::mount_table::DeviceNumber;
use crate::volume::target::Target;
use crate::worker::Task;
use crate::worker::clients::checks::{check_raw, otherwise, shown_as};

/// How long a worker may take to show a device. After a longer time without it the agent takes the device away.
const SHOW_LIMIT: Duration = Duration::from_secs(10);

const _: () = assert!(SHOW_LIMIT.as_secs() < SETTLED.as_secs());

pub struct ContainerClient {
    pods: Arc<ClientPods>,
    waits: Waits,
}

impl ContainerClient {
    pub fn new(pods: Arc<ClientPods>, waits: Waits) -> Self {
        Self { pods, waits }
    }

    /// The agents of this node that have a mount on the target, whatever their image, and that mount.
    async fn states(&self, target: &Target) -> Vec<(Hello, MountState)> {
        let path = target.to_string();
        let hellos = self.pods.agents().into_iter().map(|pod| {
            let pods = &self.pods;
            async move { pods.hello(&pod.uid).await }
        });
        let hellos = join_all(hellos).await.into_iter().flatten();
        let of_target = |hello: Hello| {
            let state = hello.mounts.iter().find(|mount| mount.target == path).cloned();
            state.map(|state| (hello, state))
        };
        hellos.filter_map(of_target).collect()
    }

    /// The client Pod whose agent has a mount on the target, and that mount.
    async fn owner(&self, target: &Target) -> Result<Option<(SeenPod, MountState)>, Cause> {
        let path = target.to_string();
        let is_complete = self.pods.has_list();
        match self.find(|mount| mount.target == path).await? {
            None if !is_complete => {
                Err("the Kubernetes API has not said yet which client Pods run on this node".into())
            }
            found => Ok(found),
        }
    }

    /// The first such mount, and the client Pod whose agent has it; an error if that may be one that does not answer.
    async fn find(&self, is_it: impl Fn(&MountState) -> bool) -> Result<Option<(SeenPod, MountState)>, Cause> {
        let asked = self.pods.agents().into_iter().map(|pod| async {
            let hello = self.pods.hello(&pod.uid).await;
            (pod, hello)
        });
        owner_in(join_all(asked).await, is_it)
    }

    /// Whether an agent has this very volume on the target.
    async fn is_mounted_by_an_agent(&self, job: &MountJob) -> bool {
        let states = self.states(job.grant.target()).await;
        states.iter().any(|(_, mount)| {
            mount.client == job.grant.volume().client.as_str() && mount.source == job.grant.volume().source
        })
    }

    /// Fails if a volume that an agent has mounted is mounted in another way than it is wanted.
    fn check_flags(&self, job: &MountJob) -> Result<(), MountError> {
        let table = mount_table()?;
        let Some(entry) = table.top(&job.grant.target().path()) else {
            return Ok(());
        };
        let kept = self.pods.kept.get(&job.grant.target().to_string());
        let asked_before = kept.as_ref().map(|kept| kept.call.mount_options.as_slice());
        let wanted = MountCall::of(&job.grant, Duration::ZERO);
        alike(MountFlags::of(entry), asked_before, &wanted.mount_options)?.map_or(Ok(()), |(found, wanted)| {
            Err(otherwise(&job.grant.volume().source, job.grant.target(), found, wanted))
        })
    }

    /// What an agent says about the target if it is mounting it again.
    async fn revival(&self, target: &Target) -> Option<String> {
        let states = self.states(target).await.into_iter();
        let mut revived = states.filter(|(hello, mount)| hello.revives && !mount.is_lost());
        let (_, mount) = revived.next()?;
        let message = mount.reviving.unwrap_or_default().message;
        Some(format!(
            "the program that served this volume ended, and the volume is being mounted again {message}"
        ))
    }

    /// Looks at the job's target without waiting for a server: what does not answer in time is alive.
    async fn look(&self, job: &MountJob) -> Result<LookedAt, MountError> {
        let table = mount_table()?;
        // Most have nothing mounted, and then no worker is needed.
        if table.top(&job.grant.target().path()).is_none() {
            return Ok(LookedAt::Nothing);
        }
        let looked = look(&self.pods.workers, job.grant.target(), LOOK_LIMIT).await;
        looked.map_err(|error| {
            error.into_mount_error(&format!("the look at {}", job.grant.target()), &job.grant.server())
        })
    }

    /// Unmounts a dead mount even if it is in use: nothing will mount it again, so its users can't go on.
    async fn unmount_dead(&self, job: &MountJob) -> Result<(), MountError> {
        let unmount = Task::Unmount {
            target: job.grant.target().clone(),
            detach: true,
        };
        let done = self.pods.workers.run(&unmount, job.deadline).await;
        done.map_err(|error| {
            let attempted = format!("the unmount of the dead mount on {}", job.grant.target());
            error.into_mount_error(&attempted, &job.grant.server())
        })
    }

    /// Gives a Pod a volume as a device: the client container has it, and a worker shows it to the Pod.
    async fn give(&self, job: &MountJob, image: &str) -> Result<(), MountError> {
        let name = &job.grant.volume().source;
        check_raw(job.grant.volume(), name)?;
        let table = mount_table()?;
        if let Some(entry) = table.top(&job.grant.target().path()) {
            let states = self.states(job.grant.target()).await;
            let ours = |mount: &MountState| {
                mount.client == job.grant.volume().client.as_str() && mount.source == job.grant.volume().source
            };
            return match states.iter().find(|(_, mount)| ours(mount)) {
                Some((_, mount)) if mount.health == MountHealth::Dead => {
                    let message = "the program that served its device has ended: delete the Pod; its replacement gets \
                                   the device again";
                    Err(container_error(job, message.to_owned().into()))
                }
                Some(_) => shown_as(entry, job.grant.target(), job.grant.is_read_only()),
                None => Err(MountError::occupied(
                    job.grant.target(),
                    "a device that no client container knows",
                    name.clone(),
                )),
            };
        }
        let lease = self.lease_for(job, image).await?;
        let Some(device) = self.ask(&lease, job).await? else {
            return Err(container_error(job, misfit(&lease.name)));
        };
        let show = Task::ShowGiven {
            device,
            grant: job.grant.clone(),
        };
        let deadline = job.deadline.min(Instant::now() + SHOW_LIMIT);
        let shown = self.pods.workers.run(&show, deadline).await;
        let shown =
            shown.map_err(|error| error.into_mount_error(&format!("to show device {name} to the Pod"), "this node"));
        if shown.is_err() {
            drop(self.unmounted(job.grant.target()).await);
        }
        drop(lease);
        self.pods.changed();
        shown
    }

    /// The client Pod to mount a volume: one that has its device for another Pod of this node, even if that client Pod
    /// is of an earlier version, or else one of the image that is wanted.
    async fn lease_for(&self, job: &MountJob, image: &str) -> Result<Lease, MountError> {
        // Of a client without a record here, only the agents know.
        if has_one_device(job.grant.volume().client.as_str(), &job.grant.volume().fs_type, || true)
            && self.pods.allows(image)
            // An agent of another client that does not answer must not delay this volume.
            && let Ok(Some((pod, _))) = self.find(|mount| is_device_of(mount, job)).await
        {
            return Ok(self.pods.enter(&pod.name, &pod.uid));
        }
        self.lease(job, image).await
    }

    async fn lease(&self, job: &MountJob, image: &str) -> Result<Lease, MountError> {
        let deadline = Instant::now() + deadlines::inner(job.remaining());
        let need = PodNeed {
            client: &job.grant.volume().client,
            image,
            by_volume: job.grant.is_image_by_volume(),
            target: job.grant.target(),
            source: &job.grant.volume().source,
        };
        let lease = self.pods.lease(need, deadline).await;
        lease.map_err(|error| no_pod(job, error))
    }

    /// Has an agent mount a volume, or have it as a device.
    async fn ask(&self, lease: &Lease, job: &MountJob) -> Result<Option<DeviceNumber>, MountError> {
        let asking = mounted_by(job, &lease.name, |call, limit| self.pods.ask(&lease.uid, call, limit));
        self.waits.watch(Waiting::of(&job.grant), asking).await
    }
}

#[async_trait]
impl Client for ContainerClient {
    async fn mount(&self, job: &MountJob) -> Result<(), MountError> {
        let Some(image) = &job.image else {
            return Err(container_error(job, "no client image is set for it".into()));
        };
        if job.grant.access() == Access::Device {
            return self.give(job, image).await;
        }
        let asked = MountCall::of(&job.grant, Duration::ZERO);
        match self.look(job).await? {
            LookedAt::Nothing => {}
            LookedAt::Alive if self.is_mounted_by_an_agent(job).await => {
                self.pods.renew_by(&asked);
                return self.check_flags(job);
            }
            LookedAt::Alive => {
                return Err(MountError::occupied(
                    job.grant.target(),
                    "a file system that no client container knows",
                    job.grant.volume().source.clone(),
                ));
            }
            LookedAt::Dead => {
                self.pods.renew_by(&asked);
                if let Some(message) = self.revival(job.grant.target()).await {
                    return Err(container_error(job, message.into()));
                }
                // That also repairs it for Pods that use it already.
                if let Some(failed) = self.pods.revive(job.grant.target()) {
                    let message = format!(
                        "the client Pod that served this volume is gone, and the volume is being mounted again {failed}"
                    );
                    return Err(container_error(job, message.into()));
                }
                self.unmount_dead(job).await?;
                drop(self.unmounted(job.grant.target()).await);
            }
        }
        let lease = self.lease_for(job, image).await?;
        let mounted = self.ask(&lease, job).await.map(drop);
        if mounted.is_ok() {
            self.pods.renew_by(&asked);
            self.pods.keep(KeptRecord {
                by: lease.uid.clone(),
                image: image.clone(),
                by_volume: job.grant.is_image_by_volume(),
                call: asked,
            });
        }
        drop(lease);
        self.pods.changed();
        mounted
    }

    async fn expand(&self, target: &Target, size: u64, deadline: Instant) -> Result<Expansion, MountError> {
        let (pod, mount) = match self.owner(target).await {
            Ok(Some(owner)) => owner,
            Ok(None) => return Ok(nobodys(target, self.pods.owner_of(target).is_some())),
            Err(cause) => return Ok(unknown(target, cause)),
        };
        let wait = deadline.saturating_duration_since(Instant::now());
        let limit = deadlines::inner(wait);
        let call = Call::Expand {
            target: target.to_string(),
            size,
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
        };
        let broken = |cause: Cause| MountError::Container {
            client: mount.client.clone(),
            cause,
        };
        match self.pods.ask(&pod.uid, call, wait).await {
            Ok(AgentAnswer::Noted) => Ok(Expansion::Done),
            Ok(AgentAnswer::Failed(failure)) => {
                let is_done = not_expanded(target, &mount, limit, failure)?;
                Ok(if is_done { Expansion::Done } else { Expansion::NotMine })
            }
            Ok(_) => Err(broken(misfit(&pod.name))),
            Err(source) => Err(broken(no_answer(&pod.name, source))),
        }
    }

    async fn is_by_owner(&self, target: &Target) -> Option<bool> {
        let states = self.states(target).await;
        states.into_iter().find_map(|(_, mount)| mount.by_owner)
    }

    fn trouble(&self, target: &Target) -> Option<Trouble> {
        self.pods.trouble(&target.to_string())
    }

    fn source_of(&self, target: &Target) -> Option<String> {
        self.pods.source_of(&target.to_string())
    }

    /// The mounter's own unmount has reached the agent's namespace already. What is left is to clear up: secrets, and
    /// whatever else the image's program set up. An agent that is not told finds out by itself.
    async fn unmounted(&self, target: &Target) -> Option<Rest> {
        let owner = self.pods.owner_of(target);
        self.pods.forget(target);
        clean_up::after_unmount(&self.pods, target.to_string(), owner).await
    }
}

/// The client Pod whose agent reports such a mount. Fails if no agent that answered has one, and an agent that did not
/// answer may have one.
fn owner_in(
    said: Vec<(SeenPod, Result<Hello, LinkError>)>,
    is_it: impl Fn(&MountState) -> bool,
) -> Result<Option<(SeenPod, MountState)>, Cause> {
    let mut silent = None;
    for (pod, hello) in said {
        match hello {
            Ok(hello) => {
                if let Some(mount) = hello.mounts.into_iter().find(&is_it) {
                    return Ok(Some((pod, mount)));
                }
            }
            // It serves nothing any more.
            Err(_) if pod.phase == PodPhase::Ended => {}
            Err(error) => silent = Some(no_answer(&pod.name, error)),
        }
    }
    silent.map_or(Ok(None), Err)
}

/// Has the agent of a Pod mount a volume. `ask` sends it a call, and gives up after the time that it gets.
async fn mounted_by<A: Future<Output = Result<AgentAnswer, LinkError>>>(
    job: &MountJob,
    pod: &str,
    ask: impl FnOnce(Call, Duration) -> A,
) -> Result<Option<DeviceNumber>, MountError> {
    let wait = job.remaining();
    let limit = deadlines::inner(wait);
    let call = Call::Mount(Box::new(MountCall::of(&job.grant, limit)));
    match ask(call, wait).await {
        Ok(AgentAnswer::Mounted) => Ok(None),
        Ok(AgentAnswer::Given { device }) => Ok(Some(device)),
        Ok(AgentAnswer::Failed(failure)) => Err(refused(job, limit, failure)),
        Ok(_) => Err(container_error(job, misfit(pod))),
        Err(source) => Err(container_error(job, no_answer(pod, source))),
    }
}

/// The flags that a mount has and should have, if they differ. What was asked for before is known, if this mounter knows
/// it; the program of an image may set more flags, so of the mount itself only what lacks is a difference.
fn alike(
    found: MountFlags,
    asked_before: Option<&[String]>,
    wanted: &[String],
) -> Result<Option<(MountFlags, MountFlags)>, MountError> {
    let flags = |options: &[String]| {
        let sorted = mount_options::sort(options, false).map_err(MountError::bad_options);
        sorted.map(|sorted| sorted.flags.shown())
    };
    let wanted = flags(wanted)?;
    let found = match asked_before {
        Some(options) => flags(options)?,
        None if wanted.are_all_in(found) => wanted,
        None => found,
    };
    Ok((found != wanted).then_some((found, wanted)))
}

/// Whether a mount is of the device that another Pod has of a job's volume.
fn is_device_of(mount: &MountState, job: &MountJob) -> bool {
    mount.on_device && mount.client == job.grant.volume().client.as_str() && mount.source == job.grant.volume().source
}

/// How many seconds a program had that took too long, in a call with this `limit`.
fn seconds_of(failure: &AgentFailure, limit: Duration) -> u64 {
    failure.limit_ms.map_or(limit, Duration::from_millis).as_secs()
}

fn refused(job: &MountJob, limit: Duration, failure: AgentFailure) -> MountError {
    let attempted = format!(
        "mount {} in the client container for {}",
        job.grant.volume().source,
        job.grant.volume().client
    );
    let seconds = seconds_of(&failure, limit);
    let message = failure.message;
    match failure.category {
        FailureCategory::Invalid => MountError::BadOptions(message.into()),
        FailureCategory::InProgress => MountError::InProgress {
            operation: "mount".to_owned(),
            seconds: 0,
        },
        FailureCategory::TimedOut => MountError::Timeout {
            attempted: format!("to {attempted} ({message})"),
            seconds,
            server: job.grant.server(),
        },
        FailureCategory::Refused | FailureCategory::InUse | FailureCategory::System => {
            MountError::failed(attempted, message)
        }
        FailureCategory::Protocol | FailureCategory::Draining | FailureCategory::Other => {
            container_error(job, message.into())
        }
    }
}

/// What the expansion of a volume comes to that no agent has. Where a client Pod had mounted it, a device may have
/// outlived that Pod.
fn nobodys(target: &Target, had_been_mounted: bool) -> Expansion {
    if !had_been_mounted {
        return Expansion::NotMine;
    }
    let cause = "the client Pod that mounted it is gone, and no other has it: the kubelet tries again. If that goes on, \
                 delete the Pods that use the volume on this node: the next mount has it larger";
    unknown(target, cause.to_owned().into())
}

fn unknown(target: &Target, cause: Cause) -> Expansion {
    Expansion::Unknown(MountError::Container {
        client: format!("volume {}", target.name()),
        cause,
    })
}

/// What an agent's failure to expand a volume means. `Ok(false)`: it has never heard of that.
fn not_expanded(
    target: &Target,
    mount: &MountState,
    limit: Duration,
    failure: AgentFailure,
) -> Result<bool, MountError> {
    let seconds = seconds_of(&failure, limit);
    let (attempted, message) = (
        format!("expand {} volume {}", mount.client, mount.source),
        failure.message,
    );
    Err(match failure.category {
        FailureCategory::Protocol => return Ok(false),
        FailureCategory::Invalid => MountError::NotExpanded {
            target: target.to_string(),
            found: mount.source.clone(),
            why: message,
        },
        FailureCategory::InProgress => MountError::InProgress {
            operation: "another operation".to_owned(),
            seconds: 0,
        },
        FailureCategory::TimedOut => MountError::Timeout {
            attempted: format!("to {attempted} ({message})"),
            seconds,
            server: mount.source.clone(),
        },
        FailureCategory::Refused | FailureCategory::InUse | FailureCategory::System => {
            MountError::failed(attempted, message)
        }
        FailureCategory::Draining | FailureCategory::Other => MountError::Container {
            client: mount.client.clone(),
            cause: message.into(),
        },
    })
}

fn no_pod(job: &MountJob, error: PodError) -> MountError {
    match error {
        PodError::Image(ImageError::NotAllowed { .. }) => MountError::Forbidden(Cause::of(error)),
        PodError::Image(ImageError::Bad(_)) => MountError::bad_options(error),
        _ => container_error(job, Cause::of(error)),
    }
}

fn container_error(job: &MountJob, cause: Cause) -> MountError {
    MountError::Container {
        client: job.grant.volume().client.to_string(),
        cause,
    }
}

#[derive(Debug, thiserror::Error)]
#[error("Pod {pod}")]
struct NoAnswer {
    pod: String,
    source: LinkError,
}

fn no_answer(pod: &str, source: LinkError) -> Cause {
    Cause::of(NoAnswer {
        pod: pod.to_owned(),
        source,
    })
}

fn misfit(pod: &str) -> Cause {
    format!("the agent of Pod {pod} gave an answer that does not fit the request").into()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use tokio::io::DuplexStream;

    use super::{alike, mounted_by, nobodys, not_expanded, owner_in, refused};
    use crate::agent::protocol::{self, AgentAnswer, AgentFailure, AgentRequest, Call, FailureCategory, Hello};
    use crate::agent::protocol::{MountHealth, MountState};
    use crate::client_pods::link::{self, LinkError};
    use crate::client_pods::status::{PodPhase, SeenPod};
    use crate::core::client::{Expansion, MountJob};
    use crate::grant::tests::grant;
    use crate::sys::fake::target;
    use crate::volume::job::{MountError, PodRef};
    use crate::volume::mount_options;
    use crate::volume::target::Target;

    /// How late a busy machine wakes the agent.
    const LATE: Duration = Duration::from_millis(1500);

    /// An agent that reports a mount program which took all the time that the agent has.
    async fn late_agent(mut stream: DuplexStream) {
        let request: AgentRequest = protocol::receive(&mut stream).await.unwrap();
        let Call::Mount(call) = request.call else {
            panic!("another call")
        };
        tokio::time::sleep(Duration::from_millis(call.limit_ms) + LATE).await;
        let answer = AgentAnswer::Failed(AgentFailure {
            category: FailureCategory::TimedOut,
            message: "ssh: 192.0.2.1 does not speak".to_owned(),
            limit_ms: None,
        });
        // The caller may have given up.
        let _ = protocol::send(&mut stream, &answer).await;
    }

    fn job(left: Duration) -> MountJob {
        MountJob {
            grant: grant("client=sshfs,source=u@192.0.2.1:/x", target()),
            image: None,
            deadline: Instant::now() + left,
        }
    }

    /// Proves: M1
    #[tokio::test(start_paused = true)]
    async fn the_words_of_an_agent_that_answers_late_reach_the_kubelet() {
        for left in [95, 40, 12].map(Duration::from_secs) {
            let (mut ours, theirs) = tokio::io::duplex(1 << 16);
            tokio::spawn(late_agent(theirs));
            let job = job(left);
            let mounted = mounted_by(&job, "client-sshfs", |call, limit| {
                let asking = async move { link::converse(&mut ours, call).await };
                link::within(limit, asking)
            });
            let said = mounted.await.unwrap_err().to_string();
            assert!(said.contains("does not speak"), "does not speak is not in {said}");
            assert!(said.contains("192.0.2.1 did not answer"), "{said}");
        }
    }

    #[test]
    fn a_server_is_judged_by_the_time_that_the_program_had() {
        let limit = Duration::from_secs(90);
        for (limit_ms, expected) in [(Some(9_900), 9), (Some(85_000), 85), (None, 90)] {
            let failure = AgentFailure {
                category: FailureCategory::TimedOut,
                message: String::new(),
                limit_ms,
            };
            let error = refused(&job(limit), limit, failure);
            assert!(
                matches!(error, MountError::Timeout { seconds, .. } if seconds == expected),
                "{error}"
            );
        }
    }

    fn pod(name: &str, phase: PodPhase) -> SeenPod {
        SeenPod {
            name: name.to_owned(),
            uid: name.to_owned(),
            phase,
            ran: true,
            problem: None,
            refused: None,
            given_up: Vec::new(),
        }
    }

    fn state(target: &str) -> MountState {
        MountState {
            target: target.to_owned(),
            client: "iscsi".to_owned(),
            source: "iscsi://h/t/1".to_owned(),
            pod: PodRef::default(),
            health: MountHealth::Mounted,
            dead: None,
            reviving: None,
            silent_ms: None,
            on_device: false,
            clean_up_failure: None,
            by_owner: None,
        }
    }

    fn hello(mounts: Vec<MountState>) -> Hello {
        Hello {
            version: protocol::VERSION,
            release: String::new(),
            draining: false,
            revives: true,
            holds_dead: true,
            mounts,
        }
    }

    #[test]
    fn it_is_not_known_who_serves_a_volume_while_an_agent_does_not_answer() {
        let restarting = || (pod("b", PodPhase::Running), Err(LinkError::NotThere));
        let has = |said| owner_in(said, |mount| mount.target == "/t").map(|owner| owner.map(|(pod, _)| pod.name));
        let other = || (pod("a", PodPhase::Running), Ok(hello(vec![state("/other")])));
        let owner = || (pod("c", PodPhase::Running), Ok(hello(vec![state("/t")])));
        assert_eq!(has(vec![other()]).unwrap(), None);
        assert_eq!(has(vec![restarting(), owner()]).unwrap().as_deref(), Some("c"));
        let ended = (pod("d", PodPhase::Ended), Err(LinkError::NotThere));
        assert_eq!(has(vec![ended]).unwrap(), None, "it serves nothing any more");
        let unknown = has(vec![other(), restarting()]);
        assert!(unknown.is_err(), "its agent may be restarting");
    }

    #[test]
    fn a_volume_is_wanted_as_it_is_mounted_or_it_is_said_what_differs() {
        let strings = |options: &[&str]| -> Vec<_> { options.iter().map(|&option| option.to_owned()).collect() };
        let flags = |options: &[&str]| mount_options::sort(&strings(options), false).unwrap().flags;
        for (found, before, wanted, differs) in [
            (&["ro"][..], Some(&["ro"][..]), &["ro"][..], false),
            (&["noatime"], Some(&["rw", "noatime"]), &["noatime"], false),
            (&["ro"], Some(&["ro"]), &[], true),
            (&[], Some(&[]), &["ro"], true),
            // The image's program made it read-only by itself.
            (&["ro"], Some(&[]), &[], false),
            (&["ro", "noexec"], None, &[], false),
            (&[], None, &["ro"], true),
        ] {
            let before = before.map(strings);
            let result = alike(flags(found), before.as_deref(), &strings(wanted)).unwrap();
            assert_eq!(result.is_some(), differs, "{found:?} {before:?} {wanted:?}");
        }
    }

    /// After [`MountError::NotExpanded`] the kubelet never asks again.
    #[test]
    fn a_volume_whose_client_pod_is_gone_is_to_be_tried_again_and_one_that_never_had_one_is_not_a_client_s() {
        let target = Target::parse(Path::new("/kubelet"), "/kubelet/pods/u/volumes/mooring.dev~vcs/v").unwrap();
        assert!(matches!(nobodys(&target, false), Expansion::NotMine));
        let Expansion::Unknown(error) = nobodys(&target, true) else {
            panic!("it counts as a device of the node");
        };
        assert_eq!(error.category(), "container");
    }

    #[test]
    fn an_agent_that_can_t_expand_a_volume_says_why_and_one_that_does_not_know_the_call_is_passed_over() {
        let path = "/kubelet/pods/u/volumes/mooring.dev~vcs/v";
        let target = Target::parse(Path::new("/kubelet"), path).unwrap();
        let mount = MountState {
            target: path.to_owned(),
            client: "iscsi".to_owned(),
            source: "iscsi://h/t/1".to_owned(),
            pod: PodRef::default(),
            health: MountHealth::Mounted,
            dead: None,
            reviving: None,
            silent_ms: None,
            on_device: false,
            clean_up_failure: None,
            by_owner: None,
        };
        let of = |category| {
            let message = "its words".to_owned();
            let failure = AgentFailure {
                category,
                message,
                limit_ms: None,
            };
            not_expanded(&target, &mount, Duration::from_secs(9), failure)
        };
        assert_eq!(of(FailureCategory::Protocol), Ok(false));
        for (category, expected) in [
            (FailureCategory::Invalid, "not-expanded"),
            (FailureCategory::InProgress, "in-progress"),
            (FailureCategory::TimedOut, "timeout"),
            (FailureCategory::Refused, "failed"),
            (FailureCategory::Draining, "container"),
            (FailureCategory::Other, "container"),
        ] {
            let error = of(category).unwrap_err();
            assert_eq!(error.category(), expected);
            assert!(
                category == FailureCategory::InProgress || error.to_string().contains("its words"),
                "{error}"
            );
        }
    }
}
