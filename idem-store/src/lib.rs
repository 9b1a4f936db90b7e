//! Contract of the stores of [`idem-runtime`](https://docs.rs/idem-runtime).
//!
//! A store keeps records and moves them from state to state, atomically and by its own clock. This crate has what such a
//! store needs and nothing else: keys, records, errors, the traits, and the cases that every store must pass. It depends
//! on no database driver and no HTTP library. A release of such a library is therefore no breaking release for a store.
//!
//! Programs that make calls idempotent depend on `idem-runtime`, which re-exports the contract under the same paths.
//!
//! - [`Store`]: the contract. [`store::StepStore`], [`store::RecoveryStore`], [`store::AttemptStore`],
//!   [`store::AuditStore`], [`store::OperationStore`], [`store::ErasureStore`] and [`store::TransactionalStore`] are optional.
//! - [`clock`]: the time of a store that cannot read its clock exactly.
//! - `cas` (feature of that name): a whole store on any backend that can read with a revision, write if the revision is
//!   unchanged, and scan.
//! - [Writing a store](https://github.com/idem-rs/idem/blob/main/docs/writing-a-store.md): answers to the questions that
//!   the contract leaves to an author.
//! - `conformance` (feature of that name): the cases that every store must pass, and a store that injects faults.
//!
//! | feature | contents | default |
//! | --- | --- | --- |
//! | `cas` | a store on any backend with compare-and-swap | |
//! | `conformance` | the test cases that every store must pass, and a store that injects faults | |
//! | `serde` | `Record`, `Observation` and what they consist of can be serialized | |
//! | `uuid` | a `uuid::Uuid` can be a key and a scope | |
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "cas")]
pub mod cas;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod error;
pub mod key;
#[doc(hidden)]
pub mod random;
pub mod record;
pub mod store;
#[doc(hidden)]
pub mod structured;

pub use crate::error::{
    InvalidChange, InvalidKey, InvalidObservation, InvalidOperation, InvalidOwnerLabel,
    InvalidRecordId, StoreError, StoreErrorKind,
};
pub use crate::key::{Identity, Key, KeyPart, Operation, RecordId, Scope, ToKey, ToScope};
pub use crate::record::{OnCrash, OwnerLabel, Record, RecordState, Timestamp};
pub use crate::store::Store;
