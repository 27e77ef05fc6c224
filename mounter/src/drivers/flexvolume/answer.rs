//! An answer to the kubelet: one JSON object whose first key is `status`, as the shim expects.

use serde::Serialize;

use crate::drivers::event_text;

/// What the kubelet is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlexVolumeAnswer {
    Success,
    /// To `init`: what this driver can do.
    Init,
    /// To `getvolumename`. The kubelet of today asks and then uses the PV's name all the same.
    VolumeName(String),
    /// The kubelet does its own default instead, and never asks again for as long as it lives.
    NotSupported,
    Failure(String),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume_name: Option<&'a str>,
}

impl FlexVolumeAnswer {
    /// A failure, its message cut to what an Event can show.
    pub fn failure(message: String) -> Self {
        Self::Failure(event_text::cut(message))
    }

    /// A word out of a fixed few, for metrics and the log.
    pub fn status(&self) -> &'static str {
        match self {
            Self::Success | Self::Init | Self::VolumeName(_) => "Success",
            Self::NotSupported => "Not supported",
            Self::Failure(_) => "Failure",
        }
    }

    /// As it goes over the wire.
    pub fn to_json(&self) -> String {
        let (message, volume_name) = match self {
            Self::Init => return mooring_shim::INIT_ANSWER.to_owned(),
            Self::Success | Self::NotSupported => (None, None),
            Self::VolumeName(name) => (None, Some(name.as_str())),
            Self::Failure(message) => (Some(message.as_str()), None),
        };
        let wire = Wire {
            status: self.status(),
            message,
            volume_name,
        };
        // Text only: it can't fail.
        serde_json::to_string(&wire).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::FlexVolumeAnswer;
    use mooring_shim::answer::{AnswerStatus as Seen, read};

    #[test]
    fn the_shim_reads_every_answer_as_it_is_meant() {
        for (answer, seen) in [
            (FlexVolumeAnswer::Success, Seen::Success),
            (FlexVolumeAnswer::Init, Seen::Success),
            (FlexVolumeAnswer::VolumeName("a\"}{".into()), Seen::Success),
            (FlexVolumeAnswer::NotSupported, Seen::Other),
            (
                FlexVolumeAnswer::failure("server \"x\\y\"\n is dead }".into()),
                Seen::Other,
            ),
        ] {
            let json = answer.to_json();
            assert_eq!(read(json.as_bytes()), seen, "{json}");
            let value: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(value["status"], answer.status());
        }
    }

    #[test]
    fn a_message_is_no_longer_than_an_event() {
        let json = FlexVolumeAnswer::failure("ü".repeat(4000)).to_json();
        assert!(json.len() < 1000 && json.contains('…'));
    }
}
