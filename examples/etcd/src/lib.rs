//! A store of records in etcd, the worked example of `docs/writing-a-store.md`.
//!
//! etcd gives each write a revision, and a transaction can compare revisions. That is all that
//! [`CasStore`](idem_store::cas::CasStore) needs. This backend talks to etcd by HTTP and JSON, which every node serves. etcd
//! shows no clock but the `Date` of these answers, so the time is an interval, see [`idem_store::clock`]. The answers of gRPC
//! have no `Date`: a backend on gRPC would ask the same node for `GET /version`.
//!
//! ```
//! use idem_store::cas::CasStore;
//!
//! let store = CasStore::new(idem_etcd::Etcd::new(["http://10.0.0.1:2379", "http://10.0.0.2:2379"], "idem/")?);
//! # Ok::<(), idem_etcd::InvalidClient>(())
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use idem_store::StoreErrorKind as Kind;
use idem_store::cas::{Backend, Entry, Failure, Versioned};
use idem_store::clock::{Now, ServerClock};
use serde_json::{Value as Json, json};

pub use reqwest::Error as InvalidClient;

/// Largest allowed difference between the clocks of two nodes. NTP keeps them much closer.
const SKEW: Duration = Duration::from_millis(50);
/// Time limit of a request. A node without a majority answers later or never.
const REQUEST_LIMIT: Duration = Duration::from_secs(1);

const LOST: Failure = Failure::new(Kind::Unavailable, "a node gave no answer; is it running?");
const FOREIGN: Failure = Failure::new(Kind::Other, "this is not etcd; check the address");

/// The nodes of an etcd.
pub struct Etcd {
    client: reqwest::Client,
    nodes: Vec<String>,
    /// Number of requests that failed. The next one goes to the next node.
    failures: AtomicUsize,
    prefix: Vec<u8>,
    clock: ServerClock,
}

impl Etcd {
    /// Connects to these nodes at the first request. The keys begin with the prefix.
    ///
    /// # Errors
    /// The HTTP client cannot be created.
    pub fn new<N: Into<String>>(
        nodes: impl IntoIterator<Item = N>,
        prefix: &str,
    ) -> Result<Self, InvalidClient> {
        Ok(Self {
            client: reqwest::Client::builder().timeout(REQUEST_LIMIT).build()?,
            nodes: nodes.into_iter().map(Into::into).collect(),
            failures: AtomicUsize::new(0),
            prefix: prefix.as_bytes().to_vec(),
            clock: ServerClock::new().with_skew(SKEW),
        })
    }

    /// Sends a request to one node, and learns the time from the answer. It is not repeated: a write may have taken effect.
    async fn ask(&self, path: &str, body: &Json) -> Result<Json, Failure> {
        let node = self.failures.load(Ordering::Relaxed) % self.nodes.len().max(1);
        let node = self.nodes.get(node).ok_or(LOST)?;
        let request = self.client.post(format!("{node}/v3/kv/{path}"));
        let request = request.body(body.to_string());
        let answered = async {
            let sent = Instant::now();
            let answer = request.send().await?;
            let date = answer.headers().get("date");
            let date = date.and_then(|it| Now::from_http_date(it.to_str().ok()?));
            let is_dated = date.map(|date| self.clock.observe(sent, Instant::now(), date));
            Ok::<_, reqwest::Error>((is_dated, answer.status(), answer.bytes().await?))
        };
        let answered = answered.await;
        if !matches!(&answered, Ok((_, status, _)) if status.is_success()) {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        let (is_dated, status, body) = answered.map_err(|_| LOST)?;
        let json = serde_json::from_slice(&body);
        match (status.is_success(), is_dated) {
            (true, Some(())) => json.map_err(|_| FOREIGN),
            // A clock that was set would go unnoticed.
            (true, None) => Err(FOREIGN),
            (false, _) => Err(json.map_or(LOST, |it| refused(&it))),
        }
    }

    /// Reads. If a node does not answer, another one is asked.
    async fn range(&self, body: Json) -> Result<Vec<Entry<i64>>, Failure> {
        let answer = match self.ask("range", &body).await {
            Err(LOST) => self.ask("range", &body).await?,
            answer => answer?,
        };
        let entries = answer["kvs"].as_array().into_iter().flatten();
        let entries = entries.map(|it| self.entry(it).ok_or(FOREIGN));
        entries.collect()
    }

    /// Reads an entry. etcd's JSON has numbers as text, and leaves out what is empty.
    fn entry(&self, json: &Json) -> Option<Entry<i64>> {
        let bytes = |name: &str| BASE64.decode(json[name].as_str().unwrap_or_default()).ok();
        Some(Entry {
            key: bytes("key")?.strip_prefix(&*self.prefix)?.to_vec(),
            value: bytes("value")?,
            revision: json["mod_revision"].as_str()?.parse().ok()?,
        })
    }

    /// Does this to the entry if it has this revision. The revision of an entry that is not there is 0.
    async fn compare(&self, key: &[u8], revision: i64, then: Json) -> Result<bool, Failure> {
        let (key, revision) = (self.key(key), revision.to_string());
        let compare = json!([{ "key": key, "target": "MOD", "mod_revision": revision }]);
        let body = json!({ "compare": compare, "success": [then] });
        Ok(self.ask("txn", &body).await?["succeeded"] == true)
    }

    fn key(&self, key: &[u8]) -> String {
        BASE64.encode([&self.prefix, key].concat())
    }
}

#[async_trait]
impl Backend for Etcd {
    type Revision = i64;

    async fn read(&self, key: &[u8]) -> Result<Option<Versioned<i64>>, Failure> {
        let found = self.range(json!({ "key": self.key(key) })).await?.pop();
        let versioned = |Entry {
                             value, revision, ..
                         }| Versioned { value, revision };
        Ok(found.map(versioned))
    }

    async fn write(
        &self,
        key: &[u8],
        value: Vec<u8>,
        expected: Option<&i64>,
    ) -> Result<bool, Failure> {
        let put = json!({ "key": self.key(key), "value": BASE64.encode(value) });
        let put = json!({ "request_put": put });
        self.compare(key, *expected.unwrap_or(&0), put).await
    }

    async fn delete(&self, key: &[u8], expected: &i64) -> Result<bool, Failure> {
        let delete = json!({ "request_delete_range": { "key": self.key(key) } });
        self.compare(key, *expected, delete).await
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<Entry<i64>>, Failure> {
        // The key that follows another one is that key with a zero byte.
        let begin = self.key(&[after, &[0]].concat().max(prefix.to_vec()));
        // The first key after all those with a prefix. No prefix of a `CasStore` ends with the byte 255.
        let (last, rest) = prefix.split_last().ok_or(FOREIGN)?;
        let end = self.key(&[rest, &[last.saturating_add(1)]].concat());
        let limit = limit.to_string();
        self.range(json!({ "key": begin, "range_end": end, "limit": limit }))
            .await
    }

    async fn now(&self) -> Result<Now, Failure> {
        self.clock.now().ok_or(FOREIGN)
    }
}

/// Translates the codes of gRPC. The message of the answer may quote a key, so it only tells errors of one code apart.
fn refused(answer: &Json) -> Failure {
    let code = answer["code"].as_i64().unwrap_or_default();
    let message = answer["message"].as_str().unwrap_or_default();
    let (kind, problem) = match code {
        3 | 8 if message.contains("large") => (Kind::TooLarge, "too large; store less"),
        8 if message.contains("space") => (Kind::Full, "etcd is full; compact it"),
        4 | 14 => (Kind::Unavailable, "no answer; does etcd have a majority?"),
        7 | 16 => (Kind::Denied, "not permitted; give the user rights"),
        8 | 10 => (Kind::Conflict, "etcd is busy; try again"),
        3 | 5 | 6 | 9 | 11 | 12 => (Kind::Other, "etcd refused; look up the code of gRPC"),
        // It may be a lost answer.
        _ => (
            Kind::Unavailable,
            "unknown answer; look up the code of gRPC",
        ),
    };
    Failure::new(kind, problem).with_code(code)
}
