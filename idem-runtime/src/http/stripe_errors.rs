//! Example in the documentation, which a test runs too: refusals in the format of Stripe's errors.

use axum::body::Bytes;
use axum::http::{HeaderValue, Response};
use idem_runtime::http::Problem;

/// Error in the format of Stripe's API. Its SDKs retry every 409 and 5xx, unless `Stripe-Should-Retry` is `false`.
pub(crate) fn stripe_error(problem: &Problem) -> Response<Bytes> {
    let error = serde_json::json!({
        "error": {
            "type": "idempotency_error",
            "code": problem.kind().slug(),
            "message": problem.to_string(),
            "doc_url": problem.type_uri(),
        }
    });
    let mut response = Response::new(Bytes::from(error.to_string()));
    *response.status_mut() = problem.kind().status();
    let should_retry = if problem.is_retryable() {
        "true"
    } else {
        "false"
    };
    for (name, value) in [
        ("content-type", "application/json"),
        ("stripe-should-retry", should_retry),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}
