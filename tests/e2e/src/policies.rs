//! Keeps the admission policies and the clients' pages in line with the one list of options that a volume may have.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use mooring_contract::volume::clients::{FsGroup, RECORDS, Speaker, TENANT_MOUNT_OPTIONS, UNKNOWN_OPTION};
use mooring_contract::volume::{FILE_OPTIONS, FORBIDDEN_OPTIONS, VIEWS};
use mooring_testbed::layout::repository;
use mooring_yaml::documents;
use serde_json::Value;

/// The policies, with all white space reduced to single blanks.
fn policies() -> String {
    let text = std::fs::read_to_string(repository().join("configmaps/install/admission.yaml")).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The list as a policy has it: for each client, how `source` and each option that this speaker may set are checked.
fn table(speaker: Speaker) -> String {
    let mut clients = Vec::new();
    for record in RECORDS {
        let mut entry = format!("'source': r'{}'", record.source.pattern);
        if speaker != Speaker::Tenant {
            let types = record.fs_types.join("|");
            let types = if types.is_empty() {
                ".*".to_owned()
            } else {
                format!("(|{types})")
            };
            write!(entry, ", 'fs-type': r'^{types}$'").unwrap();
        }
        for option in record.options.iter().filter(|option| option.by <= speaker) {
            write!(entry, ", '{}': r'{}'", option.name, option.value.pattern).unwrap();
        }
        clients.extend(record.names.iter().map(|name| format!("'{name}': {{{entry}}}")));
    }
    format!("{{{}}}", clients.join(", "))
}

fn words(words: &[&str]) -> String {
    words
        .iter()
        .map(|word| format!("'{word}'"))
        .collect::<Vec<_>>()
        .join(", ")
}

#[test]
fn the_policies_contain_the_list_word_for_word() {
    let policies = policies();
    for (speaker, count, whose) in [
        (Speaker::Tenant, 1, "Pods"),
        (Speaker::Image, 3, "makers and the controller"),
    ] {
        let table = table(speaker);
        assert_eq!(policies.matches(&table).count(), count, "policies for {whose}: {table}");
    }
    assert_eq!(policies.matches("- name: clients expression:").count(), 4);
    // A vendor's own client.
    assert_eq!(
        policies.matches(&format!("key.matches(r'{UNKNOWN_OPTION}')")).count(),
        3
    );
    let smb = RECORDS.iter().find(|record| record.names.contains(&"smb")).unwrap();
    let slashes = format!("in [{}]", words(smb.names));
    assert_eq!(policies.matches(&slashes).count(), 7, "{slashes}");
}

/// Each API group and resource that such a rule names.
fn resources_of(rule: &Value) -> Vec<(String, String)> {
    let texts = |key: &str| {
        let all = rule[key].as_array().into_iter().flatten();
        all.map(|text| text.as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let resources = texts("resources");
    let of_group = |group: String| resources.iter().map(move |resource| (group.clone(), resource.clone()));
    texts("apiGroups").into_iter().flat_map(of_group).collect()
}

#[test]
fn whatever_the_controller_may_change_keeps_its_owners_and_finalizers() {
    let read = |file: &str| documents(&std::fs::read_to_string(repository().join(file)).unwrap()).unwrap();
    let may_change = |rule: &&Value| {
        let verbs = rule["verbs"].as_array().unwrap();
        verbs.iter().any(|verb| verb == "patch" || verb == "update")
    };
    let mut changed: BTreeSet<_> = read("configmaps/install/provisioner.yaml")
        .iter()
        .filter_map(|object| object["rules"].as_array())
        .flatten()
        .filter(may_change)
        .flat_map(resources_of)
        .collect();
    // The Lease is its own, and policy mooring-controller-events keeps it to its own Events.
    for (group, resource) in [("coordination.k8s.io", "leases"), ("events.k8s.io", "events")] {
        assert!(changed.remove(&(group.to_owned(), resource.to_owned())), "{resource}");
    }
    let policies = read("configmaps/install/admission.yaml");
    let policy = policies
        .iter()
        .find(|object| object["metadata"]["name"] == "mooring-controller-metadata")
        .unwrap();
    let judged = policy["spec"]["matchConstraints"]["resourceRules"].as_array().unwrap();
    assert_eq!(judged.iter().flat_map(resources_of).collect::<BTreeSet<_>>(), changed);
}

#[test]
fn the_policies_judge_mount_options_and_file_systems_as_the_controller_does() {
    let policies = policies();
    let tenant = format!("option.trim() in ['', {}]", words(TENANT_MOUNT_OPTIONS));
    assert!(policies.contains(&tenant), "{tenant}");
    let names = format!("r'^(suid|dev|source|{})(=|$)'", FILE_OPTIONS.join("|"));
    assert_eq!(policies.matches(&names).count(), 2, "{names}");
    let forbidden = format!("r'^({})(=|$)'", FORBIDDEN_OPTIONS.join("|"));
    assert_eq!(policies.matches(&forbidden).count(), 2, "{forbidden}");
    let views = format!("- name: views expression: >- [{}]", words(VIEWS));
    assert_eq!(policies.matches(&views).count(), 3, "{views}");
    for record in RECORDS.iter().filter(|record| !record.tenant_fs_types.is_empty()) {
        assert_eq!(record.tenant_fs_types, ["ext4", "xfs"]);
    }
    let mut theirs: Vec<_> = RECORDS
        .iter()
        .filter(|record| !record.tenant_fs_types.is_empty())
        .flat_map(|record| record.names.iter().copied())
        .collect();
    theirs.sort_unstable();
    let types = format!("in [{}] ? ['', 'ext4', 'xfs'] : ['']", words(&theirs));
    assert!(policies.contains(&types), "{types}");
}

/// The first words in backticks of a table of options.
fn options_in(page: &str) -> BTreeSet<&str> {
    let rows = page.split("| option | |\n").nth(1).unwrap_or_default().lines().skip(1);
    rows.take_while(|row| row.starts_with('|'))
        .filter_map(|row| row.split('`').nth(1))
        .collect()
}

#[test]
fn the_pages_of_clients_have_all_their_options_and_no_others() {
    let common = ["client", "source", "fs-type", "mount-options"];
    let mut pages = 0;
    for record in RECORDS {
        let name = record.names[0];
        let Ok(page) = std::fs::read_to_string(repository().join(format!("docs/clients/{name}.md"))) else {
            continue;
        };
        pages += 1;
        let told: BTreeSet<_> = options_in(&page)
            .into_iter()
            .filter(|option| !common.contains(option))
            .collect();
        let known: BTreeSet<_> = record.options.iter().map(|option| option.name).collect();
        assert_eq!(told, known, "docs/clients/{name}.md");
    }
    assert!(pages >= 8, "only {pages} pages were found");
}

#[test]
fn the_administrators_page_says_of_each_client_how_files_come_to_belong_to_the_pod_s_group() {
    let page = std::fs::read_to_string(repository().join("docs/administrators.md")).unwrap();
    let table = page.split("| client | how |\n").nth(1).unwrap();
    let rows: Vec<_> = table.lines().skip(1).take_while(|row| row.starts_with('|')).collect();
    for record in RECORDS {
        let expected = match record.fs_group {
            FsGroup::ByOwner => 0,
            FsGroup::ByMountOption => 1,
            FsGroup::Unable => 2,
        };
        let name = format!("`{}`", record.names[0]);
        let told: Vec<_> = (0..rows.len()).filter(|row| rows[*row].contains(&name)).collect();
        assert_eq!(told, [expected], "{name}");
    }
}
