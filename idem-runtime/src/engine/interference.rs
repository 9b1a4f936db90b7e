//! What a test does to a process: `idem-testing` disturbs the calls that a handle makes in transactions, which go past the
//! store that it wraps, and ends leases on stores whose time cannot be moved.

use std::any::Any;

use crate::error::StoreError;
use crate::record::{Outcome, Owner};
use crate::store::ClaimRequest;

/// A call of a store in a transaction.
#[derive(Debug, Clone, Copy)]
pub enum TransactionCall<'a> {
    /// The record is claimed.
    Claim(&'a ClaimRequest),
    /// The outcome is written.
    Complete(&'a Owner, &'a Outcome),
    /// A step is saved.
    SaveStep(&'a Owner, &'a str),
    /// The transaction is committed.
    Commit,
}

/// Connection of an open transaction.
pub type AnyConnection<'a> = &'a mut (dyn Any + Send);

#[cfg(feature = "testing")]
pub use testing::{Interference, Interfering};

#[cfg(feature = "testing")]
pub(super) use testing::Interferes;

#[cfg(feature = "testing")]
mod testing {
    use std::fmt;
    use std::pin::Pin;
    use std::sync::Arc;

    use super::*;

    /// Future of an [`Interference`].
    pub type Interfering<'a> = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + 'a>>;

    /// Disturbs one process.
    pub trait Interference: fmt::Debug + Send + Sync {
        /// Returns true if the leases that the process believes to hold have ended.
        fn leases_have_ended(&self) -> bool;

        /// Called before each call of the store in a transaction. After an error the call is not made. There is no connection
        /// before a claim.
        fn before<'a>(
            &'a self,
            call: TransactionCall<'a>,
            connection: Option<AnyConnection<'a>>,
        ) -> Interfering<'a>;

        /// Called after a call that took effect, or that found the record taken. An error means that its answer is lost.
        fn after<'a>(&'a self, call: TransactionCall<'a>, took_effect: bool) -> Interfering<'a>;
    }

    /// Interference with the process of a handle, if there is any.
    #[derive(Debug, Default)]
    pub(in crate::engine) struct Interferes(pub(in crate::engine) Option<Arc<dyn Interference>>);

    impl Interferes {
        pub(in crate::engine) fn leases_have_ended(&self) -> bool {
            self.0.as_ref().is_some_and(|it| it.leases_have_ended())
        }

        pub(in crate::engine) async fn before(
            &self,
            call: TransactionCall<'_>,
            connection: Option<AnyConnection<'_>>,
        ) -> Result<(), StoreError> {
            match &self.0 {
                Some(interference) => interference.before(call, connection).await,
                None => Ok(()),
            }
        }

        pub(in crate::engine) async fn after(
            &self,
            call: TransactionCall<'_>,
            took_effect: bool,
        ) -> Result<(), StoreError> {
            match &self.0 {
                Some(interference) => interference.after(call, took_effect).await,
                None => Ok(()),
            }
        }
    }
}

/// No interference: only tests interfere.
#[cfg(not(feature = "testing"))]
#[derive(Debug, Default)]
pub(super) struct Interferes(());

#[cfg(not(feature = "testing"))]
impl Interferes {
    pub(super) fn leases_have_ended(&self) -> bool {
        false
    }

    pub(super) async fn before(
        &self,
        _call: TransactionCall<'_>,
        _connection: Option<AnyConnection<'_>>,
    ) -> Result<(), StoreError> {
        Ok(())
    }

    pub(super) async fn after(
        &self,
        _call: TransactionCall<'_>,
        _took_effect: bool,
    ) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Undoes a transaction. This build knows no database.
///
/// # Errors
///
/// Never.
#[cfg(all(
    feature = "testing",
    not(any(feature = "sqlite", feature = "postgres", feature = "mysql"))
))]
pub async fn undo(_connection: AnyConnection<'_>, _is_commit: bool) -> Result<bool, StoreError> {
    Ok(false)
}
