//! The service of the README. `service.txt` is its text, with a bank in the place of the README's.

use std::convert::Infallible;
use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::Request;
use axum::http::request::Parts;
use axum::routing::post;
use idem_testing::{Provider, check, check_router};

include!("service.txt");

static BANK: LazyLock<Provider> = LazyLock::new(|| Provider::new("bank"));

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(7))
    }
}

/// The text that the README says to replace, without which the two are equal.
fn without_bank(text: &str) -> String {
    let (before, after) = text.split_once("async fn charge(").unwrap();
    let (_, after) = after.split_once("\n}\n").unwrap();
    format!("{before}{after}")
}

#[test]
fn the_service_is_the_one_of_the_readme() {
    let page = include_str!("../../../README.md");
    let service = page
        .split("```rust,no_run\n")
        .find(|it| it.contains("\"orders.place\""));
    let (service, _) = service.unwrap().split_once("```").unwrap();
    assert_eq!(
        without_bank(service),
        without_bank(include_str!("service.txt"))
    );
}

#[test]
fn the_check_of_the_readme_is_the_one_below() {
    let page = include_str!("../../../README.md");
    let lines = |text: &'static str| {
        let code = |line: &'static str| line.split(" //").next().unwrap_or(line).trim();
        let begin = |line: &&str| !line.starts_with("check(");
        let from = text.lines().map(code).skip_while(begin);
        from.take(4).collect::<Vec<_>>()
    };
    assert_eq!(lines(page), lines(include_str!("readme.rs")));
}

// One test, because both checks count the effects of one bank.
#[test]
fn an_order_is_charged_once() {
    let order = |cents| Order {
        article: "lamp".to_owned(),
        cents,
    };
    let (key, other) = (Key::generate(), Key::generate());
    check(async |idem| place(&idem, &key, order(500)).await)
        .other_request(async |idem| place(&idem, &key, order(900)).await)
        .provider(&BANK)
        .assert_at_least_once_with_downstream_key();
    check(async |idem| place(&idem, &key, order(500)).await)
        .other_call(async |idem| place(&idem, &other, order(500)).await)
        .provider(&BANK)
        .assert_promised();

    let app = |idem| {
        Router::new()
            .route("/orders", post(handler))
            .with_state(idem)
    };
    let request = || {
        let request = Request::post("/orders")
            .header("content-type", "application/json")
            .header("idempotency-key", "\"order-1\"");
        let order = r#"{ "article": "lamp", "cents": 500 }"#;
        request.body(Body::from(order)).unwrap()
    };
    check_router(app, request)
        .provider(&BANK)
        .assert_at_least_once_with_downstream_key();
}
