//! A store of [`idem-runtime`](https://docs.rs/idem-runtime) in a table of Amazon DynamoDB.
//!
//! ```no_run
//! use aws_sdk_dynamodb::Client;
//! use idem_dynamodb::DynamoDbStore;
//! use idem_runtime::{Error, Fingerprint, Idem, idempotent};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Fingerprint, Serialize, Deserialize)]
//! struct Charge {
//!     customer: String,
//!     cents: u64,
//! }
//!
//! #[idempotent(key = key, ttl = "24h", name = "charges.create", store = idem)]
//! async fn charge(idem: &Idem<DynamoDbStore>, key: &str, charge: Charge) -> Result<String, Error> {
//!     Ok(format!("receipt for {} cents", charge.cents))
//! }
//!
//! # async fn serve(config: aws_sdk_dynamodb::Config) -> Result<(), Box<dyn std::error::Error>> {
//! // Usually `Client::new(&aws_config::load_from_env().await)`.
//! let client = Client::from_conf(config);
//! let store = DynamoDbStore::new(&client, "idem");
//! store.create_table().await?; // once, or from a template
//! let idem = Idem::new(store);
//! let order = Charge { customer: "ann".into(), cents: 500 };
//! let receipt = charge(&idem, "order-1", order).await?;
//! # drop(receipt);
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! A record is one item, its head. Each transition is one conditional write of that item:
//!
//! - **A claim** puts the head on condition that there is none. If the condition fails, DynamoDB returns the head in the same
//!   answer: a duplicate, a replay and the observation for a takeover need no further request.
//! - **Renewals, completions and steps** update the head on condition that it has the owner's claim id and fencing token, and
//!   that the record has neither ended nor expired. They need no read. No takeover can come between check and write.
//! - **All other transitions** read the head, and write on condition that its revision is still the same.
//! - **Large payloads** are items of their own, written before the head refers to them. A failed conditional write costs as
//!   much as the item is large, so heads stay below 1 KB.
//! - **A deleted record** leaves a tombstone with its fencing token for an hour, when the clock alone gives higher tokens.
//! - **The index `open`** has the records without an outcome: stuck ones are found without reading the table. The index
//!   `recovery` has the recovery inputs by their due times.
//! - **A manual change** and its entry in the audit are one transaction.
//!
//! # Time
//!
//! DynamoDB shows its clock only as the `Date` of its answers, in whole seconds. The store bounds it by the local monotonic
//! times of sending and receiving, see [`idem_store::clock`]. Leases are written from the latest time that it may be, and
//! judged by the earliest, so no lease ends early. The wall clock of the machine is never read.
//!
//! A function of Lambda is suspended between two calls, perhaps without its monotonic clock. If the answer to a claim or a
//! renewal shows that the time was later than the one it was written with, the store writes the lease again. A suspension that
//! is shorter than the bounds are wide, about a second, goes unnoticed.
//!
//! # Limits
//!
//! - There are no transactional calls (`tx`), see "A backend with one commit" in the guide for authors of stores.
//! - Two regions of a global table do not exclude each other: send all calls of a key to one region.
//! - The steps of a record, small results and what else its head has are at most 400 KB.
//! - If a process dies between a write of a large step or recovery input and the update of the head, or between a completion
//!   and the deletion of such steps, they remain in the table as waste. Large results never do.
//! - Listings of records without an outcome read an index that may be some moments old.
//!
//! The README has the costs of each call, the rights that a service needs, and what was run. It was not run on AWS.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod clock;
mod error;
mod item;
mod listing;
mod operations;
mod recovery;
mod request;
mod resolve;
mod store;
mod table;

use std::fmt;
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;

/// The code of the README, as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub use self::table::{CLOUDFORMATION, POLICY, TERRAFORM};

/// Store of records in a table of DynamoDB.
///
/// Cloning is cheap, and all clones share what they know about the server's clock.
#[derive(Clone)]
pub struct DynamoDbStore {
    client: Client,
    table: String,
    reads_first: bool,
    answers: Arc<clock::Answers>,
    purged_until: Arc<Mutex<listing::Place>>,
}

impl DynamoDbStore {
    /// Creates a store on this table. Nothing is sent yet.
    ///
    /// The store sends each request once, whatever the retries of the client are: the engine repeats calls that fail, and
    /// recognises what had taken effect.
    pub fn new(client: &Client, table: impl Into<String>) -> Self {
        let config = client.config().to_builder();
        let config = config.retry_config(RetryConfig::disabled());
        Self {
            client: Client::from_conf(config.build()),
            table: table.into(),
            reads_first: false,
            answers: Arc::new(clock::Answers::new()),
            purged_until: Arc::default(),
        }
    }

    /// Reads the record before a claim writes. A replay then costs read units in place of a write unit, and a first call
    /// costs a read unit and a round trip more. If a write unit has the price of five read units, this is cheaper if more than
    /// one call in five is a replay.
    #[must_use]
    pub fn with_read_first(mut self) -> Self {
        self.reads_first = true;
        self
    }

    /// Number of requests that DynamoDB has refused because of their rate.
    pub fn throttled(&self) -> u64 {
        self.answers.throttled()
    }
}

/// Shows the table, and nothing of the client.
impl fmt::Debug for DynamoDbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDbStore")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}
