//! The words of an answer, which the kubelet puts into an Event.

/// Longest message in bytes: an Event holds 1024, and the kubelet puts its own words before it.
const MOST: usize = 800;

/// Cuts a message to what an Event can show.
pub(super) fn cut(mut message: String) -> String {
    if message.len() > MOST {
        message.truncate(message.floor_char_boundary(MOST));
        message.push('…');
    }
    message
}
