//! Cost of a request through the layer on the memory store, compared with the bare handler and with other crates that
//! do the same work. There is no socket, since a server adds the same cost to all of them.
//!
//! `--only NAME --calls N` sends N requests with new keys to one of them, without a table: `bare`, `idem`, `idempotent`
//! or `axum-idempotent`. Two runs under `valgrind --tool=callgrind`, with different numbers of requests, show the
//! instructions of one request.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing to say"
)]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use idem_runtime::http::{IdempotencyLayer, unscoped};
use idem_runtime::{Idem, MemoryStore};
use idem_tests::ratio::{Effort, Table};
use idempotent::entry::ExistingEntry;
use idempotent::fingerprint::{DefaultFingerprintStrategy, FingerprintStrategy as _};
use idempotent::store::{IdempotencyStore as _, InsertResult};
use idempotent::{CachedResponse, IdempotencyEntry, IdempotencyKey, Metadata};
use ruts::store::Ttl;
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, Session, SessionLayer};
use tokio::runtime::Runtime;
use tower_cookies::CookieManagerLayer;
use tower_service::Service as _;

const TTL: Duration = Duration::from_secs(24 * 60 * 60);
const BODY: &str = r#"{"customer":"cus_4fdAW5ftNQow1a","cents":5000,"currency":"EUR"}"#;

/// A charge without cost, with a response like that of an API.
fn charges() -> Router {
    let handler = async |body: Bytes| {
        let headers = [
            ("content-type", "application/json"),
            ("location", "/charges/1"),
        ];
        (StatusCode::CREATED, headers, body)
    };
    Router::new().route("/charges", post(handler))
}

fn with_idem() -> Router {
    let idem = Idem::new(MemoryStore::new());
    let layer = IdempotencyLayer::builder(&idem, "bench", TTL, unscoped());
    charges().layer(layer.build().unwrap())
}

/// The newest version of `idempotent` that this toolchain builds has a store and no layer: this is the minimal layer on
/// it. That version cannot store headers and has no lease, so the claim of a crashed handler lasts until its ttl.
fn with_idempotent() -> Router {
    type Store = Arc<idempotent::store::memory::MemoryStore>;

    async fn guard(State(store): State<Store>, request: Request, next: Next) -> Response {
        let (parts, body) = request.into_parts();
        let body = to_bytes(body, 1024 * 1024).await.unwrap();
        let key = parts.headers["idempotency-key"].to_str().unwrap();
        let key = IdempotencyKey::new(key).unwrap();
        let fingerprint = DefaultFingerprintStrategy.compute(parts.uri.path(), &body);
        let entry = IdempotencyEntry::new(fingerprint, TTL);
        match store.try_insert(&key, entry.clone()).await.unwrap() {
            InsertResult::Claimed { fencing_token } => {
                let response = next.run(Request::from_parts(parts, Body::from(body))).await;
                let (parts, body) = response.into_parts();
                let body = to_bytes(body, 1024 * 1024).await.unwrap();
                let entry = entry.complete(CachedResponse {
                    status_code: parts.status.as_u16(),
                    metadata: Metadata::default(),
                    body: body.clone(),
                });
                store.complete(&key, entry, fencing_token).await.unwrap();
                Response::from_parts(parts, Body::from(body))
            }
            InsertResult::Exists(ExistingEntry::Completed(entry)) => {
                assert!(entry.fingerprint_matches(fingerprint));
                let stored = entry.into_response();
                let status = StatusCode::from_u16(stored.status_code).unwrap();
                (status, stored.body).into_response()
            }
            InsertResult::Exists(_) => StatusCode::CONFLICT.into_response(),
        }
    }

    let store = Arc::new(idempotent::store::memory::MemoryStore::new(1024, TTL));
    charges().layer(from_fn_with_state(store, guard))
}

/// `axum-idempotent` stores responses in the caller's session, which must already exist. It makes no claims: two
/// concurrent requests both run.
fn with_axum_idempotent() -> Router {
    let options = IdempotentOptions::new(3600).use_idempotency_key_header(None, true);
    let cookies = CookieOptions::build()
        .name("session")
        .max_age(3600)
        .path("/");
    let sessions = Arc::new(MokaStore::builder().build());
    let log_in = async |session: Session<MokaStore>| {
        let ttl = Ttl::new(3600).unwrap();
        session
            .set("user", &"ann".to_owned(), ttl, None)
            .await
            .unwrap();
    };
    charges()
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .route("/log-in", post(log_in))
        .layer(SessionLayer::new(sessions).with_cookie_options(cookies))
        .layer(CookieManagerLayer::new())
}

/// A client of a service.
struct Caller<'a> {
    runtime: &'a Runtime,
    service: Router,
    cookie: String,
    sent: u64,
}

impl<'a> Caller<'a> {
    fn new(runtime: &'a Runtime, service: Router) -> Self {
        Self {
            runtime,
            service,
            cookie: String::new(),
            sent: 0,
        }
    }

    /// Adds the cookie of a session.
    fn logged_in(mut self) -> Self {
        let request = Request::post("/log-in").body(Body::empty()).unwrap();
        let response = self.runtime.block_on(self.service.call(request)).unwrap();
        let cookie = response.headers()["set-cookie"].to_str().unwrap();
        self.cookie = cookie.split(';').next().unwrap().to_owned();
        self
    }

    fn send(&mut self, key: u64) -> bool {
        let request = Request::post("/charges")
            .header(
                "idempotency-key",
                format!("0190f3c2-8f6a-7000-8000-{key:012}"),
            )
            .header("content-type", "application/json")
            .header("cookie", &self.cookie)
            .body(Body::from(BODY))
            .unwrap();
        self.runtime.block_on(async {
            let response = self.service.call(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::CREATED);
            let replayed = response.headers().contains_key("idempotent-replayed");
            let has_header = response.headers().contains_key("idempotency-replayed");
            let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
            assert_eq!(body, BODY);
            replayed || has_header
        })
    }

    /// Sends a request with an unused key.
    fn first(&mut self) {
        self.sent += 1;
        assert!(!self.send(self.sent), "it is new");
    }

    /// Sends a request with a used key.
    fn again(&mut self) -> bool {
        self.send(0)
    }
}

/// Value of an option on the command line.
fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|it| it != name).nth(1)
}

fn main() {
    let effort = Effort::from_arguments();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let caller = |service| Caller::new(&runtime, service);
    let axum_idempotent = || caller(with_axum_idempotent()).logged_in();

    if let Some(name) = option("--only") {
        let mut only = match &*name {
            "bare" => caller(charges()),
            "idem" => caller(with_idem()),
            "idempotent" => caller(with_idempotent()),
            "axum-idempotent" => axum_idempotent(),
            _ => panic!("`{name}` is not compared here; see the top of the file for the names"),
        };
        let calls: u64 = option("--calls").unwrap().parse().unwrap();
        (0..calls).for_each(|_| only.first());
        return;
    }

    let mut bare = caller(charges());
    let (mut idem, mut other, mut session) = (
        caller(with_idem()),
        caller(with_idempotent()),
        axum_idempotent(),
    );
    Table::against("a request with a new key", "the handler, bare", || {
        bare.first();
    })
    .with("IdempotencyLayer", None, || idem.first())
    .with("idempotent 0.3.0, by hand", None, || other.first())
    .with("axum-idempotent 0.6.0", None, || session.first())
    .print(effort);

    let mut bare = caller(charges());
    let (mut idem, mut other, mut session) = (
        caller(with_idem()),
        caller(with_idempotent()),
        axum_idempotent(),
    );
    for caller in [&mut idem, &mut other, &mut session] {
        caller.again();
    }
    assert!(
        idem.again() && session.again(),
        "what is measured is a replay"
    );
    Table::against("a replay", "the handler, bare", || bare.again())
        .with("IdempotencyLayer", None, || idem.again())
        .with("idempotent 0.3.0, by hand", None, || other.again())
        .with("axum-idempotent 0.6.0", None, || session.again())
        .print(effort);
}
