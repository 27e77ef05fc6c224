//! Lets the cluster's bridge pass a packet filter that drops unknown traffic, as Docker's and ufw's do.

use crate::command::{command, find_program, output};

/// Rules of the machine's filter, as `iptables -S` lists them.
fn rules() -> Option<String> {
    find_program("iptables")?;
    output(&mut command("iptables", ["-w", "-S"])).ok()
}

/// The rules to add so that `bridge` passes: none if nothing is dropped.
fn missing(rules: &str, bridge: &str) -> Vec<Vec<String>> {
    let drops = |chain: &str| rules.lines().any(|line| line == format!("-P {chain} DROP"));
    let mut wanted = Vec::new();
    let words = |line: String| line.split(' ').map(str::to_owned).collect();
    if drops("FORWARD") {
        // With br_netfilter, frames between nodes pass the filter too.
        wanted.push(words(format!("-I FORWARD -i {bridge} -o {bridge} -j ACCEPT")));
    }
    if drops("INPUT") {
        wanted.push(words(format!("-I INPUT -i {bridge} -j ACCEPT")));
    }
    wanted
}

/// The deletions that remove the rules of `bridge`.
fn deletions(rules: &str, bridge: &str) -> Vec<Vec<String>> {
    rules
        .lines()
        .filter(|line| line.starts_with("-A ") && line.split(' ').any(|word| word == bridge))
        .map(|line| line.replacen("-A ", "-D ", 1).split(' ').map(str::to_owned).collect())
        .collect()
}

pub(super) fn naming(bridge: &str) -> Vec<String> {
    let rules = rules().unwrap_or_default();
    let ours = rules.lines().filter(|line| line.split(' ').any(|word| word == bridge));
    ours.map(str::to_owned).collect()
}

/// Lets `bridge` pass.
pub(super) fn open(bridge: &str) -> anyhow::Result<()> {
    for rule in missing(&rules().unwrap_or_default(), bridge) {
        output(command("iptables", ["-w"]).args(rule))?;
    }
    Ok(())
}

/// Removes what [`open`] added.
pub(super) fn close(bridge: &str) {
    for rule in deletions(&rules().unwrap_or_default(), bridge) {
        // The rule may be gone meanwhile.
        let _ = output(command("iptables", ["-w"]).args(rule));
    }
}

#[cfg(test)]
mod tests {
    use super::{deletions, missing};

    #[test]
    fn a_filter_that_drops_is_opened_for_the_bridge_and_closed_again() {
        let docker = "-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n-A FORWARD -j DOCKER-USER\n";
        let added = missing(docker, "mooring0");
        assert_eq!(added.len(), 1);
        assert_eq!(added[0].join(" "), "-I FORWARD -i mooring0 -o mooring0 -j ACCEPT");
        let after = format!("{docker}-A FORWARD -i mooring0 -o mooring0 -j ACCEPT\n-A FORWARD -i mooring01 -j DROP\n");
        let removed = deletions(&after, "mooring0");
        assert_eq!(removed.len(), 1);
        assert_eq!(removed[0].join(" "), "-D FORWARD -i mooring0 -o mooring0 -j ACCEPT");
        assert!(missing("-P INPUT ACCEPT\n-P FORWARD ACCEPT\n", "mooring0").is_empty());
    }
}
