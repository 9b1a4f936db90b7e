//! The main job: a charge happens once, whatever becomes of callers, networks and processes.
//!
//! Behind an annotated `charge` stand a ledger and a processor of credit cards. The ledger, and the records that
//! make the charges idempotent, are in one SQLite file. Each step below ends with a look at the ledger, which
//! has nothing to stop a second row: its row count is the witness. The program fails where it is not what it must be.
//!
//! Run it with `cargo run --bin payments`.

use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use idem_examples::Table;
use idem_runtime::{
    Error, Fingerprint, Idem, Provenance, Source, SqliteStore, idempotent, with_provenance,
};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

// ---------------------------------------------------------------------------------------------- what is asked and told

/// What a caller wants. A retry must ask for the same; its fingerprint tells whether it does.
#[derive(Clone, Fingerprint)]
struct Charge {
    card: String,
    cents: u64,
    /// Every request has another one, so it does not count.
    #[fingerprint(skip)]
    trace_id: u64,
}

/// What a caller gets. It is stored, so that a retry gets the very same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Receipt {
    number: i64,
    cents: u64,
}

/// What may go wrong. Some of it is an answer for good, and is stored like a receipt; most of it is not.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
enum ChargeError {
    #[error("the card was declined: {reason}")]
    Declined { reason: String },
    #[error("the processor timed out")]
    TimedOut,
    #[error("the database failed")]
    #[serde(skip)]
    Database(#[from] sqlx::Error),
    /// What the toolkit itself has to say: the key is in flight, or was used for something else.
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

// ----------------------------------------------------------------------------------------------------- the service

struct Payments {
    idem: Idem<SqliteStore>,
    /// How long a retry gets its receipt back.
    keep: Duration,
    ledger: SqlitePool,
    processor: Processor,
}

impl Payments {
    /// Charges a card once per tenant and key.
    #[idempotent(
        key = key,
        scope = tenant,
        ttl = self.keep,
        name = "charges.create",
        store = self.idem,
        attempt = attempt,
        replay_err = ChargeError::Declined { .. },
    )]
    async fn charge(
        &self,
        tenant: &str,
        key: &str,
        charge: Charge,
    ) -> Result<Receipt, ChargeError> {
        // Should this process die after the money moved, the next attempt sends the same key, and no money moves.
        let payment = self
            .processor
            .take(&attempt.downstream_key("cards"), &charge)
            .await?;
        let row = sqlx::query("INSERT INTO ledger (tenant, payment, cents) VALUES (?, ?, ?)")
            .bind(tenant)
            .bind(payment)
            .bind(charge.cents as i64)
            .execute(&self.ledger)
            .await?;
        Ok(Receipt {
            number: row.last_insert_rowid(),
            cents: charge.cents,
        })
    }

    async fn open(file: &Path, keep: Duration) -> anyhow::Result<Self> {
        let db = SqlitePool::connect_with(SqliteStore::connect_options(file)).await?;
        sqlx::raw_sql(
            "CREATE TABLE IF NOT EXISTS ledger (tenant TEXT, payment INTEGER, cents INTEGER);
             CREATE TABLE IF NOT EXISTS processor_requests (key TEXT, trace_id INTEGER);
             CREATE TABLE IF NOT EXISTS processor_payments (key TEXT, cents INTEGER, at REAL);",
        )
        .execute(&db)
        .await?;
        let store = SqliteStore::new(db.clone());
        store.migrate().await?;
        Ok(Self {
            idem: Idem::builder(store)
                // How long an owner is believed that says nothing: that much later somebody else may go on.
                .lease(Duration::from_secs(2))
                // How long a duplicate waits for the one that is running, before it is told to come back.
                .wait(Duration::from_secs(30))
                .build(),
            keep,
            processor: Processor {
                db: db.clone(),
                keep,
                down: AtomicBool::new(false),
                mute: AtomicBool::new(false),
            },
            ledger: db,
        })
    }
}

/// Somebody else's service that moves the money. As the real ones do, it takes a key with each request, moves the
/// money once a key, and forgets the key after a while. It keeps its own tables, for it outlives our processes.
struct Processor {
    db: SqlitePool,
    keep: Duration,
    /// It does not answer, having done nothing.
    down: AtomicBool,
    /// It does what it is asked, but its answer never arrives.
    mute: AtomicBool,
}

impl Processor {
    async fn take(&self, key: &str, charge: &Charge) -> Result<i64, ChargeError> {
        sqlx::query("INSERT INTO processor_requests VALUES (?, ?)")
            .bind(key)
            .bind(charge.trace_id as i64)
            .execute(&self.db)
            .await?;
        if self.down.load(Ordering::Relaxed) {
            return Err(ChargeError::TimedOut);
        }
        if charge.card == "empty" {
            let reason = "no funds".to_owned();
            return Err(ChargeError::Declined { reason });
        }
        let payment = self.move_money_once(key, charge).await?;
        if self.mute.load(Ordering::Relaxed) {
            println!("{MONEY_MOVED}");
            std::future::pending::<()>().await;
        }
        Ok(payment)
    }

    async fn move_money_once(&self, key: &str, charge: &Charge) -> Result<i64, ChargeError> {
        let known = sqlx::query_scalar(
            "SELECT rowid FROM processor_payments WHERE key = ? AND at > unixepoch('subsec') - ?",
        )
        .bind(key)
        .bind(self.keep.as_secs_f64())
        .fetch_optional(&self.db)
        .await?;
        if let Some(payment) = known {
            return Ok(payment);
        }
        let insert = "INSERT INTO processor_payments VALUES (?, ?, unixepoch('subsec'))";
        let row = sqlx::query(insert)
            .bind(key)
            .bind(charge.cents as i64)
            .execute(&self.db)
            .await?;
        Ok(row.last_insert_rowid())
    }
}

// ------------------------------------------------------------------------------------------------------- the story

const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The story starts this program once more, to kill it.
    if let [_, argument, file] = &std::env::args().collect::<Vec<_>>()[..] {
        ensure!(argument == DOOMED, "payments takes no arguments");
        return be_killed(Path::new(file)).await;
    }

    let folder = tempfile::tempdir()?;
    let file = folder.path().join("payments.sqlite");
    let shop = Arc::new(Payments::open(&file, A_DAY).await?);
    println!("Charges against one SQLite file. \"asked\" counts requests to the card processor,");
    println!("\"ledger\" the rows of the ledger, which grows by one for each charge.\n");
    let story = Story::begin(&shop);

    // A first charge, and a retry by a caller that never saw the answer.
    let first = ask(&shop, "order-1", card("visa", 12_50)).await;
    story.tell("a first charge", &first, 1, 1).await?;
    ensure!(first.source() == Some(Source::Executed));
    let retry = ask(&shop, "order-1", card("visa", 12_50)).await;
    story.tell("the same again: a retry", &retry, 1, 1).await?;
    ensure!(retry.source() == Some(Source::Replayed) && retry.receipt()? == first.receipt()?);

    // A double click is two of these; here are a hundred.
    let clicks: Vec<_> = (0..100)
        .map(|_| {
            let shop = Arc::clone(&shop);
            tokio::spawn(async move { ask(&shop, "order-2", card("visa", 30_00)).await })
        })
        .collect();
    let mut answers = Vec::new();
    for click in clicks {
        answers.push(click.await?);
    }
    let executed = answers
        .iter()
        .filter(|it| it.source() == Some(Source::Executed))
        .count();
    let (got, how) = (
        answers[0].to_string(),
        format!("{executed} of 100 executed"),
    );
    story
        .line("100 at once, with one new key", &got, &how, 2, 2)
        .await?;
    ensure!(executed == 1);
    for answer in &answers {
        ensure!(answer.receipt()? == answers[0].receipt()?);
    }

    // A key belongs to the request that it was first used with.
    let reused = ask(&shop, "order-1", card("visa", 99_00)).await;
    story
        .tell("the first key, with another amount", &reused, 2, 2)
        .await?;
    ensure!(reused.is_idempotency(|error| matches!(error, Error::KeyReused)));

    // Named under `replay_err`, so the answer is kept, and nobody asks the processor again.
    let declined = ask(&shop, "order-3", card("empty", 5_00)).await;
    story.tell("a card without money", &declined, 3, 2).await?;
    let again = ask(&shop, "order-3", card("empty", 5_00)).await;
    story.tell("the same again", &again, 3, 2).await?;
    for answer in [&declined, &again] {
        ensure!(matches!(answer.result, Err(ChargeError::Declined { .. })));
    }
    ensure!(again.source() == Some(Source::Replayed));

    // Not named, so it says nothing for good: the key is free again at once.
    shop.processor.down.store(true, Ordering::Relaxed);
    let timed_out = ask(&shop, "order-4", card("visa", 7_00)).await;
    story
        .tell("the processor is down", &timed_out, 4, 2)
        .await?;
    ensure!(matches!(timed_out.result, Err(ChargeError::TimedOut)));
    shop.processor.down.store(false, Ordering::Relaxed);
    let retried = ask(&shop, "order-4", card("visa", 7_00)).await;
    story
        .tell("it is up again: a retry", &retried, 5, 3)
        .await?;
    ensure!(retried.attempt() == Some(2));

    // A process dies right after the money moved. Another one waits until its lease is over and goes on: the processor
    // is asked a second time, with the key that it knows already.
    kill_in_the_middle_of_a_charge(&file).await?;
    story
        .line(
            "kill -9 when the money has moved",
            "nothing",
            "killed",
            6,
            3,
        )
        .await?;
    let taken_over = ask(&shop, "order-5", doomed_charge()).await;
    story
        .tell("the same from another process", &taken_over, 7, 4)
        .await?;
    ensure!(taken_over.source() == Some(Source::Executed) && taken_over.attempt() == Some(2));

    // A receipt is kept for so long; after that the same key is a new charge.
    let brief = Payments::open(&file, Duration::from_millis(300)).await?;
    let short_lived = ask(&brief, "order-6", card("visa", 1_00)).await;
    story
        .tell("a charge that is kept for 300 ms", &short_lived, 8, 5)
        .await?;
    let deadline = Instant::now() + Duration::from_secs(20);
    let forgotten = loop {
        let answer = ask(&brief, "order-6", card("visa", 1_00)).await;
        if answer.source() != Some(Source::Replayed) {
            break answer;
        }
        ensure!(Instant::now() < deadline, "the receipt never expired");
        tokio::time::sleep(Duration::from_millis(25)).await;
    };
    story
        .tell("the same key when that is over", &forgotten, 9, 6)
        .await?;
    ensure!(forgotten.source() == Some(Source::Executed));

    let payments = count(&shop, "processor_payments").await?;
    let distinct = count(&shop, "(SELECT DISTINCT payment FROM ledger)").await?;
    println!("\nThe processor moved money {payments} times, for {distinct} rows of the ledger.");
    ensure!((payments, distinct) == (6, 6));
    Ok(())
}

// --------------------------------------------------------------------------------------- how the story is acted out

/// The argument of a process that is started to be killed.
const DOOMED: &str = "--charge-until-killed";
/// What it says when it is time.
const MONEY_MOVED: &str = "the money has moved";

fn doomed_charge() -> Charge {
    card("visa", 20_00)
}

async fn be_killed(file: &Path) -> anyhow::Result<()> {
    let shop = Payments::open(file, A_DAY).await?;
    shop.processor.mute.store(true, Ordering::Relaxed);
    ask(&shop, "order-5", doomed_charge()).await.result?;
    Ok(())
}

async fn kill_in_the_middle_of_a_charge(file: &Path) -> anyhow::Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(DOOMED)
        .arg(file)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut said = String::new();
    let stdout = child.stdout.take().context("its stdout is a pipe")?;
    BufReader::new(stdout).read_line(&mut said).await?;
    ensure!(said.trim() == MONEY_MOVED, "the process said {said:?}");
    // SIGKILL: no destructor, no clean-up, no last word.
    child.kill().await?;
    Ok(())
}

fn card(card: &str, cents: u64) -> Charge {
    static TRACE_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    Charge {
        card: card.to_owned(),
        cents,
        trace_id: TRACE_ID.fetch_add(1, Ordering::Relaxed),
    }
}

/// What a caller got, and where it came from.
struct Answer {
    result: Result<Receipt, ChargeError>,
    provenance: Option<Provenance>,
}

async fn ask(shop: &Payments, key: &str, charge: Charge) -> Answer {
    let (result, provenance) = with_provenance(shop.charge("acme", key, charge)).await;
    Answer { result, provenance }
}

impl Answer {
    fn receipt(&self) -> anyhow::Result<&Receipt> {
        match &self.result {
            Ok(receipt) => Ok(receipt),
            Err(error) => anyhow::bail!("no receipt: {error}"),
        }
    }

    fn source(&self) -> Option<Source> {
        self.provenance.as_ref().map(|it| it.source)
    }

    fn attempt(&self) -> Option<u32> {
        self.provenance.as_ref().map(|it| it.attempt)
    }

    fn is_idempotency(&self, is: impl FnOnce(&Error) -> bool) -> bool {
        matches!(&self.result, Err(ChargeError::Idempotency(error)) if is(error))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Ok(receipt) => {
                let (whole, cents) = (receipt.cents / 100, receipt.cents % 100);
                write!(f, "receipt {}: {whole}.{cents:02} EUR", receipt.number)
            }
            Err(ChargeError::Declined { reason }) => write!(f, "declined: {reason}"),
            Err(ChargeError::TimedOut) => write!(f, "a time-out"),
            Err(ChargeError::Idempotency(error)) => write!(f, "{error:?}"),
            Err(error) => write!(f, "{error}"),
        }
    }
}

/// The table, with the counts that each line must come to.
struct Story<'a> {
    shop: &'a Payments,
    table: Table<5>,
}

impl<'a> Story<'a> {
    fn begin(shop: &'a Payments) -> Self {
        Self {
            shop,
            table: Table::new([
                ("what was done", 34),
                ("what the caller got", 23),
                ("how", 19),
                ("asked", 5),
                ("ledger", 6),
            ]),
        }
    }

    async fn tell(&self, did: &str, got: &Answer, asked: u64, rows: u64) -> anyhow::Result<()> {
        let how = match (got.source(), got.attempt()) {
            (Some(Source::Executed), Some(attempt @ 2..)) => format!("executed, attempt {attempt}"),
            (Some(Source::Executed), _) => "executed".to_owned(),
            (Some(Source::Replayed), _) => "replayed".to_owned(),
            (Some(Source::Waited), _) => "waited for".to_owned(),
            (None, _) => "refused".to_owned(),
        };
        self.line(did, &got.to_string(), &how, asked, rows).await
    }

    async fn line(
        &self,
        did: &str,
        got: &str,
        how: &str,
        asked: u64,
        rows: u64,
    ) -> anyhow::Result<()> {
        let counted = (
            count(self.shop, "processor_requests").await?,
            count(self.shop, "ledger").await?,
        );
        let (a, b) = (counted.0.to_string(), counted.1.to_string());
        self.table.line([did, got, how, &a, &b]);
        ensure!(
            counted == (asked, rows),
            "{did}: asked and ledger must be {asked} and {rows}"
        );
        Ok(())
    }
}

async fn count(shop: &Payments, table: &'static str) -> anyhow::Result<u64> {
    let query = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
    let count: i64 = sqlx::query_scalar(query).fetch_one(&shop.ledger).await?;
    Ok(count.try_into()?)
}
