//! An error and its causes as one text.

use std::error::Error;

/// An error and its causes, with colons between them. A cause that the text before it repeats is left out: the errors of
/// drivers contain their causes.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    fn layers(texts: &[&'static str]) -> Box<Layer> {
        let (text, rest) = texts.split_first().unwrap();
        let source = (!rest.is_empty()).then(|| layers(rest));
        Box::new(Layer { text, source })
    }

    #[test]
    fn each_cause_is_in_the_text_once() {
        let text = |texts: &[&'static str]| with_causes(&*layers(texts));
        assert_eq!(
            text(&["it failed", "no route", "refused"]),
            "it failed: no route: refused"
        );
        let repeated = ["it failed", "the server said: no table t", "no table t"];
        assert_eq!(text(&repeated), "it failed: the server said: no table t");
    }
}
