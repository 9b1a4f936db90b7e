//! Store of records in MySQL or MariaDB.

use std::convert::identity;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sqlx::mysql::{MySqlConnectOptions, MySqlRow};
use sqlx::{MySql, MySqlPool};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::error::{StoreError, StoreErrorKind};
use crate::record::{FencingToken, Observation, Outcome, Owner, Payload, Record, Timestamp};
use crate::store::operator::{Finding, MigrationPlan};
use crate::store::sql::{
    self, Backend, Batcher, Connections, InTransaction, Query, SqlOperator, SqlStore, Table,
    Template,
};
use crate::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Purged, Resolution, Resolved, TransactionalStore as _,
};

mod batch;
mod claiming;
mod connections;
mod doctor;
mod errors;
mod fencing_floor;
mod galera;
pub(super) mod migrate;
mod purge;
mod session;
mod settings;
pub(super) mod statements;
mod transaction;

use batch::{ClaimBatch, CompletionBatch};
use claiming::{Executor, InsertResult};
use connections::Executed;
pub(super) use connections::{run, run_borrowed};
#[cfg(feature = "outbox")]
pub(super) use errors::{DUPLICATE, number};
pub(super) use errors::{error, retry_undone};
use galera::{Cluster, Statements};
use settings::Settings;
#[cfg(feature = "outbox")]
pub(super) use settings::examine;
use statements::{MySqlStatements, On};

/// Store of records in MySQL 9 (tested with 9.7), or MariaDB 10.6 or later. Cloning is cheap and shares the
/// connections.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use idem_runtime::MySqlStore;
///
/// let store = MySqlStore::connect("mysql://app:secret@db.internal/shop").await?;
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
/// except that MySQL claims one by one. A call that is alone waits for no other.
///
/// With `binlog_format = STATEMENT` the server writes replays to the binary log, because without rows it cannot see
/// that nothing changed. Use `MIXED`, the default of MariaDB, or `ROW`, the default of MySQL.
///
/// # Pool
///
/// If you create the pool yourself, turn `test_before_acquire` off; otherwise each transition pays for a ping. Leave
/// `autocommit` on, the default: each transition is a statement that commits on its own. Each isolation level will do but
/// READ UNCOMMITTED, under which a call could replay an outcome that is never committed. The first statement of a store
/// reads these settings, `completion_type`, `sql_mode`, character sets and limits, and refuses with
/// [`StoreErrorKind::Other`] what it cannot work with. The book has
/// [the list](https://idem-rs.github.io/idem/pools.html#settings-that-the-store-refuses). The pool must not open more
/// connections than `max_user_connections` and `max_connections` allow. A cut connection is detected at its next use, as an
/// error after which the call retries.
///
/// Other code on the pool may leave a transaction open on a connection, for example if the future of sqlx's `begin` is
/// dropped. On MariaDB a statement of the store fails there and changes nothing; the store closes that connection, and
/// takes another one. MySQL does not tell, so what the store writes there is lost when the connection is closed: on
/// MySQL, give the store a pool of its own.
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
/// can be missing, and their calls run again.
///
/// # Group Replication
///
/// An acknowledged outcome survives the loss of a minority of a MySQL group. Lead the connections to the primary: a
/// secondary refuses claims with [`StoreErrorKind::ReadOnly`]. With `group_replication_consistency =
/// BEFORE_ON_PRIMARY_FAILOVER`, the default since MySQL 8.4, a new primary answers after it has applied what the old one
/// acknowledged. A member without a majority does not answer writes, unless
/// `group_replication_unreachable_majority_timeout` is set.
///
/// If all members accept writes, set `group_replication_consistency = BEFORE`, or send all transitions to one member:
/// another one may not have applied yet what one has acknowledged. [`connect`](Self::connect) and
/// [`migrate`](Self::migrate) detect this form. If you change a running group to it, restart the processes. The tables
/// comply with `group_replication_enforce_update_everywhere_checks`, except that the isolation level must not be
/// `SERIALIZABLE`. A write that conflicts with one of another member is rolled back at its commit. The store retries its
/// own statements; a transactional call fails with [`StoreErrorKind::Conflict`] as on Galera.
///
/// # Galera
///
/// Processes may use different nodes of a MariaDB Galera Cluster, and a process may change its node at any time.
/// [`connect`](Self::connect) and [`migrate`](Self::migrate) detect Galera. Each statement of the store then first waits
/// until its node has applied what all nodes had committed before (`wsrep_sync_wait`), which takes an exchange between
/// the nodes. Percona XtraDB Cluster cannot set this for one statement: set `wsrep_sync_wait = 7` in its configuration.
///
/// - Conflicting writes of two nodes appear as deadlocks. The store retries its own statements. A transactional call
///   whose `COMMIT` loses is rolled back as a whole, and fails with [`StoreErrorKind::Conflict`], because the lock of its
///   record holds on one node only. Its body has run, and must do nothing that a rollback does not undo. If callers of
///   one key often use different nodes, send them to one.
/// - A node that was cut off from the majority refuses every statement. These calls fail with
///   [`StoreErrorKind::Unavailable`], and the store closes the connection, so that a proxy can lead the next one to
///   another node. A `COMMIT` whose node loses the majority meanwhile may have taken effect or not. As after any lost
///   reply, the engine then reads the record.
/// - Leases and retentions are counted by the clock of the node that runs a statement. Keep the clocks synchronised.
///
/// # Transactions
///
/// A transactional call (`tx = ...`) holds one connection of the pool while its body runs, with the default isolation
/// level of the connection. Until its end it also holds a shared lock on the only row of the table
/// `idem_records_fencing_floor`, which a purge has to change once per retention. The purge does not wait for that row,
/// because every claim would wait behind it. After a second of tries the purge fails with [`StoreErrorKind::Conflict`],
/// and the purger tries again at its next interval. On MySQL, or if transactions have held the row without a gap for
/// five minutes, the purge waits for them for a second, and claims wait as well.
///
/// Statements that define tables or other objects commit the transaction half way: keep them out of the body. The call
/// fails with [`InvalidCall::CommittedInBody`](crate::error::InvalidCall::CommittedInBody), and its record is
/// INTERRUPTED. In a step ([`step_tx`](crate::Attempt::step_tx)) such a statement looks like a deadlock, and what came
/// before it is committed again by each attempt.
///
/// While a transaction of a call's own is open, `autocommit` is off on its connection. A deadlock that the body ignores
/// then undoes the whole body. The text that begins the transaction also sets `completion_type` to 0 for the session.
///
/// # Clock
///
/// The server's clock decides, in UTC, in microseconds, read when a statement begins. The session's time zone does not
/// matter. If the clock is set back, or is behind after a failover, leases and retentions last longer by that amount.
///
/// # Size of results
///
/// A result has to fit into one packet. `max_allowed_packet` is 64 MiB by default in MySQL and 16 MiB in MariaDB.
/// In a transaction of the caller's, a result is sent as text and may have half of that size. InnoDB needs a redo log of
/// ten times the largest result. A result that is too large is [unrecorded](crate::Error::Unrecorded), and in a
/// transaction it is committed as such together with the effect. The connection is not lost.
#[derive(Debug, Clone)]
pub struct MySqlStore {
    pub(super) pool: Connections<MySql>,
    statements: Arc<Statements>,
    claims: Batcher<ClaimBatch>,
    completions: Batcher<CompletionBatch>,
    /// True if the server returns the rows that an insert conflicts with, as MariaDB does outside of Galera.
    returns_rows: Arc<AtomicBool>,
    /// Time since which every attempt to raise the fencing floor found its row locked.
    starved_since: Arc<Mutex<Option<Instant>>>,
    /// Set once the settings of a connection were found usable.
    has_usable_settings: Arc<OnceCell<()>>,
}

impl MySqlStore {
    /// Opens a store with its own pool of up to ten connections. Call [`migrate`](Self::migrate) before the first
    /// claim.
    ///
    /// A caller waits up to 5 seconds for a connection. The pool opens connections when they are needed, closes those that
    /// were idle for 3 minutes, and replaces those that are 30 minutes old. The driver has no TCP keep-alive; the store
    /// notices within two seconds that a connection does not answer.
    ///
    /// The parameter `ssl-mode` of the URL chooses encryption, `ssl-ca`, `ssl-cert` and `ssl-key` name certificates (feature
    /// `tls-rustls`). A password that changes is given to the pool: `store.pool().set_connect_options(..)`.
    ///
    /// # Errors
    /// [`StoreErrorKind::Other`] if this is not a URL of a MySQL server, or a certificate is not accepted,
    /// [`Unavailable`](StoreErrorKind::Unavailable) if no server answers within five seconds,
    /// [`Denied`](StoreErrorKind::Denied) for a wrong password or client certificate, and [`Schema`](StoreErrorKind::Schema) for a database
    /// that does not exist. A user without privileges on the missing database gets `Denied` as well.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing remains.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let schemes = ["mysql", "mariadb"];
        let options: MySqlConnectOptions = sql::reach(url, schemes, identity, error).await?;
        let pool = sql::pool_options::<MySql>(10).connect_lazy_with(options);
        let store = Self::new(pool);
        store.detect_cluster().await?;
        Ok(store)
    }

    /// Creates a store on the caller's pool. It does nothing until it is used. Call [`migrate`](Self::migrate) first.
    pub fn new(pool: MySqlPool) -> Self {
        Self::on(Connections::to_server(pool), Table::default())
    }

    fn on(pool: Connections<MySql>, table: Table) -> Self {
        Self {
            pool,
            statements: Arc::new(Statements::new(table)),
            claims: Batcher::for_statements(),
            completions: Batcher::for_statements(),
            returns_rows: Arc::new(AtomicBool::new(true)),
            starved_since: Arc::default(),
            has_usable_settings: Arc::default(),
        }
    }

    /// Uses a table with this name instead of `idem_records`. Three further tables are named after it.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] if the name is not 1 to 48 ASCII letters, digits and underscores, begins with a
    /// digit, or is reserved.
    pub fn with_table(self, name: &str) -> Result<Self, StoreError> {
        let schema = self.statements.table.schema.as_deref();
        let table = Table::new(schema, name)?;
        Ok(self.with(table))
    }

    /// Uses tables in this database, which must exist, instead of the default database of the connections.
    ///
    /// # Errors
    /// Those of [`with_table`](Self::with_table), for the name of the database.
    pub fn with_schema(self, name: &str) -> Result<Self, StoreError> {
        let table = Table::new(Some(name), &self.statements.table.name)?;
        Ok(self.with(table))
    }

    fn with(self, table: Table) -> Self {
        let mut store = Self::on(self.pool, table);
        store.has_usable_settings = self.has_usable_settings;
        if self.statements.is_galera() {
            store.use_galera();
        } else if self.statements.has_other_writers() {
            store.statements.expect_other_writers();
        }
        store
    }

    /// Adapts the statements to other servers that accept writes, if there are any.
    async fn detect_cluster(&self) -> Result<(), StoreError> {
        match Cluster::of(&self.pool).await? {
            Cluster::Galera => self.use_galera(),
            Cluster::GroupOfPrimaries => self.statements.expect_other_writers(),
            Cluster::None | Cluster::Group => {}
        }
        Ok(())
    }

    /// Refuses settings of the sessions that void what the store says. They are read before the first statement: from a
    /// connection of the pool, or from the caller's, because the pool may have no other one.
    async fn examine_settings<F>(&self, read: impl FnOnce() -> F) -> Result<(), sqlx::Error>
    where
        F: Future<Output = Result<Settings, sqlx::Error>>,
    {
        let examine = || async { read().await?.require_usable() };
        let examined = self.has_usable_settings.get_or_try_init(examine).await;
        examined.copied()
    }

    fn use_galera(&self) {
        self.statements.synchronize();
        self.returns_rows.store(false, Ordering::Relaxed);
    }

    /// The connection pool, for the application's own statements.
    pub fn pool(&self) -> &MySqlPool {
        &self.pool
    }

    /// Creates the tables or migrates them to the current version. Safe to call at every start, and from many processes
    /// concurrently: a lock of the server (`GET_LOCK`), on a connection that is closed afterwards, admits one process
    /// at a time. The applied versions are stored in a separate table (`idem_records_migrations`), apart from the
    /// application's own migrations. The SQL is in `migrations/mysql` of this crate.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] if a later version of this crate created the tables without declaring that they work with
    /// this one, [`Conflict`](StoreErrorKind::Conflict) if another process migrates for longer than a minute, and those of any
    /// write.
    ///
    /// # Cancel safety
    /// If the future is dropped, each statement of a migration is applied or not applied, and the lock is released.
    /// Call this method again.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.examine_settings(|| Settings::of(&self.pool))
            .await
            .map_err(error)?;
        self.detect_cluster().await?;
        migrate::run(&self.pool, &self.statements.table, &migrate::RECORDS).await
    }
}

impl Executor for MySqlStore {
    fn store(&self) -> &MySqlStore {
        self
    }

    fn own_statements(&self) -> &MySqlStatements {
        &self.statements
    }

    async fn execute(&self, query: &Query<'_>) -> Result<Executed, sqlx::Error> {
        self.examine_settings(|| Settings::of(&self.pool)).await?;
        retry_undone(|| run(&self.pool, query)).await
    }
}

impl Backend for MySqlStore {
    type Row = MySqlRow;

    const RECORD_COLUMNS: usize = sql::text_row::COLUMNS;

    async fn statements(&self) -> Result<&sql::SharedStatements, StoreError> {
        Ok(&self.statements.shared)
    }

    fn record(row: &MySqlRow) -> Result<Record, StoreError> {
        sql::text_row::record(row)
    }

    async fn read(&self, query: Query<'_>) -> Result<Vec<MySqlRow>, StoreError> {
        Ok(self.execute(&query).await.map_err(error)?.rows)
    }

    /// sqlx makes the server report the rows that a statement matched, not those that it changed.
    async fn write(&self, query: Query<'_>) -> Result<u64, StoreError> {
        let mut executed = self.execute(&query).await.map_err(error)?;
        // A statement that Galera replays after a conflict takes effect, and reports no row. Each one may be repeated.
        if executed.done.rows_affected() == 0 && self.statements.is_galera() {
            executed = self.execute(&query).await.map_err(error)?;
        }
        Ok(executed.done.rows_affected())
    }
}

impl MySqlStore {
    async fn insert(&self, claim: &ClaimRequest) -> Result<InsertResult, StoreError> {
        let run_single = || claiming::insert(self, claim);
        if !self.returns_rows.load(Ordering::Relaxed) {
            return Box::pin(run_single()).await;
        }
        let executor = || ClaimBatch(self.clone());
        self.claims
            .submit(executor, |sender| (claim.clone(), sender), run_single)
            .await
    }
}

impl SqlStore for MySqlStore {
    fn template(&self) -> Template {
        let is_galera = self.statements.is_galera();
        MySqlStatements::template(&self.statements.table, On::Pool, is_galera)
    }

    fn table_name(&self) -> &str {
        &self.statements.table.name
    }

    fn claim_concurrency(&self) -> usize {
        match self.returns_rows.load(Ordering::Relaxed) {
            true => sql::concurrency::BATCHED,
            false => sql::concurrency::of_pool(self.pool.options().get_max_connections()),
        }
    }

    fn bottleneck(&self) -> Option<String> {
        self.pool.bottleneck()
    }

    /// If other servers accept writes, in a transaction that conflicts with a takeover on another one.
    async fn save_new_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        if !self.statements.has_other_writers() {
            return sql::save_new_step(self, owner, name, payload).await;
        }
        sql::retry_transaction(|| async move {
            let mut transaction = self.begin().await?;
            let on = InTransaction::new(self, &mut transaction);
            let saved = sql::save_new_step(&on, owner, name, payload).await?;
            self.commit(transaction).await?;
            Ok(saved)
        })
        .await
    }

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
                return claiming::read_instead(self, claim, error).await;
            }
            Err(error) => return Err(error),
        };
        if !record.is_expired() && !claim.may_claim(&record) {
            return Ok(Some(ClaimOutcome::Existing(Box::new(record))));
        }
        claiming::claim_existing(self, claim).await
    }

    async fn try_take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<Option<ClaimOutcome>, StoreError> {
        claiming::try_take_over(self, observed, claim).await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        // MySQL cannot limit how long a statement waits for a row: one locked record would delay the whole batch.
        if !self.returns_rows.load(Ordering::Relaxed) && !self.statements.is_galera() {
            return Box::pin(sql::complete(self, owner, outcome)).await;
        }
        let executor = || CompletionBatch(self.clone());
        self.completions
            .complete(self, executor, owner, outcome)
            .await
    }

    /// Raises the fencing floor, because the record is then deleted only if it has exactly this fencing token.
    async fn before_erasing(&self, observed: &Observation) -> Result<Resolved, StoreError> {
        let there = sql::read_current(self, &observed.id).await?;
        if there.is_none_or(|record| record.observation() != *observed) {
            return Ok(Resolved::Stale);
        }
        fencing_floor::raise_above(self, observed.fencing_token).await?;
        Ok(Resolved::Done)
    }

    /// As above.
    async fn before_erasing_all(&self, highest: FencingToken) -> Result<(), StoreError> {
        fencing_floor::raise_above(self, highest).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        if *resolution == Resolution::Erase
            && self.before_erasing(observed).await? == Resolved::Stale
        {
            return Ok(Resolved::Stale);
        }
        sql::resolve(self, observed, resolution).await
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        purge::purge(self, limit, as_of).await
    }
}

sql::store!(MySqlStore);

impl SqlOperator for MySqlStore {
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
