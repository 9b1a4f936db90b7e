//! Charges in transactions: the worker, and the comparison of its callers' answers with the database.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use idem_runtime::record::RecordState;
use idem_runtime::{Error, Idem, idempotent};
use idem_tests::at_database;
use idem_tests::ledger::Database;
use idem_tests::private::Kind;
use rand::RngExt;

use crate::Counts;
use crate::backend;
use crate::report::Answers;
use crate::worker::{Orders, call_on, say, until_it_answers};

/// Time limit for the last call of a key.
const PATIENCE: Duration = Duration::from_secs(20);

/// Errors of a charge.
#[derive(Debug, thiserror::Error)]
enum ChargeError {
    #[error("the charge failed after its effect")]
    Failed,
    #[error(transparent)]
    Ledger(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

const OPERATION: &str = "crash.tx";

/// Waits briefly before the effect and between the effect and the commit, so that kills hit before, between and after
/// both.
#[idempotent(key = key, ttl = "24h", name = OPERATION, store = idem, tx = tx, skip(fails))]
async fn charge<S: Database>(
    idem: &Idem<S>,
    key: &str,
    fails: bool,
) -> Result<String, ChargeError> {
    let (before, after) = {
        let mut rng = rand::rng();
        (rng.random_range(0..6), rng.random_range(0..6))
    };
    tokio::time::sleep(Duration::from_millis(before)).await;
    // Different each time, so that two runs never look like one.
    let receipt = format!("{:016x}", rand::random::<u64>());
    S::charge(tx, key, &receipt).await?;
    tokio::time::sleep(Duration::from_millis(after)).await;
    if fails {
        return Err(ChargeError::Failed);
    }
    Ok(receipt)
}

/// Creates the tables.
pub(crate) async fn prepare(address: &str) -> anyhow::Result<()> {
    at_database!(
        address,
        S => prepare_on::<S>(address).await,
        else bail!("{address} has no transactions")
    )
}

async fn prepare_on<S: Database>(address: &str) -> anyhow::Result<()> {
    let (store, pool) = S::connect(address).await?;
    store.make_ledger(&pool).await
}

pub(crate) async fn work(orders: Orders) -> anyhow::Result<()> {
    at_database!(
        orders.store,
        S => work_on::<S>(orders).await,
        else bail!("{} has no transactions", orders.store)
    )
}

async fn work_on<S: Database>(orders: Orders) -> anyhow::Result<()> {
    // The supervisor kills this process if it takes too long.
    let (store, _) = until_it_answers(|| S::connect(&orders.store)).await;
    let idem = Idem::new(store);
    call_on(orders.begun_at, move |key| {
        let idem = idem.clone();
        async move {
            let (fails, patience) = {
                let mut rng = rand::rng();
                let patience = rng.random_bool(0.1).then(|| rng.random_range(0..12));
                (rng.random_bool(0.1), patience)
            };
            let answer = match patience {
                None => charge(&idem, &key, fails).await,
                Some(patience) => {
                    let patience = Duration::from_millis(patience);
                    match tokio::time::timeout(patience, charge(&idem, &key, fails)).await {
                        Ok(answer) => answer,
                        Err(_) => return say("tx", &key, "error dropped"),
                    }
                }
            };
            say("tx", &key, &line_of(&answer));
            if answer.is_err() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    })
    .await
}

fn line_of(answer: &Result<String, ChargeError>) -> String {
    match answer {
        Ok(receipt) => format!("ok {receipt}"),
        Err(ChargeError::Failed) => "error failed".to_owned(),
        Err(ChargeError::Ledger(error)) => format!("outage {error:?}"),
        Err(ChargeError::Idempotency(error)) => match error {
            Error::InFlight { .. } => "error in-flight".to_owned(),
            Error::Store(error) if error.is_retryable() => format!("outage {error:?}"),
            other => format!("unexpected {other:?}"),
        },
    }
}

/// Results of the whole run.
#[derive(Debug)]
pub(crate) struct Report {
    store: Kind,
    keys: usize,
    answered: usize,
    rows: usize,
    completed: usize,
    double_effects: usize,
    lost_outcomes: usize,
    /// Rows without a completed record that holds their receipt, records without a row, and records in any other state.
    disagreements: usize,
    stuck: usize,
    calls: Counts,
    unexpected: Vec<String>,
}

/// Compares, and calls every key once more.
pub(crate) async fn judge(store: Kind, address: &str, answers: Answers) -> anyhow::Result<Report> {
    at_database!(
        address,
        S => judge_on::<S>(store, address, answers).await,
        else bail!("{store} has no transactions")
    )
}

async fn judge_on<S: Database>(
    name: Kind,
    address: &str,
    answers: Answers,
) -> anyhow::Result<Report> {
    // A pooler repeats for a while what the server said when it started, and only to a statement.
    let read = until_it_answers(|| async {
        let (store, pool) = S::connect(address).await?;
        let ledger = S::ledger(&pool).await?;
        Ok((store, pool, ledger))
    });
    let (store, pool, ledger) = tokio::time::timeout(PATIENCE, read).await?;
    let idem = Idem::new(store);
    let records = states(&idem).await?;
    let mut acknowledged: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((_, key), receipts) in answers.receipts {
        acknowledged.entry(key).or_default().extend(receipts);
    }
    let keys: BTreeSet<&String> = ledger
        .keys()
        .chain(records.keys())
        .chain(acknowledged.keys())
        .collect();
    let mut report = Report {
        store: name,
        keys: keys.len(),
        answered: acknowledged.len(),
        rows: ledger.values().map(Vec::len).sum(),
        completed: records
            .values()
            .filter(|it| **it == RecordState::Completed)
            .count(),
        double_effects: 0,
        lost_outcomes: 0,
        disagreements: 0,
        stuck: 0,
        calls: answers.calls,
        unexpected: answers.unexpected,
    };
    for key in &keys {
        let effects = ledger.get(*key).map_or(&[][..], Vec::as_slice);
        report.double_effects += usize::from(effects.len() > 1);
        let receipts = acknowledged.get(*key).map_or(&[][..], Vec::as_slice);
        // Every receipt that a caller got is in the ledger.
        let lost = receipts.iter().any(|it| !effects.contains(it));
        if lost {
            eprintln!("lost: {key}: acknowledged {receipts:?}, in the ledger {effects:?}");
        }
        report.lost_outcomes += usize::from(lost);
        let state = records.get(*key).copied();
        let expected = (!effects.is_empty()).then_some(RecordState::Completed);
        report.disagreements += usize::from(state != expected);
    }
    for key in &keys {
        match (ledger.get(*key), call_to_its_end(&idem, key).await) {
            (None, Ok(_)) => {}
            (Some(effects), Ok(receipt)) => {
                report.disagreements += usize::from(!effects.contains(&receipt));
            }
            (_, Err(error)) => {
                eprintln!("stuck: {key}: {error:?}");
                report.stuck += 1;
            }
        }
    }
    // The last calls have charged what was rolled back or never started, and nothing else.
    let ledger = S::ledger(&pool).await?;
    for key in &keys {
        let effects = ledger.get(*key).map_or(0, Vec::len);
        report.double_effects += usize::from(effects > 1);
        report.lost_outcomes += usize::from(effects == 0);
    }
    Ok(report)
}

/// States of all records, by key.
async fn states<S: Database>(idem: &Idem<S>) -> anyhow::Result<BTreeMap<String, RecordState>> {
    let records = backend::records(idem).await?.into_iter().map(|record| {
        ensure!(
            record.identity.operation.as_str() == OPERATION,
            "a record of another operation"
        );
        Ok((record.identity.key.as_str().to_owned(), record.state))
    });
    records.collect()
}

async fn call_to_its_end<S: Database>(idem: &Idem<S>, key: &str) -> Result<String, ChargeError> {
    let began = Instant::now();
    loop {
        match charge(idem, key, false).await {
            Err(ChargeError::Idempotency(error))
                if error.is_retryable() && began.elapsed() < PATIENCE =>
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer,
        }
    }
}

impl Report {
    /// Returns an error if a guarantee was broken.
    pub(crate) fn verdict(&self) -> anyhow::Result<()> {
        if let Some(line) = self.unexpected.first() {
            bail!(
                "{} unexpected answers, such as: {line}",
                self.unexpected.len()
            );
        }
        ensure!(self.answered > 0, "no call was answered");
        ensure!(self.lost_outcomes == 0, "lost outcomes");
        ensure!(self.double_effects == 0, "double effects");
        ensure!(
            self.disagreements == 0 && self.rows == self.completed,
            "records and ledger disagree"
        );
        ensure!(self.stuck == 0, "stuck keys");
        Ok(())
    }

    fn calls(&self, kind: &str) -> u64 {
        self.calls.get(kind).copied().unwrap_or_default()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} tx: {} calls ({} answered, {} out of reach) on {} keys, {} keys answered, {} ledger rows, \
             {} completed records, {} disagreements, {} double effects, {} lost outcomes, {} stuck keys",
            self.store,
            self.calls.values().sum::<u64>(),
            self.calls("tx ok"),
            self.calls("tx outage"),
            self.keys,
            self.answered,
            self.rows,
            self.completed,
            self.disagreements,
            self.double_effects,
            self.lost_outcomes,
            self.stuck,
        )
    }
}
