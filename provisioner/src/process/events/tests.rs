//! What becomes of an Event that the API does not take.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body as Answer;
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{EventRecorder, Note};
use crate::process::metrics::Metrics;

/// A request for an Event: its verb, and the Event's note, name and time.
#[derive(Debug, Clone, PartialEq)]
struct Asked {
    method: Method,
    text: String,
    name: String,
    time: Value,
}

/// An API server for Events.
#[derive(Debug, Clone, Default)]
struct FakeEvents {
    asked: Arc<Mutex<Vec<Asked>>>,
    /// The codes of its answers, then the one of all others.
    answers: Arc<Mutex<(VecDeque<u16>, u16)>>,
}

impl FakeEvents {
    fn answering(first: &[u16], then: u16) -> Self {
        let api = Self::default();
        api.answers_with(first, then);
        api
    }

    fn answers_with(&self, first: &[u16], then: u16) {
        *self.answers.lock().unwrap() = (first.iter().copied().collect(), then);
    }

    fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
                let in_path = parts.uri.path().rsplit('/').next().unwrap_or_default();
                let in_body = body["metadata"]["name"].as_str();
                api.asked.lock().unwrap().push(Asked {
                    method: parts.method,
                    text: body["note"].as_str().unwrap_or_default().to_owned(),
                    name: in_body.unwrap_or(in_path).to_owned(),
                    time: body["eventTime"].clone(),
                });
                let code = {
                    let mut answers = api.answers.lock().unwrap();
                    let then = answers.1;
                    answers.0.pop_front().unwrap_or(then)
                };
                let answer = if code < 300 {
                    body
                } else {
                    json!({"kind": "Status", "status": "Failure", "message": "no", "code": code})
                };
                let response = Response::builder().status(code);
                Ok::<_, Infallible>(response.body(Answer::from(answer.to_string())).unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// What was asked since.
    fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    fn texts(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.text).collect()
    }
}

struct Stage {
    api: FakeEvents,
    events: EventRecorder,
    metrics: Metrics,
    stop: CancellationToken,
    written: JoinHandle<()>,
}

impl Stage {
    fn open(api: FakeEvents) -> Self {
        let metrics = Metrics::new();
        let (events, writer) = EventRecorder::new(metrics.clone());
        let stop = CancellationToken::new();
        let written = tokio::spawn(writer.run(api.client(), "me".to_owned(), stop.clone()));
        Self {
            api,
            events,
            metrics,
            stop,
            written,
        }
    }

    /// Tells of something, and gives the writer a moment.
    async fn tell(&self, text: &str) {
        let claim = ObjectReference {
            kind: Some("PersistentVolumeClaim".into()),
            namespace: Some("default".into()),
            name: Some("data".into()),
            uid: Some("u1".into()),
            ..ObjectReference::default()
        };
        self.events
            .publish(&claim, Note::warning("ProvisioningWaiting", "Provision", text));
        sleep(Duration::from_millis(1)).await;
    }

    fn dropped(&self) -> String {
        let metrics = self.metrics.encode().unwrap();
        let line = metrics
            .lines()
            .find(|line| !line.starts_with('#') && line.contains("events_dropped"));
        line.and_then(|line| line.split(' ').nth(1))
            .unwrap_or_default()
            .to_owned()
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_the_api_did_not_take_is_written_later_and_nothing_waits_for_it() {
    let stage = Stage::open(FakeEvents::answering(&[500, 201, 504], 201));
    stage.tell("no image").await;
    // Known to be about to be told.
    stage.tell("no image").await;
    stage.tell("no room").await;
    let first = stage.api.asked();
    let texts: Vec<_> = first.iter().map(|asked| asked.text.as_str()).collect();
    assert_eq!(texts, ["no image", "no room"]);
    sleep(Duration::from_mins(1)).await;
    let again = stage.api.asked();
    assert_eq!(again, [first[0].clone(), first[0].clone()], "another Event, or none");
    // Now it is told, and a repetition is one.
    stage.tell("no image").await;
    let repeated = stage.api.asked();
    assert_eq!((repeated.len(), &repeated[0].method), (1, &Method::PATCH));
    assert_eq!(repeated[0].name, first[0].name);
    assert_eq!(stage.dropped(), "0");
}

#[tokio::test(start_paused = true)]
async fn an_event_whose_answer_was_lost_is_there_once() {
    let stage = Stage::open(FakeEvents::answering(&[504, 409], 201));
    stage.tell("no image").await;
    sleep(Duration::from_mins(30)).await;
    let asked = stage.api.asked();
    assert_eq!(asked.len(), 2, "{asked:#?}");
    stage.tell("no image").await;
    assert_eq!(stage.api.asked()[0].method, Method::PATCH);
    assert_eq!(stage.dropped(), "0");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_will_not_change_is_the_last() {
    for (code, dropped) in [(403, "1"), (422, "1"), (404, "0")] {
        let stage = Stage::open(FakeEvents::answering(&[], code));
        stage.tell("no image").await;
        sleep(Duration::from_hours(1)).await;
        assert_eq!(stage.api.asked().len(), 1, "{code}");
        assert_eq!(stage.dropped(), dropped, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_api_does_not_take_for_long_is_dropped_and_is_news_when_it_comes_again() {
    let stage = Stage::open(FakeEvents::answering(&[], 503));
    stage.tell("no image").await;
    sleep(Duration::from_hours(1)).await;
    let asked = stage.api.asked();
    assert!((5..30).contains(&asked.len()), "{}", asked.len());
    assert_eq!(stage.dropped(), "1");
    stage.api.answers_with(&[], 201);
    stage.tell("no image").await;
    let again = stage.api.asked();
    assert_eq!((again.len(), &again[0].method), (1, &Method::POST));
    assert_ne!(again[0].name, asked[0].name);
}

#[tokio::test(start_paused = true)]
async fn what_the_api_did_not_take_is_written_once_more_at_the_end() {
    let stage = Stage::open(FakeEvents::answering(&[500], 201));
    stage.tell("no image").await;
    assert_eq!(stage.api.texts(), ["no image"]);
    stage.stop.cancel();
    stage.written.await.unwrap();
    assert_eq!(stage.api.texts(), ["no image"]);
}
