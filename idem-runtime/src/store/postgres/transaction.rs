//! Claims in a transaction that stays open while a body runs, and purges in a transaction.
//!
//! In the standard form a first claim writes nothing: it holds the record by an advisory lock, which leased claims try,
//! and the transaction inserts the record with its outcome before it commits. Two versions of a row would cost a second
//! write and a quarter more of the log. The number of the transaction shows whether it is still the one that has the lock.

use std::future::{Ready, ready};
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Database, Postgres, SqlStr};
use sqlx_core::transaction::TransactionManager as _;

use super::settings::Settings;
use super::statements::{PostgresStatements, TRANSACTION_NUMBER};
use super::{
    BEGIN, BEGIN_ANY, ClaimRow, PostgresStore, error, existing, id_mismatch, read_claim_row,
    retry_conflicts,
};
use crate::error::StoreError;
use crate::record::{Observation, Outcome, Owner, Record, RecordState, Timestamp};
use crate::store::sql::{
    self, Backend, InTransaction, OpenTransaction, Query, Readable as _, Reservation, Returning,
    SharedStatements, Statement,
};
use crate::store::{ClaimInTransaction, ClaimRequest, FencedWrite, Purged, TransactionalStore};

sql::transactions!(lends PostgresStore, Postgres, PgConnection);

impl Backend for InTransaction<'_, PostgresStore, PgConnection> {
    type Row = PgRow;

    const RECORD_COLUMNS: usize = PostgresStore::RECORD_COLUMNS;

    async fn statements(&self) -> Result<&SharedStatements, StoreError> {
        Ok(&self.store.forms.in_transaction().shared)
    }

    fn record(row: &PgRow) -> Result<Record, StoreError> {
        PostgresStore::record(row)
    }

    async fn read(&self, query: Query<'_>) -> Result<Vec<PgRow>, StoreError> {
        let mut connection = self.connection.lock().await;
        let rows = self.store.protocol.rows(&mut connection, &query).await;
        rows.map_err(error)
    }

    async fn write(&self, query: Query<'_>) -> Result<u64, StoreError> {
        let mut connection = self.connection.lock().await;
        let affected = self.store.protocol.affected(&mut connection, &query).await;
        affected.map_err(error)
    }
}

impl PostgresStore {
    /// Begins the transaction of a manual change. The portable form asks for no isolation level, because some servers
    /// give another level than was asked for. There a conflict is reported, and the transaction runs again.
    pub(super) async fn begin_manual_change(
        &self,
    ) -> Result<OpenTransaction<'static, Postgres>, StoreError> {
        self.own_statements().await?;
        self.begin_by(BEGIN).await
    }

    async fn begin_by(
        &self,
        statement: &'static str,
    ) -> Result<OpenTransaction<'static, Postgres>, StoreError> {
        let begin = || (!self.forms.is_portable()).then(|| SqlStr::from_static(statement));
        retry_conflicts(|| OpenTransaction::begin(&self.pool, begin()))
            .await
            .map_err(error)
    }

    /// Number of records that a manual purge examines: nothing is read before its transaction begins.
    pub(super) fn due_for_purge(&self, limit: u32) -> Ready<Result<u32, StoreError>> {
        ready(Ok(limit))
    }

    /// Purges one batch in a transaction.
    pub(super) async fn purge_in(
        on: &InTransaction<'_, Self, PgConnection>,
        limit: &u32,
    ) -> Result<Purged, StoreError> {
        let PostgresStatements { purge, requeue, .. } = on.store.forms.in_transaction();
        sql::purge(on, purge, requeue, *limit, Timestamp::MAX).await
    }
}

impl Returning for InTransaction<'_, PostgresStore, PgConnection> {
    async fn write_returning(&self, query: Query<'_>) -> Result<Vec<PgRow>, StoreError> {
        self.read(query).await
    }
}

impl TransactionalStore for PostgresStore {
    sql::transactions!(in trait PostgresStore, Postgres, PgConnection, complete);

    fn begin_concurrency(&self) -> usize {
        sql::concurrency::of_pool(self.pool.options().get_max_connections())
    }

    async fn begin(&self) -> Result<OpenTransaction<'static, Postgres>, StoreError> {
        self.own_statements().await?;
        self.begin_by(BEGIN_ANY).await
    }

    async fn claim_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<ClaimInTransaction, StoreError> {
        let on = InTransaction::new(self, transaction);
        {
            // The pool may have no other connection.
            let mut connection = on.connection.lock().await;
            let session = &mut **connection;
            self.examine_settings(|| Settings::on(session))
                .await
                .map_err(error)?;
            self.forms.prepare_on(&mut connection).await?;
        }
        for _ in 0..sql::MAX_CONFLICTS {
            match on.try_claim_locked(observed, claim).await {
                Ok(Some((answer, number))) => {
                    if let (ClaimInTransaction::Granted(granted), Some(number)) = (&answer, number)
                    {
                        transaction.reserve(Reservation {
                            claim: claim.clone(),
                            fencing_token: granted.fencing_token,
                            claimed_at: granted.first_claimed_at,
                            number,
                        });
                    }
                    return Ok(answer);
                }
                Ok(None) => {}
                Err(error) if self.forms.is_portable() && is_lock_timeout(&error) => {
                    on.undo_claim().await?;
                    return Ok(ClaimInTransaction::Locked { fingerprint: None });
                }
                Err(error) => {
                    transaction.close_if_read_only(&error);
                    return Err(error);
                }
            }
        }
        Err(sql::too_many_conflicts())
    }
}

/// Completes the record of a claim in this transaction, or inserts the completed record.
async fn complete(
    on: &InTransaction<'_, PostgresStore, PgConnection>,
    owner: &Owner,
    outcome: &Outcome,
    payload_for: Option<Duration>,
) -> Result<FencedWrite, StoreError> {
    let reservation = on
        .reservations
        .iter()
        .find(|it| it.claim.claim_id == owner.claim_id && it.fencing_token == owner.fencing_token);
    if let Some(reservation) = reservation {
        let insert = &on.store.forms.in_transaction().insert_ended;
        let number = Some(reservation.number);
        let query = insertion(insert, reservation, number).outcome(outcome);
        let payload_for = payload_for.filter(|_| outcome.payload().is_some());
        let query = query.number(payload_for.map(sql::span));
        if on.write(query).await? > 0 {
            return Ok(FencedWrite::Applied);
        }
        if on.insert_if_committed(reservation).await? {
            return Ok(FencedWrite::Fenced);
        }
    }
    sql::complete_as(on, owner, outcome, payload_for).await
}

/// Binds parameters 1 to 14 of the statement `insert_ended`.
fn insertion<'q>(
    statement: &'q Statement,
    reservation: &'q Reservation,
    number: Option<i64>,
) -> Query<'q> {
    sql::claim_query(statement, &reservation.claim)
        .number(number)
        .number(reservation.fencing_token.number())
        .number(reservation.claimed_at.as_micros())
}

/// Returns true if the statement waited for another transaction as long as it may. Its own transaction is aborted.
fn is_lock_timeout(error: &StoreError) -> bool {
    let source = std::error::Error::source(error).and_then(|it| it.downcast_ref());
    matches!(source, Some(sqlx::Error::Database(answer)) if answer.code().as_deref() == Some("55P03"))
}

impl InTransaction<'_, PostgresStore, PgConnection> {
    /// Returns the answer, and the number of the transaction if it inserts the record when it ends. Returns `None` if the
    /// record changed between read and write.
    async fn try_claim_locked(
        &self,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<Option<(ClaimInTransaction, Option<i64>)>, StoreError> {
        let PostgresStatements {
            claim_locked,
            claim_again,
            take_over,
            ..
        } = self.store.forms.in_transaction();
        let mut query = self.store.forms.claim_query(claim_locked, claim);
        if !self.store.forms.is_portable() {
            query = query.number(i64::from(self.is_joined));
        }
        let rows = self.read(query).await?;
        let row = rows.first().ok_or_else(|| sql::corrupt("id"))?;
        let record = match read_claim_row(row, claim)? {
            ClaimRow::Created(granted) => {
                let number = row.number_or_null(TRANSACTION_NUMBER);
                let number = number.map_err(sql::unreadable)?;
                return Ok(Some((ClaimInTransaction::Granted(granted), number)));
            }
            ClaimRow::LostRace => return Ok(None),
            ClaimRow::Locked(record) => {
                let there = record.filter(|record| !record.is_expired());
                let fingerprint = there.map(|record| record.fingerprint);
                return Ok(Some((ClaimInTransaction::Locked { fingerprint }, None)));
            }
            ClaimRow::IdMismatch => return Err(id_mismatch(self, claim).await),
            ClaimRow::Record(record) => record,
        };
        let answer = if record.is_expired() || claim.may_claim(&record) {
            let query = sql::claim_query(claim_again, claim);
            self.with_limited_wait(sql::claim_returning(self, query))
                .await?
        } else if let Some(observed) = observed {
            self.with_limited_wait(sql::try_take_over(self, take_over, observed, claim))
                .await?
        } else {
            Some(existing(record))
        };
        Ok(answer.map(|answer| (answer.into(), None)))
    }

    /// Limits the wait for another transaction that has locked the row, unless the advisory lock shows that there is
    /// none. If the future is dropped, or the work fails, the setting is restored by rolling back.
    async fn with_limited_wait<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if !self.store.forms.is_portable() {
            return work.await;
        }
        let PostgresStatements {
            limit_wait,
            restore_wait,
            ..
        } = self.store.forms.in_transaction();
        let rows = self.read(limit_wait.query()).await?;
        let row = rows.first().ok_or_else(|| sql::corrupt("lock_timeout"))?;
        let before = row.text(0).map_err(sql::unreadable)?;
        let done = work.await?;
        self.read(restore_wait.query().text(before)).await?;
        Ok(done)
    }

    /// Inserts an interrupted record if the body has committed the transaction of the claim by a statement of its own, so that
    /// what was committed is not repeated. What the body did after the commit is rolled back.
    async fn insert_if_committed(&self, reservation: &Reservation) -> Result<bool, StoreError> {
        let PostgresStatements {
            was_committed,
            insert_ended,
            ..
        } = self.store.forms.in_transaction();
        let rows = self.read(was_committed.query().number(reservation.number));
        if rows.await?.is_empty() {
            return Ok(false);
        }
        {
            let mut connection = self.connection.lock().await;
            let undone = sqlx::raw_sql("ROLLBACK").execute(&mut **connection).await;
            undone.map_err(error)?;
        }
        let interrupted = insertion(insert_ended, reservation, None);
        let interrupted = interrupted.text(RecordState::Interrupted.as_str());
        let interrupted = interrupted.text(None::<&str>).bytes(None::<&[u8]>);
        let interrupted = interrupted.number(None);
        self.write(interrupted).await?;
        Ok(true)
    }

    /// Makes the transaction usable after an error of the claim, if it is the caller's: rolls back to the savepoint that
    /// was set when it was joined. A transaction of the call's own is rolled back by the engine.
    async fn undo_claim(&self) -> Result<(), StoreError> {
        if !self.is_joined {
            return Ok(());
        }
        let mut connection = self.connection.lock().await;
        let depth = <Postgres as Database>::TransactionManager::get_transaction_depth(&connection);
        let rollback = sqlx_core::transaction::rollback_ansi_transaction_sql(depth);
        let done = sqlx::raw_sql(rollback).execute(&mut **connection).await;
        done.map(drop).map_err(error)
    }
}
