//! Purge of due records, in batches.
//!
//! MySQL has no statement that deletes rows and returns them. A purge therefore reads what the due records need, raises
//! the fencing floor above those that it is about to delete, and runs a statement for each kind of change. Such a
//! statement selects due records itself, skips those that others have locked, and checks each one.
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
use crate::record::FencingToken;
use crate::store::sql::{Backend as _, InTransaction, OpenTransaction, Readable as _, Statement};
use crate::store::{Purged, TransactionalStore as _};

/// Maximum number of records that one statement of a purge changes, to keep its locks short.
const BATCH: u32 = 512;
/// Longest time in which a purge waits for its turn. After that it takes the records that nobody has locked: a
/// transaction may hold one of the due records for long.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn purge(store: &MySqlStore, limit: u32) -> Result<Purged, StoreError> {
    let mut all = Purged::default();
    let mut rest = limit;
    let mut patience = PATIENCE;
    loop {
        let batch = rest.min(BATCH);
        let due = Due::read(store, batch, &mut patience).await?;
        let done = due.purge(store).await?;
        all.removed += done.removed;
        all.abandoned += done.abandoned;
        all.interrupted += done.interrupted;
        all.more = done.more;
        rest -= batch;
        if rest == 0 || !done.more {
            return Ok(all);
        }
    }
}

impl MySqlStore {
    /// Begins the transaction of a change by hand.
    pub(super) async fn begin_by_hand(
        &self,
    ) -> Result<OpenTransaction<'static, MySql>, StoreError> {
        self.begin().await
    }

    /// Reads the records of a purge by hand, before its transaction begins: it would lock the fencing floor, for which
    /// claims would wait.
    pub(super) async fn due_for_purge(&self, limit: u32) -> Result<Due, StoreError> {
        Due::read(self, limit.min(BATCH), &mut PATIENCE.clone()).await
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
    abandoned: bool,
    expired: bool,
    interrupt: bool,
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
        patience: &mut Duration,
    ) -> Result<Self, StoreError> {
        let rows = due_records(store, limit, patience).await?;
        let mut due = Self {
            limit,
            more: rows.len() >= limit as usize,
            ..Self::default()
        };
        for row in &rows {
            let (is_found, is_deleted) = match row.text(1).map_err(error)? {
                "abandoned" => (&mut due.abandoned, true),
                "expired" => (&mut due.expired, true),
                "interrupt" => (&mut due.interrupt, false),
                _ => (&mut due.requeue, false),
            };
            *is_found = true;
            if is_deleted {
                due.highest = due.highest.max(row.number(0).map_err(error)?);
            }
        }
        if due.abandoned || due.expired {
            fencing_floor::raise_above(store, FencingToken::from_number(due.highest)).await?;
        }
        Ok(due)
    }

    /// Changes the records, each kind with one statement, each on its own or all in a transaction. A statement also finds
    /// records that became due in the meantime, so the limit of all together decreases by what was changed.
    async fn purge(&self, on: &impl Executor) -> Result<Purged, StoreError> {
        let statements = &on.store().statements;
        let limited = |statement, limit| Statement::query(statement).number(i64::from(limit));
        let (mut abandoned, mut expired, mut interrupted) = (0, 0, 0);
        let mut rest = self.limit;
        if self.abandoned {
            let query = limited(&statements.purge_abandoned, rest).number(self.highest);
            abandoned = on.write(query).await?;
            rest = less(rest, abandoned);
        }
        if self.expired {
            let query = limited(&statements.purge_expired, rest).number(self.highest);
            expired = on.write(query).await?;
            rest = less(rest, expired);
        }
        if self.interrupt {
            let query = limited(&statements.purge_interrupt, rest);
            interrupted = on.write(query).await?;
            rest = less(rest, interrupted);
        }
        if self.requeue {
            on.write(limited(&statements.purge_requeue, rest)).await?;
        }
        Ok(Purged {
            removed: abandoned + expired,
            abandoned,
            interrupted,
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
    patience: &mut Duration,
) -> Result<Vec<MySqlRow>, StoreError> {
    let statements = &store.statements;
    while !patience.is_zero() {
        let query = statements.purge_turn.query().number(i64::from(limit));
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
    store.read(query).await
}
