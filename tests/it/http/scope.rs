//! A key of one user never returns the response of another.

use idem_runtime::http::scoped_by;
use idem_runtime::store::{Filter, PageRequest};

use super::*;

#[tokio::test]
async fn two_principals_with_one_key_have_two_records() {
    let effects = Effects::default();
    let server = server_of_users(&effects).await;
    let request = |token| post_to("/charges").key("k").token(token).body("5");
    let ann = server.send(request("token-of-ann")).await;
    let bob = server.send(request("token-of-bob")).await;
    assert_eq!((ann.text(), bob.text()), ("charge 1: 5", "charge 2: 5"));
    assert!(!bob.is_replayed());

    // Each principal gets its own response.
    assert_eq!(
        server.send(request("token-of-ann")).await.text(),
        "charge 1: 5"
    );
    assert_eq!(
        server.send(request("token-of-bob")).await.text(),
        "charge 2: 5"
    );
    // The key is not reused, because it is another principal's key.
    let of_ann = post_to("/charges").key("l").token("token-of-ann").body("1");
    let of_bob = post_to("/charges").key("l").token("token-of-bob").body("2");
    assert_eq!(server.send(of_ann).await.status, 201);
    assert_eq!(server.send(of_bob).await.status, 201);
    assert_eq!(effects.count(), 4);
}

#[tokio::test]
async fn a_missing_principal_is_refused() {
    let effects = Effects::default();
    let server = server_of_users(&effects).await;
    let anns = post_to("/charges").key("k").token("token-of-ann").body("5");
    assert_eq!(server.send(anns).await.status, 201);
    for request in [
        post_to("/charges").key("k").body("5"),
        post_to("/charges").key("new").body("5"),
        // Without a principal, the response does not reveal that a key is malformed.
        post_to("/charges").key("\"malformed").body("5"),
        post_to("/charges").body("5"),
    ] {
        let answer = server.send(request).await;
        answer.problem(403, "no-principal");
        assert!(!answer.text().contains("charge 1") && !answer.is_replayed());
        assert_eq!(answer.header("location"), None);
    }
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn a_forged_principal_is_refused() {
    let effects = Effects::default();
    let server = server_of_users(&effects).await;
    let request = |token| post_to("/charges").key("k").token(token).body("5");
    assert_eq!(server.send(request("token-of-ann")).await.status, 201);
    for forged in ["token-of-eve", "token-of-ann ", "Token-Of-Ann", "", "ann"] {
        let answer = server.send(request(forged)).await;
        let is_trimmed = forged == "token-of-ann ";
        assert_eq!(
            answer.status,
            if is_trimmed { 201 } else { 401 },
            "{forged:?}"
        );
        assert_eq!(answer.is_replayed(), is_trimmed);
    }
    assert_eq!(effects.count(), 1);
}

/// No characters in scopes and keys can make two of them collide.
#[tokio::test]
async fn a_principal_cannot_forge_the_scope_of_another() {
    let effects = Effects::default();
    let scoping = scoped_by(|parts| {
        let user = parts.headers.get("x-user")?.to_str().ok()?;
        Some(user.to_owned())
    });
    let idem = idem();
    let layer = IdempotencyLayer::builder(&idem, "test.http", TTL, scoping)
        .build()
        .unwrap();
    let server = Server::start(charges(&effects).layer(layer)).await;
    let users = ["a", "a/b", "a%2Fb", "a/", "%", "%25"];
    for user in users {
        let answer = server
            .send(post_to("/charges").key("k").header("x-user", user))
            .await;
        assert!(!answer.is_replayed(), "{user}");
    }
    assert_eq!(effects.count(), users.len() as u32);

    // A principal with an invalid scope is refused.
    let long = "u".repeat(256);
    for user in ["", long.as_str(), "a\tb"] {
        let answer = server
            .send(post_to("/charges").key("k").header("x-user", user))
            .await;
        answer.problem(403, "no-principal");
    }

    let page = PageRequest {
        limit: 100,
        after: None,
    };
    let records = idem
        .records()
        .list(&Filter::default(), &page)
        .await
        .unwrap()
        .records;
    assert_eq!(records.len(), users.len());
    assert!(records.iter().all(|it| !it.record.identity.scope.is_none()));
}
