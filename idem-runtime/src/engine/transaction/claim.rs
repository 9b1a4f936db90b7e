//! Claims the record of a call in a transaction, on a connection of the store or of the caller.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::claim::{ClaimFuture, TransactionClaim};
use crate::engine::interference::TransactionCall;
use crate::engine::typed::Joins;
use crate::error::{InvalidCall, StoreError, StoreErrorKind};
use crate::record::Observation;
use crate::store::{ClaimInTransaction, ClaimRequest, TransactionalStore};

/// Source of transactions to claim in.
pub(super) trait TransactionSource<'c, S: TransactionalStore>: Send {
    /// True if the transactions are part of the caller's open transaction.
    const JOINS: Joins;

    /// Opens a transaction.
    fn open<'a>(
        &'a mut self,
        store: &'a S,
    ) -> impl Future<Output = Result<&'a mut S::Transaction<'c>, StoreError>> + Send + 'a
    where
        'c: 'a;

    /// Takes the open transaction out.
    fn take(&mut self) -> Option<S::Transaction<'c>>;

    /// Reason for which this source cannot open transactions.
    fn refusal(&self) -> Option<InvalidCall>;
}

/// A new connection of the store for each try, so that a waiting call holds none.
pub(super) struct OwnConnection<S: TransactionalStore>(Option<S::Transaction<'static>>);

impl<S: TransactionalStore> OwnConnection<S> {
    pub(super) fn new() -> Self {
        Self(None)
    }
}

impl<S: TransactionalStore> TransactionSource<'static, S> for OwnConnection<S> {
    const JOINS: Joins = Joins(false);

    async fn open<'a>(
        &'a mut self,
        store: &'a S,
    ) -> Result<&'a mut S::Transaction<'static>, StoreError>
    where
        'static: 'a,
    {
        // Dropping the transaction of an earlier try rolls it back.
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
    const JOINS: Joins = Joins(true);

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

    /// A savepoint needs an enclosing transaction that the driver knows of. The driver does not know a transaction that
    /// was begun by SQL text, and would commit it together with the call.
    fn refusal(&self) -> Option<InvalidCall> {
        (!self.is_in_transaction).then_some(InvalidCall::NoTransaction)
    }
}

/// A call that is claiming its record in a transaction.
pub(super) struct TransactionClaimer<'c, S, F> {
    store: Arc<S>,
    engine: Arc<Engine>,
    source: F,
    /// Lifetime of the transactions.
    lives: PhantomData<&'c ()>,
}

impl<'c, S: TransactionalStore, F: TransactionSource<'c, S>> TransactionClaimer<'c, S, F> {
    pub(super) fn new(store: Arc<S>, engine: Arc<Engine>, source: F) -> Self {
        Self {
            store,
            engine,
            source,
            lives: PhantomData,
        }
    }

    /// Returns the transaction that holds the record.
    pub(super) fn into_transaction(mut self) -> Option<S::Transaction<'c>> {
        self.source.take()
    }

    /// Restores the caller's connection to its earlier state, in bounded time.
    pub(super) async fn give_up(&mut self, limit: Duration) {
        // If this times out, the dropped transaction is rolled back when its connection is next used.
        let _ = tokio::time::timeout(limit, self.leave()).await;
    }

    async fn leave(&mut self) {
        if let Some(transaction) = self.source.take() {
            // If the rollback does not reach the database, it happens when the connection is closed or next used.
            let _ = self.store.rollback(transaction).await;
        }
    }

    async fn try_claim(
        &mut self,
        observed: Option<&Observation>,
        request: &ClaimRequest,
    ) -> Result<ClaimInTransaction, StoreError> {
        let call = TransactionCall::Claim(request);
        let interference = &self.engine.interference;
        interference.before(call, None).await?;
        let Joins(joins) = F::JOINS;
        if !joins && let Some(found) = self.store.precheck(request).await? {
            interference.after(call, false).await?;
            return Ok(found);
        }
        let transaction = self.source.open(&self.store).await?;
        let mut claimed = self.store.claim_in(transaction, observed, request).await;
        if let Ok(answer) = &claimed {
            let is_granted = matches!(answer, ClaimInTransaction::Granted(_));
            let answered = interference.after(call, is_granted).await;
            claimed = answered.and(claimed);
        }
        if !joins && claimed.is_err() {
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

    fn leave(&mut self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.give_up(limit))
    }

    fn begin_concurrency(&self) -> Option<usize> {
        let Joins(joins) = F::JOINS;
        (!joins).then(|| self.store.begin_concurrency().max(1))
    }

    fn joins(&self) -> bool {
        F::JOINS.0
    }
}
