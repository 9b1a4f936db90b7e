//! Default options of a handle's calls.

use std::time::Duration;

use crate::codec::Codec;

/// Default options of a handle's calls.
///
/// ```
/// use std::time::Duration;
/// use idem_runtime::{Idem, MemoryStore};
///
/// let idem = Idem::new(MemoryStore::new());
/// assert_eq!(idem.policy().lease, Duration::from_secs(30));
/// assert_eq!(idem.policy().wait, Duration::ZERO);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// Lease duration: how long a claim stays valid without renewal. It is renewed every third of this time while the body
    /// runs. Default: 30 s.
    pub lease: Duration,
    /// Maximum time that a duplicate waits for the running call. Default: 0, so that it gets `InFlight` immediately.
    pub wait: Duration,
    /// Timeout of one store operation. After it, the call treats the store as unreachable. Default: 3 s.
    pub store_timeout: Duration,
    /// Maximum time for retries of a store operation. After it, a call gives up its claim, or returns a value that it could
    /// not record. It returns such a value only while its lease is valid. Default: 6 s.
    pub store_patience: Duration,
    /// Codec of new results. A stored result is always read with the codec that wrote it. Default: JSON.
    pub codec: Codec,
    /// Maximum size of a stored result, in bytes. A larger result makes the record
    /// [`Unrecorded`](crate::record::RecordState::Unrecorded). Default: 1 MiB.
    pub max_result_bytes: usize,
    /// Behavior if the store is unreachable for a claim. Default: the call fails.
    pub on_store_error: OnStoreError,
}

/// Behavior if the store is unreachable for a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnStoreError {
    /// Does not run the body. The call returns [`Error::Store`](crate::Error::Store).
    #[default]
    Fail,
    /// Runs the body without protection against duplicates, and logs a warning. The call still fails if the key has a
    /// record that cannot be read ([`Corrupt`](crate::error::StoreErrorKind::Corrupt)), because the key was used then.
    Run,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            wait: Duration::ZERO,
            store_timeout: Duration::from_secs(3),
            store_patience: Duration::from_secs(6),
            codec: Codec::Json,
            max_result_bytes: 1024 * 1024,
            on_store_error: OnStoreError::Fail,
        }
    }
}
