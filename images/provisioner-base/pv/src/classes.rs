//! `pv classes`: hands Mooring the list of what the storage can serve, after `discover`.

use std::io;

use mooring_contract::discovered::{Discovered, MAX_MESSAGE};
use serde_json::{Map, Value, json};

use crate::answer;
use crate::args::Classes;
use crate::error::Error;

/// Reads the list on standard input and writes the termination message.
pub fn run(args: &Classes) -> Result<(), Error> {
    let text = io::read_to_string(io::stdin()).map_err(|source| Error::Source {
        from: "stdin".to_owned(),
        source,
    })?;
    let message = message(&text, args)?;
    answer::write(&args.to, message)
}

/// The termination message of a list with a line for each class.
fn message(text: &str, args: &Classes) -> Result<String, Error> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let classes = lines.map(class).collect::<Result<Vec<_>, _>>()?;
    let mut printed = Map::new();
    if let Some(parameter) = &args.parameter {
        printed.insert("parameter".to_owned(), json!(parameter));
    }
    let mut defaults = Map::new();
    for (field, given) in [("snapshots", args.snapshots), ("expansion", args.expansion)] {
        if given {
            defaults.insert(field.to_owned(), json!(true));
        }
    }
    if !defaults.is_empty() {
        printed.insert("defaults".to_owned(), Value::Object(defaults));
    }
    printed.insert("classes".to_owned(), json!(classes));
    let message = Value::Object(printed).to_string();
    Discovered::parse(&message).map_err(Error::Classes)?;
    if message.len() > MAX_MESSAGE {
        return Err(Error::ClassesTooLong {
            len: message.len(),
            max: MAX_MESSAGE,
        });
    }
    Ok(message)
}

/// One line: a name, words about the class, and behind `--` its parameters.
fn class(line: &str) -> Result<Value, Error> {
    let bad = |word: &str| Error::ClassWord {
        line: line.to_owned(),
        word: word.to_owned(),
    };
    let mut words = line.split_whitespace();
    let name = words.next().unwrap_or_default();
    let mut class = Map::new();
    for word in words.by_ref().take_while(|word| *word != "--") {
        let list = |value: &str| json!(value.split(',').filter(|part| !part.is_empty()).collect::<Vec<_>>());
        let (field, value) = match word.split_once('=') {
            None if ["default", "snapshots", "expansion"].contains(&word) => (word, json!(true)),
            Some((field @ ("default" | "snapshots" | "expansion"), value @ ("true" | "false"))) => {
                (field, json!(value == "true"))
            }
            Some((field @ "capacity", value)) => (field, json!(value.parse::<u64>().map_err(|_| bad(word))?)),
            Some((field @ ("nodes" | "mount-options"), value)) => (field, list(value)),
            _ => return Err(bad(word)),
        };
        class.insert(field.to_owned(), value);
    }
    let mut parameters = Map::new();
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| bad(word))?;
        parameters.insert(key.to_owned(), json!(value));
    }
    if !parameters.is_empty() {
        class.insert("parameters".to_owned(), Value::Object(parameters));
    }
    if class.is_empty() {
        return Ok(json!(name));
    }
    class.insert("name".to_owned(), json!(name));
    Ok(Value::Object(class))
}

#[cfg(test)]
mod tests {
    use super::message;
    use crate::args::Classes;
    use mooring_contract::discovered::Discovered;

    fn args(parameter: Option<&str>) -> Classes {
        Classes {
            parameter: parameter.map(str::to_owned),
            snapshots: false,
            expansion: true,
            to: "/nowhere".into(),
        }
    }

    #[test]
    fn a_line_is_a_class() {
        let text =
            "ssd\n\n hdd default capacity=7 nodes=a,b mount-options=noatime snapshots=false -- tier=2 pool=x=y\n";
        let printed = message(text, &args(Some("pool"))).unwrap();
        assert!(printed.contains(r#""classes":["ssd",{"#), "{printed}");
        let found = Discovered::parse(&printed).unwrap().classes;
        assert_eq!((found[0].name.as_str(), found[0].expansion), ("ssd", Some(true)));
        assert_eq!(found[0].parameters["pool"], "ssd");
        assert_eq!((found[1].default, found[1].capacity), (Some(true), Some(7)));
        assert_eq!(found[1].nodes, ["a", "b"]);
        assert_eq!(found[1].snapshots, Some(false));
        assert_eq!(
            (
                found[1].parameters["tier"].as_str(),
                found[1].parameters["pool"].as_str()
            ),
            ("2", "x=y")
        );
        let none = message("", &args(None)).unwrap();
        assert!(Discovered::parse(&none).unwrap().classes.is_empty());
    }

    #[test]
    fn what_mooring_would_refuse_fails_here() {
        let long: Vec<_> = (0..200).map(|n| format!("a-rather-long-name-of-a-pool-{n}")).collect();
        let long = long.join("\n");
        for (text, parameter, says) in [
            ("ssd", None, "\"ssd\" has no parameters"),
            ("ssd fast", Some("pool"), "\"fast\""),
            ("ssd capacity=much", Some("pool"), "capacity=much"),
            ("ssd -- pool", None, "\"pool\""),
            ("ssd\nssd", Some("pool"), "two classes"),
            (&long, Some("pool"), "Kubernetes takes 4096"),
        ] {
            let error = message(text, &args(parameter)).unwrap_err();
            assert_eq!(error.exit_code(), 78);
            let error = crate::error::chain(&error);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
