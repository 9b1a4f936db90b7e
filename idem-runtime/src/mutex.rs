//! Locks of this crate's own data.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the data, also after a panic of an earlier holder.
///
/// The data is valid then: the code under these locks makes each change as a whole.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
