//! The databases with the tables, and what they count.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use idem_runtime::operator::OperatorStore;
use idem_runtime::outbox::Outbox;
use idem_runtime::{MySqlStore, PostgresStore, SqliteStore};
use idem_servers::{Options, Server};
use idem_tests::copies::Pool;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

/// Number of steps between two reports of SQLite.
const STEPS: i32 = 10;

pub(crate) type Store = Arc<dyn OperatorStore>;

/// A database, and the connection whose work is counted.
pub(crate) struct Database {
    pub(crate) name: &'static str,
    /// A single connection, since a session of PostgreSQL reports its own counts.
    pub(crate) pool: Pool,
    /// Outboxes on the connections of the store for times, and on the one whose work is counted.
    pub(crate) outboxes: (Outbox, Outbox),
    steps: Arc<AtomicI64>,
    file: PathBuf,
    /// Stops the server at the end.
    _server: Option<Server>,
}

/// What the database counts, with a name each.
pub(crate) type Counts = Vec<(&'static str, i64)>;

/// Opens a table: the store for times, and the one whose work is counted.
pub(crate) type Open = Box<dyn Fn(&str) -> (Store, Store)>;

/// Starts a server, or returns `None` if it is not installed.
pub(crate) async fn open(name: &'static str, directory: &Path) -> Option<(Database, Open)> {
    let file = directory.join("size.sqlite");
    let steps = Arc::new(AtomicI64::new(0));
    // Larger than the defaults, as a server of that size has them.
    Some(match name {
        "PostgreSQL" => {
            let options = Options::durable()
                .set("shared_buffers", "3GB")
                .set("max_wal_size", "16GB");
            let server = Server::postgres(&options).unwrap();
            let store = PostgresStore::connect(&server.url()).await.unwrap();
            let single = PgPoolOptions::new().max_connections(1);
            let single = single.connect(&server.url()).await.unwrap();
            let counted = PostgresStore::new(single.clone());
            let database = Database {
                name,
                outboxes: (Outbox::new(&store), Outbox::new(single.clone())),
                pool: Pool::Postgres(single),
                steps,
                file,
                _server: Some(server),
            };
            let open = move |table: &str| -> (Store, Store) {
                let named = |store: &PostgresStore| store.clone().with_table(table).unwrap();
                (Arc::new(named(&store)), Arc::new(named(&counted)))
            };
            (database, Box::new(open))
        }
        "MariaDB" | "MySQL" => {
            let options = Options::durable()
                .set("innodb-buffer-pool-size", "3G")
                .set("innodb-flush-method", "O_DIRECT");
            let (server, pool): (Server, fn(MySqlPool) -> Pool) = if name == "MySQL" {
                let options = options
                    .set("innodb-redo-log-capacity", "2G")
                    .set("cte-max-recursion-depth", "4294967295");
                (Server::installed_my_sql(&options).unwrap()?, Pool::MySql)
            } else {
                let options = options.set("innodb-log-file-size", "2G");
                (Server::maria_db(&options).unwrap(), Pool::MariaDb)
            };
            let store = MySqlStore::connect(&server.url()).await.unwrap();
            let single = MySqlPoolOptions::new().max_connections(1);
            let single = single.connect(&server.url()).await.unwrap();
            let counted = MySqlStore::new(single.clone());
            let database = Database {
                name,
                outboxes: (Outbox::new(&store), Outbox::new(single.clone())),
                pool: pool(single),
                steps,
                file,
                _server: Some(server),
            };
            let open = move |table: &str| -> (Store, Store) {
                let named = |store: &MySqlStore| store.clone().with_table(table).unwrap();
                (Arc::new(named(&store)), Arc::new(named(&counted)))
            };
            (database, Box::new(open))
        }
        _ => {
            let store = SqliteStore::open(&file).await.unwrap();
            let options = SqliteStore::connect_options(&file);
            let single = counting_pool(options, &steps).await;
            let counted = SqliteStore::new(single.clone());
            let database = Database {
                name,
                outboxes: (Outbox::new(&store), Outbox::new(single.clone())),
                pool: Pool::Sqlite(single),
                steps,
                file,
                _server: None,
            };
            let open = move |table: &str| -> (Store, Store) {
                let named = |store: &SqliteStore| store.clone().with_table(table).unwrap();
                (Arc::new(named(&store)), Arc::new(named(&counted)))
            };
            (database, Box::new(open))
        }
    })
}

/// A single connection that counts the steps of SQLite's virtual machine.
async fn counting_pool(options: SqliteConnectOptions, steps: &Arc<AtomicI64>) -> sqlx::SqlitePool {
    let steps = Arc::clone(steps);
    SqlitePoolOptions::new()
        .max_connections(1)
        .after_connect(move |connection, _| {
            let steps = Arc::clone(&steps);
            Box::pin(async move {
                let mut handle = connection.lock_handle().await?;
                handle.set_progress_handler(STEPS, move || {
                    steps.fetch_add(STEPS.into(), Ordering::Relaxed);
                    true
                });
                Ok(())
            })
        })
        .connect_with(options)
        .await
        .unwrap()
}

impl Database {
    pub(crate) async fn execute(&self, statement: &str) {
        let statement = AssertSqlSafe(statement.to_owned());
        match &self.pool {
            Pool::Postgres(pool) => drop(pool.execute(statement).await.unwrap()),
            Pool::MariaDb(pool) | Pool::MySql(pool) => {
                pool.execute(statement).await.unwrap();
            }
            Pool::Sqlite(pool) => drop(pool.execute(statement).await.unwrap()),
        }
    }

    /// Shrinks the buffer pool of InnoDB to 256 MB, as if the server had far less memory than its tables take. The pages
    /// that stay out of it come from the disk: `O_DIRECT` passes by the page cache of the machine.
    pub(crate) async fn shrink_memory(&self) {
        self.execute("SET GLOBAL innodb_buffer_pool_size = 268435456")
            .await;
    }

    /// Stops the upkeep of a table in the background, which would be counted.
    pub(crate) async fn stop_upkeep(&self, table: &str) {
        if let Pool::Postgres(_) = self.pool {
            let stop = format!("ALTER TABLE {table} SET (autovacuum_enabled = false)");
            self.execute(&stop).await;
        }
    }

    /// Prepares the table as its maintenance would, and ends the writing of pages in the background.
    pub(crate) async fn tidy(&self, table: &str) {
        match self.pool {
            Pool::Postgres(_) => {
                self.execute(&format!("VACUUM (ANALYZE) {table}")).await;
                self.execute("CHECKPOINT").await;
            }
            Pool::MariaDb(_) | Pool::MySql(_) => {
                self.execute(&format!("ANALYZE TABLE {table}")).await;
                self.wait_until_quiet().await;
            }
            Pool::Sqlite(_) => self.execute("PRAGMA wal_checkpoint(TRUNCATE)").await,
        }
    }

    /// Waits until InnoDB has removed old versions of rows in the background, whose pages it would count.
    async fn wait_until_quiet(&self) {
        let pages = async || {
            let counts = self.counts().await;
            counts.iter().find(|it| it.0 == "pages").map(|it| it.1)
        };
        let began = Instant::now();
        let mut last = pages().await;
        while began.elapsed() < Duration::from_secs(120) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = pages().await;
            if now == last {
                return;
            }
            last = now;
        }
    }

    pub(crate) async fn counts(&self) -> Counts {
        match &self.pool {
            Pool::Postgres(pool) => {
                // A session reports its counts after a while, or when it is told to.
                let flush = "SELECT pg_stat_force_next_flush()";
                pool.execute(flush).await.unwrap();
                let counts = pool
                    .fetch_one(
                        "SELECT
                            (SELECT sum(seq_tup_read)::bigint FROM pg_stat_user_tables)
                                + (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes),
                            (SELECT sum(
                                heap_blks_hit + heap_blks_read
                                + coalesce(idx_blks_hit + idx_blks_read, 0)
                                + coalesce(toast_blks_hit + toast_blks_read, 0)
                            )::bigint FROM pg_statio_user_tables),
                            (SELECT wal_fpi FROM pg_stat_wal),
                            pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint",
                    )
                    .await
                    .unwrap();
                let names = ["rows read", "pages", "page images", "log bytes"];
                names
                    .into_iter()
                    .enumerate()
                    .map(|(column, name)| (name, counts.get(column)))
                    .collect()
            }
            Pool::MariaDb(pool) | Pool::MySql(pool) => {
                let show = "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Handler_read%' OR Variable_name IN
                            ('Innodb_buffer_pool_read_requests', 'Innodb_os_log_written')";
                let mut counts = vec![("rows read", 0), ("pages", 0), ("log bytes", 0)];
                for row in pool.fetch_all(show).await.unwrap() {
                    // A server may describe these texts as bytes.
                    let [name, value]: [String; 2] = [0_usize, 1].map(|it| row.get_unchecked(it));
                    let place = match name.as_str() {
                        "Innodb_buffer_pool_read_requests" => 1,
                        "Innodb_os_log_written" => 2,
                        _ => 0,
                    };
                    counts[place].1 += i64::from_str(&value).unwrap();
                }
                counts
            }
            Pool::Sqlite(_) => {
                let mut log = self.file.clone().into_os_string();
                log.push("-wal");
                let log = std::fs::metadata(log).map_or(0, |it| it.len());
                let steps = self.steps.load(Ordering::Relaxed);
                vec![("steps", steps), ("log bytes", log.cast_signed())]
            }
        }
    }
}
