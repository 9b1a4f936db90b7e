//! Purge of due records, in batches.
//!
//! MySQL has no statement that deletes rows and returns them. A purge therefore reads due records, raises the fencing
//! floor above those that it is about to delete, and changes each kind of them with a statement that checks them again.

use std::sync::Arc;

use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, MySql};

use super::errors::{error, retry_undone};
use super::{MySqlStore, connections, fencing_floor};
use crate::error::StoreError;
use crate::record::FencingToken;
use crate::store::sql::{Backend as _, InTransaction, OpenTransaction, Readable as _, Statement};
use crate::store::{Purged, TransactionalStore as _};

/// Maximum number of records that one statement of a purge changes, to keep its locks short.
const BATCH: u32 = 512;

pub(super) async fn purge(store: &MySqlStore, limit: u32) -> Result<Purged, StoreError> {
    let mut all = Purged::default();
    let mut rest = limit;
    loop {
        let batch = rest.min(BATCH);
        let done = purge_batch(store, batch).await?;
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

async fn purge_batch(store: &MySqlStore, limit: u32) -> Result<Purged, StoreError> {
    let due = Due::read(store, limit).await?;
    due.purge(&PurgeTarget::Pool(store)).await
}

/// Connection that runs the statements of a purge.
enum PurgeTarget<'a, 'c> {
    /// Each statement commits on its own.
    Pool(&'a MySqlStore),
    Transaction(&'a InTransaction<'c, MySqlStore, MySqlConnection>),
}

impl PurgeTarget<'_, '_> {
    /// Changes the records with these ids, and returns the number of rows that the statement matched.
    async fn run(
        &self,
        statement: &Statement,
        first: Option<i64>,
        ids: &[Vec<u8>],
    ) -> Result<u64, StoreError> {
        if ids.is_empty() {
            return Ok(0);
        }
        let list = vec!["?"; ids.len()].join(", ");
        let text: Arc<str> = statement.as_str().replace("{ids}", &list).into();
        let query = || {
            // Lists have many lengths. If a statement for each length were cached, they would evict the prepared
            // statements of claims.
            let query = sqlx::query::<MySql>(AssertSqlSafe(Arc::clone(&text))).persistent(false);
            let query = first.iter().fold(query, |query, it| query.bind(*it));
            ids.iter().fold(query, |query, id| query.bind(id.clone()))
        };
        let executed = match self {
            Self::Pool(store) => {
                retry_undone(|| connections::run_owned(&store.pool, query())).await
            }
            Self::Transaction(on) => {
                let mut connection = on.connection.lock().await;
                connections::run_owned_on(&mut connection, query()).await
            }
        };
        Ok(executed.map_err(error)?.done.rows_affected())
    }

    fn store(&self) -> &MySqlStore {
        match self {
            Self::Pool(store) => store,
            Self::Transaction(on) => on.store,
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
        Due::read(self, limit.min(BATCH)).await
    }

    /// Purges one batch in a transaction.
    pub(super) async fn purge_in(
        on: &InTransaction<'_, Self, MySqlConnection>,
        due: &Due,
    ) -> Result<Purged, StoreError> {
        due.purge(&PurgeTarget::Transaction(on)).await
    }
}

/// Records that were due when they were read, by the change that they need. The fencing floor is above all that may be
/// deleted.
#[derive(Debug, Default)]
pub(super) struct Due {
    abandoned: Vec<Vec<u8>>,
    expired: Vec<Vec<u8>>,
    interrupt: Vec<Vec<u8>>,
    requeue: Vec<Vec<u8>>,
    /// Highest fencing token of the records to delete.
    highest: i64,
    more: bool,
}

impl Due {
    async fn read(store: &MySqlStore, limit: u32) -> Result<Self, StoreError> {
        let query = store.statements.purge_due.query().number(i64::from(limit));
        let rows = store.read(query).await?;
        let mut due = Self {
            more: rows.len() >= limit as usize,
            ..Self::default()
        };
        for row in &rows {
            let (ids, is_deleted) = match row.text(2).map_err(error)? {
                "abandoned" => (&mut due.abandoned, true),
                "expired" => (&mut due.expired, true),
                "interrupt" => (&mut due.interrupt, false),
                _ => (&mut due.requeue, false),
            };
            ids.push(row.bytes(0).map_err(error)?.into_owned());
            if is_deleted {
                due.highest = due.highest.max(row.number(1).map_err(error)?);
            }
        }
        if !(due.abandoned.is_empty() && due.expired.is_empty()) {
            fencing_floor::raise_above(store, FencingToken::from_number(due.highest)).await?;
        }
        Ok(due)
    }

    /// Changes the records, each kind with one statement.
    async fn purge(&self, target: &PurgeTarget<'_, '_>) -> Result<Purged, StoreError> {
        let statements = &target.store().statements;
        let highest = Some(self.highest);
        let abandoned = target
            .run(&statements.purge_abandoned, highest, &self.abandoned)
            .await?;
        let expired = target
            .run(&statements.purge_expired, highest, &self.expired)
            .await?;
        let interrupted = target
            .run(&statements.purge_interrupt, None, &self.interrupt)
            .await?;
        let requeued = target
            .run(&statements.purge_requeue, None, &self.requeue)
            .await?;
        let removed = abandoned + expired;
        Ok(Purged {
            removed,
            abandoned,
            interrupted,
            // All records of the batch were gone: another purge has read the same ones, and removes the others, too. If
            // this one went on, both would lock the same records again and again.
            more: self.more && removed + interrupted + requeued > 0,
        })
    }
}
