//! How long a claim and an attachment take by Mooring, and how long the same takes Cinder alone, in turns.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mooring_contract::names::annotations;
use serde_json::json;

use super::{CLAIMS, LIMIT, TRIAL, Trial, pod, wait_until};
use crate::use_services;
use mooring_testbed::command::output;
use mooring_testbed::progress::{say, step};

const ROUNDS: usize = 5;

const NODE: &str = "node-1";

/// Prints the medians. They are of one run, beside whatever else the machine does.
pub(super) fn run(trial: &Trial<'_>) -> Result<()> {
    let before = trial.everything()?;
    let mut rounds = Vec::new();
    step(
        &format!("{ROUNDS} volumes by Mooring and {ROUNDS} by Cinder alone"),
        |_| {
            for round in 0..ROUNDS {
                rounds.push(Round::of(trial, round)?);
            }
            Ok(())
        },
    )?;
    for (at, what) in ["claim → Bound", "Pod made → attached"].into_iter().enumerate() {
        let own = median(rounds.iter().map(|round| round.own[at]));
        let ours = median(rounds.iter().map(|round| round.ours[at]));
        say(format!(
            "  {what}: {:.2} s, and {:.2} s by Cinder alone, so {:.2} s more",
            ours.as_secs_f64(),
            own.as_secs_f64(),
            ours.saturating_sub(own).as_secs_f64()
        ));
    }
    // Of the volumes that a project may have, a later step needs some.
    step("remove these volumes", |_| {
        for round in 0..ROUNDS {
            trial.kubectl(&["-n", TRIAL, "delete", "persistentvolumeclaim", &name(round)])?;
        }
        wait_until("nothing of them to be left", || {
            let there = trial.everything()?;
            ensure!(there == before, "OpenStack has {} things", there.len());
            Ok(())
        })
    })
}

fn name(round: usize) -> String {
    format!("cinder-timed-{round}")
}

/// Cinder's own times, and those by Mooring right after that: of a volume, and of its attachment.
struct Round {
    own: [Duration; 2],
    ours: [Duration; 2],
}

impl Round {
    fn of(trial: &Trial<'_>, round: usize) -> Result<Self> {
        let own = use_services(trial.target, "times", &[&json!(1)])?;
        let seconds = |what: &str| {
            let time = own[what][0]
                .as_f64()
                .with_context(|| format!("no time of what Cinder {what}"))?;
            Ok::<_, anyhow::Error>(Duration::try_from_secs_f64(time)?)
        };
        let name = name(round);
        let began = Instant::now();
        trial.put(&CLAIMS[0].named(&name, 1))?;
        let claim = format!("persistentvolumeclaim/{name}");
        wait(trial, &["-n", TRIAL, &claim], "{.status.phase}=Bound")?;
        let bound = began.elapsed();
        let volume = trial.field("persistentvolumeclaim", &name, "{.spec.volumeName}")?;
        let began = Instant::now();
        trial.put(&pod(&name, NODE, "echo written >/data/letter; sync; sleep 100000"))?;
        let noted = format!(
            "{{.metadata.annotations.{}}}",
            annotations::ATTACHED_TO.replace('.', "\\.")
        );
        wait(trial, &[&format!("persistentvolume/{volume}")], &noted)?;
        let attached = began.elapsed();
        let pod = format!("{name}-{NODE}");
        trial.ready(&pod)?;
        trial.delete_pod(&pod)?;
        Ok(Self {
            own: [seconds("made")?, seconds("attached")?],
            ours: [bound, attached],
        })
    }
}

/// Waits for a field of an object, as soon as the API server has it.
fn wait(trial: &Trial<'_>, object: &[&str], field: &str) -> Result<()> {
    let mut wait = trial.target.kubectl(["wait"]);
    wait.args(object)
        .arg(format!("--for=jsonpath={field}"))
        .arg(format!("--timeout={}s", LIMIT.as_secs()));
    output(&mut wait)?;
    Ok(())
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
