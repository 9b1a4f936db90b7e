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
#![doc = include_str!("doc/guarantees.md")]
//!
//! In every mode:
//!
#![doc = include_str!("doc/always.md")]
//!
//! The body is told when its lease is lost: [`Attempt::is_live`] turns false.
//!
//! # What is not guaranteed
//!
#![doc = include_str!("doc/limits.md")]
//!
//! # Where to go
//!
//! | you want to | look at |
//! | --- | --- |
//! | annotate a function | `#[idempotent]` (feature `macros`): all options |
//! | call without the macro | [`Idem::run`], [`Idem::run_with`], [`Idem::run_in_transaction`] with a [`Call`] |
//! | open a store | [`MemoryStore`], [`SqliteStore`], [`PostgresStore`], [`MySqlStore`], [`RedisStore`] |
//! | say which requests are equal | [`Fingerprint`], and [`fingerprint`] for other languages |
//! | handle an error | [`Error`]: what happened, and what the caller does |
//! | resume a body in the middle | [`Attempt::step`], [`Attempt::step_tx`] |
//! | retry calls that no client retries | [`Recovery`] |
//! | look at an outcome without repeating the call | [`Idem::outcome`] |
//! | look at records, and resolve them | [`Idem::records`], [`TypedOperation`] |
//! | check stored results before a deploy | [`Verification`](operator::Verification) |
//! | write a program for operators | [`operator`] |
//! | use more options without the macro, or learn whether a result was replayed | [`advanced`] |
//! | answer HTTP requests, or send them | [`http`], [`client`] |
//! | give operators a page | the crate [`idem-console`](https://docs.rs/idem-console) |
//! | send messages with a transaction | [`outbox`] |
//! | write a store | [`Store`], [`store::StepStore`], [`store::RecoveryStore`]; the feature `conformance` tests it |
//!
//! The [book](https://idem-rs.github.io/idem/) has a first service, a cookbook, and chapters about tests, deploys, pools
//! and errors.
//!
//! # Events
//!
//! Each call has one `tracing` span `idempotent` at level INFO and target `idem`, with `idem.operation`,
//! `code.function.name` (for functions with the attribute), `idem.record` (its id, which
//! [`Records::get`](operator::Records::get) takes), `idem.attempt`, `idem.outcome` and, without a result, `error.type`.
//! The outcome is one of `metrics::CallOutcome`, such as `executed`, `replayed`, `waited`, `in_flight` or `key_reused`.
//! No span or event contains a raw key, a scope or a stored value.
//!
//! # Features
//!
#![doc = include_str!("doc/features.md")]
//!
//! Bodies run on a tokio runtime with its timer enabled. The runtime renews the leases.
// In an optimized build, the compiler looks deeper into the futures of the SQL stores than its default limit allows.
#![recursion_limit = "256"]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod calendar;
pub mod codec;
mod engine;
pub mod error;
mod failure_log;
pub mod fingerprint;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
#[expect(unreachable_pub, reason = "it is public with the feature")]
mod metrics;
mod mutex;
#[cfg(all(
    feature = "outbox",
    any(feature = "sqlite", feature = "postgres", feature = "mysql")
))]
pub mod outbox;
pub mod policy;
mod purge_clock;
mod rated;
pub mod store;
mod timing;
mod verify;
mod worker;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;

/// What the crate `idem-testing` needs.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    #[cfg(not(any(feature = "sqlite", feature = "postgres", feature = "mysql")))]
    pub use crate::engine::interference::undo;
    pub use crate::engine::interference::{
        AnyConnection, Interference, Interfering, TransactionCall,
    };
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    pub use crate::store::undo;
}

#[doc(inline)]
pub use crate::codec::Codec;
pub use crate::engine::{
    Attempt, Call, Idem, IdemBuilder, KeyStatus, NoError, OutcomeQuery, Purger, PurgerGuard,
    Reconciled, Recovery, RecoveryGuard, TypedOperation,
};
#[doc(inline)]
pub use crate::error::Error;
#[doc(inline)]
pub use crate::fingerprint::Fingerprint;
#[doc(inline)]
pub use crate::key::{Key, Scope, ToKey, ToScope};
#[doc(inline)]
pub use crate::record::OnCrash;
#[doc(inline)]
pub use crate::store::Store;
#[cfg(feature = "cache")]
pub use crate::store::cached::Cached;
#[cfg(feature = "memory")]
pub use crate::store::memory::MemoryStore;
#[cfg(feature = "moving")]
pub use crate::store::moving::Moving;
#[cfg(feature = "mysql")]
pub use crate::store::mysql::MySqlStore;
#[cfg(feature = "postgres")]
pub use crate::store::postgres::PostgresStore;
#[cfg(feature = "redis")]
pub use crate::store::redis::RedisStore;
#[cfg(feature = "sqlite")]
pub use crate::store::sqlite::SqliteStore;
#[cfg(feature = "client")]
#[doc(inline)]
pub use idem_client as client;
#[cfg(feature = "macros")]
#[doc = include_str!("idempotent.md")]
pub use idem_macros::idempotent;
#[cfg(feature = "conformance")]
pub use idem_store::conformance;
pub(crate) use idem_store::random;
pub use idem_store::{key, record};

/// Options of calls without the macro, and the provenance of results. Few services need them.
pub mod advanced {
    pub use crate::codec::version::{StoredResult, Versioned};
    pub use crate::engine::{
        Deadline, Finality, OperationName, Provenance, ResultSource, RunOptions, with_provenance,
    };
}

/// Programs for operators: reads and manual changes of records, statistics, findings about a store, and checks of
/// stored results before a deploy.
///
/// [`Idem::records`](crate::Idem::records) returns [`Records`](operator::Records). Filters, pages and the entries of the audit are in
/// [`store`].
pub mod operator {
    #[cfg(feature = "metrics")]
    pub use crate::engine::StuckReporter;
    pub use crate::engine::{ErasedScope, RecordChanges, Records, ScopeErasure, StoredForm};
    pub use crate::store::operator::*;
    pub use crate::verify::{StoredPart, Verification, VerificationFailure, VerificationReport};
}
