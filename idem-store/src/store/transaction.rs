//! Optional store trait for records in the application's own database: claims and completes in the transaction in which
//! the body changes its data.

use std::ops::DerefMut;
use std::time::Duration;

use crate::error::StoreError;
use crate::record::{Digest, Observation, Outcome, Owner, Payload, Record};
use crate::store::{ClaimOutcome, ClaimRequest, FencedWrite, Granted, Store};

/// Store whose records can be written in one transaction with the application's own data.
///
/// # Contract
///
/// Writes of a transaction become visible to others when it commits. They are undone if the transaction is rolled back,
/// dropped or cut off. [`claim_in`](Self::claim_in) and [`complete_in`](Self::complete_in) do inside the transaction
/// what [`Store::claim`], [`Store::take_over`] and [`Store::complete`] do immediately. Between the claim and the end of
/// the transaction no other caller is granted the record. Another caller gets an answer without waiting for that end,
/// as far as the database allows it.
///
/// A backend that has no open transactions, and takes all writes in one request, can promise less. The guide
/// [Writing a store] says what it gives up, and why it is no `TransactionalStore` ("A backend with one commit").
///
/// [Writing a store]: https://github.com/idem-rs/idem/blob/main/docs/writing-a-store.md#a-backend-with-one-commit
///
/// `conformance::run_transactional` (feature `conformance`) checks this together with data of an application.
///
/// An implementation writes `Self::Transaction<'_>` in the signatures of its methods, as they are written here. With the type
/// itself, the compiler reports lifetimes that do not match (E0195).
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no transactions to run the body in",
    label = "`tx` needs a handle on a SQL store",
    note = "`tx` works with `Idem<SqliteStore>`, `Idem<PostgresStore>` and `Idem<MySqlStore>`; `Idem` alone hides which store it is on, so name it",
    note = "on any other store leave out `tx`, and choose with `on_crash` what a crash means"
)]
pub trait TransactionalStore: Store {
    /// Connection for the body, which is in the transaction.
    type Connection: Connects<Self> + Send + 'static;

    /// Open transaction, or a savepoint in one. Dropping it rolls it back.
    type Transaction<'c>: DerefMut<Target = Self::Connection> + Send;

    /// Savepoint: a unique name in SQL, or a length if the changes are a buffer.
    type Savepoint: Send + Sync;

    /// Opens a transaction on a connection from the store's pool.
    fn begin(&self) -> impl Future<Output = Result<Self::Transaction<'static>, StoreError>> + Send;

    /// Sets a savepoint in the transaction of this connection. Dropping the savepoint restores the transaction's
    /// earlier state.
    fn join<'c>(
        &self,
        connection: &'c mut Self::Connection,
    ) -> impl Future<Output = Result<Self::Transaction<'c>, StoreError>> + Send;

    /// Number of transactions that this store begins and claims in at the same time, 16 by default. The engine asks for no
    /// more of them at once, as with [`Store::claim_concurrency`]: further calls wait in the process, and not in the pool of
    /// connections, before the writes of calls that run. A transaction counts until it is claimed in, and not while its
    /// body runs.
    fn begin_concurrency(&self) -> usize {
        16
    }

    /// Returns true if this connection is in a transaction that its driver has begun and will end.
    fn is_in_transaction(connection: &Self::Connection) -> bool;

    /// Reads the record before a transaction is opened, for stores where opening one waits for others. `None` means:
    /// try to claim. That is the default.
    fn precheck(
        &self,
        _claim: &ClaimRequest,
    ) -> impl Future<Output = Result<Option<ClaimInTransaction>, StoreError>> + Send {
        std::future::ready(Ok(None))
    }

    /// [`Store::claim`] in a transaction, or [`Store::take_over`] if there is an observation. In a [joined](Self::join)
    /// transaction, there was no [pre-check](Self::precheck).
    fn claim_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> impl Future<Output = Result<ClaimInTransaction, StoreError>> + Send;

    /// [`Store::complete`] in a transaction.
    fn complete_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        outcome: &Outcome,
    ) -> impl Future<Output = Result<FencedWrite, StoreError>> + Send;

    /// [`ForgettingStore::complete_for`](crate::store::ForgettingStore::complete_for) in a transaction. The default, for a
    /// store that keeps payloads as long as records, is [`complete_in`](Self::complete_in).
    fn complete_for_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        outcome: &Outcome,
        _payload_for: Duration,
    ) -> impl Future<Output = Result<FencedWrite, StoreError>> + Send {
        self.complete_in(transaction, owner, outcome)
    }

    /// [`StepStore::save_step`](crate::store::StepStore::save_step) in a transaction, for a step that was not saved
    /// before. Returns [`FencedWrite::Fenced`] if it was. After this call the record remains the owner's until the
    /// transaction ends.
    fn save_step_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> impl Future<Output = Result<FencedWrite, StoreError>> + Send;

    /// Sets a savepoint in the transaction of this connection. It must not replace another savepoint, because an enclosing
    /// call may have set one in the same transaction.
    fn savepoint(
        &self,
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Self::Savepoint, StoreError>> + Send;

    /// Undoes the changes since this savepoint was set. The transaction stays open.
    fn rollback_to(
        &self,
        connection: &mut Self::Connection,
        savepoint: &Self::Savepoint,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Commits a transaction, or releases a savepoint. After an error it is unknown whether this took effect.
    fn commit(
        &self,
        transaction: Self::Transaction<'_>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Rolls back a transaction, or to a savepoint.
    fn rollback(
        &self,
        transaction: Self::Transaction<'_>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Answer to a claim in a transaction.
#[derive(Debug, Clone)]
pub enum ClaimInTransaction {
    /// The transaction owns the record.
    Granted(Granted),
    /// The transaction does not own the record. Contains the current record.
    Existing(Box<Record>),
    /// Another open transaction has locked the record. The outcome is unknown until that transaction ends.
    Locked {
        /// Fingerprint of the request for which the record was claimed, if that claim is committed.
        fingerprint: Option<Digest>,
    },
}

impl From<ClaimOutcome> for ClaimInTransaction {
    fn from(claim: ClaimOutcome) -> Self {
        match claim {
            ClaimOutcome::Granted(granted) => Self::Granted(granted),
            ClaimOutcome::Existing(record) => Self::Existing(record),
        }
    }
}

/// Source of a connection of this store: the connection itself, or a transaction on it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no connection that `tx` could join",
    label = "not a connection of the store's database",
    note = "an argument that `tx` names is the transaction to join: `&mut Transaction<'_, Postgres>`, or the `&mut PgConnection` that it lends, on a `PostgresStore`, likewise on the others",
    note = "for a transaction of the call's own give `tx` a name that is no argument's"
)]
pub trait Connects<S: TransactionalStore + ?Sized> {
    /// The connection.
    fn connection(&mut self) -> &mut S::Connection;
}
