//! How an error is printed: once, where it ends up, with all that caused it.

use std::error::Error;

/// An error's message, and behind it those of its sources that it does not repeat.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::chain;

    #[derive(Debug, thiserror::Error)]
    #[error("failed to read the pool")]
    struct Plain(#[source] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("no pool: {0}")]
    struct Inlined(#[source] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Transparent(#[from] Plain);

    #[test]
    fn each_source_is_named_once_whether_its_error_repeats_it_or_not() {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let plain = format!("failed to read the pool: {}", gone());
        assert_eq!(chain(&Plain(gone())), plain);
        assert_eq!(chain(&Transparent(Plain(gone()))), plain);
        assert_eq!(chain(&Inlined(gone())), format!("no pool: {}", gone()));
    }
}
