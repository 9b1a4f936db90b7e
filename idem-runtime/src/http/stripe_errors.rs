//! Example in the documentation, which a test runs too: converts refusals to the format of Stripe's errors.

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::Response;
use idem_runtime::http::Problem;

/// Converts refusals to the format of Stripe's errors. The status, `Retry-After` and the extensions do not change.
pub(crate) async fn stripe_errors(response: Response) -> Response {
    let Some(problem) = response.extensions().get::<Problem>() else {
        return response;
    };
    let error = serde_json::json!({
        "error": {
            "type": "idempotency_error",
            "code": problem.kind().slug(),
            "message": problem.to_string(),
            "occurrence": problem.instance(),
        }
    });
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    let json = HeaderValue::from_static("application/json");
    parts.headers.insert(CONTENT_TYPE, json);
    Response::from_parts(parts, Body::from(error.to_string()))
}
