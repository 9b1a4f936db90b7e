//! Records in MySQL or MariaDB.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::{MySqlDatabaseError, MySqlPoolOptions, MySqlQueryResult, MySqlRow};
use sqlx::{AssertSqlSafe, MySql, MySqlPool};

use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::record::{Ending, Grant, Holder, Observation, Record, State, Timestamp, Token};
use crate::store::sql::{self, Backend, Query, Readable, Table};
use crate::store::{
    Claim, ClaimRequest, Fenced, Filter, Granted, Page, PageRequest, Purged, Resolution, Resolved,
    Store,
};

mod migrate;
mod statements;

use statements::Statements;

/// Records in MySQL 8 or later, or MariaDB 10.6 or later. Cloning is cheap and shares the connections.
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
/// A claim reads first: a replay is one statement, which locks nothing, writes nothing and waits for nobody. A first
/// claim is that and one insert, a completion one update. No transaction stays open between statements, and no
/// connection is held while the body runs.
///
/// # Pool
///
/// In a pool of your own turn `test_before_acquire` off, or each step pays for a ping, and leave `autocommit` on, as it
/// is by default: each step is a statement that commits by itself. The isolation level does not matter. Cut
/// connections are found when they are next used, which is an error that a call handles by trying again.
///
/// # Durability
///
/// A result that was acknowledged survives a crash of the server with `innodb_flush_log_at_trx_commit = 1`, the
/// default, and where the binary log is what a restart or a replica goes by, with `sync_binlog = 1`, the default of
/// MySQL but not of MariaDB. With less, the last results may be taken back, and their calls run again.
///
/// A replica that is promoted has what had reached it: with asynchronous replication acknowledged records can be
/// missing, and their calls run again. With Galera or Group Replication send all steps to one node, or turn on
/// `wsrep_sync_wait = 1` or `group_replication_consistency = BEFORE`: another node may not have applied yet what one has
/// acknowledged. Their certification conflicts are deadlocks to a client, and are tried again here.
///
/// # Clock
///
/// Time is the server's, in UTC, in microseconds, read where a statement begins; the session's time zone does not
/// matter. A clock that is put back, or is behind after a failover, makes leases and retentions last longer by as much.
///
/// # Size of results
///
/// A result has to fit into one packet: `max_allowed_packet` is 64 MiB in MySQL and 16 MiB in MariaDB unless the server
/// sets another, and InnoDB wants a redo log of ten times the largest.
#[derive(Debug, Clone)]
pub struct MySqlStore {
    pool: MySqlPool,
    statements: Arc<Statements>,
}

/// How often a statement is tried that was rolled back in favour of another's.
const TRIES: u32 = 8;
/// How often a claim looks again at a record that changed between its read and its write.
const ROUNDS: u32 = 16;
/// How many records one statement of a purge touches at most, to keep its locks short.
const BATCH: u32 = 512;

impl MySqlStore {
    /// Opens a pool of the store's own, of up to ten connections. [Migrate](Self::migrate) before the first claim.
    ///
    /// # Errors
    /// [`StoreErrorKind::Other`] where this is no URL of a MySQL server, [`Unavailable`](StoreErrorKind::Unavailable)
    /// where none answers within five seconds, [`Denied`](StoreErrorKind::Denied) for a wrong password, and
    /// [`Schema`](StoreErrorKind::Schema) for a database that is not there.
    ///
    /// # Cancel safety
    /// Dropped, it leaves nothing behind.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let pool = MySqlPoolOptions::new()
            .max_connections(10)
            .acquire_timeout(Duration::from_secs(5))
            .test_before_acquire(false)
            .connect(url)
            .await
            .map_err(error)?;
        Ok(Self::new(pool))
    }

    /// A store on the connections of a pool that the caller made. It does nothing until it is used; call
    /// [`migrate`](Self::migrate) first.
    pub fn new(pool: MySqlPool) -> Self {
        Self {
            pool,
            statements: Arc::new(Statements::new(Table::default())),
        }
    }

    /// The same store on a table of this name instead of `idem_records`. Two further tables are named after it.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] where the name is not 1 to 48 ASCII letters, digits and underscores, begins with a
    /// digit, or is reserved.
    pub fn with_table(mut self, name: &str) -> Result<Self, StoreError> {
        let schema = self.statements.table.schema.as_deref();
        self.statements = Arc::new(Statements::new(Table::new(schema, name)?));
        Ok(self)
    }

    /// The same store on tables in this database instead of the one that the connections are in. It has to be there.
    ///
    /// # Errors
    /// As [`with_table`](Self::with_table).
    pub fn with_schema(mut self, name: &str) -> Result<Self, StoreError> {
        let table = Table::new(Some(name), &self.statements.table.name)?;
        self.statements = Arc::new(Statements::new(table));
        Ok(self)
    }

    /// Makes the tables, or brings them up to date. Safe to call at every start, and from many processes at once: they
    /// take turns by a lock of the server (`GET_LOCK`), on a connection that is closed afterwards. What was applied is
    /// kept in a table of its own (`idem_records_migrations`), apart from the application's own migrations. The SQL is
    /// in `migrations/mysql` of this crate.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] where a later version of this crate made the tables,
    /// [`Conflict`](StoreErrorKind::Conflict) where another process migrates for longer than a minute, and those of any
    /// write.
    ///
    /// # Cancel safety
    /// Dropped, it leaves each statement of a migration applied or not applied, and the lock free; call it again.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        migrate::run(&self.pool, &self.statements.table).await
    }

    async fn execute(&self, query: &Query<'_>) -> Result<MySqlQueryResult, sqlx::Error> {
        retry_undone(|| query.build::<MySql>().execute(&self.pool)).await
    }

    /// The record, an expired one too.
    async fn look(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        let query = self.statements.shared.get.query();
        let rows = self.read(query.bytes(&id.as_bytes()[..])).await?;
        rows.first().map(sql::record).transpose()
    }

    async fn try_claim(&self, claim: &ClaimRequest) -> Result<Option<Claim>, StoreError> {
        let Some(record) = self.look(&claim.id).await? else {
            return self.insert(claim).await;
        };
        let may_be_granted = record.is_expired()
            || record.fingerprint == claim.fingerprint
                && (record.state == State::Released
                    || record.state == State::Running && record.token == Some(claim.token));
        if !may_be_granted {
            return Ok(Some(Claim::Existing(Box::new(record))));
        }
        let query = sql::claim_query(&self.statements.claim, claim);
        if self.write(query).await? == 0 {
            return Ok(None);
        }
        let record = self.look(&claim.id).await?;
        Ok(record.and_then(|record| granted_to(&claim.token, &record)))
    }

    /// The first claim. `INSERT IGNORE` would also ignore what is wrong with a value, and `ON DUPLICATE KEY UPDATE` lock
    /// the row of a duplicate.
    async fn insert(&self, claim: &ClaimRequest) -> Result<Option<Claim>, StoreError> {
        let query = sql::claim_query(&self.statements.insert, claim);
        match self.execute(&query).await {
            Ok(done) if done.rows_affected() == 1 && done.last_insert_id() > 0 => {
                // Neither server both inserts and returns a row, but both return the number that is the grant, and
                // this statement inserts only where that is the time.
                let number = done.last_insert_id().cast_signed();
                return Ok(Some(Claim::Granted(Granted {
                    grant: Grant::from_number(number),
                    attempt: 1,
                    first_claimed_at: Timestamp::from_micros(number),
                    on_crash: claim.on_crash,
                })));
            }
            Ok(done) if done.rows_affected() == 0 => {
                let query = sql::claim_query(&self.statements.insert_above, claim);
                match self.execute(&query).await {
                    Ok(_) => {}
                    Err(error) if number(&error) == Some(DUPLICATE) => return Ok(None),
                    Err(source) => return Err(error(source)),
                }
            }
            Ok(_) => {}
            Err(error) if number(&error) == Some(DUPLICATE) => return Ok(None),
            Err(source) => return Err(error(source)),
        }
        let record = self.look(&claim.id).await?;
        Ok(record.and_then(|record| granted_to(&claim.token, &record)))
    }

    async fn try_take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<Option<Claim>, StoreError> {
        let query = sql::take_over_query(&self.statements.take_over, observed, claim);
        let taken = self.write(query).await? > 0;
        let Some(record) = self.look(&claim.id).await? else {
            return Ok(None);
        };
        if let Some(granted) = granted_to(&claim.token, &record).filter(|_| taken) {
            return Ok(Some(granted));
        }
        Ok((!record.is_expired()).then(|| Claim::Existing(Box::new(record))))
    }

    /// Before a record is deleted, so that no claim after it gets a grant as low. Doing it without then deleting
    /// anything is harmless, so the two need no transaction.
    async fn raise(&self, grant: Grant) -> Result<(), StoreError> {
        let query = self.statements.raise.query().number(grant.number());
        self.write(query).await.map(drop)
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
            self.raise(Grant::from_number(highest)).await?;
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

    /// Runs a statement that ends in a list of ids, and tells how many rows it matched.
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
            // There are many lengths of lists, and a statement of each would push out what claims have prepared.
            let query = sqlx::query::<MySql>(AssertSqlSafe(Arc::clone(&text))).persistent(false);
            let query = first.iter().fold(query, |query, it| query.bind(*it));
            let query = ids.iter().fold(query, |query, id| query.bind(*id));
            query.execute(&self.pool)
        };
        let done = retry_undone(run).await.map_err(error)?;
        Ok(done.rows_affected())
    }
}

impl Backend for MySqlStore {
    type Row = MySqlRow;

    fn statements(&self) -> &sql::Statements {
        &self.statements.shared
    }

    async fn read(&self, query: Query<'_>) -> Result<Vec<MySqlRow>, StoreError> {
        retry_undone(|| query.build::<MySql>().fetch_all(&self.pool))
            .await
            .map_err(error)
    }

    /// sqlx asks the server for the rows that a statement matched, not for those it changed.
    async fn write(&self, query: Query<'_>) -> Result<u64, StoreError> {
        let done = self.execute(&query).await.map_err(error)?;
        Ok(done.rows_affected())
    }
}

#[async_trait]
impl Store for MySqlStore {
    async fn claim(&self, claim: &ClaimRequest) -> Result<Claim, StoreError> {
        for _ in 0..ROUNDS {
            if let Some(answer) = self.try_claim(claim).await? {
                return Ok(answer);
            }
        }
        Err(StoreError::new(
            StoreErrorKind::Conflict,
            "the record changed at each look, try again",
        ))
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        match self.try_take_over(observed, claim).await? {
            Some(answer) => Ok(answer),
            None => self.claim(claim).await,
        }
    }

    async fn renew(&self, holder: &Holder, lease: Duration) -> Result<Fenced, StoreError> {
        sql::renew(self, holder, lease).await
    }

    async fn complete(&self, holder: &Holder, ending: &Ending) -> Result<Fenced, StoreError> {
        sql::complete(self, holder, ending).await
    }

    async fn release(&self, holder: &Holder) -> Result<Fenced, StoreError> {
        sql::release(self, holder).await
    }

    async fn interrupt(&self, holder: &Holder) -> Result<Fenced, StoreError> {
        sql::interrupt(self, holder).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        if *resolution == Resolution::Erase {
            // Only a record that bears this very grant is deleted.
            let there = self.look(&observed.id).await?;
            if there.is_none_or(|record| record.observation() != *observed) {
                return Ok(Resolved::Stale);
            }
            self.raise(observed.grant).await?;
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
}

/// The record as its owner is told, where this token runs it.
fn granted_to(token: &Token, record: &Record) -> Option<Claim> {
    (record.state == State::Running && record.token == Some(*token)).then_some(Claim::Granted(
        Granted {
            grant: record.grant,
            attempt: record.attempt,
            first_claimed_at: record.first_claimed_at,
            on_crash: record.on_crash,
        },
    ))
}

/// Tries a statement again that the server rolled back as a whole, which is safe: it has changed nothing.
async fn retry_undone<T, F>(mut step: impl FnMut() -> F) -> Result<T, sqlx::Error>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    let mut tries = 1;
    loop {
        match step().await {
            Err(error)
                if tries < TRIES && number(&error).is_some_and(|it| UNDONE.contains(&it)) =>
            {
                // Those who met do not come back together.
                let pause = rand::random::<u64>() % (1000 << tries);
                tokio::time::sleep(Duration::from_micros(pause)).await;
                tries += 1;
            }
            done => return done,
        }
    }
}

const DUPLICATE: u16 = 1062;
const NO_SUCH_TABLE: u16 = 1146;
/// Deadlock; record changed since it was read (MariaDB); table definition changed; statement must be prepared anew.
const UNDONE: &[u16] = &[1213, 1020, 1412, 1615];

/// The server's error number: <https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html>,
/// <https://mariadb.com/kb/en/mariadb-error-code-reference/>.
fn number(error: &sqlx::Error) -> Option<u16> {
    let answer = error.as_database_error()?;
    Some(answer.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

fn error(source: sqlx::Error) -> StoreError {
    use StoreErrorKind::{Conflict, Denied, Full, Other, ReadOnly, Schema, Timeout, Unavailable};
    let number = number(&source);
    sql::error(source, |_| match number {
        Some(1045 | 1698 | 1130 | 1820 | 1862) => (
            Denied,
            "the server refused the user, check name, password and host",
        ),
        Some(1044 | 1142 | 1143 | 1227 | 1370) => (
            Denied,
            "the user lacks a privilege, grant SELECT, INSERT, UPDATE and DELETE on the store's tables, \
             and CREATE for `migrate()`",
        ),
        Some(1049 | 1046) => (
            Schema,
            "there is no such database, make it or name another in the URL",
        ),
        Some(NO_SUCH_TABLE | 1054 | 1136 | 1364) => (
            Schema,
            "a table or column of the store is missing, run `migrate()`",
        ),
        Some(1290 | 1792 | 1836) => (ReadOnly, "the server is read-only, connect to the primary"),
        Some(3 | 1021 | 1026 | 1114) => (Full, "the disk or the tablespace is full, make room"),
        Some(1040 | 1203 | 1226) => (
            Unavailable,
            "the server has no connection left, make the pool smaller or `max_connections` larger",
        ),
        Some(1047 | 1053 | 1077 | 1079 | 1080 | 1129 | 1152..=1161 | 1317 | 1927 | 2006 | 2013)
            if number != Some(1153) =>
        {
            (Unavailable, "the server ended the connection, try again")
        }
        Some(1153 | 1301) => (
            Other,
            "the result is larger than a packet, raise `max_allowed_packet` or lower the limit on results",
        ),
        Some(1118) => (
            Other,
            "the result is too large for the redo log, raise `innodb_log_file_size` or lower the limit on results",
        ),
        Some(1205) => (
            Conflict,
            "another session kept the record locked for too long, try again",
        ),
        Some(1020 | 1213 | 1412 | 1615) => (
            Conflict,
            "the statement was rolled back in favour of others each time, try again",
        ),
        Some(1969 | 3024) => (
            Timeout,
            "the server's limit on statement time was reached, raise it for this user",
        ),
        _ => (Other, "the database refused the statement"),
    })
}
