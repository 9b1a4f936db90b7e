//! Errors of messages and relays. `Error` has them without the feature `outbox`, too.

use std::error::Error as StdError;

/// Reason for which a message for an outbox, or a relay, is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOutbox {
    /// The topic is empty, over 255 bytes, has control characters, or white space around it.
    #[error("a topic has 1 to 255 bytes, no control characters and no white space around it")]
    Topic,
    /// The ordering key is empty, over 255 bytes, has control characters, or white space around it.
    #[error(
        "an ordering key has 1 to 255 bytes, no control characters and no white space around it"
    )]
    OrderingKey,
    /// The name of a header is empty or over 255 bytes, or there are over 64 KiB of headers.
    #[error(
        "a header's name has 1 to 255 bytes, and the headers of a message at most 65536 in all"
    )]
    Headers,
    /// The payload is over the limit.
    #[error(
        "the payload is over the limit of {limit} bytes, enqueue where its data is instead of the data, or raise the \
         limit"
    )]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The payload's `Serialize` implementation failed.
    #[error("the payload cannot be encoded as JSON")]
    Payload(#[source] Box<dyn StdError + Send + Sync>),
    /// A relay was started without a handler.
    #[error("a relay hands messages to handlers, give it one with `on`")]
    NoHandler,
    /// A relay was given two handlers for one topic.
    #[error("a relay has one handler for a topic, and two were given for `{0}`")]
    TwoHandlers(String),
    /// A relay was given handlers for over 100 topics.
    #[error("a relay polls for at most 100 topics, start several relays")]
    TooManyTopics,
    /// The lease of a relay is shorter than a millisecond.
    #[error("the lease is too short to handle a message, give it a second or more")]
    ZeroLease,
    /// A relay has a concurrency of zero.
    #[error("the relay would handle no message, let it handle at least one at once")]
    ZeroConcurrency,
}
