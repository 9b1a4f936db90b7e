//! HTTP interface of the service, and the page that shows its state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::sse::{Event, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream::{self, Stream};
use idem_console::{Console, Operator, Refusal, Scopes};
use idem_runtime::ToScope;
use idem_runtime::advanced::{ResultSource, with_provenance};
use idem_runtime::http::{IDEMPOTENT_REPLAYED, IdempotencyKey, Principal};
use idem_runtime::record::{Record, RecordState};
use idem_runtime::store::{Filter, PageRequest};
use serde::Serialize;
use serde_json::json;

use crate::service::{Charge, ChargeError, DOOMED, Payments, Receipt};

/// Returns the routes of the page and of the requests that it sends.
pub(crate) async fn routes(shop: Arc<Payments>, number: u32) -> anyhow::Result<Router> {
    // Replays need a table of their own: a replay writes nothing to its record.
    let table = "CREATE TABLE IF NOT EXISTS replays (key TEXT PRIMARY KEY, times INTEGER NOT NULL)";
    sqlx::raw_sql(table).execute(&shop.ledger).await?;
    let process = Process {
        number,
        started: Instant::now(),
    };
    let live = {
        let shop = Arc::clone(&shop);
        async move || live(shop, process)
    };
    // The guard admits everybody who reaches this machine, so no other name may lead a browser here.
    let console = Console::new(&shop.idem, visitor)
        .title("Payments")
        .allowed_hosts(["127.0.0.1", "[::1]", "localhost"]);
    Ok(Router::new()
        .route("/charges", post(charge))
        .layer(from_fn_with_state(Arc::clone(&shop), carry_out))
        .route("/", get(Html(include_str!("page.html"))))
        .route("/live", get(live))
        .merge(console.at("/idem"))
        .layer(map_response(once_per_connection))
        .with_state(shop))
}

/// Handles a charge request. Its only task for idempotency is to pass the key on.
async fn charge(
    State(shop): State<Arc<Payments>>,
    key: IdempotencyKey<Merchant>,
    Json(charge): Json<Charge>,
) -> Result<Json<Receipt>, ChargeError> {
    let tenant = &key.principal().tenant;
    Ok(Json(shop.charge(tenant, key.as_str(), charge).await?))
}

/// Guard of the operators' page. The example listens only on this machine and has no login. A service would look up who
/// sent the request, and what that person may do.
fn visitor(_: &Parts) -> Result<Operator, Refusal> {
    let operator = Operator::new("visitor", Scopes::All);
    let operator = operator.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(operator.may_change().may_see_payloads())
}

/// Authenticated principal. In this example every client that knows the page's token is authenticated.
struct Merchant {
    tenant: String,
}

impl Principal for Merchant {
    fn scope(&self) -> impl ToScope {
        self.tenant.as_str()
    }
}

impl<S: Sync> FromRequestParts<S> for Merchant {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        match parts.headers.get(header::AUTHORIZATION) {
            Some(token) if token == "Bearer token-of-acme" => Ok(Self {
                tenant: "acme".to_owned(),
            }),
            _ => Err(StatusCode::UNAUTHORIZED),
        }
    }
}

impl IntoResponse for ChargeError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Declined { .. } => StatusCode::PAYMENT_REQUIRED,
            Self::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            Self::Database(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Idempotency(error) => return error.into_response(),
        };
        let title = self.to_string();
        (
            status,
            Json(json!({ "title": title, "status": status.as_u16() })),
        )
            .into_response()
    }
}

// ----------------------------------------------------------------------------------------------- simulated failures

/// Request header that asks for a failure: `lose-the-reply` or `crash`.
const MISHAP: HeaderName = HeaderName::from_static("mishap");
/// Response header with the source of the answer: `executed`, `waited` or `replayed`.
const ANSWERED: HeaderName = HeaderName::from_static("answered");
/// Response header with the number of the attempt that made the answer.
const ATTEMPT: HeaderName = HeaderName::from_static("attempt");

/// Runs a request in its own task, so that a browser that disconnects cancels nothing, and simulates the failure that
/// the request asks for. Headers of the response tell the source of the answer.
async fn carry_out(
    State(shop): State<Arc<Payments>>,
    key: IdempotencyKey<Merchant>,
    request: Request,
    next: Next,
) -> Response {
    let mishap = request.headers().get(MISHAP).cloned();
    let asks_for = |it| mishap.as_ref().is_some_and(|mishap| mishap == it);
    let (loses, crashes) = (asks_for("lose-the-reply"), asks_for("crash"));
    let answer = with_provenance(next.run(request));
    let task = tokio::spawn(async move {
        if crashes {
            DOOMED.scope((), answer).await
        } else {
            answer.await
        }
    });
    let (mut response, provenance) = match task.await {
        Ok(answer) => answer,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    };
    if let Some(provenance) = provenance {
        let headers = response.headers_mut();
        headers.insert(ATTEMPT, provenance.attempt.into());
        headers.insert(
            ANSWERED,
            HeaderValue::from_static(match provenance.source {
                ResultSource::Executed => "executed",
                ResultSource::Waited => "waited",
                ResultSource::Replayed => "replayed",
            }),
        );
        if provenance.source != ResultSource::Executed {
            headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
            if let Err(error) = count_replay(&shop, key.as_str()).await {
                eprintln!("a replay was not counted: {error}");
            }
        }
    }
    if loses {
        return Response::new(Body::from_stream(stream::once(async {
            // An error in the body makes hyper close the connection without an answer.
            Err::<&str, _>(std::io::Error::other("the reply is lost"))
        })));
    }
    response
}

async fn count_replay(shop: &Payments, key: &str) -> sqlx::Result<()> {
    let count = "INSERT INTO replays VALUES (?, 1) ON CONFLICT DO UPDATE SET times = times + 1";
    sqlx::query(count).bind(key).execute(&shop.ledger).await?;
    Ok(())
}

/// Closes each connection after one response. A browser that loses a reused connection repeats the request
/// automatically, even a POST. Here the user must send the retry.
async fn once_per_connection(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

// --------------------------------------------------------------------------------------------------- the live view

#[derive(Clone, Copy)]
struct Process {
    number: u32,
    started: Instant,
}

/// State that the page shows.
#[derive(Serialize)]
struct View {
    pid: u32,
    number: u32,
    up_seconds: u64,
    /// Number of requests to the card processor.
    asked: i64,
    /// Number of payments.
    moved: i64,
    /// Rows of the ledger, the newest first. The records have the same order.
    ledger: Vec<Row>,
    records: Vec<RecordView>,
}

#[derive(Serialize)]
struct Row {
    number: i64,
    key: String,
    payment: i64,
    cents: i64,
}

#[derive(Serialize)]
struct RecordView {
    key: String,
    state: &'static str,
    attempt: u32,
    age_seconds: u64,
    /// Remaining lease of a running call.
    lease_seconds: Option<f64>,
    replays: i64,
}

/// Streams the state repeatedly, in one response that never ends. A browser has at most six connections to a server,
/// and fast clicks occupy the others.
fn live(
    shop: Arc<Payments>,
    process: Process,
) -> Sse<impl Stream<Item = Result<Event, axum::Error>>> {
    const PAUSE: Duration = Duration::from_millis(200);

    Sse::new(stream::unfold(Duration::ZERO, move |pause| {
        let shop = Arc::clone(&shop);
        async move {
            tokio::time::sleep(pause).await;
            let event = match look(&shop, process).await {
                Ok(view) => Event::default().retry(PAUSE).json_data(view),
                Err(error) => Err(axum::Error::new(error)),
            };
            Some((event, PAUSE))
        }
    }))
}

async fn look(shop: &Payments, process: Process) -> Result<View, ChargeError> {
    let db = &shop.ledger;
    let (asked, moved) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM processor_requests), (SELECT count(*) FROM processor_payments)",
    )
    .fetch_one(db)
    .await?;
    let ledger =
        sqlx::query_as("SELECT rowid, key, payment, cents FROM ledger ORDER BY rowid DESC")
            .fetch_all(db)
            .await?
            .into_iter()
            .map(|(number, key, payment, cents)| Row {
                number,
                key,
                payment,
                cents,
            })
            .collect();
    let mut records = Vec::new();
    for record in all_records(shop).await? {
        let key = record.identity.key.as_str();
        let replays = sqlx::query_scalar("SELECT times FROM replays WHERE key = ?").bind(key);
        records.push(RecordView {
            key: key.to_owned(),
            state: record.state.as_str(),
            attempt: record.attempt,
            age_seconds: record.read_at.since(record.first_claimed_at).as_secs(),
            lease_seconds: (record.state == RecordState::Running)
                .then(|| record.lease_until.since(record.read_at).as_secs_f64()),
            replays: replays.fetch_optional(db).await?.unwrap_or(0),
        });
    }
    Ok(View {
        pid: std::process::id(),
        number: process.number,
        up_seconds: process.started.elapsed().as_secs(),
        asked,
        moved,
        ledger,
        records,
    })
}

async fn all_records(shop: &Payments) -> Result<Vec<Record>, ChargeError> {
    let mut records = Vec::new();
    let mut page = PageRequest {
        limit: 100,
        after: None,
    };
    loop {
        let read = shop.idem.records().list(&Filter::default(), &page).await?;
        records.extend(read.records.into_iter().map(|it| it.record));
        page.after = read.next;
        if page.after.is_none() {
            break;
        }
    }
    records.sort_by_key(|it| std::cmp::Reverse(it.first_claimed_at));
    Ok(records)
}
