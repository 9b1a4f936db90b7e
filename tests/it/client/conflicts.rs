//! The meaning of a 409 under each setting of `Conflicts`.

use std::time::Duration;

use idem_runtime::client::{Conflicts, IdempotencyMiddleware, RetryPolicy};

use super::server::say;
use super::{Server, client, sent};

const CONFLICTS: [Conflicts; 3] = [Conflicts::Final, Conflicts::InProgress, Conflicts::Stripe];

/// Number of times that a request is sent whose first answer has this status and whose second answer is 200.
async fn tries(conflicts: Conflicts, status: u16, headers: &str, body: &str) -> usize {
    let policy = RetryPolicy::new()
        .backoff(Duration::ZERO, Duration::ZERO)
        .conflicts(conflicts);
    let server = Server::script([say(status, headers, body), say(200, "", "done")]).await;
    let client = client(IdempotencyMiddleware::new().policy(policy));
    let response = client.post(server.url()).send().await.unwrap();
    let asked = server.asked();
    assert!(asked.iter().all(|it| it.key() == asked[0].key()));
    assert_eq!(sent(&response).tries() as usize, asked.len());
    if asked.len() == 1 {
        assert_eq!(response.status(), status);
        assert_eq!(response.text().await.unwrap(), body);
    } else {
        assert_eq!(response.text().await.unwrap(), "done");
    }
    asked.len()
}

#[tokio::test]
async fn a_conflict_without_advice_follows_the_policy() {
    // Nothing in the draft's example distinguishes it from another conflict.
    let problem = "Content-Type: application/problem+json\r\nLink: <https://developer.example.com/idempotency>\r\n";
    let example = r#"{"title":"A request is outstanding for this Idempotency-Key","detail":"..."}"#;
    for (headers, body) in [
        ("", ""),
        (problem, example),
        ("Content-Type: text/html\r\n", "<h1>409</h1>"),
        ("Retry-After: soon\r\n", ""),
        (problem, r#"{"retryable":"false"}"#),
    ] {
        for (conflicts, expected) in CONFLICTS.into_iter().zip([1, 2, 2]) {
            let sent = tries(conflicts, 409, headers, body).await;
            assert_eq!(sent, expected, "{conflicts:?}: {headers}{body}");
        }
    }
    assert_eq!(
        RetryPolicy::new(),
        RetryPolicy::new().conflicts(Conflicts::Final)
    );
}

#[tokio::test]
async fn the_retry_advice_of_a_conflict_overrides_the_policy() {
    let problem = "Content-Type: application/problem+json\r\n";
    for (headers, body, expected) in [
        ("Retry-After: 0\r\n", "", 2),
        (problem, r#"{"retryable":true}"#, 2),
        (problem, r#"{"retryable":false}"#, 1),
    ] {
        for conflicts in CONFLICTS {
            let sent = tries(conflicts, 409, headers, body).await;
            assert_eq!(sent, expected, "{conflicts:?}: {headers}{body}");
        }
    }
}

#[tokio::test]
async fn the_retry_header_of_stripe_is_obeyed() {
    let (yes, no) = (
        "Stripe-Should-Retry: true\r\n",
        "Stripe-Should-Retry: false\r\n",
    );
    let waits = format!("Retry-After: 0\r\n{no}");
    for (headers, expected) in [
        (yes, [1, 2, 2]),
        (no, [1, 2, 1]),
        (&waits, [2, 2, 1]),
        ("Stripe-Should-Retry: maybe\r\n", [1, 2, 2]),
    ] {
        for (conflicts, expected) in CONFLICTS.into_iter().zip(expected) {
            let sent = tries(conflicts, 409, headers, "").await;
            assert_eq!(sent, expected, "{conflicts:?}: {headers}");
        }
    }
}

/// The setting applies only to 409.
#[tokio::test]
async fn the_conflict_policy_applies_only_to_409() {
    for conflicts in CONFLICTS {
        for (status, expected) in [(400, 1), (412, 1), (422, 1), (423, 1), (503, 2)] {
            assert_eq!(tries(conflicts, status, "", "").await, expected, "{status}");
        }
    }
}

/// A conflict that never ends uses up the retries, and its response is the caller's answer.
#[tokio::test]
async fn a_permanent_conflict_is_returned_after_the_last_attempt() {
    let server = Server::script([say(409, "", "taken")]).await;
    let policy = RetryPolicy::new()
        .retries(3)
        .backoff(Duration::ZERO, Duration::ZERO)
        .conflicts(Conflicts::InProgress);
    let client = client(IdempotencyMiddleware::new().policy(policy));
    let response = client.post(server.url()).send().await.unwrap();
    assert_eq!((response.status().as_u16(), server.asked().len()), (409, 4));
    assert_eq!(response.text().await.unwrap(), "taken");
}
