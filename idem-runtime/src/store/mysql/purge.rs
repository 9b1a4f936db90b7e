//! Purge of due records, in batches.
//!
//! MySQL has no statement that deletes rows and returns them. A purge therefore reads what the due records need, raises
//! the fencing floor above those that it is about to delete, and runs statements for each kind of change. They select
//! due records themselves, skip those that others have locked, and check each one. Records are first locked, so that they
//! can be counted, and then deleted with their steps and recovery inputs.
//!
//! Purges of many processes would all select the same records. Skipping the locks of so many others takes longer than
//! the deletion, so purges take turns: each one reads with a lock that it does not wait for, and pauses while another
//! one changes the records.

use std::time::Duration;

use sqlx::MySql;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use tokio::time::sleep;

use super::claiming::Executor;
use super::errors::{LOCKED, error, number};
use super::{MySqlStore, fencing_floor};
use crate::error::StoreError;
use crate::random;
use crate::record::{FencingToken, RecordState, Timestamp};
use crate::store::sql::{
    self, Backend as _, InTransaction, OpenTransaction, Readable as _, Statement,
};
use crate::store::{Purged, TransactionalStore as _};

/// Maximum number of records that one statement of a purge changes, to keep its locks short.
const BATCH: u32 = 512;
/// Longest time in which a purge waits for its turn. After that it takes the records that nobody has locked: a
/// transaction may hold one of the due records for long.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn purge(
    store: &MySqlStore,
    limit: u32,
    as_of: Timestamp,
) -> Result<Purged, StoreError> {
    let mut all = Purged::default();
    let mut rest = limit;
    let mut patience = PATIENCE;
    loop {
        let batch = rest.min(BATCH);
        let due = Due::read(store, batch, as_of, &mut patience).await?;
        let done = due.purge_alone(store).await?;
        all.add(&done);
        rest -= batch;
        if rest == 0 || !done.more {
            return Ok(all);
        }
    }
}

impl MySqlStore {
    /// Begins the transaction of a manual change.
    pub(super) async fn begin_manual_change(
        &self,
    ) -> Result<OpenTransaction<'static, MySql>, StoreError> {
        self.begin().await
    }

    /// Reads the records of a manual purge, before its transaction begins: it would lock the fencing floor, for which
    /// claims would wait.
    pub(super) async fn due_for_purge(&self, limit: u32) -> Result<Due, StoreError> {
        Due::read(
            self,
            limit.min(BATCH),
            Timestamp::MAX,
            &mut PATIENCE.clone(),
        )
        .await
    }

    /// Purges one batch in a transaction.
    pub(super) async fn purge_in(
        on: &InTransaction<'_, Self, MySqlConnection>,
        due: &Due,
    ) -> Result<Purged, StoreError> {
        due.purge(on).await
    }
}

/// Changes that the due records needed when they were read. The fencing floor is above all that may be deleted.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Number of records that were read at most.
    limit: u32,
    /// Latest time as of which they are due.
    as_of: i64,
    deletes: bool,
    interrupt: bool,
    forget: bool,
    requeue: bool,
    /// Highest fencing token of the records to delete.
    highest: i64,
    more: bool,
}

impl Due {
    /// Waits for the turn of this purge, and takes the time of that from its patience.
    async fn read(
        store: &MySqlStore,
        limit: u32,
        as_of: Timestamp,
        patience: &mut Duration,
    ) -> Result<Self, StoreError> {
        let as_of = as_of.as_micros();
        let rows = due_records(store, limit, as_of, patience).await?;
        let mut due = Self {
            limit,
            as_of,
            more: rows.len() >= limit as usize,
            ..Self::default()
        };
        for row in &rows {
            match row.text(1).map_err(error)? {
                "delete" => {
                    due.deletes = true;
                    due.highest = due.highest.max(row.number(0).map_err(error)?);
                }
                "interrupt" => due.interrupt = true,
                "forget" => due.forget = true,
                _ => due.requeue = true,
            }
        }
        if due.deletes {
            fencing_floor::raise_above(store, FencingToken::from_number(due.highest)).await?;
        }
        Ok(due)
    }

    /// Changes the records in a transaction of its own, because more than one statement deletes a record.
    async fn purge_alone(&self, store: &MySqlStore) -> Result<Purged, StoreError> {
        if !self.deletes {
            return self.purge(store).await;
        }
        sql::retry_transaction(|| async move {
            // An error drops the transaction, which rolls it back.
            let mut transaction = store.begin().await?;
            let purged = self
                .purge(&InTransaction::new(store, &mut transaction))
                .await?;
            store.commit(transaction).await?;
            Ok(purged)
        })
        .await
    }

    /// Changes the records, each kind with statements of its own. Deletions must be in a transaction. A statement also
    /// finds records that became due in the meantime, so the limit of all together decreases by what was changed.
    async fn purge(&self, on: &impl Executor) -> Result<Purged, StoreError> {
        let statements = on.own_statements();
        let limited = |statement, limit| {
            let query = Statement::query(statement).number(i64::from(limit));
            query.number(self.as_of)
        };
        let (mut removed, mut abandoned, mut interrupted, mut forgotten) = (0, 0, 0, 0);
        let mut rest = self.limit;
        if self.deletes {
            let query = limited(&statements.purge_lock, rest).number(self.highest);
            let mut ids = Vec::new();
            for row in on.read(query).await? {
                ids.push(row.text(0).map_err(error)?.to_owned());
                abandoned +=
                    u64::from(row.text(1).map_err(error)? == RecordState::Running.as_str());
            }
            if !ids.is_empty() {
                // Hexadecimal digits need no escapes.
                let ids_as_json = format!("[\"{}\"]", ids.join("\",\""));
                on.write(statements.shared.erase_all.query().text(&*ids_as_json))
                    .await?;
            }
            removed = ids.len() as u64;
            rest = less(rest, removed);
        }
        if self.interrupt {
            let query = limited(&statements.purge_interrupt, rest);
            interrupted = on.write(query).await?;
            rest = less(rest, interrupted);
        }
        if self.forget {
            let query = limited(&statements.purge_forget, rest);
            forgotten = on.write(query).await?;
            rest = less(rest, forgotten);
        }
        if self.requeue {
            on.write(limited(&statements.purge_requeue, rest)).await?;
        }
        Ok(Purged {
            removed,
            abandoned,
            interrupted,
            forgotten,
            more: self.more,
        })
    }
}

fn less(limit: u32, done: u64) -> u32 {
    limit.saturating_sub(u32::try_from(done).unwrap_or(u32::MAX))
}

/// Reads due records while no other purge changes them. When the patience is over, reads them without a lock.
async fn due_records(
    store: &MySqlStore,
    limit: u32,
    as_of: i64,
    patience: &mut Duration,
) -> Result<Vec<MySqlRow>, StoreError> {
    let statements = &store.statements;
    while !patience.is_zero() {
        let query = statements.purge_turn.query().number(i64::from(limit));
        let query = query.number(as_of);
        match store.execute(&query).await {
            Ok(executed) => return Ok(executed.rows),
            Err(locked) if number(&locked).is_some_and(|it| LOCKED.contains(&it)) => {}
            Err(failed) => return Err(error(failed)),
        }
        let pause = LONGEST_PAUSE.mul_f64(random::fraction()).min(*patience);
        *patience -= pause;
        sleep(pause).await;
    }
    let query = statements.purge_due.query().number(i64::from(limit));
    store.read(query.number(as_of)).await
}
