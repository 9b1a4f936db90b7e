//! Redirections: within an origin they carry the key; to another origin, the crate's policy removes it.

use std::sync::{Arc, Mutex};

use idem_runtime::client::same_origin;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber as _;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::server::{Answer, say};
use super::{Server, quick, sent};

fn client(policy: reqwest::redirect::Policy) -> ClientWithMiddleware {
    let client = reqwest::Client::builder().redirect(policy).build().unwrap();
    ClientBuilder::new(client).with(quick()).build()
}

fn moved(status: u16, location: &str) -> Answer {
    say(status, &format!("Location: {location}\r\n"), "moved")
}

#[tokio::test]
async fn the_key_does_not_follow_a_redirection_to_another_origin() {
    for status in [301, 302, 303, 307, 308] {
        let other = Server::script([say(200, "", "stolen")]).await;
        let elsewhere = format!("{}/charges", other.origin());
        // First within the origin, then to another one.
        let server = Server::script([moved(307, "/v2/charges"), moved(status, &elsewhere)]).await;

        let response = client(same_origin())
            .post(server.url())
            .body("500 cents")
            .send()
            .await
            .unwrap();

        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["location"], elsewhere);
        assert_eq!(response.text().await.unwrap(), "moved");
        let asked = server.asked();
        assert_eq!((asked.len(), other.asked().len()), (2, 0), "{status}");
        assert_eq!(asked[0].key(), asked[1].key());
    }
}

/// Another port of one host, and another name of one address, are other origins.
#[tokio::test]
async fn another_host_name_is_another_origin() {
    let server = Server::script([say(200, "", "")]).await;
    let name = server.origin().replace("127.0.0.1", "localhost");
    let first = Server::script([moved(307, &name)]).await;
    let response = client(same_origin()).post(first.url()).send().await;
    assert_eq!(response.unwrap().status(), 307);
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn redirections_within_the_origin_are_followed_ten_times() {
    let server = Server::script([moved(308, "/a"), moved(307, "/b"), say(200, "", "done")]).await;
    let response = client(same_origin())
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
    let answer = client(same_origin()).post(endless.url()).send().await;
    assert!(answer.unwrap_err().is_redirect());
    assert_eq!(
        endless.asked().len(),
        11,
        "one request and ten redirections"
    );
}

/// Under reqwest's own policy the key has already been sent, and an event says so. The caller still gets the answer.
#[tokio::test]
async fn a_key_that_went_to_another_origin_is_reported() {
    let other = Server::script([say(200, "", "done")]).await;
    let elsewhere = format!("{}/charges?secret=2", other.origin());
    let server = Server::script([moved(307, &elsewhere)]).await;
    let warnings = Warnings::default();

    let default = client(reqwest::redirect::Policy::default());
    let sending = default.post(server.url()).send();
    let response = sending.with_subscriber(warnings.clone()).await.unwrap();

    assert_eq!(response.text().await.unwrap(), "done");
    assert_eq!(other.asked()[0].key(), server.asked()[0].key());
    let warned = warnings.0.lock().unwrap().join("\n");
    assert!(warned.contains("same_origin()"), "{warned:?}");
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
