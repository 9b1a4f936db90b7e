//! Savepoints that the engine sets in a transaction.

use crate::random;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use {
    super::Manager, sqlx::Database, sqlx::SqlStr, sqlx_core::transaction::TransactionManager as _,
};

/// Savepoint in an open transaction in a SQL database.
#[derive(Debug)]
pub struct Savepoint(pub(in crate::store) String);

impl Savepoint {
    /// A savepoint with a unique name, because MySQL would otherwise replace the savepoint of an enclosing call.
    pub(in crate::store) fn unique() -> Self {
        Self(format!("idem_{:016x}", random::number()))
    }
}

/// Statement that sets the innermost savepoint of a connection again.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::store) fn innermost_savepoint<DB: Database>(connection: &DB::Connection) -> SqlStr {
    let depth = Manager::<DB>::get_transaction_depth(connection);
    sqlx_core::transaction::begin_ansi_transaction_sql(depth.saturating_sub(1))
}
