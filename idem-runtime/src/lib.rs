//! Makes async service functions idempotent.
//!
//! A lost reply forces a retry, and a retry without idempotency is a double charge. With this crate the first call of a
//! key claims the key in a store, runs its body and stores the result. Every later call with that key gets the stored
//! result, be it a retry, a double click, a concurrent duplicate or a call after a crash.
//!
#![cfg_attr(
    all(feature = "macros", feature = "memory"),
    doc = r#"
# Quick start

```
use idem_runtime::{Error, Fingerprint, Idem, MemoryStore, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Fingerprint, Serialize, Deserialize)]
struct Charge { customer: String, cents: u64 }

#[idempotent(key = key, ttl = "24h", name = "charges.create", store = idem)]
async fn charge(idem: &Idem<MemoryStore>, key: &str, charge: Charge) -> Result<String, Error> {
    Ok(format!("receipt for {} cents", charge.cents))
}

# #[tokio::main(flavor = "current_thread")]
# async fn main() -> Result<(), Error> {
let idem = Idem::new(MemoryStore::new());
let order = || Charge { customer: "ann".into(), cents: 500 };
let first = charge(&idem, "order-1", order()).await?;
let retry = charge(&idem, "order-1", order()).await?; // replayed
assert_eq!(first, retry);

let reused = charge(&idem, "order-1", Charge { cents: 900, ..order() }).await;
assert!(matches!(reused, Err(Error::KeyReused)));
# Ok(())
# }
```
"#
)]
//!
//! # What is guaranteed
//!
//! | mode | written as | crash, cancellation or panic in the body | `Err` that no pattern names | the owner is paused past its lease, then resumes |
//! | --- | --- | --- | --- | --- |
//! | leased, rerun (default) | – | after the lease has lapsed the next call runs the body again: **at least once**; a downstream key makes that safe | released: the next call runs the body again | if another call took over, the owner's completion is refused, and its caller gets the stored result or `LeaseLost`; the effect may have happened twice |
//! | leased, refuse | `on_crash = refuse` | `Interrupted` until an operator resolves it: **at most once**, paused owners included | unknown, so `Interrupted` too, unless `retry_err = PATTERN` says that this error proves nothing was done | the owner's completion is accepted: no other call has run the body |
//! | leased, reconcile | `on_crash = reconcile(EXPR)` | EXPR is asked what happened: done with this value / not done / unknown (`Interrupted`) | the next call asks EXPR | as for rerun: an owner that acts after EXPR answered "not done" doubles the effect; only `refuse` and `tx` prevent that |
//! | transactional | `tx = tx` | rolled back by the database: as if never called | rolled back | cannot happen: record and effect commit together, the row lock is the lease: **exactly once** |
//!
//! The toolkit never cancels the body; [`Attempt::is_live`] turns false when the lease is lost.
//!
//! # What is not guaranteed
//!
//! - *Exactly once* for effects outside of the store, or under `tx` outside of its database. Under `rerun` a crash
//!   between an effect and its record runs the effect again. Send [`Attempt::downstream_key`] along with the effect, so
//!   that the other service can detect the duplicate.
//! - Anything after the `ttl`: the key can then be used again.
//! - Protection from a body that outlives its lease while the runtime cannot renew it, because the process was paused
//!   or the thread was blocked. Check [`Attempt::fencing_token`] at the resource, or use `refuse`.
//! - Equality of all copies of a result, if the store was unreachable at completion. The caller then gets its own
//!   value, with a warning event, only while its lease is valid; after that it gets [`Error::LeaseLost`].
//! - Secrecy of stored data: results are stored as they are encoded, and so is the input that `recover_with` names. The
//!   request itself is stored only as a hash, and as an HMAC if the handle has a [`Secret`](fingerprint::Secret).
//!
//! # Where to go
//!
//! - `#[idempotent]` (feature `macros`): all options. [`Idem::run`]: runs a call without the macro.
//! - [`Fingerprint`]: hashing of a request, and the rules by which other languages compute the same hash.
//! - [`Attempt::step`], [`Attempt::step_tx`]: bodies that resume where a crash stopped them. [`Recovery`]: retries
//!   calls after a crash, even if no client does.
//! - [`Error`]: the meaning of each error for a caller. [`Idem::records`]: access to records for operators.
//! - [`Store`], [`store::StepStore`], [`store::RecoveryStore`]: the contracts for implementing your own store. The
//!   feature `conformance` tests a store against them.
//!
//! # Events
//!
//! Each call has one `tracing` span `idempotent` at level INFO and target `idem`, with `operation`, `record` (the first
//! eight bytes of its id in hex), `attempt` and `outcome`. The outcome is `executed`, `replayed`, `waited`,
//! `in_flight`, `key_reused`, `interrupted`, `lease_lost`, `store_error`, `unrecorded`, `decode` or `invalid`. No span
//! or event contains a raw key, a scope or a stored value.
//!
//! # Features
//!
//! | feature | contents | default |
//! | --- | --- | --- |
//! | `macros` | `#[idempotent]`, `#[derive(Fingerprint)]` | yes |
//! | `memory` | `MemoryStore`: for tests and single processes | yes |
//! | `sqlite` | `SqliteStore`: one file, shared by several processes | |
//! | `postgres` | `PostgresStore`: PostgreSQL 12 and later | |
//! | `mysql` | `MySqlStore`: MySQL 8, MariaDB 10.6 and later | |
//! | `cache` | `Cached`: a cache in front of any store, in the memory of the process, or with `redis` in Redis | |
//! | `redis`, `redis-cluster` | `RedisStore`: Redis 6.2 and later, Valkey; `redis-cluster` for a cluster | |
//! | `client` | `client::IdempotencyMiddleware`: gives requests of `reqwest-middleware` a key, and retries them with that key | |
//! | `outbox` | [`outbox`]: messages enqueued in the application's own transaction, and relays that deliver them; with `sqlite`, `postgres` or `mysql` | |
//! | `http` | `IdempotencyLayer`: whole routes of any tower service, problem details (RFC 9457), the policy page | |
//! | `axum` | `IdempotencyKey`, the extractor, and errors as responses | |
//! | `cbor` | `Codec::Cbor` for stored results, instead of JSON | |
//! | `conformance` | the test cases that every store must pass, and a store that injects faults | |
//! | `bytes`, `chrono`, `jiff`, `rust_decimal`, `time`, `url`, `uuid` | `Fingerprint` for the types of that crate; with `uuid` a `Uuid` can also be a key | |
//!
//! Bodies run on a tokio runtime with its timer enabled. The runtime renews the leases.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "client")]
pub mod client;
pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
mod engine;
pub mod error;
pub mod fingerprint;
#[cfg(feature = "http")]
pub mod http;
pub mod key;
#[cfg(all(
    feature = "outbox",
    any(feature = "sqlite", feature = "postgres", feature = "mysql")
))]
pub mod outbox;
pub mod policy;
pub mod record;
pub mod store;
#[cfg(any(feature = "client", feature = "http"))]
mod structured;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;

pub use crate::codec::{Codec, StoredValue};
pub use crate::engine::{
    AlreadyInstalled, Attempt, Builder, Call, ErrorKind, Idem, Provenance, PurgerGuard, Reconciled,
    Records, Recovery, RecoveryGuard, RunOptions, Source, with_provenance,
};
pub use crate::error::{
    DecodeError, Error, FingerprintError, InvalidCall, InvalidKey, InvalidOutbox, StoreError,
    StoreErrorKind,
};
pub use crate::fingerprint::Fingerprint;
pub use crate::key::{Identity, Key, Operation, RecordId, Scope, ToKey, ToScope};
pub use crate::policy::{OnStoreError, Policy};
pub use crate::record::{OnCrash, Record, State, Timestamp};
pub use crate::store::Store;
#[cfg(feature = "cache")]
pub use crate::store::cached::{CacheStats, Cached};
#[cfg(feature = "memory")]
pub use crate::store::memory::MemoryStore;
#[cfg(feature = "mysql")]
pub use crate::store::mysql::MySqlStore;
#[cfg(feature = "postgres")]
pub use crate::store::postgres::PostgresStore;
#[cfg(feature = "redis")]
pub use crate::store::redis::{RedisConnection, RedisStore};
#[cfg(feature = "sqlite")]
pub use crate::store::sqlite::SqliteStore;
#[cfg(feature = "macros")]
#[doc = include_str!("idempotent.md")]
pub use idem_macros::idempotent;
