//! What a store can do besides whose records live in the database of the application: claim and complete in one
//! transaction with what a body changes there.

use std::ops::DerefMut;

use crate::error::StoreError;
use crate::record::{Digest, Observation, Outcome, Owner, Payload, Record};
use crate::store::{ClaimOutcome, ClaimRequest, FencedWrite, Granted, Store};

/// A store whose records can be written in one transaction with the application's own.
///
/// # Contract
///
/// A transaction writes nothing that others see before it is committed, and nothing at all where it is rolled back,
/// dropped or cut off. [`claim_in`](Self::claim_in) and [`complete_in`](Self::complete_in) do in it what
/// [`Store::claim`], [`Store::take_over`] and [`Store::complete`] do at once. Between the claim and the end of the
/// transaction nobody else is granted the record; whoever tries learns so without waiting for that end, as far as the
/// database lets it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no transactions to run the body in",
    label = "`tx` needs a handle on a SQL store",
    note = "`tx` works with `Idem<SqliteStore>`, `Idem<PostgresStore>` and `Idem<MySqlStore>`; `Idem` alone hides which store it is on, so name it",
    note = "on any other store leave out `tx`, and choose with `on_crash` what a crash means"
)]
pub trait TransactionalStore: Store {
    /// What the body works with: a connection that is in the transaction.
    type Connection: Connects<Self::Connection> + Send + 'static;

    /// A transaction that is open, or a savepoint in one. Dropped, it is rolled back.
    type Transaction<'c>: DerefMut<Target = Self::Connection> + Send;

    /// Opens a transaction on a connection of the store's own.
    fn begin(&self) -> impl Future<Output = Result<Self::Transaction<'static>, StoreError>> + Send;

    /// Sets a savepoint in the transaction that this connection is in. Dropped, it leaves that transaction as it was.
    fn join<'c>(
        &self,
        connection: &'c mut Self::Connection,
    ) -> impl Future<Output = Result<Self::Transaction<'c>, StoreError>> + Send;

    /// Whether this connection is in a transaction that its driver has begun, and will end.
    fn is_in_transaction(connection: &Self::Connection) -> bool;

    /// Reads what there is before a transaction is opened, for a store where opening one waits for others. `None`:
    /// claim.
    fn look(
        &self,
        claim: &ClaimRequest,
    ) -> impl Future<Output = Result<Option<ClaimInTransaction>, StoreError>> + Send;

    /// [`Store::claim`] in a transaction, or [`Store::take_over`] of what was observed. In one that was
    /// [joined](Self::join), nobody has [looked](Self::look) before.
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

    /// [`StepStore::save_step`](crate::store::StepStore::save_step) in a transaction, of a step that was not saved
    /// before; [`FencedWrite::Fenced`] where it was. From here until the transaction ends the record stays the owner's.
    fn save_step_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> impl Future<Output = Result<FencedWrite, StoreError>> + Send;

    /// Sets a savepoint of this name, a plain identifier.
    fn savepoint(
        &self,
        connection: &mut Self::Connection,
        name: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes back what was done since the savepoint of this name.
    fn rollback_to(
        &self,
        connection: &mut Self::Connection,
        name: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Commits a transaction, or keeps what was done since a savepoint. An error leaves it unknown whether it did.
    fn commit(
        &self,
        transaction: Self::Transaction<'_>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Rolls a transaction back, or to a savepoint.
    fn rollback(
        &self,
        transaction: Self::Transaction<'_>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The answer to a claim in a transaction.
#[derive(Debug, Clone)]
pub enum ClaimInTransaction {
    /// The transaction owns the record.
    Granted(Granted),
    /// It does not; this is what is there.
    Existing(Box<Record>),
    /// Another transaction is at work on it, whose outcome is not known before it ends.
    Locked {
        /// The request that the record was claimed for, where that is committed.
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

/// Lends a connection of this kind: the connection itself, or a transaction on it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no connection that `tx` could join",
    label = "not a connection of the store's database",
    note = "an argument that `tx` names is the transaction to join: `&mut Transaction<'_, Postgres>`, or the `&mut PgConnection` that it lends, on a `PostgresStore`, likewise on the others",
    note = "for a transaction of the call's own give `tx` a name that is no argument's"
)]
pub trait Connects<C> {
    /// The connection.
    fn connection(&mut self) -> &mut C;
}
