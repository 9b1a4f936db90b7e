//! Stores of records: the contract, which is the crate `idem-store`, and the stores of this crate.

#[cfg(feature = "cache")]
pub mod cached;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "moving")]
pub mod moving;
#[cfg(feature = "mysql")]
pub mod mysql;
pub(crate) mod operator;
#[cfg(all(
    feature = "outbox",
    any(feature = "sqlite", feature = "postgres", feature = "mysql")
))]
pub(crate) mod outbox;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis"
))]
mod tls;

#[cfg(all(
    feature = "testing",
    any(feature = "sqlite", feature = "postgres", feature = "mysql")
))]
#[doc(hidden)]
pub use self::sql::undo;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use self::sql::{Cancellation, OpenTransaction, Savepoint};

pub use idem_store::store::*;

/// Error for a file that a parameter of a URL names.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
fn unreadable_file(parameter: &str) -> crate::error::StoreError {
    crate::error::StoreError::new(
        crate::error::StoreErrorKind::Other,
        format!(
            "the file that `{parameter}` of the URL names cannot be read; correct its path, or let this process read it"
        ),
    )
}
