//! Refusals in a service's own words.

use serde_json::Value;

/// Longest text that is passed on of an answer that is no fault of OpenStack's, such as a proxy's.
const LONGEST: usize = 300;

/// What a refusal says: `{"badRequest": {"message": "…"}}`, `{"error": {"message": "…"}}`, or any other text.
pub fn words(text: &str) -> String {
    let read: Option<Value> = serde_json::from_str(text).ok();
    let message = read.as_ref().and_then(|read| {
        let faults = read.as_object()?;
        let nested = faults.values().find_map(|fault| fault["message"].as_str());
        nested.or_else(|| faults.get("message")?.as_str())
    });
    let text = message.unwrap_or(text);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().take(LONGEST).collect();
    if line.is_empty() {
        "nothing more".to_owned()
    } else {
        line.trim_end_matches(['.', ' ']).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn a_fault_is_told_in_its_own_words() {
        for (text, says) in [
            (
                r#"{"badRequest": {"message": "Invalid input.", "code": 400}}"#,
                "Invalid input",
            ),
            (
                r#"{"error": {"code": 401, "message": "The request\nyou have made"}}"#,
                "The request you have made",
            ),
            (r#"{"message": "gone"}"#, "gone"),
            ("<html>502 Bad Gateway</html>", "<html>502 Bad Gateway</html>"),
            ("", "nothing more"),
            ("[]", "[]"),
        ] {
            assert_eq!(words(text), says);
        }
    }
}
