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

use super::Proof;
use super::fifty::{FIFTY, fifty};
use super::server::Server;

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

#[cfg(test)]
mod checked {
    use axum::http::header::IF_MATCH;
    use idem_testing::{Sqlite, check_on};

    use super::super::checked::as_body;
    use super::*;

    /// A client whose answer was lost gets 412, reads again, and finds its own change.
    async fn edit(page: &Shared) -> anyhow::Result<()> {
        let mut headers = HeaderMap::new();
        headers.insert(IF_MATCH, "\"v0\"".parse()?);
        let text = "a lamp".to_owned();
        let written = write(State(Arc::clone(page)), headers, text.clone()).await;
        let now = page.lock().unwrap_or_else(PoisonError::into_inner);
        let status = written.err();
        ensure!(status.is_none() || status == Some(StatusCode::PRECONDITION_FAILED));
        ensure!(now.text == text);
        Ok(())
    }

    #[test]
    fn a_page_is_edited_once_by_a_client_that_reads_again() {
        let page = Shared::default();
        let version = || page.lock().unwrap_or_else(PoisonError::into_inner).version;
        check_on(Sqlite::new(""), async |idem| {
            as_body(&idem, async |_| edit(&page).await).await
        })
        .effects(version)
        .before_each(|| *page.lock().unwrap_or_else(PoisonError::into_inner) = Page::default())
        .assert_promised();
    }
}
