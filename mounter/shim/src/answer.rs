//! Reading the mounter's answer, just enough to know that it is whole and whether it is good.

/// What the mounter's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerStatus {
    /// One whole object, status Success.
    Success,
    /// One whole object, any other status.
    Other,
    /// Anything else, such as half an object.
    Broken,
}

/// How every good answer begins.
const SUCCESS: &[u8] = br#"{"status":"Success""#;

pub fn read(bytes: &[u8]) -> AnswerStatus {
    if !is_one_object(bytes) {
        AnswerStatus::Broken
    } else if bytes.starts_with(SUCCESS) {
        AnswerStatus::Success
    } else {
        AnswerStatus::Other
    }
}

/// Whether the bytes are one JSON object from the first to the last, as far as brackets and strings tell. Its inside is
/// the mounter's own, so it is not checked further.
fn is_one_object(bytes: &[u8]) -> bool {
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    let bytes = bytes.trim_ascii_end();
    for (index, byte) in bytes.iter().enumerate() {
        if index == 0 && *byte != b'{' || index > 0 && depth == 0 {
            return false;
        }
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    depth == 0 && !in_string && bytes.ends_with(b"}")
}

#[cfg(test)]
mod tests {
    use super::{AnswerStatus, read};
    use crate::INIT_ANSWER;

    #[test]
    fn only_a_whole_object_is_an_answer() {
        for (text, answer) in [
            (r#"{"status":"Success"}"#, AnswerStatus::Success),
            (
                "{\"status\":\"Success\",\"volumeName\":\"a}\\\"b\"}\n",
                AnswerStatus::Success,
            ),
            (INIT_ANSWER, AnswerStatus::Success),
            (
                r#"{"status":"Failure","message":"\"status\":\"Success\""}"#,
                AnswerStatus::Other,
            ),
            (r#"{"status":"Not supported"}"#, AnswerStatus::Other),
            ("", AnswerStatus::Broken),
            (" \n", AnswerStatus::Broken),
            ("{]", AnswerStatus::Broken),
            ("ok", AnswerStatus::Broken),
            (r#"{"status":"Success"}{}"#, AnswerStatus::Broken),
            (r#"{"status":"Success"} x"#, AnswerStatus::Broken),
            (r#" {"status":"Success"}"#, AnswerStatus::Broken),
        ] {
            assert_eq!(read(text.as_bytes()), answer, "{text}");
        }
        for end in 0..INIT_ANSWER.len() {
            assert_eq!(read(&INIT_ANSWER.as_bytes()[..end]), AnswerStatus::Broken);
        }
    }
}
