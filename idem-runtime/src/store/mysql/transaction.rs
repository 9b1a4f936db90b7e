//! Claims in a transaction that stays open while a body runs.

use std::time::Duration;

use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{MySql, SqlSafeStr};

use super::claiming::{Executor, InsertResult, claim_existing, insert, try_take_over};
use super::connections::Executed;
use super::errors::{LOCKED, error, number, retry_undone};
use super::settings::Settings;
use super::statements::MySqlStatements;
use super::{MySqlStore, connections, galera};
use crate::error::StoreError;
use crate::record::{Observation, Outcome, Owner, Record};
use crate::store::sql::{self, Backend, InTransaction, OpenTransaction, Query};
use crate::store::{ClaimInTransaction, ClaimRequest, FencedWrite, TransactionalStore};

sql::transactions!(lends MySqlStore, MySql, MySqlConnection);

impl Backend for InTransaction<'_, MySqlStore, MySqlConnection> {
    type Row = MySqlRow;

    const RECORD_COLUMNS: usize = MySqlStore::RECORD_COLUMNS;

    async fn statements(&self) -> Result<&sql::SharedStatements, StoreError> {
        Ok(&self.own_statements().shared)
    }

    fn record(row: &MySqlRow) -> Result<Record, StoreError> {
        MySqlStore::record(row)
    }

    async fn read(&self, query: Query<'_>) -> Result<Vec<MySqlRow>, StoreError> {
        Ok(self.execute(&query).await.map_err(error)?.rows)
    }

    async fn write(&self, query: Query<'_>) -> Result<u64, StoreError> {
        let executed = self.execute(&query).await.map_err(error)?;
        Ok(executed.done.rows_affected())
    }

    /// If other servers accept writes, also changes the record, so that the commit conflicts with a takeover on one of
    /// them. A step that was there counts as no row: the transaction must not repeat its changes.
    async fn write_as_owner(&self, owner: &Owner, query: Query<'_>) -> Result<u64, StoreError> {
        if self.store.statements.has_other_writers()
            && self
                .write(self.own_statements().touch.query().owner(owner))
                .await?
                == 0
        {
            return Ok(0);
        }
        let done = self.execute(&query).await.map_err(error)?.done;
        Ok(match done.last_insert_id() {
            0 => done.rows_affected(),
            _ => 0,
        })
    }
}

impl Executor for InTransaction<'_, MySqlStore, MySqlConnection> {
    fn store(&self) -> &MySqlStore {
        self.store
    }

    fn own_statements(&self) -> &MySqlStatements {
        self.store.statements.in_transaction()
    }

    async fn execute(&self, query: &Query<'_>) -> Result<Executed, sqlx::Error> {
        let mut connection = self.connection.lock().await;
        match self.is_joined {
            true => connections::run_borrowed(&mut connection, query).await,
            false => connections::run_on(&mut connection, query).await,
        }
    }
}

/// Time limit of the pre-check of a call that joins a transaction. After it, the call claims without a pre-check, and
/// may wait for others.
const PRECHECK_TIMEOUT: Duration = Duration::from_millis(200);

/// Result of trying to lock a row.
enum LockAttempt {
    /// The lock is acquired. Contains the record, if it exists.
    Acquired(Option<Box<Record>>),
    Locked,
}

impl LockAttempt {
    fn of(executed: Result<Executed, sqlx::Error>) -> Result<Self, StoreError> {
        match executed {
            Ok(Executed { rows, .. }) => {
                let record = rows.first().map(sql::text_row::record).transpose()?;
                Ok(Self::Acquired(record.map(Box::new)))
            }
            Err(error) if number(&error).is_some_and(|it| LOCKED.contains(&it)) => Ok(Self::Locked),
            Err(source) => Err(error(source)),
        }
    }
}

impl TransactionalStore for MySqlStore {
    sql::transactions!(in trait MySqlStore, MySql, MySqlConnection, sql::complete_as);

    fn begin_concurrency(&self) -> usize {
        sql::concurrency::of_pool(self.pool.options().get_max_connections())
    }

    async fn begin(&self) -> Result<OpenTransaction<'static, MySql>, StoreError> {
        self.examine_settings(|| Settings::of(&self.pool))
            .await
            .map_err(error)?;
        // A node of Galera would otherwise not yet know a record that another node has claimed.
        let begin = self.statements.is_galera().then_some(galera::BEGIN);
        let begin = || OpenTransaction::begin(&self.pool, begin.map(SqlSafeStr::into_sql_str));
        retry_undone(begin).await.map_err(error)
    }

    /// A transaction that works on the record holds its row lock, and an insert or update would wait for it. The lock
    /// is therefore tried first, by a statement that commits on its own. The commit releases the lock immediately. If
    /// there is no row, it also releases the lock on the gap, for which transactions with other keys would wait. If two
    /// callers arrive at the same moment, before either has inserted, the second waits for the first.
    async fn precheck(
        &self,
        claim: &ClaimRequest,
    ) -> Result<Option<ClaimInTransaction>, StoreError> {
        let query = self.statements.lock.query();
        let query = query.bytes(&claim.id.as_bytes()[..]);
        match LockAttempt::of(self.execute(&query).await)? {
            LockAttempt::Acquired(record) => Ok(record.filter(|it| has_ended(it)).map(existing)),
            // Concurrent pre-checks conflict here as well.
            LockAttempt::Locked => match sql::read_current(self, &claim.id)
                .await?
                .filter(|it| !it.is_expired())
            {
                Some(record) if has_ended(&record) => Ok(Some(existing(record.into()))),
                record => Ok(Some(ClaimInTransaction::Locked {
                    fingerprint: record.map(|record| record.fingerprint),
                })),
            },
        }
    }

    async fn claim_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<ClaimInTransaction, StoreError> {
        let answer = InTransaction::new(self, transaction)
            .claim(observed, claim)
            .await;
        answer.inspect_err(|error| transaction.close_if_read_only(error))
    }
}

impl InTransaction<'_, MySqlStore, MySqlConnection> {
    async fn claim(
        &self,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<ClaimInTransaction, StoreError> {
        // This transaction has already locked a record that was observed: a pre-check on another connection would find
        // that lock.
        if self.is_joined {
            let mut connection = self.connection.lock().await;
            let session = &mut **connection;
            self.store
                .examine_settings(|| Settings::on(session))
                .await
                .map_err(error)?;
        }
        if self.is_joined && observed.is_none() {
            // Other connections cannot see what the caller's transaction has done.
            if let Some(record) = sql::read_current(self, &claim.id).await?.filter(has_ended) {
                return Ok(existing(record.into()));
            }
            // The pre-check takes a connection, and all of the pool may be in transactions that wait for one more.
            if let Ok(outcome) =
                tokio::time::timeout(PRECHECK_TIMEOUT, self.store.precheck(claim)).await
                && let Some(outcome) = outcome?
            {
                return Ok(outcome);
            }
        }
        // The insert comes before any read: a locking read of an absent row would lock the gap.
        let mut may_be_new = observed.is_none();
        for _ in 0..sql::MAX_CONFLICTS {
            if may_be_new && let InsertResult::Created(claimed) = insert(self, claim).await? {
                return Ok(claimed.into());
            }
            match self.try_claim_existing(observed, claim).await? {
                Some(outcome) => return Ok(outcome),
                None => may_be_new = true,
            }
        }
        Err(sql::too_many_conflicts())
    }

    /// Returns `None` if there is no record.
    async fn try_claim_existing(
        &self,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<Option<ClaimInTransaction>, StoreError> {
        // A locking read sees the current row, even if the transaction has an older snapshot.
        let query = self.own_statements().lock.query();
        let query = query.bytes(&claim.id.as_bytes()[..]);
        let record = match LockAttempt::of(self.execute(&query).await)? {
            LockAttempt::Acquired(None) => return Ok(None),
            LockAttempt::Acquired(Some(record)) => record,
            LockAttempt::Locked => {
                return Ok(Some(ClaimInTransaction::Locked { fingerprint: None }));
            }
        };
        let outcome = if record.is_expired() || claim.may_claim(&record) {
            claim_existing(self, claim).await?
        } else if let Some(observed) = observed {
            try_take_over(self, observed, claim).await?
        } else {
            return Ok(Some(existing(record)));
        };
        Ok(outcome.map(Into::into))
    }
}

fn has_ended(record: &Record) -> bool {
    record.state.is_ended() && !record.is_expired()
}

fn existing(record: Box<Record>) -> ClaimInTransaction {
    ClaimInTransaction::Existing(record)
}
