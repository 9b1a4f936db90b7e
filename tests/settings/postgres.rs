//! Settings of PostgreSQL.

use std::str::FromStr as _;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Result;
use idem_runtime::PostgresStore;
use idem_runtime::store::postgres::PostgresForm;
use idem_servers::{Options, Server};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};

use crate::databases::Database;
use crate::setting::Expected::{Refused, Reported, Retried};
use crate::setting::{Change, Setting};

/// Size of the store's pool.
const CONNECTIONS: u32 = 12;

/// The settings.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::session("ordinary", "SELECT 1"),
    Setting::session(
        "read_uncommitted",
        "SET default_transaction_isolation = 'read uncommitted'",
    ),
    Setting::session(
        "repeatable_read",
        "SET default_transaction_isolation = 'repeatable read'",
    ),
    Setting::session(
        "serializable",
        "SET default_transaction_isolation = 'serializable'",
    )
    .always(),
    Setting::session("read_only", "SET default_transaction_read_only = on")
        .but(Refused("read-only", "read-only")),
    Setting::session(
        "deferrable",
        "SET default_transaction_deferrable = on; SET default_transaction_isolation = 'serializable'",
    ),
    Setting::session("commit_off", "SET synchronous_commit = off"),
    Setting::session("commit_local", "SET synchronous_commit = local"),
    Setting::session(
        "commit_remote_write",
        "SET synchronous_commit = remote_write",
    ),
    Setting::session(
        "commit_remote_apply",
        "SET synchronous_commit = remote_apply",
    ),
    Setting::session("bytea_escape", "SET bytea_output = escape").always(),
    Setting::session(
        "backslashes",
        "SET standard_conforming_strings = off; SET escape_string_warning = on",
    )
    .always(),
    Setting::session(
        "backslashes_without_quotes",
        "SET standard_conforming_strings = off; SET backslash_quote = off",
    ),
    Setting::session("backslashes_quote", "SET backslash_quote = on"),
    Setting::session("null_equals", "SET transform_null_equals = on"),
    Setting::session("german_dates", "SET DateStyle = 'German, DMY'"),
    Setting::session(
        "sql_dates",
        "SET DateStyle = 'SQL, MDY'; SET IntervalStyle = sql_standard",
    ),
    Setting::session("iso_intervals", "SET IntervalStyle = iso_8601"),
    Setting::session("time_zone_east", "SET TimeZone = 'Asia/Kathmandu'"),
    Setting::session("time_zone_west", "SET TimeZone = 'Pacific/Niue'"),
    Setting::admin(
        "locale",
        &[
            "ALTER ROLE {user} SET lc_messages = 'C.UTF-8'",
            "ALTER ROLE {user} SET lc_monetary = 'C.UTF-8'",
            "ALTER ROLE {user} SET lc_numeric = 'C.UTF-8'",
            "ALTER ROLE {user} SET lc_time = 'C.UTF-8'",
        ],
    ),
    Setting::admin(
        "encoding_of_the_user",
        &["ALTER ROLE {user} SET client_encoding = 'LATIN1'"],
    ),
    Setting::session("encoding", "SET client_encoding = 'LATIN1'")
        .but(Refused("client_encoding", "client_encoding")),
    Setting::admin(
        "other_schema",
        &[
            "CREATE SCHEMA app AUTHORIZATION {user}",
            "ALTER ROLE {user} SET search_path = app",
        ],
    ),
    Setting::admin(
        "schema_of_the_user",
        &["CREATE SCHEMA {user} AUTHORIZATION {user}"],
    ),
    Setting::session("catalog_last", "SET search_path = public, pg_catalog"),
    Setting::session("no_schema", "SET search_path = ''")
        .but(Refused("search_path", "search_path")),
    Setting::admin(
        "role",
        &[
            "CREATE ROLE {user}_owner ROLE {user}",
            "GRANT ALL ON SCHEMA public TO {user}_owner",
            "ALTER ROLE {user} SET role = '{user}_owner'",
        ],
    ),
    Setting::session("float_digits", "SET extra_float_digits = -15"),
    Setting::session("quoted_identifiers", "SET quote_all_identifiers = on"),
    Setting::session("statement_timeout", "SET statement_timeout = '5s'"),
    Setting::session("short_statement_timeout", "SET statement_timeout = '300ms'").but(Retried),
    Setting::session("lock_timeout", "SET lock_timeout = '1ms'").but(Retried),
    Setting::session(
        "transaction_timeouts",
        "SET idle_in_transaction_session_timeout = '5s'; \
         SELECT set_config(name, '10s', false) FROM pg_settings WHERE name = 'transaction_timeout'",
    ),
    Setting::session("idle_session_timeout", "SET idle_session_timeout = '500ms'").but(Retried),
    Setting::admin(
        "deadlock_timeout",
        &["ALTER ROLE {user} SET deadlock_timeout = '1ms'"],
    ),
    Setting::session("generic_plans", "SET plan_cache_mode = force_generic_plan"),
    Setting::session("custom_plans", "SET plan_cache_mode = force_custom_plan"),
    Setting::session(
        "no_indexes",
        "SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SET jit = off",
    ),
    Setting::session(
        "no_joins",
        "SET enable_nestloop = off; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
         SET enable_sort = off; SET enable_material = off; SET enable_hashagg = off; SET enable_tidscan = off; \
         SET jit = off",
    ),
    Setting::session(
        "parallel",
        "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; \
         SET min_parallel_index_scan_size = 0; SELECT set_config(name, 'on', false) FROM pg_settings \
         WHERE name IN ('force_parallel_mode', 'debug_parallel_query')",
    ),
    Setting::session(
        "jit",
        "SET jit = on; SET jit_above_cost = 0; SET jit_inline_above_cost = -1; SET jit_optimize_above_cost = -1",
    ),
    Setting::session(
        "joins_as_written",
        "SET from_collapse_limit = 1; SET join_collapse_limit = 1; SET constraint_exclusion = on",
    ),
    Setting::session("access_method", "SET default_table_access_method = heap"),
    Setting::session("row_security", "SET row_security = off"),
    Setting::session("array_nulls", "SET array_nulls = off"),
    Setting::session("xml", "SET xmlbinary = hex; SET xmloption = document"),
    Setting::admin(
        "replica",
        &["ALTER ROLE {user} SET session_replication_role = replica"],
    )
    .but(Refused(
        "session_replication_role",
        "session_replication_role",
    ))
    .always(),
    Setting::admin(
        "connection_limit",
        &["ALTER ROLE {user} CONNECTION LIMIT 3"],
    )
    .but(Refused("CONNECTION LIMIT", "CONNECTION LIMIT"))
    .always(),
    Setting::admin(
        "connection_limit_of_the_database",
        &["ALTER DATABASE {database} CONNECTION LIMIT 8"],
    )
    .but(Refused("CONNECTION LIMIT", "CONNECTION LIMIT")),
    Setting::server("few_connections", &[("max_connections", "8")])
        .but(Refused("max_connections", "max_connections")),
    Setting::admin(
        "little_memory",
        &[
            "ALTER ROLE {user} SET work_mem = '64kB'",
            // A page of a list may have to be sorted.
            "ALTER ROLE {user} SET temp_file_limit = '4MB'",
        ],
    ),
    Setting::admin(
        "commit_delay",
        &[
            "ALTER ROLE {user} SET commit_delay = 5000",
            "ALTER ROLE {user} SET commit_siblings = 0",
        ],
    ),
    Setting::server("few_locks", &[("max_locks_per_transaction", "10")]),
    Setting::server(
        "minimal_log",
        &[("wal_level", "minimal"), ("max_wal_senders", "0")],
    ),
    Setting::server("no_flush", &[("fsync", "off")]).but(Reported("`fsync` is off")),
];

/// Makes a store of one form from another.
type MakeForm = fn(PostgresStore) -> PostgresStore;

/// Forms of the store, each with its name, and whether the case table is tried in it.
pub(crate) const FORMS: &[(&str, MakeForm, bool)] = &[
    ("standard", |store| store, true),
    ("as text", PostgresStore::without_prepared_statements, false),
    (
        "portable",
        |store| store.with_form(PostgresForm::Portable),
        false,
    ),
];

/// Server of all settings that do not need one of their own. It ends with this process.
fn shared() -> Result<&'static Server> {
    static SERVER: LazyLock<Result<Server>> = LazyLock::new(|| Server::postgres(&Options::fast()));
    let server = SERVER.as_ref();
    server.map_err(|error| anyhow::anyhow!("{error:#}"))
}

/// Creates a database and a user under a setting.
pub(crate) async fn open(setting: &Setting, form: MakeForm) -> Result<Database<PostgresStore>> {
    let own = setting.own_server(Server::postgres)?;
    let server = match &own {
        Some(server) => server,
        None => tokio::task::block_in_place(shared)?,
    };
    let name = idem_tests::backends::unique_name();
    let superuser = PgConnectOptions::from_str(&server.url())?;
    let mut admin = superuser.connect().await?;
    execute(&mut admin, &format!("CREATE ROLE {name} LOGIN")).await?;
    execute(&mut admin, &format!("CREATE DATABASE {name} OWNER {name}")).await?;
    admin.close().await?;
    let superuser = superuser.database(&name);
    if let Change::Admin(statements) = setting.change {
        let mut admin = superuser.connect().await?;
        for statement in statements {
            let statement = crate::filled(statement, &name);
            execute(&mut admin, &statement).await?;
        }
        admin.close().await?;
    }
    let set = match setting.change {
        Change::Session(statement) => statement,
        _ => "",
    };
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(Duration::from_secs(15))
        .after_connect(move |connection, _| Box::pin(execute(connection, set)))
        .connect_lazy_with(superuser.clone().username(&name));
    // They find the tables in each schema of the settings, and what they create is the user's.
    let path = format!("public,app,{name}");
    let elsewhere = PgPoolOptions::new()
        .max_connections(2)
        .connect_lazy_with(superuser.options([("search_path", path), ("role", name)]));
    Ok(Database {
        pool,
        elsewhere,
        open_transactions:
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                            AND state LIKE 'idle in transaction%'"
                .to_owned(),
        table_options: "",
        form,
        _server: own,
    })
}

async fn execute(connection: &mut PgConnection, statements: &str) -> Result<(), sqlx::Error> {
    let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
    statements.execute(connection).await.map(drop)
}
