//! Transactions, and the transitions of records on a connection that is in one.

use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool, SqlStr};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::{Mutex, OwnedSemaphorePermit};

use super::cancel::{OnCancel, catch_panic, run_to_completion};

/// Open transaction in a SQL database, or a savepoint in one. If it is dropped, it is rolled back before its connection
/// is used again.
pub struct OpenTransaction<'c, DB: Cancellation>(ConnectionSource<'c, DB>);

enum ConnectionSource<'c, DB: Cancellation> {
    Pool {
        open: RollbackOnDrop<PoolConnection<DB>, DB>,
        /// Permit of a writer, for databases in which writers take turns. Declared after the connection, so that it is
        /// dropped after it.
        turn: Option<OwnedSemaphorePermit>,
    },
    Caller(RollbackOnDrop<&'c mut DB::Connection, DB>),
}

/// Effects on a connection when its user drops a future half way, by driver.
pub trait Cancellation: Database {
    /// True if a statement that is dropped while it is prepared leaves the connection out of step with the server. Such
    /// a connection is closed, and the server rolls back.
    const GETS_OUT_OF_STEP: bool;
    /// True if dropping a savepoint while it is being set rolls back the whole transaction around it.
    const TEARS_SAVEPOINTS: bool;
    /// True if a transaction that is dropped while it ends must still be rolled back. Otherwise the driver would omit
    /// the next rollback.
    const AWAITS_ROLLBACK: bool;

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

#[cfg(feature = "sqlite")]
impl Cancellation for sqlx::Sqlite {
    const GETS_OUT_OF_STEP: bool = false;
    const TEARS_SAVEPOINTS: bool = false;
    const AWAITS_ROLLBACK: bool = true;
}

#[cfg(feature = "postgres")]
impl Cancellation for sqlx::Postgres {
    const GETS_OUT_OF_STEP: bool = false;
    const TEARS_SAVEPOINTS: bool = true;
    const AWAITS_ROLLBACK: bool = false;

    /// Rolling back to a released savepoint would be an error and abort the caller's transaction. The savepoint is
    /// therefore set again at the current position. Rolling back to it then changes nothing.
    async fn release(connection: &mut Self::Connection) -> Result<(), sqlx::Error> {
        let savepoint = innermost_savepoint::<Self>(connection);
        let release_and_set = sqlx::AssertSqlSafe(format!("RELEASE {0}; {0}", savepoint.as_str()));
        sqlx::raw_sql(release_and_set)
            .execute(&mut *connection)
            .await?;
        Manager::<Self>::start_rollback(connection);
        Ok(())
    }
}

#[cfg(feature = "mysql")]
impl Cancellation for sqlx::MySql {
    const GETS_OUT_OF_STEP: bool = true;
    const TEARS_SAVEPOINTS: bool = false;
    const AWAITS_ROLLBACK: bool = false;

    /// After a rollback to a released savepoint, the error would be the answer to the caller's next statement. The
    /// savepoint is therefore set again at the current position. Rolling back to it then changes nothing.
    async fn release(connection: &mut Self::Connection) -> Result<(), sqlx::Error> {
        let savepoint = innermost_savepoint::<Self>(connection);
        sqlx::raw_sql(savepoint).execute(&mut *connection).await?;
        Manager::<Self>::start_rollback(connection);
        Ok(())
    }
}

/// Statement that sets the innermost savepoint of a connection again.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn innermost_savepoint<DB: Database>(connection: &DB::Connection) -> SqlStr {
    let depth = Manager::<DB>::get_transaction_depth(connection);
    sqlx_core::transaction::begin_ansi_transaction_sql(depth.saturating_sub(1))
}

type Manager<DB> = <DB as Database>::TransactionManager;

impl<DB: Cancellation> OpenTransaction<'static, DB> {
    /// Begins a transaction on a connection of the pool.
    ///
    /// # Cancel safety
    /// If the future is dropped, the transaction is begun and rolled back, or not begun. sqlx counts a transaction only
    /// after the server's answer, so a `BEGIN` that is not awaited would leave a transaction open on a connection of
    /// the pool.
    pub(in crate::store) async fn begin(
        pool: &Pool<DB>,
        statement: Option<SqlStr>,
    ) -> Result<Self, sqlx::Error> {
        let mut connection = pool.acquire().await?;
        run_to_completion(async move {
            let begun = catch_panic(Manager::<DB>::begin(&mut connection, statement)).await;
            if let Err(error) = begun {
                if DB::GETS_OUT_OF_STEP {
                    connection.close_on_drop();
                }
                return Err(error);
            }
            Ok(Self(ConnectionSource::Pool {
                open: RollbackOnDrop::new(connection),
                turn: None,
            }))
        })
        .await
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
        let begin = Manager::<DB>::begin(connection, None);
        OnCancel::new(begin, |begin| {
            // Dropping the savepoint would roll back the whole transaction. It is forgotten instead: sqlx then reads
            // the server's answer before it sends the next statement.
            if DB::TEARS_SAVEPOINTS {
                mem::forget(begin);
            }
        })
        .await?;
        Ok(Self(ConnectionSource::Caller(RollbackOnDrop::new(
            connection,
        ))))
    }

    /// Makes the transaction hold its writer's permit until it ends.
    #[cfg(feature = "sqlite")]
    pub(in crate::store) fn with_turn(mut self, its: Option<OwnedSemaphorePermit>) -> Self {
        if let ConnectionSource::Pool { turn, .. } = &mut self.0 {
            *turn = its;
        }
        self
    }

    /// Closes the connection at the end of the transaction, instead of returning it to its pool. The caller's connection
    /// is left as it is.
    #[cfg(feature = "postgres")]
    pub(in crate::store) fn close_on_drop(&mut self) {
        if let ConnectionSource::Pool { open, .. } = &mut self.0 {
            open.connection.close_on_drop();
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
            ConnectionSource::Pool { open, turn } => {
                run_to_completion(async move {
                    let _turn = turn;
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
    pub(in crate::store) async fn rollback(self) -> Result<(), sqlx::Error> {
        match self.0 {
            ConnectionSource::Pool { open, turn } => {
                run_to_completion(async move {
                    let _turn = turn;
                    catch_panic(open.rollback()).await
                })
                .await
            }
            ConnectionSource::Caller(open) => open.rollback().await,
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
    database: PhantomData<DB>,
}

/// Owned or borrowed connection.
trait ConnectionHandle<DB: Database>: DerefMut<Target = DB::Connection> {
    /// Schedules the connection to be closed instead of reused. Returns false if the connection is the caller's.
    fn close(&mut self) -> bool;
}

impl<DB: Database> ConnectionHandle<DB> for PoolConnection<DB> {
    fn close(&mut self) -> bool {
        self.close_on_drop();
        true
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
            database: PhantomData,
        }
    }

    async fn commit(mut self) -> Result<(), sqlx::Error> {
        Manager::<DB>::commit(&mut self.connection).await?;
        self.is_ended = true;
        Ok(())
    }

    async fn rollback(mut self) -> Result<(), sqlx::Error> {
        Manager::<DB>::rollback(&mut self.connection).await?;
        self.is_ended = true;
        Ok(())
    }
}

impl<C: ConnectionHandle<DB>, DB: Cancellation> Drop for RollbackOnDrop<C, DB> {
    fn drop(&mut self) {
        if self.is_ended || DB::GETS_OUT_OF_STEP && self.connection.close() {
            return;
        }
        let depth = Manager::<DB>::get_transaction_depth(&self.connection);
        if DB::AWAITS_ROLLBACK || depth >= self.depth_at_begin {
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
}

impl<'c, S, C> InTransaction<'c, S, C> {
    pub(in crate::store) fn new<DB: Cancellation<Connection = C>>(
        store: &'c S,
        transaction: &'c mut OpenTransaction<'_, DB>,
    ) -> Self {
        Self {
            store,
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            is_joined: transaction.is_joined(),
            connection: Mutex::new(&mut **transaction),
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

            fn statements(&self) -> &crate::store::sql::SharedStatements {
                &self.store.statements.shared
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
    (in trait $store:ty, $database:ty, $connection:ty) => {
        type Connection = $connection;
        type Transaction<'c> = crate::store::OpenTransaction<'c, $database>;

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
            let on = crate::store::sql::InTransaction::new(self, transaction);
            crate::store::sql::complete(&on, owner, outcome).await
        }

        async fn save_step_in(
            &self,
            transaction: &mut Self::Transaction<'_>,
            owner: &Owner,
            name: &str,
            payload: &crate::record::Payload,
        ) -> Result<FencedWrite, StoreError> {
            let on = crate::store::sql::InTransaction::new(self, transaction);
            crate::store::sql::save_new_step(&on, owner, name, payload).await
        }

        async fn savepoint(
            &self,
            connection: &mut $connection,
            name: &str,
        ) -> Result<(), StoreError> {
            let statement = format!("SAVEPOINT {name}");
            let done = sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(connection);
            done.await.map(drop).map_err(error)
        }

        async fn rollback_to(
            &self,
            connection: &mut $connection,
            name: &str,
        ) -> Result<(), StoreError> {
            let statement = format!("ROLLBACK TO SAVEPOINT {name}");
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
