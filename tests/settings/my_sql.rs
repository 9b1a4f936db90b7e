//! Settings of MariaDB and MySQL.

use std::str::FromStr as _;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Result;
use idem_runtime::MySqlStore;
use idem_servers::{Options, Server};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, MySqlConnection};

use crate::databases::Database;
use crate::setting::Expected::{Refused, Retried};
use crate::setting::{Change, Setting};

/// Size of the store's pool.
const CONNECTIONS: u32 = 12;

/// Settings of both.
pub(crate) const COMMON: &[Setting] = &[
    Setting::session("ordinary", "SELECT 1"),
    Setting::session(
        "read_uncommitted",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
    )
    .but(Refused("READ-UNCOMMITTED", "READ-UNCOMMITTED"))
    .always(),
    Setting::session(
        "read_committed",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    ),
    Setting::session(
        "serializable",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    ),
    Setting::session("read_only", "SET SESSION TRANSACTION READ ONLY")
        .but(Refused("read-only", "read-only")),
    Setting::session("no_autocommit", "SET autocommit = 0")
        .but(Refused("autocommit", "autocommit")),
    Setting::session("chained", "SET completion_type = 1")
        .but(Refused("completion_type", "completion_type"))
        .always(),
    Setting::session("released", "SET completion_type = 2")
        .but(Refused("completion_type", "completion_type")),
    Setting::session("safe_updates", "SET sql_safe_updates = 1").always(),
    Setting::session("no_mode", "SET sql_mode = ''"),
    Setting::session("ansi", "SET sql_mode = 'ANSI'"),
    Setting::session(
        "ansi_quotes",
        "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,IGNORE_SPACE'",
    )
    .always(),
    Setting::session("traditional", "SET sql_mode = 'TRADITIONAL'"),
    Setting::session(
        "padded",
        "SET sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,NO_UNSIGNED_SUBTRACTION'",
    ),
    Setting::session(
        "other_precedence",
        "SET sql_mode = 'HIGH_NOT_PRECEDENCE,PIPES_AS_CONCAT,REAL_AS_FLOAT,NO_DIR_IN_CREATE'",
    ),
    Setting::session(
        "zeros",
        "SET sql_mode = 'NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO,ONLY_FULL_GROUP_BY'",
    ),
    Setting::session("time_zone_east", "SET time_zone = '+11:00'"),
    Setting::session("time_zone_west", "SET time_zone = '-12:00'"),
    Setting::session("time_zone_of_the_system", "SET time_zone = 'SYSTEM'"),
    Setting::session("encoding", "SET NAMES latin1").but(Refused("character_set", "character_set")),
    Setting::session("collation", "SET NAMES utf8mb4 COLLATE utf8mb4_bin"),
    Setting::session(
        "collation_of_literals",
        "SET collation_connection = utf8mb4_general_ci",
    ),
    Setting::admin(
        "encoding_of_the_database",
        &["ALTER DATABASE {database} CHARACTER SET latin1 COLLATE latin1_german1_ci"],
    ),
    Setting::server(
        "encoding_of_the_server",
        &[
            ("character-set-server", "latin1"),
            ("collation-server", "latin1_bin"),
        ],
    ),
    Setting::session("short_lock_wait", "SET innodb_lock_wait_timeout = 1"),
    Setting::server(
        "undone_after_a_wait",
        &[("innodb-rollback-on-timeout", "ON")],
    ),
    Setting::server("locks_for_numbers", &[("innodb-autoinc-lock-mode", "0")]),
    Setting::server(
        "no_detection_of_deadlocks",
        &[
            ("innodb-deadlock-detect", "OFF"),
            ("innodb-lock-wait-timeout", "1"),
        ],
    ),
    Setting::server("small_packets", &[("max-allowed-packet", "4194304")]),
    Setting::session("no_log", "SET sql_log_bin = 0"),
    Setting::session("minimal_log", "SET binlog_row_image = 'MINIMAL'"),
    Setting::session("no_foreign_keys", "SET foreign_key_checks = 0"),
    Setting::session("no_checks", "SET foreign_key_checks = 0, unique_checks = 0").always(),
    Setting::session("few_rows", "SET sql_select_limit = 1")
        .but(Refused("sql_select_limit", "sql_select_limit"))
        .always(),
    Setting::session("last_number_is_null", "SET sql_auto_is_null = 1"),
    Setting::session(
        "short_results",
        "SET div_precision_increment = 0, group_concat_max_len = 4",
    ),
    Setting::session("old_timestamps", "SET explicit_defaults_for_timestamp = 0"),
    Setting::session("short_sort_keys", "SET max_sort_length = 64"),
    Setting::session("few_joins", "SET max_join_size = 1, sql_big_selects = 0")
        .but(Refused("max_join_size", "max_join_size")),
    Setting::session("idle", "SET wait_timeout = 1").but(Retried),
    Setting::session("other_engine", "SET default_storage_engine = MyISAM"),
    Setting::session(
        "lenient_tables",
        "SET innodb_strict_mode = 0, innodb_table_locks = 0",
    ),
    Setting::session(
        "numbers",
        "SET auto_increment_increment = 7, auto_increment_offset = 3",
    ),
    Setting::session(
        "small_buffers",
        "SET sort_buffer_size = 32768, join_buffer_size = 128, tmp_table_size = 1024, max_heap_table_size = 16384, \
         max_error_count = 0, optimizer_search_depth = 1, optimizer_prune_level = 0",
    ),
    Setting::session("short_metadata_wait", "SET lock_wait_timeout = 1"),
    Setting::server("compact_rows", &[("innodb-default-row-format", "compact")]),
    Setting::admin(
        "connection_limit",
        &["ALTER USER {user} WITH MAX_USER_CONNECTIONS 3"],
    )
    .but(Retried)
    .always(),
    Setting::server("few_connections", &[("max-connections", "10")]).but(Retried),
    Setting::session(
        "tracking",
        "SET session_track_schema = 1, session_track_state_change = 1",
    ),
];

/// Settings that only MariaDB has.
pub(crate) const MARIADB: &[Setting] = &[
    Setting::session(
        "empty_is_null",
        "SET sql_mode = CONCAT(@@sql_mode, ',EMPTY_STRING_IS_NULL')",
    )
    .but(Refused("EMPTY_STRING_IS_NULL", "EMPTY_STRING_IS_NULL"))
    .always(),
    Setting::session("oracle", "SET sql_mode = ORACLE").but(Refused("ORACLE", "ORACLE")),
    Setting::session("mssql", "SET sql_mode = MSSQL"),
    Setting::session("mode_of_postgresql", "SET sql_mode = POSTGRESQL"),
    Setting::session(
        "simultaneous",
        "SET sql_mode = 'SIMULTANEOUS_ASSIGNMENT,TIME_ROUND_FRACTIONAL,STRICT_ALL_TABLES'",
    ),
    Setting::session("snapshot_isolation", "SET innodb_snapshot_isolation = ON"),
    Setting::session("no_lock_wait", "SET innodb_lock_wait_timeout = 0").but(Retried),
    Setting::session("statement_time", "SET max_statement_time = 1").but(Retried),
    Setting::session(
        "no_optimizer",
        "SET optimizer_switch = 'index_merge=off,index_condition_pushdown=off,derived_merge=off,firstmatch=off,\
         loosescan=off,materialization=off,semijoin=off,join_cache_incremental=off,join_cache_hashed=off,\
         join_cache_bka=off,optimize_join_buffer_size=off,exists_to_in=off,outer_join_with_cache=off,mrr=on', \
         join_cache_level = 0, optimizer_use_condition_selectivity = 1",
    ),
    Setting::session(
        "all_joins_cached",
        "SET join_cache_level = 8, optimizer_switch = 'mrr=on,mrr_sort_keys=on'",
    ),
    Setting::server(
        "log_of_statements",
        &[
            ("log-bin", "binlog"),
            ("binlog-format", "STATEMENT"),
            ("server-id", "7"),
        ],
    ),
    Setting::server(
        "log_of_both",
        &[
            ("log-bin", "binlog"),
            ("binlog-format", "MIXED"),
            ("server-id", "7"),
        ],
    ),
    Setting::server(
        "log_of_rows",
        &[
            ("log-bin", "binlog"),
            ("binlog-format", "ROW"),
            ("server-id", "7"),
        ],
    ),
    Setting::server(
        "cached_queries",
        &[("query-cache-type", "1"), ("query-cache-size", "16777216")],
    ),
    Setting::server("lower_case_tables", &[("lower-case-table-names", "1")]),
    Setting::server("pool_of_threads", &[("thread-handling", "pool-of-threads")]),
    Setting::server("primary_keys", &[("innodb-force-primary-key", "ON")]),
];

/// Settings that only MySQL has.
pub(crate) const MYSQL: &[Setting] = &[
    Setting::session("execution_time", "SET max_execution_time = 1000").but(Retried),
    Setting::session("primary_keys", "SET sql_require_primary_key = 1"),
    Setting::session(
        "invisible_keys",
        "SET sql_generate_invisible_primary_key = 1",
    ),
    Setting::session(
        "no_optimizer",
        "SET optimizer_switch = 'index_merge=off,index_condition_pushdown=off,derived_merge=off,firstmatch=off,\
         loosescan=off,materialization=off,semijoin=off,block_nested_loop=off,batched_key_access=off,hash_join=off,\
         duplicateweedout=off,mrr=on'",
    ),
    Setting::session(
        "hypergraph",
        "SET optimizer_switch = 'subquery_to_derived=on,prefer_ordering_index=off'",
    ),
    Setting::session("json_of_plans", "SET explain_format = JSON"),
];

/// Settings of MariaDB.
pub(crate) fn of_mariadb() -> impl Iterator<Item = &'static Setting> {
    COMMON.iter().chain(MARIADB)
}

/// Settings of MySQL.
pub(crate) fn of_mysql() -> impl Iterator<Item = &'static Setting> {
    COMMON.iter().chain(MYSQL)
}

/// One of the two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    MariaDb,
    MySql,
}

impl Kind {
    fn start(self, options: &Options) -> Result<Server> {
        match self {
            Self::MariaDb => Server::maria_db(options),
            Self::MySql => Server::my_sql(options),
        }
    }

    /// Counts the sessions of a user that are in a transaction. MySQL's first table would have to show statements with bytes
    /// that are no text.
    fn open_transactions(self) -> &'static str {
        match self {
            Self::MariaDb => {
                "SELECT count(*) FROM information_schema.innodb_trx AS t JOIN information_schema.processlist AS p \
                 ON p.id = t.trx_mysql_thread_id WHERE p.user"
            }
            Self::MySql => {
                "SELECT count(*) FROM performance_schema.events_transactions_current AS t \
                 JOIN performance_schema.threads AS p USING (thread_id) WHERE t.state = 'ACTIVE' AND p.processlist_user"
            }
        }
    }

    /// Server of all settings that do not need one of their own. It ends with this process.
    fn shared(self) -> Result<&'static Server> {
        static MARIADB: LazyLock<Result<Server>> =
            LazyLock::new(|| Kind::MariaDb.start(&Options::fast()));
        static MYSQL: LazyLock<Result<Server>> =
            LazyLock::new(|| Kind::MySql.start(&Options::fast()));
        let server = match self {
            Self::MariaDb => MARIADB.as_ref(),
            Self::MySql => MYSQL.as_ref(),
        };
        server.map_err(|error| anyhow::anyhow!("{error:#}"))
    }

    /// Creates a database and a user under a setting.
    pub(crate) async fn open(self, setting: &Setting) -> Result<Database<MySqlStore>> {
        let own = setting.own_server(|options| self.start(options))?;
        let server = match &own {
            Some(server) => server,
            None => tokio::task::block_in_place(|| self.shared())?,
        };
        // The name of a user has at most 32 characters.
        let name = idem_tests::backends::unique_name().replace("idem_test_", "")[..24].to_owned();
        let name = format!("u{name}");
        let root = MySqlConnectOptions::from_str(&server.url())?;
        let mut admin = root.clone().connect().await?;
        for statement in [
            "CREATE DATABASE {database}",
            "CREATE USER {user} IDENTIFIED BY 'secret'",
            "GRANT ALL PRIVILEGES ON *.* TO {user}",
        ] {
            execute(&mut admin, &crate::filled(statement, &name)).await?;
        }
        if let Change::Admin(statements) = setting.change {
            for statement in statements {
                execute(&mut admin, &crate::filled(statement, &name)).await?;
            }
        }
        admin.close().await?;
        let set = match setting.change {
            Change::Session(statement) => statement,
            _ => "SELECT 1",
        };
        let pool = MySqlPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(Duration::from_secs(15))
            .after_connect(move |connection, _| Box::pin(execute(connection, set)))
            .connect_lazy_with(
                root.clone()
                    .username(&name)
                    .password("secret")
                    .database(&name),
            );
        let elsewhere = MySqlPoolOptions::new()
            .max_connections(2)
            .connect_lazy_with(root.database(&name));
        Ok(Database {
            pool,
            elsewhere,
            open_transactions: format!("{} = '{name}'", self.open_transactions()),
            table_options: "ENGINE = InnoDB",
            form: |store| store,
            _server: own,
        })
    }
}

async fn execute(connection: &mut MySqlConnection, statements: &str) -> Result<(), sqlx::Error> {
    let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
    statements.execute(connection).await.map(drop)
}
