//! Asks a server what became of a request, instead of sending the request again.

use std::time::Duration;

use http::{Extensions, StatusCode};
use idem_store::structured;
use reqwest::{Request, Response};
use reqwest_middleware::Next;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::policy::RetryPolicy;
use super::redirect;
use super::reply::{Reply, is_problem, retry_after, with_status};
use super::span::TryReport;

/// Pause between two questions, if the server names none.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Answer to the question what became of a request.
pub(super) enum Asked {
    /// The answer that the request itself would get: the stored response, or a problem that no retry overcomes.
    Answer(Response),
    /// The request is running.
    Running,
    /// The server has no outcome, or does not say.
    Nothing,
}

/// Asks until the request no longer runs, or the next question would come after `until`. Asks once at least.
pub(super) async fn ask_until(
    question: &Request,
    until: Instant,
    policy: &RetryPolicy,
    extensions: &mut Extensions,
    next: &Next<'_>,
) -> Asked {
    for asks in 1.. {
        // It has no body, so it can be cloned.
        let Some(again) = question.try_clone() else {
            return Asked::Nothing;
        };
        let report = TryReport::new(&again, 1);
        let span = report.span.clone();
        let url = again.url().clone();
        let sending = async {
            let answer = next.clone().run(again, extensions).await;
            report.end(&answer);
            let response = answer?;
            redirect::report(&url, &response);
            Ok(response)
        };
        let sending = sending.instrument(span);
        let response = match Reply::of(sending, policy.per_try, policy.conflicts).await {
            Reply::Final(Ok(response)) => response,
            Reply::Final(Err(_)) | Reply::Passing(_) => return Asked::Nothing,
        };
        match response.status() {
            StatusCode::OK => {
                let stored = response.headers().get(structured::IDEMPOTENT_STATUS);
                let stored = stored.and_then(|it| StatusCode::from_bytes(it.as_bytes()).ok());
                return match stored {
                    // A redirection is no answer, and the request itself reports it.
                    Some(status) if !status.is_redirection() => {
                        Asked::Answer(with_status(response, status))
                    }
                    _ => Asked::Nothing,
                };
            }
            StatusCode::ACCEPTED => {
                let pause = retry_after(response.headers()).unwrap_or(ASK_AGAIN);
                // Little longer each time: the outcome should be found soon after its end.
                let pause = policy.pause(asks.min(3), pause);
                drop(response);
                match Instant::now().checked_add(pause) {
                    Some(at) if at < until => tokio::time::sleep_until(at).await,
                    _ => return Asked::Running,
                }
            }
            StatusCode::CONFLICT | StatusCode::GONE if is_problem(&response) => {
                return Asked::Answer(response);
            }
            _ => return Asked::Nothing,
        }
    }
    Asked::Running
}
