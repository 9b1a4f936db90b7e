//! Runs a function that is idempotent with [`idem-runtime`](https://docs.rs/idem-runtime) under crashes, races and lost
//! replies, and says what its body does wrong.
//!
//! idem promises what it does with a call: claim, run, store, replay. What the body does is the user's work: an effect
//! without a downstream key, a random number in a body that runs again, a time stamp in the request, a task that nobody
//! awaits. [`check`] calls the function under many *schedules* and compares effects and answers with what its mode
//! promises.
//!
//! ```
//! use idem_runtime::{Error, Idem, idempotent};
//! use idem_testing::{Finding, Provider, check};
//!
//! #[idempotent(key = order, ttl = "24h", name = "charges.create", store = idem, skip(bank))]
//! async fn charge(idem: &Idem, bank: &Provider, order: &str, cents: u64) -> Result<u64, Error> {
//!     let receipt = bank.send_without_key(format!("charge {cents} cents")).await; // a mistake
//!     Ok(receipt.map_err(|_| Error::Interrupted)?)
//! }
//!
//! let bank = Provider::new("bank");
//! let report = check(async |idem| charge(&idem, &bank, "order-1", 500).await)
//!     .provider(&bank)
//!     .report();
//! assert!(report.has(Finding::EffectWithoutKey));
//! println!("{report}");
//! ```
//!
//! In a test, end with an assertion instead of `report`: [`assert_promised`](Check::assert_promised), or one that names
//! the promise. A failed assertion prints a story of a few lines for each kind of [`Finding`], with the [`Schedule`] that
//! repeats it.
//!
//! # How a check runs
//!
//! - Each schedule has an empty store, a runtime and, on the [store in memory](Memory), a paused clock. A lease of 30
//!   seconds takes no time. A check of a typical function takes some tens of milliseconds.
//! - On a SQL database a check runs in real time. It ends leases itself, and disturbs transactions: a commit that is not
//!   acknowledged, a server that undoes a transaction while its session goes on.
//! - The first schedule disturbs nothing. It shows how many effects the function has, its polls, its store calls and its
//!   mode. Most other schedules disturb one of those, and then call the function again as a client would.
//! - A check reports what it has seen: an effect that happened twice, a request that differed. It does not read the source
//!   code, so a mistake that no schedule provokes is not found.
//!
//! # Features
//!
//! | feature | contents |
//! | --- | --- |
//! | `http` | `check_router`: whole routers of axum, and other tower services with `http` types |
//! | `sqlite` | `Sqlite`: functions with `tx = tx` on SQLite in memory |
//! | `cbor` | the schedule that stores results as CBOR |
#![cfg_attr(docsrs, feature(doc_cfg))]

mod call;
mod canonical;
mod check;
mod clock;
mod consumer;
mod control;
mod course;
mod finding;
mod judge;
mod log;
mod method;
mod place;
mod plan;
mod provider;
mod report;
#[cfg(feature = "http")]
mod router;
mod run;
mod schedule;
#[cfg(feature = "sqlite")]
mod sql;
mod store;
mod verdict;
mod world;

pub use crate::check::{Check, check, check_on};
pub use crate::clock::Clock;
pub use crate::consumer::{check_consumer, check_consumer_on};
pub use crate::finding::Finding;
pub use crate::method::{Failure, StoreMethod};
#[doc(hidden)]
pub use crate::place::Opened;
pub use crate::place::{Fresh, Memory, Place, TypedMemory};
pub use crate::provider::{Provider, ProviderError, ProviderRequest};
pub use crate::report::{Found, Mode, Report};
#[cfg(feature = "http")]
pub use crate::router::{Reply, check_router, check_router_on};
pub use crate::schedule::{Schedule, UnknownSchedule};
#[cfg(feature = "sqlite")]
pub use crate::sql::Sqlite;
pub use crate::store::TestStore;
