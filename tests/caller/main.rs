//! A program that uses a store in a separate process, so that tests can pause it, change its clock, or run ten copies
//! concurrently. It performs one command, and prints the result on a line.
//!
//! - `caller migrate ADDRESS` prints `ready`, waits for a line, opens and migrates the store, and prints `migrated`.
//! - `caller call ADDRESS KEY LEASE RETENTION VALUE` makes a call, with durations in milliseconds. The body prints
//!   `running`, waits for a line, and returns VALUE. Then the program prints `executed`, `replayed` or `waited` with
//!   the returned value, or the kind of the error.
//! - `caller transact ADDRESS KEY TIMEOUT SQL VALUE` makes such a call in a transaction. The body first executes SQL
//!   unless it is empty, and charges: it inserts VALUE as a receipt into the ledger of the database. TIMEOUT, in
//!   milliseconds, is the store's timeout and patience.
//! - `caller step ADDRESS KEY LEASE VALUE` makes a call with a lease, whose body charges in a `step_tx`. After the step
//!   is committed, the body prints `saved` and waits for a line.
//! - `caller clock` prints the seconds since 1970 by its clock.
//! - `caller purge ADDRESS` purges until no expired record is left, and prints `purged` with the number of records.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use idem_runtime::advanced::{Provenance, ResultSource, RunOptions, with_provenance};
use idem_runtime::record::Timestamp;
use idem_runtime::{Call, Error, Idem};
use idem_tests::ledger::Database;
use idem_tests::{at_database, backends};
use lexopt::{Parser, ValueExt as _};

/// Retention of calls whose command names none.
const RETENTION: Duration = Duration::from_secs(600);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        // Exits without waiting for a thread that may still read a line.
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("caller: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<()> {
    let mut args = Parser::from_env();
    let mut word = || -> anyhow::Result<String> { Ok(args.value()?.string()?) };
    match word()?.as_str() {
        "clock" => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
            say(&now.as_secs().to_string());
        }
        "migrate" => {
            let address = word()?;
            say("ready");
            line().await?;
            backends::open(&address).await?;
            say("migrated");
        }
        "call" => {
            let address = word()?;
            let key = word()?;
            let lease = milliseconds(&word()?)?;
            let retention = milliseconds(&word()?)?;
            call(&address, &key, lease, retention, word()?).await?;
        }
        "transact" => {
            let address = word()?;
            let key = word()?;
            let timeout = milliseconds(&word()?)?;
            let (sql, value) = (word()?, word()?);
            let answer = at_database!(
                &address,
                S => transact::<S>(&address, &key, timeout, &sql, &value).await,
                else bail!("{address} has no transactions")
            );
            report(answer?);
        }
        "step" => {
            let address = word()?;
            let key = word()?;
            let lease = milliseconds(&word()?)?;
            let value = word()?;
            let answer = at_database!(
                &address,
                S => step::<S>(&address, &key, lease, &value).await,
                else bail!("{address} has no transactions")
            );
            report(answer?);
        }
        "purge" => {
            let idem = backends::open(&word()?).await?;
            let mut removed = 0;
            loop {
                let purged = idem.store().purge(1000, Timestamp::MAX).await?;
                removed += purged.removed;
                if !purged.more {
                    break;
                }
            }
            say(&format!("purged {removed}"));
        }
        other => {
            bail!("unknown command {other:?}: use migrate, call, transact, step, clock or purge")
        }
    }
    Ok(())
}

async fn call(
    address: &str,
    key: &str,
    lease: Duration,
    retention: Duration,
    value: String,
) -> anyhow::Result<()> {
    let idem = backends::open(address).await?;
    let call = Call::new(backends::OPERATION, key, "request", retention).lease(lease);
    let answer = with_provenance(idem.run(call, async || {
        say("running");
        // At the end of the input, the test has ended and needs no answer.
        line().await.map_err(|_| Error::LeaseLost)?;
        Ok::<_, Error>(value)
    }));
    report(answer.await);
    Ok(())
}

/// Result of a call, with its provenance.
type Answer = (Result<String, Error>, Option<Provenance>);

async fn transact<S: Database>(
    address: &str,
    key: &str,
    timeout: Duration,
    sql: &str,
    value: &str,
) -> anyhow::Result<Answer> {
    let (store, _) = S::connect(address).await?;
    let idem = Idem::builder(store)
        .store_timeout(timeout)
        .store_patience(timeout)
        .build();
    let call = Call::new(backends::OPERATION, key, "request", RETENTION);
    let charge = idem.run_in_transaction(call, RunOptions::new(), async |tx, _| {
        if !sql.is_empty() {
            S::execute(tx, sql).await.map_err(|error| refused(&error))?;
        }
        S::charge(tx, key, value)
            .await
            .map_err(|error| refused(&error))?;
        say("running");
        line().await.map_err(|_| Error::LeaseLost)?;
        Ok::<_, Error>(value.to_owned())
    });
    Ok(with_provenance(charge).await)
}

async fn step<S: Database>(
    address: &str,
    key: &str,
    lease: Duration,
    value: &str,
) -> anyhow::Result<Answer> {
    let (store, _) = S::connect(address).await?;
    let idem = Idem::new(store);
    let call = Call::new(backends::OPERATION, key, "request", RETENTION).lease(lease);
    let charge = idem.run_with(call, RunOptions::new(), async |attempt| {
        let receipt = attempt
            .step_tx(&idem, "charge", async |tx| {
                S::charge(tx, key, value)
                    .await
                    .map_err(|error| refused(&error))?;
                say("running");
                line().await.map_err(|_| Error::LeaseLost)?;
                Ok::<_, Error>(value.to_owned())
            })
            .await?;
        say("saved");
        line().await.map_err(|_| Error::LeaseLost)?;
        Ok(receipt)
    });
    Ok(with_provenance(charge).await)
}

/// Prints the error of a statement. Tests read no more than that, so the returned error has no details.
fn refused(error: &sqlx::Error) -> Error {
    eprintln!("caller: {error}");
    Error::Interrupted
}

fn report(answer: Answer) {
    say(&match answer {
        (Ok(value), Some(provenance)) => match provenance.source {
            ResultSource::Executed => format!("executed {value}"),
            ResultSource::Replayed => format!("replayed {value}"),
            ResultSource::Waited => format!("waited {value}"),
        },
        (Ok(value), None) => format!("ok {value}"),
        (Err(Error::InFlight { .. }), _) => "in-flight".to_owned(),
        (Err(Error::LeaseLost), _) => "lease-lost".to_owned(),
        (Err(Error::Store(error)), _) if error.is_retryable() => "store".to_owned(),
        (Err(error), _) => format!("error {error:?}"),
    });
}

fn milliseconds(word: &str) -> anyhow::Result<Duration> {
    Ok(Duration::from_millis(word.parse()?))
}

fn say(line: &str) {
    // The test may have ended and closed the pipe.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Reads the next line on a separate thread, so that heartbeats continue.
async fn line() -> anyhow::Result<String> {
    tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        match std::io::stdin().read_line(&mut line)? {
            0 => bail!("the input has ended"),
            _ => Ok(line),
        }
    })
    .await
    .context("cannot read a line")?
}
