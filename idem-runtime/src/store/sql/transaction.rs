//! Transactions, with the steps of records on a connection that is in one.

use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::{Database, Transaction};
use tokio::sync::{Mutex, OwnedSemaphorePermit};

use crate::store::Connects;

/// A transaction that is open in a SQL database, or a savepoint in one. Dropped, it is rolled back before its connection
/// is used again.
pub struct OpenTransaction<'c, DB: Database> {
    pub(in crate::store) transaction: Transaction<'c, DB>,
    /// The turn of a writer, where writers take turns. Behind the transaction, so that it is given up after it.
    pub(in crate::store) _turn: Option<OwnedSemaphorePermit>,
}

impl<DB: Database> Deref for OpenTransaction<'_, DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        &self.transaction
    }
}

impl<DB: Database> DerefMut for OpenTransaction<'_, DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        &mut self.transaction
    }
}

impl<DB: Database> std::fmt::Debug for OpenTransaction<'_, DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenTransaction").finish_non_exhaustive()
    }
}

impl<C, DB: Database<Connection = C>> Connects<C> for Transaction<'_, DB> {
    fn connection(&mut self) -> &mut C {
        self
    }
}

impl<C, DB: Database<Connection = C>> Connects<C> for PoolConnection<DB> {
    fn connection(&mut self) -> &mut C {
        self
    }
}

/// A store on one connection, in whose transaction its steps are taken. None of them is tried again: an error may have
/// undone the whole transaction.
pub(in crate::store) struct On<'c, S, C> {
    pub(in crate::store) store: &'c S,
    pub(in crate::store) connection: Mutex<&'c mut C>,
}

impl<'c, S, C> On<'c, S, C> {
    pub(in crate::store) fn new(store: &'c S, connection: &'c mut C) -> Self {
        Self {
            store,
            connection: Mutex::new(connection),
        }
    }
}

/// The parts of [`TransactionalStore`](crate::store::TransactionalStore) that are one in all dialects, and the steps of
/// records on a connection.
macro_rules! transactions {
    ($store:ty, $database:ty, $connection:ty, $row:ty) => {
        impl crate::store::Connects<Self> for $connection {
            fn connection(&mut self) -> &mut Self {
                self
            }
        }

        impl crate::store::sql::Backend for crate::store::sql::On<'_, $store, $connection> {
            type Row = $row;

            fn statements(&self) -> &crate::store::sql::Statements {
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
            let transaction = sqlx::Connection::begin(connection).await.map_err(error)?;
            Ok(crate::store::OpenTransaction {
                transaction,
                _turn: None,
            })
        }

        fn is_in_transaction(connection: &$connection) -> bool {
            sqlx::Connection::is_in_transaction(connection)
        }

        async fn complete_in(
            &self,
            connection: &mut $connection,
            holder: &Holder,
            ending: &Ending,
        ) -> Result<Fenced, StoreError> {
            let on = crate::store::sql::On::new(self, connection);
            crate::store::sql::complete(&on, holder, ending).await
        }

        async fn save_step_in(
            &self,
            connection: &mut $connection,
            holder: &Holder,
            name: &str,
            payload: &crate::record::Payload,
        ) -> Result<Fenced, StoreError> {
            let on = crate::store::sql::On::new(self, connection);
            let steps = &self.statements.steps;
            crate::store::sql::save_new_step(&on, steps, holder, name, payload).await
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
            let crate::store::OpenTransaction { transaction, _turn } = transaction;
            transaction.commit().await.map_err(error)
        }

        async fn rollback(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
            let crate::store::OpenTransaction { transaction, _turn } = transaction;
            transaction.rollback().await.map_err(error)
        }
    };
}
pub(in crate::store) use transactions;
