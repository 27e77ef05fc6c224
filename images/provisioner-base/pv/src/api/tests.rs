//! The calls against a small server that answers from a list.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};
use ureq::Agent;

use super::Api;
use crate::error::Error;

/// Answers one call after the other and returns the request lines with their bodies.
fn server(answers: Vec<(u16, Value)>) -> (Api, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let seen = thread::spawn(move || {
        let mut seen = Vec::new();
        for (status, answer) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let mut length = 0;
            let mut token = false;
            loop {
                let mut header = String::new();
                reader.read_line(&mut header).unwrap();
                let header = header.trim().to_ascii_lowercase();
                if header.is_empty() {
                    break;
                }
                if let Some(value) = header.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                token |= header == "authorization: bearer t";
            }
            assert!(token, "the call has no token");
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            seen.push(format!("{} {}", line.trim(), String::from_utf8(body).unwrap()));
            let text = answer.to_string();
            write!(
                stream,
                "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            )
            .unwrap();
        }
        seen
    });
    let api = Api {
        agent: Agent::config_builder().http_status_as_error(false).build().new_agent(),
        address,
        token: "t".into(),
    };
    (api, seen)
}

fn volume(claim_uid: &str) -> Value {
    json!({
        "metadata": {"name": "pvc-u1", "uid": "v1"},
        "spec": {"claimRef": {"namespace": "shop", "name": "data", "uid": claim_uid}},
    })
}

fn no(status: u16) -> (u16, Value) {
    (status, json!({"kind": "Status", "message": "because"}))
}

#[test]
fn a_volume_is_made_by_one_call() {
    let (api, seen) = server(vec![(201, volume("u1"))]);
    assert!(api.create(&volume("u1"), "u1").unwrap());
    assert!(seen.join().unwrap()[0].starts_with("POST /api/v1/persistentvolumes HTTP/1.1 {"));
}

#[test]
fn a_volume_that_exists_for_the_same_claim_is_success() {
    let (api, seen) = server(vec![no(409), (200, volume("u1"))]);
    assert!(!api.create(&volume("u1"), "u1").unwrap());
    assert_eq!(
        seen.join().unwrap()[1],
        "GET /api/v1/persistentvolumes/pvc-u1 HTTP/1.1 "
    );
}

#[test]
fn a_volume_of_another_claim_is_left_alone() {
    let (api, seen) = server(vec![no(409), (200, volume("u2"))]);
    let error = api.create(&volume("u1"), "u1").unwrap_err();
    assert_eq!(error.exit_code(), 78);
    assert!(error.to_string().contains("shop/data (u2)"), "{error}");
    seen.join().unwrap();
    let (api, seen) = server(vec![(200, volume("u2"))]);
    assert!(matches!(api.delete("pvc-u1", "u1"), Err(Error::NotOurs { .. })));
    assert_eq!(seen.join().unwrap().len(), 1);
}

#[test]
fn a_volume_that_is_being_deleted_is_waited_for() {
    let mut leaving = volume("u1");
    leaving["metadata"]["deletionTimestamp"] = json!("2026-11-21T00:00:00Z");
    for second in [(200, leaving), no(404)] {
        let (api, seen) = server(vec![no(409), second]);
        assert_eq!(api.create(&volume("u1"), "u1").unwrap_err().exit_code(), 75);
        seen.join().unwrap();
    }
}

#[test]
fn a_volume_is_removed_by_its_own_uid_and_removing_none_is_success() {
    let (api, seen) = server(vec![(200, volume("u1")), (200, json!({}))]);
    assert!(api.delete("pvc-u1", "u1").unwrap());
    let call = &seen.join().unwrap()[1];
    assert!(call.starts_with("DELETE /api/v1/persistentvolumes/pvc-u1 "), "{call}");
    assert!(call.contains(r#""preconditions":{"uid":"v1"}"#), "{call}");
    for answers in [vec![no(404)], vec![(200, volume("u1")), no(404)]] {
        let (api, seen) = server(answers);
        assert!(!api.delete("pvc-u1", "u1").unwrap());
        seen.join().unwrap();
    }
}

#[test]
fn the_api_s_own_message_is_passed_on() {
    let (api, seen) = server(vec![no(422)]);
    let error = api.create(&volume("u1"), "u1").unwrap_err();
    assert_eq!(error.exit_code(), 78);
    assert_eq!(
        error.to_string(),
        "failed to create PersistentVolume pvc-u1: because (HTTP 422)"
    );
    seen.join().unwrap();
}

#[test]
fn no_answer_is_tried_again() {
    let api = Api {
        agent: Agent::new_with_defaults(),
        address: "http://127.0.0.1:1".into(),
        token: "t".into(),
    };
    assert_eq!(api.create(&volume("u1"), "u1").unwrap_err().exit_code(), 75);
}

#[test]
fn an_invalid_certificate_is_refused() {
    for text in [
        "",
        "hello",
        "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n",
    ] {
        let error = Api::new("https://10.0.0.1", "t".into(), text).unwrap_err();
        assert!(matches!(error, Error::BadCa(_)), "{text:?}");
    }
}
