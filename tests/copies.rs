//! Fills tables of records: the database copies a record that the store itself wrote.

use std::ops::Range;
use std::time::Duration;

use anyhow::ensure;
use idem_runtime::Key;
use idem_runtime::key::{Identity, RecordId};
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool};

/// Number of digits at the end of the key of a copy. All keys have the same length, so that the database can compute the
/// ids of the copies: the bytes before the key are the same for all of them.
const DIGITS: usize = 10;
/// Number of copies that one statement makes.
const BATCH: u64 = 50_000;
/// Number of groups of many copies. InnoDB and SQLite keep a table in the order of its ids, so each group is made in
/// that order, from the begin of the table to its end. Otherwise each batch would write a page for each of its copies.
const GROUPS: u64 = 4;
/// Columns that a copy takes from its template. The others are its id, its key and its times.
const COPIED: &str = "scope, operation, fingerprint, state, claim_id, fencing_token, attempt, retention, on_crash, codec, \
     payload, owner";
/// Times of a copy: those of the template, earlier by the age of the copy. They differ from copy to copy, as those of
/// real records do, by a microsecond each.
const TIMES: [&str; 4] = ["lease_until", "first_claimed_at", "ended_at", "purge_after"];

/// Pool of the database that has the records.
#[derive(Debug, Clone)]
pub enum Pool {
    /// PostgreSQL.
    Postgres(PgPool),
    /// MariaDB.
    MariaDb(MySqlPool),
    /// MySQL, whose `cte_max_recursion_depth` must be larger than the number of copies.
    MySql(MySqlPool),
    /// SQLite.
    Sqlite(SqlitePool),
}

impl Pool {
    /// Query of a column `n` with these numbers and all between them.
    pub fn series(&self, first: u64, last: u64) -> String {
        match self {
            Self::Postgres(_) => {
                format!("SELECT n FROM generate_series({first}::bigint, {last}) AS n")
            }
            // MySQL has no engine for series.
            Self::MariaDb(_) => format!("SELECT seq AS n FROM seq_{first}_to_{last}"),
            Self::MySql(_) | Self::Sqlite(_) => format!(
                "WITH RECURSIVE numbers (n) AS (
                     SELECT {first} UNION ALL SELECT n + 1 FROM numbers WHERE n < {last}
                 ) SELECT n FROM numbers"
            ),
        }
    }
}

/// Identity of the copy with this number.
///
/// # Errors
///
/// The key of the template is too long for a number after it.
pub fn identity_of_copy(template: &Identity, number: u64) -> anyhow::Result<Identity> {
    let key = format!("{}-{number:0DIGITS$}", template.key.as_str());
    Ok(Identity {
        key: Key::new(key)?,
        ..template.clone()
    })
}

/// Inserts copies of a record into its table, with the ids that the store computes.
///
/// # Errors
///
/// The table has one of the copies, or the database fails.
pub async fn copy(
    pool: &Pool,
    table: &str,
    template: &Identity,
    numbers: Range<u64>,
    age: Duration,
) -> anyhow::Result<()> {
    let age = age.as_micros();
    let times: Vec<_> = TIMES
        .iter()
        .map(|it| format!("t.{it} - {age} + c.n"))
        .collect();
    let (columns, times) = (TIMES.join(", "), times.join(", "));
    let insert = format!(
        "INSERT INTO {table} (id, idempotency_key, {COPIED}, {columns}) SELECT c.id, c.k, {COPIED}, {times}"
    );
    let template_id = RecordId::of(template);
    let key_prefix = format!("{}-", template.key.as_str());
    let head = bytes_before_keys(template, key_prefix.len() + DIGITS)?;
    let group = BATCH.max((numbers.end - numbers.start) / GROUPS);
    let at_once = match pool {
        Pool::Postgres(_) => BATCH,
        Pool::MariaDb(_) | Pool::MySql(_) | Pool::Sqlite(_) => group,
    };
    let mut rest = numbers;
    while !rest.is_empty() {
        let end = rest.end.min(rest.start + at_once);
        let (first, last) = (rest.start, end - 1);
        let series = pool.series(first, last);
        let copied = match pool {
            Pool::Postgres(pool) => {
                // Sorted by id, so that the index is written from its begin to its end.
                let copy = format!(
                    "{insert} FROM (
                         SELECT n, k, sha256($1 || convert_to(k, 'UTF8')) AS id
                         FROM (SELECT n, $2 || lpad(n::text, {DIGITS}, '0') AS k FROM ({series}) AS numbers) AS s
                     ) AS c CROSS JOIN {table} AS t WHERE t.id = $3 ORDER BY c.id"
                );
                let copy = sqlx::query(AssertSqlSafe(copy))
                    .bind(&head)
                    .bind(&key_prefix);
                let copy = copy.bind(&template_id.as_bytes()[..]);
                copy.execute(pool).await?.rows_affected()
            }
            Pool::MariaDb(pool) | Pool::MySql(pool) => {
                let copy = format!(
                    "{insert} FROM (
                         SELECT n, k, UNHEX(SHA2(CONCAT(?, CAST(k AS BINARY)), 256)) AS id
                         FROM (SELECT n, CONCAT(?, LPAD(n, {DIGITS}, '0')) AS k FROM ({series}) AS numbers) AS s
                     ) AS c CROSS JOIN {table} AS t WHERE t.id = ? ORDER BY c.id"
                );
                let copy = sqlx::query(AssertSqlSafe(copy))
                    .bind(&head)
                    .bind(&key_prefix);
                let copy = copy.bind(&template_id.as_bytes()[..]);
                copy.execute(pool).await?.rows_affected()
            }
            Pool::Sqlite(pool) => {
                // SQLite has no SHA-256.
                let mut copies = (first..end)
                    .map(|number| {
                        let copy = identity_of_copy(template, number)?;
                        Ok((RecordId::of(&copy), number))
                    })
                    .collect::<anyhow::Result<Vec<_>>>()?;
                copies.sort_unstable_by_key(|it| *it.0.as_bytes());
                let copy = format!(
                    "{insert} FROM (
                         SELECT value ->> 0 AS n, unhex(value ->> 1) AS id, value ->> 2 AS k FROM json_each(?1)
                     ) AS c CROSS JOIN {table} AS t WHERE t.id = ?2 ORDER BY c.id"
                );
                let mut copied = 0;
                for batch in copies.chunks(BATCH as usize) {
                    let batch = batch.iter().map(|(id, number)| {
                        let key = format!("{key_prefix}{number:0DIGITS$}");
                        format!("[{number},\"{id}\",\"{key}\"]")
                    });
                    let batch = batch.collect::<Vec<_>>().join(",");
                    let copy = sqlx::query(AssertSqlSafe(copy.as_str()))
                        .bind(format!("[{batch}]"))
                        .bind(&template_id.as_bytes()[..]);
                    copied += copy.execute(pool).await?.rows_affected();
                }
                copied
            }
        };
        ensure!(
            copied == end - first,
            "{copied} of {} copies were made",
            end - first
        );
        rest.start = end;
    }
    Ok(())
}

/// Bytes that the id of a copy is computed from, up to its key.
fn bytes_before_keys(template: &Identity, key_length: usize) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for part in [template.scope.as_str(), template.operation.as_str()] {
        bytes.extend(u32::try_from(part.len())?.to_be_bytes());
        bytes.extend(part.as_bytes());
    }
    bytes.extend(u32::try_from(key_length)?.to_be_bytes());
    Ok(bytes)
}
