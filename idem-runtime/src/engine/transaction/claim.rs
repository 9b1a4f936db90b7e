//! From a call to a transaction that holds its record, on a connection of the store's own or on the caller's.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::claim::{ClaimFuture, TransactionClaim};
use crate::error::{InvalidCall, StoreError, StoreErrorKind};
use crate::record::Observation;
use crate::store::{ClaimInTransaction, ClaimRequest, TransactionalStore};

/// Where transactions come from.
pub(super) trait TransactionSource<'c, S: TransactionalStore>: Send {
    /// Whether they are a part of what the caller has begun.
    const JOINS: bool;

    /// A transaction.
    fn open<'a>(
        &'a mut self,
        store: &'a S,
    ) -> impl Future<Output = Result<&'a mut S::Transaction<'c>, StoreError>> + Send + 'a
    where
        'c: 'a;

    /// What was opened.
    fn take(&mut self) -> Option<S::Transaction<'c>>;

    /// Why no transaction can come from here.
    fn refusal(&self) -> Option<InvalidCall>;
}

/// A connection of the store's own for each try, so that one that waits holds none.
pub(super) struct OwnConnection<S: TransactionalStore>(Option<S::Transaction<'static>>);

impl<S: TransactionalStore> OwnConnection<S> {
    pub(super) fn new() -> Self {
        Self(None)
    }
}

impl<S: TransactionalStore> TransactionSource<'static, S> for OwnConnection<S> {
    const JOINS: bool = false;

    async fn open<'a>(
        &'a mut self,
        store: &'a S,
    ) -> Result<&'a mut S::Transaction<'static>, StoreError>
    where
        'static: 'a,
    {
        // One of a try that was given up is rolled back.
        self.0 = None;
        let transaction = store.begin().await?;
        Ok(self.0.insert(transaction))
    }

    fn take(&mut self) -> Option<S::Transaction<'static>> {
        self.0.take()
    }

    fn refusal(&self) -> Option<InvalidCall> {
        None
    }
}

/// One savepoint on the caller's connection, for all tries.
pub(super) struct JoinedConnection<'c, S: TransactionalStore> {
    connection: Option<&'c mut S::Connection>,
    opened: Option<S::Transaction<'c>>,
    is_in_transaction: bool,
}

impl<'c, S: TransactionalStore> JoinedConnection<'c, S> {
    pub(super) fn new(connection: &'c mut S::Connection) -> Self {
        Self {
            is_in_transaction: S::is_in_transaction(connection),
            connection: Some(connection),
            opened: None,
        }
    }
}

impl<'c, S: TransactionalStore> TransactionSource<'c, S> for JoinedConnection<'c, S> {
    const JOINS: bool = true;

    async fn open<'a>(&'a mut self, store: &'a S) -> Result<&'a mut S::Transaction<'c>, StoreError>
    where
        'c: 'a,
    {
        if let Some(connection) = self.connection.take() {
            self.opened = Some(store.join(connection).await?);
        }
        self.opened.as_mut().ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Unavailable,
                "the connection to join did not answer in time",
            )
        })
    }

    fn take(&mut self) -> Option<S::Transaction<'c>> {
        self.opened.take()
    }

    /// A savepoint needs a transaction around it that the driver knows of. One that was begun by SQL text it does not
    /// know, and would commit together with the call.
    fn refusal(&self) -> Option<InvalidCall> {
        (!self.is_in_transaction).then_some(InvalidCall::NoTransaction)
    }
}

/// A call on its way to a transaction that holds its record.
pub(super) struct TransactionClaimer<'c, S, F> {
    store: Arc<S>,
    source: F,
    /// How long its transactions may live.
    lives: PhantomData<&'c ()>,
}

impl<'c, S: TransactionalStore, F: TransactionSource<'c, S>> TransactionClaimer<'c, S, F> {
    pub(super) fn new(store: Arc<S>, source: F) -> Self {
        Self {
            store,
            source,
            lives: PhantomData,
        }
    }

    /// The transaction that holds the record.
    pub(super) fn into_transaction(mut self) -> Option<S::Transaction<'c>> {
        self.source.take()
    }

    /// Gives the caller's connection back as it was, in bounded time.
    pub(super) async fn give_up(&mut self, limit: Duration) {
        // Dropped, it is rolled back when its connection is next used.
        let _ = tokio::time::timeout(limit, self.leave()).await;
    }

    async fn leave(&mut self) {
        if let Some(transaction) = self.source.take() {
            // What the database did not hear of it does when the connection is gone, or used next.
            let _ = self.store.rollback(transaction).await;
        }
    }

    async fn try_claim(
        &mut self,
        observed: Option<&Observation>,
        request: &ClaimRequest,
    ) -> Result<ClaimInTransaction, StoreError> {
        if !F::JOINS
            && let Some(found) = self.store.look(request).await?
        {
            return Ok(found);
        }
        let transaction = self.source.open(&self.store).await?;
        let claimed = self.store.claim_in(transaction, observed, request).await;
        if !F::JOINS && !matches!(claimed, Ok(ClaimInTransaction::Granted(_))) {
            self.leave().await;
        }
        claimed
    }
}

impl<'c, S: TransactionalStore, F: TransactionSource<'c, S>> TransactionClaim
    for TransactionClaimer<'c, S, F>
{
    fn claim<'a>(
        &'a mut self,
        observed: Option<&'a Observation>,
        request: &'a ClaimRequest,
    ) -> ClaimFuture<'a> {
        Box::pin(self.try_claim(observed, request))
    }

    fn joins(&self) -> bool {
        F::JOINS
    }
}
