//! The collector of logs: what it prints has a request of a user in each service that had a part in it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{NAMESPACE, use_services};
use mooring_testbed::command::output;
use mooring_testbed::progress::step;
use mooring_testbed::target::Target;
use mooring_testbed::wait::{Look, wait_for};

/// The component with the collector.
pub(super) const COMPONENT: &str = "log-collector";

/// Who logs the id of that request. Cinder's scheduler logs nothing when all goes well.
const SERVICES: [&str; 4] = ["keystone", "cinder-api", "cinder-volume", "manila-api"];

/// Whose lines are no JSON, and have to be there all the same.
const TEXT: [&str; 2] = ["mariadb", "ceph-mon"];

const LIMIT: Duration = Duration::from_mins(1);

/// What an attribute of each record begins with: the file that it was read from.
const FILE: &str = "log.file.path=/var/log/pods/";

/// Has each service do something for one request, and looks for that in what the collectors have printed.
pub(super) fn find_a_request(target: &Target) -> Result<()> {
    step("the collector has a request of each service", |_| {
        let made = use_services(target, "request", &[])?;
        let id = made.as_str().context("use.py request answered no id")?;
        wait_for(&format!("{id} in the collected logs"), LIMIT, &[], || {
            match records(target) {
                Ok(all) => {
                    let with_id = pods(all.lines().filter(|line| line.contains(id)));
                    let any = pods(all.lines());
                    let lacking = |pods: &BTreeSet<String>, name: &str| !pods.iter().any(|pod| pod.starts_with(name));
                    let missing: Vec<_> = SERVICES
                        .iter()
                        .filter(|name| lacking(&with_id, name))
                        .chain(TEXT.iter().filter(|name| lacking(&any, name)))
                        .collect();
                    if missing.is_empty() {
                        Look::Ready(())
                    } else {
                        Look::NotYet(format!("nothing of {missing:?}, but of {with_id:?}"))
                    }
                }
                Err(error) => Look::NotYet(format!("{error:#}")),
            }
        })?;
        use_services(target, "forget", &[&Value::from(id)])?;
        Ok(())
    })
}

fn records(target: &Target) -> Result<String> {
    let selector = format!("app.kubernetes.io/name={COMPONENT}");
    let mut logs = target.kubectl(["-n", NAMESPACE, "logs", "--tail=-1", "-l", &selector]);
    Ok(output(&mut logs)?)
}

/// The names of the Pods whose records these are.
fn pods<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let prefix = format!("{FILE}{NAMESPACE}_");
    lines
        .filter_map(|line| line.split_once(prefix.as_str()))
        .filter_map(|(_, rest)| rest.split('_').next())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::pods;

    #[test]
    fn a_record_says_which_pod_it_is_of() {
        let record = "a text log.file.path=/var/log/pods/openstack_cinder-api-5d-x_0b1c/api/0.log log.iostream=stderr";
        assert_eq!(
            pods([record, "openstack_other"].into_iter()),
            ["cinder-api-5d-x".to_owned()].into()
        );
    }
}
