//! Dumps of a store as text, and their loading.
//!
//! An SQL dump has the statements with which `migrate()` creates the tables, and the rows. A dump of Redis has commands.
//! Claim ids are random, so a dump has others instead: the first half of the record's id. The user of a database is that of
//! the test, so a dump has another name.

use std::collections::BTreeMap;

use idem_runtime::Store;
use idem_runtime::operator::{MigrationPlan, OperatorStore as _};
use idem_runtime::record::Timestamp;
use idem_tests::places::RedisKeys;
use idem_tests::sql::AnyPool;
use redis::Value;

use super::Raw;
use super::entry::{Entry, hex};
use super::times::{Times, Writing, shift};

/// Claim ids, and what a dump has in their place.
type Replacements = Vec<([u8; 16], [u8; 16])>;

/// Statements that create the tables in an empty database.
pub(super) async fn tables(raw: &Raw) -> String {
    let Raw::Sql(pool, outbox) = raw else {
        return String::new();
    };
    let records = match pool {
        AnyPool::Sqlite(pool) => {
            let store = idem_runtime::SqliteStore::new(pool.clone());
            store.migration_plan().await
        }
        AnyPool::Postgres(pool) => {
            let store = idem_runtime::PostgresStore::new(pool.clone());
            store.migration_plan().await
        }
        AnyPool::MySql(pool) => {
            let store = idem_runtime::MySqlStore::new(pool.clone());
            store.migration_plan().await
        }
    };
    let records = records.unwrap().unwrap();
    let messages = outbox.migration_plan().await.unwrap();
    outbox.migrate().await.unwrap();
    let text = |plan: &MigrationPlan| -> String {
        assert_eq!(plan.applied, 0, "the database is not empty");
        plan.pending
            .iter()
            .map(|it| format!("{}\n", it.sql))
            .collect()
    };
    text(&records) + &text(&messages)
}

/// Writes everything that the store keeps.
pub(super) async fn dump(raw: &Raw, writing: &Writing, entries: &[Entry], tables: &str) -> String {
    let (store, times) = (&writing.store, writing.times());
    let mut claim_ids = Replacements::new();
    for entry in entries {
        let Some(record) = store.get(&entry.id()).await.unwrap() else {
            continue;
        };
        let mut replacement = [0; 16];
        replacement.copy_from_slice(&record.id.as_bytes()[..16]);
        claim_ids.extend(record.claim_id.map(|it| (*it.as_bytes(), replacement)));
    }
    match raw {
        Raw::Sql(pool, _) => format!("{tables}{}", rows(pool, &claim_ids, &times).await),
        Raw::Redis(keys) => commands(keys, &claim_ids, &times).await,
    }
}

/// Loads a dump into an empty database, or among keys.
pub(super) async fn load(raw: &Raw, text: &str) {
    match raw {
        Raw::Sql(pool, _) => {
            let now = now(pool).await;
            let text = shift(text.as_bytes(), now, |_, time| {
                time.to_string().into_bytes()
            });
            let text = String::from_utf8(text).unwrap();
            pool.execute(&text).await.unwrap();
        }
        Raw::Redis(keys) => load_commands(keys, text).await,
    }
}

async fn now(pool: &AnyPool) -> Timestamp {
    let statement = match pool {
        AnyPool::Sqlite(_) => "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000",
        AnyPool::Postgres(_) => "SELECT (extract(epoch FROM now()) * 1000000)::bigint",
        AnyPool::MySql(_) => "SELECT CAST(unix_timestamp(now(6)) * 1000000 AS SIGNED)",
    };
    Timestamp::from_micros(pool.number(statement).await.unwrap())
}

/// A column, and whether the database numbers its rows itself.
struct Column {
    name: String,
    kind: String,
    is_numbered: bool,
}

/// Tables of idem with the columns that are written, without the tables that list migrations.
async fn columns(pool: &AnyPool) -> BTreeMap<String, Vec<Column>> {
    let statement = match pool {
        AnyPool::Sqlite(_) => {
            "SELECT m.name, p.name, p.type, 'NO' FROM sqlite_master AS m, pragma_table_info(m.name) AS p \
             WHERE m.type = 'table' ORDER BY m.name, p.cid"
        }
        AnyPool::Postgres(_) => {
            "SELECT table_name::text, column_name::text, data_type::text, is_identity::text \
             FROM information_schema.columns WHERE table_schema = current_schema() ORDER BY table_name, ordinal_position"
        }
        AnyPool::MySql(_) => {
            "SELECT convert(table_name USING utf8mb4), convert(column_name USING utf8mb4), \
             convert(data_type USING utf8mb4), convert('NO' USING utf8mb4) \
             FROM information_schema.columns WHERE table_schema = database() AND extra NOT LIKE '% GENERATED%' \
             ORDER BY table_name, ordinal_position"
        }
    };
    let found = pool.texts(statement).await.unwrap();
    let mut tables: BTreeMap<String, Vec<Column>> = BTreeMap::new();
    for column in found.chunks_exact(4) {
        let table = &column[0];
        let lists_migrations = ["_migrations", "_portable"]
            .iter()
            .any(|it| table.ends_with(it));
        if table.starts_with("idem_") && !lists_migrations {
            tables.entry(table.clone()).or_default().push(Column {
                name: column[1].clone(),
                kind: column[2].to_lowercase(),
                is_numbered: column[3] == "YES",
            });
        }
    }
    assert!(!tables.is_empty());
    tables
}

/// Names of the tables of idem, without those that list migrations.
pub(super) async fn names_of_tables(pool: &AnyPool) -> Vec<String> {
    columns(pool).await.into_keys().collect()
}

/// Expression for a value as a literal.
fn literal(pool: &AnyPool, column: &Column) -> String {
    let name = &column.name;
    let kind = &*column.kind;
    match pool {
        AnyPool::Sqlite(_) => format!("quote(\"{name}\")"),
        AnyPool::Postgres(_) if kind == "bytea" => {
            format!("coalesce('''\\x' || encode(\"{name}\", 'hex') || '''', 'NULL')")
        }
        AnyPool::Postgres(_) if kind == "text" => format!("quote_nullable(\"{name}\")"),
        AnyPool::Postgres(_) => format!("coalesce(\"{name}\"::text, 'NULL')"),
        AnyPool::MySql(_) if kind.contains("binary") || kind.contains("blob") => {
            format!("convert(coalesce(concat('X''', hex(`{name}`), ''''), 'NULL') USING utf8mb4)")
        }
        AnyPool::MySql(_) if kind.contains("char") || kind.contains("text") => {
            format!("convert(quote(`{name}`) USING utf8mb4)")
        }
        AnyPool::MySql(_) => {
            format!("convert(coalesce(cast(`{name}` AS CHAR), 'NULL') USING utf8mb4)")
        }
    }
}

/// Rows of all tables, as statements that insert them.
async fn rows(pool: &AnyPool, claim_ids: &Replacements, times: &Times) -> String {
    let quote = match pool {
        AnyPool::MySql(_) => '`',
        AnyPool::Sqlite(_) | AnyPool::Postgres(_) => '"',
    };
    let quoted = |name: &str| format!("{quote}{name}{quote}");
    let mut tables = Vec::new();
    for (table, columns) in columns(pool).await {
        let literals: Vec<_> = columns.iter().map(|it| literal(pool, it)).collect();
        let order: Vec<_> = columns.iter().take(2).map(|it| quoted(&it.name)).collect();
        let (literals, order, from) = (literals.join(", "), order.join(", "), quoted(&table));
        let statement = format!("SELECT {literals} FROM {from} ORDER BY {order}");
        let values = pool.texts(&statement).await.unwrap();
        assert_eq!(
            values.len() % columns.len(),
            0,
            "{table}: a value is no text"
        );
        tables.push((table, columns, values));
    }
    let is_bytes = |value: &str| value.starts_with("X'") || value.starts_with("'\\x");
    let replaced = |value: &String| match is_bytes(value) {
        true => claim_ids.iter().fold(value.clone(), |value, (from, to)| {
            let upper = |bytes| hex(bytes).to_uppercase();
            value
                .replace(&hex(from), &hex(to))
                .replace(&upper(from), &upper(to))
        }),
        false => String::from_utf8(times.replace(value.as_bytes())).unwrap(),
    };
    let mut text = String::from("-- Rows. The times are relative to the load, see README.md.\n");
    for (table, columns, values) in &tables {
        if values.is_empty() {
            continue;
        }
        let names: Vec<_> = columns.iter().map(|it| quoted(&it.name)).collect();
        // MySQL's floor has its row from the migration.
        if table.ends_with("_fencing_floor") {
            text.push_str(&format!("DELETE FROM {};\n", quoted(table)));
        }
        let numbered = columns.iter().find(|it| it.is_numbered);
        let overriding = numbered.map_or("", |_| " OVERRIDING SYSTEM VALUE");
        text.push_str(&format!(
            "INSERT INTO {} ({}){overriding} VALUES\n",
            quoted(table),
            names.join(", ")
        ));
        let rows = values.chunks_exact(columns.len()).map(|row| {
            let row = row.iter().zip(columns);
            let row = row.map(|(value, column)| match column.name.as_str() {
                // Each database of the tests has a user of its own.
                "database_user" if value != "NULL" => "'service'".to_owned(),
                _ => replaced(value),
            });
            let row: Vec<_> = row.collect();
            format!("({})", row.join(", "))
        });
        text.push_str(&rows.collect::<Vec<_>>().join(",\n"));
        text.push_str(";\n");
        if let Some(column) = numbered {
            let column = &column.name;
            text.push_str(&format!(
                "SELECT setval(pg_get_serial_sequence('\"{table}\"', '{column}'), (SELECT max(\"{column}\") FROM \"{table}\"));\n"
            ));
        }
    }
    text
}

/// Length of a record's head in Redis, and the offsets of its claim id and times.
const HEAD: usize = 57;
const CLAIM_ID: std::ops::Range<usize> = 5..21;
const TIMES: [std::ops::Range<usize>; 3] = [21..29, 29..37, 37..45];

async fn run(keys: &RedisKeys, command: &redis::Cmd) -> Value {
    match keys {
        RedisKeys::One(keys) => {
            let connection = keys.client.get_multiplexed_async_connection().await;
            command.query_async(&mut connection.unwrap()).await
        }
        RedisKeys::Cluster(keys) => {
            let connection = keys.client.get_async_connection().await;
            command.query_async(&mut connection.unwrap()).await
        }
    }
    .unwrap()
}

fn prefix(keys: &RedisKeys) -> &str {
    match keys {
        RedisKeys::One(keys) => &keys.prefix,
        RedisKeys::Cluster(keys) => &keys.prefix,
    }
}

fn bytes(value: Value) -> Vec<u8> {
    redis::from_redis_value(value).unwrap()
}

fn list(value: Value) -> Vec<Vec<u8>> {
    redis::from_redis_value(value).unwrap()
}

/// Words of the commands that write all keys with the prefix: the key, its type, its contents, and its expiry in
/// milliseconds, negative for none.
async fn contents(keys: &RedisKeys) -> Vec<(String, String, Vec<Vec<u8>>, i64)> {
    let prefix = prefix(keys);
    let mut names: Vec<String> = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(format!("{prefix}*"));
        let found = run(keys, &scan).await;
        let (next, found): (String, Vec<String>) = redis::from_redis_value(found).unwrap();
        names.extend(found);
        cursor = next;
        if cursor == "0" {
            break;
        }
    }
    names.sort();
    names.dedup();
    let mut all = Vec::new();
    for name in names {
        let kind: String =
            redis::from_redis_value(run(keys, redis::cmd("TYPE").arg(&name)).await).unwrap();
        let contents = match &*kind {
            "string" => vec![bytes(run(keys, redis::cmd("GET").arg(&name)).await)],
            "list" => list(run(keys, redis::cmd("LRANGE").arg(&name).arg(0).arg(-1)).await),
            "set" => {
                let mut members = list(run(keys, redis::cmd("SMEMBERS").arg(&name)).await);
                members.sort();
                members
            }
            other => panic!("teach the dump the type {other}"),
        };
        let expiry = run(keys, redis::cmd("PEXPIRETIME").arg(&name)).await;
        all.push((
            name,
            kind,
            contents,
            redis::from_redis_value(expiry).unwrap(),
        ));
    }
    all
}

fn number(bytes: &[u8]) -> i64 {
    i64::from_be_bytes(bytes.try_into().unwrap())
}

fn is_record(value: &[u8]) -> bool {
    value.len() >= HEAD && value[0] == 0xFE
}

async fn commands(keys: &RedisKeys, claim_ids: &Replacements, times: &Times) -> String {
    let all = contents(keys).await;
    let mut lines =
        vec!["# Commands. The times are relative to the load, see README.md.".to_owned()];
    for (name, kind, contents, expiry) in all {
        let name = match contents.iter().any(|it| is_purge(it)) {
            true => with_fixed_id(&name),
            false => name,
        };
        let name = name.replace(prefix(keys), "<prefix>");
        let words: Vec<_> = contents
            .iter()
            .map(|it| escaped(it, claim_ids, times))
            .collect();
        let command = match &*kind {
            "string" => "SET",
            "list" => "RPUSH",
            _ => "SADD",
        };
        let mut line = format!("{command}\t{name}\t{}", words.join("\t"));
        if expiry >= 0 {
            line.push_str(&format!("\tPXAT\t<ms:{}>", times.name(expiry * 1000)));
        }
        lines.push(line);
    }
    lines[1..].sort();
    lines.join("\n") + "\n"
}

/// Returns true for an entry of the audit that tells of a purge. Its list has a random id.
fn is_purge(value: &[u8]) -> bool {
    let text = String::from_utf8_lossy(value);
    // Details follow the action.
    let is_action = |line: &str| line == "purged" || line.starts_with("purged ");
    !is_record(value) && text.lines().any(is_action)
}

fn with_fixed_id(name: &str) -> String {
    let end = name.len() - "}".len();
    format!("{}{}}}", &name[..end - 64], "7".repeat(64))
}

/// A value as text, with `\xNN` for bytes that are no text.
fn escaped(value: &[u8], claim_ids: &Replacements, times: &Times) -> String {
    let mut value = value.to_vec();
    let mut positions = match is_record(&value) {
        true => TIMES.to_vec(),
        false => Vec::new(),
    };
    positions.retain(|it| times.is_time(number(&value[it.clone()])));
    if is_record(&value) {
        let found = claim_ids.iter().find(|(from, _)| value[CLAIM_ID] == *from);
        if let Some((_, to)) = found {
            value[CLAIM_ID].copy_from_slice(to);
        }
    }
    let mut out = String::new();
    let mut at = 0;
    for position in positions {
        out.push_str(&escape(&value[at..position.start]));
        out.push_str(&format!(
            "<b:{}>",
            times.name(number(&value[position.clone()]))
        ));
        at = position.end;
    }
    // Other times are text.
    out + &escape(&times.replace(&value[at..]))
}

fn escape(bytes: &[u8]) -> String {
    let each = bytes.iter().map(|byte| match byte {
        b'\\' => "\\\\".to_owned(),
        b' '..=b'~' => char::from(*byte).to_string(),
        byte => format!("\\x{byte:02X}"),
    });
    each.collect()
}

fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match (first, after) {
            (b'\\', [b'\\', after @ ..]) => {
                out.push(b'\\');
                rest = after;
            }
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).unwrap();
                out.push(u8::from_str_radix(digits, 16).unwrap());
                rest = after;
            }
            (byte, _) => out.push(*byte),
        }
    }
    out
}

async fn load_commands(keys: &RedisKeys, text: &str) {
    // The nodes of a cluster have one clock here.
    let time = match keys {
        RedisKeys::One(_) => run(keys, &redis::cmd("TIME")).await,
        RedisKeys::Cluster(keys) => {
            let mut connection = keys.client.get_async_connection().await.unwrap();
            let route = redis::cluster_routing::RoutingInfo::SingleNode(
                redis::cluster_routing::SingleNodeRoutingInfo::Random,
            );
            connection
                .route_command(redis::cmd("TIME"), route)
                .await
                .unwrap()
        }
    };
    let (seconds, micros): (i64, i64) = redis::from_redis_value(time).unwrap();
    let now = Timestamp::from_micros(seconds * 1_000_000 + micros);
    for line in text.lines().filter(|it| !it.starts_with('#')) {
        let mut command = redis::Cmd::new();
        for word in line.split('\t') {
            let word = word.replace("<prefix>", prefix(keys));
            // Escapes come first: what replaces a time is bytes, not text.
            let word = shift(&unescape(word.as_bytes()), now, |kind, time| match kind {
                "b" => time.to_be_bytes().to_vec(),
                "ms" => (time / 1000).to_string().into_bytes(),
                _ => time.to_string().into_bytes(),
            });
            command.arg(word);
        }
        run(keys, &command).await;
    }
}
