//! The messages from the mounter, and from the image's programs, to an agent: one request and one answer per
//! connection.
//!
//! On the wire, each is a `u32` length (little-endian, at most [`MAX_MESSAGE`]) and that many bytes of JSON. A mounter
//! may talk to an agent of another release, since a client Pod outlives the mounter that created it. Within one
//! [`VERSION`], messages only gain optional fields, and unknown fields are ignored.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::services::call::ServiceCall;
use crate::grant::Grant;
use crate::volume::device_owner::DeviceOwner;
use crate::volume::job::PodRef;
use crate::volume::mount_table::DeviceNumber;
use crate::volume::selinux_label::SelinuxLabel;

/// Name of the agent's socket in the Pod's emptyDir.
pub const SOCKET: &str = "agent.sock";

/// Raised only when an agent or a mounter of another release could not read the messages; see the file's head.
pub const VERSION: u32 = 1;

/// Longest message in bytes: a Secret's megabyte in base64 and the options beside it.
pub const MAX_MESSAGE: u32 = 2 << 20;

/// What a caller sends to an agent, once on each connection.
#[derive(Debug, Serialize, Deserialize)]
pub struct AgentRequest {
    /// [`VERSION`] of the sender.
    pub version: u32,
    pub call: Call,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// Asks for the agent's identity and its mounts.
    Hello,
    Mount(Box<MountCall>),
    /// Unmounts a volume and undoes what its mount did.
    Unmount {
        target: String,
    },
    /// Says that all users of these dead mounts use the new one, so the agent can forget them. Only for an agent that
    /// has reported them.
    Revived {
        target: String,
        devices: Vec<DeviceNumber>,
    },
    /// Asks how this volume was mounted, so that another agent can mount it again if this one's Pod goes.
    Recall {
        target: String,
    },
    /// Says which Secret a mounted volume has by now, for the next time that it is mounted. An agent that is too old
    /// does not know this call.
    Renew {
        target: String,
        secrets: BTreeMap<String, SecretBytes>,
        /// See [`MountFields::secrets_at`].
        secrets_at: Option<u64>,
    },
    /// Hands over a volume whose Pod is gone and whose mount is dead: mount it again, as one of your own.
    Adopt(Box<MountCall>),
    /// Gives up a volume: its Pod is gone except for the kubelet's cleanup, which waits for a mount that does not
    /// answer. End what waits there, and don't mount it again. Only for an agent that has reported it as silent.
    GiveUp {
        target: String,
    },
    /// Gives up the clean-up after a volume, and forgets the volume. Only for an agent that has reported the clean-up
    /// as failed.
    GiveUpCleanUp {
        target: String,
    },
    /// Grows a mounted volume to the size of its storage. An agent that is too old does not know this call.
    Expand {
        target: String,
        /// The size in bytes that it should have at least.
        size: u64,
        /// Milliseconds that it may take.
        limit_ms: u64,
    },
    /// Asks for a service for the volume that is being mounted. Only programs of the image send it, which have the
    /// agent's own release.
    Service {
        /// The volume's name, which the agent passed to that program.
        volume: String,
        service: Box<ServiceCall>,
        /// The program's environment, for the processes to start.
        environment: BTreeMap<String, String>,
    },
}

impl Call {
    /// Its name in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Mount(_) => "mount",
            Self::Unmount { .. } => "unmount",
            Self::Revived { .. } => "revived",
            Self::Recall { .. } => "recall",
            Self::Renew { .. } => "renew",
            Self::Adopt(_) => "adopt",
            Self::GiveUp { .. } => "give-up",
            Self::GiveUpCleanUp { .. } => "give-up-clean-up",
            Self::Expand { .. } => "expand",
            Self::Service { .. } => "service",
        }
    }
}

/// What a grant lets an agent mount. It is made of a grant, or comes from who made it so, and can only be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MountCall(MountFields);

/// What is in a [`MountCall`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountFields {
    /// The directory to mount on, with its path as the kubelet sees it; it exists. Of a raw block volume it is the file
    /// on which the mounter shows the device.
    pub target: String,
    /// The client's name: it decides which program of the image runs, and is the file system type if there is no other.
    pub client: String,
    pub source: String,
    /// The volume, to which its device belongs. None from a mounter of an earlier release.
    pub owner: Option<DeviceOwner>,
    /// The file system type; empty for the client's name.
    #[serde(default)]
    pub fs_type: String,
    /// Mount options, in order.
    #[serde(default)]
    pub mount_options: Vec<String>,
    /// The client's own options.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Secret values by key.
    #[serde(default)]
    pub secrets: BTreeMap<String, SecretBytes>,
    /// When the mounter was given them, in seconds since 1970. None from a mounter of an earlier release.
    pub secrets_at: Option<u64>,
    /// The group that the Pod's files should belong to, for programs that can set it only at the mount.
    pub fs_group: Option<u32>,
    /// The label that the mount is to give to all files.
    pub label: Option<SelinuxLabel>,
    /// Who uses the volume, for Events about its end.
    #[serde(default)]
    pub pod: PodRef,
    /// Milliseconds that the mount may take.
    pub limit_ms: u64,
}

impl Deref for MountCall {
    type Target = MountFields;

    fn deref(&self) -> &MountFields {
        &self.0
    }
}

impl MountCall {
    /// What is granted, within a time.
    pub fn of(grant: &Grant, limit: Duration) -> Self {
        let volume = grant.volume();
        let mut mount_options = volume.mount_options.clone();
        if grant.is_read_only() && !mount_options.iter().any(|option| option == "ro") {
            mount_options.retain(|option| option != "rw");
            mount_options.push("ro".to_owned());
        }
        let secrets = grant.secrets().0.iter();
        Self(MountFields {
            target: grant.target().to_string(),
            client: volume.client.to_string(),
            source: volume.source.clone(),
            owner: Some(grant.owner()),
            fs_type: volume.fs_type.clone(),
            mount_options,
            options: volume.rest.clone(),
            secrets: secrets
                .map(|(key, value)| (key.clone(), SecretBytes(value.clone())))
                .collect(),
            secrets_at: Some(now()),
            fs_group: grant.fs_group().map(|group| group.gid),
            label: grant.label().cloned(),
            pod: grant.pod().clone(),
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// As it is recorded.
    pub(super) fn without_secrets(&self) -> Self {
        self.with_secrets(BTreeMap::new())
    }

    /// With the secrets that were kept beside its record.
    pub(super) fn with_secrets(&self, secrets: BTreeMap<String, SecretBytes>) -> Self {
        Self(MountFields {
            secrets,
            ..self.0.clone()
        })
    }

    /// With the secrets that it has by now.
    pub(crate) fn renewed(&self, secrets: BTreeMap<String, SecretBytes>, secrets_at: Option<u64>) -> Self {
        Self(MountFields {
            secrets,
            secrets_at,
            ..self.0.clone()
        })
    }

    /// See [`DeviceOwner::is_persistent_volume`].
    pub(crate) fn is_of_persistent_volume(&self) -> bool {
        self.owner.as_ref().is_some_and(DeviceOwner::is_persistent_volume)
    }

    /// Whether another call's Secret is this one's by now: it is of the same target, or of the same PersistentVolume.
    pub(crate) fn is_renewed_by(&self, later: &Self) -> bool {
        let is_of_one = self.owner == later.owner && self.is_of_persistent_volume();
        (is_of_one || self.target == later.target) && (&self.client, &self.source) == (&later.client, &later.source)
    }

    /// Whether both mount the same, whatever their secrets.
    pub(super) fn mounts_the_same_as(&self, other: &Self) -> bool {
        let it = |call: &Self| MountFields {
            secrets: BTreeMap::new(),
            secrets_at: None,
            // An earlier release did not record it.
            owner: None,
            pod: PodRef::default(),
            limit_ms: 0,
            ..call.0.clone()
        };
        it(self) == it(other)
    }
}

/// Tests say what no volume does.
#[cfg(test)]
impl std::ops::DerefMut for MountCall {
    fn deref_mut(&mut self) -> &mut MountFields {
        &mut self.0
    }
}

#[cfg(test)]
impl From<MountFields> for MountCall {
    fn from(fields: MountFields) -> Self {
        Self(fields)
    }
}

/// What the caller gets back, once on each connection.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentAnswer {
    /// To [`Call::Hello`].
    Hello(Hello),
    /// The volume is mounted, just now or since before.
    Mounted,
    /// To [`Call::Mount`] of a raw block volume: the device, which the agent keeps. Only a mounter that knows of it
    /// asks for one.
    Given {
        device: DeviceNumber,
    },
    /// The volume is not mounted here, and nothing is left of it.
    Unmounted,
    /// To [`Call::Revived`], [`Call::Adopt`], [`Call::GiveUp`], [`Call::GiveUpCleanUp`] and [`Call::Expand`]: it is
    /// done, or begun.
    Noted,
    Recalled(Box<MountCall>),
    /// To [`Call::Renew`].
    Renewed {
        /// Whether the volume's client reads another Secret by now.
        changed: bool,
    },
    /// To [`Call::Service`].
    Served {
        /// What the program needs to know about it, such as the name of a device.
        said: String,
    },
    Failed(AgentFailure),
}

/// The agent's identity and its mounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the agent.
    pub version: u32,
    /// Release of the agent's program.
    pub release: String,
    /// Whether it is ending: it takes no new mounts, and ends with its last one.
    pub draining: bool,
    /// Whether it mounts dead volumes again.
    #[serde(default)]
    pub revives: bool,
    /// Whether it holds the dead mounts that it reports, so that no other file system gets their device numbers.
    #[serde(default)]
    pub holds_dead: bool,
    pub mounts: Vec<MountState>,
}

impl Hello {
    /// The dead mounts of one of its volumes. None if the agent does not hold them: the numbers may be another volume's
    /// by now.
    pub fn held<'a>(&self, mount: &'a MountState) -> Option<&'a Dead> {
        mount.dead.as_ref().filter(|_| self.holds_dead)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountState {
    pub target: String,
    pub client: String,
    pub source: String,
    /// Who uses the volume.
    #[serde(default)]
    pub pod: PodRef,
    pub health: MountHealth,
    /// Its dead mounts, as long as they may be in use somewhere.
    pub dead: Option<Dead>,
    /// How the agent is mounting it again.
    pub reviving: Option<Reviving>,
    /// How many milliseconds it has been silent although its program runs.
    pub silent_ms: Option<u64>,
    /// Whether it is on a device, which its agent gives to all Pods of the node that have the volume.
    #[serde(default)]
    pub on_device: bool,
    /// Why the clean-up after its unmount fails, again and again.
    pub clean_up_failure: Option<String>,
    /// Whether each of its files has a group that can be changed, if the image's record says so.
    pub by_owner: Option<bool>,
}

impl MountState {
    /// Whether it is lost for good: dead, and not to be mounted again.
    pub fn is_lost(&self) -> bool {
        self.health == MountHealth::Dead && self.reviving.is_none()
    }
}

/// A volume's dead mounts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dead {
    pub devices: Vec<DeviceNumber>,
    /// When the last death was noticed, in milliseconds since 1970.
    pub since_ms: u64,
}

/// A volume that the agent is mounting again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reviving {
    /// Number of failed tries.
    pub failures: u32,
    /// The last failure; empty before the first.
    pub message: String,
    /// When the Secret was given to the mounter that the last try was made with, in seconds since 1970. None if the
    /// Secret did not matter, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets_at: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MountHealth {
    /// It is mounted, and its program runs.
    Mounted,
    /// In the mount table, but its daemon is gone: every access returns ENOTCONN.
    Dead,
    /// Being mounted or unmounted; or a state from a later release, which must be left alone as well.
    #[serde(other)]
    Busy,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentFailure {
    pub category: FailureCategory,
    /// The complete message, for the user's Event.
    pub message: String,
    /// The time that a program had which took too long. Agents of earlier releases don't say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureCategory {
    /// The message could not be read, or has another version.
    Protocol,
    /// The volume's options or the target are not valid.
    Invalid,
    /// Another call for the same target is still running.
    InProgress,
    /// The agent takes no new mounts.
    Draining,
    /// The mount program failed; the message has its output.
    Refused,
    /// The mount program exceeded its time limit.
    TimedOut,
    InUse,
    System,
    /// A kind that this release does not know.
    #[serde(other)]
    Other,
}

impl FailureCategory {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Protocol => "protocol",
            Self::Invalid => "invalid",
            Self::InProgress => "in-progress",
            Self::Draining => "draining",
            Self::Refused => "refused",
            Self::TimedOut => "timed-out",
            Self::InUse => "in-use",
            Self::System => "system",
            Self::Other => "other",
        }
    }
}

/// A secret value, which `Debug` never shows.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(pub Vec<u8>);

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl Serialize for SecretBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for SecretBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // The decoder's own message would contain the value.
        STANDARD
            .decode(text)
            .map(Self)
            .map_err(|_| serde::de::Error::custom("a secret is not base64"))
    }
}

/// This moment, in seconds since 1970.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs()
}

/// Why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("failed to {0} a message")]
    Io(&'static str, #[source] std::io::Error),
    #[error("a message of {0} bytes is longer than the limit of {MAX_MESSAGE}")]
    TooLong(u64),
    /// Not the JSON of a message.
    #[error("failed to read a message of {0} bytes as JSON")]
    Json(usize, #[source] serde_json::Error),
}

pub async fn send<T: Serialize>(stream: &mut (impl AsyncWrite + Unpin), message: &T) -> Result<(), WireError> {
    let json = serde_json::to_vec(message).map_err(|e| WireError::Json(0, e))?;
    let length = u32::try_from(json.len())
        .ok()
        .filter(|length| *length <= MAX_MESSAGE)
        .ok_or(WireError::TooLong(json.len() as u64))?;
    let write = |e| WireError::Io("write", e);
    stream.write_all(&length.to_le_bytes()).await.map_err(write)?;
    stream.write_all(&json).await.map_err(write)?;
    stream.flush().await.map_err(write)
}

pub async fn receive<T: for<'de> Deserialize<'de>>(stream: &mut (impl AsyncRead + Unpin)) -> Result<T, WireError> {
    let read = |e| WireError::Io("read", e);
    let length = stream.read_u32_le().await.map_err(read)?;
    if length > MAX_MESSAGE {
        return Err(WireError::TooLong(u64::from(length)));
    }
    let mut json = Vec::new();
    // The buffer grows with what arrives: a length alone reserves nothing.
    let got = stream
        .take(u64::from(length))
        .read_to_end(&mut json)
        .await
        .map_err(read)?;
    if got < length as usize {
        return Err(read(std::io::ErrorKind::UnexpectedEof.into()));
    }
    serde_json::from_slice(&json).map_err(|e| WireError::Json(json.len(), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> AgentRequest {
        AgentRequest {
            version: VERSION,
            call: Call::Mount(Box::new(MountCall(MountFields {
                target: "pods/u/volumes/mooring.dev~vcs/v".into(),
                client: "sshfs".into(),
                source: "user@host:/path".into(),
                owner: None,
                fs_type: String::new(),
                mount_options: vec!["ro".into()],
                options: BTreeMap::from([("port".into(), "2222".into())]),
                secrets: BTreeMap::from([("ssh-privatekey".into(), SecretBytes(b"hush\0\xff".to_vec()))]),
                secrets_at: None,
                fs_group: Some(2000),
                label: None,
                pod: PodRef::default(),
                limit_ms: 1000,
            }))),
        }
    }

    #[tokio::test]
    async fn a_message_arrives_as_it_was_sent() {
        let mut wire = Vec::new();
        send(&mut wire, &call()).await.unwrap();
        let got: AgentRequest = receive(&mut wire.as_slice()).await.unwrap();
        let (Call::Mount(got), Call::Mount(sent)) = (got.call, call().call) else {
            panic!("another call");
        };
        assert_eq!(got, sent);
    }

    #[tokio::test]
    async fn a_length_beyond_the_limit_a_cut_message_and_rubbish_are_errors() {
        let read = async |wire: &[u8]| receive::<AgentRequest>(&mut &*wire).await.unwrap_err();
        assert!(matches!(read(&u32::MAX.to_le_bytes()).await, WireError::TooLong(_)));
        assert!(matches!(read(b"\x05\0\0\0{}").await, WireError::Io(..)));
        assert!(matches!(read(b"\x02\0\0\0{}").await, WireError::Json(2, _)));
        assert!(matches!(read(b"").await, WireError::Io(..)));
    }

    #[test]
    fn debug_output_and_errors_show_no_secret() {
        assert!(!format!("{:?}", call()).contains("hush"));
        let error = serde_json::from_str::<SecretBytes>("\"hush!\"").unwrap_err();
        assert!(!error.to_string().contains("hush"));
    }

    /// Adds an unknown field to every object of a message, as a later release may.
    fn grown(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(object) => {
                object.values_mut().for_each(grown);
                // An object that only names a call or an answer has no other field.
                if !(object.len() == 1 && object.values().all(serde_json::Value::is_object)) {
                    object.insert("of-a-later-release".into(), serde_json::json!({"a": [1, null]}));
                }
            }
            serde_json::Value::Array(values) => values.iter_mut().for_each(grown),
            _ => {}
        }
    }

    fn hello() -> AgentAnswer {
        AgentAnswer::Hello(Hello {
            version: VERSION,
            release: "0.1.0".into(),
            draining: false,
            revives: true,
            holds_dead: true,
            mounts: vec![MountState {
                target: "t".into(),
                client: "sshfs".into(),
                source: "s".into(),
                pod: PodRef {
                    name: "p".into(),
                    ..PodRef::default()
                },
                health: MountHealth::Dead,
                dead: Some(Dead::default()),
                reviving: Some(Reviving::default()),
                silent_ms: Some(1),
                on_device: false,
                clean_up_failure: None,
                by_owner: None,
            }],
        })
    }

    #[test]
    fn mounter_and_agent_ignore_what_only_the_other_knows() {
        let mut mount = serde_json::to_value(call()).unwrap();
        mount["call"]["mount"]["options"] = serde_json::json!({});
        mount["call"]["mount"]["secrets"] = serde_json::json!({});
        let unmount = AgentRequest {
            version: VERSION,
            call: Call::Unmount { target: "t".into() },
        };
        for known in [mount, serde_json::to_value(unmount).unwrap()] {
            let mut value = known.clone();
            grown(&mut value);
            assert_ne!(value, known);
            // The keys of a volume's options and of its Secret are not the protocol's.
            for own in ["options", "secrets"] {
                if let Some(call) = value["call"].get_mut("mount") {
                    call[own] = serde_json::json!({});
                }
            }
            let read: AgentRequest = serde_json::from_value(value).unwrap();
            assert_eq!(serde_json::to_value(read).unwrap(), known);
        }
        let known = serde_json::to_value(hello()).unwrap();
        let mut value = known.clone();
        grown(&mut value);
        assert!(value.to_string().matches("of-a-later-release").count() >= 5, "{value}");
        let read: AgentAnswer = serde_json::from_value(value).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), known);
    }

    #[test]
    fn an_agent_of_the_first_release_is_understood() {
        let hello: AgentAnswer = serde_json::from_str(
            r#"{"hello":{"version":1,"release":"0.0.1","draining":false,
                "mounts":[{"target":"t","client":"sshfs","source":"s","health":"mounted"}]}}"#,
        )
        .unwrap();
        let AgentAnswer::Hello(hello) = hello else {
            panic!("another answer")
        };
        assert!(!hello.revives && !hello.mounts[0].is_lost());
        let _: AgentRequest = serde_json::from_str(
            r#"{"version":1,"call":{"mount":{"target":"t","client":"sshfs","source":"s","limit_ms":1}}}"#,
        )
        .unwrap();
    }

    #[test]
    fn dead_mounts_of_an_agent_that_does_not_hold_them_do_not_count() {
        let heard = |holds: &str| {
            let answer: AgentAnswer = serde_json::from_str(&format!(
                r#"{{"hello":{{"version":1,"release":"0.1.0","draining":false,"revives":true,{holds}
                    "mounts":[{{"target":"t","client":"s3","source":"s","health":"mounted",
                                "dead":{{"devices":[{{"major":0,"minor":5}}],"since_ms":1}}}}]}}}}"#
            ))
            .unwrap();
            let AgentAnswer::Hello(hello) = answer else {
                panic!("another answer")
            };
            hello.held(&hello.mounts[0]).is_some()
        };
        assert!(!heard(""));
        assert!(heard(r#""holds_dead":true,"#));
    }

    #[test]
    fn what_a_later_release_adds_does_not_break_this_one() {
        let health: MountHealth = serde_json::from_str(r#""asleep""#).unwrap();
        assert_eq!(health, MountHealth::Busy);
        let failure: AgentFailure =
            serde_json::from_str(r#"{"category":"eaten-by-a-grue","message":"m","since":3}"#).unwrap();
        assert_eq!(failure.category, FailureCategory::Other);
    }
}
