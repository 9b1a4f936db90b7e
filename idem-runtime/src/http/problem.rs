//! Problems (RFC 9457): responses to refused requests. Only here does an [`Error`] become an HTTP status.

use std::borrow::Cow;
use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use super::marks::{IDEMPOTENCY_TTL, ttl};
use crate::error::{Error, InvalidKey, StoreErrorKind};
use crate::key::{Key, MAX_LEN, RecordId};

/// Folder of the book with a page for each kind of problem. Clients get the addresses, so they never change.
const BOOK: &str = "https://idem-rs.github.io/idem/errors";

/// Media type of problems.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// Detail of the refusal of a gRPC call. It is printable ASCII without `%`, so that it needs no percent-encoding as a
/// `grpc-message`.
pub(super) const GRPC_UNSUPPORTED: &str = "the idempotency layer does not support gRPC: call an idempotent function in \
     the service's method, and route its calls past the layer or send them without an idempotency-key where it is optional";

/// Reason for which a request was refused, as the client sees it: `application/problem+json` (RFC 9457).
///
/// ```json
/// {
///   "type": "/idempotency#key-reused",
///   "title": "The idempotency key was used for another request",
///   "status": 422,
///   "detail": "this key was first used with a different request; send a retry exactly as the first try, and other work with its own key",
///   "instance": "urn:uuid:5e4f7b0c-5d0f-4b0e-9d3c-0c8f5a1e2b3d",
///   "retryable": false
/// }
/// ```
///
/// - `type` is the URL of the section about the [`ProblemKind`] on the policy page, or without a policy page, of
///   [a page about it in the book](https://idem-rs.github.io/idem/errors.html). Its fragment is the kind's
///   [`slug`](ProblemKind::slug).
/// - `instance` identifies this occurrence. The event that the service logs has it too.
/// - `retryable` is true if the same request with the same key may succeed later without any change. If the response has
///   a `Retry-After` header, wait for that time.
/// - `ttl`, if it is there, is the time in seconds for which the key is stored at least. Do not repeat the request later.
///
/// No problem proves that another key is safe: an earlier attempt may have been carried out, and its response lost. A
/// request that is sent with another key may be carried out twice.
///
/// A problem never contains a key, a scope or a part of a stored response.
#[derive(Debug, Clone)]
pub struct Problem {
    kind: ProblemKind,
    detail: Cow<'static, str>,
    retryable: bool,
    retry_after: Option<Duration>,
    kept_for: Option<Duration>,
    documentation: Option<Cow<'static, str>>,
    instance: String,
    /// Text for the service's log. Clients do not get it.
    cause: Option<String>,
    /// Record of the request, for the service's log.
    record: Option<(Cow<'static, str>, RecordId)>,
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $slug:literal, $status:ident, $title:literal;)+) => {
        /// Kind of a [`Problem`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ProblemKind {
            $($(#[doc = $doc])+ #[doc = concat!("\n\n`", $slug, "`, ", stringify!($status))] $kind,)+
        }

        impl ProblemKind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$kind),+];

            /// Fragment of the problem's `type`.
            pub const fn slug(self) -> &'static str {
                match self { $(Self::$kind => $slug),+ }
            }

            /// `title` of the problem.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$kind => $title),+ }
            }

            /// Status of the response.
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$kind => StatusCode::$status),+ }
            }
        }
    };
}

kinds! {
    /// The request needs a key and has none.
    MissingKey = "missing-key", BAD_REQUEST, "The request needs an idempotency key";
    /// The request has more than one header with a key.
    RepeatedKey = "repeated-key", BAD_REQUEST, "The request has more than one idempotency key";
    /// The header is not a key in any syntax.
    MalformedKey = "malformed-key", BAD_REQUEST, "The idempotency key is malformed";
    /// The key has no quotes, and the syntax of this layer requires them.
    UnquotedKey = "unquoted-key", BAD_REQUEST, "The idempotency key needs quotes";
    /// The service did not issue the key, or the key has expired, and only issued keys are accepted.
    KeyNotIssued = "key-not-issued", BAD_REQUEST, "The idempotency key was not issued, or has expired";
    /// The request has no principal.
    NoPrincipal = "no-principal", FORBIDDEN, "The caller of the request is unknown";
    /// The request's body is longer than the layer reads.
    BodyTooLarge = "body-too-large", PAYLOAD_TOO_LARGE, "The request's body is too large";
    /// The request's body ended early, or is malformed.
    BodyUnreadable = "body-unreadable", BAD_REQUEST, "The request's body could not be read";
    /// The request's body did not arrive in time.
    BodyTimeout = "body-timeout", REQUEST_TIMEOUT, "The request's body took too long to arrive";
    /// The request has no canonical form.
    InvalidRequest = "invalid-request", BAD_REQUEST, "The request could not be fingerprinted";
    /// The request is a gRPC call. The response has HTTP status 200 and `grpc-status: 12` instead, see
    /// [the module](super#grpc).
    GrpcUnsupported = "grpc-unsupported", NOT_IMPLEMENTED, "gRPC calls are not made idempotent here";
    /// Another request with the same key is running.
    InFlight = "in-flight", CONFLICT, "A request with this key is still running";
    /// The key was used for another request.
    KeyReused = "key-reused", UNPROCESSABLE_ENTITY, "The idempotency key was used for another request";
    /// An earlier request with the same key crashed, and its effects are unknown.
    Interrupted = "interrupted", CONFLICT, "The effects of an earlier request with this key are unknown";
    /// The lease of this request lapsed, and another request took over.
    LeaseLost = "lease-lost", CONFLICT, "Another request with this key took over";
    /// The work is done, but its response was not stored.
    Unrecorded = "unrecorded", CONFLICT, "The work is done, but its response was not stored";
    /// The request was carried out, or is too old to be a new one, and its response is no longer stored.
    Expired = "expired", GONE, "The response to this request is no longer kept";
    /// The outcome route found no outcome for the key, and no running request.
    NoOutcome = "no-outcome", NOT_FOUND, "There is no outcome for this key";
    /// The stored record is unreadable for this build.
    Undecodable = "undecodable", INTERNAL_SERVER_ERROR, "The stored response cannot be read";
    /// The store is unreachable, or cannot save the record.
    StoreUnavailable = "store-unavailable", SERVICE_UNAVAILABLE, "The service cannot keep track of requests now";
    /// Running requests of the same principal use its whole share of the layer's limits.
    TooManyRequests = "too-many-requests", TOO_MANY_REQUESTS, "Too many requests of this caller are running";
    /// The layer's limits are reached, or the store has more calls than it can serve in time.
    Overloaded = "overloaded", SERVICE_UNAVAILABLE, "The service is overloaded";
    /// The service is misconfigured.
    Misconfigured = "misconfigured", INTERNAL_SERVER_ERROR, "The service is misconfigured";
}

impl Problem {
    pub(super) fn new(kind: ProblemKind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            retryable: false,
            retry_after: None,
            kept_for: None,
            documentation: None,
            instance: instance(),
            cause: None,
            record: None,
        }
    }

    /// Adds the record of the request, which the event of the service has with the instance.
    pub(super) fn about(self, operation: Cow<'static, str>, id: RecordId) -> Self {
        Self {
            record: Some((operation, id)),
            ..self
        }
    }

    /// Describes an invalid key to a client's developer. The error's own text names functions of this crate.
    pub(super) fn of_key(error: InvalidKey) -> Self {
        let (kind, detail): (_, Cow<'static, str>) = match error {
            InvalidKey::Empty => (
                ProblemKind::MalformedKey,
                format!("the key is empty; send one of 1 to {MAX_LEN} characters, such as a UUID").into(),
            ),
            InvalidKey::TooLong(len) => (
                ProblemKind::MalformedKey,
                format!(
                    "the key has {len} characters, but only {MAX_LEN} are allowed; send a shorter one, such as a UUID"
                )
                .into(),
            ),
            InvalidKey::NotPrintable(at) => (
                ProblemKind::MalformedKey,
                format!("byte {at} of the key is not printable ASCII; send a key of printable ASCII, such as a UUID").into(),
            ),
            InvalidKey::NotIssued => (
                ProblemKind::KeyNotIssued,
                "the service did not issue this key for this operation and caller; make sure that the request was not \
                 carried out before, then send it with a key that was issued for it"
                    .into(),
            ),
            InvalidKey::Expired => (
                ProblemKind::KeyNotIssued,
                "the issued key has expired; make sure that the request was not carried out before, then send it with a \
                 new key that was issued for it"
                    .into(),
            ),
            // Errors of the principal's scope. Their texts contain only lengths and positions.
            InvalidKey::EmptyScope | InvalidKey::ScopeTooLong(_) | InvalidKey::ScopeControl(_) => {
                (ProblemKind::NoPrincipal, error.to_string().into())
            }
            // A later version of the contract of stores may have more.
            _ => (
                ProblemKind::MalformedKey,
                format!("the key is malformed; send one of 1 to {MAX_LEN} printable characters, such as a UUID").into(),
            ),
        };
        Self::new(kind, detail)
    }

    pub(super) fn retryable_after(mut self, after: Duration) -> Self {
        self.retryable = true;
        self.retry_after = Some(after);
        self
    }

    /// Says for how long the key is stored at least.
    pub(super) fn kept_for(mut self, kept_for: Duration) -> Self {
        self.kept_for = Some(kept_for);
        self
    }

    /// Adds a text for the service's log.
    pub(super) fn because(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Kind of the problem.
    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// Returns true if the same request with the same key may succeed later without any change.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// Time to wait before a retry. The header `Retry-After` has it in whole seconds.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Time for which the key is stored at least, if the problem says it. The header
    /// [`Idempotency-TTL`](super::IDEMPOTENCY_TTL) has it in whole seconds.
    pub fn ttl(&self) -> Option<Duration> {
        self.kept_for
    }

    /// URN of this occurrence. The event that the service logs has it too, and if a layer refused a call, operation and
    /// record as well.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Sets the URL, absolute or relative, of the page that `type` links to.
    #[must_use]
    pub fn documented_at(mut self, url: impl Into<Cow<'static, str>>) -> Self {
        self.documentation = Some(url.into());
        self
    }

    /// URL of the documentation of this kind of problem: `type` of its JSON form.
    pub fn type_uri(&self) -> String {
        let slug = self.kind.slug();
        // Clients tell problems apart by the fragment, so both forms have it.
        match &self.documentation {
            Some(page) => format!("{page}#{slug}"),
            None => format!("{BOOK}/{slug}.html#{slug}"),
        }
    }

    /// Builds the response, and logs the reason: as an error for status 500, as a warning for 503, otherwise for
    /// debugging.
    ///
    /// The response has the problem as an extension.
    pub fn into_response<B: From<Bytes>>(self) -> Response<B> {
        self.into_response_by(Self::format)
    }

    /// Builds a response in a format of the service's own, and logs the reason as [`into_response`](Self::into_response)
    /// does.
    ///
    /// The response has the problem as an extension, `Retry-After`, unless the function has set it, and
    /// [`Idempotency-TTL`](super::IDEMPOTENCY_TTL) if the problem says for how long the key is stored.
    pub fn into_response_by<B: From<Bytes>>(
        self,
        format: impl FnOnce(&Self) -> Response<Bytes>,
    ) -> Response<B> {
        self.log();
        let mut response = format(&self).map(B::from);
        if let Some(after) = self.retry_after {
            let headers = response.headers_mut();
            let after = HeaderValue::from(whole_seconds(after));
            headers.entry(RETRY_AFTER).or_insert(after);
        }
        if let Some(kept_for) = self.kept_for {
            response
                .headers_mut()
                .insert(IDEMPOTENCY_TTL, ttl(kept_for));
        }
        response.extensions_mut().insert(self);
        response
    }

    /// Formats the problem as RFC 9457 says.
    pub(super) fn format(&self) -> Response<Bytes> {
        let mut response = Response::new(self.to_json());
        *response.status_mut() = self.kind.status();
        let json = HeaderValue::from_static(PROBLEM_JSON);
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }

    /// Returns true if the problem has a URL of its documentation.
    #[cfg(feature = "axum")]
    pub(super) fn is_documented(&self) -> bool {
        self.documentation.is_some()
    }

    /// JSON form of the problem (RFC 9457).
    pub fn to_json(&self) -> Bytes {
        #[derive(Serialize)]
        struct Members<'a> {
            r#type: String,
            title: &'a str,
            status: u16,
            detail: &'a str,
            instance: &'a str,
            retryable: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            ttl: Option<u64>,
        }
        let members = Members {
            r#type: self.type_uri(),
            title: self.kind.title(),
            status: self.kind.status().as_u16(),
            detail: &self.detail,
            instance: &self.instance,
            retryable: self.retryable,
            ttl: self.kept_for.map(|it| it.as_secs()),
        };
        // Strings, an integer and booleans cannot fail to serialize.
        serde_json::to_vec(&members).unwrap_or_default().into()
    }

    fn log(&self) {
        let operation = self.record.as_ref().map(|(it, _)| &**it);
        let record = self
            .record
            .as_ref()
            .map(|(_, id)| tracing::field::display(id));
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    target: "idem",
                    problem = self.kind.slug(),
                    instance = self.instance,
                    operation,
                    record,
                    detail = %self.detail,
                    cause = self.cause,
                    "a request was refused",
                )
            };
        }
        match self.kind.status() {
            StatusCode::INTERNAL_SERVER_ERROR => log!(error),
            StatusCode::SERVICE_UNAVAILABLE => log!(warn),
            _ => log!(debug),
        }
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        let soon = Duration::from_secs(1);
        match error {
            Error::InFlight { retry_after } => Self::new(
                ProblemKind::InFlight,
                "send the same request with the same key again later to get its response",
            )
            .retryable_after(*retry_after),
            Error::Overloaded { retry_after } => Self::new(
                ProblemKind::Overloaded,
                "this try was not carried out; send the same request with the same key again, because an earlier one may have been",
            )
            .retryable_after(*retry_after),
            Error::KeyReused => Self::new(
                ProblemKind::KeyReused,
                "this key was first used with a different request; send a retry exactly as the first try, and other work \
                 with its own key",
            ),
            Error::Interrupted => Self::new(
                ProblemKind::Interrupted,
                "ask the service's operators for the outcome before you send the request with another key",
            ),
            Error::LeaseLost => Self::new(
                ProblemKind::LeaseLost,
                "send the same request with the same key again to get its response",
            )
            .retryable_after(soon),
            Error::Unrecorded => Self::new(
                ProblemKind::Unrecorded,
                "the request was carried out and will not be repeated; look up its result",
            ),
            Error::Expired => Self::new(
                ProblemKind::Expired,
                "the request is not carried out again, and its response is no longer kept; look up its result before you \
                 send new work with a new key",
            ),
            Error::InvalidCall(_)
            | Error::InvalidOutbox(_)
            | Error::NotInstalled
            | Error::NoRuntime => Self::new(
                ProblemKind::Misconfigured,
                "the service is misconfigured; its log has the details",
            ),
            Error::InvalidKey(error) => Self::of_key(*error),
            // The text contains only positions.
            Error::Fingerprint(error) => Self::new(ProblemKind::InvalidRequest, error.to_string()),
            Error::Decode(error) if error.is_of_newer_version() => Self::new(
                ProblemKind::Undecodable,
                "the request was carried out before and will not be repeated; send it with the same key again to get its \
                 response from a newer build of the service",
            )
            .retryable_after(soon),
            Error::Decode(_) => Self::new(
                ProblemKind::Undecodable,
                "the request was carried out before and will not be repeated; its stored response has an unknown format",
            ),
            Error::Store(error) => {
                let problem = Self::new(
                    ProblemKind::StoreUnavailable,
                    match error.kind() {
                        StoreErrorKind::Full => "the service has no room to record another request",
                        _ => "the service does not carry out requests that it cannot record",
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
    /// Logs the text of an error that concerns the service's operators.
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

/// Whole seconds, rounded up to at least one: `Retry-After: 0` would invite clients to a busy loop.
fn whole_seconds(duration: Duration) -> u64 {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    seconds.max(1)
}

/// New URN of an occurrence.
fn instance() -> String {
    format!("urn:uuid:{}", Key::generate_v4().as_str())
}
