//! The content of a snapshot that belongs to a group. snapshot-controller makes it once the group is taken, with the
//! status that it has from the group's content. Nothing is run for it alone: it is taken and deleted with its group.

use mooring_contract::names::annotations;
use serde_json::{Value, json};

use super::{group, held_by_restore};
use crate::operation::decision::{Decision, Settled, SnapshotDecision};
use crate::operation::observed::ObservedSnapshot;
use crate::volume::content_view::ContentView;
use crate::volume::snapshot::Handle;

/// Notes on the content what a snapshot taken alone has there. So whatever reads it needs to know of no group.
pub(super) fn plan(seen: &ObservedSnapshot<'_>) -> SnapshotDecision {
    let content = seen.content;
    if content.annotation(annotations::REQUEST).is_some() {
        return Decision::Rest;
    }
    let handle: Option<Handle> = content.taken.and_then(|handle| handle.parse().ok());
    let group = seen.group.map(ContentView::from);
    let Some((handle, request)) = handle.zip(group.and_then(|group| group.taken_by())) else {
        return Decision::Rest;
    };
    let mut members = request.members().iter();
    let Some(member) = members.find(|member| member.snapshot_name == handle.name) else {
        return Decision::Rest;
    };
    let noted = group::of_member(&request, content, member);
    Decision::Settle(Box::new(Settled {
        notes: Some(json!({
            annotations::REQUEST: json!(noted).to_string(),
            annotations::CONFIG: handle.config.to_string(),
        })),
        ..Settled::default()
    }))
}

/// The content goes. Its snapshot went with its group, or stays with it.
pub(super) fn leave(seen: &ObservedSnapshot<'_>) -> SnapshotDecision {
    if !seen.content.is_held() {
        return Decision::Rest;
    }
    held_by_restore(seen).unwrap_or_else(|| {
        Decision::Settle(Box::new(Settled {
            release: true,
            let_go: true,
            ..Settled::default()
        }))
    })
}

/// The status of a snapshot that an administrator has named, with the group that he says it belongs to.
pub(super) fn of_group(mut status: Value, seen: &ObservedSnapshot<'_>) -> Value {
    let group = seen.group.map(ContentView::from);
    if let Some(handle) = group.and_then(|group| group.handle()) {
        status["volumeGroupSnapshotHandle"] = json!(handle);
    }
    status
}
