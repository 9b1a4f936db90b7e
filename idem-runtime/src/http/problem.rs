//! What a request is told that is refused: the one place where an [`Error`] becomes an HTTP status.

use std::borrow::Cow;
use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use super::drain::Full;
use super::header::KeySyntax;
use crate::error::{Error, FingerprintError, InvalidKey, StoreErrorKind};
use crate::key::{Key, MAX_LEN};

/// Where a problem is documented, unless it was told where its policy page is.
const DOCUMENTATION: &str = "https://docs.rs/idem-runtime/latest/idem_runtime/http/index.html";

/// The media type of problems.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// Detail of the refusal of a gRPC call: printable ASCII without `%`, since a `grpc-message` has any other byte in
/// percent-encoding.
pub(super) const GRPC_UNSUPPORTED: &str = "the idempotency layer does not support gRPC: call an idempotent function in \
     the service's method, and route its calls past the layer or send them without an idempotency-key where it is optional";

/// Why a request was refused, as a client sees it: `application/problem+json` (RFC 9457).
///
/// ```json
/// {
///   "type": "/idempotency#key-reused",
///   "title": "The idempotency key was used for another request",
///   "status": 422,
///   "detail": "this key was first used with a different request; give a new request a new key",
///   "instance": "urn:uuid:5e4f7b0c-5d0f-4b0e-9d3c-0c8f5a1e2b3d",
///   "retryable": false,
///   "safe_new_key": false
/// }
/// ```
///
/// `type` names the section of the policy page about the [`ProblemKind`]; `instance` stands in the event that the
/// service logs as well. `retryable`: the same request with the same key may succeed later without anybody mending
/// anything, after `Retry-After` seconds where that header is there. `safe_new_key`: nothing was done for this request,
/// neither now nor when it was sent before, so it may be sent anew with another key; where it is false, another key may
/// do the work twice.
///
/// There is no key, no scope and nothing of a stored response in it.
#[derive(Debug, Clone)]
pub struct Problem {
    kind: ProblemKind,
    detail: Cow<'static, str>,
    retryable: bool,
    retry_after: Option<Duration>,
    documentation: Option<Cow<'static, str>>,
    instance: String,
    /// For the service's operators alone.
    cause: Option<String>,
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $slug:literal, $status:ident, $safe:literal, $title:literal;)+) => {
        /// The kinds of [`Problem`]s.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ProblemKind {
            $($(#[doc = $doc])+ #[doc = concat!("\n\n`", $slug, "`, ", stringify!($status))] $kind,)+
        }

        impl ProblemKind {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$kind),+];

            /// The fragment of the problem's `type`.
            pub const fn slug(self) -> &'static str {
                match self { $(Self::$kind => $slug),+ }
            }

            /// The problem's `title`.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$kind => $title),+ }
            }

            /// The status of the response.
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$kind => StatusCode::$status),+ }
            }

            /// Whether nothing was done for the request, neither now nor when it was sent before, so that it may be sent
            /// anew with another key.
            ///
            /// A request that is refused today and may have been accepted yesterday is not safe: the reply to
            /// yesterday's may be what was lost. So neither is one that a setting of the layer decides on (the syntax,
            /// the limits, whether a key is required), nor [`KeyReused`](Self::KeyReused): a retry may differ from its
            /// request by no more than a boundary of `multipart/form-data`, or a later build may hash it in another way.
            pub const fn is_safe_with_new_key(self) -> bool {
                match self { $(Self::$kind => $safe),+ }
            }
        }
    };
}

kinds! {
    /// The request has no `Idempotency-Key`, and needs one.
    MissingKey = "missing-key", BAD_REQUEST, false, "The request needs an Idempotency-Key";
    /// There is more than one.
    RepeatedKey = "repeated-key", BAD_REQUEST, true, "The request has more than one Idempotency-Key";
    /// It is no key in any syntax.
    MalformedKey = "malformed-key", BAD_REQUEST, true, "The Idempotency-Key is malformed";
    /// The key has no quotes, and the syntax of this layer requires them.
    UnquotedKey = "unquoted-key", BAD_REQUEST, false, "The Idempotency-Key needs quotes";
    /// The service did not issue the key, or the key has expired, and only issued keys are accepted.
    KeyNotIssued = "key-not-issued", BAD_REQUEST, false, "The Idempotency-Key was not issued, or has expired";
    /// The request does not say whose it is.
    NoPrincipal = "no-principal", FORBIDDEN, false, "The request comes from nobody that is known";
    /// Its body is longer than the layer reads.
    BodyTooLarge = "body-too-large", PAYLOAD_TOO_LARGE, false, "The request's body is too large";
    /// Its body ended early, or is no HTTP.
    BodyUnreadable = "body-unreadable", BAD_REQUEST, false, "The request's body could not be read";
    /// The request's body did not arrive in time.
    BodyTimeout = "body-timeout", REQUEST_TIMEOUT, false, "The request's body took too long to arrive";
    /// It has no canonical form.
    InvalidRequest = "invalid-request", BAD_REQUEST, false, "The request could not be fingerprinted";
    /// The request is a gRPC call. The response has HTTP status 200 and `grpc-status: 12` instead, see
    /// [the module](super#grpc).
    GrpcUnsupported = "grpc-unsupported", NOT_IMPLEMENTED, false, "gRPC calls are not made idempotent here";
    /// Another request with its key is under way.
    InFlight = "in-flight", CONFLICT, false, "A request with this key is under way";
    /// Its key was used for another request.
    KeyReused = "key-reused", UNPROCESSABLE_ENTITY, false, "The idempotency key was used for another request";
    /// An earlier request with its key died, and nobody knows what it did.
    Interrupted = "interrupted", CONFLICT, false, "Nobody knows what an earlier request with this key did";
    /// Its own run was believed dead, and another one took over.
    LeaseLost = "lease-lost", CONFLICT, false, "Another request with this key took over";
    /// The work is done, and what came of it was not kept.
    Unrecorded = "unrecorded", CONFLICT, false, "The work is done, but its response was not kept";
    /// A record is there that this build cannot read.
    Undecodable = "undecodable", INTERNAL_SERVER_ERROR, false, "The stored response cannot be read";
    /// The store cannot be reached, or cannot take the record.
    StoreUnavailable = "store-unavailable", SERVICE_UNAVAILABLE, false, "The service cannot keep track of requests now";
    /// The requests of its principal hold the principal's whole share of the layer's limits.
    TooManyRequests = "too-many-requests", TOO_MANY_REQUESTS, false, "Too many requests of this caller are under way";
    /// As many requests are under way as the layer lets run, or the process is ending.
    Overloaded = "overloaded", SERVICE_UNAVAILABLE, false, "The service has too much to do";
    /// The service is set up wrongly.
    Misconfigured = "misconfigured", INTERNAL_SERVER_ERROR, false, "The service is set up wrongly";
}

/// Why the HTTP side refuses a request before the engine sees it.
#[derive(Debug)]
pub(super) enum Refusal {
    MissingKey,
    RepeatedKey,
    MalformedKey(KeySyntax),
    UnquotedKey,
    InvalidKey(InvalidKey),
    NoPrincipal,
    BodyTooLarge(usize),
    BodyUnreadable,
    BodyTimeout(Duration),
    NoFingerprint(FingerprintError),
    Grpc,
    Full(Full),
    ShuttingDown,
}

impl Problem {
    fn new(kind: ProblemKind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            retryable: false,
            retry_after: None,
            documentation: None,
            instance: instance(),
            cause: None,
        }
    }

    /// In words for those who write clients: the error's own text names functions of this crate.
    fn of_key(error: InvalidKey) -> Self {
        let (kind, detail): (_, Cow<'static, str>) = match error {
            InvalidKey::Empty => (
                ProblemKind::MalformedKey,
                format!("the key is empty; send one of 1 to {MAX_LEN} characters, such as a UUID").into(),
            ),
            InvalidKey::TooLong(len) => (
                ProblemKind::MalformedKey,
                format!(
                    "the key has {len} characters, and {MAX_LEN} are allowed; send a shorter one, such as a UUID"
                )
                .into(),
            ),
            InvalidKey::NotPrintable(at) => (
                ProblemKind::MalformedKey,
                format!("byte {at} of the key is not printable ASCII; send a key that is, such as a UUID").into(),
            ),
            InvalidKey::NotIssued => (
                ProblemKind::KeyNotIssued,
                "the key was not issued by this service for this operation and caller; make sure that the request was \
                 not carried out before, then send it with a key that was issued for it"
                    .into(),
            ),
            InvalidKey::Expired => (
                ProblemKind::KeyNotIssued,
                "the time that the key was issued for is over; make sure that the request was not carried out before, \
                 then send it with a new key that was issued for it"
                    .into(),
            ),
            // Of the principal, whom the service names, as the layer has it. These tell lengths and positions alone.
            InvalidKey::EmptyScope | InvalidKey::ScopeTooLong(_) | InvalidKey::ScopeControl(_) => {
                (ProblemKind::NoPrincipal, error.to_string().into())
            }
        };
        Self::new(kind, detail)
    }

    fn retryable_after(mut self, after: Duration) -> Self {
        self.retryable = true;
        self.retry_after = Some(after);
        self
    }

    /// What kind it is.
    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// Whether the same request with the same key may succeed later without anybody mending anything.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// How long a client should wait before that; `Retry-After` says it in whole seconds.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The name of this occurrence, a URN, which stands in the service's event about it as well.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The same with the URL, absolute or not, of the page that `type` leads to.
    #[must_use]
    pub fn documented_at(mut self, url: impl Into<Cow<'static, str>>) -> Self {
        self.documentation = Some(url.into());
        self
    }

    /// The response, and an event that says why: an error where the service is to be mended, a warning where the store
    /// is out of reach, else one for debugging.
    ///
    /// The problem itself is an extension of the response.
    pub fn into_response<B: From<Bytes>>(self) -> Response<B> {
        self.tell();
        let mut response = Response::new(B::from(self.to_json()));
        *response.status_mut() = self.kind.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
        }
        response.extensions_mut().insert(self);
        response
    }

    /// Whether it was told where it is documented.
    #[cfg(feature = "axum")]
    pub(super) fn is_documented(&self) -> bool {
        self.documentation.is_some()
    }

    pub(super) fn to_json(&self) -> Bytes {
        #[derive(Serialize)]
        struct Members<'a> {
            r#type: String,
            title: &'a str,
            status: u16,
            detail: &'a str,
            instance: &'a str,
            retryable: bool,
            safe_new_key: bool,
        }
        let documentation = self.documentation.as_deref().unwrap_or(DOCUMENTATION);
        let members = Members {
            r#type: format!("{documentation}#{}", self.kind.slug()),
            title: self.kind.title(),
            status: self.kind.status().as_u16(),
            detail: &self.detail,
            instance: &self.instance,
            retryable: self.retryable,
            safe_new_key: self.kind.is_safe_with_new_key(),
        };
        // Texts, a number and truth values always become JSON.
        serde_json::to_vec(&members).unwrap_or_default().into()
    }

    fn tell(&self) {
        macro_rules! tell {
            ($level:ident) => {
                tracing::$level!(
                    target: "idem",
                    problem = self.kind.slug(),
                    instance = self.instance,
                    detail = %self.detail,
                    cause = self.cause,
                    "a request was refused",
                )
            };
        }
        match self.kind.status() {
            StatusCode::INTERNAL_SERVER_ERROR => tell!(error),
            StatusCode::SERVICE_UNAVAILABLE => tell!(warn),
            _ => tell!(debug),
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let soon = Duration::from_secs(1);
        match refusal {
            Refusal::MissingKey => Self::new(
                ProblemKind::MissingKey,
                "send an `Idempotency-Key` header, made once for this request and repeated with every retry of it",
            ),
            Refusal::RepeatedKey => Self::new(
                ProblemKind::RepeatedKey,
                "send exactly one `Idempotency-Key` header",
            ),
            Refusal::MalformedKey(KeySyntax::Strict) => Self::new(
                ProblemKind::MalformedKey,
                "the `Idempotency-Key` header holds one string of structured fields, such as \"8e03978e-40d5\", in quotes (RFC 9651)",
            ),
            Refusal::MalformedKey(KeySyntax::Lenient) => Self::new(
                ProblemKind::MalformedKey,
                "the `Idempotency-Key` header holds one key in quotes (RFC 9651), or bare where it is visible ASCII without quotes, commas, semicolons and backslashes",
            ),
            Refusal::UnquotedKey => Self::new(
                ProblemKind::UnquotedKey,
                "put the key in quotes (RFC 9651): the same key in quotes is the same key",
            ),
            Refusal::InvalidKey(error) => Self::of_key(error),
            Refusal::NoPrincipal => Self::new(
                ProblemKind::NoPrincipal,
                "an idempotency key belongs to whoever is authenticated, and nobody is",
            ),
            Refusal::BodyTooLarge(limit) => Self::new(
                ProblemKind::BodyTooLarge,
                format!("a request with an idempotency key has at most {limit} bytes of body"),
            ),
            Refusal::BodyUnreadable => Self::new(
                ProblemKind::BodyUnreadable,
                "the body ended before it was complete, so the request was not run",
            ),
            Refusal::BodyTimeout(limit) => Self::new(
                ProblemKind::BodyTimeout,
                format!(
                    "the body did not arrive within {limit:?}, so the request was not run; send it again with the same key"
                ),
            )
            .retryable_after(soon),
            Refusal::NoFingerprint(error) => Self::from(&Error::Fingerprint(error)),
            Refusal::Grpc => Self::new(ProblemKind::GrpcUnsupported, GRPC_UNSUPPORTED),
            Refusal::Full(Full::Principal) => Self::new(
                ProblemKind::TooManyRequests,
                "wait for answers to the requests that are under way, then send the same request with the same key again",
            )
            .retryable_after(soon),
            Refusal::Full(Full::All) => Self::new(
                ProblemKind::Overloaded,
                "as many requests are under way as may be",
            )
            .retryable_after(soon),
            Refusal::ShuttingDown => Self::new(
                ProblemKind::LeaseLost,
                "the process ended while it worked on the request",
            )
            .retryable_after(soon),
        }
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        let soon = Duration::from_secs(1);
        match error {
            Error::InFlight { retry_after } => Self::new(
                ProblemKind::InFlight,
                "send the same request with the same key again later, for its response",
            )
            .retryable_after(*retry_after),
            Error::KeyReused => Self::new(
                ProblemKind::KeyReused,
                "this key was first used with a different request; give a new request a new key",
            ),
            Error::Interrupted => Self::new(
                ProblemKind::Interrupted,
                "ask the service's operators what became of it before you send it with another key",
            ),
            Error::LeaseLost => Self::new(
                ProblemKind::LeaseLost,
                "send the same request with the same key again, for its response",
            )
            .retryable_after(soon),
            Error::Unrecorded => Self::new(
                ProblemKind::Unrecorded,
                "the request was carried out and will not be again; look its result up",
            ),
            Error::InvalidCall(_)
            | Error::InvalidOutbox(_)
            | Error::NotInstalled
            | Error::NoRuntime => Self::new(
                ProblemKind::Misconfigured,
                "the service's log says what is to be mended",
            ),
            Error::InvalidKey(error) => Self::of_key(*error),
            // The text tells positions alone.
            Error::Fingerprint(error) => Self::new(ProblemKind::InvalidRequest, error.to_string()),
            Error::Decode(_) => Self::new(
                ProblemKind::Undecodable,
                "the request was carried out before and will not be again; its response is of no form that is known here",
            ),
            Error::Store(error) => {
                let problem = Self::new(
                    ProblemKind::StoreUnavailable,
                    match error.kind() {
                        StoreErrorKind::Full => "there is no room for another request",
                        _ => "requests are not carried out while they cannot be kept track of",
                    },
                );
                if error.is_retryable() {
                    problem.retryable_after(soon)
                } else {
                    problem
                }
            }
        }
    }
}

impl From<Error> for Problem {
    /// The error's own text goes to the log, where it is one for the service's operators.
    fn from(error: Error) -> Self {
        let mut problem = Self::from(&error);
        if problem.kind.status().is_server_error() {
            let source = error.source().map(|source| format!(": {source}"));
            problem.cause = Some(format!("{error}{}", source.unwrap_or_default()));
        }
        problem
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Problem {}

/// At least one: `Retry-After: 0` would be an invitation to a busy loop.
fn whole_seconds(duration: Duration) -> u64 {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    seconds.max(1)
}

/// A name for this occurrence.
fn instance() -> String {
    format!("urn:uuid:{}", Key::generate_v4().as_str())
}
