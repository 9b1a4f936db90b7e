//! A process of its own for the tests, which pause it, set its clock apart, or start ten of it at once. It does one
//! thing with a store and says on a line of its own what came of it.
//!
//! - `caller migrate ADDRESS` says `ready`, waits for a line, opens the store, migrates it, and says `migrated`.
//! - `caller call ADDRESS KEY LEASE RETENTION VALUE`, with durations in milliseconds, calls. Its body says `running`,
//!   waits for a line, and results in VALUE. Then it says `executed`, `replayed` or `waited` and the value it was given,
//!   or what kind of error it was.
//! - `caller transact ADDRESS KEY TIMEOUT SQL VALUE` makes that call in a transaction, with TIMEOUT in milliseconds for all
//!   that may take time, and with VALUE as the receipt in the ledger that is in the database. SQL comes first, where it is
//!   not empty.
//! - `caller step ADDRESS KEY LEASE VALUE` calls with a lease, and charges likewise in a step in a transaction. When that is
//!   committed it says `saved`, and waits for a line.
//! - `caller clock` says how many seconds its clock shows since 1970.
//! - `caller purge ADDRESS` purges until nothing is left to do, and says `purged` and how many records.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use idem_runtime::{
    Call, Error, Idem, MySqlStore, PostgresStore, Provenance, RunOptions, Source, SqliteStore,
    with_provenance,
};
use idem_tests::backends;
use idem_tests::ledger::Database;
use lexopt::{Parser, ValueExt as _};

/// Of calls that are not told one.
const RETENTION: Duration = Duration::from_secs(600);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        // A thread may still wait for a line, and nothing of it is needed any more.
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
            let answer = match address.split(':').next() {
                Some("sqlite") => {
                    transact::<SqliteStore>(&address, &key, timeout, &sql, &value).await
                }
                Some("postgres") => {
                    transact::<PostgresStore>(&address, &key, timeout, &sql, &value).await
                }
                _ => transact::<MySqlStore>(&address, &key, timeout, &sql, &value).await,
            };
            tell(answer?);
        }
        "step" => {
            let address = word()?;
            let key = word()?;
            let lease = milliseconds(&word()?)?;
            let value = word()?;
            let answer = match address.split(':').next() {
                Some("sqlite") => step::<SqliteStore>(&address, &key, lease, &value).await,
                Some("postgres") => step::<PostgresStore>(&address, &key, lease, &value).await,
                _ => step::<MySqlStore>(&address, &key, lease, &value).await,
            };
            tell(answer?);
        }
        "purge" => {
            let idem = backends::open(&word()?).await?;
            let mut removed = 0;
            loop {
                let purged = idem.store().purge(1000).await?;
                removed += purged.removed;
                if !purged.more {
                    break;
                }
            }
            say(&format!("purged {removed}"));
        }
        other => bail!("{other} is not migrate, call, transact, step, clock or purge"),
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
        // Without the line, whoever started this process is gone, and nobody asks any more.
        line().await.map_err(|_| Error::LeaseLost)?;
        Ok::<_, Error>(value)
    }));
    tell(answer.await);
    Ok(())
}

/// What a call answered, and where it came from.
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

/// Nobody asks for more than what the statement was refused for.
fn refused(error: &sqlx::Error) -> Error {
    eprintln!("caller: {error}");
    Error::Interrupted
}

fn tell(answer: Answer) {
    say(&match answer {
        (Ok(value), Some(provenance)) => match provenance.source {
            Source::Executed => format!("executed {value}"),
            Source::Replayed => format!("replayed {value}"),
            Source::Waited => format!("waited {value}"),
        },
        (Ok(value), None) => format!("given {value}"),
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
    // Whoever started this process may be gone.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// The next line, read on a thread, so that heartbeats go on meanwhile.
async fn line() -> anyhow::Result<String> {
    tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        match std::io::stdin().read_line(&mut line)? {
            0 => bail!("nobody says anything any more"),
            _ => Ok(line),
        }
    })
    .await
    .context("reading")?
}
