//! How many claims a store works on at the same time.

use super::batch::MAX_BATCH;

/// Number of claims of a store with batches: those of a running batch, and the next one.
pub(in crate::store) const BATCHED: usize = 2 * MAX_BATCH;

/// Number of claims that have a connection each, of a pool with this maximum. A quarter of the connections is left to the
/// writes of calls that run.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::store) fn of_pool(max_connections: u32) -> usize {
    let claims = max_connections - max_connections / 4;
    usize::try_from(claims).unwrap_or(usize::MAX)
}
