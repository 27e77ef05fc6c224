//! How an error is printed: once, where it ends up, with all that caused it.

use std::error::Error;

/// An error's message, and behind it those of its sources that it does not repeat.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let call: Option<&kube::Error> = error
            .downcast_ref()
            .or_else(|| error.downcast_ref::<Box<_>>().map(AsRef::as_ref));
        let more = call.map_or_else(|| error.to_string(), answer_of);
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = match call {
            // It has the answer once more.
            Some(kube::Error::Api(_)) => None,
            _ => error.source(),
        };
    }
    text
}

/// What the API server answered to a call, or why there is no answer. The client's own text has the answer three times,
/// once as Rust prints it.
pub fn answer_of(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use kube::core::Status;

    use super::{answer_of, chain};

    #[derive(Debug, thiserror::Error)]
    #[error("failed to read the pool")]
    struct Plain(#[source] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("no pool: {0}")]
    struct Inlined(#[source] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Transparent(#[from] Plain);

    #[derive(Debug, thiserror::Error)]
    #[error("failed to create Pod a")]
    struct Call(#[source] Box<kube::Error>);

    #[derive(Debug, thiserror::Error)]
    #[error("failed to create Pod a: {}", answer_of(.0))]
    struct InlinedCall(#[source] Box<kube::Error>);

    #[test]
    fn an_answer_of_the_api_server_is_there_once_and_without_its_rust() {
        let refused = || {
            Box::new(kube::Error::Api(
                Status::failure("Pod a is forbidden", "Forbidden").boxed(),
            ))
        };
        let text = "failed to create Pod a: Pod a is forbidden";
        assert_eq!(chain(&Call(refused())), text);
        assert_eq!(chain(&InlinedCall(refused())), text);
    }

    #[test]
    fn each_source_is_named_once_whether_its_error_repeats_it_or_not() {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let plain = format!("failed to read the pool: {}", gone());
        assert_eq!(chain(&Plain(gone())), plain);
        assert_eq!(chain(&Transparent(Plain(gone()))), plain);
        assert_eq!(chain(&Inlined(gone())), format!("no pool: {}", gone()));
    }
}
