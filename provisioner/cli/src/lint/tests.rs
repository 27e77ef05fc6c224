use std::process::ExitCode;

use super::{LintArgs, run};

fn lint(text: &str) -> (bool, String) {
    let args = LintArgs {
        files: vec!["-".into()],
        allowed_images: None,
        config_namespaces: None,
    };
    let mut out = Vec::new();
    let code = run(args, &mut text.as_bytes(), &mut out);
    let well = format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS);
    (well, String::from_utf8(out).unwrap())
}

const SILVER: &str = r#"kind: ConfigMap
apiVersion: v1
metadata:
  name: custom-isci-provisioner
  namespace: admin
  labels: {storage-class: silver, type: provisioner-config}
data:
  plugin-name: kubernetes.io/flex-provisioner
  image: custom/iscsi-provision
  service-account-name: foo
  service-token: "23092390532lksf90kwelklfw"
  use-nfs-server: 10.10.2.4
  zone: west
"#;

#[test]
fn the_original_config_map_is_fine() {
    let (well, text) = lint(SILVER);
    assert!(well, "{text}");
    insta::assert_snapshot!(text, @r"
    standard input:1: ok: custom-isci-provisioner: storage class silver, image custom/iscsi-provision, properties use-nfs-server, zone
    1 provisioner ConfigMap checked: no errors, no warnings
    ");
}

#[test]
fn the_missing_space_is_found_however_the_yaml_takes_it() {
    for (from, to, line) in [
        ("  zone: west", "  zone:west", 13),
        // Further in, it is the end of the value above it.
        ("  zone: west", "      zone:west", 13),
        // In braces it is a key without a value.
        ("{storage-class: silver, type", "{storage-class:silver, type", 6),
        ("  image: custom", "  image:custom", 9),
    ] {
        let (well, text) = lint(&SILVER.replace(from, to));
        assert!(!well, "{to}: {text}");
        assert!(
            text.contains(&format!("standard input:{line}: error: ")),
            "{to}: {text}"
        );
        assert!(text.contains("lacks the space after its colon"), "{to}: {text}");
        assert!(text.contains(": 1 error"), "{to}: {text}");
    }
    let flow = "{kind: ConfigMap, apiVersion: v1, metadata: {name: a, labels: {type: provisioner-config}}, data: \
                {plugin-name: mooring.dev/flex-provisioner, image: x, zone:west}}";
    let (well, text) = lint(flow);
    assert!(
        !well && text.contains("zone:west: lacks the space after its colon: write \"zone: west\""),
        "{text}"
    );
}

#[test]
fn every_mistake_has_its_line_and_its_cure() {
    let (well, text) = lint(
        r"# A file with a mistake in nearly every line.
apiVersion: v1
kind: Namespace
metadata: {name: admin}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: Bad_Name
  labels:
    type: provisioner-config
    storage-class: silver
data:
  plugin-name: mooring.dev/flex-provisoner
  sevice-account-name: foo
  timeout: 90
  max-parallel: many
  use-tls: yes
  tolerations: [{key: storage}]
  empty:
  zone:west
---
apiVersion: v1
kind: ConfigMap
metadata: {name: unlabelled}
data: {plugin-name: mooring.dev/flex-provisioner, image: mooring.dev/x}
",
    );
    assert!(!well);
    insta::assert_snapshot!(text);
}

#[test]
fn what_is_not_yaml_says_so_at_its_line() {
    let (well, text) = lint(&SILVER.replace("  zone: west", "\tzone: west"));
    assert!(!well);
    assert!(text.contains("is not YAML"), "{text}");
    let (well, text) = lint(&format!("{SILVER}  zone: east\n"));
    assert!(!well);
    assert!(text.contains("duplicate"), "{text}");
}

#[test]
fn two_that_claim_one_class_are_told() {
    let (well, text) = lint(&format!(
        "{SILVER}---\n{}",
        SILVER.replace("custom-isci-provisioner", "other")
    ));
    assert!(well, "{text}");
    assert!(
        text.contains("standard input:15: warning: storage-class: standard input:1 claims silver too"),
        "{text}"
    );
}

#[test]
fn a_file_with_nothing_to_check_is_an_error() {
    let (well, text) = lint("kind: Pod\n");
    assert!(!well && text.contains("no provisioner ConfigMap"), "{text}");
}

#[test]
fn a_file_that_is_not_there_exits_with_2() {
    let args = LintArgs {
        files: vec!["/nonexistent/x.yaml".into()],
        allowed_images: None,
        config_namespaces: None,
    };
    let mut out = Vec::new();
    let code = run(args, &mut std::io::empty(), &mut out);
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(2)));
}

#[test]
fn the_examples_are_fine() {
    for (name, text) in [
        ("local", include_str!("../../../../configmaps/examples/local.yaml")),
        ("sshfs", include_str!("../../../../configmaps/examples/sshfs.yaml")),
        ("s3", include_str!("../../../../configmaps/examples/s3.yaml")),
        ("cephfs", include_str!("../../../../configmaps/examples/cephfs.yaml")),
        ("rbd", include_str!("../../../../configmaps/examples/rbd.yaml")),
        ("smb", include_str!("../../../../configmaps/examples/smb.yaml")),
        ("silver", include_str!("../../../../configmaps/examples/silver.yaml")),
        ("cinder", include_str!("../../../../configmaps/openstack/cinder.yaml")),
        ("manila", include_str!("../../../../configmaps/openstack/manila.yaml")),
    ] {
        let (well, text) = lint(text);
        assert!(well && text.contains("no warnings"), "{name}: {text}");
    }
}

#[test]
fn the_configmaps_of_the_first_pages_are_fine() {
    for (name, page) in [
        ("README.md", include_str!("../../../../README.md")),
        ("vendors.md", include_str!("../../../../docs/vendors.md")),
    ] {
        let mut blocks = page
            .split("```yaml\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next());
        let config = blocks.find(|block| block.contains("kind: ConfigMap")).unwrap();
        let (well, text) = lint(config);
        assert!(well && text.contains("no warnings"), "{name}: {text}");
    }
}
