//! Clients that go away before the handler runs, or while its response is stored.

use axum::extract::Request;
use idem_runtime::conformance::faults::Op;
use idem_runtime::http::Drain;
use tokio::io::AsyncWriteExt as _;

use super::*;

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

    /// Sends a request, and drops the response future as soon as this has come.
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
}

#[tokio::test]
async fn before_the_claim_is_sent_nothing_is_left() {
    let service = Service::new();
    let gate = service.idem.store().hold_before(Op::Claim);
    service.depart_at(gate.reached()).await;
    gate.open();
    service.drain.finished().await;
    assert_eq!(service.effects.count(), 0);
    assert_eq!(service.retry().await, (201, "charge 1: 5".to_owned()));
}

/// The claim stands and nobody knows: it is given up, so that the retry need not wait for the lease.
#[tokio::test]
async fn before_the_claim_is_acknowledged_the_key_is_released() {
    let service = Service::new();
    let gate = service.idem.store().hold_after(Op::Claim);
    service.depart_at(gate.reached()).await;
    gate.open();
    service.drain.finished().await;
    assert_eq!(service.effects.count(), 0);
    // Releasing is a task of its own.
    let retried = loop {
        match service.retry().await {
            (409, _) => tokio::task::yield_now().await,
            other => break other,
        }
    };
    assert_eq!(retried, (201, "charge 1: 5".to_owned()));
}

#[tokio::test]
async fn while_the_response_is_stored_it_is_stored() {
    let service = Service::new();
    let gate = service.idem.store().hold_before(Op::Complete);
    service.depart_at(gate.reached()).await;
    assert_eq!((service.drain.running(), service.effects.count()), (1, 1));
    gate.open();
    service.drain.finished().await;
    assert_eq!(service.retry().await, (201, "charge 1: 5".to_owned()));
    assert_eq!(service.effects.count(), 1);
}

/// A body that is never finished claims nothing, and its place is free again.
#[tokio::test]
async fn while_the_body_is_read_nothing_is_claimed() {
    let effects = Effects::default();
    let (idem, drain) = (idem(), Drain::new());
    let layer = builder(&idem).drain(drain.clone()).max_running(1);
    let server = Server::start(charges(&effects).layer(layer.build().unwrap())).await;
    let mut stream = server.client.connect().await;
    let whole = post_to("/charges").key("k").body("500 cents");
    let bytes = whole.bytes();
    stream.write_all(&bytes[..bytes.len() - 1]).await.unwrap();
    while drain.running() == 0 {
        tokio::task::yield_now().await;
    }
    let other = server.send(post_to("/charges").key("l")).await;
    other.problem(503, "overloaded");
    drop(stream);
    drain.finished().await;
    assert_eq!((effects.count(), idem.store().count(Op::Claim)), (0, 0));
    let retry = server.send(whole).await;
    assert_eq!((retry.status, retry.text()), (201, "charge 1: 500 cents"));
}

/// A client that waits for leave to send its body is refused without having sent it.
#[tokio::test]
async fn whoever_asks_first_need_not_send_a_body_that_is_refused() {
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

/// A value on several lines (obsolete folding, RFC 9112 §5.2) is no key, whatever is in it.
#[tokio::test]
async fn a_key_on_two_lines_is_none() {
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
