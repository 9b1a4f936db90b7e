//! Store of records in MySQL or MariaDB.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, MySql, MySqlPool};
use tokio::time::Instant;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::record::{
    ClaimId, FencingToken, Observation, Outcome, Owner, Payload, Record, State, Timestamp,
};
use crate::store::sql::{
    self, Backend, Batcher, ClaimTransitions, Query, Readable, Statement, Table,
};
use crate::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Granted, Page, PageRequest, Purged,
    RecoveryStore, Resolution, Resolved, SavedStep, StepStore, Store,
};

mod batch;
mod connections;
mod errors;
mod fencing_floor;
pub(super) mod migrate;
pub(super) mod statements;
mod transaction;

use batch::{ClaimBatch, CompletionBatch};
use connections::Executed;
pub(super) use connections::run;
#[cfg(feature = "outbox")]
pub(super) use connections::run_borrowed;
pub(super) use errors::{DUPLICATE, error, number, retry_undone};
use errors::{LOCKED, NO_SUCH_TABLE};
use statements::MySqlStatements;

/// Store of records in MySQL 8 or later, or MariaDB 10.6 or later. Cloning is cheap and shares the connections.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use idem_runtime::MySqlStore;
///
/// let store = MySqlStore::open("mysql://app:secret@db.internal/shop").await?;
/// store.migrate().await?;
/// # Ok(()) }
/// ```
///
/// # Cost
///
/// A claim is one statement, an insert. If the record exists, MariaDB returns it in the same statement: a first call
/// takes two statements, a replay one. MySQL returns no row from an insert, so a replay there takes two, the second one
/// a read. A replay writes no row and nothing to the redo log. It locks the record while its statement runs, so it
/// waits for a completion to be committed. No transaction stays open between statements, and no connection is held
/// while the body runs. If many calls begin or end concurrently, they share statements and commits (group commit),
/// except that MySQL claims one by one. No call waits for others to arrive.
///
/// With `binlog_format = STATEMENT` the server writes replays to the binary log, because without rows it cannot see
/// that nothing changed. Use `MIXED`, the default of MariaDB, or `ROW`, the default of MySQL.
///
/// # Pool
///
/// If you create the pool yourself, turn `test_before_acquire` off; otherwise each transition pays for a ping. Leave
/// `autocommit` on, the default: each transition is a statement that commits on its own. The isolation level does not
/// matter. A cut connection is detected at its next use, as an error after which the call retries.
///
/// # Durability
///
/// An acknowledged outcome survives a crash of the server with `innodb_flush_log_at_trx_commit = 1`, the default. If a
/// restart or a replica recovers from the binary log, `sync_binlog = 1` is needed as well, the default of MySQL but not
/// of MariaDB. With weaker settings the last outcomes may be lost, and their calls run again.
///
/// Without a binary log, InnoDB shows a commit to others a moment before it is in its own log. A crash of the server in
/// that moment loses a commit that was never acknowledged to its caller, but a duplicate call may have received its
/// outcome. The call then runs again, under `tx` as well. With the binary log, a commit is written before others see
/// it. Where no outcome may ever be lost, turn it on (`log_bin`, the default of MySQL but not of MariaDB) with
/// `sync_binlog = 1`.
///
/// A replica that is promoted has only the data that had reached it. With asynchronous replication acknowledged records
/// can be missing, and their calls run again. With Galera or Group Replication send all transitions to one node, or
/// turn on `wsrep_sync_wait = 1` or `group_replication_consistency = BEFORE`: another node may not have applied yet
/// what one node has acknowledged. Their certification conflicts appear to a client as deadlocks, which the store
/// retries.
///
/// # Transactions
///
/// A transactional call (`tx = ...`) holds one connection of the pool while its body runs, with the default isolation
/// level of the connection. Until its end it also holds a shared lock on the only row of the table
/// `idem_records_fencing_floor`, which a purge has to change once per retention. The purge does not wait for that row,
/// because every claim would wait behind it. After a second of tries the purge fails with [`StoreErrorKind::Conflict`],
/// and the purger tries again at its next interval. On MySQL, or if transactions have held the row without a gap for
/// five minutes, the purge waits for them for a second, and claims wait as well. Statements that define tables or other
/// objects commit the transaction half way: keep them out of the body.
///
/// # Clock
///
/// The server's clock decides, in UTC, in microseconds, read when a statement begins. The session's time zone does not
/// matter. If the clock is set back, or is behind after a failover, leases and retentions last longer by that amount.
///
/// # Size of results
///
/// A result has to fit into one packet. `max_allowed_packet` is 64 MiB by default in MySQL and 16 MiB in MariaDB.
/// InnoDB needs a redo log of ten times the largest result.
#[derive(Debug, Clone)]
pub struct MySqlStore {
    pub(super) pool: MySqlPool,
    statements: Arc<MySqlStatements>,
    claims: Batcher<ClaimBatch>,
    completions: Batcher<CompletionBatch>,
    /// True if the server returns the rows that an insert conflicts with, as MariaDB does.
    returns_rows: Arc<AtomicBool>,
    /// Time since which every attempt to raise the fencing floor found its row locked.
    starved_since: Arc<Mutex<Option<Instant>>>,
}

/// Maximum time that a pool made by the store waits for a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of records that one statement of a purge changes, to keep its locks short.
const BATCH: u32 = 512;

impl MySqlStore {
    /// Opens a store with its own pool of up to ten connections. Call [`migrate`](Self::migrate) before the first
    /// claim.
    ///
    /// # Errors
    /// [`StoreErrorKind::Other`] if this is not a URL of a MySQL server, [`Unavailable`](StoreErrorKind::Unavailable)
    /// if no server answers within five seconds, [`Denied`](StoreErrorKind::Denied) for a wrong password, and
    /// [`Schema`](StoreErrorKind::Schema) for a database that does not exist.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing remains.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let options: MySqlConnectOptions = url.parse().map_err(error)?;
        // A pool would retry until its time-out, and then not report the server's answer.
        let first = tokio::time::timeout(PATIENCE, options.connect())
            .await
            .map_err(|late| {
                StoreError::new(
                    StoreErrorKind::Unavailable,
                    "the server did not answer in time, check the host and port of the URL",
                )
                .with_source(late)
            })?
            .map_err(error)?;
        first.close().await.map_err(error)?;
        let pool = MySqlPoolOptions::new()
            .max_connections(10)
            .acquire_timeout(PATIENCE)
            .test_before_acquire(false)
            .connect_lazy_with(options);
        Ok(Self::new(pool))
    }

    /// Creates a store on the caller's pool. It does nothing until it is used. Call [`migrate`](Self::migrate) first.
    pub fn new(pool: MySqlPool) -> Self {
        Self::on(pool, Table::default())
    }

    fn on(pool: MySqlPool, table: Table) -> Self {
        Self {
            pool,
            statements: Arc::new(MySqlStatements::new(table)),
            claims: Batcher::for_statements(),
            completions: Batcher::for_statements(),
            returns_rows: Arc::new(AtomicBool::new(true)),
            starved_since: Arc::default(),
        }
    }

    /// Uses a table with this name instead of `idem_records`. Three further tables are named after it.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] if the name is not 1 to 48 ASCII letters, digits and underscores, begins with a
    /// digit, or is reserved.
    pub fn with_table(self, name: &str) -> Result<Self, StoreError> {
        let schema = self.statements.table.schema.as_deref();
        Ok(Self::on(self.pool, Table::new(schema, name)?))
    }

    /// Uses tables in this database, which must exist, instead of the default database of the connections.
    ///
    /// # Errors
    /// Those of [`with_table`](Self::with_table), for the name of the database.
    pub fn with_schema(self, name: &str) -> Result<Self, StoreError> {
        let table = Table::new(Some(name), &self.statements.table.name)?;
        Ok(Self::on(self.pool, table))
    }

    /// Creates the tables or migrates them to the current version. Safe to call at every start, and from many processes
    /// concurrently: a lock of the server (`GET_LOCK`), on a connection that is closed afterwards, admits one process
    /// at a time. The applied versions are stored in a separate table (`idem_records_migrations`), apart from the
    /// application's own migrations. The SQL is in `migrations/mysql` of this crate.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] if a later version of this crate created the tables,
    /// [`Conflict`](StoreErrorKind::Conflict) if another process migrates for longer than a minute, and those of any
    /// write.
    ///
    /// # Cancel safety
    /// If the future is dropped, each statement of a migration is applied or not applied, and the lock is released.
    /// Call this method again.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        migrate::run(&self.pool, &self.statements.table, &migrate::RECORDS).await
    }

    async fn purge_batch(&self, limit: u32) -> Result<Purged, StoreError> {
        let rows = self
            .read(self.statements.due.query().number(i64::from(limit)))
            .await?;
        let mut highest = 0;
        let mut due: [Vec<&[u8]>; 4] = Default::default();
        for row in &rows {
            let class = match row.text(2).map_err(error)? {
                "abandoned" => 0,
                "expired" => 1,
                "interrupt" => 2,
                _ => 3,
            };
            if class < 2 {
                highest = highest.max(row.number(1).map_err(error)?);
            }
            due[class].push(row.bytes(0).map_err(error)?);
        }
        let [abandoned, expired, interrupt, requeue] = &due;
        if !(abandoned.is_empty() && expired.is_empty()) {
            fencing_floor::raise_above(self, FencingToken::from_number(highest)).await?;
        }
        let purge = &self.statements.purge;
        let abandoned = self
            .for_each(&purge.abandoned, Some(highest), abandoned)
            .await?;
        let expired = self
            .for_each(&purge.expired, Some(highest), expired)
            .await?;
        let interrupted = self.for_each(&purge.interrupt, None, interrupt).await?;
        self.for_each(&purge.requeue, None, requeue).await?;
        Ok(Purged {
            removed: abandoned + expired,
            abandoned,
            interrupted,
            more: rows.len() >= limit as usize,
        })
    }

    /// Runs a statement that ends in a list of ids, and returns the number of rows that it matched.
    async fn for_each(
        &self,
        statement: &str,
        first: Option<i64>,
        ids: &[&[u8]],
    ) -> Result<u64, StoreError> {
        if ids.is_empty() {
            return Ok(0);
        }
        let text: Arc<str> = format!("{statement}{}?)", "?, ".repeat(ids.len() - 1)).into();
        let run = || {
            // Lists have many lengths. If a statement for each length were cached, they would evict the prepared
            // statements of claims.
            let query = sqlx::query::<MySql>(AssertSqlSafe(Arc::clone(&text))).persistent(false);
            let query = first.iter().fold(query, |query, it| query.bind(*it));
            let query = ids.iter().fold(query, |query, id| query.bind(id.to_vec()));
            connections::run_owned(&self.pool, query)
        };
        let executed = retry_undone(run).await.map_err(error)?;
        Ok(executed.done.rows_affected())
    }
}

/// Runs statements that only this dialect has.
trait Executor: Backend<Row = MySqlRow> {
    fn store(&self) -> &MySqlStore;

    /// Runs a statement that may return rows, to its end.
    async fn execute(&self, query: &Query<'_>) -> Result<Executed, sqlx::Error>;
}

impl Executor for MySqlStore {
    fn store(&self) -> &MySqlStore {
        self
    }

    async fn execute(&self, query: &Query<'_>) -> Result<Executed, sqlx::Error> {
        retry_undone(|| run(&self.pool, query)).await
    }
}

/// Reads the record from a server that refuses to write, such as a replica: it may hold the outcome.
async fn read_instead(
    backend: &impl Backend,
    claim: &ClaimRequest,
    refused: StoreError,
) -> Result<Option<ClaimOutcome>, StoreError> {
    match sql::get(backend, &claim.id).await? {
        Some(record) if !sql::is_claimable(&record, claim) => {
            Ok(Some(ClaimOutcome::Existing(Box::new(record))))
        }
        _ => Err(refused),
    }
}

/// Inserts the record of a first claim. `INSERT IGNORE` is not used, because it would also ignore invalid values.
async fn insert(backend: &impl Executor, claim: &ClaimRequest) -> Result<InsertResult, StoreError> {
    let statements = &backend.store().statements;
    match insert_by(backend, &statements.insert, claim).await? {
        InsertResult::NotTried => insert_by(backend, &statements.insert_above, claim).await,
        result => Ok(result),
    }
}

async fn insert_by(
    backend: &impl Executor,
    statement: &Statement,
    claim: &ClaimRequest,
) -> Result<InsertResult, StoreError> {
    let query = sql::claim_query(statement, claim);
    let Executed { rows, done } = match backend.execute(&query).await {
        Err(error) if number(&error) == Some(DUPLICATE) => return Ok(InsertResult::ExistingUnread),
        executed => executed.map_err(error)?,
    };
    if let Some(row) = rows.first() {
        return Ok(insert_result(sql::text_row::record(row)?, &claim.claim_id));
    }
    Ok(match (done.rows_affected(), done.last_insert_id()) {
        (0, _) => InsertResult::NotTried,
        (_, 0) => InsertResult::ExistingUnread,
        // MySQL returns no row. It returns this number, which is the fencing token. `insert` inserts only if the token
        // equals the time.
        (_, number) => {
            backend.store().returns_rows.store(false, Ordering::Relaxed);
            let number = number.cast_signed();
            InsertResult::Created(ClaimOutcome::Granted(Granted {
                fencing_token: FencingToken::from_number(number),
                attempt: 1,
                first_claimed_at: Timestamp::from_micros(number),
                on_crash: claim.on_crash,
            }))
        }
    })
}

/// Result of an insert that returned a row, as on MariaDB.
fn insert_result(record: Record, claim_id: &ClaimId) -> InsertResult {
    // If the times differ, an earlier try of this claim inserted the record, at another time.
    let is_new = record.first_claimed_at == record.read_at;
    match granted_to(claim_id, &record) {
        Some(granted) if is_new => InsertResult::Created(granted),
        _ => InsertResult::Existing(Box::new(record)),
    }
}

/// Claims an existing record. Returns `None` if it changed since it was read.
async fn claim_existing(
    backend: &impl Executor,
    claim: &ClaimRequest,
) -> Result<Option<ClaimOutcome>, StoreError> {
    let query = sql::claim_query(&backend.store().statements.claim, claim);
    if backend.write(query).await? == 0 {
        return Ok(None);
    }
    let record = sql::read_current(backend, &claim.id).await?;
    Ok(record.and_then(|record| granted_to(&claim.claim_id, &record)))
}

async fn try_take_over(
    backend: &impl Executor,
    observed: &Observation,
    claim: &ClaimRequest,
) -> Result<Option<ClaimOutcome>, StoreError> {
    let query = sql::take_over_query(&backend.store().statements.take_over, observed, claim);
    let taken = backend.write(query).await? > 0;
    let Some(record) = sql::read_current(backend, &claim.id).await? else {
        return Ok(None);
    };
    if let Some(granted) = granted_to(&claim.claim_id, &record).filter(|_| taken) {
        return Ok(Some(granted));
    }
    Ok((!record.is_expired()).then(|| ClaimOutcome::Existing(Box::new(record))))
}

impl Backend for MySqlStore {
    type Row = MySqlRow;

    fn statements(&self) -> &sql::SharedStatements {
        &self.statements.shared
    }

    fn record(row: &MySqlRow) -> Result<Record, StoreError> {
        sql::text_row::record(row)
    }

    async fn read(&self, query: Query<'_>) -> Result<Vec<MySqlRow>, StoreError> {
        Ok(self.execute(&query).await.map_err(error)?.rows)
    }

    /// sqlx makes the server report the rows that a statement matched, not those that it changed.
    async fn write(&self, query: Query<'_>) -> Result<u64, StoreError> {
        let executed = self.execute(&query).await.map_err(error)?;
        Ok(executed.done.rows_affected())
    }
}

impl MySqlStore {
    async fn insert(&self, claim: &ClaimRequest) -> Result<InsertResult, StoreError> {
        let run_single = insert(self, claim);
        if !self.returns_rows.load(Ordering::Relaxed) {
            return run_single.await;
        }
        let executor = || ClaimBatch(self.clone());
        self.claims
            .submit(executor, || claim.clone(), run_single)
            .await
    }
}

impl ClaimTransitions for MySqlStore {
    async fn try_claim(&self, claim: &ClaimRequest) -> Result<Option<ClaimOutcome>, StoreError> {
        let record = match self.insert(claim).await {
            Ok(InsertResult::Created(granted)) => return Ok(Some(granted)),
            Ok(InsertResult::Existing(record)) => *record,
            Ok(InsertResult::ExistingUnread | InsertResult::NotTried) => {
                match sql::read_current(self, &claim.id).await? {
                    Some(record) => record,
                    // The record was deleted after it was read.
                    None => return Ok(None),
                }
            }
            Err(error) if error.kind() == StoreErrorKind::ReadOnly => {
                return read_instead(self, claim, error).await;
            }
            Err(error) => return Err(error),
        };
        if !record.is_expired() && !sql::is_claimable(&record, claim) {
            return Ok(Some(ClaimOutcome::Existing(Box::new(record))));
        }
        claim_existing(self, claim).await
    }

    async fn try_take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<Option<ClaimOutcome>, StoreError> {
        try_take_over(self, observed, claim).await
    }
}

#[async_trait]
impl Store for MySqlStore {
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
        // MySQL cannot limit how long a statement waits for a row: one locked record would delay the whole batch.
        if !self.returns_rows.load(Ordering::Relaxed) {
            return sql::complete(self, owner, outcome).await;
        }
        let executor = || CompletionBatch(self.clone());
        self.completions
            .complete(self, executor, owner, outcome)
            .await
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
        if *resolution == Resolution::Erase {
            // Deletes the record only if it has exactly this fencing token.
            let there = sql::read_current(self, &observed.id).await?;
            if there.is_none_or(|record| record.observation() != *observed) {
                return Ok(Resolved::Stale);
            }
            fencing_floor::raise_above(self, observed.fencing_token).await?;
        }
        sql::resolve(self, observed, resolution).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        sql::get(self, id).await
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        sql::list(self, filter, page).await
    }

    async fn purge(&self, limit: u32) -> Result<Purged, StoreError> {
        let mut all = Purged::default();
        let mut rest = limit;
        loop {
            let batch = rest.min(BATCH);
            let done = self.purge_batch(batch).await?;
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

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        Some(self)
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        Some(self)
    }
}

#[async_trait]
impl StepStore for MySqlStore {
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

/// Result of the first statement of a claim.
enum InsertResult {
    Created(ClaimOutcome),
    /// The record existed.
    Existing(Box<Record>),
    /// A record exists, and has to be read.
    ExistingUnread,
    /// The statement did not try to insert.
    NotTried,
}

/// Builds the answer to a claim whose claim id owns the record.
fn granted_to(claim_id: &ClaimId, record: &Record) -> Option<ClaimOutcome> {
    (record.state == State::Running && record.claim_id == Some(*claim_id)).then_some(
        ClaimOutcome::Granted(Granted {
            fencing_token: record.fencing_token,
            attempt: record.attempt,
            first_claimed_at: record.first_claimed_at,
            on_crash: record.on_crash,
        }),
    )
}
