//! Errors of a guarded request on the client side, and the details known when the request ends.

use std::fmt;

use http::header::LOCATION;
use http::{HeaderValue, StatusCode};
use idem_store::Key;
use reqwest::Response;
use reqwest_middleware::Error as SendError;

use super::JournalError;

/// Reason for which a guarded request has no response. Wrapped in a [`reqwest_middleware::Error`], from which
/// [`of`](Self::of) extracts it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No conclusive answer arrived. The work may have been done.
    #[error(transparent)]
    GaveUp(#[from] GaveUp),
    /// The answer is a redirection that was not followed. The work may have been done or not.
    #[error(transparent)]
    Redirected(#[from] Redirected),
    /// The request names its key more than once. Nothing was sent.
    #[error(
        "a request has one key: in its header, as a `Key` or by its `Job`, and in the header once"
    )]
    SeveralKeys,
    /// The header that the request already carries is not a valid key. Nothing was sent.
    #[error(
        "the key in the header of the request is neither a structured-field string nor 1 to 255 printable characters"
    )]
    InvalidHeader,
    /// The key cannot be sent without quotes: it begins with a quote, or surrounding spaces would be lost. Nothing was
    /// sent.
    #[error(
        "a key that begins with a quote, or begins or ends with a space, cannot be sent without quotes"
    )]
    NeedsQuotes,
    /// The request carries a [`Job`](super::Job), and no journal is set. Nothing was sent.
    #[error("the request names a job, and the middleware has no journal to keep its key in")]
    NoJournal,
    /// The key of the job could not be stored or found. Nothing was sent.
    #[error("the key of the job could not be read from the journal or saved in it")]
    Journal(#[from] JournalError),
    /// The key of the job has been in the journal for as long as the server keeps its records, so the server may have
    /// forgotten it. Nothing was sent: find out what became of the job, then end it.
    #[error("the key of the job is older than the records of the server")]
    KeyTooOld,
}

impl ClientError {
    /// Extracts this middleware's error, if the error is one.
    pub fn of(error: &SendError) -> Option<&Self> {
        match error {
            SendError::Middleware(error) => error.downcast_ref(),
            SendError::Reqwest(_) => None,
        }
    }
}

/// A guarded request got no conclusive answer. Its work may have been done: sending the request again with the same key
/// finds out.
#[derive(Debug, thiserror::Error)]
#[error("no answer after {tries} tries, {why}", tries = sent.tries)]
pub struct GaveUp {
    sent: Sent,
    why: Why,
    source: Option<SendError>,
}

impl GaveUp {
    pub(super) fn new(sent: Sent, why: Why, source: Option<SendError>) -> Self {
        Self { sent, why, source }
    }

    /// The key that was sent.
    pub fn key(&self) -> &Key {
        &self.sent.key
    }

    /// Number of times that it was sent.
    pub fn tries(&self) -> u32 {
        self.sent.tries
    }

    /// Reason for which it was not sent again.
    pub fn why(&self) -> Why {
        self.why
    }
}

/// The answer to a guarded request is a redirection (3xx) that was not followed, for example because it leads to another
/// origin, which must not get the key.
///
/// 303 mostly says that the work is done, and 307 and 308 that it is not. If you trust the address, send the request there
/// with the same key.
#[derive(Debug, thiserror::Error)]
#[error(
    "the answer is a redirection with status {} that was not followed; if you trust its `location`, send the request \
     there with the same key", status.as_u16()
)]
pub struct Redirected {
    sent: Sent,
    status: StatusCode,
    location: Option<HeaderValue>,
}

impl Redirected {
    pub(super) fn new(sent: Sent, response: &Response) -> Self {
        let mut location = response.headers().get(LOCATION).cloned();
        if let Some(location) = &mut location {
            // The URL may hold secrets, so `Debug` omits it.
            location.set_sensitive(true);
        }
        Self {
            sent,
            status: response.status(),
            location,
        }
    }

    /// The key that was sent.
    pub fn key(&self) -> &Key {
        &self.sent.key
    }

    /// Number of times that it was sent.
    pub fn tries(&self) -> u32 {
        self.sent.tries
    }

    /// Status of the answer.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// `Location` of the answer, a URL that may be relative to that of the request.
    pub fn location(&self) -> Option<&HeaderValue> {
        self.location.as_ref()
    }
}

/// Reason for which a request is not retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// The retries that the policy allows are used up.
    Tries,
    /// The next try would begin after the time that the policy allows.
    Time,
    /// The next try would begin when the server may have forgotten the key, and would do the work again: its time, by the
    /// [policy](super::ServerPolicy), by the header `Idempotency-TTL` of an earlier answer or by the journal, is over. The
    /// answer is an error then, also if there was one that invites to a retry.
    KeyTooOld,
    /// The request's body is a stream, which can be read only once.
    Stream,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tries => "and no more are allowed",
            Self::Time => "and the time for them is over",
            Self::KeyTooOld => "and the server may forget the key before another",
            Self::Stream => "and its body is a stream, which cannot be sent again",
        })
    }
}

/// Key and number of tries of a guarded request. Found in the extensions of its response.
#[derive(Debug, Clone)]
pub struct Sent {
    pub(super) key: Key,
    pub(super) tries: u32,
}

impl Sent {
    pub(super) fn on(&self, mut response: Response) -> Response {
        response.extensions_mut().insert(self.clone());
        response
    }

    /// The key that was sent.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Number of times that it was sent.
    pub fn tries(&self) -> u32 {
        self.tries
    }
}
