//! Writes the answer of a run, its termination message.

use std::fs;
use std::path::Path;

use mooring_contract::worker::{ASKED_VARIABLE, CAPABLE_VARIABLE, with_statement};

use crate::error::Error;

/// Writes it to this file, with the statement of the image that its containers can be workers, if the controller asks
/// for that.
pub fn write(to: &Path, answer: String) -> Result<(), Error> {
    let answer = stated(answer, |variable| std::env::var(variable).ok());
    fs::write(to, answer).map_err(|source| Error::Write {
        path: to.to_owned(),
        source,
    })
}

fn stated(answer: String, variable: impl Fn(&str) -> Option<String>) -> String {
    let is_true = |name: &str| variable(name).as_deref() == Some("true");
    if is_true(ASKED_VARIABLE) && is_true(CAPABLE_VARIABLE) {
        with_statement(answer)
    } else {
        answer
    }
}

#[cfg(test)]
mod tests {
    use mooring_contract::worker::take_statement;

    use super::stated;

    #[test]
    fn an_image_states_that_it_can_be_a_worker_where_it_can_and_is_asked() {
        let answer = r#"{"client":"nfs"}"#;
        for (capable, asked, is_stated) in [
            (Some("true"), Some("true"), true),
            (Some("true"), None, false),
            (Some("false"), Some("true"), false),
            (None, Some("true"), false),
        ] {
            let variable = |name: &str| match name {
                "MOORING_WORKERS" => capable.map(str::to_owned),
                "MOORING_WORKERS_ASKED" => asked.map(str::to_owned),
                _ => None,
            };
            let written = stated(answer.to_owned(), variable);
            assert_eq!(written != answer, is_stated, "{written}");
            assert_eq!(take_statement(written), (answer.to_owned(), is_stated));
        }
    }
}
