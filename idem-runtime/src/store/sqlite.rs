//! Store of records in a SQLite file: the embedded default, shared by any number of processes on one machine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};
use sqlx::{Sqlite, SqlitePool};

use crate::error::{StoreError, StoreErrorKind};
use crate::random;
use crate::record::{Observation, Record, Timestamp};
use crate::store::operator::{Finding, MigrationPlan};
use crate::store::sql::{
    self, Backend, Batcher, Query, Returning, SqlOperator, SqlStore, Table, Template,
};
use crate::store::{ClaimOutcome, ClaimRequest, Purged};

mod batch;
mod doctor;
pub(super) mod migrate;
mod session;
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
/// SQLite rolls a whole transaction back if the disk is full, for example, and the connection goes on. If the body ignores
/// that, its call fails with [`StoreErrorKind::Conflict`]. On connections that the store has opened itself, a commit hook
/// keeps what the body does afterwards from being committed. On a pool of the application's, which may have a hook of its
/// own, such statements are committed.
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
    /// True if the store has opened the connections itself. It may then set their commit hooks.
    owns_connections: bool,
}

/// Maximum number of tries of a transition that another process's writer blocks for the whole `busy_timeout`. Such a
/// transition has changed nothing, so a retry is safe.
const TRIES: u32 = 5;
/// Name of a database in memory.
const IN_MEMORY: &str = ":memory:";

impl SqliteStore {
    /// Opens a file, creates it if it does not exist, and [migrates](Self::migrate) it. The path `:memory:` opens a
    /// database [in memory](Self::in_memory).
    ///
    /// # Errors
    /// [`StoreErrorKind::Unavailable`] if the file cannot be opened, [`Corrupt`](StoreErrorKind::Corrupt) if it is not
    /// a database, [`ReadOnly`](StoreErrorKind::ReadOnly) if it cannot be written, and those of
    /// [`migrate`](Self::migrate).
    ///
    /// # Cancel safety
    /// If the future is dropped, the file may have been created, and each migration is applied or not applied.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref();
        if path.as_os_str() == IN_MEMORY {
            return Self::in_memory().await;
        }
        Self::open_with(pool_options(5), Self::connect_options(path)).await
    }

    /// Opens the file of a URL such as `sqlite:shop.db` or `sqlite:///var/lib/shop.db?mode=rw`, and
    /// [migrates](Self::migrate) it. Like [`open`](Self::open), but the query of the URL decides what it names: with
    /// `mode=rw`, a file that does not exist is an error. `sqlite::memory:` opens a database
    /// [in memory](Self::in_memory).
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and [`Other`](StoreErrorKind::Other) if the URL is invalid.
    ///
    /// # Cancel safety
    /// As for [`open`](Self::open).
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        require_scheme(url)?;
        let (file, query) = url.split_once('?').unwrap_or((url, ""));
        let mode = query.split('&').find_map(|it| it.strip_prefix("mode="));
        if file.ends_with(IN_MEMORY) || mode == Some("memory") {
            return Self::in_memory().await;
        }
        let mut options = with_settings(url.parse().map_err(error)?);
        if mode.is_none() {
            options = options.create_if_missing(true);
        }
        Self::open_with(pool_options(5), options).await
    }

    /// Opens the file of a URL as it is: no table is created, and no setting of the file is changed. A file that does not
    /// exist is created only if the URL says `mode=rwc`. For tools of operators; a service calls
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`StoreErrorKind::Unavailable`] if the file does not exist or cannot be opened, and the others of
    /// [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing has changed, but an empty file may have been created.
    pub async fn connect_as_is(url: &str) -> Result<Self, StoreError> {
        require_scheme(url)?;
        let options: SqliteConnectOptions = url.parse().map_err(error)?;
        let options = options.busy_timeout(Duration::from_secs(1));
        let pool = retry_busy(|| pool_options(5).connect_with(options.clone()));
        Ok(Self::new(pool.await.map_err(error)?))
    }

    /// Creates a database in memory, and [migrates](Self::migrate) it: for tests, above all of transactional calls. The
    /// store has one connection, because each connection to such a database has a database of its own. Clones of the
    /// store share it. The database ends with the last clone.
    ///
    /// A transactional call uses the connection until it ends. Calls that run meanwhile wait for it.
    ///
    /// Do not pause time in these tests: SQLite works on a thread that paused time does not wait for, so the pool times
    /// out.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use idem_runtime::{Idem, SqliteStore};
    ///
    /// let store = SqliteStore::in_memory().await?;
    /// sqlx::raw_sql("CREATE TABLE orders (id TEXT)").execute(store.pool()).await?;
    /// let idem = Idem::new(store);
    /// # let _ = idem;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StoreErrorKind::Full`] if there is no memory left.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing remains.
    pub async fn in_memory() -> Result<Self, StoreError> {
        // Closing the connection would delete the database.
        let pool = pool_options(1).idle_timeout(None).max_lifetime(None);
        Self::open_with(pool, Self::connect_options(IN_MEMORY)).await
    }

    async fn open_with(
        pool: SqlitePoolOptions,
        options: SqliteConnectOptions,
    ) -> Result<Self, StoreError> {
        // Turning on the write-ahead log takes a lock that SQLite does not wait for, and ten processes may start
        // concurrently.
        let pool = retry_busy(|| pool.clone().connect_with(options.clone()))
            .await
            .map_err(error)?;
        let mut store = Self::new(pool);
        store.owns_connections = true;
        store.migrate().await?;
        Ok(store)
    }

    /// Settings that [`open`](Self::open) uses: the file is created if it does not exist, with a write-ahead log,
    /// `synchronous = FULL`, and a `busy_timeout` of a second (the store retries a few times).
    pub fn connect_options(path: impl AsRef<Path>) -> SqliteConnectOptions {
        with_settings(SqliteConnectOptions::new().filename(path)).create_if_missing(true)
    }

    /// The connection pool, for the application's own statements.
    pub fn pool(&self) -> &SqlitePool {
        &self.pool
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
            owns_connections: false,
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
    /// [`StoreErrorKind::Schema`] if a later version of this crate created the tables, and they do not declare that they work
    /// with this one; or if each connection of the pool has a database of its own, in memory or temporary; and those of any
    /// write.
    ///
    /// # Cancel safety
    /// If the future is dropped, each migration is applied or not applied. Call this method again.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        refuse_private_databases(&self.pool)?;
        let _turn = self.writer.turn().await;
        migrate::run(&self.pool, &self.statements.table, &migrate::RECORDS).await
    }
}

/// Refuses a URL without a scheme, which sqlx takes for the path of a file: a typing error would create one.
fn require_scheme(url: &str) -> Result<(), StoreError> {
    if url.starts_with("sqlite:") {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Other,
        "the URL of a SQLite store begins with `sqlite:`, as in `sqlite:shop.db`; `SqliteStore::open` takes a path",
    ))
}

/// Settings of a pool made by the store.
fn pool_options(connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(Duration::from_secs(5))
        .test_before_acquire(false)
}

/// Adds the settings that the store needs.
fn with_settings(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(1))
}

/// Refuses a pool of several connections that would each have a database of its own: one connection would not find the
/// records of another, and every key would be new to it.
fn refuse_private_databases(pool: &SqlitePool) -> Result<(), StoreError> {
    let options = pool.connect_options();
    let name = options.get_filename().to_string_lossy();
    if !is_private(&name) || pool.options().get_max_connections() == 1 {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Schema,
        "each connection of this pool has a database of its own: use `SqliteStore::in_memory()`, give the pool one \
         connection, or name a file",
    ))
}

/// Returns true for the name of a database that each connection has for itself: in memory and not shared, or temporary.
/// See <https://www.sqlite.org/inmemorydb.html>.
fn is_private(name: &str) -> bool {
    let Some(uri) = name.strip_prefix("file:") else {
        return name.is_empty() || name == IN_MEMORY;
    };
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let is_temporary = path.is_empty() || path == IN_MEMORY || query.contains("mode=memory");
    is_temporary && !query.contains("cache=shared")
}

impl SqliteStore {
    /// Reads the record of a claim, even if it has expired.
    async fn find(&self, claim: &ClaimRequest) -> Result<Option<Record>, StoreError> {
        let run_single = || async {
            let query = self.statements.shared.get.query();
            let row = self.read_one(query.bytes(&claim.id.as_bytes()[..])).await?;
            row.as_ref().map(sql::text_row::record).transpose()
        };
        let executor = || ReadBatch(self.clone());
        self.reads
            .submit(executor, |sender| (claim.id, sender), run_single)
            .await
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

    const RECORD_COLUMNS: usize = sql::text_row::COLUMNS;

    async fn statements(&self) -> Result<&sql::SharedStatements, StoreError> {
        Ok(&self.statements.shared)
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

impl SqlStore for SqliteStore {
    fn template(&self) -> Template {
        let table = &self.statements.table;
        statements::DIALECT.template_of_records(table)
    }

    fn table_name(&self) -> &str {
        &self.statements.table.name
    }

    fn claim_concurrency(&self) -> usize {
        sql::concurrency::BATCHED
    }

    async fn try_claim(&self, claim: &ClaimRequest) -> Result<Option<ClaimOutcome>, StoreError> {
        if let Some(record) = self.find(claim).await?
            && !record.is_expired()
            && !claim.may_claim(&record)
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

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        let SqliteStatements { purge, requeue, .. } = &*self.statements;
        sql::purge(self, purge, requeue, limit, as_of).await
    }
}

impl Returning for SqliteStore {
    async fn write_returning(&self, query: Query<'_>) -> Result<Vec<SqliteRow>, StoreError> {
        Ok(self.writer.write(&query).await?.rows)
    }
}

sql::store!(SqliteStore);

impl SqlOperator for SqliteStore {
    async fn plan(&self) -> Result<MigrationPlan, StoreError> {
        migrate::plan(&self.pool, &self.statements.table, &migrate::RECORDS).await
    }

    async fn apply(&self) -> Result<(), StoreError> {
        self.migrate().await
    }

    async fn findings(&self) -> Vec<Finding> {
        self.examine().await
    }
}

/// Retries a transition that failed because another process was writing.
pub(super) async fn retry_busy<T, F>(run: impl FnMut() -> F) -> Result<T, sqlx::Error>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    let pause = |tried: u32| Duration::from_millis(1 + random::number() % (10 << tried));
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
    use StoreErrorKind::{
        Conflict, Corrupt, Denied, Full, Other, ReadOnly, Schema, TooLarge, Unavailable,
    };
    sql::error(source, |answer| match primary_code(answer) {
        Some(1) if session::is_without_savepoint(answer.message()) => (Conflict, sql::ENDED),
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
            TooLarge,
            "a value is larger than SQLite stores; lower the limit on results",
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
