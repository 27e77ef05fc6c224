//! What the controllers of claims and PVs have in common: the loop, and the first look at an object. A controller of
//! another kind of object is one more [`Reconciled`].

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use kube::Resource;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use mooring_contract::operation::Operation;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span, info_span};

use super::retry::again;
use crate::apply::{ApplyError, Shared};
use crate::operation::describe::waiting;
use crate::operation::record::Record;
use crate::process::events::EventRecorder;

/// A kind of object that a controller works on.
pub(crate) trait Reconciled:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    /// Name of the controller in metrics.
    const CONTROLLER: &'static str;
    /// The operation that brings such an object here. Where its record can't be read, an Event says so in the words of
    /// this one.
    const FIRST: Operation;

    /// Whether Mooring may have anything to do with this one.
    fn may_be_ours(&self) -> bool;

    /// Looks at one object as it is known, and does the next thing.
    fn act(&self, shared: &Shared) -> impl Future<Output = Result<Action, ApplyError>> + Send;
}

/// Works until `stop`; what has been begun then is brought to its end.
pub(super) async fn run<K: Reconciled>(
    shared: Shared,
    known: &Store<K>,
    queued: impl Stream<Item = ObjectRef<K>> + Send + 'static,
    stop: CancellationToken,
) {
    let concurrency = shared.context.settings.max_in_flight;
    Controller::for_stream(futures::stream::pending(), known.clone())
        .with_config(Config::default().concurrency(concurrency))
        .reconcile_on(queued)
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(reconcile::<K>, error_policy::<K>, Arc::new(shared))
        // Each result has been logged and counted already.
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile<K: Reconciled>(object: Arc<K>, shared: Arc<Shared>) -> Result<Action, ApplyError> {
    let uid = object.meta().uid.as_deref().unwrap_or_default();
    if !object.may_be_ours() {
        shared.limiter.gone(uid);
        return Ok(Action::await_change());
    }
    let done = Box::pin(look(&*object, &shared)).instrument(span(&*object)).await;
    let result = match &done {
        Ok(_) => {
            shared.expectations.succeeded(uid);
            "ok"
        }
        Err(error) => error.category(),
    };
    shared.context.metrics.reconciled(K::CONTROLLER, result);
    done
}

/// The span of a reconcile: what is logged in it says which object it is about.
fn span<K: Reconciled>(object: &K) -> Span {
    let meta = object.meta();
    info_span!(
        "reconcile",
        controller = K::CONTROLLER,
        object.namespace = meta.namespace,
        object.name = meta.name,
        object.uid = meta.uid
    )
}

/// Looks at one object, unless what is known of it is older than what was last written to it.
pub(crate) async fn look<K: Reconciled>(object: &K, shared: &Shared) -> Result<Action, ApplyError> {
    if shared.expectations.is_old(object.meta()) {
        // The watch brings what was written last, and that wakes this again.
        return Ok(Action::await_change());
    }
    let uid = object.meta().uid.clone().unwrap_or_default();
    shared.limiter.looking(&uid, object.act(shared)).await
}

/// The record on an object; `Err` with what to do where it can't be read.
pub(super) fn record_on<K: Reconciled>(shared: &Shared, object: &K) -> Result<Option<Record>, Action> {
    Record::on(object).map_err(|error| {
        let note = waiting(K::FIRST, error.to_string());
        shared.context.events.publish(&object.object_ref(&()), note);
        Action::await_change()
    })
}

#[allow(clippy::needless_pass_by_value)] // the signature is the library's
fn error_policy<K: Reconciled>(object: Arc<K>, error: &ApplyError, shared: Arc<Shared>) -> Action {
    tell_of_refusal(&*object, error, &shared.context.events);
    let failures = shared
        .expectations
        .failed(object.meta().uid.as_deref().unwrap_or_default());
    again(
        K::CONTROLLER,
        &ObjectRef::from_obj(&*object).to_string(),
        error,
        failures,
    )
}

/// Tells who has the object what the API server refuses. It goes on refusing until somebody changes something.
fn tell_of_refusal<K: Reconciled>(object: &K, error: &ApplyError, events: &EventRecorder) {
    if !error.is_refusal() {
        return;
    }
    let record = Record::on(object).ok().flatten();
    let operation = record.map_or(K::FIRST, |record| record.operation);
    events.publish(&object.object_ref(&()), waiting(operation, error.chain()));
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use kube::core::Status;
    use serde_json::json;

    use super::{span, tell_of_refusal};
    use crate::apply::ApplyError;
    use crate::process::call::CallError;
    use crate::process::events::EventRecorder;
    use crate::process::metrics::Metrics;

    #[test]
    fn what_the_api_server_refuses_is_told_to_who_has_the_object() {
        let claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"metadata": {"name": "data", "namespace": "team", "uid": "u1"}})).unwrap();
        let told = |code: u16| {
            let (events, mut writer) = EventRecorder::new(Metrics::new());
            let status = Status::failure("a policy denied request: no such option", "").with_code(code);
            let error = CallError::new("create", "PersistentVolume", "pvc-u1", kube::Error::Api(status.boxed()));
            tell_of_refusal(&claim, &ApplyError::from(error), &events);
            writer.try_next()
        };
        for code in [403, 422] {
            let (regarding, note) = told(code).unwrap();
            assert_eq!(regarding.name.as_deref(), Some("data"));
            let expected = "failed to create PersistentVolume pvc-u1: a policy denied request: no such option";
            assert_eq!(note.text, expected);
        }
        // They pass.
        for code in [404, 409, 429, 500] {
            assert!(told(code).is_none(), "{code}");
        }
    }

    #[test]
    fn a_reconcile_has_a_span_that_says_which_object_it_is_about() {
        let claim = PersistentVolumeClaim::default();
        let span = tracing::subscriber::with_default(tracing_subscriber::registry(), || span(&claim));
        let about = span.metadata().unwrap();
        assert_eq!(about.name(), "reconcile");
        let fields: Vec<_> = about.fields().iter().map(|field| field.name()).collect();
        assert_eq!(fields, ["controller", "object.namespace", "object.name", "object.uid"]);
    }
}
