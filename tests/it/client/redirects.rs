//! Redirections: within an origin they carry the key; to another origin they are errors.

use std::sync::{Arc, Mutex};

use idem_runtime::client::{ClientError, Redirected};
use reqwest::Response;
use reqwest_middleware::ClientBuilder;
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber as _;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::server::{Answer, say};
use super::{Server, client, quick, refusal, sent};

fn moved(status: u16, location: &str) -> Answer {
    say(status, &format!("Location: {location}\r\n"), "moved")
}

fn redirected(answer: &reqwest_middleware::Result<Response>) -> &Redirected {
    match refusal(answer) {
        ClientError::Redirected(redirected) => redirected,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_key_does_not_follow_a_redirection_to_another_origin() {
    for status in [301, 302, 303, 307, 308] {
        let other = Server::script([say(200, "", "stolen")]).await;
        let elsewhere = format!("{}/charges?secret=2", other.origin());
        // First within the origin, then to another one.
        let server = Server::script([moved(307, "/v2/charges"), moved(status, &elsewhere)]).await;

        let request = client(quick()).post(server.url()).body("500 cents");
        let answer = request.send().await;

        let redirected = redirected(&answer);
        assert_eq!(redirected.status(), status);
        assert_eq!(redirected.location().unwrap(), elsewhere.as_str());
        assert_eq!(redirected.tries(), 1);
        let shown = format!("{redirected} {redirected:?}");
        assert!(!shown.contains("secret"), "{shown}");
        let asked = server.asked();
        assert_eq!((asked.len(), other.asked().len()), (2, 0), "{status}");
        assert_eq!(asked[0].key(), asked[1].key());
        assert_eq!(asked[0].key(), format!("\"{}\"", redirected.key().as_str()));
    }
}

/// No redirection is a success, not even one that cannot be followed.
#[tokio::test]
async fn a_redirection_is_no_response() {
    for answer in [say(300, "", ""), say(303, "", ""), say(304, "", "")] {
        let server = Server::script([answer]).await;
        let answer = client(quick()).post(server.url()).send().await;
        assert_eq!(redirected(&answer).location(), None);
        assert_eq!(server.asked().len(), 1);
    }
}

/// Another port of one host, and another name of one address, are other origins.
#[tokio::test]
async fn another_host_name_is_another_origin() {
    let server = Server::script([say(200, "", "")]).await;
    let name = server.origin().replace("127.0.0.1", "localhost");
    let first = Server::script([moved(307, &name)]).await;
    let answer = client(quick()).post(first.url()).send().await;
    assert_eq!(redirected(&answer).status(), 307);
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn redirections_within_the_origin_are_followed_ten_times() {
    let server = Server::script([moved(308, "/a"), moved(307, "/b"), say(200, "", "done")]).await;
    let response = client(quick())
        .post(server.url())
        .body("500 cents")
        .send()
        .await
        .unwrap();
    assert_eq!(sent(&response).tries(), 1);
    assert_eq!(response.text().await.unwrap(), "done");
    let asked = server.asked();
    assert!(asked.iter().all(|it| it.key() == asked[0].key()));
    assert!(asked.iter().all(|it| it.body == "500 cents"));

    let endless = Server::script([moved(307, "/again")]).await;
    let answer = client(quick()).post(endless.url()).send().await;
    assert!(answer.unwrap_err().is_redirect());
    assert_eq!(
        endless.asked().len(),
        11,
        "one request and ten redirections"
    );
}

/// A client's own policy may be reqwest's default. The key has then been sent, and an event says so. The caller still
/// gets the answer.
#[tokio::test]
async fn a_key_that_went_to_another_origin_is_reported() {
    let other = Server::script([say(200, "", "done")]).await;
    let elsewhere = format!("{}/charges?secret=2", other.origin());
    let server = Server::script([moved(307, &elsewhere)]).await;
    let warnings = Warnings::default();

    let default = ClientBuilder::new(reqwest::Client::new())
        .with(quick().with_own_redirects())
        .build();
    let sending = default.post(server.url()).send();
    let response = sending.with_subscriber(warnings.clone()).await.unwrap();

    assert_eq!(response.text().await.unwrap(), "done");
    assert_eq!(other.asked()[0].key(), server.asked()[0].key());
    let warned = warnings.0.lock().unwrap().join("\n");
    assert!(
        warned.contains("IdempotencyMiddleware::client"),
        "{warned:?}"
    );
    assert!(!warned.contains("secret"), "{warned:?}");

    // A redirection within the origin causes no event.
    let server = Server::script([moved(307, "/moved"), say(200, "", "")]).await;
    let warnings = Warnings::default();
    let sending = default.post(server.url()).send();
    sending.with_subscriber(warnings.clone()).await.unwrap();
    assert_eq!(*warnings.0.lock().unwrap(), [""; 0]);
}

/// Warnings that the crate emits.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "idem" && *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
