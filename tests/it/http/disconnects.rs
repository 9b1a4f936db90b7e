//! Clients that disconnect before the handler runs, or while its response is stored.

use std::collections::HashMap;
use std::sync::Mutex;

use axum::extract::Request;
use futures_util::{StreamExt as _, poll, stream};
use idem_runtime::conformance::faults::{Gate, Op};
use idem_runtime::http::Drain;
use idem_tests::on_stores;
use idem_tests::places::shared;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;

use super::*;

on_stores! { [] shared: retries_of_cut_requests_are_answered }

struct Service {
    idem: Idem<Store>,
    effects: Effects,
    drain: Drain,
    router: Router,
}

impl Service {
    fn new() -> Self {
        let (idem, effects, drain) = (idem(), Effects::default(), Drain::new());
        let layer = builder(&idem).drain(drain.clone()).build().unwrap();
        let router = charges(&effects).layer(layer);
        Self {
            idem,
            effects,
            drain,
            router,
        }
    }

    /// Sends a request, and drops the response future at this moment.
    async fn depart_at(&self, moment: impl Future<Output = ()>) {
        let request = Request::post("/charges").header("idempotency-key", "k");
        let request = request.body(Body::from("5")).unwrap();
        let response = self.router.clone().call(request);
        tokio::select! {
            biased;
            answer = response => panic!("answered {:?}", answer.unwrap().status()),
            () = moment => {}
        }
    }

    async fn retry(&self) -> (u16, String) {
        call(&self.router, "k", "5").await
    }

    /// Opens the gate, and checks that the retry gets the stored response of the first request.
    async fn runs_and_is_replayed(&self, gate: Gate) {
        assert_eq!((self.drain.running(), self.effects.count()), (1, 0));
        gate.open();
        self.drain.finished().await;
        assert_eq!(self.effects.count(), 1);
        assert_eq!(self.retry().await, (201, "charge 1: 5".to_owned()));
        assert_eq!(self.effects.count(), 1);
        assert_eq!(self.idem.store().count(Op::Release), 0);
    }
}

/// A claim that is cancelled could leave the key claimed without an owner. An admitted request is therefore claimed and
/// run, even if its client disconnects during the claim.
#[tokio::test]
async fn a_request_runs_if_its_client_leaves_before_the_claim_is_sent() {
    let service = Service::new();
    let gate = service.idem.store().hold_before(Op::Claim);
    service.depart_at(gate.reached()).await;
    service.runs_and_is_replayed(gate).await;
}

#[tokio::test]
async fn a_request_runs_if_its_client_leaves_before_the_claim_is_acknowledged() {
    let service = Service::new();
    let gate = service.idem.store().hold_after(Op::Claim);
    service.depart_at(gate.reached()).await;
    service.runs_and_is_replayed(gate).await;
}

#[tokio::test]
async fn a_response_is_stored_if_its_client_leaves_during_the_completion() {
    let service = Service::new();
    let gate = service.idem.store().hold_before(Op::Complete);
    service.depart_at(gate.reached()).await;
    assert_eq!((service.drain.running(), service.effects.count()), (1, 1));
    gate.open();
    service.drain.finished().await;
    assert_eq!(service.retry().await, (201, "charge 1: 5".to_owned()));
    assert_eq!(service.effects.count(), 1);
}

/// A request whose body does not end claims nothing and takes no place.
#[tokio::test]
async fn no_key_is_claimed_if_the_client_leaves_before_the_body_has_arrived() {
    let service = Service::new();
    let (sender, receiver) = mpsc::unbounded_channel::<std::io::Result<Bytes>>();
    let body = Body::from_stream(stream::unfold(receiver, async |mut receiver| {
        Some((receiver.recv().await?, receiver))
    }));
    let request = Request::post("/charges").header("idempotency-key", "k");
    let mut response = Box::pin(service.router.clone().call(request.body(body).unwrap()));
    sender.send(Ok(Bytes::from_static(b"5"))).unwrap();
    assert!(poll!(&mut response).is_pending());
    drop(response);
    assert!(sender.is_closed(), "the body is dropped");
    assert_eq!(service.drain.running(), 0);
    assert_eq!(service.idem.store().count(Op::Claim), 0);
    assert_eq!(service.retry().await, (201, "charge 1: 5".to_owned()));
}

/// Closes connections up to 12 ms after their request was sent, which is about the time of the claim. Afterwards each key
/// gets a response immediately. The lease is much longer than this test.
async fn retries_of_cut_requests_are_answered(store: Arc<dyn idem_runtime::Store>) {
    const KEYS: usize = 300;
    const CONNECTIONS: usize = 24;
    let runs: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
    let seen = Arc::clone(&runs);
    let handler = move |key: String| {
        *seen.lock().unwrap().entry(key).or_default() += 1;
        async { "done" }
    };
    let idem = Idem::new(store).erased();
    let layer = IdempotencyLayer::builder(&idem, "test.http", TTL, unscoped())
        .lease(Duration::from_secs(600))
        .build()
        .unwrap();
    let server = Server::start(Router::new().route("/", post(handler)).layer(layer)).await;
    let client = server.client;
    let of = |key: usize| post_to("/").key(&key.to_string()).body(key.to_string());

    let cut = stream::iter(0..KEYS).for_each_concurrent(CONNECTIONS, async |key| {
        let mut connection = client.connect().await;
        connection.write_all(&of(key).bytes()).await.unwrap();
        // Spread over the duration of a claim.
        tokio::time::sleep(Duration::from_micros(40 * key as u64)).await;
    });
    cut.await;

    let answered = stream::iter(0..KEYS).for_each_concurrent(CONNECTIONS, async |key| {
        loop {
            let answer = client.send(of(key)).await;
            match answer.status {
                200 => break,
                409 => tokio::time::sleep(Duration::from_millis(20)).await,
                _ => panic!("{}", answer.text()),
            }
        }
    });
    tokio::time::timeout(Duration::from_secs(60), answered)
        .await
        .expect("each key is answered long before a lease is over");
    let runs = runs.lock().unwrap();
    assert_eq!(runs.len(), KEYS);
    assert!(runs.values().all(|runs| *runs == 1), "{runs:?}");
}

/// A client that sends `Expect: 100-continue` is refused before it sends its body.
#[tokio::test]
async fn a_client_that_expects_100_need_not_send_a_refused_body() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer.max_request_bytes(3)).await;
    let head = |more: &str| {
        format!(
            "POST /charges HTTP/1.1\r\nhost: test\r\nconnection: close\r\nexpect: 100-continue\r\n{more}\r\n\r\n"
        )
    };
    for (more, status, kind) in [
        ("content-length: 3", 400, "missing-key"),
        (
            "content-length: 4\r\nidempotency-key: k",
            413,
            "body-too-large",
        ),
    ] {
        // No body follows, and the server does not wait for one.
        let answer = server.client.send_bytes(head(more).as_bytes()).await;
        answer.problem(status, kind);
    }
    assert_eq!(effects.count(), 0);
}

/// A value on several lines (obsolete line folding, RFC 9112 §5.2) is not a key.
#[tokio::test]
async fn a_key_on_two_lines_is_malformed() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    for key in [
        "\"a\r\n b\"",
        "a\r\n\tb",
        "a\r\n , b",
        "a\nb",
        "a\rb",
        "a\0b",
    ] {
        let bytes = post_to("/charges").key(key).bytes();
        let answer = server.client.send_bytes(&bytes).await;
        assert_eq!(answer.status, 400, "{key:?}");
    }
    assert_eq!(effects.count(), 0);
}
