//! The watches before a real API server: whoever looks at something waits until they have brought what they may.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::super::fake_api::key_of;
use super::World;

/// Longest wait for the watches: the proxy drops them, and their clients wait before they begin again.
const LIMIT: Duration = Duration::from_mins(2);

const LOOK: Duration = Duration::from_millis(2);

impl World {
    /// The watches bring everything, but for what lags.
    pub(super) async fn watch(&mut self) {
        if self.watched.is_none() {
            self.theatre.watch();
            return;
        }
        self.theatre.shared.cache.ready().await;
        let begun = Instant::now();
        while let Some(late) = self.late() {
            assert!(begun.elapsed() < LIMIT, "the watches do not bring it: {late}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What the watches have not brought yet.
    fn late(&self) -> Option<String> {
        let state = self.theatre.api.lock();
        let known = self.theatre.shared.cache.versions();
        let of = |kind: &str| {
            let version = |object: &Value| (key_of(object), object["metadata"]["resourceVersion"].clone());
            state.each(kind).map(version).collect()
        };
        let mut kinds = known
            .into_iter()
            .filter(|(kind, _)| !self.theatre.lagging.contains_key(kind));
        let late = kinds.find(|(kind, known)| *known != of(kind));
        late.map(|(kind, known)| format!("{kind}: {known:?}"))
    }
}
