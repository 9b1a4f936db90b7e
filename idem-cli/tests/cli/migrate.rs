//! Migrations: the plan, the SQL for somebody else, and applying them.

use idem_runtime::{MySqlStore, PostgresStore, SqliteStore};
use idem_tests::{on_stores, places};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use super::{Place, Ran, unique};

mod tables {
    use super::*;

    on_stores! { [transactions] Place::open:
        the_outbox_is_migrated_apart_from_the_records,
        the_index_of_stuck_records_is_created_on_request,
    }
}

/// Database without tables, named by options of the command.
struct Empty {
    place: Place,
    options: Vec<String>,
}

impl Empty {
    async fn sqlite() -> Self {
        let place = Place::sqlite().await;
        // Another table in the file.
        let options = vec!["--table".to_owned(), "letters".to_owned()];
        Self { place, options }
    }

    fn server(place: &Place, schema: &str) -> Self {
        let place = place.without_options();
        let options = vec!["--schema".to_owned(), schema.to_owned()];
        Self { place, options }
    }

    fn migrate(&self, how: &[&str]) -> Ran {
        let options = self.options.iter().map(String::as_str);
        let arguments = ["migrate"].into_iter().chain(how.iter().copied());
        self.place
            .idem(&arguments.chain(options).collect::<Vec<_>>())
    }

    fn plan(&self, code: i32) -> Value {
        let plan = self.migrate(&["--plan", "--json"]).expect(code, &[]);
        serde_json::from_str(&plan.out).unwrap()
    }

    fn sql(&self) -> String {
        self.migrate(&["--sql"]).expect(0, &[]).out
    }

    /// Applies the migrations, and looks at the plan before and after.
    fn apply(&self) {
        let plan = self.plan(3);
        assert_eq!(plan["applied"], 0, "{plan}");
        assert_eq!(
            plan["pending"].as_array().map(Vec::len),
            plan["known"].as_u64().map(|it| it as usize)
        );
        self.migrate(&["--apply"]).expect(0, &["applied"]);
        self.migrate(&["--apply"])
            .expect(0, &["no migration was missing"]);
        self.is_current();
    }

    fn is_current(&self) {
        let plan = self.plan(0);
        assert_eq!(plan["applied"], plan["known"]);
        assert!(self.sql().contains("No migration is missing"));
    }

    /// Expects that tables of a later release are accepted.
    fn is_newer_and_compatible(&self) {
        let plan = self.plan(0);
        let [applied, known] = ["applied", "known"].map(|it| plan[it].as_u64().unwrap());
        assert_eq!(applied, known + 1);
        self.migrate(&["--apply"])
            .expect(0, &["no migration was missing"]);
    }

    /// Expects that tables of a later release are refused.
    fn is_too_new(&self) {
        for how in ["--plan", "--sql", "--apply"] {
            self.migrate(&[how])
                .expect_error(1, "made by a later release");
        }
    }
}

fn rows_as_text(rows: &[impl AsText]) -> Vec<String> {
    rows.iter().map(AsText::text).collect()
}

/// Row with one column of text.
trait AsText {
    fn text(&self) -> String;
}

macro_rules! as_text {
    ($($row:ty),*) => {$(
        impl AsText for $row {
            fn text(&self) -> String {
                self.get(0)
            }
        }
    )*};
}

as_text!(
    sqlx::sqlite::SqliteRow,
    sqlx::postgres::PgRow,
    sqlx::mysql::MySqlRow
);

#[tokio::test]
async fn sqlite() {
    let (applied, by_hand) = (Empty::sqlite().await, Empty::sqlite().await);
    let connect = async |empty: &Empty| {
        let store = SqliteStore::connect_as_is(&empty.place.url).await;
        store.unwrap().pool().clone()
    };
    let pools = (connect(&applied).await, connect(&by_hand).await);
    applied.apply();
    sqlx::raw_sql(AssertSqlSafe(by_hand.sql()))
        .execute(&pools.1)
        .await
        .unwrap();
    by_hand.is_current();
    let schema = "SELECT coalesce(sql, name) FROM sqlite_master ORDER BY name";
    let schemas = (
        rows_as_text(&pools.0.fetch_all(schema).await.unwrap()),
        rows_as_text(&pools.1.fetch_all(schema).await.unwrap()),
    );
    assert!(schemas.0.iter().any(|it| it.contains("letters_steps")));
    assert_eq!(schemas.0, schemas.1);
    let later = "INSERT INTO letters_migrations (version, applied_at) VALUES (99, 0)";
    pools.0.execute(later).await.unwrap();
    applied.is_too_new();
    let compatible = "UPDATE letters_migrations SET compatible_since = 1 WHERE version = 99";
    pools.0.execute(compatible).await.unwrap();
    applied.is_newer_and_compatible();
}

/// The tables of the outbox have versions of their own.
async fn the_outbox_is_migrated_apart_from_the_records(place: Place) {
    let options = ["--outbox", "--outbox-table"].map(str::to_owned).into();
    let mut outbox = Empty { place, options };
    outbox.options.push(unique());
    let sql = outbox.sql();
    assert!(sql.contains(&outbox.options[2]), "{sql}");
    outbox.apply();
    let table = ["outbox", "list", "--outbox-table", &outbox.options[2]];
    outbox.place.idem(&table).expect(0, &["parked     0"]);
    outbox
        .place
        .idem(&["migrate", "--plan", "--outbox-table", "letters"])
        .expect_error(2, "--outbox");
}

#[tokio::test]
async fn a_missing_sqlite_file_is_created_only_on_request() {
    let place = Place::sqlite().await;
    let missing = format!("{}.other", place.url);
    let idem = |url: &str, how| place.idem(&["--url", url, "migrate", how]);
    idem(&missing, "--apply").expect_error(1, "cannot be opened");
    idem(&format!("{missing}?mode=rwc"), "--apply").expect(0, &["applied"]);
    idem(&missing, "--plan").expect(0, &["missing migrations     0"]);
}

#[tokio::test]
#[ignore = "IDEM_TEST_POSTGRES_URL"]
async fn postgres() {
    let place = Place::open(places::postgres()).await;
    let store = PostgresStore::connect(&place.url).await.unwrap();
    let pool = store.pool();
    let (one, other) = (unique(), unique());
    for schema in [&one, &other] {
        let create = format!("CREATE SCHEMA {schema}");
        pool.execute(AssertSqlSafe(create)).await.unwrap();
    }
    let applied = Empty::server(&place, &one);
    let by_hand = Empty::server(&place, &other);
    applied.apply();
    sqlx::raw_sql(AssertSqlSafe(by_hand.sql()))
        .execute(pool)
        .await
        .unwrap();
    by_hand.is_current();
    let schema = async |name: &str| {
        let query = format!(
            "SELECT concat_ws(' ', table_name, ordinal_position, column_name, data_type, column_default, is_nullable)
                 AS line FROM information_schema.columns WHERE table_schema = '{name}'
             UNION ALL SELECT replace(indexdef, '{name}', 's') FROM pg_indexes WHERE schemaname = '{name}'
             UNION ALL SELECT replace(pg_get_functiondef(oid), '{name}', 's') FROM pg_proc
                 WHERE pronamespace = '{name}'::regnamespace
             UNION ALL SELECT replace(pg_get_triggerdef(oid), '{name}', 's') FROM pg_trigger
                 WHERE tgrelid = '{name}.idem_records'::regclass
             UNION ALL SELECT concat_ws(' ', relname, reloptions::text) FROM pg_class
                 WHERE relnamespace = '{name}'::regnamespace
             ORDER BY line"
        );
        rows_as_text(&pool.fetch_all(AssertSqlSafe(query)).await.unwrap())
    };
    let schemas = (schema(&one).await, schema(&other).await);
    assert!(schemas.0.iter().any(|it| it.contains("idem_records_claim")));
    assert_eq!(schemas.0, schemas.1);
    // The printed transaction fails if the version was applied meanwhile.
    let again = applied.plan(0)["applied"].clone();
    let reset = format!("DELETE FROM {one}.idem_records_migrations WHERE version = {again}");
    pool.execute(AssertSqlSafe(reset)).await.unwrap();
    let sql = applied.sql();
    applied.migrate(&["--apply"]).expect(0, &["applied 1"]);
    // On a connection of its own, because the transaction stays open.
    let mut alone = pool.acquire().await.unwrap().detach();
    let twice = sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut alone)
        .await
        .unwrap_err();
    assert!(twice.to_string().contains("duplicate key"), "{twice}");
    let later =
        format!("INSERT INTO {one}.idem_records_migrations (version, applied_at) VALUES (99, 0)");
    pool.execute(AssertSqlSafe(later)).await.unwrap();
    applied.is_too_new();
    let compatible =
        format!("UPDATE {one}.idem_records_migrations SET compatible_since = 1 WHERE version = 99");
    pool.execute(AssertSqlSafe(compatible)).await.unwrap();
    applied.is_newer_and_compatible();
    Empty::server(&place, "nowhere")
        .migrate(&["--plan"])
        .expect_error(1, "there is no schema `nowhere`");
}

#[tokio::test]
#[ignore = "IDEM_TEST_MARIADB_URL"]
async fn mariadb() {
    on_my_sql(Place::open(places::mariadb()).await).await;
}

mod mysql {
    use super::*;

    #[tokio::test]
    #[ignore = "IDEM_TEST_MYSQL_URL"]
    async fn newest() {
        on_my_sql(Place::open(places::mysql()).await).await;
    }
}

/// On MariaDB or MySQL.
async fn on_my_sql(place: Place) {
    let store = MySqlStore::connect(&place.url).await.unwrap();
    let pool = store.pool();
    let (one, other) = (unique(), unique());
    for database in [&one, &other] {
        let create = format!("CREATE DATABASE {database}");
        pool.execute(AssertSqlSafe(create)).await.unwrap();
    }
    let applied = Empty::server(&place, &one);
    let by_hand = Empty::server(&place, &other);
    applied.apply();
    let sql = by_hand.sql();
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(pool)
        .await
        .unwrap();
    by_hand.is_current();
    let schema = async |name: &str| {
        let query = format!(
            "SELECT CONVERT(CONCAT_WS(' ', table_name, ordinal_position, column_name, column_type, column_default,
                 collation_name, is_nullable) USING utf8mb4) AS line
                 FROM information_schema.columns WHERE table_schema = '{name}'
             UNION ALL SELECT CONVERT(CONCAT_WS(' ', table_name, index_name, seq_in_index, column_name) USING utf8mb4)
                 FROM information_schema.statistics WHERE table_schema = '{name}'
             UNION ALL SELECT CONVERT(CONCAT_WS(' ', table_name, engine, row_format) USING utf8mb4)
                 FROM information_schema.tables WHERE table_schema = '{name}'
             ORDER BY line"
        );
        rows_as_text(&pool.fetch_all(AssertSqlSafe(query)).await.unwrap())
    };
    let schemas = (schema(&one).await, schema(&other).await);
    assert!(schemas.0.iter().any(|it| it.contains("purge_queue")));
    assert_eq!(schemas.0, schemas.1);
    let later =
        format!("INSERT INTO {one}.idem_records_migrations (version, applied_at) VALUES (99, 0)");
    pool.execute(AssertSqlSafe(later)).await.unwrap();
    applied.is_too_new();
    let compatible =
        format!("UPDATE {one}.idem_records_migrations SET compatible_since = 1 WHERE version = 99");
    pool.execute(AssertSqlSafe(compatible)).await.unwrap();
    applied.is_newer_and_compatible();
}

#[tokio::test]
#[ignore = "IDEM_TEST_REDIS_URL"]
async fn a_redis_store_has_no_tables() {
    let place = Place::open(places::redis()).await;
    place
        .idem(&["migrate", "--plan"])
        .expect_error(1, "has no tables");
    place
        .idem(&["migrate", "--plan", "--outbox"])
        .expect_error(1, "has no outbox");
    place
        .idem(&["migrate", "--index", "stuck", "--apply"])
        .expect_error(1, "has no tables");
}

/// The optional index is shown, printed and created, and the command for stuck records uses it.
async fn the_index_of_stuck_records_is_created_on_request(place: Place) {
    place.interrupted("order-1").await;
    let found = place.idem(&["stuck"]).expect(3, &["order-1"]).out;
    let index = |how| place.idem(&["migrate", "--index", "stuck", how]);
    index("--plan").expect(3, &["does not exist"]);
    let sql = index("--sql").expect(0, &["CREATE INDEX"]).out;
    assert!(sql.trim_end().ends_with(';'), "{sql}");
    let doctor = || place.idem(&["doctor"]).out;
    assert!(doctor().contains("the optional index does not exist"));
    index("--apply").expect(0, &["created"]);
    index("--apply").expect(0, &["existed"]);
    index("--plan").expect(0, &["exists"]);
    assert!(doctor().contains("the optional index exists"));
    let by_index = place.idem(&["stuck"]).expect(3, &["order-1"]).out;
    assert_eq!(by_index.lines().count(), found.lines().count());
}

/// An index whose creation failed is created anew.
#[tokio::test]
#[ignore = "IDEM_TEST_POSTGRES_URL"]
async fn an_invalid_index_of_postgres_is_created_anew() {
    let place = Place::open(places::postgres()).await;
    let index = |how| place.idem(&["migrate", "--index", "stuck", how]);
    index("--apply").expect(0, &["created"]);
    let store = PostgresStore::connect(&place.url).await.unwrap();
    let table = &place.options[1];
    let invalid = format!(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{table}_stuck'::regclass"
    );
    store.pool().execute(AssertSqlSafe(invalid)).await.unwrap();
    index("--plan").expect(3, &["does not exist"]);
    index("--apply").expect(0, &["created"]);
    index("--plan").expect(0, &["exists"]);
}
