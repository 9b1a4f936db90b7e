//! The middleware and servers that say what became of a request, and for how long they store its key.

use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use idem_runtime::client::{IdempotencyMiddleware, PolicyError, RetryPolicy, ServerPolicy, Why};
use idem_runtime::http::{IdempotencyLayer, unscoped};
use idem_runtime::{Idem, MemoryStore};
use reqwest::Url;
use tokio::net::TcpListener;

use super::server::{Answer, say};
use super::{Server, client, gave_up, sent};

const DAY: Duration = Duration::from_secs(24 * 3600);
const STORED: &str = "Idempotent-Status: 201\r\nIdempotent-Replayed: true\r\n";
const PROBLEM: &str = "Content-Type: application/problem+json\r\n";

fn no_pauses(retries: u32) -> IdempotencyMiddleware {
    let policy = RetryPolicy::new().backoff(Duration::ZERO, Duration::ZERO);
    IdempotencyMiddleware::new().policy(policy.retries(retries))
}

/// Policy of a scripted server with an outcome route.
fn policy(server: &Server, ttl: Duration) -> ServerPolicy {
    let url = Url::parse(&server.url()).unwrap();
    ServerPolicy::new(url, ttl).outcome_at("/outcome").unwrap()
}

/// Methods and paths of the requests.
fn lines(server: &Server) -> Vec<&'static str> {
    let asked = server.asked();
    let key = asked[0].key();
    assert!(asked.iter().all(|it| it.key() == key), "one key for all");
    let line = |line: &str| match line {
        "POST /charges?secret=1 HTTP/1.1" => "send",
        "GET /outcome HTTP/1.1" => "ask",
        other => panic!("{other}"),
    };
    asked.iter().map(|it| line(it.line())).collect()
}

#[tokio::test]
async fn a_client_that_gave_up_asks_for_the_outcome() {
    for (answer, retries, tries) in [(Answer::Hang, 2, 3), (say(503, "", ""), 0, 1)] {
        let mut script = vec![answer; tries];
        script.push(say(200, STORED, "receipt"));
        let server = Server::script(script).await;
        let client = client(no_pauses(retries).server(policy(&server, DAY)));
        let request = client.post(server.url()).body("500 cents");
        let response = request.bearer_auth("ann").send().await.unwrap();
        assert_eq!(response.status(), 201);
        assert_eq!(sent(&response).tries() as usize, tries);
        assert_eq!(response.text().await.unwrap(), "receipt");
        let mut expected = vec!["send"; tries];
        expected.push("ask");
        assert_eq!(lines(&server), expected);
        let question = server.asked().pop().unwrap();
        assert_eq!(question.all("authorization"), ["Bearer ann"]);
        assert_eq!(question.body, "");
    }
}

#[tokio::test]
async fn a_problem_of_the_outcome_is_an_answer_and_anything_else_is_none() {
    for (answer, status) in [
        (say(409, PROBLEM, r#"{"retryable":false}"#), Some(409)),
        (say(410, PROBLEM, "{}"), Some(410)),
        (say(410, "", ""), None),
        (say(404, PROBLEM, "{}"), None),
        (say(404, "", "no such page"), None),
        (say(202, "Retry-After: 1\r\n", ""), None),
        (say(200, "", "<h1>A page of a proxy</h1>"), None),
        (say(200, "Idempotent-Status: 303\r\n", ""), None),
        (say(403, PROBLEM, "{}"), None),
        (say(500, "", ""), None),
        (Answer::Hang, None),
    ] {
        let server = Server::script([Answer::Hang, answer.clone()]).await;
        let client = client(no_pauses(0).server(policy(&server, DAY)));
        let asked = client.post(server.url()).send().await;
        match status {
            Some(status) => assert_eq!(asked.unwrap().status(), status, "{answer:?}"),
            None => assert_eq!(gave_up(&asked).why(), Why::Tries, "{answer:?}"),
        }
        assert_eq!(lines(&server), ["send", "ask"], "{answer:?}");
    }
}

#[tokio::test]
async fn without_a_policy_nobody_is_asked() {
    let url = Url::parse("http://elsewhere.example/").unwrap();
    let elsewhere = ServerPolicy::new(url, DAY).outcome_at("/outcome").unwrap();
    for middleware in [
        no_pauses(0),
        no_pauses(0).attach(),
        no_pauses(0).server(elsewhere).attach(),
    ] {
        let server = Server::script([Answer::Hang]).await;
        let answer = client(middleware).post(server.url()).send().await;
        assert_eq!(gave_up(&answer).tries(), 1);
        assert_eq!(lines(&server), ["send"]);
    }
}

#[tokio::test]
async fn a_client_that_attaches_asks_instead_of_repeating() {
    let busy = say(409, "Retry-After: 0\r\n", "");
    let running = say(202, "Retry-After: 0\r\n", "");
    let stored = say(200, STORED, "receipt");
    let absent = say(404, PROBLEM, "{}");
    for (script, expected) in [
        (
            vec![
                Answer::Hang,
                running.clone(),
                running.clone(),
                stored.clone(),
            ],
            vec!["send", "ask", "ask", "ask"],
        ),
        (
            vec![busy, running, stored.clone()],
            vec!["send", "ask", "ask"],
        ),
        // The request did not arrive.
        (
            vec![Answer::Hang, absent, say(201, "", "receipt")],
            vec!["send", "ask", "send"],
        ),
        // The question is lost, too.
        (
            vec![Answer::Hang, Answer::Hang, say(201, "", "receipt")],
            vec!["send", "ask", "send"],
        ),
    ] {
        let server = Server::script(script).await;
        let client = client(no_pauses(5).server(policy(&server, DAY)).attach());
        let response = client.post(server.url()).send().await.unwrap();
        assert_eq!(response.status(), 201);
        assert_eq!(response.text().await.unwrap(), "receipt");
        assert_eq!(lines(&server), expected);
    }
}

#[tokio::test]
async fn a_client_that_attaches_waits_for_its_time_and_no_longer() {
    let server = Server::script([Answer::Hang, say(202, "Retry-After: 3600\r\n", "")]).await;
    let middleware = no_pauses(5).server(policy(&server, DAY)).attach();
    let answer = client(middleware).post(server.url()).send().await;
    assert_eq!(gave_up(&answer).why(), Why::Time);
    assert_eq!(lines(&server), ["send", "ask"]);
}

/// Every answer that invites to a retry is refused once that retry would do the work again.
#[tokio::test]
async fn a_request_is_not_repeated_after_its_window_has_closed() {
    let late = |headers: &str| say(503, &format!("Retry-After: 20\r\n{headers}"), "");
    // By the policy, which an answer may extend, or by an answer.
    for (ttl, headers, stops) in [
        (Some(10), "", true),
        (Some(10), "Idempotency-TTL: 5\r\n", true),
        (None, "Idempotency-TTL: 5\r\n", true),
        (None, "Idempotency-TTL: 0\r\n", true),
        (Some(10), "Idempotency-TTL: 86400\r\n", false),
        (Some(86400), "", false),
        (None, "", false),
        (None, "Idempotency-TTL: soon\r\n", false),
    ] {
        let server = Server::script([late(headers), say(200, "", "")]).await;
        let total = Duration::from_secs(if stops { 120 } else { 15 });
        let limits = RetryPolicy::new().total(total);
        let mut middleware = IdempotencyMiddleware::new().policy(limits);
        if let Some(ttl) = ttl {
            let url = Url::parse(&server.url()).unwrap();
            middleware = middleware.server(ServerPolicy::new(url, Duration::from_secs(ttl)));
        }
        let answer = client(middleware).post(server.url()).send().await;
        match stops {
            true => assert_eq!(gave_up(&answer).why(), Why::KeyTooOld, "{ttl:?} {headers}"),
            // Its own time is over first, so it gets the answer.
            false => assert_eq!(answer.unwrap().status(), 503, "{ttl:?} {headers}"),
        }
        assert_eq!(server.asked().len(), 1);
    }
}

/// The questions took all of its time, and then the server knows of no request.
#[tokio::test]
async fn a_request_is_not_repeated_after_questions_that_took_its_time() {
    let server = Server::script([
        Answer::Hang,
        say(202, "Retry-After: 1\r\n", ""),
        Answer::Silence,
        say(201, "", "the work is done twice"),
    ])
    .await;
    let limits = RetryPolicy::new().per_try(Duration::from_secs(2));
    let middleware = IdempotencyMiddleware::new().policy(limits);
    let policy = policy(&server, Duration::from_secs(3));
    let client = client(middleware.server(policy).attach());
    let answer = client.post(server.url()).send().await;
    assert_eq!(gave_up(&answer).why(), Why::KeyTooOld);
    let lines = lines(&server);
    assert_eq!(lines[..2], ["send", "ask"]);
    assert!(lines[2..].iter().all(|line| *line == "ask"), "{lines:?}");
}

#[tokio::test]
async fn a_request_has_the_policy_of_its_extension() {
    let server = Server::script([Answer::Hang, say(200, STORED, "")]).await;
    let request = client(no_pauses(0)).post(server.url());
    let request = request.with_extension(policy(&server, DAY));
    assert_eq!(request.send().await.unwrap().status(), 201);
    assert_eq!(lines(&server), ["send", "ask"]);
}

/// The policy and the route of a layer are what the client reads.
#[tokio::test]
async fn a_client_finds_the_outcome_route_of_a_layer_by_its_policy() {
    let idem = Idem::new(MemoryStore::new());
    let layer = IdempotencyLayer::builder(&idem, "charges", DAY, unscoped())
        .outcome_url("/charges/outcome")
        .build()
        .unwrap();
    let (outcome, policy) = (layer.outcome_route(), layer.policy_json());
    let (arrived, has_arrived) = tokio::sync::watch::channel(false);
    let handler = move || {
        arrived.send_replace(true);
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            (http::StatusCode::CREATED, "receipt")
        }
    };
    let router = Router::new()
        .route("/charges", post(handler))
        .layer(layer)
        .route_service("/charges/outcome", outcome)
        .route("/policy.json", get(policy));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });

    let plain = reqwest::Client::new();
    let url = format!("{origin}/policy.json");
    let policy = ServerPolicy::fetch(&plain, &url).await.unwrap();
    assert_eq!(policy.ttl(), Some(DAY));
    let outcome = policy.outcome_url().map(Url::as_str);
    assert_eq!(outcome, Some(&*format!("{origin}/charges/outcome")));
    let missing = ServerPolicy::fetch(&plain, format!("{origin}/missing")).await;
    assert!(matches!(missing, Err(PolicyError::Status(status)) if status == 404));

    // The reply does not arrive within the time of a try, and there is no other try. The question is answered.
    let limits = RetryPolicy::new()
        .retries(0)
        .per_try(Duration::from_millis(50));
    let client = client(
        IdempotencyMiddleware::new()
            .policy(limits)
            .server(policy)
            .attach(),
    );
    let response = client
        .post(format!("{origin}/charges"))
        .send()
        .await
        .unwrap();
    assert!(*has_arrived.borrow());
    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["idempotent-replayed"], "true");
    assert_eq!(sent(&response).tries(), 1);
    assert_eq!(response.text().await.unwrap(), "receipt");
    serving.abort();
}
