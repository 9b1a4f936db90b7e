//! The client middleware: requests that it guards, their keys, its retries and its limits.

mod conflicts;
mod cut;
mod journal;
mod keys;
mod lossy;
mod outcome;
mod redirects;
mod retries;
mod server;

use std::time::Duration;

use idem_runtime::client::{ClientError, GaveUp, IdempotencyMiddleware, RetryPolicy, Sent};
use reqwest::Response;
use reqwest_middleware::ClientWithMiddleware;

use self::server::Server;

/// Back-off too short to matter in a test.
fn quick() -> IdempotencyMiddleware {
    let pauses = Duration::from_millis(1);
    IdempotencyMiddleware::new().policy(RetryPolicy::new().backoff(pauses, pauses))
}

fn client(middleware: IdempotencyMiddleware) -> ClientWithMiddleware {
    middleware
        .client(reqwest::Client::builder())
        .unwrap()
        .build()
}

fn sent(response: &Response) -> &Sent {
    response.extensions().get().expect("a guarded response")
}

/// Error that the middleware returned in place of a response.
fn refusal(answer: &reqwest_middleware::Result<Response>) -> &ClientError {
    let error = answer.as_ref().expect_err("no response");
    ClientError::of(error).expect("an error of the middleware")
}

fn gave_up(answer: &reqwest_middleware::Result<Response>) -> &GaveUp {
    match refusal(answer) {
        ClientError::GaveUp(gave_up) => gave_up,
        other => panic!("{other:?}"),
    }
}
