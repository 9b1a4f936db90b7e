//! What a call brings along.

use std::borrow::Cow;
use std::time::Duration;

use crate::error::Error;
use crate::fingerprint::Fingerprint;
use crate::key::{ToKey, ToScope};
use crate::record::OnCrash;

/// A call: operation, key, request, and how long its record is kept.
///
/// What is wrong with any of them is told when the call is made.
#[derive(Debug)]
pub struct Call {}

impl Call {
    /// A call of this operation, with this key, for this request; its record is kept for `ttl` after it ended.
    pub fn new(
        operation: impl Into<Cow<'static, str>>,
        key: &(impl ToKey + ?Sized),
        request: &(impl Fingerprint + ?Sized),
        ttl: Duration,
    ) -> Self {
        Self {}
    }

    /// The same with the key derived from the request: a duplicate filter.
    pub fn by_fingerprint(
        operation: impl Into<Cow<'static, str>>,
        request: &(impl Fingerprint + ?Sized),
        ttl: Duration,
    ) -> Self {
        Self {}
    }

    /// Whose key it is, joined to the scope that the key itself may carry.
    #[must_use]
    pub fn scope(self, scope: &(impl ToScope + ?Sized)) -> Self {
        self
    }

    /// How long a silent owner is believed.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self
    }

    /// How long to wait for another call that is running.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self
    }

    /// What happens after a crash.
    #[must_use]
    pub fn on_crash(self, on_crash: OnCrash) -> Self {
        self
    }

    /// Run without protection where the store cannot be reached.
    #[must_use]
    pub fn run_on_store_error(self) -> Self {
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub fn failed(self, error: Error) -> Self {
        self
    }
}
