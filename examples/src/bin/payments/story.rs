//! The program of `payments`. After each action it counts the rows of the ledger. The ledger has no constraint against
//! a second row, so the count proves that there was none.

use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use idem_examples::Table;
use idem_runtime::Error;
use idem_runtime::advanced::{Provenance, ResultSource, with_provenance};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::service::{Charge, ChargeError, MONEY_MOVED, Payments, Receipt};

const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Runs all actions and checks their counts.
pub(crate) async fn tell() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("payments.sqlite");
    let shop = Arc::new(Payments::open(&file, A_DAY).await?);
    println!("Charges against one SQLite file. \"asked\" counts requests to the card processor,");
    println!("\"ledger\" the rows of the ledger, which grows by one for each charge.\n");
    let story = Story::begin(&shop);

    // A first charge, and a retry by a caller whose reply was lost.
    let first = ask(&shop, "order-1", card("visa", 12_50)).await;
    story.answer("a first charge", &first, 1, 1).await?;
    ensure!(first.source() == Some(ResultSource::Executed));
    let retry = ask(&shop, "order-1", card("visa", 12_50)).await;
    story
        .answer("the same charge again: a retry", &retry, 1, 1)
        .await?;
    ensure!(retry.source() == Some(ResultSource::Replayed) && retry.receipt()? == first.receipt()?);

    // A double click makes two concurrent calls. Here are a hundred.
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
        .filter(|it| it.source() == Some(ResultSource::Executed))
        .count();
    let (got, how) = (
        answers[0].to_string(),
        format!("{executed} of 100 executed"),
    );
    story
        .line("100 concurrent calls, one new key", &got, &how, 2, 2)
        .await?;
    ensure!(executed == 1);
    for answer in &answers {
        ensure!(answer.receipt()? == answers[0].receipt()?);
    }

    // A key is bound to the request that used it first.
    let reused = ask(&shop, "order-1", card("visa", 99_00)).await;
    story
        .answer("the first key, with another amount", &reused, 2, 2)
        .await?;
    ensure!(reused.is_idempotency(|error| matches!(error, Error::KeyReused)));

    // Named in `replay_err`, so the error is stored, and the retry does not reach the processor.
    let declined = ask(&shop, "order-3", card("empty", 5_00)).await;
    story
        .answer("a card without money", &declined, 3, 2)
        .await?;
    let again = ask(&shop, "order-3", card("empty", 5_00)).await;
    story.answer("the same charge again", &again, 3, 2).await?;
    for answer in [&declined, &again] {
        ensure!(matches!(answer.result, Err(ChargeError::Declined { .. })));
    }
    ensure!(again.source() == Some(ResultSource::Replayed));

    // Not named in `replay_err`, so the error is not stored, and the key is released.
    shop.processor.down.store(true, Ordering::Relaxed);
    let timed_out = ask(&shop, "order-4", card("visa", 7_00)).await;
    story
        .answer("the processor is down", &timed_out, 4, 2)
        .await?;
    ensure!(matches!(timed_out.result, Err(ChargeError::TimedOut)));
    shop.processor.down.store(false, Ordering::Relaxed);
    let retried = ask(&shop, "order-4", card("visa", 7_00)).await;
    story
        .answer("the processor is up: a retry", &retried, 5, 3)
        .await?;
    ensure!(retried.attempt() == Some(2));

    // A process dies right after the payment. Another process waits until the lease has expired and takes over. It asks
    // the processor a second time, with a key that the processor knows.
    kill_in_the_middle_of_a_charge(&file).await?;
    story
        .line("kill -9 after the payment", "nothing", "killed", 6, 3)
        .await?;
    let taken_over = ask(&shop, "order-5", doomed_charge()).await;
    story
        .answer("the same charge, another process", &taken_over, 7, 4)
        .await?;
    ensure!(taken_over.source() == Some(ResultSource::Executed) && taken_over.attempt() == Some(2));

    // The record expires after its `ttl`. Then the same key makes a new charge.
    let brief = Payments::open(&file, Duration::from_millis(300)).await?;
    let short_lived = ask(&brief, "order-6", card("visa", 1_00)).await;
    story
        .answer("a charge with a ttl of 300 ms", &short_lived, 8, 5)
        .await?;
    let deadline = Instant::now() + Duration::from_secs(20);
    let forgotten = loop {
        let answer = ask(&brief, "order-6", card("visa", 1_00)).await;
        if answer.source() != Some(ResultSource::Replayed) {
            break answer;
        }
        ensure!(Instant::now() < deadline, "the receipt never expired");
        tokio::time::sleep(Duration::from_millis(25)).await;
    };
    story
        .answer("the same key after the ttl", &forgotten, 9, 6)
        .await?;
    ensure!(forgotten.source() == Some(ResultSource::Executed));

    let payments = count(&shop, "processor_payments").await?;
    let distinct = count(&shop, "(SELECT DISTINCT payment FROM ledger)").await?;
    println!("\nThe processor moved money {payments} times, for {distinct} rows of the ledger.");
    ensure!((payments, distinct) == (6, 6));
    Ok(())
}

// --------------------------------------------------------------------------------------------- helpers of the story

/// Internal command of the process that is started to be killed. The file follows it.
pub(crate) const DOOMED: &str = "charge-until-killed";

fn doomed_charge() -> Charge {
    card("visa", 20_00)
}

/// Makes a charge that never gets an answer.
pub(crate) async fn be_killed(file: &Path) -> anyhow::Result<()> {
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
    let stdout = child
        .stdout
        .take()
        .context("the process has no piped output")?;
    BufReader::new(stdout).read_line(&mut said).await?;
    ensure!(said.trim() == MONEY_MOVED, "the process said {said:?}");
    // SIGKILL runs no destructors and no clean-up.
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

/// Result of a call, and its provenance.
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

    fn source(&self) -> Option<ResultSource> {
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

/// The table, with the counts that each line must have.
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

    async fn answer(&self, did: &str, got: &Answer, asked: u64, rows: u64) -> anyhow::Result<()> {
        let how = match (got.source(), got.attempt()) {
            (Some(ResultSource::Executed), Some(attempt @ 2..)) => {
                format!("executed, attempt {attempt}")
            }
            (Some(ResultSource::Executed), _) => "executed".to_owned(),
            (Some(ResultSource::Replayed), _) => "replayed".to_owned(),
            (Some(ResultSource::Waited), _) => "waited for".to_owned(),
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
            "{did}: asked and ledger are {counted:?}, not {asked} and {rows}"
        );
        Ok(())
    }
}

async fn count(shop: &Payments, table: &'static str) -> anyhow::Result<u64> {
    let query = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
    let count: i64 = sqlx::query_scalar(query).fetch_one(&shop.ledger).await?;
    Ok(count.try_into()?)
}
