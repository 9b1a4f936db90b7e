//! What a guarded request can fail with beside what its server says, and what is known of it when it ends.

use std::fmt;

use reqwest::Response;
use reqwest_middleware::Error as SendError;

use super::JournalError;
use crate::key::Key;

/// Why a guarded request has no response. It stands inside a [`reqwest_middleware::Error`], where
/// [`of`](Self::of) finds it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No answer came that may be relied on. The request may have been done.
    #[error(transparent)]
    GaveUp(#[from] GaveUp),
    /// The request says more than once what its key is. Nothing was sent.
    #[error(
        "a request has one key: in its header, as a `Key` or by its `Job`, and in the header once"
    )]
    SeveralKeys,
    /// The header that the request carries already is no key. Nothing was sent.
    #[error(
        "the key in the header of the request is neither a structured-field string nor 1 to 255 printable characters"
    )]
    InvalidHeader,
    /// The key cannot be sent without quotes: it begins with one, or spaces around it would be lost. Nothing was sent.
    #[error("a key that begins with a quote, or begins or ends with a space, cannot be sent bare")]
    NotBare,
    /// The request carries a [`Job`](super::Job), and no journal is set. Nothing was sent.
    #[error("the request names a job, and the middleware has no journal to keep its key in")]
    NoJournal,
    /// The key of the job could not be kept or found. Nothing was sent.
    #[error("the key of the job could not be had from the journal")]
    Journal(#[from] JournalError),
    /// The key of the job has been in the journal for as long as the server keeps its records, so the server would not
    /// know it again. Nothing was sent: find out what became of the job, then end it.
    #[error("the key of the job is older than the records of the server")]
    KeyTooOld,
}

impl ClientError {
    /// The error of this middleware, where it is one.
    pub fn of(error: &SendError) -> Option<&Self> {
        match error {
            SendError::Middleware(error) => error.downcast_ref(),
            SendError::Reqwest(_) => None,
        }
    }
}

/// A guarded request got no answer that may be relied on. It may have been done: who sends it again with the same key
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

    /// How often it was sent.
    pub fn tries(&self) -> u32 {
        self.sent.tries
    }

    /// Why it was not sent again.
    pub fn why(&self) -> Why {
        self.why
    }
}

/// Why a request is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// It was repeated as often as the policy allows.
    Tries,
    /// The next try would begin after the time that the policy allows.
    Time,
    /// The next try would begin when the server may have forgotten the key of the job.
    KeyTooOld,
    /// Its body is a stream, which can be read once.
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

/// What a guarded response is the answer to: in its extensions.
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

    /// How often it was sent.
    pub fn tries(&self) -> u32 {
        self.tries
    }
}
