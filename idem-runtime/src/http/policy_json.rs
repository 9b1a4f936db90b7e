//! The policy of a layer for programs, in JSON.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response};
use serde_json::{Map, Value, json};

use super::config::Config;
use super::header::title;
use super::policy_page::example;
use super::problem::ProblemKind;
use super::syntax::KeySyntax;
use crate::key::MAX_LEN;
use crate::record::OnCrash;

/// Policy of a layer, in JSON, for clients: what the [policy page](super::PolicyPage) says to their developers. Made by
/// [`IdempotencyLayer::policy_json`](super::IdempotencyLayer::policy_json).
///
/// With axum it is a handler: `get(layer.policy_json())`. Clones are cheap. `idem-client` reads it.
///
/// ```json
/// {
///   "draft": "draft-ietf-httpapi-idempotency-key-header-07",
///   "methods": ["POST", "PATCH"],
///   "key": { "header": "Idempotency-Key", "required": true, "syntax": "string", "max_length": 255, "per_caller": true },
///   "ttl": 86400,
///   "ttl_varies": false,
///   "request": {
///     "counted": ["method", "path", "query", "content-type", "content-encoding", "body"],
///     "ignored_members": ["/sent_at"],
///     "ignored_query_parameters": [],
///     "max_bytes": 2097152
///   },
///   "response": { "statuses": [[200, 306], [309, 400]], "headers": ["content-type"], "max_bytes": 1048576 },
///   "wait": 0,
///   "on_crash": "rerun",
///   "outcome": "/orders/outcome",
///   "problems": { "in-flight": 409 }
/// }
/// ```
///
/// - Durations are in whole seconds, rounded down. `ttl` is the time for which a key is stored after its request has ended.
///   With `ttl_varies`, some operations or responses have another one.
/// - `syntax` is `string` if the key needs quotes (RFC 9651 §3.3.3), and `string-or-bare` if not.
/// - `statuses` are ranges, with their ends, of the statuses that are stored. Responses with `Retry-After` are not, and
///   neither is the 404 of a path that does not exist. `null` if the service has a rule of its own.
/// - `outcome` is the URL of the [outcome route](super::OutcomeRoute), or `null`.
#[derive(Debug, Clone)]
pub struct PolicyJson(Bytes);

impl PolicyJson {
    pub(super) fn of(config: &Config) -> Self {
        let problems = ProblemKind::ALL.iter().map(|kind| {
            let status = example(config, *kind).status().as_u16();
            (kind.slug().to_owned(), Value::from(status))
        });
        let policy = json!({
            "draft": "draft-ietf-httpapi-idempotency-key-header-07",
            "methods": config.methods.iter().map(Method::as_str).collect::<Vec<_>>(),
            "key": {
                "header": title(&config.key_header),
                "required": config.required,
                "syntax": match config.syntax {
                    KeySyntax::Strict => "string",
                    KeySyntax::Lenient => "string-or-bare",
                },
                "max_length": MAX_LEN,
                "per_caller": config.scoping.scoped,
            },
            "ttl": config.retention.ttl.as_secs(),
            "ttl_varies": config.retention.varies(),
            "request": {
                "counted": ["method", "path", "query", "content-type", "content-encoding", "body"],
                "ignored_members": config.ignored.pointers,
                "ignored_query_parameters": config.ignored.parameters,
                "max_bytes": config.max_request_bytes,
            },
            "response": {
                "statuses": config.finality.statuses(config.on_crash),
                "headers": config.allowed.names().collect::<Vec<_>>(),
                "max_bytes": config.max_response_bytes,
            },
            "wait": config.wait.unwrap_or(config.idem.policy().wait).as_secs(),
            "on_crash": match config.on_crash {
                OnCrash::Rerun => "rerun",
                _ => "refuse",
            },
            "outcome": config.outcome_url,
            "problems": problems.collect::<Map<_, _>>(),
        });
        Self(policy.to_string().into())
    }

    /// Builds a response with the policy.
    pub fn to_response<B: From<Bytes>>(&self) -> Response<B> {
        let mut response = Response::new(B::from(self.0.clone()));
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }

    /// The JSON.
    pub fn as_json(&self) -> &[u8] {
        &self.0
    }
}
