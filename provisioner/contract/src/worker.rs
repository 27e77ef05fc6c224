//! What the controller and a worker say to each other. A worker is a Pod of a provisioning image that stays: it is given
//! one run after another over a connection (`pv serve`), so that no Pod has to start for a run.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Value of variable `OPERATION` in a worker, where no run has one: the image is to run `pv serve`.
pub const SERVE: &str = "serve";

/// The port on which a worker listens.
pub const PORT: u16 = 9811;

/// The variable with the port, if it is another one.
pub const PORT_VARIABLE: &str = "MOORING_WORKER_PORT";

/// The variable with the key of the worker's connections.
pub const KEY_VARIABLE: &str = "MOORING_WORKER_KEY";

/// The variable by which an image states, with value `true`, that its containers can be workers.
pub const CAPABLE_VARIABLE: &str = "MOORING_WORKERS";

/// The variable, with value `true`, of a run whose answer may have the field [`CAPABLE_FIELD`]. An earlier controller
/// does not set it, and refuses the field.
pub const ASKED_VARIABLE: &str = "MOORING_WORKERS_ASKED";

/// The field of an answer by which the image states, with value `true`, that its containers can be workers. No option
/// of a volume has such a name.
pub const CAPABLE_FIELD: &str = "mooring.dev/workers";

/// Longest message that a run may leave, in bytes: as long as Kubernetes keeps a termination message
/// (`MaxContainerTerminationMessageLength` in `pkg/kubelet/container/runtime.go`).
pub const MAX_MESSAGE: usize = 4096;

/// Most bytes of what a run printed that are kept, where it left no message (`MaxContainerTerminationMessageLogLength` in
/// the same file).
pub const MAX_LOG: usize = 2048;

/// The answer with [`CAPABLE_FIELD`]. An answer that has no room for it, or no fields, is left as it is.
pub fn with_statement(answer: String) -> String {
    let Ok(mut fields) = serde_json::from_str::<Map<String, Value>>(&answer) else {
        return answer;
    };
    fields.insert(CAPABLE_FIELD.to_owned(), Value::Bool(true));
    let stated = Value::Object(fields).to_string();
    if stated.len() > MAX_MESSAGE { answer } else { stated }
}

/// The answer without [`CAPABLE_FIELD`], and whether the field states that containers of the image can be workers.
pub fn take_statement(answer: String) -> (String, bool) {
    if !answer.contains(CAPABLE_FIELD) {
        return (answer, false);
    }
    let Ok(mut fields) = serde_json::from_str::<Map<String, Value>>(&answer) else {
        return (answer, false);
    };
    let stated = match fields.remove(CAPABLE_FIELD) {
        Some(Value::Bool(stated)) => stated,
        Some(Value::String(text)) => text == "true",
        Some(_) => false,
        None => return (answer, false),
    };
    let rest = if fields.is_empty() {
        String::new()
    } else {
        Value::Object(fields).to_string()
    };
    (rest, stated)
}

/// What the controller asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// Begin a run, if it has not been begun.
    Begin(Order),
    /// Say how things are as soon as that is not so any more, or after some seconds.
    Watch(Report),
}

/// A run to be begun.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Order {
    /// Its number among the worker's runs, as its Pod has it: a worker begins none with a number that is not above all
    /// that it has seen.
    pub number: u64,
    /// Seconds that it may take.
    pub timeout: u64,
    pub properties: BTreeMap<String, String>,
    /// The content of `request.json`.
    pub request: String,
}

/// Without the properties, some of which are secret.
impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// How things are with a worker. It has one run at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// Number of the last run; 0 before the first.
    pub number: u64,
    /// How that ended, if it did: nothing of it runs any more.
    pub ended: Option<RunEnd>,
}

impl Report {
    /// Whether it can be given a run.
    pub fn is_idle(&self) -> bool {
        self.number == 0 || self.ended.is_some()
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunEnd {
    /// 128 and its number for a signal.
    pub exit_code: i32,
    /// What it left as its message, or else, if it failed, what it printed last.
    pub message: String,
    /// Its limit of time ended it.
    pub timed_out: bool,
}

#[cfg(test)]
mod tests {
    use super::{MAX_MESSAGE, take_statement, with_statement};

    #[test]
    fn what_is_stated_beside_an_answer_leaves_the_answer_as_it_was() {
        for answer in [r#"{"client":"nfs","source":"h:/x"}"#, r#"{"classes":["b","a"]}"#] {
            let stated = with_statement(answer.to_owned());
            assert_ne!(stated, answer);
            assert_eq!(take_statement(stated), (answer.to_owned(), true));
            assert_eq!(take_statement(answer.to_owned()), (answer.to_owned(), false));
        }
        assert_eq!(take_statement(with_statement("{}".to_owned())), (String::new(), true));
    }

    #[test]
    fn an_answer_that_has_no_room_for_it_or_is_no_object_is_left_alone() {
        let long = serde_json::json!({"source": "x".repeat(MAX_MESSAGE - 20)}).to_string();
        for answer in [long.as_str(), "done", "[1]", "", "mooring.dev/workers"] {
            assert_eq!(with_statement(answer.to_owned()), answer);
            assert_eq!(take_statement(answer.to_owned()), (answer.to_owned(), false));
        }
    }

    #[test]
    fn only_true_states_it() {
        for (value, stated) in [
            ("true", true),
            ("\"true\"", true),
            ("false", false),
            ("\"no\"", false),
            ("1", false),
        ] {
            let answer = format!(r#"{{"mooring.dev/workers":{value},"client":"nfs"}}"#);
            assert_eq!(
                take_statement(answer),
                (r#"{"client":"nfs"}"#.to_owned(), stated),
                "{value}"
            );
        }
    }
}
