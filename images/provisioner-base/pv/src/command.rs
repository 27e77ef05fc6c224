//! The commands: reads the request, decides with [`crate::volume`], and acts.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use mooring_contract::operation::Operation;
use mooring_contract::property::keys;
use mooring_contract::request::{Member, Request};
use mooring_contract::volume;
use mooring_seal::{Purpose, seal};
use serde_json::Value;

use crate::api::Api;
use crate::args::{Args, Create, Expect, Get, OptionsArgs, PvCommand};
use crate::error::Error;
use crate::given::RunInput;
use crate::volume::{Extra, VolumeSource, options_from_args, pairs_from_args, persistent_volume, termination_message};
use crate::{answer, classes, copy, expect, lock, serve};

pub fn run(args: Args) -> Result<(), Error> {
    let Args {
        run_dir,
        token_file,
        command,
    } = args;
    let given = RunInput::at(&run_dir, token_file);
    match command {
        PvCommand::Create(create) => self::create(&given, create),
        PvCommand::Delete => delete(&given),
        PvCommand::Expect(Expect { known }) => expect::check(&given.request()?, &known),
        PvCommand::Get(get) => self::get(&given, &get),
        PvCommand::Members => members(&given),
        PvCommand::Options(options) => self::options(&given, options),
        PvCommand::Classes(classes) => classes::run(&classes),
        PvCommand::Lock(lock) => Err(lock::run(&lock)),
        PvCommand::Copy(copy) => copy::run(&copy),
        PvCommand::Serve(serve) => serve::run(serve, &run_dir),
    }
}

fn create(given: &RunInput, args: Create) -> Result<(), Error> {
    let Create {
        options,
        secret,
        read_only,
        source_json,
        node,
        capacity,
    } = args;
    let source = match source_json {
        Some(file) => VolumeSource::Other(read_source(&file)?),
        None => VolumeSource::Flex {
            options: options_from_args(&options)?,
            secret: secret.map(|secret| secret.parse()).transpose()?,
            read_only,
        },
    };
    let request = given.request()?;
    let extra = Extra { source, node, capacity };
    let volume = persistent_volume(&request, extra)?;
    let made = api(given, &request)?.create(&volume, &request.pvc_uid)?;
    let state = if made { "is made" } else { "was there already" };
    say(&format!("PersistentVolume {} {state}\n", request.pv_name))
}

fn delete(given: &RunInput) -> Result<(), Error> {
    let request = given.request()?;
    let there = api(given, &request)?.delete(&request.pv_name, &request.pvc_uid)?;
    let state = if there { "is deleted" } else { "was gone already" };
    say(&format!("PersistentVolume {} {state}\n", request.pv_name))
}

fn get(given: &RunInput, args: &Get) -> Result<(), Error> {
    let Get {
        property,
        volume,
        source,
        member,
        default,
    } = args;
    let name = property.clone();
    let (value, missing) = if let Some(pv_name) = member {
        let value = of_member(&given.request()?, pv_name, property)?;
        let (pv_name, option) = (pv_name.clone(), name);
        (value, Error::NoMemberOption { pv_name, option })
    } else if *volume {
        (given.request()?.volume.remove(property), Error::NoOption(name))
    } else if *source {
        let value = given
            .request()?
            .source
            .and_then(|mut source| source.volume.remove(property));
        (value, Error::NoSourceOption(name))
    } else {
        (given.property(property)?, Error::NoProperty(name))
    };
    let value = value.or_else(|| default.clone()).ok_or(missing)?;
    say(&format!("{value}\n"))
}

/// An option of one volume of the group, or a parameter that it was made with.
fn of_member(request: &Request, pv_name: &str, name: &str) -> Result<Option<String>, Error> {
    let mut members = request.members().iter();
    let member = members.find(|member| member.pv_name == pv_name);
    let member = member.ok_or_else(|| Error::NoMember(pv_name.to_owned()))?;
    Ok(member.volume.get(name).or_else(|| member.parameters.get(name)).cloned())
}

fn members(given: &RunInput) -> Result<(), Error> {
    say(&lines(given.request()?.members()))
}

/// What `pv members` prints: words that a shell's `read` takes apart.
fn lines(members: &[Member]) -> String {
    let line = |member: &Member| {
        let Member {
            pv_name,
            snapshot_name,
            size,
            ..
        } = member;
        let pv_name = if pv_name.is_empty() { "-" } else { pv_name };
        format!("{pv_name} {snapshot_name} {size}\n")
    };
    members.iter().map(line).collect()
}

fn options(given: &RunInput, args: OptionsArgs) -> Result<(), Error> {
    let OptionsArgs {
        options,
        secret,
        seal,
        to,
    } = args;
    let secret = secret.map(|secret| secret.parse()).transpose()?;
    // What an 'attach' says is beside the options that the volume has.
    let attaches = given
        .request()
        .is_ok_and(|request| request.operation == Operation::Attach);
    let mut options = if attaches {
        pairs_from_args(&options)?
    } else {
        options_from_args(&options)?
    };
    if !seal.is_empty() {
        options.insert(volume::keys::SEALED.to_owned(), sealed(given, &seal)?);
    }
    let text = termination_message(options, secret)?;
    answer::write(&to, text)
}

/// The secrets of a connection, for the controller alone.
fn sealed(given: &RunInput, args: &[String]) -> Result<String, Error> {
    let key = given.property(keys::ANSWER_KEY)?.ok_or(Error::NoAnswerKey)?;
    let mut secrets = BTreeMap::new();
    for (name, file) in pairs_from_args(args)? {
        let path = PathBuf::from(&file);
        let text = fs::read_to_string(&path).map_err(|source| Error::Source { from: file, source })?;
        secrets.insert(name, text.trim_end_matches('\n').to_owned());
    }
    let request = given.request()?;
    let purpose = Purpose {
        pv_name: &request.pv_name,
        node: &request.node_name,
    };
    Ok(seal(&key, purpose, &secrets)?)
}

fn api(given: &RunInput, request: &Request) -> Result<Api, Error> {
    if request.kube_api.is_empty() {
        return Err(Error::NoApi);
    }
    Api::new(&request.kube_api, given.token()?, &given.certificate()?)
}

fn read_source(file: &Path) -> Result<Value, Error> {
    let stdin = file == Path::new("-");
    let from = if stdin {
        "stdin".to_owned()
    } else {
        file.display().to_string()
    };
    let read = if stdin {
        io::read_to_string(io::stdin())
    } else {
        fs::read_to_string(file)
    };
    let text = match read {
        Ok(text) => text,
        Err(source) => return Err(Error::Source { from, source }),
    };
    serde_json::from_str(&text).map_err(|source| Error::SourceJson { from, source })
}

pub(crate) fn say(text: &str) -> Result<(), Error> {
    let write = |source| Error::Write {
        path: "stdout".into(),
        source,
    };
    io::stdout().write_all(text.as_bytes()).map_err(write)
}

#[cfg(test)]
mod tests {
    use super::{lines, of_member, run};
    use crate::args::Args;
    use crate::volume::tests::request;
    use clap::{CommandFactory as _, Parser as _};
    use mooring_contract::request::{Member, Snapshot};
    use std::fs;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn options_are_passed_on_in_the_termination_message() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("termination-log");
        let args = [
            "pv",
            "options",
            "client=local",
            "source=pvc-u1.img",
            "--to",
            to.to_str().unwrap(),
        ];
        run(Args::parse_from(args)).unwrap();
        let text = fs::read_to_string(&to).unwrap();
        assert_eq!(text, r#"{"client":"local","source":"pvc-u1.img"}"#);
    }

    #[test]
    fn the_volumes_of_a_group_are_listed_and_each_has_its_own_options() {
        let member = |pv_name: &str, size| Member {
            snapshot_name: format!("groupsnapshot-1.{pv_name}"),
            pv_name: pv_name.into(),
            size,
            volume: [("source".to_owned(), format!("{pv_name}.img"))].into(),
            parameters: [
                ("source".to_owned(), "-".to_owned()),
                ("tier".to_owned(), "1".to_owned()),
            ]
            .into(),
            ..Member::default()
        };
        let members = vec![
            member("pvc-1", 5),
            Member {
                snapshot_name: "monday".into(),
                ..Member::default()
            },
        ];
        assert_eq!(lines(&members), "pvc-1 groupsnapshot-1.pvc-1 5\n- monday 0\n");
        let mut request = request();
        request.snapshot = Some(Snapshot {
            name: "groupsnapshot-1".into(),
            content_name: "c".into(),
            content_uid: "u".into(),
            backup: false,
            members: Some(members),
        });
        let option = |pv_name: &str, name: &str| of_member(&request, pv_name, name);
        assert_eq!(option("pvc-1", "source").unwrap().as_deref(), Some("pvc-1.img"));
        assert_eq!(option("pvc-1", "tier").unwrap().as_deref(), Some("1"));
        assert_eq!(option("pvc-1", "pool").unwrap(), None);
        assert_eq!(option("pvc-2", "source").unwrap_err().exit_code(), 78);
    }

    #[test]
    fn secrets_are_sealed_with_the_key_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let key = mooring_seal::new_key().unwrap();
        let mut request = request();
        request.node_name = "a".into();
        request.operation = mooring_contract::operation::Operation::Attach;
        fs::write(at("request.json"), serde_json::to_string(&request).unwrap()).unwrap();
        fs::create_dir(at("properties")).unwrap();
        fs::write(at("password"), "geheim\n").unwrap();
        let (to, seal, run_dir) = (at("log"), format!("chap-password={}", at("password")), at(""));
        let args = [
            "pv",
            "--run-dir",
            &run_dir,
            "options",
            "source=x",
            "--seal",
            &seal,
            "--to",
            &to,
        ];
        let error = run(Args::parse_from(args)).unwrap_err();
        assert_eq!(error.exit_code(), 78, "{error}");
        fs::write(at("properties/answer-key"), &key).unwrap();
        run(Args::parse_from(args)).unwrap();
        let text = fs::read_to_string(&to).unwrap();
        assert!(!text.contains("geheim"));
        let message: serde_json::Value = serde_json::from_str(&text).unwrap();
        let purpose = mooring_seal::Purpose {
            pv_name: &request.pv_name,
            node: "a",
        };
        let opened = mooring_seal::open(&key, purpose, message["sealed"].as_str().unwrap()).unwrap();
        assert_eq!(opened["chap-password"], "geheim");
        assert_eq!(message["source"], "x");
    }

    #[test]
    fn a_wrong_source_is_refused_before_any_call() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(
            folder.path().join("request.json"),
            serde_json::to_string(&request()).unwrap(),
        )
        .unwrap();
        let source = folder.path().join("source.json");
        fs::write(&source, r#"{"hostPath": {"path": "/"}}"#).unwrap();
        let run_dir = folder.path().to_str().unwrap();
        let args = [
            "pv",
            "--run-dir",
            run_dir,
            "create",
            "--source-json",
            source.to_str().unwrap(),
        ];
        let error = run(Args::parse_from(args)).unwrap_err();
        assert_eq!(error.exit_code(), 78);
        assert!(error.to_string().contains("backend-volume"), "{error}");
    }

    #[test]
    fn outside_a_provisioning_pod_the_error_says_so() {
        let args = ["pv", "--run-dir", "/nowhere", "create", "--option", "client=nfs"];
        let error = run(Args::parse_from(args)).unwrap_err().to_string();
        assert!(error.contains("inside a provisioning Pod"), "{error}");
    }
}
