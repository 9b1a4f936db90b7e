//! One user's key never gives another user's response.

use idem_runtime::http::scoped_by;
use idem_runtime::store::{Filter, PageRequest};

use super::*;

#[tokio::test]
async fn one_key_of_two_principals_is_two_operations() {
    let effects = Effects::default();
    let server = server_of_users(&effects).await;
    let request = |token| post_to("/charges").key("k").token(token).body("5");
    let ann = server.send(request("token-of-ann")).await;
    let bob = server.send(request("token-of-bob")).await;
    assert_eq!((ann.text(), bob.text()), ("charge 1: 5", "charge 2: 5"));
    assert!(!bob.is_replayed());

    // Each gets their own.
    assert_eq!(
        server.send(request("token-of-ann")).await.text(),
        "charge 1: 5"
    );
    assert_eq!(
        server.send(request("token-of-bob")).await.text(),
        "charge 2: 5"
    );
    // What would be a reused key of the other one's is simply a key of their own.
    let of_ann = post_to("/charges").key("l").token("token-of-ann").body("1");
    let of_bob = post_to("/charges").key("l").token("token-of-bob").body("2");
    assert_eq!(server.send(of_ann).await.status, 201);
    assert_eq!(server.send(of_bob).await.status, 201);
    assert_eq!(effects.count(), 4);
}

#[tokio::test]
async fn a_missing_principal_gets_nothing() {
    let effects = Effects::default();
    let server = server_of_users(&effects).await;
    let anns = post_to("/charges").key("k").token("token-of-ann").body("5");
    assert_eq!(server.send(anns).await.status, 201);
    for request in [
        post_to("/charges").key("k").body("5"),
        post_to("/charges").key("new").body("5"),
        // Whoever is nobody is told nothing else, not even that a key is malformed.
        post_to("/charges").key("\"malformed").body("5"),
        post_to("/charges").body("5"),
    ] {
        let answer = server.send(request).await;
        let problem = answer.problem(403, "no-principal");
        // Ann may have lost the reply, and then her session.
        assert_eq!(problem["safe_new_key"], false);
        assert!(!answer.text().contains("charge 1") && !answer.is_replayed());
        assert_eq!(answer.header("location"), None);
    }
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn a_forged_principal_gets_nothing() {
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

/// Scopes are kept apart from keys and from each other, whatever characters are in them.
#[tokio::test]
async fn a_principal_cannot_spell_another_ones_scope() {
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

    // A principal that is no scope is none.
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
    assert!(
        records
            .iter()
            .all(|record| !record.identity.scope.is_none())
    );
}
