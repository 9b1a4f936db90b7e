//! Retried requests, back-off and retry limits. Time is paused, and does not advance while a request is in flight.

use std::time::Duration;

use async_trait::async_trait;
use http::Extensions;
use idem_runtime::client::{IdempotencyMiddleware, RetryPolicy, Sent, Why};
use reqwest::{Request, Response};
use reqwest_middleware::{ClientWithMiddleware, Middleware, Next};
use tokio::time::Instant;

use super::server::{Answer, Asked, say};
use super::{Server, gave_up, sent};

/// Keeps paused time from advancing automatically while a test waits for the network, which sets no timer.
struct TimeStands;

#[async_trait]
impl Middleware for TimeStands {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let (ended, end) = std::sync::mpsc::channel::<()>();
        // Tokio does not advance paused time while a blocking task runs.
        let held = tokio::task::spawn_blocking(move || end.recv());
        let answer = next.run(request, extensions).await;
        drop(ended);
        held.await.unwrap().unwrap_err();
        answer
    }
}

fn client(policy: RetryPolicy) -> ClientWithMiddleware {
    IdempotencyMiddleware::new()
        .policy(policy)
        .client(reqwest::Client::builder())
        .unwrap()
        .with(TimeStands)
        .build()
}

async fn post(server: &Server, policy: RetryPolicy) -> reqwest_middleware::Result<Response> {
    let client = client(policy);
    client.post(server.url()).body("500 cents").send().await
}

/// Length of each pause between requests.
fn pauses(server: &Server) -> Vec<Duration> {
    let asked = server.asked();
    asked.windows(2).map(|two| two[1].at - two[0].at).collect()
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Policy without any pauses except those that the server asks for.
const WITHOUT_PAUSES: RetryPolicy = RetryPolicy::new().backoff(Duration::ZERO, Duration::ZERO);

#[tokio::test(start_paused = true)]
async fn a_request_whose_reply_breaks_off_is_repeated_unchanged() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n";
    let server = Server::script([
        Answer::Hang,
        Answer::Say(head.to_owned()),
        Answer::Say(format!("{head}\r\nhalf")),
        Answer::Say("nonsense\r\n\r\n".to_owned()),
        say(200, "X-Own: yes\r\n", "the whole"),
    ])
    .await;

    let response = post(&server, RetryPolicy::new()).await.unwrap();

    let asked = server.asked();
    assert_eq!(asked.len(), 5);
    assert!(asked.iter().all(|it| it.body == "500 cents"));
    assert!(asked.iter().all(|it| it.key() == asked[0].key()));
    assert_eq!(sent(&response).tries(), 5);
    // The caller gets a body that was read on the way unchanged.
    assert_eq!(response.url().as_str(), server.url());
    assert_eq!(response.headers()["x-own"], "yes");
    assert!(response.remote_addr().is_some());
    assert_eq!(response.content_length(), Some(9));
    assert_eq!(response.text().await.unwrap(), "the whole");
}

#[tokio::test(start_paused = true)]
async fn only_temporary_statuses_are_retried() {
    for (status, tries) in [
        (408, 2),
        (425, 2),
        (429, 2),
        (500, 2),
        (502, 2),
        (503, 2),
        (504, 2),
        (599, 2),
        (201, 1),
        (400, 1),
        (401, 1),
        (403, 1),
        (404, 1),
        (409, 1),
        (410, 1),
        (412, 1),
        (413, 1),
        (422, 1),
        (428, 1),
    ] {
        // `Retry-After` has no effect on a final answer, except for a conflict.
        let headers = if status == 409 {
            ""
        } else {
            "Retry-After: 1\r\n"
        };
        let server = Server::script([say(status, headers, ""), say(200, "", "")]).await;
        let response = post(&server, WITHOUT_PAUSES).await.unwrap();
        assert_eq!(server.asked().len(), tries, "{status}");
        assert_eq!(sent(&response).tries() as usize, tries, "{status}");
        let expected = if tries == 2 { 200 } else { status };
        assert_eq!(response.status(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_retried_if_it_says_that_it_is_temporary() {
    let json = "Content-Type: application/problem+json; charset=utf-8\r\n";
    let yes = r#"{"title":"in flight","retryable":true}"#;
    for (headers, body, tries) in [
        ("Retry-After: 1\r\n", "", 2),
        (json, yes, 2),
        ("Content-Type: Application/Problem+JSON\r\n", yes, 2),
        (json, r#"{"retryable":false}"#, 1),
        (json, r#"{"retryable":"true"}"#, 1),
        (json, r#"{"title":"taken"}"#, 1),
        (json, "", 1),
        ("Content-Type: application/json\r\n", yes, 1),
        ("", yes, 1),
        ("Retry-After: soon\r\n", "", 1),
        ("Retry-After: -1\r\n", "", 1),
    ] {
        let server = Server::script([say(409, headers, body), say(200, "", "")]).await;
        let response = post(&server, WITHOUT_PAUSES).await.unwrap();
        assert_eq!(server.asked().len(), tries, "{headers}{body}");
        if tries == 1 {
            assert_eq!(response.status(), 409);
            assert_eq!(response.text().await.unwrap(), body);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_body_of_unknown_length_is_read_and_returned_whole() {
    let chunked = |body: &str| {
        Answer::Say(format!(
            "HTTP/1.1 409 X\r\nConnection: close\r\nContent-Type: application/problem+json\r\n\
             Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        ))
    };
    let server = Server::script([chunked(r#"{"retryable":true}"#), say(200, "", "")]).await;
    post(&server, WITHOUT_PAUSES).await.unwrap();
    assert_eq!(server.asked().len(), 2);

    // A problem document above the size limit is not read as one.
    let long = format!(r#"{{"retryable":true,"detail":"{}"}}"#, "x".repeat(200_000));
    let server = Server::script([chunked(&long), say(200, "", "")]).await;
    let response = post(&server, WITHOUT_PAUSES).await.unwrap();
    assert_eq!(server.asked().len(), 1);
    assert_eq!(response.url().as_str(), server.url());
    assert_eq!(response.text().await.unwrap(), long);
}

#[tokio::test(start_paused = true)]
async fn pauses_are_random_below_a_bound_that_doubles() {
    let policy = RetryPolicy::new().retries(6).backoff(secs(1), secs(8));
    let mut all = Vec::new();
    for _ in 0..20 {
        let server = Server::script([say(500, "", "")]).await;
        post(&server, policy).await.unwrap();
        all.push(pauses(&server));
    }
    for (at, bound) in [1, 2, 4, 8, 8, 8].into_iter().enumerate() {
        let pauses: Vec<Duration> = all.iter().map(|it| it[at]).collect();
        // Timers tick in milliseconds and round up.
        let bound = secs(bound) + Duration::from_millis(1);
        assert!(pauses.iter().all(|it| *it <= bound), "{at}: {pauses:?}");
        // Full jitter: twenty pauses fall in both halves, except in one run of half a million.
        assert!(pauses.iter().any(|it| *it < bound / 2), "{at}: {pauses:?}");
        assert!(pauses.iter().any(|it| *it > bound / 2), "{at}: {pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_waited_for() {
    let date =
        "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: Sun, 06 Nov 1994 08:49:44 GMT\r\n";
    let server = Server::script([
        say(503, "Retry-After: 5\r\n", ""),
        say(429, date, ""),
        say(409, "Retry-After: 0\r\n", ""),
        // RFC 9110, section 5.6.7: the obsolete date formats are read as well; a time in the past asks for no delay.
        say(500, "Retry-After: Sunday, 06-Nov-94 08:49:37 GMT\r\n", ""),
        say(200, "", ""),
    ])
    .await;

    post(&server, WITHOUT_PAUSES).await.unwrap();

    let pauses = pauses(&server);
    for (pause, asked) in pauses.iter().zip([5, 7, 0, 0]) {
        let late = pause.checked_sub(secs(asked)).expect("not before");
        assert!(late <= Duration::from_millis(1), "{pauses:?}");
    }
    assert_eq!(pauses.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn clients_with_the_same_retry_after_retry_at_different_times() {
    let policy = RetryPolicy::new().retries(1).backoff(secs(1), secs(1));
    let mut late = Vec::new();
    for _ in 0..20 {
        let server = Server::script([say(503, "Retry-After: 5\r\n", "")]).await;
        post(&server, policy).await.unwrap();
        late.push(pauses(&server)[0].checked_sub(secs(5)).expect("not before"));
    }
    assert!(late.iter().all(|it| *it <= Duration::from_millis(1001)));
    assert!(late.iter().max() > late.iter().min());
}

#[tokio::test(start_paused = true)]
async fn the_last_response_is_returned_after_the_last_attempt() {
    let server = Server::script([say(500, "", "1"), say(502, "", "2"), say(503, "", "3")]).await;
    let response = post(&server, WITHOUT_PAUSES.retries(2)).await.unwrap();
    assert_eq!(server.asked().len(), 3);
    assert_eq!(sent(&response).tries(), 3);
    assert_eq!(response.status(), 503);
    assert_eq!(response.text().await.unwrap(), "3");

    let server = Server::script([say(500, "", "")]).await;
    post(&server, WITHOUT_PAUSES.retries(0)).await.unwrap();
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_error_of_an_unanswered_request_contains_the_key() {
    let server = Server::script([Answer::Hang]).await;
    let answer = post(&server, WITHOUT_PAUSES.retries(2)).await;
    let gave_up = gave_up(&answer);
    assert_eq!(server.asked().len(), 3);
    assert_eq!(gave_up.tries(), 3);
    assert_eq!(gave_up.why(), Why::Tries);
    assert_eq!(
        server.asked()[2].key(),
        format!("\"{}\"", gave_up.key().as_str())
    );
    assert!(std::error::Error::source(gave_up).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_request_to_an_unreachable_server_is_retried() {
    let server = Server::script([Answer::Hang]).await;
    let url = server.url();
    drop(server);
    tokio::task::yield_now().await;
    let answer = client(WITHOUT_PAUSES.retries(4)).post(url).send().await;
    assert_eq!(gave_up(&answer).tries(), 5);
}

#[tokio::test(start_paused = true)]
async fn no_attempt_begins_after_the_time_limit() {
    let policy = WITHOUT_PAUSES.total(secs(25));
    let server = Server::script([say(503, "Retry-After: 10\r\n", "")]).await;
    let began = Instant::now();
    let response = post(&server, policy).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(server.asked().len(), 3, "at 0, 10 and 20 s");
    assert!(began.elapsed() < secs(21), "and nobody waits for the end");

    for beyond in ["3600", "99999999999999999999999999"] {
        let header = format!("Retry-After: {beyond}\r\n");
        let server = Server::script([say(429, &header, "")]).await;
        let response = post(&server, policy).await.unwrap();
        assert_eq!(response.status(), 429);
        assert_eq!(server.asked().len(), 1);
    }
}

/// Without `TimeStands`: this test waits for a time-out.
#[tokio::test(start_paused = true)]
async fn a_reply_that_never_comes_is_a_timeout() {
    let server = Server::script([Answer::Silence]).await;
    let silent = |policy| super::client(IdempotencyMiddleware::new().policy(policy));

    let began = Instant::now();
    let three = silent(WITHOUT_PAUSES.retries(2).per_try(secs(7)));
    let answer = three.post(server.url()).send().await;
    let given_up = gave_up(&answer);
    assert_eq!((given_up.tries(), given_up.why()), (3, Why::Tries));
    assert!((secs(21)..secs(22)).contains(&began.elapsed()));

    // The time limit for all attempts cancels the last one.
    let began = Instant::now();
    let short = silent(WITHOUT_PAUSES.per_try(secs(20)).total(secs(50)));
    let answer = short.post(server.url()).send().await;
    let given_up = gave_up(&answer);
    assert_eq!((given_up.tries(), given_up.why()), (3, Why::Time));
    assert!((secs(50)..secs(51)).contains(&began.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_sent_once_with_its_key() {
    let stream = || reqwest::Body::wrap("500 cents".to_owned());

    let server = Server::script([say(503, "", "later"), say(200, "", "")]).await;
    let request = client(WITHOUT_PAUSES).post(server.url()).body(stream());
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(server.asked().len(), 1);
    assert!(!server.asked()[0].key().is_empty());

    let server = Server::script([Answer::Hang, say(200, "", "")]).await;
    let request = client(WITHOUT_PAUSES).post(server.url()).body(stream());
    let answer = request.send().await;
    assert_eq!(gave_up(&answer).why(), Why::Stream);
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_client_itself_are_not_retried() {
    let server = Server::script([say(307, "Location: /again\r\n", "")]).await;
    let answer = post(&server, WITHOUT_PAUSES).await;
    assert!(answer.unwrap_err().is_redirect());
    let asked = server.asked();
    assert_eq!(
        asked.len(),
        11,
        "one request, redirected until reqwest has enough"
    );
    assert!(asked.iter().all(|it| it.key() == asked[0].key()));
}

#[tokio::test(start_paused = true)]
async fn a_long_reply_is_returned_before_it_is_read() {
    // The connection breaks in the middle of the body. The reader of the body gets the error, and the key to retry
    // with.
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\nbegin";
    let server = Server::script([Answer::Say(head.to_owned())]).await;
    let response = post(&server, WITHOUT_PAUSES).await.unwrap();
    assert_eq!(server.asked().len(), 1);
    let known: Sent = sent(&response).clone();
    assert_eq!(
        server.asked()[0].key(),
        format!("\"{}\"", known.key().as_str())
    );
    assert!(response.bytes().await.is_err());
}

/// A redirect after a move sends the same request to the new address.
#[tokio::test]
async fn a_redirected_request_has_the_key_and_the_body() {
    for status in [307, 308] {
        let moved = say(status, "Location: /moved\r\n", "");
        let server = Server::script([moved.clone(), say(503, "", ""), moved, say(200, "", "")]);
        let server = server.await;
        let response = post(&server, WITHOUT_PAUSES).await.unwrap();
        assert_eq!(
            (response.status().as_u16(), sent(&response).tries()),
            (200, 2)
        );
        let asked = server.asked();
        let lines: Vec<_> = asked.iter().map(Asked::line).collect();
        let (first, second) = ("POST /charges?secret=1 HTTP/1.1", "POST /moved HTTP/1.1");
        assert_eq!(lines, [first, second, first, second]);
        assert!(asked.iter().all(|it| it.key() == asked[0].key()));
        assert!(asked.iter().all(|it| it.body == "500 cents"));
    }
}

/// The work is done and its result is at another address. If that address fails, the request is sent again with its
/// key.
#[tokio::test]
async fn a_result_at_another_url_is_fetched() {
    let other = say(303, "Location: /charges/1\r\n", "");
    let server = Server::script([other.clone(), say(503, "", ""), other, say(200, "", "paid")]);
    let server = server.await;
    let response = post(&server, WITHOUT_PAUSES).await.unwrap();
    assert_eq!(sent(&response).tries(), 2);
    assert_eq!(response.text().await.unwrap(), "paid");
    let asked = server.asked();
    let lines: Vec<_> = asked.iter().map(Asked::line).collect();
    let (work, result) = ("POST /charges?secret=1 HTTP/1.1", "GET /charges/1 HTTP/1.1");
    assert_eq!(lines, [work, result, work, result]);
    assert_eq!(asked[0].key(), asked[2].key());
}

/// No number in a response or a policy overflows.
#[tokio::test]
async fn extreme_numbers_do_not_overflow() {
    const LONGEST: RetryPolicy = RetryPolicy::new()
        .backoff(Duration::MAX, Duration::MAX)
        .total(Duration::MAX)
        .per_try(Duration::MAX);
    for after in [
        "18446744073709551615",
        "99999999999999999999999",
        "Fri, 31 Dec 9999 23:59:59 GMT",
    ] {
        let busy = say(503, &format!("Retry-After: {after}\r\n"), "");
        let server = Server::script([busy]).await;
        let response = post(&server, RetryPolicy::new()).await.unwrap();
        assert_eq!((response.status().as_u16(), server.asked().len()), (503, 1));
    }
    // A value that is not a time has no effect.
    for after in [
        "-1",
        "1.5",
        "soon",
        "",
        "+1",
        "Thu, 01 Jan 1970 00:00:00 GMT",
    ] {
        let busy = say(503, &format!("Retry-After: {after}\r\n"), "");
        let server = Server::script([busy, say(200, "", "")]).await;
        let response = post(&server, WITHOUT_PAUSES).await.unwrap();
        assert_eq!((response.status().as_u16(), server.asked().len()), (200, 2));
    }
    let server = Server::script([say(200, "", "")]).await;
    let response = post(&server, LONGEST).await.unwrap();
    assert_eq!(response.status(), 200);
    let server = Server::script([say(503, "", "")]).await;
    let response = post(&server, LONGEST.retries(0)).await.unwrap();
    assert_eq!(response.status(), 503);
}
