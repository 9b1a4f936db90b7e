//! Choice of the key for each request.

use idem_runtime::Key;
use idem_runtime::client::{ClientError, IdempotencyMiddleware};
use reqwest::Method;
use reqwest::header::{HeaderName, HeaderValue};
use uuid::Uuid;

use super::server::{Answer, say};
use super::{Server, client, quick, refusal, sent};

async fn fails_first() -> Server {
    Server::script([say(503, "", ""), say(200, "", "done")]).await
}

#[tokio::test]
async fn post_and_patch_get_a_key_of_version_7_as_a_structured_string() {
    for method in [Method::POST, Method::PATCH] {
        let server = fails_first().await;
        let client = client(quick());

        let response = client.request(method, server.url()).send().await.unwrap();

        let asked = server.asked();
        let [first, second] = &asked[..] else {
            panic!("two tries: {asked:?}");
        };
        assert_eq!(first.key(), second.key());
        let bare = first
            .key()
            .strip_prefix('"')
            .and_then(|it| it.strip_suffix('"'));
        let id = Uuid::parse_str(bare.unwrap()).unwrap();
        assert_eq!(id.get_version_num(), 7);
        assert_eq!(sent(&response).key().as_str(), bare.unwrap());
        assert_eq!(sent(&response).tries(), 2);
    }
}

#[tokio::test]
async fn each_request_gets_a_different_key() {
    let server = Server::script([say(200, "", "")]).await;
    let client = client(quick());
    for _ in 0..2 {
        client.post(server.url()).send().await.unwrap();
    }
    let asked = server.asked();
    assert_ne!(asked[0].key(), asked[1].key());
}

#[tokio::test]
async fn idempotent_methods_are_passed_through_once_and_without_a_key() {
    for method in [
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::PUT,
        Method::DELETE,
    ] {
        let server = fails_first().await;
        let client = client(quick());

        let response = client.request(method, server.url()).send().await.unwrap();

        assert_eq!(response.status(), 503);
        assert_eq!(server.asked().len(), 1);
        assert_eq!(server.asked()[0].all("idempotency-key"), [""; 0]);
    }
}

#[tokio::test]
async fn a_request_of_any_method_is_guarded_if_its_caller_gives_it_a_key() {
    let server = fails_first().await;
    let key = Key::new("mine").unwrap();

    let response = client(quick())
        .put(server.url())
        .with_extension(key.clone())
        .send()
        .await
        .unwrap();

    assert_eq!(response.status(), 200);
    assert_eq!(*sent(&response).key(), key);
    assert!(server.asked().iter().all(|it| it.key() == r#""mine""#));
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn an_existing_header_is_sent_unchanged() {
    for (header, key) in [("bare-1", "bare-1"), (r#""a\"b"; p=1"#, r#"a"b"#)] {
        let server = fails_first().await;

        let response = client(quick())
            .post(server.url())
            .header("Idempotency-Key", header)
            .send()
            .await
            .unwrap();

        assert_eq!(sent(&response).key().as_str(), key);
        assert!(server.asked().iter().all(|it| it.key() == header));
        assert_eq!(server.asked().len(), 2);
    }
}

#[tokio::test]
async fn a_request_with_two_keys_is_not_sent() {
    let server = fails_first().await;
    let client = client(quick());
    let post = || client.post(server.url());
    let key = Key::generate();

    let both = post().header("Idempotency-Key", "a").with_extension(key);
    assert!(matches!(
        refusal(&both.send().await),
        ClientError::SeveralKeys
    ));
    let twice = post()
        .header("Idempotency-Key", "a")
        .header("Idempotency-Key", "a");
    assert!(matches!(
        refusal(&twice.send().await),
        ClientError::SeveralKeys
    ));
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn a_request_with_an_invalid_key_is_not_sent() {
    let server = fails_first().await;
    let long = "k".repeat(256);
    for wrong in ["", r#""a"#, r#""a" b"#, &long, "k\u{e9}"] {
        let answer = client(quick())
            .post(server.url())
            .header(
                "Idempotency-Key",
                HeaderValue::from_bytes(wrong.as_bytes()).unwrap(),
            )
            .send()
            .await;
        assert!(
            matches!(refusal(&answer), ClientError::InvalidHeader),
            "{wrong}"
        );
    }
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn the_caller_may_choose_keys_header_and_form() {
    let server = Server::script([say(200, "", "")]).await;
    let paypal = IdempotencyMiddleware::new()
        .keys(Key::generate_v4)
        .header(HeaderName::from_static("paypal-request-id"))
        .unquoted();
    let client = client(paypal);

    client.post(server.url()).send().await.unwrap();
    let asked = server.asked();
    let id = Uuid::parse_str(asked[0].all("paypal-request-id")[0]).unwrap();
    assert_eq!(id.get_version_num(), 4);
    assert_eq!(asked[0].all("idempotency-key"), [""; 0]);

    let spaced = Key::new(" k").unwrap();
    let answer = client
        .post(server.url())
        .with_extension(spaced)
        .send()
        .await;
    assert!(matches!(refusal(&answer), ClientError::NeedsQuotes));
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn the_key_never_appears_in_a_printed_error() {
    let server = Server::script([Answer::Hang]).await;
    let key = Key::new("guessable-key").unwrap();
    let answer = client(quick())
        .post(server.url())
        .with_extension(key)
        .send()
        .await;
    let error = answer.unwrap_err();
    assert!(!format!("{error} {error:?} {error:#?}").contains("guessable-key"));
}
