//! Savepoints that the engine sets in a transaction.

use crate::random;

/// Savepoint in an open transaction in a SQL database.
#[derive(Debug)]
pub struct Savepoint(pub(in crate::store) String);

impl Savepoint {
    /// A savepoint with a unique name, because MySQL would otherwise replace the savepoint of an enclosing call.
    pub(in crate::store) fn unique() -> Self {
        Self(format!("idem_{:016x}", random::number()))
    }
}
