//! A volume's life, with each of its runs cut off at each of its calls: in the end there is one of everything, and then
//! nothing.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::given::tests::given;
use crate::run::run;
use crate::test_cinder::{Cut, State, serve};
use crate::test_server::PACE;

/// More calls than any run makes, without Nova and with it.
const CALLS: [usize; 2] = [14, 30];

/// The operations, in the order of a life, with how many volumes, snapshots and attachments there are after each.
const LIFE: [(&str, [usize; 3]); 6] = [
    ("provision", [1, 0, 0]),
    ("attach", [1, 0, 1]),
    ("snapshot", [1, 1, 1]),
    ("detach", [1, 1, 0]),
    // The volume goes with its last snapshot.
    ("delete", [1, 1, 0]),
    ("delete-snapshot", [0, 0, 0]),
];

/// Nova's server that a node is.
const SERVER: &str = "0b1c2d3e-0000-4a5b-8c7d-0123456789ab";

fn change(operation: &str, volume: &Value, provider: &str) -> Value {
    json!({
        "operation": operation, "node-name": "a", "volume": volume,
        "attachment": {"addresses": ["10.0.0.7"], "initiator": "iqn.x:a-1", "provider-id": provider},
        "snapshot": {"name": "snapshot-1", "content-name": "c", "content-uid": "u"},
    })
}

#[test]
fn whatever_call_a_run_is_cut_off_at_there_is_one_of_everything_in_the_end() {
    live("", "rbd://h:1/p/i");
}

#[test]
fn so_it_is_on_a_node_that_is_nova_s_server() {
    live(&format!("openstack:///{SERVER}"), "serial://id001");
}

fn live(provider: &str, source: &str) {
    let state = Arc::new(Mutex::new(State::default()));
    let url = serve(&state);
    let clouds = format!("clouds: {{one: {{auth: {{auth_url: '{url}', username: u, password: p, project_name: x}}}}}}");
    let key = mooring_seal::new_key().unwrap();
    let properties = [
        ("clouds.yaml", clouds.as_str()),
        ("service", "cinder"),
        ("client", "rbd"),
        ("ceph-key", "K=="),
        ("answer-key", key.as_str()),
    ];
    let calls = CALLS[usize::from(!provider.is_empty())];
    for cut in (1..=calls).flat_map(|at| [false, true].map(|done| Cut { at, done })) {
        *state.lock().unwrap() = State::with_server(SERVER);
        let mut volume = json!({});
        for (operation, wanted) in LIFE {
            let (folder, _) = given(&change(operation, &volume, provider), &properties);
            let to = folder.path().join("message");
            state.lock().unwrap().cut(Some(cut));
            // What a run that was killed has printed, nobody has.
            let _ = run(folder.path(), &to, PACE);
            state.lock().unwrap().cut(None);
            let again = run(folder.path(), &to, PACE);
            assert!(again.is_ok(), "{operation} after {cut:?}: {again:?}");
            let state = state.lock().unwrap();
            let there = [state.volumes.len(), state.snapshots.len(), state.attachments.len()];
            assert_eq!(there, wanted, "{operation} after {cut:?}: {state:?}");
            let of_nova = if provider.is_empty() { 0 } else { wanted[2] };
            assert_eq!(state.disks.len(), of_nova, "{operation} after {cut:?}: {state:?}");
            let said = || -> Value { serde_json::from_str(&std::fs::read_to_string(&to).unwrap()).unwrap() };
            match operation {
                "provision" => volume = said(),
                "attach" => assert_eq!(said()["source"], source, "{cut:?}"),
                _ => {}
            }
        }
    }
}
