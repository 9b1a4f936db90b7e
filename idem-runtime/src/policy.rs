//! What a handle does where a call does not say otherwise.

use std::time::Duration;

use crate::codec::Codec;

/// What a handle does where a call does not say otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// How long a silent owner is believed; renewed at a third of it while the body runs. Default 30 s.
    pub lease: Duration,
    /// How long a duplicate waits for the one that is running. Default 0: it gets `InFlight` at once.
    pub wait: Duration,
    /// How long the store may take for one step before the call treats it as out of reach. Default 3 s.
    pub store_timeout: Duration,
    /// How long a call goes on trying before it gives up a claim, or hands its caller a value that it could not
    /// record (which it does only while its lease holds). Default 6 s.
    pub store_patience: Duration,
    /// How results are written. Default JSON. What is stored is read by the codec that wrote it.
    pub codec: Codec,
    /// The largest encoded result that is stored, in bytes; a larger one leaves the record
    /// [`Unrecorded`](crate::State::Unrecorded). Default 1 MiB.
    pub max_result_bytes: usize,
    /// What happens when the store cannot be reached for a claim. Default: the call fails.
    pub on_store_error: OnStoreError,
}

/// What happens when the store cannot be reached for a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnStoreError {
    /// No claim, no run: the call answers [`Error::Store`](crate::Error::Store).
    #[default]
    Fail,
    /// The body runs without any protection, and a warning event says so. Not where a record of the key is there and
    /// cannot be read ([`Corrupt`](crate::StoreErrorKind::Corrupt)): the key was used then.
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
