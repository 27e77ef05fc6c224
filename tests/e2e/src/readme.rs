//! Keeps README.md's table of clients true: what the clients' records and the stock images say of the same.

use std::collections::BTreeSet;

use mooring_contract::volume::clients::{Need, RECORDS};
use mooring_testbed::layout::repository;

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap()
}

/// The cells of each client's row.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let table = page.split("| client | many nodes write |").nth(1).unwrap();
    let rows = table.lines().skip(2).take_while(|row| row.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

/// The words in backticks of a cell.
fn code(cell: &str) -> BTreeSet<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// As the last column calls what a client needs; what every node has is not there.
fn needed(need: &Need) -> Option<&'static str> {
    match need {
        Need::Fuse => Some("/dev/fuse"),
        Need::FileSystem { module, .. } | Need::Module(module) => Some(module),
        Need::LoopDevices | Need::Pool | Need::HostNamespace | Need::NoIscsid => None,
    }
}

#[test]
fn the_table_of_clients_says_what_their_records_say() {
    let page = read("README.md");
    let rows = rows(&page);
    // The pool is a client of provisioning images alone.
    let records = RECORDS.iter().filter(|record| record.names[0] != "pool");
    assert_eq!(rows.len(), records.clone().count());
    for record in records {
        let name = record.names[0];
        let row = rows.iter().find(|row| code(row[0]).contains(name)).expect(name);
        let is_stock_image = !record.image_needs.is_empty();
        assert_eq!(row[2] == "yes", record.gives_devices, "{name}: raw block");
        assert_eq!(row[6] == "a client container", is_stock_image, "{name}: served by");
        let needs = if is_stock_image {
            record.image_needs
        } else {
            record.kernel_needs
        };
        let needs: Vec<_> = needs.iter().copied().flatten().collect();
        assert_eq!(
            code(row[7]),
            needs.iter().filter_map(|need| needed(need)).collect(),
            "{name}: needs"
        );
        let loops = needs.contains(&&Need::LoopDevices);
        assert_eq!(row[7].contains("loop devices"), loops, "{name}: needs");
    }
}

#[test]
fn the_table_of_clients_says_which_images_take_snapshots() {
    let page = read("README.md");
    for row in rows(&page) {
        let name = *code(row[0]).first().unwrap();
        // A cloud's disks have no image of their own; both clients of iSCSI have one example.
        let example = match name {
            "node-disk" => continue,
            "block" => "iscsi",
            name => name,
        };
        let example = read(&format!("configmaps/examples/{example}.yaml"));
        let image = example
            .split("image: mooring.dev/")
            .nth(1)
            .unwrap()
            .split(':')
            .next()
            .unwrap();
        let files = std::fs::read_dir(repository().join("images").join(image)).unwrap();
        let takes = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        let takes = takes.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
        let takes = takes.filter(|line| line.trim() == "snapshot)").count() > 0;
        assert_eq!(row[4] == "yes", takes, "{name}: {image}");
    }
}
