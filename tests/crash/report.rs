//! Comparison of the callers' answers with the records and the ledger.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use idem_runtime::Error;
use idem_runtime::record::RecordState;
use idem_tests::private::Kind;
use sqlx::Row;

use crate::Counts;
use crate::worker::{ChargeError, Service};

/// Time limit for the last call of a key: many leases.
const PATIENCE: Duration = Duration::from_secs(20);

/// Answers that the workers reported.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Receipts by mode and key, in the order of their reports.
    pub(crate) receipts: BTreeMap<(String, String), Vec<String>>,
    pub(crate) calls: Counts,
    pub(crate) unexpected: Vec<String>,
    /// True if the server is killed too.
    outages: bool,
}

impl Answers {
    pub(crate) fn new(outages: bool) -> Self {
        Self {
            outages,
            ..Self::default()
        }
    }

    /// Number of calls that the workers have reported.
    pub(crate) fn heard(&self) -> u64 {
        self.calls.values().sum()
    }

    /// Reads a whole line of a worker, or a piece of one from a killed worker.
    pub(crate) fn hear(&mut self, line: &str) {
        let mut words = line.split(' ');
        let (Some(mode), Some(key), Some(kind), Some(detail)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return;
        };
        *self.calls.entry(format!("{mode} {kind}")).or_default() += 1;
        match kind {
            // Sixteen digits, or the line was cut short. While the store is unreachable and the lease is valid, a call
            // returns its own value with a warning that the value is not recorded: then only a value read from the
            // store is acknowledged.
            "ok" | "own" if detail.len() == 16 && (kind == "ok" || !self.outages) => self
                .receipts
                .entry((mode.to_owned(), key.to_owned()))
                .or_default()
                .push(detail.to_owned()),
            "outage" if !self.outages => self.unexpected.push(line.to_owned()),
            "unexpected" => self.unexpected.push(line.to_owned()),
            "error" if detail.starts_with("ledger") => self.unexpected.push(line.to_owned()),
            _ => {}
        }
    }
}

/// Results for the keys of one mode.
#[derive(Debug, Default)]
struct Mode {
    keys: u64,
    answered: u64,
    completed: u64,
    interrupted: u64,
    double_effects: u64,
    lost_outcomes: u64,
    stuck: u64,
    /// Completed keys without a ledger row: a receipt without an effect.
    without_effect: u64,
}

/// Results of the whole run.
#[derive(Debug)]
pub(crate) struct Report {
    store: Kind,
    modes: BTreeMap<&'static str, Mode>,
    calls: Counts,
    unexpected: Vec<String>,
}

/// Calls every key once more, and compares.
pub(crate) async fn judge(
    store: Kind,
    address: &str,
    ledger: &Path,
    answers: Answers,
) -> anyhow::Result<Report> {
    let service = Service::open(address, ledger).await?;
    let rows = sqlx::query("SELECT mode, key, count(*) AS effects FROM ledger GROUP BY mode, key")
        .fetch_all(service.ledger())
        .await?;
    let ledger_before: BTreeMap<(String, String), i64> = rows
        .iter()
        .map(|row| ((row.get("mode"), row.get("key")), row.get("effects")))
        .collect();
    let mut keys: Vec<_> = ledger_before
        .keys()
        .chain(answers.receipts.keys())
        .collect();
    keys.sort();
    keys.dedup();

    let mut modes: BTreeMap<_, Mode> = BTreeMap::new();
    for (name, key) in keys {
        let mode_name = if name == "rerun" { "rerun" } else { "refuse" };
        let mode = modes.entry(mode_name).or_default();
        mode.keys += 1;
        let last = call_to_its_end(&service, name, key).await;
        let record = service
            .idem()
            .records()
            .find(&format!("crash.{name}"), key)
            .await?;
        let state = record.map(|record| record.state);
        let receipts = answers.receipts.get(&(name.clone(), key.clone()));
        mode.answered += u64::from(receipts.is_some());
        match (&last, state) {
            (Ok(receipt), Some(RecordState::Completed)) => {
                mode.completed += 1;
                let differs = receipts.is_some_and(|them| them.iter().any(|it| it != receipt));
                if differs {
                    eprintln!("lost: {name} {key}: acknowledged {receipts:?}, now {receipt}");
                }
                mode.lost_outcomes += u64::from(differs);
            }
            (Err(ChargeError::Idempotency(Error::Interrupted)), Some(RecordState::Interrupted)) => {
                mode.interrupted += 1;
                // A caller got a receipt, so the outcome was known.
                mode.lost_outcomes += u64::from(receipts.is_some());
            }
            _ => {
                eprintln!("stuck: {name} {key}: {last:?}, {state:?}");
                mode.stuck += 1;
            }
        }
        let effects: i64 =
            sqlx::query_scalar("SELECT count(*) FROM ledger WHERE mode = ? AND key = ?")
                .bind(name)
                .bind(key)
                .fetch_one(service.ledger())
                .await?;
        mode.double_effects += u64::from(effects > 1);
        mode.without_effect += u64::from(last.is_ok() && effects == 0);
    }
    Ok(Report {
        store,
        modes,
        calls: answers.calls,
        unexpected: answers.unexpected,
    })
}

/// Calls a key until it returns a receipt or is interrupted: the leases of killed workers have to expire first.
async fn call_to_its_end(service: &Service, mode: &str, key: &str) -> Result<String, ChargeError> {
    let began = Instant::now();
    loop {
        let answer = match mode {
            "rerun" => service.rerun(key).await,
            _ => service.refuse(key).await,
        };
        let again = match &answer {
            Err(ChargeError::TimedOut) => Duration::ZERO,
            Err(ChargeError::Idempotency(Error::InFlight { retry_after })) => *retry_after,
            _ => return answer,
        };
        if began.elapsed() > PATIENCE {
            return answer;
        }
        tokio::time::sleep(again).await;
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
        for (name, mode) in &self.modes {
            ensure!(mode.answered > 0, "{name}: no call was answered");
            ensure!(mode.lost_outcomes == 0, "{name}: lost outcomes");
            ensure!(mode.stuck == 0, "{name}: stuck keys");
            ensure!(
                mode.without_effect == 0,
                "{name}: receipts without an effect"
            );
            ensure!(
                mode.double_effects == 0 || *name == "rerun",
                "{name}: double effects under at most once",
            );
        }
        ensure!(self.modes.len() == 2, "both modes must have been called");
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (line, (name, mode)) in self.modes.iter().enumerate() {
            if line > 0 {
                writeln!(f)?;
            }
            let calls: u64 = self
                .calls
                .iter()
                .filter(|(call, _)| call.starts_with(name))
                .map(|(_, count)| count)
                .sum();
            write!(
                f,
                "{} {name}: {calls} calls on {} keys, {} completed, {} interrupted, {} double effects, \
                 {} lost outcomes, {} stuck keys",
                self.store,
                mode.keys,
                mode.completed,
                mode.interrupted,
                mode.double_effects,
                mode.lost_outcomes,
                mode.stuck,
            )?;
        }
        Ok(())
    }
}
