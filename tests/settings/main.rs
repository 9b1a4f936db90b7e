//! Settings of servers, databases, users and connections, under which a store must keep its promises, or refuse to work.
//!
//! A trial makes one setting, on a database or a server of its own. Under a setting that is expected to be harmless, it
//! makes all kinds of calls, and asks another connection after each acknowledgement whether it is true. Then it runs the
//! case table and the doctor. If a refusal is expected, it uses new handles, and nothing may run or be written.
//!
//! Each run of all tests tries a few settings of each server. `cargo xtask prove --settings` tries all of them, and prints a
//! table.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use idem_runtime::conformance;
use idem_runtime::operator::{OperatorStore, Severity};
use idem_servers::{Options, Release};
use idem_tests::sql::Sql;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

mod calls;
mod databases;
mod defects;
mod my_sql;
mod postgres;
mod redis_server;
mod searches;
mod setting;

use self::databases::Database;
use self::my_sql::Kind;
use self::setting::{Expected, Setting};

/// Time limit of a trial.
const LIMIT: Duration = Duration::from_secs(420);

fn main() -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // A trial mostly waits for leases, and runs several cases concurrently.
    arguments.test_threads.get_or_insert(2);
    searches::record();
    let runtime = Arc::new(Runtime::new()?);
    let mut trials = Vec::new();
    for setting in postgres::SETTINGS {
        trials.push(trial(&runtime, "postgres", setting, async |setting| {
            for (form, of, has_cases) in postgres::FORMS {
                let database = postgres::open(setting, *of).await?;
                on_database(database, setting.expected, *has_cases)
                    .await
                    .context(*form)?;
            }
            Ok(())
        }));
    }
    for setting in my_sql::of_mariadb() {
        trials.push(trial(&runtime, "mariadb", setting, async |setting| {
            let database = Kind::MariaDb.open(setting).await?;
            on_database(database, setting.expected, true).await
        }));
    }
    match Release::MY_SQL.programs() {
        Ok(_) => trials.extend(my_sql::of_mysql().map(|setting| {
            trial(&runtime, "mysql", setting, async |setting| {
                let database = Kind::MySql.open(setting).await?;
                on_database(database, setting.expected, true).await
            })
        })),
        Err(error) => eprintln!("NOT RUN: the settings of MySQL: {error:#}"),
    }
    for setting in redis_server::SETTINGS {
        trials.push(trial(&runtime, "redis", setting, async |setting| {
            let redis = redis_server::open(setting).await?;
            on_redis(&redis, setting.expected).await
        }));
    }
    trials.extend(defects::trials(&runtime));
    let conclusion = libtest_mimic::run(&arguments, trials);
    print_table();
    Ok(conclusion.exit_code())
}

/// Trial of a setting. One that is not tried always is marked as ignored.
fn trial(
    runtime: &Arc<Runtime>,
    engine: &'static str,
    setting: &'static Setting,
    run: impl AsyncFnOnce(&'static Setting) -> Result<()> + Send + 'static,
) -> Trial {
    let runtime = Arc::clone(runtime);
    let trial = Trial::test(format!("{engine}::{}", setting.name), move || {
        let begun = Instant::now();
        let seen = runtime.block_on(within_limit(run(setting)));
        note(engine, setting, &seen, begun.elapsed());
        seen.map_err(|error| {
            // The test runner reports failures only when all trials have ended.
            eprintln!("{engine}::{}: {error:#}", setting.name);
            Failed::from(format!("{error:#}"))
        })
    });
    trial.with_ignored_flag(!setting.always)
}

async fn within_limit(run: impl Future<Output = Result<()>>) -> Result<()> {
    let run = tokio::time::timeout(LIMIT, run);
    run.await.context("the trial has not ended in time")?
}

/// Tries the store in a database.
pub(crate) async fn on_database<S: Sql + OperatorStore>(
    database: Database<S>,
    expected: Expected,
    has_cases: bool,
) -> Result<()> {
    if let Expected::Refused(error, _) = expected {
        database.refuse(error).await?;
    } else {
        database.migrate(&database.pool).await.context("migrate")?;
        database.work().await?;
        if has_cases && expected != Expected::Retried {
            conformance::run_all(Arc::new(database.store())).await?;
        }
    }
    examine(&database.store(), expected).await?;
    database.close().await;
    Ok(())
}

/// Tries the store on a Redis.
pub(crate) async fn on_redis(redis: &redis_server::Redis, expected: Expected) -> Result<()> {
    if let Expected::Refused(error, _) = expected {
        redis.refuse(error).await?;
    } else {
        redis.work().await?;
        if expected != Expected::Retried {
            conformance::run_all(Arc::new(redis.store.clone())).await?;
        }
    }
    examine(&redis.store, expected).await
}

/// Compares the problems that the doctor reports with the expected one.
async fn examine(store: &impl OperatorStore, expected: Expected) -> Result<()> {
    let findings = store.findings().await;
    let problems = findings
        .iter()
        .filter(|it| it.severity == Severity::Problem);
    let problems: Vec<_> = problems
        .map(|it| format!("{}: {}", it.check, it.found))
        .collect();
    match expected.problem() {
        Some(expected) => ensure!(
            problems.iter().any(|it| it.contains(expected)),
            "the doctor does not report {expected:?}: {problems:?}"
        ),
        None => {
            // The servers of tests flush nothing, and the doctor repeats no check that the server refuses.
            let others = problems.iter().filter(|it| {
                let is_refused = expected == Expected::Retried && it.contains("the check failed");
                !is_refused && !it.starts_with("durability")
            });
            let others: Vec<_> = others.collect();
            ensure!(others.is_empty(), "the doctor reports {others:?}");
        }
    }
    Ok(())
}

/// Options of a server with these settings.
pub(crate) fn options(settings: &[(&str, &str)]) -> Options {
    let add = |options: Options, (name, value): &(&str, &str)| options.set(name, value);
    settings.iter().fold(Options::fast(), add)
}

/// A statement with the name of the user and the database.
pub(crate) fn filled(statement: &str, name: &str) -> String {
    statement
        .replace("{user}", name)
        .replace("{database}", name)
}

type Row = (Expected, String, Duration);

/// What was seen under each setting, by engine and name.
static TABLE: Mutex<BTreeMap<(&str, &str), Row>> = Mutex::new(BTreeMap::new());

fn note(engine: &'static str, setting: &Setting, seen: &Result<()>, took: Duration) {
    let seen = match seen {
        Ok(()) => "as expected".to_owned(),
        Err(error) => format!("{error:#}").replace(['\n', '|'], " "),
    };
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    table.insert((engine, setting.name), (setting.expected, seen, took));
}

fn print_table() {
    let table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    if table.is_empty() {
        return;
    }
    println!("| engine | setting | expected | seen | seconds |");
    println!("| --- | --- | --- | --- | --: |");
    for ((engine, name), (expected, seen, took)) in &*table {
        let took = took.as_secs_f64();
        println!("| {engine} | {name} | {expected} | {seen} | {took:.1} |");
    }
    let differ = table.values().filter(|(_, seen, _)| seen != "as expected");
    println!(
        "\n{} settings, {} of them not as expected",
        table.len(),
        differ.count()
    );
}
