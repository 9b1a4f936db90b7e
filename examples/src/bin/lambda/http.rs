//! The function that API Gateway, function URLs and load balancers invoke.

use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::post;
use idem_lambda::Invocation;
use idem_runtime::http::{IdempotencyLayer, unscoped};
use lambda_http::RequestExt as _;
use sqlx::SqlitePool;

use crate::deposits::Bank;

/// Retention of a response.
const TTL: Duration = Duration::from_secs(24 * 3600);

/// Main function of the program that Lambda starts.
pub(crate) async fn run(folder: &Path) -> anyhow::Result<()> {
    let bank = Bank::open(folder).await?;
    // Authentication is left out, so all clients share their keys.
    let idempotency =
        IdempotencyLayer::builder(bank.idem(), "deposits.post", TTL, unscoped()).build()?;
    let router = Router::new()
        .route("/deposits", post(deposit))
        .with_state(bank.idem().store().pool().clone())
        .layer(idempotency)
        .layer(from_fn(with_deadline)); // outside of the layer
    let served = lambda_http::run(router).await;
    served.map_err(|error| anyhow!(error))
}

/// Passes the deadline of the invocation to the layer.
async fn with_deadline(mut request: Request, next: Next) -> Response {
    if let Some(context) = request.lambda_context_ref() {
        let deadline = Invocation::until(context.deadline()).deadline();
        request.extensions_mut().insert(deadline);
    }
    next.run(request).await
}

/// Books what it is sent. Knows nothing of idempotency.
async fn deposit(
    State(db): State<SqlitePool>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, StatusCode> {
    let key = headers.get("idempotency-key").map(HeaderValue::to_str);
    let insert = sqlx::query("INSERT INTO ledger (message, cents) VALUES (?, ?)")
        .bind(key.and_then(Result::ok))
        .bind(i64::try_from(body.len()).unwrap_or_default());
    let inserted = insert.execute(&db).await;
    let row = inserted
        .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?
        .last_insert_rowid();
    // Text or bytes, as the request was: the answer for Lambda encodes bytes as base64.
    let media_type = headers.get(header::CONTENT_TYPE).cloned();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::CREATED;
    if let Some(media_type) = media_type {
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, media_type);
    }
    if let Ok(location) = HeaderValue::try_from(format!("/deposits/{row}")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}
