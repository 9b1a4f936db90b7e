//! The outcome route, and what a layer says about the time for which it stores keys.

use axum::routing::get;
use futures_util::FutureExt as _;
use idem_runtime::conformance::faults::{Fault, Op};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::http::InvalidLayer;
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::record::{Outcome, Payload};
use idem_runtime::{Call, Key, Scope};
use idem_tests::claims::{claim_of, end_lease, outcome, own};
use idem_tests::on_stores;
use idem_tests::places::shared;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::client::Request as Asked;
use super::*;

const URL: &str = "/charges/outcome";

on_stores! { [] shared: each_end_of_a_request_has_its_answer_on_each_store }

/// Route whose requests wait until they may proceed, behind a layer with an outcome route.
struct Bank<S: idem_runtime::Store = Store> {
    server: Server,
    effects: Effects,
    idem: Idem<S>,
    may_proceed: Arc<Semaphore>,
}

impl Bank {
    async fn open(set: impl FnOnce(LayerBuilder) -> LayerBuilder) -> Self {
        Self::open_on(idem(), set).await
    }
}

impl<S: idem_runtime::Store> Bank<S> {
    async fn open_on(idem: Idem<S>, set: impl FnOnce(LayerBuilder) -> LayerBuilder) -> Self {
        let scoping = scoped_by_extension::<User>();
        let builder = IdempotencyLayer::builder(&idem, "test.http", TTL, scoping);
        let layer = set(builder.outcome_url(URL)).build().unwrap();
        let (effects, may_proceed) = (Effects::default(), Arc::new(Semaphore::new(0)));
        let (happening, proceeds) = (effects.clone(), may_proceed.clone());
        let slow = move |body: String| async move {
            let number = happening.happen();
            proceeds.acquire().await.unwrap().forget();
            (
                StatusCode::SEE_OTHER,
                [("location", format!("/{number}"))],
                body,
            )
        };
        let (outcome, policy) = (layer.outcome_route(), layer.policy_json());
        let router = Router::new()
            .route("/slow", post(slow))
            .merge(charges(&effects))
            .layer(layer)
            .route_service(URL, outcome)
            .route("/policy.json", get(policy))
            .layer(from_fn(authenticate));
        Self {
            server: Server::start(router).await,
            effects,
            idem,
            may_proceed,
        }
    }

    async fn charge(&self, key: &str) -> Answer {
        let request = post_to("/charges").key(key).token("token-of-ann");
        self.server.send(request.body("5")).await
    }

    async fn ask(&self, key: &str) -> Answer {
        self.ask_as("token-of-ann", key).await
    }

    async fn ask_as(&self, token: &str, key: &str) -> Answer {
        let asked = Asked::new("GET", URL).key(key).token(token);
        let answer = self.server.send(asked).await;
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        answer
    }
}

fn identity(key: &str) -> Identity {
    Identity {
        scope: Scope::new("ann").unwrap(),
        operation: Operation::new("test.http").unwrap(),
        key: Key::new(key).unwrap(),
    }
}

/// Seconds for which the key of an answer is stored.
fn ttl(answer: &Answer) -> Option<u64> {
    answer
        .header("idempotency-ttl")
        .map(|it| it.parse().unwrap())
}

/// An answer without what differs in each response.
fn essence(answer: &Answer) -> (u16, Vec<(String, String)>, Option<Value>) {
    let mut headers = answer.headers.clone();
    headers.retain(|(name, _)| name != "date");
    let body = serde_json::from_slice(&answer.body)
        .ok()
        .map(|mut body: Value| {
            body["instance"].take();
            body
        });
    (answer.status, headers, body)
}

#[tokio::test]
async fn the_owner_of_a_key_gets_the_stored_response_and_nothing_runs() {
    let bank = Bank::open(|layer| layer).await;
    let first = bank.charge("k").await;
    assert_eq!((first.status, ttl(&first)), (201, Some(TTL.as_secs())));
    for key in ["k", "\"k\""] {
        let asked = bank.ask(key).await;
        assert_eq!((asked.status, &asked.body), (200, &first.body));
        assert_eq!(asked.header("idempotent-status"), Some("201"));
        assert!(asked.is_replayed());
        for name in ["location", "etag", "content-type"] {
            assert_eq!(asked.header(name), first.header(name), "{name}");
        }
        assert_eq!(asked.header("set-cookie"), None);
        let left = ttl(&asked).unwrap();
        assert!(
            left <= TTL.as_secs() && left > TTL.as_secs() - 600,
            "{left}"
        );
    }
    let replayed = bank.charge("k").await;
    assert!(replayed.is_replayed() && replayed.header("idempotent-status").is_none());
    assert!(ttl(&replayed).unwrap() <= TTL.as_secs());
    assert_eq!(bank.effects.count(), 1);
    assert_eq!(bank.idem.drain().now_or_never(), Some(()));
}

#[tokio::test]
async fn a_running_request_is_202_and_its_redirection_is_not_followed() {
    let bank = Bank::open(|layer| layer).await;
    let slow = post_to("/slow").key("k").token("token-of-ann");
    let server = bank.server.client;
    let slow = tokio::spawn(async move { server.send(slow).await });
    idem_tests::until(async || bank.effects.count() == 1).await;
    let running = bank.ask("k").await;
    assert_eq!((running.status, running.body.len()), (202, 0));
    assert_eq!(running.header("retry-after"), Some("1"));
    let again = post_to("/slow").key("k").token("token-of-ann");
    let again = bank.server.send(again).await;
    again.problem(409, "in-flight");
    assert_eq!(ttl(&again), Some(TTL.as_secs()));
    bank.may_proceed.add_permits(1);
    assert_eq!(slow.await.unwrap().status, 303);
    let ended = bank.ask("k").await;
    assert_eq!((ended.status, ended.header("location")), (200, Some("/1")));
    assert_eq!(ended.header("idempotent-status"), Some("303"));
}

#[tokio::test]
async fn a_question_waits_as_a_duplicate_does_and_counts_as_one() {
    let bank = Bank::open(|layer| layer.wait(TTL).max_running(8).principal_share(25)).await;
    let slow = post_to("/slow").key("k").token("token-of-ann");
    let server = bank.server.client;
    let slow = tokio::spawn(async move { server.send(slow).await });
    idem_tests::until(async || bank.effects.count() == 1).await;
    let question = Asked::new("GET", URL).key("k").token("token-of-ann");
    let asked = question.clone();
    let asked = tokio::spawn(async move { server.send(asked).await });
    idem_tests::until(async || bank.idem.store().count(Op::Get) == 1).await;
    // Two places are ann's share. Bob has his own.
    let refused = bank.server.send(question).await;
    refused.problem(429, "too-many-requests");
    let bobs = bank.ask_as("token-of-bob", "k").await;
    bobs.problem(404, "no-outcome");
    bank.may_proceed.add_permits(1);
    assert_eq!(slow.await.unwrap().status, 303);
    let asked = asked.await.unwrap();
    assert_eq!(
        (asked.status, asked.header("idempotent-status")),
        (200, Some("303"))
    );
}

#[tokio::test]
async fn a_key_of_another_principal_is_as_unknown_as_one_that_was_never_used() {
    let bank = Bank::open(|layer| layer).await;
    bank.charge("k").await;
    let never = bank.ask_as("token-of-bob", "never").await;
    never.problem(404, "no-outcome");
    let anns = bank.ask_as("token-of-bob", "k").await;
    assert_eq!(essence(&anns), essence(&never));
    let question = |key: Option<&str>| match key {
        Some(key) => Asked::new("GET", URL).key(key),
        None => Asked::new("GET", URL),
    };
    for key in [Some("k"), Some("\"malformed"), None] {
        let anonymous = bank.server.send(question(key)).await;
        anonymous.problem(403, "no-principal");
    }
    let missing = bank.server.send(question(None).token("token-of-ann")).await;
    missing.problem(400, "missing-key");
    let posted = post_to(URL).key("k").token("token-of-ann");
    let posted = bank.server.send(posted).await;
    assert_eq!(
        (posted.status, posted.header("allow")),
        (405, Some("GET, HEAD"))
    );
    assert_eq!(bank.effects.count(), 1);
}

#[tokio::test]
async fn each_end_of_a_request_has_its_answer() {
    let bank = Bank::open(LayerBuilder::refuse).await;
    each_end_has_its_answer(&bank).await;
    let store = bank.idem.store();
    // It passes by itself, and is retried. The next one does not.
    store.fail_before(Op::Get, 1);
    bank.ask("never").await.problem(404, "no-outcome");
    store.next(Op::Get, Fault::FailBefore(StoreErrorKind::Corrupt));
    bank.ask("never").await.problem(503, "store-unavailable");
    assert_eq!(bank.effects.count(), 0);
}

async fn each_end_of_a_request_has_its_answer_on_each_store(store: Arc<dyn idem_runtime::Store>) {
    let bank = Bank::open_on(Idem::new(store), LayerBuilder::refuse).await;
    each_end_has_its_answer(&bank).await;
    own(bank.idem.store(), &claim_of(identity("running"))).await;
    let running = bank.ask("running").await;
    assert_eq!((running.status, running.body.len()), (202, 0));

    let first = bank.charge("charged").await;
    let asked = bank.ask("charged").await;
    assert_eq!((asked.status, &asked.body), (200, &first.body));
    assert_eq!(asked.header("idempotent-status"), Some("201"));
    assert!(asked.is_replayed() && ttl(&asked) <= Some(TTL.as_secs()));
    bank.ask_as("token-of-bob", "charged")
        .await
        .problem(404, "no-outcome");
    assert_eq!(bank.effects.count(), 1);
}

async fn each_end_has_its_answer<S: idem_runtime::Store>(bank: &Bank<S>) {
    let store = bank.idem.store();
    let own = async |key| own(store, &claim_of(identity(key))).await;
    store.interrupt(&own("interrupted").await).await.unwrap();
    let unrecorded = own("unrecorded").await;
    store
        .complete(&unrecorded, &Outcome::Unrecorded)
        .await
        .unwrap();
    store.release(&own("released").await).await.unwrap();
    own("lapsed").await;
    let lapsed = RecordId::of(&identity("lapsed"));
    let lapsed = store.get(&lapsed).await.unwrap().unwrap();
    end_lease(store, &lapsed).await.unwrap();
    store
        .complete(&own("other").await, &outcome(b"1"))
        .await
        .unwrap();
    let cut = Outcome::Completed(Payload {
        codec: "http/1".into(),
        bytes: (*b"200\r\n").into(),
    });
    store.complete(&own("cut").await, &cut).await.unwrap();
    for (key, status, slug) in [
        ("interrupted", 409, "interrupted"),
        ("unrecorded", 409, "unrecorded"),
        ("released", 404, "no-outcome"),
        ("lapsed", 404, "no-outcome"),
        ("never", 404, "no-outcome"),
        ("other", 500, "undecodable"),
        ("cut", 500, "undecodable"),
    ] {
        bank.ask(key).await.problem(status, slug);
    }
}

/// What a layer says is the time that holds: the response's own, and that of a replay from the cache of the process.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_response_is_its_own() {
    let effects = Effects::default();
    let hour = Duration::from_secs(3600);
    let layer = builder(&idem())
        .response_ttl(move |_| Some(hour))
        .build()
        .unwrap();
    let router = charges(&effects).layer(layer);
    let send = async || {
        let request = Request::post("/charges").header("idempotency-key", "k");
        let request = request.body(Body::empty()).unwrap();
        let response = router.clone().call(request).await.unwrap();
        let ttl = response.headers().get("idempotency-ttl");
        ttl.map(|it| it.to_str().unwrap().to_owned())
    };
    assert_eq!(send().await.as_deref(), Some("3600"));
    tokio::time::advance(Duration::from_millis(600_500)).await;
    assert_eq!(send().await.as_deref(), Some("2999"));
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn the_policy_is_there_for_programs() {
    let bank = Bank::open(|layer| layer.refuse().ignore_member("/sent_at").key_optional()).await;
    let answer = bank.server.send(Asked::new("GET", "/policy.json")).await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let policy: Value = serde_json::from_slice(&answer.body).unwrap();
    for (pointer, expected) in [
        ("/methods", serde_json::json!(["POST", "PATCH"])),
        ("/ttl", TTL.as_secs().into()),
        ("/ttl_varies", false.into()),
        ("/outcome", URL.into()),
        ("/on_crash", "refuse".into()),
        ("/key/header", "Idempotency-Key".into()),
        ("/key/required", false.into()),
        ("/key/syntax", "string-or-bare".into()),
        ("/key/per_caller", true.into()),
        ("/key/max_length", 255.into()),
        ("/request/ignored_members", serde_json::json!(["/sent_at"])),
        ("/response/statuses/0", serde_json::json!([200, 306])),
        ("/problems/no-outcome", 404.into()),
    ] {
        assert_eq!(policy.pointer(pointer), Some(&expected), "{pointer}");
    }
    // Neither the operation nor the store is named.
    assert!(!answer.text().contains("test.http"));
    for url in ["", "no url", "/page#section"] {
        let refused = builder(&idem()).outcome_url(url).build().unwrap_err();
        assert_eq!(refused, InvalidLayer::OutcomeUrl, "{url}");
    }
}

/// Handlers with the extractor say what the layer says.
#[tokio::test]
async fn a_handler_that_marks_replays_says_for_how_long_its_key_is_stored() {
    use idem_runtime::http::mark_replays;
    let idem = idem();
    let handler = move || {
        let idem = idem.clone();
        async move {
            let call = Call::new("test.marked", "k", &1, TTL);
            let made = idem
                .run(call, async || Ok::<_, idem_runtime::Error>(1))
                .await;
            made.map(|it| it.to_string())
        }
    };
    let router = Router::new()
        .route("/", post(handler))
        .layer(from_fn(mark_replays));
    let server = Server::start(router).await;
    let [first, again] = [
        server.send(post_to("/")).await,
        server.send(post_to("/")).await,
    ];
    assert_eq!(ttl(&first), Some(TTL.as_secs()));
    assert!(again.is_replayed() && ttl(&again).is_some_and(|it| it <= TTL.as_secs()));
}
