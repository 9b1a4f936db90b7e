//! Store of records in a SQLite file: the embedded default, shared by any number of processes on one machine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::error::DatabaseError;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};
use sqlx::{Sqlite, SqlitePool};

use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::record::{Observation, Outcome, Owner, Payload, Record};
use crate::store::sql::{self, Backend, Batcher, ClaimTransitions, Query, Returning, Table};
use crate::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Page, PageRequest, Purged, RecoveryStore,
    Resolution, Resolved, SavedStep, StepStore, Store,
};

mod batch;
pub(super) mod migrate;
pub(super) mod statements;
mod transaction;
mod writer;

use batch::ReadBatch;
use statements::SqliteStatements;
use writer::Writer;

/// Store of records in a SQLite file. Several processes may share the file. Cloning is cheap and shares the
/// connections.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use idem_runtime::SqliteStore;
///
/// let store = SqliteStore::open("idem.db").await?;
/// # Ok(()) }
/// ```
///
/// # Durability
/// # Durability
///
/// [`open`](Self::open) writes with `synchronous = FULL`: an acknowledged outcome survives a power loss. With `NORMAL`,
/// which is several times as fast, a power loss (not a crash of the process) may lose the last outcomes, and their
/// calls run again. To choose it, make the pool from [`connect_options`](Self::connect_options):
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use idem_runtime::SqliteStore;
/// use sqlx::sqlite::{SqlitePoolOptions, SqliteSynchronous};
///
/// let options = SqliteStore::connect_options("idem.db").synchronous(SqliteSynchronous::Normal);
/// let pool = SqlitePoolOptions::new()
///     .test_before_acquire(false)
///     .connect_with(options)
///     .await?;
/// let store = SqliteStore::new(pool);
/// store.migrate().await?;
/// # Ok(()) }
/// ```
///
/// # Concurrency
///
/// A replay is one read and never waits for a writer, provided the pool has more than one connection. Writers of one
/// store wait in a fair queue inside the process, and queued transitions share one commit (group commit). Writers of
/// different processes wait for each other up to `busy_timeout`, and are retried a few times. Concurrent reads of many
/// calls share one statement.
///
/// # Transactions
///
/// A transactional call (`tx = ...`) is the writer of the file from its beginning to its end. All other writers wait:
/// those of this process in the queue, those of other processes as above. Keep the bodies short.
///
/// # Clock
///
/// SQLite's own clock decides, read inside the statement, in milliseconds. Processes that share a file share the
/// machine's clock. If the clock is set back, leases and retentions last longer by that amount.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    pub(super) pool: SqlitePool,
    statements: Arc<SqliteStatements>,
    reads: Batcher<ReadBatch>,
    pub(super) writer: Writer,
}

/// Maximum number of tries of a transition that another process's writer blocks for the whole `busy_timeout`. Such a
/// transition has changed nothing, so a retry is safe.
const TRIES: u32 = 5;

impl SqliteStore {
    /// Opens a file, creates it if it does not exist, and [migrates](Self::migrate) it.
    ///
    /// # Errors
    /// [`StoreErrorKind::Unavailable`] if the file cannot be opened, [`Corrupt`](StoreErrorKind::Corrupt) if it is not
    /// a database, [`ReadOnly`](StoreErrorKind::ReadOnly) if it cannot be written, and those of
    /// [`migrate`](Self::migrate).
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let options = Self::connect_options(path);
        let pool = SqlitePoolOptions::new()
            .max_connections(5)
            .acquire_timeout(Duration::from_secs(5))
            .test_before_acquire(false);
        // Turning on the write-ahead log takes a lock that SQLite does not wait for, and ten processes may start
        // concurrently.
        let pool = retry_busy(|| pool.clone().connect_with(options.clone()))
            .await
            .map_err(error)?;
        let store = Self::new(pool);
        store.migrate().await?;
        Ok(store)
    }

    /// Settings that [`open`](Self::open) uses: the file is created if it does not exist, with a write-ahead log,
    /// `synchronous = FULL`, and a `busy_timeout` of a second (the store retries a few times).
    pub fn connect_options(path: impl AsRef<Path>) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(1))
    }

    /// Creates a store on the caller's pool. It does nothing until it is used. Call [`migrate`](Self::migrate) first.
    ///
    /// The pool determines the write-ahead log, `synchronous` and `busy_timeout`. A pool that leaves
    /// `test_before_acquire` on pays for a ping before each transition.
    pub fn new(pool: SqlitePool) -> Self {
        Self {
            writer: Writer::new(pool.clone()),
            pool,
            statements: Arc::new(SqliteStatements::new(Table::default())),
            reads: Batcher::for_statements(),
        }
    }

    /// Uses a table with this name instead of `idem_records`. Its index, its trigger and three further tables are named
    /// after it.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] if the name is not 1 to 48 ASCII letters, digits and underscores, begins with a
    /// digit, or is reserved.
    pub fn with_table(mut self, name: &str) -> Result<Self, StoreError> {
        self.statements = Arc::new(SqliteStatements::new(Table::new(None, name)?));
        // Reads of the new table need another statement, so they cannot share the batches of the old one.
        self.reads = Batcher::for_statements();
        Ok(self)
    }

    /// Creates the tables or migrates them to the current version. Safe to call at every start, and from many processes
    /// concurrently. The applied versions are stored in a separate table (`idem_records_migrations`), apart from the
    /// application's own migrations. The SQL is in `migrations/sqlite` of this crate, so an application can also apply
    /// it with its own `sqlx::migrate!`.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] if a later version of this crate created the tables, and those of any write.
    ///
    /// # Cancel safety
    /// If the future is dropped, each migration is applied or not applied. Call this method again.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let _turn = self.writer.turn().await;
        migrate::run(&self.pool, &self.statements.table, &migrate::RECORDS).await
    }
}

impl SqliteStore {
    /// Reads the record of a claim, even if it has expired.
    async fn find(&self, claim: &ClaimRequest) -> Result<Option<Record>, StoreError> {
        let run_single = async {
            let query = self.statements.shared.get.query();
            let row = self.read_one(query.bytes(&claim.id.as_bytes()[..])).await?;
            row.as_ref().map(sql::text_row::record).transpose()
        };
        let executor = || ReadBatch(self.clone());
        self.reads.submit(executor, || claim.id, run_single).await
    }

    /// Runs a statement that reads at most one row. sqlx then sends the row and the end of the rows in one message.
    async fn read_one(&self, query: Query<'_>) -> Result<Option<SqliteRow>, StoreError> {
        retry_busy(|| query.build::<Sqlite>().fetch_optional(&self.pool))
            .await
            .map_err(error)
    }
}

impl Backend for SqliteStore {
    type Row = SqliteRow;

    fn statements(&self) -> &sql::SharedStatements {
        &self.statements.shared
    }

    fn record(row: &SqliteRow) -> Result<Record, StoreError> {
        sql::text_row::record(row)
    }

    async fn read(&self, query: Query<'_>) -> Result<Vec<SqliteRow>, StoreError> {
        retry_busy(|| query.build::<Sqlite>().fetch_all(&self.pool))
            .await
            .map_err(error)
    }

    async fn write(&self, query: Query<'_>) -> Result<u64, StoreError> {
        Ok(self.writer.write(&query).await?.rows_affected)
    }
}

impl ClaimTransitions for SqliteStore {
    async fn try_claim(&self, claim: &ClaimRequest) -> Result<Option<ClaimOutcome>, StoreError> {
        if let Some(record) = self.find(claim).await?
            && !record.is_expired()
            && !sql::is_claimable(&record, claim)
        {
            return Ok(Some(ClaimOutcome::Existing(Box::new(record))));
        }
        let query = sql::claim_query(&self.statements.claim, claim);
        sql::claim_returning(self, query).await
    }

    async fn try_take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<Option<ClaimOutcome>, StoreError> {
        sql::try_take_over(self, &self.statements.take_over, observed, claim).await
    }
}

impl Returning for SqliteStore {
    async fn write_returning(&self, query: Query<'_>) -> Result<Vec<SqliteRow>, StoreError> {
        Ok(self.writer.write(&query).await?.rows)
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        sql::claim(self, claim).await
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        sql::take_over(self, observed, claim).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        sql::renew(self, owner, lease).await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        sql::complete(self, owner, outcome).await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        sql::release(self, owner).await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        sql::interrupt(self, owner).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        sql::resolve(self, observed, resolution).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        sql::get(self, id).await
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        sql::list(self, filter, page).await
    }

    async fn purge(&self, limit: u32) -> Result<Purged, StoreError> {
        let SqliteStatements { purge, requeue, .. } = &*self.statements;
        sql::purge(self, purge, requeue, limit).await
    }

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        Some(self)
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        Some(self)
    }
}

#[async_trait]
impl StepStore for SqliteStore {
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        sql::save_step(self, &self.statements.steps, owner, name, payload).await
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        sql::saved_steps(self, &self.statements.steps, owner).await
    }
}

/// Retries a transition that failed because another process was writing.
pub(super) async fn retry_busy<T, F>(run: impl FnMut() -> F) -> Result<T, sqlx::Error>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    let pause = |tried: u32| Duration::from_millis(1 + rand::random::<u64>() % (10 << tried));
    sql::retry(TRIES, is_busy, pause, run).await
}

const SQLITE_BUSY: i32 = 5;

fn is_busy(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(answer) if primary_code(&**answer) == Some(SQLITE_BUSY))
}

/// Returns the primary result code, see <https://www.sqlite.org/rescode.html>.
fn primary_code(answer: &dyn DatabaseError) -> Option<i32> {
    answer
        .code()?
        .parse::<i32>()
        .ok()
        .map(|extended| extended & 0xff)
}

pub(super) fn error(source: sqlx::Error) -> StoreError {
    use StoreErrorKind::{Conflict, Corrupt, Denied, Full, Other, ReadOnly, Schema, Unavailable};
    sql::error(source, |answer| match primary_code(answer) {
        Some(1) if is_about_schema(answer.message()) => (
            Schema,
            "a table or column of the store is missing, run `migrate()`",
        ),
        Some(3 | 23) => (
            Denied,
            "access to the database file was denied, check its permissions",
        ),
        Some(SQLITE_BUSY) => (
            Conflict,
            "another process kept the database locked for too long, try again",
        ),
        Some(6 | 9 | 15 | 17) => (
            Conflict,
            "the database was busy with something else, try again",
        ),
        Some(8) => (
            ReadOnly,
            "the database cannot be written, check the permissions of its file and directory",
        ),
        Some(10) => (
            Other,
            "reading or writing the database file failed, check the disk",
        ),
        Some(11) => (
            Corrupt,
            "the database file is damaged, restore it or repair it with the sqlite3 `.recover` command",
        ),
        Some(13) => (Full, "the disk or the database is full, make room"),
        Some(14) => (
            Unavailable,
            "the database file cannot be opened, check that its directory exists and can be written",
        ),
        Some(18) => (
            Other,
            "the result is larger than SQLite stores, lower the limit on results",
        ),
        Some(26) => (
            Corrupt,
            "the file is not a SQLite database, give another path",
        ),
        _ => (Other, "the database refused the statement"),
    })
}

fn is_about_schema(message: &str) -> bool {
    ["no such table", "no such column", "has no column named"]
        .iter()
        .any(|it| message.contains(it))
}
