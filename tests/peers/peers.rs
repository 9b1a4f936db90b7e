//! Libraries that do similar work, on the same servers: steady load of first calls and of replays. The crates `dbos` and
//! `durare` keep workflows in PostgreSQL. AWS Lambda Powertools for Python and for TypeScript keeps results of functions in
//! Redis, and `@node-idempotency/core` keeps responses to requests there.
//!
//! The baselines are statements and commands by hand, which compare nothing. Every contestant on PostgreSQL has a pool of
//! 16 connections. A workflow engine does more than an idempotent call: the table shows the cost of a call, not the worth
//! of an engine.
//!
//! After each table of Redis comes a table of the server's processor time. That depends on the commands of a library, and
//! hardly on the language that the library is written in.
//!
//! `cargo xtask bench peers` installs the libraries of Python and npm. Without `IDEM_BENCH_PYTHON` or
//! `IDEM_BENCH_NODE_MODULES`, the tables do not have them.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing to say"
)]

mod foreign;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dbos::{Config, DBOS, RunOptions, WorkflowRef};
use durare::{DurableContext, DurableEngine, PostgresProvider, Tx, WorkflowOptions, params};
use idem_runtime::{Error, Idem, PostgresStore, RedisStore, idempotent};
use idem_servers::{Options, Server};
use idem_tests::by_hand::{self, ByHand, COMPLETED, CONNECTIONS, completed};
use idem_tests::ledger::Database as _;
use idem_tests::ratio::{Effort, is_asked_for};
use idem_tests::slow_disk;
use idem_tests::steady::{self, Contestant};
use redis::aio::ConnectionManager;
use sqlx::PgPool;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::foreign::Program;

/// Numbers of tasks that make calls.
const TASKS: [usize; 3] = [1, 16, 64];

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Idempotency(#[from] Error),
    #[error(transparent)]
    Ledger(#[from] sqlx::Error),
}

#[idempotent(key = key, ttl = "24h", name = "bench.call", store = idem)]
async fn call(idem: &Idem, key: &str) -> Result<u64, Failure> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = "24h", name = "bench.step", store = idem, attempt = attempt)]
async fn call_with_step(idem: &Idem, key: &str) -> Result<u64, Failure> {
    attempt
        .step("step", async || Ok::<_, Failure>(key.len() as u64))
        .await
}

#[idempotent(key = key, ttl = "24h", name = "bench.charge", store = idem, tx = tx)]
async fn charge(idem: &Idem<PostgresStore>, key: &str) -> Result<u64, Failure> {
    PostgresStore::charge(tx, key, "a receipt").await?;
    Ok(34)
}

#[durare::workflow]
async fn durare_call(_ctx: DurableContext, key: String) -> durare::Result<u64> {
    Ok(key.len() as u64)
}

#[durare::transaction]
async fn durare_insert(ctx: &DurableContext, tx: &mut Tx<'_>, key: String) -> durare::Result<u64> {
    // The transaction searches the engine's schema only.
    tx.execute(
        "INSERT INTO public.ledger (charge, receipt) VALUES (?, ?)",
        &params![key, "a receipt"],
    )
    .await?;
    Ok(34)
}

#[durare::workflow]
async fn durare_charge(ctx: DurableContext, key: String) -> durare::Result<u64> {
    durare_insert(&ctx, key).await
}

/// Contestants of two tables: first calls, and replays.
struct Tables {
    server: &'static str,
    first: Vec<Contestant>,
    replays: Vec<Contestant>,
}

fn main() {
    slow_disk::from_arguments(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let effort = Effort::from_arguments();
    let runtime = Runtime::new().unwrap();
    let postgres = Server::postgres(&Options::durable()).unwrap();
    let redis = Server::redis(&Options::fast()).unwrap();
    runtime.block_on(async {
        let observer = by_hand::pool(&postgres.url(), 1).await.unwrap();
        let observer_of_redis = connect(&redis.url()).await;
        let (on_redis, programs) = on_redis(&redis.url()).await;
        let (on_postgres, engines) = on_postgres(&postgres.url()).await;
        let commits = async || {
            let all = by_hand::counters(&observer).await.unwrap();
            all.into_iter().filter(|it| it.0 == "commits").collect()
        };
        measure(&on_postgres, &commits, effort).await;
        engines.stop().await;
        let totals = async || totals_of_redis(observer_of_redis.clone()).await;
        measure(&on_redis, &totals, effort).await;
        drop(on_redis);
        for program in programs {
            let program = Arc::into_inner(program).unwrap();
            program.into_inner().stop().await;
        }
    });
}

async fn measure(
    tables: &Tables,
    counters: &impl AsyncFn() -> BTreeMap<&'static str, i64>,
    effort: Effort,
) {
    let server = tables.server;
    for tasks in TASKS {
        for (kind, contestants) in [("first calls", &tables.first), ("replays", &tables.replays)] {
            let title = format!("{server}, {kind}, concurrency {tasks}");
            if is_asked_for(&title) {
                steady::measure(&title, contestants, counters, tasks, effort).await;
            }
        }
    }
}

/// A contestant that clones what it needs for each call.
macro_rules! contestant {
    ($name:literal, |$with:ident, $number:ident| $work:expr) => {{
        let $with = $with.clone();
        Contestant::new($name, move |$number| {
            let $with = $with.clone();
            async move { $work }
        })
    }};
}

/// Engines that run in the background.
struct Engines {
    dbos: DBOS,
    durare: Arc<DurableEngine>,
}

impl Engines {
    async fn stop(self) {
        self.dbos.shutdown().await;
        self.durare.shutdown(Duration::from_secs(5)).await.unwrap();
    }
}

/// Workflows of dbos: one that only returns, and one with a step.
#[derive(Clone)]
struct DbosCalls {
    plain: WorkflowRef<String, u64>,
    step: WorkflowRef<String, u64>,
}

impl DbosCalls {
    fn register(dbos: &DBOS) -> Self {
        let plain = dbos.register_workflow("plain", |key: String| async move {
            Ok::<_, dbos::Error>(key.len() as u64)
        });
        let step = dbos.register_workflow("step", |key: String| async move {
            let body = || async { Ok::<_, dbos::Error>(key.len() as u64) };
            dbos::step("step", body).await
        });
        Self {
            plain: plain.unwrap(),
            step: step.unwrap(),
        }
    }

    async fn call(workflow: &WorkflowRef<String, u64>, key: String) {
        let options = RunOptions {
            workflow_id: Some(&key),
            ..RunOptions::default()
        };
        workflow.run_with(key.clone(), options).await.unwrap();
    }
}

async fn durare_run(engine: &DurableEngine, key: String) {
    let options = WorkflowOptions::with_id(&key);
    let started = engine.start_with(DurareCall, key, options).await;
    started.unwrap().await.unwrap();
}

/// The ids of workflows are shared by all kinds of workflows.
fn durare_key(number: u64) -> String {
    format!("durare-{}", completed(number))
}

async fn on_postgres(url: &str) -> (Tables, Engines) {
    let pool = by_hand::pool(url, CONNECTIONS).await.unwrap();
    let store = PostgresStore::new(pool.clone());
    store.make_ledger(&pool).await.unwrap();
    let hand = ByHand::create(pool.clone()).await.unwrap();
    let idem = Idem::new(store.clone()).erased();
    let in_transaction = Idem::new(store);
    let dbos = start_dbos(url).await;
    let calls = DbosCalls::register(&dbos);
    dbos.launch().await.unwrap();
    let durare = start_durare(url).await;
    for number in 0..COMPLETED {
        call(&idem, &completed(number)).await.unwrap();
        DbosCalls::call(&calls.plain, completed(number)).await;
        durare_run(&durare, durare_key(number)).await;
    }
    let first = vec![
        contestant!("insert and update by hand", |hand, number| {
            hand.call(&format!("hand-{number}")).await.unwrap();
        }),
        contestant!("#[idempotent]", |idem, number| {
            call(&idem, &format!("first-{number}")).await.unwrap();
        }),
        contestant!("#[idempotent], one step", |idem, number| {
            let key = format!("step-{number}");
            call_with_step(&idem, &key).await.unwrap();
        }),
        contestant!("dbos 0.5.0, workflow", |calls, number| {
            DbosCalls::call(&calls.plain, format!("plain-{number}")).await;
        }),
        contestant!("dbos 0.5.0, workflow with one step", |calls, number| {
            DbosCalls::call(&calls.step, format!("step-{number}")).await;
        }),
        contestant!("durare 0.5.0, workflow", |durare, number| {
            durare_run(&durare, format!("plain-{number}")).await;
        }),
        contestant!("business insert by hand", |pool, number| {
            insert(&pool, &format!("hand-{number}")).await;
        }),
        contestant!(
            "#[idempotent(tx = tx)], the insert",
            |in_transaction, number| {
                let key = format!("tx-{number}");
                charge(&in_transaction, &key).await.unwrap();
            }
        ),
        contestant!("durare 0.5.0, transaction, the insert", |durare, number| {
            let key = format!("tx-{number}");
            let options = WorkflowOptions::with_id(&key);
            let started = durare.start_with(DurareCharge, key, options).await;
            started.unwrap().await.unwrap();
        }),
    ];
    let replays = vec![
        contestant!("read by hand", |hand, number| {
            hand.read(&completed(number)).await.unwrap();
        }),
        contestant!("#[idempotent]", |idem, number| {
            call(&idem, &completed(number)).await.unwrap();
        }),
        contestant!("dbos 0.5.0, workflow", |calls, number| {
            DbosCalls::call(&calls.plain, completed(number)).await;
        }),
        contestant!("durare 0.5.0, workflow", |durare, number| {
            durare_run(&durare, durare_key(number)).await;
        }),
    ];
    let tables = Tables {
        server: "PostgreSQL",
        first,
        replays,
    };
    (tables, Engines { dbos, durare })
}

async fn insert(pool: &PgPool, key: &str) {
    let mut transaction = pool.begin().await.unwrap();
    PostgresStore::charge(&mut transaction, key, "a receipt")
        .await
        .unwrap();
    transaction.commit().await.unwrap();
}

async fn start_dbos(url: &str) -> DBOS {
    DBOS::new(Config {
        max_connections: CONNECTIONS,
        // Both crates have the same schema by default.
        schema: "of_dbos".to_owned(),
        app_version: Some("1".to_owned()),
        ..Config::new("bench", url)
    })
}

async fn start_durare(url: &str) -> Arc<DurableEngine> {
    let pool = sqlx_of_durare::postgres::PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .min_connections(CONNECTIONS)
        .test_before_acquire(false)
        .connect(url)
        .await
        .unwrap();
    let provider = PostgresProvider::from_pool_with_schema(pool, "of_durare").unwrap();
    let engine = DurableEngine::new(Arc::new(provider)).await.unwrap();
    engine.launch().await.unwrap();
    Arc::new(engine)
}

async fn on_redis(url: &str) -> (Tables, Vec<Arc<Mutex<Program>>>) {
    let connection = connect(url).await;
    let idem = Idem::new(RedisStore::connect(url).await.unwrap()).erased();
    for number in 0..COMPLETED {
        call(&idem, &completed(number)).await.unwrap();
        set(connection.clone(), &completed(number), "NX").await;
    }
    let mut first = vec![
        contestant!("SET NX and SET XX by hand", |connection, number| {
            let key = format!("hand-{number}");
            set(connection.clone(), &key, "NX").await;
            set(connection, &key, "XX").await;
        }),
        contestant!("#[idempotent]", |idem, number| {
            call(&idem, &format!("first-{number}")).await.unwrap();
        }),
    ];
    let mut replays = vec![
        contestant!("GET by hand", |connection, number| {
            let mut connection = connection;
            let mut get = redis::cmd("GET");
            get.arg(completed(number));
            let _: String = get.query_async(&mut connection).await.unwrap();
        }),
        contestant!("#[idempotent]", |idem, number| {
            call(&idem, &completed(number)).await.unwrap();
        }),
    ];
    let mut programs = Vec::new();
    for program in Program::all(url).await {
        let name = program.name();
        let program = Arc::new(Mutex::new(program));
        let contestant = |kind| {
            let program = Arc::clone(&program);
            Contestant::with_own_tasks(name, move |tasks, slice| {
                let program = Arc::clone(&program);
                async move { program.lock().await.turn(kind, tasks, slice).await }
            })
        };
        first.push(contestant("first"));
        replays.push(contestant("replay"));
        programs.push(program);
    }
    let tables = Tables {
        server: "Redis",
        first,
        replays,
    };
    (tables, programs)
}

async fn connect(url: &str) -> ConnectionManager {
    let client = redis::Client::open(url).unwrap();
    client.get_connection_manager().await.unwrap()
}

async fn set(mut connection: ConnectionManager, key: &str, condition: &str) {
    let mut set = redis::cmd("SET");
    set.arg(key).arg("34").arg("EX").arg(86_400).arg(condition);
    let _: redis::Value = set.query_async(&mut connection).await.unwrap();
}

/// Totals of the server: commands without those that read the totals, and processor time. A script is a command, and so
/// is each command that it calls.
async fn totals_of_redis(mut connection: ConnectionManager) -> BTreeMap<&'static str, i64> {
    let mut info = redis::pipe();
    info.cmd("INFO").arg("commandstats").cmd("INFO").arg("cpu");
    let (commands, processor): (String, String) = info.query_async(&mut connection).await.unwrap();
    let commands = commands.lines().filter_map(|line| {
        // As in `cmdstat_get:calls=21,usec=175,...`.
        let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let (calls, _) = figures.split_once(',')?;
        (name != "info").then(|| calls.parse::<i64>().unwrap())
    });
    let seconds = |field: &str| {
        let mut fields = processor.lines().filter_map(|line| line.split_once(':'));
        let (_, seconds) = fields.find(|(name, _)| *name == field).unwrap();
        seconds.parse::<f64>().unwrap()
    };
    let seconds = seconds("used_cpu_sys") + seconds("used_cpu_user");
    BTreeMap::from([
        ("commands", commands.sum()),
        (steady::SERVER_TIME, (seconds * 1e9) as i64),
    ])
}
