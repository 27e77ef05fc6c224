//! `cargo testbed status`.

use anyhow::Result;

use super::{connect, running};
use crate::command::output;
use crate::layout::Layout;
use crate::namespaces::find_inits;
use crate::progress::say;

/// Prints the state of the cluster; returns whether it runs.
pub fn show(layout: &Layout) -> Result<bool> {
    let inits = find_inits(layout)?;
    if running(layout)?.is_none() {
        say("No cluster runs. `cargo testbed up` brings one up.");
        if !inits.is_empty() || layout.state.exists() {
            say(format!(
                "Parts of one are left (processes: {}; folder: {}): `cargo testbed down` takes them away.",
                inits.len(),
                layout.state.display()
            ));
        }
        return Ok(false);
    }
    let cluster = connect(layout)?;
    say(format!("Kubeconfig: {}", layout.kubeconfig().display()));
    for (role, pid) in &inits {
        say(format!(
            "{role}: process {pid}, logs in {}",
            layout.logs(role).display()
        ));
    }
    for args in [
        &["get", "nodes", "-o", "wide"][..],
        &["get", "pods", "--all-namespaces", "-o", "wide"],
    ] {
        say(output(&mut cluster.kubectl(args))?.trim_end());
    }
    Ok(true)
}
