//! Returns the result of a call: to its caller, to its span and to its observer.

use std::time::SystemTime;

use tracing::Span;

use super::codecs::Codecs;
use crate::engine::progress::SharedOutcome;
use crate::engine::provenance::{Observer, Source};
use crate::error::Error;

/// Parts of a call that last until it has returned its result.
pub(in crate::engine) struct CallContext<T, E> {
    pub(in crate::engine) codecs: Codecs<T, E>,
    pub(in crate::engine) span: Span,
    pub(super) observer: Option<Observer>,
}

impl<T, E> CallContext<T, E> {
    /// A refusal, converted to the function's return type.
    pub(in crate::engine) fn refuse(&self, error: Error) -> Result<T, E> {
        self.span.record("outcome", word_of(&error));
        Err(self.codecs.carry(error))
    }

    /// Decodes the stored result, and records it in the span and for the observer.
    pub(in crate::engine) fn replay(&self, ended: &SharedOutcome, source: Source) -> Result<T, E> {
        let result = match self.codecs.decode(&ended.outcome) {
            Ok(result) => result,
            Err(error) => return self.refuse(error),
        };
        let word = match source {
            Source::Waited => "waited",
            Source::Replayed | Source::Executed => "replayed",
        };
        self.span.record("attempt", ended.attempt);
        self.span.record("outcome", word);
        tracing::debug!(
            target: "idem",
            parent: &self.span,
            attempt = ended.attempt,
            "the stored result was replayed",
        );
        if let Some(observer) = &self.observer {
            observer.record(source, ended.attempt, ended.at);
        }
        result
    }

    /// Records in the span and for the observer that the call ran its body.
    pub(in crate::engine) fn record_executed(&self, word: &str, attempt: u32) {
        self.span.record("outcome", word);
        if let Some(observer) = &self.observer {
            observer.record(Source::Executed, attempt, SystemTime::now());
        }
    }
}

/// The word for a refusal in the span.
fn word_of(error: &Error) -> &'static str {
    match error {
        Error::InFlight { .. } => "in_flight",
        Error::KeyReused => "key_reused",
        Error::Interrupted => "interrupted",
        Error::LeaseLost => "lease_lost",
        Error::Unrecorded => "unrecorded",
        Error::Store(_) => "store_error",
        Error::Decode(_) => "decode",
        _ => "invalid",
    }
}
