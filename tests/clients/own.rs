//! The crate's own client.

use std::time::Duration;

use idem_runtime::Key;
use idem_runtime::client::{IdempotencyMiddleware, RetryPolicy};
use reqwest_middleware::ClientWithMiddleware;
use serde_json::json;

use crate::answers::{self, Answers};
use crate::bank::PATH;
use crate::{CALLERS, RETRIES, Work};

pub(crate) async fn send_all(work: Work) -> Answers {
    let policy = RetryPolicy::new()
        .retries(RETRIES)
        .backoff(Duration::from_millis(50), Duration::from_secs(1));
    let client = IdempotencyMiddleware::new()
        .policy(policy)
        .client(reqwest::Client::builder().no_proxy())
        .unwrap()
        .build();
    Answers::collect(CALLERS, async |operation| {
        send(&client, &work, operation).await
    })
    .await
}

async fn send(
    client: &ClientWithMiddleware,
    work: &Work,
    operation: u64,
) -> Result<String, String> {
    let request = client
        .post(format!("{}{PATH}", work.base))
        .bearer_auth("ann")
        .header("content-type", "application/json")
        .with_extension(Key::new(work.key(operation)).unwrap())
        .body(json!({ "amount": operation, "currency": "eur" }).to_string());
    let response = request.send().await.map_err(|error| format!("{error:?}"))?;
    let status = response.status();
    let body = response.text().await.map_err(|error| error.to_string())?;
    if !status.is_success() {
        return Err(format!("{status}: {body}"));
    }
    answers::receipt(&body)
}
