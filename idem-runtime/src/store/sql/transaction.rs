//! Transactions, and the transitions of records on a connection that is in one.

use std::future::ready;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
#[cfg(feature = "sqlite")]
use std::sync::Arc;
#[cfg(feature = "sqlite")]
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::{Database, SqlStr};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::{Mutex, OwnedSemaphorePermit};

use super::cancel::{OnCancel, catch_panic};
use super::connections::{Connections, TakenConnection};
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::error::{StoreError, StoreErrorKind};
#[cfg(feature = "postgres")]
use crate::record::{FencingToken, Timestamp};
#[cfg(feature = "postgres")]
use crate::store::ClaimRequest;

/// Open transaction in a SQL database, or a savepoint in one. If it is dropped, it is rolled back before its connection
/// is used again.
pub struct OpenTransaction<'c, DB: Cancellation>(ConnectionSource<'c, DB>);

enum ConnectionSource<'c, DB: Cancellation> {
    Pool {
        open: RollbackOnDrop<TakenConnection<DB>, DB>,
        /// Permit of a writer, for databases in which writers take turns. Declared after the connection, so that it is
        /// dropped after it.
        turn: Option<OwnedSemaphorePermit>,
        #[cfg(feature = "sqlite")]
        seal: Option<Seal>,
        #[cfg(feature = "postgres")]
        reservations: Vec<Reservation>,
    },
    Caller(RollbackOnDrop<&'c mut DB::Connection, DB>),
}

/// Claim that holds its record without a row. See `store/postgres/transaction.rs`.
#[cfg(feature = "postgres")]
pub(in crate::store) struct Reservation {
    pub(in crate::store) claim: ClaimRequest,
    pub(in crate::store) fencing_token: FencingToken,
    pub(in crate::store) claimed_at: Timestamp,
    /// Number of the transaction.
    pub(in crate::store) number: i64,
}

/// Refuses commits on a connection of SQLite until the transaction ends. See `store/sqlite/session.rs`.
#[cfg(feature = "sqlite")]
#[derive(Debug)]
pub(in crate::store) struct Seal(Arc<AtomicBool>);

#[cfg(feature = "sqlite")]
impl Seal {
    /// Creates a seal, and the function that says whether a commit is allowed.
    pub(in crate::store) fn new() -> (Self, impl Fn() -> bool + Send + 'static) {
        let is_lifted = Arc::new(AtomicBool::new(false));
        let seal = Self(Arc::clone(&is_lifted));
        (seal, move || is_lifted.load(Ordering::SeqCst))
    }
}

#[cfg(feature = "sqlite")]
impl Drop for Seal {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Behaviour of a database and its driver around transactions: if a future is dropped half way, and if the database ends
/// a transaction by itself.
///
/// MySQL rolls a transaction back to resolve a deadlock, SQLite because the disk is full. The session goes on, and each
/// later statement would commit on its own. A *guard* therefore shows whether the transaction is still the one that was
/// begun: a savepoint, which ends with it. The nesting depth that sqlx counts is part of its name. It is 1 in a
/// transaction of the store's own.
pub trait Cancellation: Database {
    /// True if a statement that is dropped while it is prepared leaves the connection out of step with the server. Such
    /// a connection is closed, and the server rolls back.
    const GETS_OUT_OF_STEP: bool;
    /// True if dropping a savepoint while it is being set rolls back the whole transaction around it.
    const TEARS_SAVEPOINTS: bool;
    /// True if a transaction that is dropped while it ends must still be rolled back. Otherwise the driver would omit
    /// the next rollback.
    const AWAITS_ROLLBACK: bool;

    /// True if a connection on which a transaction cannot begin is closed. Other code may have left a transaction open on
    /// it that has failed.
    const CLOSES_IF_BEGIN_FAILS: bool;

    /// Statements that begin a transaction of the store's own and set its guard.
    fn begin(begin: Option<SqlStr>) -> Option<SqlStr> {
        begin
    }

    /// Checks that the database has not ended the transaction of the caller before its savepoint is set.
    fn before_join(
        _connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        ready(Ok(()))
    }

    /// Returns the error of the savepoint of a joined call, which could not be set. If the database has ended the
    /// transaction of the caller, makes the connection refuse to commit until the caller ends its transaction.
    fn after_failed_join(
        _connection: &mut Self::Connection,
        failed: sqlx::Error,
    ) -> impl Future<Output = sqlx::Error> + Send {
        ready(failed)
    }

    /// Sets the guard in a transaction of the caller.
    fn set_guard(
        _connection: &mut Self::Connection,
        _depth: usize,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        ready(Ok(()))
    }

    /// Checks the guard before the outcome is written. If the database has ended the transaction of a caller, makes the
    /// connection refuse to commit until the caller ends its transaction.
    ///
    /// # Errors
    /// The error `Ended`, if the transaction is not the one that was begun.
    fn prove(
        _connection: &mut Self::Connection,
        _depth: usize,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        ready(Ok(()))
    }

    /// Commits a transaction of the store's own.
    ///
    /// # Errors
    /// The error `Ended`, if [`prove`](Self::prove) did not check the guard, and the transaction is not the one that was
    /// begun.
    fn commit(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        Self::TransactionManager::commit(connection)
    }

    /// Rolls back a transaction of the store's own. Returns false if the database had ended it.
    fn roll_back(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        async {
            Self::TransactionManager::rollback(connection).await?;
            Ok(true)
        }
    }

    /// Rolls back to the savepoint of a joined call. Returns false if the database had ended the transaction. The
    /// connection then refuses to commit until the caller ends its transaction.
    fn roll_back_joined(
        connection: &mut Self::Connection,
        _depth: usize,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        Self::roll_back(connection)
    }

    /// Runs a statement that rolls back.
    fn roll_back_by(
        connection: &mut Self::Connection,
        statement: SqlStr,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Prepares the connection for a rollback that the driver sends later: it would fail if the database had ended the
    /// transaction.
    fn before_late_rollback(_connection: &mut Self::Connection) {}

    /// Releases the innermost savepoint and keeps its changes.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is still possible to roll back to the savepoint.
    fn release(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        Self::TransactionManager::commit(connection)
    }
}

/// Error of a transaction that is not the one that was begun.
#[derive(Debug, thiserror::Error)]
#[error("the transaction was ended before its time")]
pub(in crate::store) struct Ended;

/// Returns the error [`Ended`].
pub(in crate::store) fn ended() -> sqlx::Error {
    sqlx::Error::AnyDriverError(Box::new(Ended))
}

/// Name of the guard at this nesting depth.
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(in crate::store) fn guard(depth: usize) -> String {
    format!("idem_guard_{depth}")
}

pub(in crate::store) type Manager<DB> = <DB as Database>::TransactionManager;

impl<DB: Cancellation> OpenTransaction<'static, DB> {
    /// Begins a transaction on a connection of the pool.
    ///
    /// # Cancel safety
    /// If the future is dropped, the transaction is begun and rolled back, or not begun. sqlx counts a transaction only
    /// after the server's answer, so a `BEGIN` that is not awaited would leave a transaction open on a connection of
    /// the pool.
    pub(in crate::store) async fn begin(
        pool: &Connections<DB>,
        statement: Option<SqlStr>,
    ) -> Result<Self, sqlx::Error> {
        let begin = async {
            let mut connection = pool.acquire().await?;
            let statement = DB::begin(statement);
            pool.run_to_completion(async move {
                connection.cut_on_drop();
                let begun = catch_panic(Manager::<DB>::begin(&mut connection, statement)).await;
                connection.note(&begun);
                if let Err(error) = begun {
                    if DB::CLOSES_IF_BEGIN_FAILS {
                        connection.close_on_drop();
                    }
                    return Err(error);
                }
                Ok(Self(ConnectionSource::Pool {
                    open: RollbackOnDrop::new(connection),
                    turn: None,
                    #[cfg(feature = "sqlite")]
                    seal: None,
                    #[cfg(feature = "postgres")]
                    reservations: Vec::new(),
                }))
            })
            .await
        };
        pool.watch(begin).await
    }
}

impl<'c, DB: Cancellation> OpenTransaction<'c, DB> {
    /// Sets a savepoint on a connection that is in a transaction.
    ///
    /// # Cancel safety
    /// If the future is dropped, the transaction is unchanged. A savepoint may remain in it, which is harmless.
    pub(in crate::store) async fn join(
        connection: &'c mut DB::Connection,
    ) -> Result<Self, sqlx::Error> {
        DB::before_join(connection).await?;
        let begin = Manager::<DB>::begin(connection, None);
        let begun = OnCancel::new(begin, |begin| {
            // Dropping the savepoint would roll back the whole transaction. It is forgotten instead: sqlx then reads
            // the server's answer before it sends the next statement.
            if DB::TEARS_SAVEPOINTS {
                mem::forget(begin);
            }
        })
        .await;
        if let Err(failed) = begun {
            return Err(DB::after_failed_join(connection, failed).await);
        }
        let open = RollbackOnDrop::new(connection);
        DB::set_guard(open.connection, open.depth_at_begin).await?;
        Ok(Self(ConnectionSource::Caller(open)))
    }

    /// Checks that the transaction is still the one that was begun, before the outcome is written. Databases that prove it
    /// with the commit are not asked.
    ///
    /// # Errors
    /// [`Ended`] if it is not.
    pub(in crate::store) async fn prove(&mut self) -> Result<(), sqlx::Error> {
        let depth_at_begin = match &self.0 {
            ConnectionSource::Pool { open, .. } => open.depth_at_begin,
            ConnectionSource::Caller(open) => open.depth_at_begin,
        };
        // A savepoint that the body dropped half way may have rolled the transaction back.
        if Manager::<DB>::get_transaction_depth(&**self) < depth_at_begin {
            return Err(ended());
        }
        catch_panic(DB::prove(&mut **self, depth_at_begin)).await?;
        // SQLite's own thread rolls back a savepoint that the body has dropped, and has done so before it answered.
        match Manager::<DB>::get_transaction_depth(&**self) == depth_at_begin {
            true => Ok(()),
            false => Err(ended()),
        }
    }

    /// Makes the transaction hold its writer's permit until it ends.
    #[cfg(feature = "sqlite")]
    pub(in crate::store) fn with_turn(mut self, its: Option<OwnedSemaphorePermit>) -> Self {
        if let ConnectionSource::Pool { turn, .. } = &mut self.0 {
            *turn = its;
        }
        self
    }

    /// Makes the connection refuse other commits than that of the transaction.
    #[cfg(feature = "sqlite")]
    pub(in crate::store) fn with_seal(mut self, its: Seal) -> Self {
        if let ConnectionSource::Pool { seal, .. } = &mut self.0 {
            *seal = Some(its);
        }
        self
    }

    /// Closes the connection at the end of the transaction, instead of returning it to its pool, if its server takes no
    /// writes: a replica begins transactions as well. The caller's connection is left as it is.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(in crate::store) fn close_if_read_only(&mut self, refused: &StoreError) {
        if let (StoreErrorKind::ReadOnly, ConnectionSource::Pool { open, .. }) =
            (refused.kind(), &mut self.0)
        {
            open.connection.close_on_drop();
        }
    }

    /// Makes the transaction insert the record of this claim when it ends.
    #[cfg(feature = "postgres")]
    pub(in crate::store) fn reserve(&mut self, reservation: Reservation) {
        if let ConnectionSource::Pool { reservations, .. } = &mut self.0 {
            reservations.push(reservation);
        }
    }

    /// Returns true if the connection is the caller's.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(in crate::store) fn is_joined(&self) -> bool {
        matches!(self.0, ConnectionSource::Caller(_))
    }

    /// Commits the transaction, or releases the savepoint.
    pub(in crate::store) async fn commit(self) -> Result<(), sqlx::Error> {
        match self.0 {
            ConnectionSource::Pool {
                open,
                turn,
                #[cfg(feature = "sqlite")]
                seal,
                #[cfg(feature = "postgres")]
                    reservations: _,
            } => {
                let pool = open.connection.pool().clone();
                pool.run_to_completion(async move {
                    let _turn = turn;
                    #[cfg(feature = "sqlite")]
                    drop(seal);
                    catch_panic(open.commit()).await
                })
                .await
            }
            ConnectionSource::Caller(mut open) => {
                DB::release(open.connection).await?;
                open.is_ended = true;
                Ok(())
            }
        }
    }

    /// Rolls back the transaction, or to the savepoint.
    ///
    /// # Errors
    /// [`Ended`] if the database had ended the transaction. What remained of it is rolled back.
    pub(in crate::store) async fn rollback(self) -> Result<(), sqlx::Error> {
        let was_held = match self.0 {
            ConnectionSource::Pool {
                open,
                turn,
                #[cfg(feature = "sqlite")]
                seal,
                #[cfg(feature = "postgres")]
                    reservations: _,
            } => {
                let pool = open.connection.pool().clone();
                pool.run_to_completion(async move {
                    let _turn = turn;
                    #[cfg(feature = "sqlite")]
                    let _seal = seal;
                    catch_panic(open.rollback()).await
                })
                .await?
            }
            ConnectionSource::Caller(open) => open.rollback_joined().await?,
        };
        match was_held {
            true => Ok(()),
            false => Err(ended()),
        }
    }
}

/// Connection in a transaction, which is rolled back on drop.
struct RollbackOnDrop<C: ConnectionHandle<DB>, DB: Cancellation> {
    connection: C,
    /// Nesting depth that sqlx counts for the transaction. A savepoint of the body that was dropped half way may
    /// already have taken the connection out of this transaction, to a lower depth. Another rollback would then apply
    /// to the enclosing transaction.
    depth_at_begin: usize,
    is_ended: bool,
    /// True once the commit or rollback was sent.
    is_ending: bool,
    database: PhantomData<DB>,
}

/// Owned or borrowed connection.
trait ConnectionHandle<DB: Database>: DerefMut<Target = DB::Connection> {
    /// Schedules the connection to be closed instead of reused. Returns false if the connection is the caller's.
    fn close(&mut self) -> bool;

    /// Notes that the transaction is about to end. In the middle of that, the connection is of no use to others.
    fn begin_to_end(&mut self) {}

    /// Notes the answer to the end of the transaction.
    fn note<T>(&mut self, _answer: &Result<T, sqlx::Error>) {}
}

impl<DB: Database> ConnectionHandle<DB> for TakenConnection<DB> {
    fn close(&mut self) -> bool {
        self.close_unless_cut();
        true
    }

    fn begin_to_end(&mut self) {
        self.cut_on_drop();
    }

    fn note<T>(&mut self, answer: &Result<T, sqlx::Error>) {
        Self::note(self, answer);
    }
}

impl<DB: Database> ConnectionHandle<DB> for &mut DB::Connection {
    fn close(&mut self) -> bool {
        false
    }
}

impl<C: ConnectionHandle<DB>, DB: Cancellation> RollbackOnDrop<C, DB> {
    fn new(connection: C) -> Self {
        Self {
            depth_at_begin: Manager::<DB>::get_transaction_depth(&connection),
            connection,
            is_ended: false,
            is_ending: false,
            database: PhantomData,
        }
    }

    async fn commit(mut self) -> Result<(), sqlx::Error> {
        self.is_ending = true;
        self.connection.begin_to_end();
        let committed = DB::commit(&mut self.connection).await;
        self.connection.note(&committed);
        committed?;
        self.is_ended = true;
        Ok(())
    }

    async fn rollback(mut self) -> Result<bool, sqlx::Error> {
        self.is_ending = true;
        self.connection.begin_to_end();
        let rolled_back = DB::roll_back(&mut self.connection).await;
        self.connection.note(&rolled_back);
        let was_held = rolled_back?;
        self.is_ended = true;
        Ok(was_held)
    }

    async fn rollback_joined(mut self) -> Result<bool, sqlx::Error> {
        let depth = self.depth_at_begin;
        if Manager::<DB>::get_transaction_depth(&self.connection) < depth {
            // sqlx has sent the rollback to this savepoint, and would end the enclosing transaction next. The body may
            // have made changes since then.
            let rollback = sqlx_core::transaction::rollback_ansi_transaction_sql(depth);
            DB::roll_back_by(&mut self.connection, rollback).await?;
            self.is_ended = true;
            return Ok(true);
        }
        let was_held = DB::roll_back_joined(&mut self.connection, depth).await?;
        self.is_ended = true;
        Ok(was_held)
    }
}

impl<C: ConnectionHandle<DB>, DB: Cancellation> Drop for RollbackOnDrop<C, DB> {
    fn drop(&mut self) {
        if self.is_ended || DB::GETS_OUT_OF_STEP && self.connection.close() {
            return;
        }
        let depth = Manager::<DB>::get_transaction_depth(&self.connection);
        if DB::AWAITS_ROLLBACK || depth >= self.depth_at_begin {
            if self.depth_at_begin == 1 && !self.is_ending {
                DB::before_late_rollback(&mut self.connection);
            }
            Manager::<DB>::start_rollback(&mut self.connection);
        }
    }
}

impl<DB: Cancellation> Deref for OpenTransaction<'_, DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        match &self.0 {
            ConnectionSource::Pool { open, .. } => &open.connection,
            ConnectionSource::Caller(open) => open.connection,
        }
    }
}

impl<DB: Cancellation> DerefMut for OpenTransaction<'_, DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        match &mut self.0 {
            ConnectionSource::Pool { open, .. } => &mut open.connection,
            ConnectionSource::Caller(open) => open.connection,
        }
    }
}

impl<DB: Cancellation> std::fmt::Debug for OpenTransaction<'_, DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenTransaction").finish_non_exhaustive()
    }
}

/// Store whose statements run on one connection, in the open transaction there. No statement is retried: an error may
/// have undone the whole transaction.
pub(in crate::store) struct InTransaction<'c, S, C> {
    pub(in crate::store) store: &'c S,
    pub(in crate::store) connection: Mutex<&'c mut C>,
    /// True if the transaction is the caller's.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(in crate::store) is_joined: bool,
    #[cfg(feature = "postgres")]
    pub(in crate::store) reservations: &'c [Reservation],
}

impl<'c, S, C> InTransaction<'c, S, C> {
    pub(in crate::store) fn new<DB: Cancellation<Connection = C>>(
        store: &'c S,
        transaction: &'c mut OpenTransaction<'_, DB>,
    ) -> Self {
        #[cfg(any(feature = "postgres", feature = "mysql"))]
        let is_joined = transaction.is_joined();
        #[cfg(feature = "postgres")]
        let (connection, reservations) = match &mut transaction.0 {
            ConnectionSource::Pool {
                open, reservations, ..
            } => (&mut *open.connection, &reservations[..]),
            ConnectionSource::Caller(open) => (&mut *open.connection, &[] as &[Reservation]),
        };
        #[cfg(not(feature = "postgres"))]
        let connection = &mut **transaction;
        Self {
            store,
            connection: Mutex::new(connection),
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            is_joined,
            #[cfg(feature = "postgres")]
            reservations,
        }
    }
}

/// Implements the methods of [`TransactionalStore`](crate::store::TransactionalStore) that are alike in all dialects,
/// and the transitions of records on a connection.
macro_rules! transactions {
    (lends $store:ty, $database:ty, $connection:ty) => {
        #[diagnostic::do_not_recommend]
        impl crate::store::Connects<$store> for $connection {
            fn connection(&mut self) -> &mut Self {
                self
            }
        }

        #[diagnostic::do_not_recommend]
        impl crate::store::Connects<$store> for sqlx::Transaction<'_, $database> {
            fn connection(&mut self) -> &mut $connection {
                self
            }
        }
    };
    ($store:ty, $database:ty, $connection:ty, $row:ty) => {
        crate::store::sql::transactions!(lends $store, $database, $connection);

        impl crate::store::sql::Backend for crate::store::sql::InTransaction<'_, $store, $connection> {
            type Row = $row;

            const RECORD_COLUMNS: usize = <$store as crate::store::sql::Backend>::RECORD_COLUMNS;

            async fn statements(&self) -> Result<&crate::store::sql::SharedStatements, StoreError> {
                Ok(&self.store.statements.shared)
            }

            fn record(row: &$row) -> Result<crate::record::Record, StoreError> {
                <$store as crate::store::sql::Backend>::record(row)
            }

            async fn read(
                &self,
                query: crate::store::sql::Query<'_>,
            ) -> Result<Vec<$row>, StoreError> {
                let mut connection = self.connection.lock().await;
                let rows = query.build::<$database>().fetch_all(&mut **connection);
                rows.await.map_err(error)
            }

            async fn write(&self, query: crate::store::sql::Query<'_>) -> Result<u64, StoreError> {
                let mut connection = self.connection.lock().await;
                let done = query.build::<$database>().execute(&mut **connection);
                Ok(done.await.map_err(error)?.rows_affected())
            }
        }
    };
    (in trait $store:ty, $database:ty, $connection:ty, $complete:path) => {
        type Connection = $connection;
        type Transaction<'c> = crate::store::OpenTransaction<'c, $database>;
        type Savepoint = crate::store::Savepoint;

        async fn join<'c>(
            &self,
            connection: &'c mut $connection,
        ) -> Result<Self::Transaction<'c>, StoreError> {
            let joined = crate::store::OpenTransaction::join(connection).await;
            joined.map_err(error)
        }

        fn is_in_transaction(connection: &$connection) -> bool {
            sqlx::Connection::is_in_transaction(connection)
        }

        async fn complete_in(
            &self,
            transaction: &mut Self::Transaction<'_>,
            owner: &Owner,
            outcome: &Outcome,
        ) -> Result<FencedWrite, StoreError> {
            transaction.prove().await.map_err(error)?;
            let on = crate::store::sql::InTransaction::new(self, transaction);
            $complete(&on, owner, outcome, None).await
        }

        async fn complete_for_in(
            &self,
            transaction: &mut Self::Transaction<'_>,
            owner: &Owner,
            outcome: &Outcome,
            payload_for: std::time::Duration,
        ) -> Result<FencedWrite, StoreError> {
            transaction.prove().await.map_err(error)?;
            let on = crate::store::sql::InTransaction::new(self, transaction);
            $complete(&on, owner, outcome, Some(payload_for)).await
        }

        async fn save_step_in(
            &self,
            transaction: &mut Self::Transaction<'_>,
            owner: &Owner,
            name: &str,
            payload: &crate::record::Payload,
        ) -> Result<FencedWrite, StoreError> {
            transaction.prove().await.map_err(error)?;
            let on = crate::store::sql::InTransaction::new(self, transaction);
            crate::store::sql::save_new_step(&on, owner, name, payload).await
        }

        async fn savepoint(
            &self,
            connection: &mut $connection,
        ) -> Result<Self::Savepoint, StoreError> {
            let savepoint = crate::store::Savepoint::unique();
            let statement = format!("SAVEPOINT {}", savepoint.0);
            let done = sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(connection);
            done.await.map(|_| savepoint).map_err(error)
        }

        async fn rollback_to(
            &self,
            connection: &mut $connection,
            savepoint: &Self::Savepoint,
        ) -> Result<(), StoreError> {
            let statement = format!("ROLLBACK TO SAVEPOINT {}", savepoint.0);
            let done = sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(connection);
            done.await.map(drop).map_err(error)
        }

        async fn commit(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
            transaction.commit().await.map_err(error)
        }

        async fn rollback(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
            transaction.rollback().await.map_err(error)
        }
    };
}
pub(in crate::store) use transactions;
