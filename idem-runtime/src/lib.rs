//! Makes async service functions idempotent: claim, execute, store, replay.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
mod engine;
pub mod error;
pub mod fingerprint;
pub mod key;
pub mod policy;
pub mod record;
pub mod store;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;

pub use crate::codec::{Codec, StoredValue};
pub use crate::engine::{
    AlreadyInstalled, Attempt, Builder, Call, ErrorKind, Handling, Idem, Provenance, Purger,
    Reconciled, Records, Source, with_provenance,
};
pub use crate::error::{
    DecodeError, Error, FingerprintError, InvalidCall, InvalidKey, StoreError, StoreErrorKind,
};
pub use crate::fingerprint::Fingerprint;
pub use crate::key::{Identity, Key, Operation, RecordId, Scope, ToKey, ToScope};
pub use crate::policy::{OnStoreError, Policy};
pub use crate::record::{OnCrash, Record, State, Timestamp};
pub use crate::store::Store;
#[cfg(feature = "macros")]
pub use idem_macros::idempotent;
#[cfg(feature = "memory")]
pub use crate::store::memory::MemoryStore;
#[cfg(feature = "sqlite")]
pub use crate::store::sqlite::SqliteStore;
