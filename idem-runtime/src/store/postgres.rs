//! Store of records in PostgreSQL.

use std::sync::Arc;

use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{PgPool, Postgres};
use tokio::sync::OnceCell;

use crate::error::{StoreError, StoreErrorKind};
use crate::record::{Observation, Outcome, Owner, Payload, Record, Timestamp};
use crate::store::operator::{Finding, MigrationPlan, OptionalIndex};
use crate::store::sql::{
    self, Backend, Batcher, Connections, Query, Readable, Returning, SqlOperator, SqlStore,
    Statement, Table, Template,
};
use crate::store::{ClaimOutcome, ClaimRequest, FencedWrite, Purged, Resolution, Resolved};

mod batch;
mod claim_row;
mod connections;
mod doctor;
mod form;
mod forms;
pub(super) mod migrate;
mod pooling;
mod rows;
mod session;
mod settings;
pub(super) mod statements;
mod transaction;

use batch::{StepRequest, Transition, TransitionBatch};
use claim_row::{ClaimRow, read_claim_row};
use connections::{ACTIVE_TRANSACTION, NOT_ALONE, Protocol, give_back, is_not_alone};
pub use form::PostgresForm;
use forms::Forms;
use rows::{CONTENT_LEN, id_mismatch};
#[cfg(feature = "outbox")]
pub(super) use settings::examine;
use settings::{Settings, Unusable};
use statements::{CLAIM_RESULT, OUT_OF_DATE, On, PostgresStatements};

/// Store of records in PostgreSQL 12 or later, or in another database that speaks PostgreSQL. Cloning is cheap and shares
/// the connections.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use idem_runtime::PostgresStore;
///
/// let store = PostgresStore::new(pool);
/// store.migrate().await?;
/// # Ok(()) }
/// ```
///
/// A first call takes two statements. A replay takes one, which writes nothing. Each statement is its own transaction,
/// and no connection is held while the body runs. If many calls begin or end concurrently, they share statements and
/// commits (group commit). A call that is alone waits for no other.
///
/// # Forms
///
/// The tables have one of two forms. [`migrate`](Self::migrate) chooses [`PostgresForm::Standard`] if the server has
/// PL/pgSQL, triggers and advisory locks, and [`PostgresForm::Portable`] otherwise, for example on CockroachDB. The
/// tables keep their form. The store reads the form once, before its first statement that depends on it. Both forms give
/// the same answers. In the portable form:
///
/// - Each call has statements of its own.
/// - A duplicate of a transactional call waits for the open transaction up to 50 milliseconds before it learns that
///   another caller runs the call.
/// - Deleting records by hand does not raise the fencing floor.
///
/// The portable form is experimental: it was tested on PostgreSQL only. The book says
/// [what is known about other databases](https://idem-rs.github.io/idem/portable.html).
///
/// # Durability
///
/// An acknowledged write survives a crash of the server as any commit does, so durability depends on
/// `synchronous_commit`. With `off`, a crash of the server (not of the process) loses the last results, about half a
/// second of them, and their calls run again. With `on` and asynchronous replicas, a failover loses what the new
/// primary had not received. To prevent this, name the replicas in `synchronous_standby_names`. `fsync = off`
/// guarantees nothing. Statements must reach the primary: a standby can replay the outcomes that it has, but refuses
/// claims.
///
/// # Isolation
///
/// The statements are written for READ COMMITTED, the default. They are correct under any other
/// `default_transaction_isolation` as well. The server then reports conflicts, and deadlocks with transactions of the
/// application. The store retries these a number of times and then returns [`StoreErrorKind::Conflict`].
///
/// # Connections
///
/// A pool made by [`connect`](Self::connect) does not ping before each transition. A pool that leaves sqlx's
/// `test_before_acquire` on pays a round trip for each ping. Without the ping, a transition on a connection that the
/// server has closed fails with [`StoreErrorKind::Unavailable`], and the next transition gets another connection. A
/// call needs a connection only for its two transitions, so a pool may be much smaller than the number of calls in
/// flight. A body that takes connections from the same pool competes with them. Statements are prepared once per
/// connection. Behind PgBouncer in transaction mode, let it track them (`max_prepared_statements`, version 1.21 or
/// later) or use [`without_prepared_statements`](Self::without_prepared_statements).
///
/// The first statement of a store reads settings of its connection, and refuses with [`StoreErrorKind::Other`] what it
/// cannot work with, such as a pool that is larger than the `CONNECTION LIMIT` of its user. The book has
/// [the list](https://idem-rs.github.io/idem/pools.html#settings-that-the-store-refuses).
///
/// # Failover
///
/// A connection whose server refuses writes is closed, and its error [is retryable](StoreError::is_retryable), so a pool
/// finds the new primary behind an address that moved. sqlx connects to one host, see the book's page on
/// [failover](https://idem-rs.github.io/idem/failover.html).
///
/// # Transactions
///
/// A transactional call (`tx = ...`) holds one connection of the pool while its body runs, with the default isolation
/// level of the connection. In the standard form, duplicates detect the call by an advisory lock of its transaction, in
/// the key space of one 64-bit number. A leased call with the same operation and key, for example from before the
/// function became transactional, waits for the row up to the store's time-out.
///
/// # Clock
///
/// The server's clock decides, in microseconds, read when a statement arrives. If the clock is set back, leases and
/// retentions last longer by that amount. Fencing tokens never decrease with the clock, unless the table is emptied by
/// `TRUNCATE`.
///
/// In a database of several nodes, the clock is that of the node that receives the statement. The clocks of two nodes
/// may differ by up to a limit, 500 milliseconds by default on CockroachDB and YugabyteDB. A lease may lapse that much
/// early, with the consequences of one that was not renewed in time. So make leases much longer than this limit. Fencing
/// tokens of a record never decrease there either.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    pub(super) pool: Connections<Postgres>,
    protocol: Protocol,
    forms: Arc<Forms>,
    batcher: Batcher<TransitionBatch>,
    /// Set once the settings of a connection were found usable.
    has_usable_settings: Arc<OnceCell<()>>,
}

/// Begins a transaction of the store's own, whatever the connection's default isolation level is. The statements are
/// written for this level, at which the server reports no serialization failures.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, NOT DEFERRABLE";
/// Begins a transaction of the connection's default isolation level.
///
/// Only transactions that are read-only and serializable can be deferrable. But within a transaction that has read or
/// written something the mode cannot be named, so that this fails where other code has left one open.
const BEGIN_ANY: &str = "BEGIN NOT DEFERRABLE";

/// Message for prepared statements that a pooler mixes up.
const UNTRACKED: &str = "a pooler in front of the server mixes up the prepared statements of its clients, use \
     `PostgresStore::without_prepared_statements`, or set `max_prepared_statements` of PgBouncer 1.21 or later";

/// Maximum number of tries of a transition that the server rolls back because of a conflict. A try that was rolled back
/// has changed nothing.
const TRIES: u32 = 20;

impl PostgresStore {
    /// Opens a store with its own pool of at most 16 connections to this `postgres://` URL. Call
    /// [`migrate`](Self::migrate) before the first use.
    ///
    /// A caller waits up to 5 seconds for a connection. The pool opens connections when they are needed, closes those that
    /// were idle for 3 minutes, and replaces those that are 30 minutes old. The driver has no TCP keep-alive; the store
    /// notices within two seconds that a connection does not answer.
    ///
    /// The parameter `sslmode` of the URL chooses encryption, `sslrootcert`, `sslcert` and `sslkey` name certificates (feature
    /// `tls-rustls`). A password that changes is given to the pool: `store.pool().set_connect_options(..)`.
    ///
    /// # Errors
    /// [`StoreErrorKind::Unavailable`] if no server answers within five seconds, [`Denied`](StoreErrorKind::Denied) if
    /// it rejects the user, the password or the client's certificate, [`Schema`](StoreErrorKind::Schema) if it has no such database, and
    /// [`Other`](StoreErrorKind::Other) if the URL is invalid, or a certificate is not accepted.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing remains.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let options = sql::reach(url, ["postgres", "postgresql"], portable, error).await?;
        let pool = sql::pool_options::<Postgres>(16).connect_lazy_with(options);
        let store = Self::new(pool);
        store.pool.note_answer();
        Ok(store)
    }

    /// Creates a store on the caller's pool. It does nothing until it is used. Call [`migrate`](Self::migrate) first.
    pub fn new(pool: PgPool) -> Self {
        let pool = Connections::to_server(pool);
        Self::on(pool, Forms::new(Table::default(), None))
    }

    /// Sends each statement as text that contains its values (simple query protocol), instead of preparing it once on each
    /// connection. This store then works behind a pooler that gives each transaction another connection of the server
    /// and does not track prepared statements, such as PgBouncer before version 1.21 in transaction mode.
    ///
    /// A call still takes as many round trips, but the server parses and plans each statement anew.
    ///
    /// The option does not change how the application's own statements are sent. In the body of a transactional call
    /// (`tx = ...`) these need [`persistent(false)`](sqlx::query::Query::persistent) behind such a pooler.
    #[must_use]
    pub fn without_prepared_statements(self) -> Self {
        Self {
            protocol: Protocol::Simple,
            ..self
        }
    }

    /// Uses a table with this name instead of `idem_records`. Its index, trigger and function and three further tables
    /// are named after it.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] if the name is not 1 to 48 ASCII letters, digits and underscores, begins with a
    /// digit, or is reserved.
    pub fn with_table(self, name: &str) -> Result<Self, StoreError> {
        let schema = self.forms.table.schema.clone();
        self.with(schema.as_deref(), name)
    }

    /// Uses tables in this schema, which must exist, instead of the first schema in the search path of each connection.
    ///
    /// # Errors
    /// Those of [`with_table`](Self::with_table), for the name of the schema.
    pub fn with_schema(self, schema: &str) -> Result<Self, StoreError> {
        let name = self.forms.table.name.clone();
        self.with(Some(schema), &name)
    }

    fn with(self, schema: Option<&str>, name: &str) -> Result<Self, StoreError> {
        let forms = Forms::new(Table::new(schema, name)?, self.forms.requested);
        Ok(self.with_forms(forms))
    }

    /// Uses tables of this form, and does not read the form from the database.
    ///
    /// This is for tests, and for an application that creates the tables with its own migrations in the portable form.
    /// By default, [`migrate`](Self::migrate) chooses the form, and the store finds it.
    ///
    /// [`migrate`](Self::migrate) returns [`StoreErrorKind::Schema`] if the tables exist in another form. Without that
    /// check, statements for another form than that of the tables fail.
    #[must_use]
    pub fn with_form(self, form: PostgresForm) -> Self {
        let forms = Forms::new(self.forms.table.clone(), Some(form));
        self.with_forms(forms)
    }

    /// A store with other statements on the same pool. It shares no batches with this one.
    fn with_forms(self, forms: Forms) -> Self {
        Self {
            protocol: self.protocol,
            ..Self::on(self.pool, forms)
        }
    }

    /// Form of the tables. Returns `None` if there are no tables and no form was requested.
    ///
    /// # Errors
    /// Those of any read.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing remains.
    pub async fn form(&self) -> Result<Option<PostgresForm>, StoreError> {
        self.own_statements().await?;
        Ok(self.forms.known())
    }

    fn on(pool: Connections<Postgres>, forms: Forms) -> Self {
        Self {
            pool,
            protocol: Protocol::default(),
            forms: Arc::new(forms),
            batcher: Batcher::for_statements(),
            has_usable_settings: Arc::default(),
        }
    }

    /// Refuses settings that the store cannot work with. They are read before the first statement: from a connection of the
    /// pool, or from the caller's, because the pool may have no other one.
    async fn examine_settings<F>(&self, read: impl FnOnce() -> F) -> Result<(), sqlx::Error>
    where
        F: Future<Output = Result<Settings, sqlx::Error>>,
    {
        let examine = || async {
            let settings = read().await?;
            settings.require_usable(&self.pool, &self.forms.table).await
        };
        let examined = self.has_usable_settings.get_or_try_init(examine).await;
        examined.copied()
    }

    /// Statements for the form of the tables, which is read if it is unknown. Refuses settings that the store cannot work
    /// with.
    async fn own_statements(&self) -> Result<&PostgresStatements, StoreError> {
        self.examine_settings(|| Settings::of(&self.pool))
            .await
            .map_err(error)?;
        self.forms.statements(&self.pool).await
    }

    /// The connection pool, for the application's own statements.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Creates the tables or migrates them to the current version. Safe to call at every start, and from many processes
    /// concurrently. The applied versions are stored in a separate table (`idem_records_migrations`, or
    /// `idem_records_portable` in the portable form), apart from the application's own migrations. The SQL is in
    /// `migrations/postgres` of this crate, so an application can also apply it with its own `sqlx::migrate!`.
    ///
    /// New tables get the form that the server can run, see [`PostgresForm`]. The server is asked for its version and
    /// features. Existing tables keep their form.
    ///
    /// Afterwards the store needs only `SELECT`, `INSERT`, `UPDATE` and `DELETE` on the tables, of which the audit needs
    /// less or nothing, and in the standard form `EXECUTE` on the functions `idem_records_alone`, `idem_records_begin` and
    /// `idem_records_reserve`, which every user has unless it was revoked. The book has
    /// [the privileges of each table](https://idem-rs.github.io/idem/migrations.html#privileges).
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] if a later version of this crate created the tables without declaring that they work with
    /// this one, they have another form than [`with_form`](Self::with_form) requested, the server lacks a feature, or the
    /// schema is missing;
    /// [`Denied`](StoreErrorKind::Denied) if the user may not create tables; [`Other`](StoreErrorKind::Other) if a pooler
    /// mixes up prepared statements, see [`without_prepared_statements`](Self::without_prepared_statements); and those
    /// of any write.
    ///
    /// # Cancel safety
    /// If the future is dropped, each migration is applied or not applied. Call this method again.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.examine_settings(|| Settings::of(&self.pool))
            .await
            .map_err(error)?;
        let form = migrate::run_for_records(&self.pool, &self.forms).await?;
        self.forms.set(form);
        if self.protocol == Protocol::Prepared {
            pooling::refuse_if_untracked(&self.pool).await?;
        }
        Ok(())
    }
}

impl Backend for PostgresStore {
    type Row = PgRow;

    const RECORD_COLUMNS: usize = CONTENT_LEN + 5;

    async fn statements(&self) -> Result<&sql::SharedStatements, StoreError> {
        Ok(&self.own_statements().await?.shared)
    }

    fn record(row: &PgRow) -> Result<Record, StoreError> {
        rows::record(row)
    }

    /// Reads all rows, even if one is enough: the commit comes after the last row, so a single row could acknowledge a
    /// write that is undone later.
    async fn read(&self, query: Query<'_>) -> Result<Vec<PgRow>, StoreError> {
        self.examine_settings(|| Settings::of(&self.pool))
            .await
            .map_err(error)?;
        let run = || async {
            let mut connection = self.pool.acquire().await?;
            let rows = self.protocol.rows(&mut connection, &query).await;
            give_back(connection, rows)
        };
        retry_conflicts(|| self.pool.watch(run()))
            .await
            .map_err(error)
    }

    async fn write(&self, query: Query<'_>) -> Result<u64, StoreError> {
        self.examine_settings(|| Settings::of(&self.pool))
            .await
            .map_err(error)?;
        let run = || async {
            let mut connection = self.pool.acquire().await?;
            let affected = self.protocol.affected(&mut connection, &query).await;
            give_back(connection, affected)
        };
        retry_conflicts(|| self.pool.watch(run()))
            .await
            .map_err(error)
    }
}

impl SqlStore for PostgresStore {
    fn template(&self) -> Template {
        let form = match self.forms.is_portable() {
            true => PostgresForm::Portable,
            false => PostgresForm::Standard,
        };
        PostgresStatements::template(&self.forms.table, form, On::Pool)
    }

    fn table_name(&self) -> &str {
        &self.forms.table.name
    }

    /// Databases that are only similar to PostgreSQL compare texts in their own ways.
    fn finds_inner_scopes(&self) -> bool {
        !self.forms.is_portable()
    }

    fn claim_concurrency(&self) -> usize {
        match self.forms.is_portable() {
            true => sql::concurrency::of_pool(self.pool.options().get_max_connections()),
            false => sql::concurrency::BATCHED,
        }
    }

    fn bottleneck(&self) -> Option<String> {
        self.pool.bottleneck()
    }

    async fn try_claim(&self, claim: &ClaimRequest) -> Result<Option<ClaimOutcome>, StoreError> {
        let record = match self.find_or_create(claim).await? {
            ClaimRow::Created(granted) => return Ok(Some(ClaimOutcome::Granted(granted))),
            ClaimRow::LostRace => return Ok(None),
            ClaimRow::Locked(_) => return Err(locked()),
            ClaimRow::IdMismatch => return Err(id_mismatch(self, claim).await),
            ClaimRow::Record(record) => record,
        };
        if !record.is_expired() && !claim.may_claim(&record) {
            return Ok(Some(existing(record)));
        }
        let query = sql::claim_query(&self.own_statements().await?.claim_again, claim);
        sql::claim_returning(self, query).await
    }

    async fn try_take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<Option<ClaimOutcome>, StoreError> {
        let take_over = &self.own_statements().await?.take_over;
        sql::try_take_over(self, take_over, observed, claim).await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        if self.own_statements().await?.form == PostgresForm::Portable {
            return sql::complete(self, owner, outcome).await;
        }
        let executor = || TransitionBatch::new(self.clone());
        self.batcher.complete(self, executor, owner, outcome).await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        let form = self.own_statements().await?.form;
        if form == PostgresForm::Portable {
            return sql::release(self, owner).await;
        }
        let run_single = || async { Ok::<_, StoreError>(sql::release(self, owner).await) };
        let executor = || TransitionBatch::new(self.clone());
        let request = |sender| Transition::Release((*owner, sender));
        self.batcher.submit(executor, request, run_single).await?
    }

    async fn save_new_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let form = self.own_statements().await?.form;
        let run_single = || sql::save_new_step(self, owner, name, payload);
        if form == PostgresForm::Portable || sql::is_large(payload) {
            return Box::pin(run_single()).await;
        }
        let executor = || TransitionBatch::new(self.clone());
        let request = |sender| {
            let (name, payload) = (name.to_owned(), payload.clone());
            let owner = *owner;
            let step = StepRequest {
                owner,
                name,
                payload,
            };
            Transition::SaveStep((step, sender))
        };
        self.batcher.submit(executor, request, run_single).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        sql::resolve(self, observed, resolution).await
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        let PostgresStatements { purge, requeue, .. } = self.own_statements().await?;
        sql::purge(self, purge, requeue, limit, as_of).await
    }
}

impl Returning for PostgresStore {
    async fn write_returning(&self, query: Query<'_>) -> Result<Vec<PgRow>, StoreError> {
        self.read(query).await
    }
}

sql::store!(PostgresStore);

impl SqlOperator for PostgresStore {
    async fn plan(&self) -> Result<MigrationPlan, StoreError> {
        migrate::plan_for_records(&self.pool, &self.forms).await
    }

    async fn apply(&self) -> Result<(), StoreError> {
        self.migrate().await
    }

    /// A `CREATE INDEX CONCURRENTLY` that fails leaves an index that costs writes and that no plan uses.
    async fn drop_unusable_index(&self, index: OptionalIndex) -> Result<(), StoreError> {
        let index = self
            .forms
            .table
            .quoted('"', &format!("_{}", index.as_str()));
        let drop = format!("DROP INDEX CONCURRENTLY IF EXISTS {index}");
        let drop = Statement::new(&drop, statements::DIALECT.placeholders);
        self.write(drop.query()).await.map(|_| ())
    }

    async fn findings(&self) -> Vec<Finding> {
        self.examine().await
    }
}

impl PostgresStore {
    /// Reads the record of a claim, or creates it.
    async fn find_or_create(&self, claim: &ClaimRequest) -> Result<ClaimRow, StoreError> {
        let statements = self.own_statements().await?;
        let executor = || TransitionBatch::new(self.clone());
        let request = |sender| Transition::Claim((claim.clone(), sender));
        let run_single = || async {
            let query = self.forms.claim_query(&statements.claim, claim);
            let rows = self.read(query).await?;
            let row = rows.first().ok_or_else(|| sql::corrupt("id"))?;
            if row.number_or_null(CLAIM_RESULT).map_err(sql::unreadable)? == Some(OUT_OF_DATE) {
                let record = sql::read_current(self, &claim.id).await?;
                return Ok(record.map_or(ClaimRow::LostRace, ClaimRow::Record));
            }
            read_claim_row(row, claim)
        };
        if statements.form == PostgresForm::Portable {
            return run_single().await;
        }
        self.batcher.submit(executor, request, run_single).await
    }
}

/// Error of a leased claim while a transaction holds its record.
fn locked() -> StoreError {
    StoreError::new(
        StoreErrorKind::Conflict,
        "an open transaction works on this key, try again after its end",
    )
}

fn existing(record: Record) -> ClaimOutcome {
    ClaimOutcome::Existing(Box::new(record))
}

/// Retries a transition that the server rolled back in favour of another one.
pub(super) async fn retry_conflicts<T, F>(run: impl FnMut() -> F) -> Result<T, sqlx::Error>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    let is_undone = |error: &sqlx::Error| is_conflict(error) || is_not_alone(error);
    sql::retry(TRIES, is_undone, sql::random_pause, run).await
}

/// Returns true for a serialization failure and a deadlock, see
/// <https://www.postgresql.org/docs/current/mvcc-serialization-failure-handling.html>.
fn is_conflict(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(answer)
        if matches!(answer.code().as_deref(), Some("40001" | "40P01")))
}

/// Converts an error by its SQLSTATE, see <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
pub(super) fn error(source: sqlx::Error) -> StoreError {
    use StoreErrorKind::{
        Conflict, Corrupt, Denied, Full, Other, ReadOnly, Schema, Timeout, Unavailable,
    };
    if matches!(source, sqlx::Error::PoolTimedOut) {
        return StoreError::new(
            Unavailable,
            "no connection could be had in time; check that the server answers and allows as many connections as the pool may \
             open, or give the pool more connections",
        )
        .with_source(source);
    }
    if let sqlx::Error::AnyDriverError(unusable) = &source
        && let Some(Unusable { problem, remedy }) = unusable.downcast_ref()
    {
        return StoreError::new(Other, format!("{problem}; {remedy}")).with_source(source);
    }
    sql::error_of_server(source, |answer| {
        let code = answer.code().unwrap_or_default();
        match &*code {
            // Under the name of a statement there is another one, or none.
            "42P05" | "26000" => (Other, UNTRACKED),
            "08P01" if answer.message().contains("prepared statement") => (Other, UNTRACKED),
            "28P01" | "28000" => (
                Denied,
                "the server refused the user, check user name, password and pg_hba.conf; it may require an encrypted connection \
                 (`sslmode=verify-full`) or a certificate of this client (`sslcert`, `sslkey`)",
            ),
            "42501" => (Denied, sql::LACKS_PRIVILEGE),
            "3D000" => (
                Schema,
                "there is no such database; create it, or correct its name in the URL, which is the user's if there is none",
            ),
            "42P01" | "42703" | "42883" | "3F000" => (
                Schema,
                "a table, column or function of the store is missing, run `migrate()`",
            ),
            // Occurs only if the database has no encoding: then it checks text on output but not on input.
            "22021" => (
                Corrupt,
                "a row holds text that no idem store writes; repair it from a backup, because its work may have been done",
            ),
            // A sum or difference of times that no store writes.
            "22003" => (
                Corrupt,
                "a row holds a number that no idem store writes; repair it from a backup, because its work may have been done",
            ),
            "25006" => (
                ReadOnly,
                "the database is read-only, connect to the primary",
            ),
            "53100" => (Full, "the server's disk is full, make room"),
            // Also when the table of locks is full, which is no matter of the machine's memory.
            "53200" => (
                Full,
                "the server is out of memory or its table of locks is full; see the cause, then make transactions and pools \
                 smaller, or raise max_locks_per_transaction or the server's memory",
            ),
            "53300" => (
                Unavailable,
                "the server has no connection left, raise max_connections or make pools smaller",
            ),
            "57P01" | "57P02" | "57P03" => {
                (Unavailable, "the server is stopping or starting, try again")
            }
            "57P05" => (
                Unavailable,
                "the server closed a connection that was idle for longer than idle_session_timeout; give the pool a shorter \
                 idle time-out",
            ),
            "57014" => (
                Timeout,
                "the server cancelled the statement, look at statement_timeout",
            ),
            "25P03" | "25P04" => (
                Timeout,
                "the server ended a transaction that took too long, look at idle_in_transaction_session_timeout and \
                 transaction_timeout",
            ),
            NOT_ALONE | ACTIVE_TRANSACTION => (
                Unavailable,
                "some code has left a transaction open on each connection of the pool that was tried, which are closed; \
                 end each transaction where it was begun, try again",
            ),
            "25P02" => (
                Other,
                "a statement of the transaction failed, so none of it can be committed: give its error back",
            ),
            // Two manual changes that got the same number in the audit.
            "23505" => (
                Conflict,
                "another change was made at the same moment, try again",
            ),
            "0A000" => (
                Schema,
                "the server lacks a feature that this needs: the documentation of the store says which databases have it",
            ),
            // CockroachDB: the transition may have been committed or not.
            "40003" => (
                Unavailable,
                "the server does not know whether the transition took effect, try again",
            ),
            "40001" | "40P01" => (
                Conflict,
                "the server rolled the transition back at each try because of others, try again",
            ),
            "55P03" => (
                Conflict,
                "another transaction held a lock for longer than lock_timeout, try again",
            ),
            code if code.starts_with("08") => (
                Unavailable,
                "the connection to the server failed, try again",
            ),
            _ => (Other, "the database refused the statement"),
        }
    })
}

/// Options that any pooler accepts. PgBouncer before version 1.20 refuses the parameter that sqlx sends for exact
/// floating-point numbers, which PostgreSQL 12 and later returns anyway.
fn portable(options: PgConnectOptions) -> PgConnectOptions {
    options.extra_float_digits(None)
}
