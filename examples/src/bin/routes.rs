//! Whole routes: an HTTP service whose handler knows nothing of idempotency, because `IdempotencyLayer` is around it.
//!
//! The layer also serves the policy page, for the developers of clients, and tells the owner of a key what became of its
//! request.
//!
//! `cargo run --bin routes` sends requests, and fails if an answer is wrong. `cargo run --bin routes -- serve` serves on
//! 127.0.0.1, and the policy page is at `/idempotency`.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use idem_examples::Table;
use idem_runtime::http::{
    IDEMPOTENT_REPLAYED, IDEMPOTENT_STATUS, IdempotencyLayer, Principal, scoped_by_extension,
};
use idem_runtime::{Idem, SqliteStore, ToScope};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Number of the port of `serve`.
const PORT: u16 = 8080;

/// Number of the last order.
type Orders = Arc<AtomicU64>;

/// Handler without any code for idempotency.
async fn place(State(orders): State<Orders>, Json(order): Json<Value>) -> impl IntoResponse {
    let number = orders.fetch_add(1, Ordering::SeqCst) + 1;
    let placed = json!({ "number": number, "article": order["article"] });
    (StatusCode::CREATED, Json(placed))
}

/// Authenticated user. Keys belong to a user.
#[derive(Clone)]
struct User(String);

impl Principal for User {
    fn scope(&self) -> impl ToScope {
        self.0.as_str()
    }
}

/// Authentication of the service. It runs outside of the idempotency layer, which needs the user.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let token = request.headers().get(header::AUTHORIZATION);
    let name = token.and_then(|it| it.to_str().ok()?.strip_prefix("Bearer token-of-"));
    let Some(user) = name.map(|name| User(name.to_owned())) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    request.extensions_mut().insert(user);
    next.run(request).await
}

fn routes(idem: &Idem<SqliteStore>, orders: Orders) -> anyhow::Result<Router> {
    let ttl = Duration::from_secs(24 * 60 * 60);
    let layer = IdempotencyLayer::builder(idem, "orders", ttl, scoped_by_extension::<User>())
        // An order has no key that its receiver recognises, so it must not be placed again after a crash.
        .refuse()
        .policy_url("/idempotency")
        .outcome_url("/orders/outcome")
        .build()?;
    let (page, outcome) = (layer.policy_page(), layer.outcome_route());
    Ok(Router::new()
        .route("/orders", post(place))
        .layer(layer)
        .route_service("/orders/outcome", outcome)
        .layer(from_fn(authenticate))
        .route("/idempotency", get(page))
        .with_state(orders))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let port = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => 0,
        ["serve"] => PORT,
        _ => bail!("usage: routes [serve]"),
    };
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("records.sqlite")).await?;
    let orders = Orders::default();
    let routes = routes(&Idem::new(store), Arc::clone(&orders))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| format!("port {port} cannot be used"))?;
    let url = format!("http://{}", listener.local_addr()?);
    if port == 0 {
        let server = tokio::spawn(async move { axum::serve(listener, routes).await });
        send_requests(&url, &orders).await?;
        server.abort();
        return Ok(());
    }
    println!("{url}/idempotency   (Ctrl-C ends it)");
    axum::serve(listener, routes)
        .with_graceful_shutdown(async {
            // Without a handler for Ctrl-C, the signal ends the process at once.
            let _ = tokio::signal::ctrl_c().await;
        })
        .await?;
    Ok(())
}

/// Sends requests to the service, and checks the answers and the number of orders.
async fn send_requests(url: &str, orders: &Orders) -> anyhow::Result<()> {
    let table = Table::new([
        ("request", 34),
        ("status", 6),
        ("replayed", 8),
        ("orders", 6),
    ]);
    let client = reqwest::Client::new();
    let send = async |request: &str, user: &str, key: Option<&str>, article: &str| {
        let mut sent = client
            .post(format!("{url}/orders"))
            .header("authorization", format!("Bearer token-of-{user}"))
            .header("content-type", "application/json")
            .body(json!({ "article": article }).to_string());
        if let Some(key) = key {
            sent = sent.header("idempotency-key", key);
        }
        let answer = sent.send().await?;
        let status = answer.status().as_u16();
        let replayed = answer.headers().contains_key(IDEMPOTENT_REPLAYED);
        let count = orders.load(Ordering::SeqCst);
        let mark = if replayed { "yes" } else { "" };
        table.line([request, &status.to_string(), mark, &count.to_string()]);
        anyhow::Ok((status, replayed, count, answer.text().await?))
    };

    let first = send("ann orders a lamp", "ann", Some("key-1"), "lamp").await?;
    ensure!((first.0, first.1, first.2) == (201, false, 1), "{first:?}");
    let retry = send(
        "her reply was lost, she retries",
        "ann",
        Some("key-1"),
        "lamp",
    )
    .await?;
    ensure!((retry.0, retry.1, retry.2) == (201, true, 1), "{retry:?}");
    ensure!(first.3 == retry.3, "the replay is the first response");
    let reused = send("her key with another order", "ann", Some("key-1"), "sofa").await?;
    ensure!((reused.0, reused.2) == (422, 1), "{reused:?}");
    let problem: Value = serde_json::from_str(&reused.3)?;
    ensure!(problem["type"] == "/idempotency#key-reused", "{problem}");
    let bob = send("bob has chosen the same key", "bob", Some("key-1"), "sofa").await?;
    ensure!((bob.0, bob.1, bob.2) == (201, false, 2), "{bob:?}");
    let keyless = send("carl sends no key", "carl", None, "lamp").await?;
    ensure!((keyless.0, keyless.2) == (400, 2), "{keyless:?}");

    let ask = async |user: &str, key: &str| {
        let asked = client
            .get(format!("{url}/orders/outcome"))
            .header("authorization", format!("Bearer token-of-{user}"))
            .header("idempotency-key", key);
        let answer = asked.send().await?;
        let status = answer.status().as_u16();
        let count = orders.load(Ordering::SeqCst);
        let request = format!("{user} asks for the outcome of {key}");
        table.line([&request, &status.to_string(), "", &count.to_string()]);
        let stored = answer.headers().get(IDEMPOTENT_STATUS).cloned();
        anyhow::Ok((status, stored, answer.text().await?))
    };
    let asked = ask("ann", "key-1").await?;
    ensure!(asked.0 == 200 && asked.2 == first.3, "{asked:?}");
    ensure!(asked.1.is_some_and(|it| it == "201"), "it was 201 Created");
    let unknown = ask("carl", "key-1").await?;
    ensure!(unknown.0 == 404, "{unknown:?}");

    let page = client.get(format!("{url}/idempotency")).send().await?;
    let page = page.text().await?;
    ensure!(
        page.contains("id=\"key-reused\""),
        "each problem has a section"
    );
    println!();
    println!("2 orders for 5 requests and 2 questions.");
    Ok(())
}

#[cfg(test)]
mod checked {
    use axum::body::Body;
    use idem_testing::{Sqlite, check_router_on};

    use super::*;

    #[test]
    fn an_order_is_placed_at_most_once() {
        let orders = Orders::default();
        let request = |article: &'static str| {
            move || {
                let request = Request::post("/orders")
                    .header("authorization", "Bearer token-of-ann")
                    .header("content-type", "application/json")
                    .header("idempotency-key", "key-1");
                let body = json!({ "article": article });
                request.body(Body::from(body.to_string())).unwrap()
            }
        };
        let service = |idem| routes(&idem, Arc::clone(&orders)).unwrap();
        check_router_on(Sqlite::new(""), service, request("lamp"))
            .effects(|| orders.load(Ordering::SeqCst))
            .assert_at_most_once();
    }
}
