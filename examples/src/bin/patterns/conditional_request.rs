//! Conditional HTTP request: "change this, if it has not changed since I read it" (RFC 9110 §13).
//!
//! This is the optimistic lock of HTTP. A change without a condition is refused with 428 (RFC 6585 §3), so that no
//! client forgets the condition. A change whose condition is no longer true gets 412.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::ensure;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use headers::{ETag, HeaderMapExt as _, IfMatch};
use sqlx::SqlitePool;

use crate::Proof;
use crate::fifty::{FIFTY, fifty};
use crate::server::Server;

/// A text that several users edit.
#[derive(Default)]
struct Page {
    text: String,
    version: u64,
}

impl Page {
    fn etag(&self) -> ETag {
        let tag = format!("\"v{}\"", self.version);
        tag.parse().expect("digits in quotes are an entity tag")
    }
}

type Shared = Arc<Mutex<Page>>;

fn tagged(page: &Page) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.typed_insert(page.etag());
    headers
}

async fn read(State(page): State<Shared>) -> impl IntoResponse {
    let page = page.lock().unwrap_or_else(PoisonError::into_inner);
    (tagged(&page), page.text.clone())
}

async fn write(
    State(page): State<Shared>,
    headers: HeaderMap,
    text: String,
) -> Result<impl IntoResponse, StatusCode> {
    let condition: IfMatch = headers
        .typed_try_get()
        .map_err(|_| StatusCode::BAD_REQUEST)?
        .ok_or(StatusCode::PRECONDITION_REQUIRED)?;
    // The check and the write are atomic, as in `UPDATE ... WHERE version = ?`.
    let mut page = page.lock().unwrap_or_else(PoisonError::into_inner);
    if !condition.precondition_passes(&page.etag()) {
        return Err(StatusCode::PRECONDITION_FAILED);
    }
    page.text = text;
    page.version += 1;
    Ok((StatusCode::NO_CONTENT, tagged(&page)))
}

pub(crate) async fn run(_: SqlitePool) -> anyhow::Result<Proof> {
    let page = Shared::default();
    let router = Router::new()
        .route("/page", get(read).put(write))
        .with_state(Arc::clone(&page));
    let server = Server::start(router).await?;
    let client = reqwest::Client::new();
    let url = format!("{}/page", server.url());

    let seen = client.get(&url).send().await?.headers()["etag"].clone();
    let statuses = fifty(|_| {
        let edit = client.put(&url).header("if-match", &seen).body("a lamp");
        async move { Ok(edit.send().await?.status()) }
    })
    .await?;
    let count = |status: u16| statuses.iter().filter(|it| it.as_u16() == status).count();
    ensure!(count(204) == 1 && count(412) == FIFTY - 1);

    let careless = client.put(&url).body("a chair").send().await?;
    ensure!(careless.status().as_u16() == 428);
    server.stop().await?;

    let page = page.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(page.text == "a lamp");
    Ok(Proof {
        effects: page.version,
        answers: format!("1 × 204, {} × 412; without If-Match: 428", FIFTY - 1),
    })
}
